"""State that a checkpoint would lose is noticed in the rehearsal, before it can cost anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gcdbench.errors import PluginError
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.system.observer import Observer
from tests.runs.test_rehearsal import fails_before_training, oops
from tests.support.lanes import alone, assert_equal_runs, assert_resumed_equal, together
from tests.support.runs import start

pytestmark = pytest.mark.usefixtures("few_digits")


def with_margin(monkeypatch, keep):
    """RLCD whose `on_epoch_start` sets a margin that its steps use; ``keep`` says where it is kept."""
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def on_epoch_start(self, pool, t):
        value = torch.tensor(0.01 * (t.epoch + 1) * len(pool))
        if keep == "buffer":
            self.margin.copy_(value)
        elif keep == "new buffer":
            self.register_buffer("margin", value)
        else:
            self.margin = value

    def forward(self, batch, t):
        losses = original(self, batch, t)
        margin = getattr(self, "margin", torch.tensor(0.0)) if keep == "default" else self.margin
        losses.add("margin", losses["main_ce"].value * margin)
        if keep == "grows":
            self.margin = self.margin + 1
        return losses

    build = RLCD.__init__

    def init(self, config, task):
        build(self, config, task)
        if keep == "buffer":
            self.register_buffer("margin", torch.tensor(0.0))

    monkeypatch.setattr(RLCD, "__init__", init)
    monkeypatch.setattr(RLCD, "on_epoch_start", on_epoch_start)
    monkeypatch.setattr(RLCD, "forward", forward)


class StopInTheSecondEpoch(Observer):
    def __init__(self):
        self.notes = []

    def warn(self, message):
        self.notes.append(message)

    def step(self, t):
        if (t.epoch, t.step) == (1, 3):
            raise KeyboardInterrupt


@pytest.mark.parametrize(("keep", "within"), [("buffer", True), ("attribute", False), ("default", False)])
def test_what_is_set_for_an_epoch_survives_or_is_saved_at_its_end_only(keep, within, tmp_path, monkeypatch):
    """A plain attribute would be lost in the middle of an epoch: such a run is never continued there."""
    from gcdbench.training import checkpoint

    with_margin(monkeypatch, keep)
    whole = start(tmp_path, where="whole", epochs=3)[0]
    for _ in range(1 if within else 2):  # the second process does not rehearse, and must know all the same
        observer = StopInTheSecondEpoch()
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, epochs=3, observer=observer, checkpoint_every=0)
    saved = checkpoint.load(tmp_path / "runs/rlcd/digits" / whole.run_id)
    assert (saved["epoch"], saved["step"]) == ((1, 4) if within else (1, 0))
    assert_resumed_equal(whole, start(tmp_path, epochs=3)[0])


def test_such_a_run_is_told(tmp_path, monkeypatch):
    with_margin(monkeypatch, "attribute")
    observer = StopInTheSecondEpoch()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, epochs=3, observer=observer)
    assert any("saved at the end of each epoch only" in note and "get_extra_state" in note for note in observer.notes)


def test_a_buffer_that_a_new_process_would_not_have_is_refused(tmp_path, monkeypatch):
    with_margin(monkeypatch, "new buffer")
    fails_before_training(tmp_path, PluginError, "could not resume from its checkpoint")


def test_what_grows_from_epoch_to_epoch_must_be_state(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        self.__dict__["seen"] = self.__dict__.get("seen", 0) + 1
        losses = original(self, batch, t)
        losses.add("age", losses["main_ce"].value * self.seen)
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)
    fails_before_training(tmp_path, PluginError, "does not do what it would have done")


def test_every_base_class_is_in_the_few_rows(tmp_path, monkeypatch):
    """However rare it is."""
    from gcdbench_rlcd import RLCD

    from gcdbench.data.datasets.digits import Digits

    pixels, labels = Digits(Path("."))._data
    labels = labels.copy()
    rare = np.flatnonzero(labels == 3)
    labels[rare[3:]] = 4
    monkeypatch.setattr(Digits, "_data", (pixels, labels))
    pools = []
    monkeypatch.setattr(RLCD, "on_epoch_start", lambda self, pool, t: pools.append(pool))
    start(tmp_path, epochs=1)
    counts = [np.bincount(pool.target[pool.labelled], minlength=5) for pool in pools]
    assert counts[-1][3] in (1, 2, 3)
    assert (counts[0] >= np.minimum(counts[-1], 2)).all()


def test_force_keeps_the_old_run_until_the_new_one_is_known_to_work(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    record = start(tmp_path, epochs=1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "predict", oops)
        with pytest.raises(PluginError, match="failed in predict"):
            start(tmp_path, epochs=1, force=True)
    assert start(tmp_path, epochs=1)[0].finished == record.finished
    assert (Path(record.dir) / "predictions.npz").is_file()


@pytest.mark.parametrize("calls", range(1, 6))
def test_state_dict_that_fails_at_any_call_ends_its_own_lane_only(calls, tmp_path, monkeypatch, small_projector):
    from gcdbench_rlcd import RLCD

    original, seen = RLCD.state_dict, []

    def fail(self, *rest, **more):
        if self.config.pseudo_base != "predicted":
            seen.append(1)
            if len(seen) >= calls:
                oops()
        return original(self, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "state_dict", fail)
        with pytest.raises(PluginError, match="1 of 2 runs failed") as fault:
            together(tmp_path, "rlcd:released,rlcd:paper", epochs=1)
    assert "failed in state_dict: ZeroDivisionError: oops" in str(fault.value)
    assert_equal_runs(alone(tmp_path, "rlcd:paper", "lanes", epochs=1), alone(tmp_path, "rlcd:paper", epochs=1))


def test_a_bank_by_row_number_is_as_long_as_the_pool(tmp_path, monkeypatch):
    """The usual memory bank: as many places as the pool has rows, filled by `batch.index`."""
    from gcdbench_rlcd import RLCD

    original, sizes = RLCD.forward, []

    def on_epoch_start(self, pool, t):
        self.__dict__["bank"] = torch.zeros(len(pool))
        assert pool.index.tolist() == list(range(len(pool)))
        sizes.append(len(pool))

    def forward(self, batch, t):
        if t.step or "bank" in self.__dict__:
            self.bank[batch.index.cpu()] += 1
        return original(self, batch, t)

    monkeypatch.setattr(RLCD, "on_epoch_start", on_epoch_start)
    monkeypatch.setattr(RLCD, "forward", forward)
    start(tmp_path, epochs=1)
    assert sizes[0] == 64
    assert sizes[-1] == 400


def test_batches_of_the_rehearsal_fit_its_pool(tmp_path):
    from gcdbench.prepare.environment import RunEnvironment
    from gcdbench.prepare.request import RunRequest, resolve_request
    from gcdbench.runs.execute import open_runs
    from gcdbench.runs.sample_rows import SampleRows

    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    few = SampleRows(ctx)
    pool, batch = few.pool(0), few.batch(0)
    assert len(batch.target) == ctx.config.train.batch_size
    assert batch.index.max() < len(pool)
    assert (torch.from_numpy(pool.target)[batch.index] == batch.target).all()
    assert (torch.from_numpy(pool.labelled)[batch.index] == batch.labelled).all()
    assert 0.4 < batch.labelled.float().mean() < 0.6
    assert (batch.target[~batch.labelled] == -1).all()


@pytest.mark.parametrize("where", ["step", "epoch"])
def test_a_method_that_is_never_the_same_twice_is_told_and_not_blamed(where, tmp_path, monkeypatch):
    import itertools

    from gcdbench_rlcd import RLCD

    original, count = RLCD.forward, itertools.count()

    def forward(self, batch, t):
        losses = original(self, batch, t)
        if where == "step" or t.epoch == 1:
            losses.add("odd", losses["main_ce"].value * next(count))  # as a clock would do it
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)
    observer = StopInTheSecondEpoch()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, epochs=3, observer=observer)
    assert any("does not give the same numbers twice" in note for note in observer.notes)


def test_not_a_number_equals_itself_in_a_state(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    nan = float("nan")
    monkeypatch.setattr(RLCD, "get_extra_state", lambda self: {"best": nan, "t": torch.tensor(nan)}, raising=False)
    monkeypatch.setattr(RLCD, "set_extra_state", lambda self, state: None, raising=False)
    assert start(tmp_path, epochs=1)[0].metrics


def test_settings_that_a_plugin_refuses(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    from gcdbench.errors import UsageError

    for error, kind, words in (
        (ValueError("alpha is odd"), UsageError, "refuses its settings: alpha is odd"),
        (KeyError("x"), PluginError, "failed in Config: KeyError"),
    ):

        def refuse(self, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(RLCD.Config, "__post_init__", refuse, raising=False)
            with pytest.raises(kind, match=words):
                start(tmp_path)


def test_seeds_with_stored_views_are_rehearsed_one_after_another(tmp_path):
    """They share a source, in which the first has put its store."""
    settings = {"store.train_views": 2}
    records = start(tmp_path, epochs=1, seeds=(0, 1), settings=settings, cache=tmp_path / "cache")
    assert [record.seed for record in records] == [0, 1]
