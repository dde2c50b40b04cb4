"""The page: sections made of tables, figures and text, rendered into one file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import gcdbench
from gcdbench.analysis.table import Sheet
from gcdbench.report.figure import save, to_html
from gcdbench.system.files import write_text


@dataclass(frozen=True)
class Plot:
    """A figure with what it shows."""

    name: str
    """File name of its SVG and PDF."""
    caption: str
    figure: Figure
    small: bool = False
    """Whether others may stand beside it."""

    def html(self) -> Any:
        """The figure as an element that the template does not escape: matplotlib has escaped every text in it."""
        from markupsafe import Markup

        return Markup(to_html(self.figure, self.caption))


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Words:
    """A sentence or two."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A small image of one row."""

    uri: str
    title: str
    right: bool | None = None
    """Whether the row is of the cluster's matched class; None where it is unknown."""


@dataclass(frozen=True)
class Group:
    """A cluster with pictures."""

    title: str
    facts: str
    side: str
    """`base`, `novel` or `` for colouring."""
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Groups:
    """Clusters, folded away under a heading if there is one."""

    groups: Sequence[Group]
    fold: str | None = None


@dataclass(frozen=True)
class Folded:
    """A table that is shown when asked for."""

    title: str
    sheet: Sheet


Block = Plot | Facts | Words | Groups | Folded | Sheet


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its navigation."""

    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=list)

    def plots(self) -> list[Plot]:
        """Every figure of the page."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Plot)]


def render(page: Page) -> str:
    """The page as one HTML document. Every text is escaped by the template."""
    from jinja2 import Environment, StrictUndefined

    folder = resources.files("gcdbench.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    style = (folder / "page.css").read_text(encoding="utf-8")
    return template.render(page=page, style=style, version=gcdbench.__version__)


def write(page: Page, path: Path, plots: Path | None = None) -> list[Path]:
    """Write the page, and every plot as SVG and PDF if a folder is given; the files written."""
    files = [path]
    # A page is text: names of files that are not are spelt out.
    write_text(path, render(page).encode("utf-8", "backslashreplace").decode("utf-8"))
    if plots is not None:
        for plot in page.plots():
            files += save(plot.figure, plots, plot.name)
    return files
