from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcdbench.analysis.table import Cell, Sheet, cells, latex, mark, markdown

pytestmark = pytest.mark.usefixtures("few_digits")

SHEET = Sheet(
    title="100% of A & B",
    columns=("Method", "n", "All"),
    rows=((Cell("a_b", notes=(1, 12)), Cell("3"), Cell("93.3 ± 2.3", bold=True)), cells("b − a", "3", "−1.0 [−2, 0]")),
    rules=(1,),
    notes=("train.lr differs: a_b 0.1.",),
    caption=("Percent.",),
)


def test_markdown():
    lines = markdown(SHEET).splitlines()
    assert lines[0] == "**100% of A & B**"
    assert lines[2] == "| Method | n | All |"
    assert lines[3] == "|---|---|---|"
    assert lines[4] == "| a\\_b \\*1,12 | 3 | **93.3 ± 2.3** |"
    assert lines[5] == "| b − a | 3 | −1.0 \\[−2, 0\\] |"
    assert "\\*1 train.lr differs: a\\_b 0.1.  " in lines


def test_latex_is_what_booktabs_expects():
    text = latex(SHEET)
    for word in ("\\begin{tabular}{lcc}", "\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}", "\\end{table}"):
        assert word in text
    assert "a\\_b$^{*1,12}$ & 3 & \\textbf{93.3 $\\pm$ 2.3} \\\\" in text
    assert "\\caption{100\\% of A \\& B}" in text
    assert text.count("\\midrule") == 2
    assert_shaped(text, columns=3)


def assert_shaped(text: str, columns: int) -> None:
    """Braces and environments balance, every row of the tabular has all columns, nothing is left unescaped."""
    plain = re.sub(r"\\[{}$&%#_\\]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith("\\\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in rows)
    assert all("%" not in re.sub(r"\\%", "", line) for line in text.splitlines()[1:])


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=4), st.text(max_size=20))
def test_any_text_keeps_the_shape(rows, title):
    clean = [[re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "", t) for t in row] for row in rows]
    title = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "", title)
    sheet = Sheet(title, ("A", "B"), tuple(cells(*row) for row in clean), notes=(title,))
    assert_shaped(latex(sheet), columns=2)
    table = [line for line in markdown(sheet).splitlines() if line.startswith("| ")]
    assert len(table) == 1 + len(rows)
    assert all(len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))) == 3 for line in table)


def test_marks():
    assert mark([1, 20]) == "*1,20"
    assert mark([]) == ""
