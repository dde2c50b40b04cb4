"""Whatever is put in ends in a result or in a sentence with a documented exit code."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gcdbench
from gcdbench.config.coercion import parse_assignment
from gcdbench.config.resolve import SECTIONS
from gcdbench.config.sections import DataConfig
from gcdbench.contracts import ClassSplit, Dataset, Index
from gcdbench.data.checked_dataset import OpenedDataset
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.data.splits import make_split
from gcdbench.errors import EXIT_CODES, GcdbenchError, PluginError
from gcdbench.evaluation.score import score_file
from gcdbench.prepare.request import RunRequest, resolve_request
from tests.support.trees import write_image

many = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def told(action: Any) -> Any:
    """The result, or None if there was a sentence instead."""
    try:
        return action()
    except GcdbenchError as error:
        said = error
    assert str(said).strip()
    assert said.exit_code in EXIT_CODES
    assert "Traceback" not in str(said)
    return None


# ------------------------------------------------------------------------------------------------------- configs

KEYS = [f"{section}.{field}" for section, cls in SECTIONS.items() for field in cls.__dataclass_fields__]
KEYS += ["method.alpha", "method.reg_on", "run.seeds", "run.method", "nothing.here", "train", "", "a.b.c"]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20),
    st.sampled_from(["fp16", "last", "random", "test", "none", "skip", "dino", "../x", "nan", "1e400", "'"]),
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner))


@many
@given(chosen=st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_any_settings_are_taken_or_refused(chosen):
    request = RunRequest("rlcd", "digits", settings={k: v for k, v in chosen.items() if k.startswith(tuple(SECTIONS))})
    found = told(lambda: resolve_request(request))
    if found is not None:
        config = found.runs[0].config
        assert 1 <= config.train.epochs <= 1_000_000
        assert 0 < config.views.crop <= config.views.resize
        assert 0 <= config.data.label_ratio <= 1


def toml(value: Any) -> str:
    """A value in TOML, as far as TOML can say it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "?" for c in value) + '"'
    if isinstance(value, float):
        return repr(value).replace("inf", "inf").replace("nan", "nan")
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"k{i} = {toml(v)}" for i, v in enumerate(value.values())) + "}"
    return "0" if value is None else str(value)


@many
@given(
    chosen=st.dictionaries(st.sampled_from([*KEYS[:-5], "run.method", "run.seeds", "run.dataset"]), values, max_size=4)
)
def test_any_config_file_is_taken_or_refused(chosen, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in chosen.items()))
    tomllib.loads(file.read_text())  # the file itself is well formed; what it says need not be
    told(lambda: resolve_request(RunRequest("rlcd", "digits", config=file)))
    told(lambda: [resolve_request(one) for one in RunRequest(dataset="digits", config=file).each()])


@many
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_bytes_as_a_config_file(content, tmp_path):
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    told(lambda: resolve_request(RunRequest("rlcd", "digits", config=file)))


@many
@given(key=st.sampled_from(KEYS), text=st.text(max_size=60))
def test_any_assignment_is_taken_or_refused(key, text):
    def assign():
        name, value = parse_assignment(f"{key}={text}")
        return resolve_request(RunRequest("rlcd", "digits", settings={name: value}))

    told(assign)
    told(lambda: parse_assignment(text))


# ------------------------------------------------------------------------------------------------- labels in CSV

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@many
@given(
    rows=st.lists(st.tuples(names, names), max_size=8),
    header=st.sampled_from(["path,label", "label,path,x", "a,b", ""]),
)
def test_any_table_of_labels_is_taken_or_refused(rows, header, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text(header + "\n" + "".join(f"{path},{label}\n" for path, label in rows), encoding="utf-8")
    found = told(lambda: OpenedDataset(ImageFolder(tmp_path)).index("train"))
    if found is not None:
        assert len(found.items) == len(found.labels) == len(set(found.items))
        assert all((tmp_path / item).resolve().is_relative_to(tmp_path.resolve()) for item in found.items)
        told(lambda: make_split(ImageFolder(tmp_path), found, DataConfig()))


# ---------------------------------------------------------------------------------- label arrays and class lists


class Given(Dataset):
    """Whatever a plugin may answer."""

    name = "given"
    title = "Given"
    layout = ""

    def __init__(self, labels: Any, classes: Any, split: Any, rows: Any = None) -> None:
        super().__init__(Path("."))
        self.labels, self.classes, self.split, self.rows = labels, classes, split, rows

    def index(self, part: str) -> Index:
        return Index(
            tuple(f"row {i}" for i in range(len(self.labels))), self.labels, tuple(map(str, range(self.classes)))
        )

    def image(self, part: str, row: int) -> Any:
        raise AssertionError

    def class_split(self) -> ClassSplit:
        return ClassSplit(*map(tuple, self.split))

    def labelled_rows(self, index: Index, base: Any, ratio: float) -> Any:
        return self.rows


arrays = st.one_of(
    st.lists(st.integers(-3, 12), max_size=30).map(lambda v: np.array(v, dtype=np.int64)),
    st.lists(st.integers(0, 4), min_size=1, max_size=30).map(lambda v: np.array(v, dtype=np.int64)),
    st.lists(st.floats(), max_size=5).map(np.array),
    st.lists(st.text(max_size=3), max_size=5).map(np.array),
    st.just(np.zeros((2, 2), dtype=int)),
    st.lists(st.integers(0, 3), max_size=4),
)
class_list = st.lists(st.integers(-1, 7), max_size=6)
row_lists = st.none() | st.lists(st.integers(-2, 31), max_size=8) | st.just([0.5]) | st.just("01")


@many
@given(arrays, st.integers(0, 8), st.tuples(class_list, class_list), row_lists, st.floats(0, 1))
def test_any_labels_and_class_lists_are_taken_or_refused(labels, classes, split, rows, ratio):
    dataset = OpenedDataset(Given(labels, classes, split, rows))
    found = told(lambda: make_split(dataset, dataset.index("train"), DataConfig(label_ratio=ratio)))
    if found is not None:
        assert sorted([*found.labelled, *found.unlabelled]) == list(range(len(labels)))
        assert len(found.unlabelled) > 0
        assert not set(found.base) & set(found.novel)
        assert found.target.max() < found.num_classes
        assert (found.target[found.labelled] >= 0).all()
        assert (found.target[found.labelled] < len(found.base)).all()


@pytest.mark.parametrize(
    ("labels", "classes", "split", "words"),
    [
        (np.array([0, 5]), 3, ([0], [1]), "the label 5"),
        (np.array([0, -2]), 3, ([0], [1]), "the label -2"),
        (np.array([0.5, 1.0]), 3, ([0], [1]), "float64"),
        (np.array(["ä", "b"]), 3, ([0], [1]), "one whole number per row"),
        ([0, 1], 3, ([0], [1]), "are list"),
        (np.array([], dtype=int), 3, ([0], [1]), "without a single row"),
        (np.array([0, 1]), 3, ([0], [0]), "lists class 0 twice"),
        (np.array([0, 1]), 3, ([0], [9]), "splits a class 9"),
        (np.array([0, 1]), 3, ([], [0]), "no base class"),
    ],
)
def test_what_is_wrong_with_labels_is_said(labels, classes, split, words):
    dataset = OpenedDataset(Given(labels, classes, split))
    with pytest.raises(PluginError, match=words):
        make_split(dataset, dataset.index("train"), DataConfig())


@many
@given(y_true=arrays, y_pred=arrays, num_base=st.integers(-1, 12) | st.floats() | st.text(max_size=2))
def test_any_arrays_are_scored_or_refused(y_true, y_pred, num_base, tmp_path):
    file = tmp_path / "p.npz"
    np.savez(file, y_true=np.asarray(y_true), y_pred=np.asarray(y_pred), num_base=np.asarray(num_base))
    found = told(lambda: score_file(file))
    if found is not None:
        assert 0 <= found["v2"]["all"] <= 1


# -------------------------------------------------------------------------------------------- extremes of a task

SMALL = {"views.resize": 18, "views.crop": 16, "train.batch_size": 8}


def photos(folder: Path, counts: dict[str, int], size: tuple[int, int] = (24, 20)) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            write_image(folder / name / f"{i}.png", size)
    return folder


def sort(tmp_path: Path, **more: Any) -> Any:
    values = {**SMALL, **more.pop("settings", {})}
    place = {"data_root": tmp_path / "photos", "runs": tmp_path / "runs"}
    return told(
        lambda: gcdbench.run("rlcd", "folder", backbone="digits-vit", epochs=1, settings=values, **place, **more)[0]
    )


@pytest.mark.parametrize("k", [1, 2, 3, 17, 100])
def test_k_from_one_to_more_than_rows(k, tmp_path):
    photos(tmp_path / "photos", {"cat": 4, "dog": 4, "unlabelled": 6})
    record = sort(tmp_path, k=k)
    assert (record is None) == (k < 2)
    if record is not None:
        assert record.protocol["k"] == k
    else:
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("ratio", [0.0, 1e-9, 0.999, 1.0])
@pytest.mark.parametrize("option", ["label_ratio", "novel_ratio"])
def test_ratios_up_to_their_ends(option, ratio, tmp_path):
    photos(tmp_path / "photos", {"cat": 5, "dog": 5, "emu": 5, "fox": 5})
    record = sort(tmp_path, **{option: ratio})
    if record is None:
        assert not (tmp_path / "runs").exists()
    else:
        assert record.data["labelled"] + record.data["unlabelled"] == 20
        assert np.isfinite(list(record.metrics.values())).all()


@pytest.mark.parametrize(
    ("counts", "more", "works"),
    [
        ({"cat": 8}, {}, True),  # one class, half of it labelled
        ({"cat": 1}, {}, True),
        ({"cat": 1, "unlabelled": 1}, {"k": 1}, True),
        ({"cat": 4, "dog": 4, "unlabelled": 4}, {"k": 2}, True),  # no novel class
        ({"cat": 4, "dog": 4}, {"label_ratio": 1.0}, True),
        ({"cat": 4}, {"label_ratio": 1.0}, False),  # no unlabelled row
        ({"cat": 4, "unlabelled": 0}, {"k": 2, "label_ratio": 1.0}, False),
        ({"unlabelled": 5}, {"k": 2}, False),  # no class at all
        ({"cat": 0, "dog": 0}, {}, False),  # no image at all
        ({"cat": 3, "dog": 0, "unlabelled": 3}, {"k": 3}, True),  # a class without images
    ],
)
def test_tasks_at_their_limits(counts, more, works, tmp_path):
    photos(tmp_path / "photos", counts)
    record = sort(tmp_path, **more)
    assert (record is not None) == works
    if not works:
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("size", [(1, 1), (2, 40), (15, 15), (16, 300)])
def test_images_smaller_than_the_crop_are_enlarged(size, tmp_path):
    photos(tmp_path / "photos", {"cat": 4, "dog": 4, "unlabelled": 4}, size)
    assert sort(tmp_path, k=3) is not None


# ------------------------------------------------------------------------------------------------- command lines

WORDS = """
run --method rlcd rlcd, rlcd:x --dataset digits folder --seed 0- -1 1e3 --k 0 --set train.lr= = --config /dev/null /
\N{PILE OF POO} --epochs --json --dry-run --label-ratio nan inf --lanes --checkpoint-every -h --runs show score data
verify cache delete --all compare table report results list methods -- --on-bad-image
"""


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(arguments=st.lists(st.sampled_from([*WORDS.split(), ""]), max_size=7))
def test_any_words_on_the_command_line_end_well(arguments, tmp_path, monkeypatch):
    """Without --dataset digits alone, which would train."""
    import contextlib
    import io

    from gcdbench.cli.main import main

    if {"run", "rlcd", "digits"} <= set(arguments) or "bench" in arguments:
        arguments = [*arguments, "--dry-run", "--epochs", "0"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "cache"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(arguments)
    code = stop.value.code or 0
    assert code in EXIT_CODES
    assert "Traceback" not in err.getvalue()
    assert code == 0 or err.getvalue().strip()
