"""A comparison as a table: our means and differences, and the published numbers beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gcdbench.analysis.compare import Comparison, Paired
from gcdbench.analysis.published import PublishedRow, PublishedTable
from gcdbench.analysis.setups import spell
from gcdbench.analysis.statistics import CONFIDENCE, LEVEL, TOO_FEW
from gcdbench.analysis.table import Cell, Sheet, cells
from gcdbench.config.resolve import flat_config
from gcdbench.records.record import Record
from gcdbench.records.summary import HEADLINE, spoken, spoken_k


def published_rows(
    tables: Mapping[str, PublishedTable], dataset: str, backbone: str
) -> list[tuple[PublishedTable, PublishedRow]]:
    """Rows of tables of main results for a dataset and backbone; numbers that several plugins ship are listed once."""
    found = [
        (table, row)
        for table in tables.values()
        if table.main
        for row in table.rows
        if row.backbone == backbone and dataset in row.cells
    ]
    # A table of many methods goes before a plugin's own: its rows were printed side by side.
    found.sort(key=lambda pair: -len({row.method for row in pair[0].rows}))
    unique: dict[tuple[str, tuple[tuple[str, float], ...]], tuple[PublishedTable, PublishedRow]] = {}
    for table, row in found:
        unique.setdefault((row.method, tuple(row.cells[dataset].items())), (table, row))
    return list(unique.values())


def published_places(tables: Mapping[str, PublishedTable]) -> list[tuple[str, str]]:
    """Datasets and backbones that tables of main results have numbers for."""
    found = {(d, row.backbone): None for t in tables.values() if t.main for row in t.rows for d in row.cells}
    return list(found)


def unpublished(record: Record) -> str:
    """In what a run's protocol differs from the one papers of this field share; empty if in nothing."""
    flat = flat_config(record.config)
    phrases = []
    if record.protocol["scored_rows"] != "unlabelled":
        phrases.append(f"{record.protocol['scored_rows']} rows are scored")
    if record.protocol["selection"] != "last":
        phrases.append(f"epoch chosen by {record.protocol['selection']}")
    if record.protocol["k_source"] != "true":
        phrases.append(spoken_k(record.protocol))
    if flat.get("data.label_ratio") != 0.5:
        phrases.append(f"label ratio {spell(flat.get('data.label_ratio'))}")
    if flat.get("data.novel_ratio") is not None:
        phrases.append(f"novel ratio {spell(flat.get('data.novel_ratio'))}")
    if record.protocol["reads"]:
        phrases.append(f"the method reads {', '.join(record.protocol['reads'])}")
    return "; ".join(phrases)


class Notes:
    """Numbers sentences in the order in which they are first referred to."""

    def __init__(self, start: Iterable[str] = ()) -> None:
        self.texts: list[str] = list(start)

    def number(self, text: str) -> int:
        """The number of a note, new or known."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def compare_sheet(found: Comparison, published: list[tuple[PublishedTable, PublishedRow]] | None = None) -> Sheet:
    """The table of one dataset and backbone; ``published`` None leaves the papers out."""
    notes = Notes(found.notes)
    rows: list[tuple[Cell, ...]] = []
    for i, (setup, name) in enumerate(zip(found.setups, found.names, strict=True)):
        values = [list(setup.values(m).values()) for m in found.metrics]
        marks = list(found.note_numbers[i])
        other = unpublished(setup.records[0])
        if published and other:
            marks.append(notes.number(f"Not the protocol of the published rows: {other}."))
        rows.append(
            (
                Cell(name, notes=tuple(marks)),
                Cell(str(max(len(v) for v in values))),
                *(Cell(spoken(v), bold=found.best.get(m) == i) for m, v in zip(found.metrics, values, strict=True)),
            )
        )
    rules = [len(rows)]
    for i in range(1, len(found.setups)):
        pairs = [found.paired.get((i, m)) for m in found.metrics]
        n = max((p.difference.n for p in pairs if p), default=0)
        rows.append(cells(f"{found.names[i]} − {found.names[0]}", str(n), *(_difference(p) for p in pairs)))
    caption = [*_caption(found)]
    if published is not None:
        rules.append(len(rows))
        rows += _published(published, found.dataset, found.metrics, notes)
        caption.append(
            f"Published rows: {'; '.join(dict.fromkeys(t.source for t, _ in published))}; single numbers, no spread."
            if published
            else f"No published numbers for {found.dataset} with {found.backbone}."
        )
    return Sheet(
        title=f"{found.dataset}, {found.backbone}",
        columns=("Method", "n", *(HEADLINE[m] for m in found.metrics)),
        rows=tuple(rows),
        rules=tuple(r for r in rules if r < len(rows)),
        notes=tuple(notes.texts),
        caption=tuple(caption),
    )


def published_sheet(dataset: str, backbone: str, published: list[tuple[PublishedTable, PublishedRow]]) -> Sheet:
    """Published numbers alone, where there is no run of ours yet."""
    notes = Notes()
    metrics = ("all", "base", "novel")
    rows = _published(published, dataset, metrics, notes)
    sources = "; ".join(dict.fromkeys(t.source for t, _ in published))
    return Sheet(
        title=f"{dataset}, {backbone}: published numbers, no finished run here",
        columns=("Method", "n", *(HEADLINE[m] for m in metrics)),
        rows=tuple(rows),
        notes=tuple(notes.texts),
        caption=(f"Published rows: {sources}; single numbers, no spread.",),
    )


def _published(
    published: list[tuple[PublishedTable, PublishedRow]], dataset: str, metrics: tuple[str, ...], notes: Notes
) -> list[tuple[Cell, ...]]:
    rows = []
    for _, row in published:
        numbers = row.cells[dataset]
        marks = tuple(notes.number(text) for text in row.remarks(dataset))
        texts = [f"{numbers[m]:.1f}" if m in numbers else "-" for m in metrics]
        rows.append((Cell(f"{row.label}, published", notes=marks), Cell(""), *cells(*texts)))
    return rows


def _difference(pair: Paired | None) -> str:
    if pair is None:
        return "-"
    d = pair.difference
    mean = 0.0 if abs(d.mean) < 0.05 else d.mean
    text = f"{mean:+.1f}".replace("-", "−")
    if d.low is not None and d.high is not None and pair.verdict != TOO_FEW:
        text += f" [{d.low:.1f}, {d.high:.1f}]".replace("-", "−")
    return f"{text} {pair.verdict}"


def _caption(found: Comparison) -> list[str]:
    first = found.setups[0].records[0]
    n = f"{first.data['scored']:,} {first.protocol['scored_rows']} rows"
    lines = [
        f"Percent of {n}, {first.selected['rule']} epoch, {spoken_k(first.protocol)}; "
        f"mean ± standard deviation over n seeds (ddof 1). Protocol {first.fingerprint}."
    ]
    if found.shared:
        lines.append(f"All with {', '.join(found.shared)}.")
    if len(found.setups) > 1:
        family = ", Holm-corrected over all pairs of methods in a column (intervals are not)"
        family = family if len(found.setups) > 2 else ""
        if all(p.verdict == TOO_FEW for p in found.paired.values()):
            lines.append("Differences of runs with the same seed; too few pairs (fewer than three) to say anything.")
            return lines
        few = " 'Too few pairs': fewer than three." if any(p.verdict == TOO_FEW for p in found.paired.values()) else ""
        lines.append(
            f"Differences of runs with the same seed, with their {100 * CONFIDENCE:.0f} % t-interval; better, worse "
            f"or cannot tell at level {LEVEL:g}{family}. Test: {'; '.join(found.tests)}.{few}"
        )
        lines.append("Bold: better than each of the other methods that were run.")
    return lines


def csv_rows(found: Comparison) -> list[dict[str, Any]]:
    """One line per method and metric."""
    lines = []
    data = found.as_dict()
    for row in data["rows"]:
        for metric, numbers in row["metrics"].items():
            d = row.get("difference", {}).get(metric, {})
            lines.append(
                {
                    "dataset": data["dataset"],
                    "backbone": data["backbone"],
                    "fingerprint": data["fingerprint"],
                    "method": row["method"],
                    "recipe": row["recipe"],
                    "name": row["name"],
                    "metric": metric,
                    "n": numbers["n"],
                    "mean": numbers["mean"],
                    "std": numbers["std"],
                    "best": numbers["best"],
                    "against": row.get("against", ""),
                    "pairs": d.get("n"),
                    "difference": d.get("mean"),
                    "low": d.get("low"),
                    "high": d.get("high"),
                    "p": d.get("p"),
                    "p_adjusted": d.get("p_adjusted"),
                    "test": d.get("test", ""),
                    "verdict": d.get("verdict", ""),
                    "source": "runs",
                }
            )
    return lines


def published_csv_rows(
    published: list[tuple[PublishedTable, PublishedRow]], dataset: str, backbone: str
) -> list[dict[str, Any]]:
    """The published numbers in the same columns; what a paper does not say stays empty."""
    return [
        {
            "dataset": dataset,
            "backbone": backbone,
            "method": row.method,
            "name": f"{row.label}, published",
            "metric": metric,
            "mean": value,
            "source": table.source,
        }
        for table, row in published
        for metric, value in row.cells[dataset].items()
    ]
