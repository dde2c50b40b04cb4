"""The script that presets of ours were chosen with: criteria without hidden labels."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.runs.execute import open_runs

SCRIPT = Path(__file__).parents[2] / "plugins" / "choose_preset.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("choose_preset", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SEEDS", (100, 101))
    monkeypatch.setattr(module.measure, "__defaults__", ((100, 101),))
    return module


@pytest.mark.usefixtures("few_digits")
def test_the_table(script, capsys, tmp_path):
    script.main(["rlcd", "train.epochs=1", "train.lr=0.001,0.01", "--cache", str(tmp_path)])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["held-out", "base"]
    assert [line.split()[-1] for line in lines] == ["train.lr=0.001", "train.lr=0.01"]
    for line in lines:
        *criteria, score = map(float, line.split()[:6])
        assert score == pytest.approx(np.mean(criteria), abs=2e-3)
        assert all(-1 <= value <= 1 for value in criteria)


@pytest.mark.usefixtures("few_digits")
def test_held_out_rows_were_labelled_and_are_hidden(script, tmp_path):
    shared = SharedResources(RunEnvironment(tmp_path, tmp_path, "cpu"))
    ctx = next(open_runs(resolve_request(RunRequest("rlcd", "digits")), shared))
    before = ctx.data.split
    cut, held = script.hold_out(ctx)
    after = cut.data.split
    assert len(held) == int(0.2 * len(before.labelled))
    assert set(held) <= set(before.labelled)
    assert set(after.labelled) == set(before.labelled) - set(held)
    assert set(after.unlabelled) == set(before.unlabelled) | set(held)


@pytest.mark.usefixtures("few_digits")
def test_common_settings_come_from_an_experiment(script, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[experiment]\ntitle = "Mine"\ndatasets = ["digits"]\nmethods = ["rlcd"]\nsettings = { "train.epochs" = 1 }\n'
    )
    script.main(["rlcd", "method.alpha=0.1", "--experiment", str(file), "--cache", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[1].endswith("method.alpha=0.1")


@pytest.mark.usefixtures("few_digits")
def test_candidates_that_see_other_batches_train_apart(script, tmp_path, monkeypatch):
    sizes, original = [], script.Lane.step

    def step(self, batch, number):
        sizes.append((self.ctx.config.train.batch_size, len(batch.target)))
        original(self, batch, number)

    monkeypatch.setattr(script.Lane, "step", step)
    script.main(["rlcd", "train.epochs=1", "train.batch_size=16,32", "--cache", str(tmp_path)])
    assert {asked for asked, _ in sizes} == {16, 32}
    assert all(asked == got for asked, got in sizes)
