"""Plugins that are not what they should be: told in a sentence, wherever they are met first."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from gcdbench import registry
from gcdbench.config.coercion import coerce
from gcdbench.config.presets import read_preset
from gcdbench.contracts import KEstimate
from gcdbench.errors import PluginError, UsageError
from gcdbench.registry import Plugin
from gcdbench.testing import run_checks
from gcdbench.testing.kit import FAILED
from gcdbench.testing.subject import session_of
from tests.support.runs import start
from tests.testing.broken import Sound


class Leaves(Sound):
    """Wants to end the program."""

    def predict(self, pool):
        raise SystemExit(0)


class NoRecipe(Sound):
    recipes = ()


class OneWord(Sound):
    recipes = "default"


class NoDataset:
    name = "x"


class Strange(Sound):
    def active(self, t):
        return ("nope",)


class Nothing(Sound):
    def optimizers(self, stage):
        return {}


class Zero(Sound):
    """Something starts at zero, and something comes later: both learn, but not in the first step."""

    def __init__(self, config, task):
        import torch
        from torch import nn

        super().__init__(config, task)
        self.down = nn.Linear(task.backbone.embed_dim, 4)
        self.up = nn.Linear(4, task.backbone.embed_dim, bias=False)
        self.late = nn.Parameter(torch.ones(1))
        if self.up.weight.device.type != "meta":
            nn.init.zeros_(self.up.weight)

    def logits(self, tokens):
        cls = self.tail(tokens)[:, 0]
        return self.head(cls + self.up(self.down(cls)))

    def forward(self, batch, t):
        losses = super().forward(batch, t)
        if t.epoch + 1 == t.epochs:
            losses.add("late", (self.late - 0.5).square().sum())
        return losses


def own(cls: type, kind: str = "method") -> Plugin:
    return Plugin(kind, "subject", f"tests.plugins.test_plugin_shapes:{cls.__name__}", "a package", "1.0", "")


@pytest.mark.parametrize(
    ("cls", "kind", "words"),
    [
        (NoRecipe, "method", "must name its recipes"),
        (OneWord, "method", "must name its recipes"),
        (NoDataset, "dataset", "is no gcdbench.Dataset"),
        (Sound, "evaluator", "is no gcdbench.Evaluator"),
    ],
)
def test_the_wrong_kind_of_thing_is_told_when_it_is_loaded(cls, kind, words):
    with pytest.raises(PluginError, match=words):
        own(cls, kind).load()
    assert words in str(registry.probe([own(cls, kind)])["subject"].reason)


def test_a_plugin_does_not_end_the_program():
    outcome = session_of(own(Leaves)).outcome("prediction")
    assert outcome.status == FAILED
    assert "called sys.exit in predict" in outcome.detail


def test_a_method_that_ends_the_program_ends_its_run_only(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "predict", Leaves.predict)
    with pytest.raises(PluginError, match="called sys.exit in predict"):
        start(tmp_path, "rlcd", epochs=1)


@pytest.mark.parametrize(
    ("cls", "words"), [(Strange, "names the optimiser 'nope'; there are main"), (Nothing, "no optimiser")]
)
def test_training_nothing_is_a_fault(cls, words):
    session = session_of(own(cls))
    failed = [o for o in session.all() if o.status == FAILED]
    assert failed
    assert words in failed[0].detail


def test_what_starts_at_zero_or_comes_later_is_no_false_alarm():
    assert session_of(own(Zero)).outcome("gradients").status == "passed"


def test_an_import_that_never_ends_is_reported(tmp_path, monkeypatch):
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(registry, "PATIENCE", 15.0)
    fine = Plugin("method", "fine", "gcdbench_simgcd:SimGCD", "a", "1", "")
    found = registry.probe([Plugin("method", "sleepy", "sleepy:X", "a", "1", ""), fine])
    assert found["sleepy"].reason == "its import took longer than 15.0 seconds"
    assert found["fine"].reason is None
    assert found["fine"].facts["recipes"] == ["paper"]


def test_what_a_plugin_prints_is_not_the_answer(cli, monkeypatch):
    from gcdbench_simgcd import SimGCD

    original = SimGCD.terms

    def talk(self, batch, t):
        print("hello")
        return original(self, batch, t)

    monkeypatch.setattr(SimGCD, "terms", talk)
    answer = cli("check", "simgcd", "--only", "losses", "--json")
    assert json.loads(answer.stdout)["ok"]
    small = ("--set", "method.projector_hidden=16", "--set", "method.projector_out=8")
    answer = cli("run", "--method", "simgcd", "--dataset", "digits", "--epochs", "1", "--json", *small)
    assert len(json.loads(answer.stdout)["runs"]) == 1


def test_names_of_checks_are_checked():
    with pytest.raises(UsageError, match="Did you mean 'losses'"):
        run_checks("simgcd", only=["loses"])
    assert [o.check.name for o in run_checks("simgcd", only="config").outcomes] == ["config"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[defualt]\n", "has a table 'defualt'"),
        ("[train]\nepochs = 1\n", "has a table 'train'"),
        ("default = 3\n", "'default' must be a table"),
        ("dataset = 3\n", "'dataset' must hold tables"),
        ("[dataset]\ncub = 3\n", "'cub' must be a table"),
        ("[dataset.cub]\non = 3\n", "'on' must hold tables"),
        ("[dataset.cub.on]\ndino = 3\n", "must be a table"),
    ],
)
def test_presets_of_the_wrong_shape_are_told(text, words, tmp_path, monkeypatch):
    package = tmp_path / "shapeless"
    (package / "presets").mkdir(parents=True)
    (package / "__init__.py").write_text("class Method:\n    pass\n")
    (package / "presets/default.toml").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "shapeless", raising=False)
    import shapeless

    with pytest.raises(PluginError, match=words):
        read_preset(shapeless.Method, "default")


def test_a_score_that_is_no_number_is_refused(tmp_path, monkeypatch):
    bad = KEstimate(7, {7: float("nan")})
    monkeypatch.setattr(registry.load("k-estimator", "cms"), "estimate", lambda *_: bad)
    with pytest.raises(PluginError, match="not a finite number"):
        start(tmp_path, "simgcd", epochs=1, k="cms", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("value", "hint", "found"),
    [
        ([1, "x"], tuple[int, str], (1, "x")),
        ([1, 2], tuple[int, float], (1, 2.0)),
        ([], tuple[float, ...], ()),
        (["a"], tuple[Literal["a", "b"], ...], ("a",)),
    ],
)
def test_tuples_of_settings(value, hint, found):
    assert coerce(value, hint, "method.x", "--set") == found


@pytest.mark.parametrize(
    ("value", "hint"), [([1, 2, 3], tuple[int, int]), ([], tuple[int, int]), (["x", 1], tuple[int, str])]
)
def test_tuples_of_another_shape_are_refused(value, hint):
    with pytest.raises(UsageError, match="method.x"):
        coerce(value, hint, "method.x", "--set")
