"""Observation fields into flat features: each kind of field by itself, pictures by a convolutional stack."""

from farfield.errors import ConfigError
from farfield.learning.sketch import Sketch
from farfield.types import Field, Kind, Tensor

ONE_HOT = 32  # up to so many values a choice is one-hot; above, it is embedded
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride
IMPALA = (16, 32, 32)  # channels of each section


def encode(sketch: Sketch, field: Field, prefix: str, *, pictures: str, embed: int, normalise: bool) -> str:
    """Add what turns one observation field into flat features; `pictures` is nature, impala or flat."""
    column = sketch.column(field)
    match field.kind:
        case Kind.DISCRETE | Kind.MULTI_DISCRETE:
            return _choices(sketch, field, column, prefix, embed)
        case Kind.MULTI_BINARY:
            return sketch.flat(column)
        case Kind.BOX:
            pass
    if field.image and pictures != "flat":
        scaled = sketch.node(
            f"scale/{field.name}", "scale", (column,), field.shape, options={"factor": 1 / 255, "offset": 0.0}
        )
        stack = _nature if pictures == "nature" else _impala
        return stack(sketch, field, scaled, f"{prefix}/{field.name}")
    if normalise and not field.image:
        return sketch.flat(_normalised(sketch, field, column))
    if field.dtype == "uint8":
        top = field.high[0] if len(field.high) == 1 and field.high[0] > 0 else 255.0
        options = {"factor": 1 / top, "offset": 0.0}
        column = sketch.node(f"scale/{field.name}", "scale", (column,), field.shape, options=options)
    return sketch.flat(column)


def _normalised(sketch: Sketch, field: Field, column: str) -> str:
    statistics = {
        "mean": Tensor(field.shape, trainable=False),
        "var": Tensor(field.shape, trainable=False),
        "count": Tensor((), trainable=False),
    }
    options = {"epsilon": 1e-8, "clip": 10.0}
    return sketch.node(
        f"normalise/{field.name}", "normalise", (column,), field.shape, tensors=statistics, options=options
    )


def _choices(sketch: Sketch, field: Field, column: str, prefix: str, embed: int) -> str:
    options = {"sizes": list(field.sizes)}
    if max(field.sizes) <= ONE_HOT:
        return sketch.node(f"one_hot/{field.name}", "one_hot", (column,), (sum(field.sizes),), options=options)
    table = {"table": Tensor((sum(field.sizes), embed))}
    shape = (embed * len(field.sizes),)
    return sketch.node(f"{prefix}/{field.name}/embed", "embed", (column,), shape, tensors=table, options=options)


def _nature(sketch: Sketch, field: Field, source: str, prefix: str) -> str:
    """Mnih et al. 2015: three convolutions and a dense layer of 512."""
    for number, (channels, size, stride) in enumerate(NATURE):
        source = sketch.conv(f"{prefix}/conv{number}", source, channels, size=size, stride=stride)
        if min(sketch.shapes[source][:2]) < 1:
            height, width, depth = field.shape
            raise ConfigError(
                f"pictures {field.name!r} are {height} x {width} with {depth} channels (height, width, channels): "
                'too small for cnn = "nature", which needs 36 x 36; use cnn = "impala", which takes any size, or '
                'kind = "mlp", which flattens them; if channels come first, transpose them'
            )
        source = sketch.plain(f"{source}/relu", "relu", source)
    return sketch.layers(f"{prefix}/dense", sketch.flat(source), (512,), "relu")


def _impala(sketch: Sketch, field: Field, source: str, prefix: str) -> str:
    """Espeholt et al. 2018: three sections of convolution, pooling and two residual blocks; a dense layer of 256."""
    if min(field.shape) < 1:
        raise ConfigError(f"pictures {field.name!r} are empty: {field.shape}; give every axis at least one value")
    for number, channels in enumerate(IMPALA):
        section = f"{prefix}/section{number}"
        source = sketch.conv(f"{section}/conv", source, channels, size=3, padding=1)
        source = sketch.pool(f"{section}/pool", source, size=3, stride=2, padding=1)
        for block in ("a", "b"):
            source = _residual(sketch, source, f"{section}/{block}", channels)
    source = sketch.plain(f"{prefix}/relu", "relu", source)
    return sketch.layers(f"{prefix}/dense", sketch.flat(source), (256,), "relu")


def _residual(sketch: Sketch, source: str, prefix: str, channels: int) -> str:
    inner = sketch.plain(f"{prefix}/relu0", "relu", source)
    inner = sketch.conv(f"{prefix}/conv0", inner, channels, size=3, padding=1)
    inner = sketch.plain(f"{prefix}/relu1", "relu", inner)
    inner = sketch.conv(f"{prefix}/conv1", inner, channels, size=3, padding=1)
    return sketch.node(f"{prefix}/add", "add", (source, inner), sketch.shapes[source])
