"""Small line charts as inline SVG, so the page needs no library.

Colours are the page's (CSS classes `line-0`, `line-1`), so they follow light and dark mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from .formatting import short

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 600, 140, 52, 10, 22


Values = Sequence[float | None]  # None: unknown; the line skips it


def chart(title: str, lines: Mapping[str, Values], times: Sequence[float]) -> Markup:
    """Draw lines over the same times, in seconds; with a text for screen readers."""
    known = [value for values in lines.values() for value in values if value is not None]
    top = nice(max(known, default=0.0))
    last = {
        name: "–" if not values or values[-1] is None else short(values[-1])
        for name, values in lines.items()
    }
    now = "; ".join(f"{name} {value}" for name, value in last.items())
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {escape(now)}">'
    ]
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(top * share)}</text>'
        )
    for number, values in enumerate(lines.values()):
        points = " ".join(
            f"{_x(at, times):.1f},{_y(value / top):.1f}"
            for at, value in zip(times, values, strict=True)
            if value is not None
        )
        parts.append(f'<polyline class="line line-{number}" points="{points}"/>')
    if len(times) > 1:
        ago = f"{times[-1] - times[0]:.0f} s ago"
        parts.append(f'<text x="{LEFT}" y="{HEIGHT - 4}">{ago}</text>')
        parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">now</text>')
    return Markup("".join([*parts, "</svg>"]))


def nice(value: float) -> float:
    """The end of an axis: 1, 2 or 5 times a power of ten, at least 1."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next((size * step for step in (1, 2, 5) if size * step >= value), size * 10)


def _x(at: float, times: Sequence[float]) -> float:
    span = times[-1] - times[0]
    return WIDTH - 2 if span <= 0 else LEFT + (at - times[0]) / span * (WIDTH - LEFT - 2)


def _y(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)
