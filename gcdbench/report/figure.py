"""Figures: one look for all, and their way into HTML, SVG and PDF. No display is needed."""

from __future__ import annotations

import functools
import html
import io
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from gcdbench.system.files import write_atomically

INK = "#010203"
"""Colour of text and lines; in HTML it becomes the page's text colour, so that plots follow light and dark."""
BASE = "#3778bf"
NOVEL = "#e08214"
NEUTRAL = INK
PALETTE = (
    *("#3778bf", "#e08214", "#2f9e62", "#c2426b", "#8064b4", "#b08b2e", "#3aa6b0", "#7a7a7a", "#d65f5f", "#5d8a3a"),
    *("#a05195", "#1f6f8b", "#f2a65a", "#6b705c", "#9b5de5", "#ef476f", "#06a77d", "#bc6c25", "#4361ee", "#8d99ae"),
)
MARKERS = "osD^vP*X"

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "svg.hashsalt": "gcdbench",  # the same figure gives the same bytes
    "text.parse_math": False,  # a $ in a class name is a $
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.facecolor": "none",
    "pdf.fonttype": 42,
}


_Draw = TypeVar("_Draw", bound=Callable[..., Any])


def styled(draw: _Draw) -> _Draw:
    """Draw a figure in this look: matplotlib decides about each text when it is made, legends included."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return cast(_Draw, wrapper)


SINGLE = 5.0
"""Inches that a plot is wide: on a phone its text can still be read."""
PER_ROW = 3
"""Plots beside each other."""


def new_figure(count: int, *, width: float | None = None, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A figure with this many plots, in rows; ``height`` is that of one row."""
    columns = min(count, PER_ROW)
    rows = -(-count // columns)
    size = (width or (SINGLE if count == 1 else 3.6 * columns), height * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def to_svg(figure: Figure) -> str:
    """An SVG document with black text."""
    return _svg(figure).replace(INK, "#000000")


def to_html(figure: Figure, label: str) -> str:
    """An <svg> element for a page: scales with its container, takes the page's text colour, has a label."""
    text = _svg(figure)
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids of clip paths and glyphs repeat between figures of one page.
    prefix = f"f{hash_text(label + text):x}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = text.replace("url(#", f"url(#{prefix}").replace('xlink:href="#', f'xlink:href="#{prefix}')
    head, _, rest = text.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    # At most half as large again as on paper, and never wider than the page.
    style = f"max-width: {1.5 * 72 * figure.get_size_inches()[0]:.0f}px"
    return f'{head} role="img" aria-label="{html.escape(label)}" style="{style}">{rest}'


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg and NAME.pdf for a paper."""
    svg, pdf = folder / f"{name}.svg", folder / f"{name}.pdf"
    write_atomically(svg, lambda stream: _discard(stream.write(to_svg(figure).encode())))

    def write_pdf(stream: Any) -> None:
        with matplotlib.rc_context(STYLE):
            FigureCanvasPdf(figure).print_pdf(stream, metadata={"CreationDate": None})

    write_atomically(pdf, write_pdf)
    return [svg, pdf]


def hash_text(text: str) -> int:
    """A short number that is the same in every process."""
    return zlib.crc32(text.encode())


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE):
        FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None})
    return stream.getvalue()


def _discard(_: int) -> None:
    return None
