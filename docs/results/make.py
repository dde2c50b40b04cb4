"""Result pages: text written by hand, with the output of commands that read the committed records.

    python docs/results/make.py collect NAME RUNS   # add records and learning curves of an experiment from run folders
    python docs/results/make.py                     # write the pages
    python docs/results/make.py --check             # exit code 1 if a page is not what it would write

`NAME/text.md` is the page with commands in place of tables. In a block fenced by `~~~`, a line `$ gcdbench ...` becomes
what the command prints, read from `NAME/records.jsonl` alone (no data, no weights); `@curves EXPERIMENT METRIC LABEL;
LABEL` a table of `NAME/curves.json`; `@runs` what was run, with what, and the run ids; `@costs` what a step of each
method takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gcdbench.errors import GcdbenchError
from gcdbench.records.find import read_runs

HERE = Path(__file__).parent
FENCE = "~~~"
CURVES = ("all", "base", "novel", "ob", "pseudo_label_aux", "ce")
"""What is kept of every epoch: accuracies, and the supervised cross entropy."""
SEEDS = tuple(range(10))
"""Seeds that are looked for."""


def pages() -> list[Path]:
    """Folders of pages."""
    return sorted(path.parent for path in HERE.glob("*/text.md"))


def collect(folder: Path, runs: Path) -> int:
    """Keep the records and curves of all finished runs below a folder, besides those that are kept; how many."""
    records, _, faults = read_runs(runs)
    if faults:
        raise GcdbenchError("\n".join(faults))
    lines, shapes = folder / "records.jsonl", folder / "curves.json"
    before = [json.loads(line) for line in lines.read_text().splitlines()] if lines.is_file() else []
    found = {(kept["method"], kept["recipe"], kept["run_id"]): kept for kept in before}
    curves = json.loads(shapes.read_text()) if shapes.is_file() else {}
    for record in records:
        kept = _without_folders(record.as_dict())
        kept["dir"] = f"runs/{record.method}/{record.dataset}/{record.run_id}"
        found[record.method, record.recipe, record.run_id] = kept
        curves[record.run_id] = list(_curve(Path(record.dir)))
    texts = (json.dumps(kept, sort_keys=True, separators=(",", ":")) + "\n" for _, kept in sorted(found.items()))
    lines.write_text("".join(texts), encoding="utf-8")
    text = json.dumps({k: v for k, v in sorted(curves.items()) if v}, separators=(",", ":"))
    shapes.write_text(text.replace('],"', '],\n"') + "\n", encoding="utf-8")
    return len(found)


def _without_folders(record: dict[str, Any]) -> dict[str, Any]:
    """Files by their names alone: where they were on some machine does not matter."""
    weights = Path(record["config"]["backbone"]["weights"])
    record["config"]["backbone"]["weights"] = weights.name
    begin = "config file "
    for key, source in record["sources"].items():
        if source.startswith(begin):
            record["sources"][key] = begin + Path(source.removeprefix(begin)).name
    return record


def _curve(run: Path) -> Iterator[dict[str, float]]:
    path = run / "metrics.jsonl"
    for number, line in enumerate(path.read_text().splitlines() if path.is_file() else [], 1):
        found = json.loads(line)
        losses = found.get("losses", {})
        values = {**found.get("metrics", {}), "ce": losses.get("main_ce", losses.get("ce"))}
        yield {"epoch": number} | {k: round(values[k], 3) for k in CURVES if values.get(k) is not None}


@contextlib.contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """The committed records as run folders, as every command expects them."""
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary)
        for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            run = runs / record["method"] / record["dataset"] / record["run_id"]
            run.mkdir(parents=True)
            (run / "config.json").write_text(json.dumps(record["config"]))
            (run / "record.json").write_text(line)
        yield runs


def written(folder: Path, draw: bool = False) -> str:
    """The page; ``draw`` writes its pictures as well."""
    out = [f"<!-- Written by `python docs/results/make.py` from {folder.name}/; change it there. -->"]
    with unpacked(folder) as runs:
        lines = iter((folder / "text.md").read_text(encoding="utf-8").splitlines())
        for line in lines:
            if line.strip() != FENCE:
                out.append(line)
                continue
            for command in lines:
                if command.strip() == FENCE:
                    break
                out += _answer(command.strip(), folder, runs, draw)
    return "\n".join(out).rstrip() + "\n"


def _answer(command: str, folder: Path, runs: Path, draw: bool) -> list[str]:
    name, *words = shlex.split(command)
    if name == "@runs":
        return list(_run_list(runs))
    if name == "@curves":
        labels = [" ".join(part.split()) for part in " ".join(words[2:]).split(";")]
        return list(_curve_table(folder, runs, words[0], words[1], labels, draw))
    if name == "@costs":
        return list(_cost_table(runs))
    if (name, *words[:1]) != ("$", "gcdbench"):
        raise GcdbenchError(f"{folder.name}/text.md: '{command}' is no command.")
    shown = command.removeprefix("$ ")
    return ["```", f"$ {shown}", "```", "", _run([*words[1:], "--markdown", "--runs", str(runs)]).rstrip(), ""]


def _run(words: Sequence[str]) -> str:
    """What the command prints on standard output."""
    from gcdbench.cli.main import main

    told, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(complained):
        try:
            main(list(words))
        except SystemExit as end:
            if end.code not in (0, None):
                raise GcdbenchError(
                    f"`gcdbench {shlex.join(words)}` ended with {end.code}: {complained.getvalue()}"
                ) from end
    return told.getvalue()


def _labelled(runs: Path, experiment: str) -> dict[str, list[Any]]:
    """Records of each row of an experiment, by its label."""
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.experiments.study_runs import Asked, make_studies
    from gcdbench.prepare.environment import RunEnvironment
    from gcdbench.system.observer import Observer

    asked = Asked(seeds=SEEDS)
    (study,), _ = make_studies(load_experiment(experiment), asked, RunEnvironment(runs), Observer(), recorded=True)
    return {line.row.label: list(line.records) for line in study.lines}


def _curve_table(
    folder: Path, runs: Path, experiment: str, metric: str, labels: Sequence[str], draw: bool
) -> Iterator[str]:
    """Means over seeds of a metric by epoch, one column a row of the experiment, and a picture of them."""
    curves = json.loads((folder / "curves.json").read_text(encoding="utf-8"))
    known = _labelled(runs, experiment)
    columns: dict[str, dict[int, float]] = {}
    for label in labels:
        if label not in known:
            raise GcdbenchError(f"{folder.name}/text.md: {experiment} has no row '{label}'.")
        by_epoch: dict[int, list[float]] = {}
        for record in known[label]:
            for point in curves.get(record.run_id, []):
                if metric in point:
                    by_epoch.setdefault(int(point["epoch"]), []).append(point[metric])
        columns[label] = {epoch: statistics.mean(values) for epoch, values in sorted(by_epoch.items())}
    name = f"{Path(experiment).name.removesuffix('.toml')}-{metric}.svg"
    title = "supervised cross entropy" if metric == "ce" else f"{metric.capitalize()} in percent"
    if draw:
        _draw(folder / name, columns, title)
    yield f"![{title} by epoch]({folder.name}/{name})"
    yield ""
    yield f"| epoch | {' | '.join(labels)} |"
    yield "|---|" + "---|" * len(labels)
    digits = 3 if metric == "ce" else 1
    for epoch in sorted({e for column in columns.values() for e in column}):
        cells = (f"{column[epoch]:.{digits}f}" if epoch in column else "" for column in columns.values())
        yield f"| {epoch} | {' | '.join(cells)} |"
    yield ""


def _draw(file: Path, columns: Mapping[str, Mapping[int, float]], title: str) -> None:
    from gcdbench.report.figure import to_svg
    from gcdbench.report.plots import curves

    figure = curves({label: list(points.items()) for label, points in columns.items()}, "epoch", title)
    if figure is not None:
        figure.set_facecolor("white")
        file.write_text(to_svg(figure), encoding="utf-8")


def _run_list(runs: Path) -> Iterator[str]:
    """How many runs there are, what they were made with, and their ids by set-up."""
    from gcdbench.analysis.setups import group

    records, _, _ = read_runs(runs)
    commits = sorted({r.git["core"]["commit"][:12] for r in records if r.git["core"]})
    made = sorted({", ".join(f"{name} {number}" for name, number in r.versions.items()) for r in records})
    weights = sorted({r.backbone["weights_hash"] for r in records})
    yield f"{len(records)} runs; source at {', '.join(commits)}; weights {', '.join(weights)}; {'; or '.join(made)}."
    yield ""
    yield "<details><summary>Run ids</summary>"
    yield ""
    yield "| Set-up | Runs by seed |"
    yield "|---|---|"
    for setup in sorted(group(records), key=lambda s: s.name):
        yield f"| {setup.name} | {' '.join(r.run_id for r in setup.records)} |"
    yield ""
    yield "</details>"


def _cost_table(runs: Path) -> Iterator[str]:
    """Operations of a step, trained parameters and memory of each set-up, as its first record has them."""
    from gcdbench.analysis.setups import group

    yield "| Method | Epochs | Trained parameters | Trunk, GFLOP a step | Own part | Last prediction |"
    yield "|---|---|---|---|---|---|"
    for setup in sorted(group(read_runs(runs)[0]), key=lambda s: s.name):
        record = setup.records[0]
        step = record.flops_per_step or {"trunk": 0, "method": 0}
        seconds = statistics.mean(r.timings.get("predict", 0.0) for r in setup.records)
        cells = (
            setup.name,
            str(record.selected["epoch"]),
            f"{record.parameters['trained']:,}",
            f"{step['trunk'] / 1e9:.2f}",
            f"{step['method'] / 1e9:.2f}",
            f"{seconds:.2f} s",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def main(arguments: Sequence[str]) -> int:
    """Write, check or collect."""
    if arguments[:1] == ["collect"]:
        name, runs = arguments[1:]
        (HERE / name).mkdir(exist_ok=True)
        print(f"{collect(HERE / name, Path(runs))} records")
        return 0
    stale = []
    for folder in pages():
        checks = "--check" in arguments
        page, text = HERE / f"{folder.name}.md", written(folder, draw=not checks)
        if checks:
            if not page.is_file() or page.read_text(encoding="utf-8") != text:
                stale.append(page.name)
        else:
            page.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is not what its records say: run `python docs/results/make.py`.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
