"""A table before it has a format, and the formats for papers: Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and the numbers of the notes it refers to."""

    text: str
    bold: bool = False
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sheet:
    """Columns, rows and what stands below them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rules: tuple[int, ...] = ()
    """Rows above which a line is drawn."""
    notes: tuple[str, ...] = ()
    """Numbered from 1."""
    caption: tuple[str, ...] = ()
    """Sentences below the table: what the numbers are."""


def mark(notes: Sequence[int]) -> str:
    """`*1` or `*1,2`: nothing that could be taken for an exponent."""
    return "*" + ",".join(map(str, notes)) if notes else ""


def cells(*texts: str) -> tuple[Cell, ...]:
    """Plain cells."""
    return tuple(Cell(text) for text in texts)


def markdown(sheet: Sheet) -> str:
    """A GitHub table with its notes."""
    lines = [f"**{_md(sheet.title)}**", ""]
    lines.append("| " + " | ".join(_md(c) for c in sheet.columns) + " |")
    lines.append("|" + "---|" * len(sheet.columns))
    for row in sheet.rows:
        lines.append("| " + " | ".join(_md_cell(cell) for cell in row) + " |")
    lines += ["", *(f"{_md(mark([n]))} {_md(note)}  " for n, note in enumerate(sheet.notes, 1))]
    lines += [_md(sentence) + "  " for sentence in sheet.caption]
    return "\n".join(lines).rstrip() + "\n"


def _md_cell(cell: Cell) -> str:
    text = _md(cell.text)
    text = f"**{text}**" if cell.bold and text else text
    return f"{text} {_md(mark(cell.notes))}" if cell.notes else text


def _md(text: str) -> str:
    for sign in "\\`*_{}[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")


def latex(sheet: Sheet) -> str:
    """A booktabs table, ready for \\input; needs \\usepackage{booktabs}."""
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(sheet.title)}}}",
        f"\\begin{{tabular}}{{l{'c' * (len(sheet.columns) - 1)}}}",
        "\\toprule",
        " & ".join(_tex(c) for c in sheet.columns) + r" \\",
        "\\midrule",
    ]
    for number, row in enumerate(sheet.rows):
        if number in sheet.rules and number:
            lines.append("\\midrule")
        lines.append(" & ".join(_tex_cell(cell) for cell in row) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    small = [f"$^{{{mark([n])}}}$ {_tex(note)}" for n, note in enumerate(sheet.notes, 1)]
    small += [_tex(sentence) for sentence in sheet.caption]
    if small:
        lines += ["", "\\smallskip", "{\\footnotesize", " \\\\\n".join(small), "\\par}"]
    lines.append("\\end{table}")
    return "\n".join(lines) + "\n"


def _tex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    text = f"\\textbf{{{text}}}" if cell.bold and text else text
    return text + (f"$^{{{mark(cell.notes)}}}$" if cell.notes else "")


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "–": "--",
    "…": r"\dots{}",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",
    "]": "{]}",
    "\n": " ",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)
