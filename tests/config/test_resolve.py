from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcdbench.config.coercion import parse_assignment
from gcdbench.config.resolve import Layer, flatten, read_toml, resolve, run_id
from gcdbench.errors import UsageError


@dataclass(frozen=True)
class Own:
    alpha: float = 0.5
    mode: Literal["one", "two"] = "one"
    count: int = 3
    flag: bool = True


def make(*layers: Layer, seed: int = 0):
    return resolve(method="m", dataset="d", recipe="r", seed=seed, method_config=Own, layers=layers)


def test_later_layers_win_and_sources_are_kept():
    found = make(Layer("preset", {"method.alpha": 1, "train.lr": 0.2}), Layer("--set", {"method.alpha": 0.25}))
    assert found.config.method_config.alpha == 0.25
    assert found.config.train.lr == 0.2
    assert found.sources["method.alpha"] == "--set"
    assert found.sources["train.lr"] == "preset"
    assert found.sources["train.epochs"] == "default"


def test_whole_numbers_become_floats_but_not_the_reverse():
    assert make(Layer("x", {"method.alpha": 1})).config.method_config.alpha == 1.0
    with pytest.raises(UsageError, match="method.count must be a whole number, not 1.5"):
        make(Layer("x", {"method.count": 1.5}))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("method.alfa", 1, "Did you mean 'method.alpha'"),
        ("trian.lr", 1, "Did you mean 'train.lr'"),
        ("zzz.qqq", 1, "Sections: backbone, data, eval, method, store, train, views"),
        ("method.mode", "tow", "Did you mean 'two'"),
        ("method.flag", 1, "true or false"),
        ("method.flag", "yes", "true or false"),
        ("method.count", True, "whole number"),
        ("train.lr", float("nan"), "a number"),
        ("train.lr", -1.0, "must be positive"),
        ("train.epochs", 0, "at least 1"),
        ("views.crop", 500, "not larger than the resized image"),
        ("views.mean", [1, 2], "three numbers"),
        ("data.label_ratio", 1.5, "between 0 and 1"),
        ("data.k", 0, "at least 1"),
        ("train.precision", "fp8", "Did you mean 'fp16'|Did you mean 'fp32'|Did you mean 'fp64'"),
    ],
)
def test_wrong_keys_and_values_are_sentences(key, value, words):
    with pytest.raises(UsageError, match=words):
        make(Layer("test", {key: value}))


def test_none_and_lists():
    found = make(Layer("x", {"data.k": 7, "views.mean": [0.1, 0.2, 0.3]}), Layer("y", {"data.k": "none"}))
    assert found.config.data.k is None
    assert found.config.views.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=0.05", ("train.lr", 0.05)),
        ("train.epochs = 5", ("train.epochs", 5)),
        ("method.flag=false", ("method.flag", False)),
        ("method.mode=two", ("method.mode", "two")),
        ('method.mode="two"', ("method.mode", "two")),
        ("views.mean=[0.5, 0.5, 0.5]", ("views.mean", [0.5, 0.5, 0.5])),
        ("backbone.weights=/x/y=z.pth", ("backbone.weights", "/x/y=z.pth")),
    ],
)
def test_assignments(text, expected):
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["", "lr", "lr=1", "=1"])
def test_bad_assignments(text):
    with pytest.raises(UsageError, match=r"section\.key=value"):
        parse_assignment(text)


@given(st.text(max_size=30))
def test_any_assignment_is_a_pair_or_a_sentence(text):
    try:
        key, _ = parse_assignment(text)
    except UsageError:
        return
    assert "." in key


def test_run_id_depends_on_what_decides_the_result():
    base = run_id(make().config, index="a")
    assert base == run_id(make().config, index="a")
    assert len(base) == 12
    assert base != run_id(make().config, index="b")
    assert base != run_id(make(seed=1).config, index="a")
    assert base != run_id(make(Layer("x", {"method.alpha": 0.6})).config, index="a")
    assert base == run_id(make(Layer("x", {"train.micro_batch": 8, "eval.batch_size": 9})).config, index="a")


def test_toml_faults_are_sentences(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_toml(tmp_path / "nothing.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_toml(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_toml(bad)
    with pytest.raises(UsageError, match="must be a section"):
        flatten({"train": 3}, "file")
