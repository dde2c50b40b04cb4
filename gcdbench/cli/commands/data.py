"""`gcdbench data layout|verify|fetch|split`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcdbench.cli import completion
from gcdbench.cli.options import SuggestingGroup, data_root_option
from gcdbench.cli.output import err, json_option, out, print_json, print_table, print_words
from gcdbench.errors import DataError

if TYPE_CHECKING:
    from gcdbench.contracts import Archive
    from gcdbench.data.checked_dataset import OpenedDataset


@click.group("data", cls=SuggestingGroup)
def data_group() -> None:
    """Datasets on disk: what they look like, whether they are complete, how to get them, how they are split."""


def _open(name: str, root: Path | None) -> OpenedDataset:
    from gcdbench import registry
    from gcdbench.data.checked_dataset import open_dataset
    from gcdbench.data.data_root import data_root

    return open_dataset(registry.load("dataset", name), data_root(root))


@data_group.command("layout")
@click.argument("dataset", shell_complete=completion.plugins("dataset"))
@data_root_option
@json_option
def layout_command(dataset: str, data_root: Path | None, as_json: bool) -> None:
    """Show the files a dataset needs below the data root."""
    opened = _open(dataset, data_root)
    if as_json:
        print_json({"dataset": opened.name, "root": str(opened.root), "layout": opened.layout})
        return
    click.echo(f"{opened.title}, below {opened.root}:\n{opened.layout}")


@data_group.command("verify")
@click.argument("dataset", shell_complete=completion.plugins("dataset"))
@data_root_option
@click.option("--sample", type=click.IntRange(1), help="Open only about this many images of each part.")
@json_option
def verify_command(dataset: str, data_root: Path | None, sample: int | None, as_json: bool) -> None:
    """Check counts and whether every image can be read; exit code 4 if something is wrong."""
    from rich.progress import Progress

    from gcdbench.data.verify import verify

    opened = _open(dataset, data_root)
    with Progress(console=err(), transient=True) as bar:
        tasks: dict[str, object] = {}

        def tick(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(f"reading {part} images", total=total)
            bar.update(tasks[part], completed=done)  # type: ignore[arg-type]

        result = verify(opened, sample, tick)
    if as_json:
        print_json(
            {
                "dataset": result.dataset,
                "root": result.root,
                "ok": result.ok,
                "parts": result.parts,
                "problems": result.problems,
                "notes": result.notes,
            }
        )
    else:
        rows = [
            [
                part,
                f"{facts['rows']:,}",
                "-" if facts["expected_rows"] is None else f"{facts['expected_rows']:,}",
                str(facts["classes"]),
                "-" if facts["expected_classes"] is None else str(facts["expected_classes"]),
                f"{facts['images_read']:,}",
            ]
            for part, facts in result.parts.items()
        ]
        columns = ["Part", "Rows", "Expected", "Classes", "Expected", "Images read"]
        print_table(f"{opened.title} below {opened.root}", columns, rows)
        for kind, sentences in (("Problem", result.problems), ("Note", result.notes)):
            for sentence in sentences:
                print_words(out(), f"{kind}: {sentence}")
    if not result.ok:
        raise DataError(f"{opened.title} has {len(result.problems)} problem(s); they are listed above.")


@data_group.command("fetch")
@click.argument("dataset", shell_complete=completion.plugins("dataset"))
@data_root_option
@click.option("--keep-archive", is_flag=True, help="Do not delete the archive after unpacking.")
@json_option
def fetch_command(dataset: str, data_root: Path | None, keep_archive: bool, as_json: bool) -> None:
    """Download a dataset, or say how to get it by hand where no stable public source exists."""
    opened = _open(dataset, data_root)
    steps = [step.replace("<data root>", str(opened.root)) for step in opened.steps]
    if opened.archives:
        status = _fetch(opened, keep_archive)
    elif steps:
        status = "cannot be downloaded automatically. Do this:"
    else:
        status = "needs no download."
    if as_json:
        print_json({"dataset": opened.name, "root": str(opened.root), "status": status, "steps": steps})
        return
    click.echo(f"{opened.title} {status}")
    for number, step in enumerate(steps, 1):
        click.echo(f"{number}. {step}")


def _fetch(dataset: OpenedDataset, keep_archive: bool) -> str:
    """Download and unpack, unless the data is there; what came of it."""
    from gcdbench.data.checked_dataset import open_dataset
    from gcdbench.data.fetch import unpack

    try:
        if dataset.expected is not None and len(dataset.index("train")) == dataset.expected.train:
            return f"is already complete below {dataset.root}."
    except DataError:
        pass  # not there yet
    for archive in dataset.archives:
        path = _download(archive, dataset.root)
        click.echo(f"Unpacking {path} ...", err=True)
        unpack(path, dataset.root)
        if not keep_archive:
            path.unlink()
    fresh = open_dataset(type(dataset.inner), dataset.root)
    return f"is ready below {dataset.root}: {len(fresh.index('train')):,} training rows."


def _download(archive: Archive, folder: Path) -> Path:
    """Fetch an archive with a progress bar."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from gcdbench.data.fetch import download

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task(archive.filename)
        return download(archive, folder, lambda done, total: bar.update(task, completed=done, total=total))


@data_group.command("split")
@click.argument("dataset", shell_complete=completion.plugins("dataset"))
@data_root_option
@click.option("--label-ratio", type=float, default=0.5, show_default=True, help="Share of labelled base images.")
@click.option("--novel-ratio", type=float, help="Share of novel classes.")
@json_option
def split_command(
    dataset: str, data_root: Path | None, label_ratio: float, novel_ratio: float | None, as_json: bool
) -> None:
    """Show the exact split: classes in order, labelled and unlabelled rows. Opens no image."""
    from gcdbench.config.sections import DataConfig
    from gcdbench.data.splits import make_split

    config = DataConfig(label_ratio=label_ratio, novel_ratio=novel_ratio)
    opened = _open(dataset, data_root)
    split = make_split(opened, opened.index("train"), config)
    if as_json:
        print_json(
            {
                "dataset": opened.name,
                "base": list(split.base),
                "novel": list(split.novel),
                "labelled": split.labelled.tolist(),
                "unlabelled": split.unlabelled.tolist(),
            }
        )
        return
    rows = [
        ["base", str(len(split.base)), _some(split.base)],
        ["novel", str(len(split.novel)), _some(split.novel)],
        ["labelled", f"{len(split.labelled):,}", _some(split.labelled.tolist())],
        ["unlabelled", f"{len(split.unlabelled):,}", _some(split.unlabelled.tolist())],
    ]
    print_table(f"{opened.title}, split {split.hash()}", ["What", "How many", "Which"], rows)


def _some(values: tuple[int, ...] | list[int]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return shown + (", ..." if len(values) > 8 else "")
