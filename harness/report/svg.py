"""The one writer of SVG: elements, axes, and files. No plotting library; text from outside is escaped and one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from harness.report.inert import one_line
from harness.store import write_atomically

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, 'DejaVu Sans', sans-serif"


class DrawError(ValueError):
    """One sentence for the user: why there is no picture."""


def element(tag: str, *inside: object, **attributes: object) -> Markup:
    """`stroke_width=1` is stroke-width, `class_` is class; a float has one decimal, and what is None or "" is left away."""
    said = [
        f' {name.strip("_").replace("_", "-")}="{escape(f"{value:.1f}" if isinstance(value, float) else value)}"'
        for name, value in attributes.items()
        if value not in (None, "")
    ]
    if not inside:
        return Markup(f"<{tag}{''.join(said)}/>")
    return Markup(f"<{tag}{''.join(said)}>{''.join(map(escape, inside))}</{tag}>")


def text(x: float, y: float, words: object, anchor: str = "", **attributes: object) -> Markup:
    return element("text", one_line(words, 240), x=float(x), y=float(y), text_anchor=anchor, **attributes)


def path(*points: tuple[float, float], **attributes: object) -> Markup:
    """Straight lines from point to point."""
    return element("path", d="M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points), **attributes)


def picture(width: float, height: float, parts: Iterable[Markup], /, **attributes: object) -> Markup:
    return element("svg", *parts, viewBox=f"0 0 {width:.0f} {height:.0f}", **attributes)


def save(svg: str, path: Path) -> None:
    """A picture to `path`, by its suffix: .svg or .png. Raises DrawError, and OSError."""
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise DrawError(f"cannot draw to {one_line(path, 120)}: the file must end in .svg or .png")
    write_atomically(path, svg if suffix == ".svg" else png(svg))


def png(svg: str, scale: float = 2.0) -> bytes:
    """The SVG as PNG, by resvg (a 1.4 MB wheel, nothing else). Raises DrawError where it, or any font, is missing."""
    try:
        import resvg_py
    except ImportError:
        raise DrawError(
            "a .png needs the package resvg-py (pip install resvg-py); .svg and .mmd need nothing"
        ) from None
    empty, probe = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{inside}</svg>'
        for inside in ("", f'<text x="2" y="16" font-family="{FONTS}">M</text>')
    )
    if bytes(resvg_py.svg_to_bytes(svg_string=probe)) == bytes(resvg_py.svg_to_bytes(svg_string=empty)):
        raise DrawError(
            "a .png needs a font and this machine has none (apt-get install fonts-dejavu-core); .svg does not"
        )
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=scale))


# --- axes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Maps values to 0..1, linearly or by logarithm, with ticks at round numbers."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def steps(low: float, high: float, log: bool) -> tuple[float, ...]:
    """Round numbers inside [low, high], as few as read well."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = tuple(d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high)
            if len(ticks) <= 8:
                break
        return ticks
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100):
        if (high - low) / step <= 6:
            break
    return tuple(round(step * n, 6) for n in range(math.ceil(low / step), math.floor(high / step) + 1))


def ratio_scale(values: Sequence[float]) -> Scale:
    """Always shows 1.0x. Logarithmic from a fourfold spread up."""
    known = [min(max(value, 0.01), 1000.0) for value in values if math.isfinite(value)]
    low, high = min([*known, 1.0]), max([*known, 1.0])
    if high / low > 4:
        low, high = low / 1.15, high * 1.15
        return Scale(low, high, True, steps(low, high, True))
    pad = max(0.08 * (high - low), 0.03)
    low, high = max(0.0, low - pad), high + pad
    return Scale(low, high, False, steps(low, high, False))
