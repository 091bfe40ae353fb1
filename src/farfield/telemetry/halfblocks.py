"""A picture goes in, lines of coloured half blocks for a terminal come out."""

import numpy as np

from farfield.types import Array


def lines(picture: Array, *, width: int, height: int) -> list[str]:
    """Draw a picture [H, W, 3] into at most `width` × `height` characters, two pixels in each."""
    scale = min(width / picture.shape[1], 2 * height / picture.shape[0], 1.0)
    columns = max(1, round(picture.shape[1] * scale))
    rows = max(2, round(picture.shape[0] * scale) // 2 * 2)
    small = _shrunk(picture[..., :3], rows, columns)
    return [_line(small[row], small[row + 1]) for row in range(0, rows, 2)]


def _line(upper: Array, lower: Array) -> str:
    """Write one line of characters; colours are repeated only where they change."""
    parts: list[str] = []
    before: tuple[int, ...] = ()
    for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
        colours = (*above, *below)
        if colours != before:
            parts.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*colours))
            before = colours
        parts.append("▀")
    return "".join(parts) + "\x1b[0m"


def _shrunk(picture: Array, rows: int, columns: int) -> Array:
    """Give a smaller picture [rows, columns, 3], each pixel the mean of what it stands for."""
    tall = np.linspace(0, picture.shape[0], rows + 1).astype(int)[:-1]
    wide = np.linspace(0, picture.shape[1], columns + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(picture.astype(np.float32), tall, axis=0), wide, axis=1)
    areas = np.outer(np.diff(tall, append=picture.shape[0]), np.diff(wide, append=picture.shape[1]))
    return np.round(sums / areas[..., None]).astype(np.uint8)
