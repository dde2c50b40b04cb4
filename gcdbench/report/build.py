"""Reports: of one run, of a comparison, of a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gcdbench.analysis.compare import Comparison
from gcdbench.analysis.compare_table import compare_sheet
from gcdbench.analysis.study import TITLES, Line, Study, study_sheet
from gcdbench.analysis.table import Sheet
from gcdbench.config.resolve import flat_config
from gcdbench.errors import UsageError
from gcdbench.records.record import Record
from gcdbench.records.run_directory import RunDirectory
from gcdbench.records.summary import HEADLINE, mean_std
from gcdbench.report import plots, sections
from gcdbench.report.page import Block, Page, Plot, Section
from gcdbench.report.view import RunView, Source, supervised, view


def run_page(record: Record, source: Source) -> Page:
    """The report of one run."""
    name = f"{record.method} ({record.recipe})"
    run = view(record, name, source)
    lead = f"Seed {record.seed}, backbone {record.backbone['name']}, {record.config['train']['epochs']} epochs."
    made = [
        sections.summary(run),
        sections.learning([run], {name: run.supervised()}),
        sections.predictions([run]),
        sections.feature_space([run]),
        sections.clusters([run]),
        sections.class_accuracies([run]),
        sections.settings([run]),
    ]
    if run.outcome.target is None:  # somebody's own images: what was found comes first
        made.sort(key=lambda section: section.id != "clusters")
    return Page(f"{name} on {record.dataset}", lead, made)


def compare_page(comparisons: Sequence[tuple[Comparison, Any]], source: Source) -> Page:
    """The report of a comparison: all tables, then pictures of one seed of each method per table."""
    parts: list[Section] = []
    tables: list[Block] = [compare_sheet(found, rows) for found, rows in comparisons]
    for found, _ in comparisons:
        common = set.intersection(*({r.seed for r in s.records} for s in found.setups))
        views = []
        for setup, name in zip(found.setups, found.names, strict=True):
            record = next((r for r in setup.records if r.seed in common), setup.records[0])
            views.append(view(record, name, source))
        means = {n: _mean_supervised(s.records) for n, s in zip(found.names, found.setups, strict=True)}
        parts += _pictures(views, means, f"{found.dataset}, {found.backbone}", len(comparisons) > 1)
    names = list(dict.fromkeys(s.method for found, _ in comparisons for s in found.setups))
    lead = "Tables are over all seeds; curves and pictures below are of one seed of each method."
    return Page(f"{' and '.join(names)} compared", lead, [Section("results", "Results", tables), *parts])


def study_page(studies: Sequence[Study], source: Source) -> Page:
    """The report of a study: tables, the curve of a sweep, and learning curves of one seed of each row."""
    blocks: list[Block] = []
    parts: list[Section] = []
    without_data = dataclasses.replace(source, with_data=False)
    for study in studies:
        sheet: Sheet = study_sheet(study)
        blocks.append(sheet)
        if study.experiment.sweep is not None:
            figure = plots.sweep(_sweep(study, study.experiment.sweep), study.experiment.sweep)
            if figure is not None:
                text = f"Accuracies on {study.dataset} against {study.experiment.sweep}; bars: standard deviation."
                blocks.append(Plot(f"sweep-{study.experiment.name}-{study.dataset}", text, figure))
        lines = [line for line in study.lines if line.records]
        if lines:
            means = {line.row.label: _mean_supervised(line.records) for line in lines}
            runs = [view(x.records[0], x.row.label, without_data) for x in _distinct(lines)]
            learning = sections.learning(runs, means)
            title = f"Learning curves, {study.dataset}"
            blocks_here = _renamed(learning.blocks, study.dataset)
            parts.append(Section(f"learning-{study.dataset}", title, blocks_here))
    experiment = studies[0].experiment
    lead = "Curves of supervised cross entropy are means over seeds, the others are of one seed of each row."
    return Page(experiment.title, lead, [Section("results", "Results", blocks), *parts])


def _pictures(views: Sequence[RunView], means: Any, where: str, prefixed: bool) -> list[Section]:
    made = [
        sections.learning(views, means),
        sections.predictions(views),
        sections.feature_space(views),
        sections.clusters(views),
        sections.class_accuracies(views),
        sections.settings(views),
    ]
    if not prefixed:
        return made
    slug = where.replace(", ", "-")
    return [Section(f"{s.id}-{slug}", f"{s.title}, {where}", _renamed(s.blocks, slug)) for s in made]


def _renamed(blocks: Sequence[Block], slug: str) -> list[Block]:
    """Plots of several tables in one page must not share a file name."""
    return [dataclasses.replace(b, name=f"{b.name}-{slug}") if isinstance(b, Plot) else b for b in blocks]


def _distinct(lines: Iterable[Line]) -> list[Line]:
    """Rows that read different metrics off the same run show its curves once."""
    found: dict[str, Line] = {}
    for line in lines:
        found.setdefault(line.records[0].run_id, line)
    return list(found.values())


def _mean_supervised(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Supervised cross entropy per epoch, mean over seeds that got that far."""
    by_epoch: dict[float, list[float]] = {}
    for record in records:
        for epoch, value in supervised(RunDirectory(Path(record.dir)).epochs()):
            by_epoch.setdefault(epoch, []).append(value)
    return [(epoch, fmean(values)) for epoch, values in sorted(by_epoch.items())]


def _sweep(study: Study, key: str) -> dict[str, list[tuple[float, float, float]]]:
    """Per metric the points (value of the setting, mean, standard deviation)."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    for metric in (m for m in study.experiment.metrics if m in HEADLINE):
        for line in study.lines:
            values = list(line.values.get(metric, {}).values())
            if line.records and values:
                mean, spread = mean_std(values)
                at = _swept(study, line, key)
                series.setdefault(TITLES[metric], []).append((at, mean, spread or 0.0))
    return series


def _swept(study: Study, line: Line, key: str) -> float:
    """The value of the setting that a row stands for on the curve."""
    value = flat_config(line.records[0].config).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(
            f"{study.experiment.path}: experiment.sweep is '{key}', which is no number in {line.row.label}."
        )
    return float(value)
