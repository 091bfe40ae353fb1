"""Reinforcement learning for software in the field: `train`, `play`, `connect`, and what describes a program.

Nothing heavy is imported until it is used: `import farfield` costs what NumPy costs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farfield.errors import lacking

if TYPE_CHECKING:
    from farfield.api import Run, play, train
    from farfield.connecting import connect
    from farfield.experience.specs import box, discrete, multi_binary, multi_discrete, spec

__version__ = "0.1.0"
_LAZY = {
    "connect": "farfield.connecting",
    **dict.fromkeys(("Run", "play", "train"), "farfield.api"),
    **dict.fromkeys(("box", "discrete", "multi_binary", "multi_discrete", "spec"), "farfield.experience.specs"),
}
__all__ = [
    "Run", "__version__", "box", "connect", "discrete", "multi_binary", "multi_discrete", "play", "spec", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise lacking(error, f"farfield.{name}") from error
    raise AttributeError(f"module 'farfield' has no attribute {name!r}")
