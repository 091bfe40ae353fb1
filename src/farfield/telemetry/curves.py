"""Numbers go in, small pictures in characters come out: sparklines and braille charts for terminals."""

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille dots: four rows of two


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw a series as one line of bars, each the mean of its part."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    width = min(width, len(known))
    parts = [known[i * len(known) // width : (i + 1) * len(known) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def histogram(values: Sequence[float], width: int = 24) -> str:
    """Draw how values spread between their least and their largest: one bar for each part of that way."""
    low, high = min(values), max(values)
    if high <= low:
        return BARS[-1]
    counts = [0] * width
    for value in values:
        counts[min(width - 1, int((value - low) / (high - low) * width))] += 1
    most = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] if count else " " for count in counts)


def chart(x: Sequence[float], y: Sequence[float], *, width: int = 60, height: int = 8) -> list[str]:
    """Draw a curve in braille dots: `height` lines of `width` characters, from min(x) to max(x)."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    cells = [[0] * width for _ in range(height)]
    if points:
        columns = _resampled(points, width * 2)
        low, high = min(columns), max(columns)
        scale = (height * 4 - 1) / (high - low) if high > low else 0.0
        rows = [height * 4 - 1 - round((value - low) * scale) for value in columns]
        before = rows[0]
        for column, row in enumerate(rows):
            # The dots between two neighbours are filled half and half, so that a steep curve stays one line.
            for dot in range(min(before, row) + (before != row and before < row), max(before, row) + (before <= row)):
                cells[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
            before = row
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def compact(number: float) -> str:
    """Write a number as people say it: 980, 12.3k, 4.56M."""
    if not math.isfinite(number):
        return "–"
    size = abs(number)
    for limit, divisor, sign in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (math.inf, 1e9, "G")):
        if size < limit * 0.9995:
            return f"{number / divisor:.3g}{sign}"
    return f"{number:g}"


def duration(seconds: float) -> str:
    """Write a time span: 4.2 s, 3:05, 2:03:05."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _resampled(points: Sequence[tuple[float, float]], count: int) -> list[float]:
    """Read the curve at `count` places between its first and last x, by straight lines."""
    begin, end = points[0][0], points[-1][0]
    values: list[float] = []
    right = 0
    for i in range(count):
        at = begin + (end - begin) * i / max(1, count - 1)
        while right < len(points) - 1 and points[right][0] < at:
            right += 1
        left = max(0, right - 1)
        (x0, y0), (x1, y1) = points[left], points[right]
        share = (at - x0) / (x1 - x0) if x1 > x0 else 1.0
        values.append(y0 + (y1 - y0) * min(1.0, max(0.0, share)))
    return values
