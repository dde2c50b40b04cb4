"""Sections of reports, each from one or several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gcdbench.analysis.setups import spell
from gcdbench.analysis.table import Sheet, cells
from gcdbench.config.resolve import flat_config
from gcdbench.errors import GcdbenchError
from gcdbench.records.summary import HEADLINE, spoken_flops, spoken_k, spoken_times
from gcdbench.report import plots
from gcdbench.report.features import FEWEST, choose_positions, tsne
from gcdbench.report.outcome import ClusterResult
from gcdbench.report.page import Block, Facts, Folded, Group, Groups, Picture, Plot, Section, Words
from gcdbench.report.thumbnails import data_uri, per_cluster
from gcdbench.report.view import RunView


def summary(run: RunView) -> Section:
    """What was run and what came out."""
    r = run.record
    accuracies = [(title, f"{r.metrics[m]:.1f} %") for m, title in HEADLINE.items() if m in r.metrics]
    facts = [
        *accuracies,
        ("Backbone", f"{r.backbone['name']} ({r.backbone['architecture']})"),
        *_rows_and_classes(run),
        ("Selection", f"{r.selected['rule']} (epoch {r.selected['epoch']})"),
        ("Parameters", f"{r.parameters['trained']:,} trained of {r.parameters['total']:,}"),
        ("Time", spoken_times(r)),
        ("Peak memory", f"{r.peak_memory / 2**20:,.0f} MiB on {r.device}"),
        ("One step", spoken_flops(r)),
        ("Protocol", r.fingerprint),
        ("Run", r.run_id),
        ("Finished", r.finished or "unknown"),
    ]
    metrics = Sheet(
        "All metrics", ("Metric", "Value"), tuple(cells(k, f"{v:.2f}") for k, v in sorted(r.metrics.items()))
    )
    blocks: list[Block] = [Facts(facts), *(Words(f"Note: {w}") for w in r.warnings), Folded("All metrics", metrics)]
    return Section("summary", "Summary", blocks)


def _rows_and_classes(run: RunView) -> list[tuple[str, str]]:
    """Of a benchmark what was scored; of somebody's own images what was found."""
    r = run.record
    rows = f"{r.data['labelled']:,} labelled, {r.data['unlabelled']:,} unlabelled"
    if run.outcome.target is not None:
        classes = f"{r.data['base_classes']} base, {r.data['novel_classes']} novel, {spoken_k(r.protocol)}"
        return [("Rows", f"{rows}, {r.data['scored']:,} scored"), ("Classes", classes)]
    new = sum(c.cluster >= run.outcome.num_base for c in run.outcome.clusters)
    return [("Images", rows), ("Groups", f"{r.data['base_classes']} known classes, {new} new groups found")]


def learning(runs: Sequence[RunView], supervised: Mapping[str, Sequence[tuple[float, float]]]) -> Section:
    """Loss terms of each run, supervised cross entropy and accuracies of all."""
    blocks: list[Block] = []
    for run in runs:
        figure = plots.loss_terms(run.epochs)
        if figure is not None:
            blocks.append(Plot(f"losses-{_slug(run.name)}", f"Loss terms of {run.name}, mean per epoch.", figure))
    figure = plots.curves(supervised, "epoch", "supervised cross entropy")
    if figure is not None:
        blocks.append(Plot("supervised-ce", "Supervised cross entropy per epoch.", figure))
    several = len(runs) > 1
    series = {
        f"{run.name}: {title}" if several else title: run.metric(metric)
        for run in runs
        for metric, title in HEADLINE.items()
        if not several or metric == "all"
    }
    if any(len(points) > 1 for points in series.values()):
        figure = plots.curves(series, "epoch", "percent")
        assert figure is not None
        blocks.append(Plot("accuracies", "Accuracies at the epochs at which they were evaluated.", figure))
    elif any(series.values()):
        blocks.append(Words("Accuracies were evaluated at the end only; `--set eval.every=1` evaluates every epoch."))
    return Section("learning", "Learning curves", blocks or [Words("Nothing was trained.")])


def predictions(runs: Sequence[RunView]) -> Section:
    """Class-wise distribution, base/novel confusion, confidence."""
    outcomes = {run.name: run.outcome for run in runs}
    blocks: list[Block] = []
    for name, outcome in outcomes.items():
        figure = plots.class_distribution({name: outcome})
        if figure is not None:
            text = "Rows predicted for each class (bars) against the true number (line), after the optimal assignment."
            blocks.append(Plot(_named("class-distribution", name, runs), text, figure, small=len(runs) > 1))
    for run in runs:
        figure = plots.confusion(run.outcome)
        if figure is not None:
            blocks.append(Plot(f"confusion-{_slug(run.name)}", f"Base and novel rows of {run.name}.", figure))
    for name, outcome in outcomes.items():
        figure = plots.confidence({name: outcome})
        if figure is not None:
            named = _named("confidence", name, runs)
            blocks.append(Plot(named, "Confidence of the predictions.", figure, small=len(runs) > 1))
    return Section("predictions", "Predictions", blocks or [Words("The method reports neither truth nor confidence.")])


def feature_space(runs: Sequence[RunView]) -> Section:
    """t-SNE of the backbone's features and of each method's, of the same rows."""
    blocks: list[Block] = []
    first = next((run for run in runs if run.opened is not None), None)
    if first is None or first.opened is None:
        return Section("features", "Feature space", [Words(f"Features are left out. {runs[0].reason}")])
    positions, label = choose_positions(first.outcome)
    if len(positions) < FEWEST:
        return Section("features", "Feature space", [Words(f"{len(positions)} scored rows are too few for a map.")])
    rows = first.outcome.rows[positions]
    found = {"backbone": first.opened.backbone_features(rows)}
    for run in runs:
        if run.opened is None:
            blocks.append(Words(f"{run.name} is left out. {run.reason}"))
            continue
        try:
            features = run.opened.method_features(rows)
        except GcdbenchError as fault:
            blocks.append(Words(f"{run.name} is left out: {fault}"))
            continue
        if features is None:
            blocks.append(Words(f"{run.name} shows no features."))
        else:
            found[run.name] = features
    outcome = first.outcome
    known = outcome.target is not None
    names = {
        int(c): outcome.class_name(int(c)) if known else outcome.cluster_names[int(c)] for c in set(label.tolist())
    }
    maps = {what: plots.maps({what: xy}, label, names, outcome.num_base) for what, xy in tsne(found).items()}
    text = (
        f"t-SNE of {len(rows):,} scored rows of {len(names)} classes, coloured by "
        f"{'true class' if known else 'predicted class'}; circles are base, crosses novel."
    )
    if any(run.record.selected["rule"] != "last" for run in runs):
        blocks.append(Words("Features are of the last epoch, predictions of the one that the selection rule chose."))
    drawn = [Plot(f"tsne-{_slug(what)}", f"{text} {what}.", figure, small=True) for what, figure in maps.items()]
    return Section("features", "Feature space", [*drawn, *blocks])


def clusters(runs: Sequence[RunView]) -> Section:
    """What is in each discovered cluster, with pictures where the images are here."""
    blocks: list[Block] = []
    for run in runs:
        limit = per_cluster(len(runs) * len(run.outcome.clusters))
        groups = [_group(run, cluster, limit) for cluster in run.outcome.clusters]
        blocks.append(Groups(groups, None if len(runs) == 1 else f"{run.name}: {len(groups)} clusters"))
        if run.opened is None:
            blocks.append(Words(f"Images are left out. {run.reason}"))
    if any(run.opened is not None for run in runs):
        sure = any(run.outcome.confidence is not None for run in runs)
        text = "The most confident rows of each cluster." if sure else "Some rows of each cluster."
        if runs[0].outcome.target is not None:
            text += " Outlined: rows of another class than the matched one."
        blocks.insert(0, Words(text))
    title = "Discovered clusters" if runs[0].outcome.target is not None else "Groups"
    return Section("clusters", title, blocks)


def _group(run: RunView, cluster: ClusterResult, limit: int) -> Group:
    outcome, facts = run.outcome, [f"{cluster.size:,} rows"]
    if outcome.target is not None:
        facts.append(f"matched with {cluster.matched}" if cluster.matched is not None else "matched with no class")
    if cluster.purity is not None:
        facts.append(f"purity {cluster.purity:.0f} %")
    if cluster.confidence is not None:
        facts.append(f"confidence {cluster.confidence:.0f} %")
    is_base = cluster.matched_is_base if outcome.target is not None else cluster.cluster < outcome.num_base
    side = "" if is_base is None else "base" if is_base else "novel"
    pictures = []
    if run.opened is not None:
        for position in cluster.positions[:limit].tolist():
            row, title, right = int(outcome.rows[position]), run.opened.index.items[int(outcome.rows[position])], None
            if outcome.target is not None and outcome.mapped is not None:
                right = bool(outcome.target[position] == outcome.mapped[position])
                title += f", true class {outcome.class_name(int(outcome.target[position]))}"
            pictures.append(Picture(data_uri(run.opened.image(row)), title, right))
    return Group(cluster.name, ", ".join(facts), side, pictures)


def class_accuracies(runs: Sequence[RunView]) -> Section:
    """Accuracy of every class, as a plot and as a table."""
    blocks: list[Block] = []
    for run in runs:
        figure = plots.class_accuracy(run.outcome)
        if figure is None:
            continue
        caption = f"Accuracy of each class, {run.name}."
        blocks.append(Plot(f"class-accuracy-{_slug(run.name)}", caption, figure))
        rows = [
            cells(c.name, "base" if c.is_base else "novel", str(c.size), str(c.predicted), f"{c.accuracy:.1f}")
            for c in run.outcome.classes
            if c.size
        ]
        title = f"Classes of {run.name}"
        sheet = Sheet(title, ("Class", "Side", "Rows", "Predicted", "Accuracy"), tuple(rows))
        blocks.append(Folded(title, sheet))
    return Section("classes", "Classes", blocks or [Words("No one knows the true classes.")])


def settings(runs: Sequence[RunView]) -> Section:
    """Every config value with its source."""
    blocks: list[Block] = []
    for run in runs:
        flat = flat_config(run.record.config)
        rows = tuple(cells(key, spell(value), run.record.sources.get(key, "")) for key, value in flat.items())
        title = f"Settings of {run.name}, seed {run.record.seed}"
        blocks.append(Folded(title, Sheet(title, ("Key", "Value", "From"), rows)))
    versions = tuple(cells(k, v) for k, v in runs[0].record.versions.items())
    blocks.append(Folded("Versions", Sheet("Versions", ("Package", "Version"), versions)))
    return Section("settings", "Settings", blocks)


def _named(plot: str, run: str, runs: Sequence[RunView]) -> str:
    """The name of a plot that each run has."""
    return plot if len(runs) == 1 else f"{plot}-{_slug(run)}"


def _slug(text: str) -> str:
    """A name for a file: letters, digits and dashes, made unique by a short hash if anything was dropped."""
    from gcdbench.report.figure import hash_text

    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-").lower()[:40]
    return kept if kept == text else f"{kept}-{hash_text(text):x}"
