"""A study of a paper with our numbers: one row per line of the experiment, the published cell beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcdbench.analysis.compare import check_protocols
from gcdbench.analysis.compare_table import Notes
from gcdbench.analysis.experiment_file import Experiment, Row
from gcdbench.analysis.published import PublishedRow, PublishedTable
from gcdbench.analysis.setups import Setup, group, spell
from gcdbench.analysis.statistics import pairwise
from gcdbench.analysis.table import Cell, Sheet, cells
from gcdbench.config.resolve import flat_config
from gcdbench.records.record import Record
from gcdbench.records.summary import HEADLINE, mean_std, spoken

TITLES = {
    **HEADLINE,
    "pseudo_label": "Pseudo-label",
    "pseudo_label_aux": "OB of AUX",
    "cpd_rmse_base": "RMSE base",
    "cpd_rmse_novel": "RMSE novel",
    "predicted_base_rows": "Predicted base",
    "backbone": "Backbone",
    "classifier": "Classifier",
    "projector": "Projector",
    "extra": "Extra",
    "total": "Total",
}
_MORE_IS_BETTER = {*HEADLINE, "pseudo_label"}


@dataclass(frozen=True)
class Line:
    """One row of the experiment with what came of it."""

    row: Row
    values: Mapping[str, Mapping[int, float]]
    """Numbers by metric and seed."""
    records: tuple[Record, ...] = ()
    reason: str | None = None
    """Why there are no (or not all) numbers."""


@dataclass(frozen=True)
class Study:
    """An experiment on one dataset."""

    experiment: Experiment
    dataset: str
    backbone: str
    lines: tuple[Line, ...]
    published: PublishedTable | None

    @property
    def shown(self) -> tuple[str | None, str]:
        """Dataset and backbone of the published cells: the study's own, else the first published ones (or none)."""
        table = self.published
        if table is None or not table.metrics:
            return None, self.backbone
        cells = [(d, r.backbone) for r in table.rows for d in r.cells]
        if (self.dataset, self.backbone) in cells:
            return self.dataset, self.backbone
        return cells[0] if cells and self.dataset not in table.datasets else (None, self.backbone)

    def published_row(self, row: Row) -> PublishedRow | None:
        """The line of the published table that this row repeats."""
        dataset, backbone = self.shown
        if dataset is None or self.published is None:
            return None
        keys = (row.published, f"{row.published} {backbone}")
        fits = (r for r in self.published.rows if r.key in keys and r.backbone == backbone and dataset in r.cells)
        return next(fits, None)

    def published_cells(self, row: Row) -> Mapping[str, float]:
        """Published numbers of a row, by metric."""
        found = self.published_row(row)
        dataset = self.shown[0]
        return {} if found is None or dataset is None else found.cells[dataset]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = []
        for line in self.lines:
            metrics = {}
            for metric, values in line.values.items():
                if values:
                    mean, std = mean_std(list(values.values()))
                    metrics[metric] = {"n": len(values), "mean": mean, "std": std}
            found = self.published_row(line.row)
            rows.append(
                {
                    "key": line.row.key,
                    "label": line.row.label,
                    "method": line.row.method,
                    "metrics": metrics,
                    "runs": [r.run_id for r in line.records],
                    "reason": line.reason,
                    "notes": _made_otherwise(line, self.dataset),
                    "published": dict(self.published_cells(line.row)),
                    "published_notes": list(found.remarks(self.shown[0] or "")) if found else [],
                }
            )
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "dataset": self.dataset,
            "backbone": self.backbone,
            "published_on": self.shown[0],
            "source": None if self.published is None else self.published.source,
            "rows": rows,
        }


def line_of(row: Row, metrics: Sequence[str], records: Sequence[Record], reason: str | None = None) -> Line:
    """Read the study's metrics off a row's records."""
    names = {metric: row.read.get(metric, metric) for metric in metrics}
    values = {m: {r.seed: r.metrics[name] for r in records if name in r.metrics} for m, name in names.items()}
    return Line(row, values, tuple(records), reason)


def check_study(study: Study) -> None:
    """Rows may differ in what the study varies and in nothing else of the protocol."""
    named: list[tuple[Setup, str]] = [(setup, line.row.label) for line in study.lines for setup in group(line.records)]
    if named:
        check_protocols([s for s, _ in named], [n for _, n in named], study.experiment.varies)


def best_lines(study: Study) -> dict[str, int]:
    """Per metric the line that is better than each other one, if one is; only among rows of one protocol."""
    prints = {r.fingerprint for line in study.lines for r in line.records}
    if len(prints) != 1:
        return {}
    best: dict[str, int] = {}
    for metric in (m for m in study.experiment.metrics if m in _MORE_IS_BETTER):
        champion = pairwise([line.values.get(metric, {}) for line in study.lines]).best()
        if champion is not None:
            best[metric] = champion
    return best


def study_sheet(study: Study) -> Sheet:
    """The table of a study: our numbers with the published ones beside them (below them, where numbers are long)."""
    counts = study.experiment.kind == "parameters"
    dataset, _ = study.shown
    paper = "paper" if dataset == study.dataset else f"paper, {dataset}"
    metrics = study.experiment.metrics
    notes = Notes()
    best = best_lines(study)
    beside = [m for m in metrics if not counts and any(m in study.published_cells(x.row) for x in study.lines)]
    rows: list[tuple[Cell, ...]] = []
    for number, line in enumerate(study.lines):
        found, published = study.published_row(line.row), study.published_cells(line.row)
        remarks = [*(found.remarks(dataset or "") if found else ()), *_made_otherwise(line, study.dataset)]
        marks = [notes.number(text) for text in (*remarks, *((line.reason,) if line.reason else ()))]
        ours = (_number(list(line.values.get(m, {}).values()), m) for m in metrics)
        n = [] if counts else [Cell(str(max((len(v) for v in line.values.values()), default=0)))]
        rows.append(
            (
                Cell(line.row.label, notes=tuple(marks)),
                *n,
                *(Cell(text, bold=best.get(m) == number) for m, text in zip(metrics, ours, strict=True)),
                *(Cell(_number([published[m]], m) if m in published else "-") for m in beside),
            )
        )
        if counts and published:
            rows.append(cells(f"{line.row.label} ({paper})", *(_number([published[m]], m) for m in metrics)))
    return Sheet(
        title=f"{study.experiment.title}: {study.dataset}, {study.backbone}",
        columns=(
            "",
            *(() if counts else ("n",)),
            *(TITLES.get(m, m) for m in metrics),
            *(f"{TITLES.get(m, m)}\n({paper})" for m in beside),
        ),
        rows=tuple(rows),
        notes=tuple(notes.texts),
        caption=tuple(_caption(study)),
    )


def _made_otherwise(line: Line, dataset: str) -> list[str]:
    """What a reader must know of our numbers: settings beyond the row's own, recipe, and what the runs warned of."""
    if not line.records:
        return []
    first = line.records[0]
    own = line.row.settings_on(dataset)
    flat = flat_config(first.config)
    extra = [f"{key}={spell(flat.get(key))}" for key in first.chosen if key not in own and key != "eval.every"]
    ours = [f"Ours with {', '.join(extra)}."] if extra else []
    return [*ours, *dict.fromkeys(w for r in line.records for w in r.warnings)]


def _number(values: Sequence[float], metric: str) -> str:
    if metric in ("backbone", "classifier", "projector", "extra", "total"):
        return f"{values[0]:,.0f}" if values else "-"
    return spoken(values, 2 if metric.startswith("cpd_rmse") else 0 if metric == "predicted_base_rows" else 1)


def _caption(study: Study) -> list[str]:
    lines = []
    has_cells = any(study.published_cells(line.row) for line in study.lines)
    records = [r for line in study.lines for r in line.records]
    if records:
        first = records[0]
        counts = sorted({r.data["scored"] for r in records})
        scored = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        recipes = sorted({f"{r.method} ({r.recipe})" for r in records})
        lines.append(
            f"Ours: {', '.join(recipes)}; mean ± standard deviation over n seeds (ddof 1), {scored} "
            f"{first.protocol['scored_rows']} rows, {first.selected['rule']} epoch."
        )
        if len({r.fingerprint for r in records}) == 1:
            lines.append("Bold: better than each of our other rows (paired tests, Holm).")
        else:
            lines.append(
                f"Rows differ on purpose in {', '.join(study.experiment.varies)}; "
                "rows that differ in it are not comparable."
            )
    if study.published is None:
        return lines
    shown = study.shown[0]
    if has_cells and shown == study.dataset:
        lines.append(f"Paper: {study.published.source}.")
    elif has_cells:
        lines.append(
            f"The paper has no numbers on {study.dataset} with {study.backbone}; shown are its numbers on {shown}, "
            f"for orientation only: {study.published.source}."
        )
    else:
        lines.append(f"No published numbers for {study.dataset} with {study.backbone}: {study.published.source}.")
    return lines


def study_csv_rows(study: Study) -> list[dict[str, Any]]:
    """One line per row and metric."""
    data = study.as_dict()
    return [
        {
            "experiment": data["experiment"],
            "dataset": data["dataset"],
            "backbone": data["backbone"],
            "row": row["key"],
            "label": row["label"],
            "method": row["method"],
            "metric": metric,
            "n": row["metrics"].get(metric, {}).get("n", 0),
            "mean": row["metrics"].get(metric, {}).get("mean"),
            "std": row["metrics"].get(metric, {}).get("std"),
            "published": row["published"].get(metric),
            "published_on": data["published_on"] if metric in row["published"] else "",
            "reason": row["reason"] or "",
        }
        for row in data["rows"]
        for metric in study.experiment.metrics
    ]
