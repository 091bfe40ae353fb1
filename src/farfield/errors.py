"""What we raise on purpose: a flat list; every message names the thing, what was expected, what came, and the cure."""

from collections.abc import Iterable
from difflib import get_close_matches

_TRAIN = ("jax", "gymnasium", "safetensors", "typer", "rich", "matplotlib", "imageio", "platformdirs", "tensorboardX")
EXTRAS = dict.fromkeys(_TRAIN, "farfield[train]") | {  # package -> what to install for it
    "onnx": "farfield[onnx]", "onnxruntime": "farfield[onnx]", "envpool": "farfield[envpool]",
    "wandb": "farfield[wandb]", "mlflow": "farfield[mlflow]", "yaml": "farfield[rl4sys]",
    **dict.fromkeys(("litestar", "uvicorn", "prometheus_client"), "farfield[server]"),
}  # fmt: skip


class FarfieldError(Exception):
    """Anything below; catch this to catch all of them."""


class ConfigError(FarfieldError):
    """A setting, name or option that cannot be used."""


class SpecError(FarfieldError):
    """Data or spaces that do not fit what was agreed."""


class EnvError(FarfieldError):
    """An environment broke its contract."""


class CorruptError(FarfieldError):
    """Stored or received bytes that are not what they say they are."""


class ConflictError(FarfieldError):
    """Somebody else holds or has done what was about to be done."""


class FullError(FarfieldError):
    """There was no room in time: a queue, a quota or a disk."""


class MissingError(FarfieldError):
    """Something that is needed is not there: a run, a version, an optional package."""


def lacking(error: ModuleNotFoundError, who: str) -> MissingError:
    """Say what to install for a package that an import did not find; what is ours or is no package goes on up."""
    package = (error.name or "").partition(".")[0]
    if package in {"", "farfield"}:
        raise error
    install = EXTRAS.get(package, package)
    return MissingError(f"{who} needs the package {package}, which is not installed: pip install {install!r}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are meant, for the end of an error message."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(names[:20])}"
