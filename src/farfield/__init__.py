"""Reinforcement learning for software in the field: `farfield.train`, `farfield.play`, and the nouns of types.py.

Nothing heavy is imported until it is used: `import farfield` costs what NumPy costs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farfield.errors import lacking

if TYPE_CHECKING:
    from farfield.api import Run, play, train

__version__ = "0.1.0"
_LAZY = {"train": "farfield.api", "play": "farfield.api", "Run": "farfield.api"}
__all__ = ["Run", "__version__", "play", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise lacking(error, f"farfield.{name}") from error
    raise AttributeError(f"module 'farfield' has no attribute {name!r}")
