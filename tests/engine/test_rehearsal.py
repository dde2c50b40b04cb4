"""What would fail later fails before training, and leaves nothing but a log."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gcdbench.contracts import Prediction, Stage
from gcdbench.engine import disk
from gcdbench.engine.reporter import Reporter
from gcdbench.errors import GcdbenchError, PluginError, TrainingError
from tests.engine.lanes import alone, assert_equal_runs, together
from tests.engine.runs import start


class Count(Reporter):
    """Steps of real training."""

    def __init__(self):
        self.steps = 0

    def step(self, t, runners):
        self.steps += 1


def fails_before_training(tmp_path, kind, words, **more):
    count = Count()
    with pytest.raises(kind, match=words) as fault:
        start(tmp_path, reporter=count, **more)
    assert count.steps == 0
    files = [p for p in (tmp_path / "runs").rglob("*") if p.is_file()]
    assert {p.name for p in files} <= {"log.txt"}
    return fault.value


def oops(*_, **__):
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    "hook", ["stages", "optimizers", "on_epoch_start", "forward", "active", "on_step_end", "predict"]
)
def test_every_hook_is_tried(hook, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, hook, oops)
    fault = fails_before_training(tmp_path, PluginError, f"failed in {hook}: ZeroDivisionError: oops")
    assert fault.exit_code == 5


@pytest.mark.parametrize(
    ("hook", "value", "words"),
    [
        ("get_extra_state", lambda self: {"f": Path("x")}, "get_extra_state may hold tensors"),
        ("get_extra_state", lambda self: {"f": np.zeros(3)}, "get_extra_state may hold tensors"),
        ("get_extra_state", lambda self: {"f": lambda: 1}, "failed in state_dict"),
        ("get_extra_state", lambda self: torch.rand(1), "does not survive a checkpoint"),
        ("set_extra_state", oops, "failed in load_state_dict: ZeroDivisionError"),
    ],
)
def test_state_that_cannot_be_saved_or_read_is_noticed(hook, value, words, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "get_extra_state", lambda self: {"x": 1}, raising=False)
    monkeypatch.setattr(RLCD, "set_extra_state", lambda self, state: None, raising=False)
    monkeypatch.setattr(RLCD, hook, value, raising=False)
    fails_before_training(tmp_path, GcdbenchError, words)


def test_later_stages_are_tried_too(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        if t.stage == "second":
            raise KeyError("teacher")
        return original(self, batch, t)

    monkeypatch.setattr(RLCD, "stages", lambda self: (Stage("first", 1), Stage("second", 1)))
    monkeypatch.setattr(RLCD, "forward", forward)
    fails_before_training(tmp_path, PluginError, "failed in forward: KeyError: 'teacher'")
    monkeypatch.setattr(RLCD, "stages", lambda self: (Stage("one", 1), Stage("one", 1)))
    fails_before_training(tmp_path, PluginError, "two stages of the same name")


def test_a_wrong_answer_is_noticed(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    monkeypatch.setattr(RLCD, "predict", lambda self, pool: Prediction(np.zeros(len(pool), dtype=np.int64)))
    fails_before_training(tmp_path, PluginError, r"shape \(64,\) and type int64; 3\d whole numbers")


def test_a_loss_that_is_not_finite_from_the_start(tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        losses = original(self, batch, t)
        losses.add("odd", losses["main_ce"].value / 0)
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)
    fails_before_training(tmp_path, TrainingError, "'odd' of 'rlcd' is not finite at step 1")


def test_room_on_the_disk_is_asked_for(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=1_500_000))
    fault = fails_before_training(tmp_path, GcdbenchError, r"1 run would take 2\.\d+ MB for checkpoints and")
    assert "only 1.5 MB free" in str(fault)


def test_a_disk_that_cannot_be_written_is_noticed(tmp_path, monkeypatch):
    from gcdbench.engine import checkpoint

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system", "somewhere")

    monkeypatch.setattr(checkpoint, "write_atomically", refuse)
    fault = fails_before_training(tmp_path, GcdbenchError, "somewhere: Read-only file system")
    assert "choose another folder with --runs" in str(fault)


def test_a_rehearsal_that_fails_ends_its_own_lane_only(tmp_path, monkeypatch, small_projector):
    from gcdbench_rlcd import RLCD

    original = RLCD.on_epoch_start

    def fail(self, pool, t):
        if self.config.pseudo_base != "predicted":
            oops()
        return original(self, pool, t)

    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "on_epoch_start", fail)
        with pytest.raises(PluginError, match="1 of 2 runs failed"):
            together(tmp_path, "rlcd:released,rlcd")
    kept = alone(tmp_path, "rlcd", "lanes")
    assert_equal_runs(kept, alone(tmp_path, "rlcd"))


def test_a_run_that_goes_on_is_not_rehearsed(tmp_path, monkeypatch):
    from gcdbench.engine import rehearsal

    class Stop(Reporter):
        def step(self, t, runners):
            if t.step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, reporter=Stop())
    monkeypatch.setattr(rehearsal.Rehearsal, "of", oops)
    assert start(tmp_path)[0].metrics


# ------------------------------------------------------------------------------------------ state that gets lost


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


class StopInTheSecondEpoch(Reporter):
    def __init__(self):
        self.notes = []

    def warn(self, message):
        self.notes.append(message)

    def step(self, t, runners):
        if (t.epoch, t.step) == (1, 3):
            raise KeyboardInterrupt


@pytest.mark.parametrize(("keep", "within"), [("buffer", True), ("attribute", False), ("default", False)])
def test_what_is_set_for_an_epoch_survives_or_is_saved_at_its_end_only(keep, within, tmp_path, monkeypatch):
    """A plain attribute would be lost in the middle of an epoch: such a run is never continued there."""
    from gcdbench.engine import checkpoint
    from tests.engine.lanes import assert_resumed_equal

    with_margin(monkeypatch, keep)
    whole = start(tmp_path, where="whole", epochs=3)[0]
    for _ in range(1 if within else 2):  # the second process does not rehearse, and must know all the same
        reporter = StopInTheSecondEpoch()
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, epochs=3, reporter=reporter, checkpoint_every=0)
    saved = checkpoint.load(tmp_path / "runs/rlcd/digits" / whole.run_id)
    assert (saved["epoch"], saved["step"]) == ((1, 4) if within else (1, 0))
    assert_resumed_equal(whole, start(tmp_path, epochs=3)[0])


def test_such_a_run_is_told(tmp_path, monkeypatch):
    with_margin(monkeypatch, "attribute")
    reporter = StopInTheSecondEpoch()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, epochs=3, reporter=reporter)
    assert any("saved at the end of each epoch only" in note and "get_extra_state" in note for note in reporter.notes)


def test_a_buffer_that_a_new_process_would_not_have_is_refused(tmp_path, monkeypatch):
    with_margin(monkeypatch, "new buffer")
    fails_before_training(tmp_path, PluginError, "could not go on from its checkpoint")


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
            together(tmp_path, "rlcd:released,rlcd", epochs=1)
    assert "failed in state_dict: ZeroDivisionError: oops" in str(fault.value)
    assert_equal_runs(alone(tmp_path, "rlcd", "lanes", epochs=1), alone(tmp_path, "rlcd", epochs=1))


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
    from gcdbench.engine.few import FewRows
    from gcdbench.engine.request import RunRequest, plan
    from gcdbench.engine.run import Place, workspaces

    (space,) = workspaces(plan(RunRequest("rlcd", "digits")), Place(device="cpu"), Reporter())
    few = FewRows(space)
    pool, batch = few.pool(0), few.batch(0)
    assert len(batch.target) == space.config.train.batch_size
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
    reporter = StopInTheSecondEpoch()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, epochs=3, reporter=reporter)
    assert any("does not give the same numbers twice" in note for note in reporter.notes)


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
