"""Faults in the middle of training: told with what is needed to understand them, and nothing good is overwritten."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest
import torch

import gcdbench
from gcdbench.contracts import Dataset
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.splits import row_order
from gcdbench.errors import DataError, GcdbenchError, PluginError, TrainingError
from gcdbench.system.observer import Observer
from gcdbench.training import checkpoint
from tests.support.lanes import assert_resumed_equal
from tests.support.runs import start
from tests.support.trees import write_image

pytestmark = pytest.mark.usefixtures("few_digits")

CPU = torch.device("cpu")


def only_run(tmp_path):
    (folder,) = (p for p in (tmp_path / "runs/rlcd/digits").iterdir() if p.is_dir())
    return folder


def at_step(monkeypatch, epoch, step, action):
    """Let something happen to the losses of one real step (not of the rehearsal, which has epoch 0, steps 0 and 1)."""
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        losses = original(self, batch, t)
        if (t.epoch, t.step) == (epoch, step):
            action(self, batch, losses)
        return losses

    monkeypatch.setattr(RLCD, "forward", forward)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_kept_of_a_loss_that_is_not_finite(value, tmp_path, monkeypatch):
    seen = []

    def odd(self, batch, losses):
        seen.extend(batch.index.tolist())  # the method's numbers of the rows
        losses.add("odd", losses["main_ce"].value * value)

    whole = start(tmp_path, where="whole")[0]
    with monkeypatch.context() as patch:
        at_step(patch, 1, 3, odd)
        with pytest.raises(TrainingError, match="'odd' of 'rlcd' is not finite at step 4 .*not-finite.json"):
            start(tmp_path)
    folder = only_run(tmp_path)
    kept = json.loads((folder / "not-finite.json").read_text())
    assert (kept["term"], kept["stage"], kept["epoch"], kept["step"]) == ("odd", "main", 2, 4)
    rows = row_order(Digits(Path(".")).index("train"))[seen].tolist()
    assert kept["rows"] == rows
    assert kept["items"][0] == f"digits:{rows[0]}"
    assert kept["sums"]["odd"] in ("nan", "inf")
    saved = checkpoint.load(folder)
    assert (saved["epoch"], saved["step"]) == (1, 0)
    assert_resumed_equal(whole, start(tmp_path)[0])


def test_weights_that_are_not_finite_never_reach_a_checkpoint(tmp_path, monkeypatch):
    """The loss of the last step is fine, but its gradient is not: nothing but the weights can tell."""

    def odd(self, batch, losses):
        zero = (self.aux_token * 0).sum()
        losses.add("root", torch.sqrt(zero))  # 0, with an infinite derivative

    whole = start(tmp_path, where="whole")[0]
    with monkeypatch.context() as patch:
        at_step(patch, 0, 5, odd)
        with pytest.raises(TrainingError, match="The weight '.*' of 'rlcd' is not finite at step 6"):
            start(tmp_path)
    folder = only_run(tmp_path)
    assert checkpoint.load(folder) is None
    assert json.loads((folder / "not-finite.json").read_text())["step"] == 6
    assert_resumed_equal(whole, start(tmp_path)[0])


def test_real_memory_runs_out_on_the_cpu(tmp_path, monkeypatch):
    whole = start(tmp_path, where="whole")[0]
    with monkeypatch.context() as patch:
        at_step(patch, 0, 4, lambda *_: torch.empty(1 << 60, dtype=torch.uint8))
        with pytest.raises(TrainingError, match=r"Out of memory in forward of 'rlcd'\. Lower train\.batch_size"):
            start(tmp_path)
    assert_resumed_equal(whole, start(tmp_path)[0])


def test_memory_that_runs_out_in_the_trunk_of_a_cpu_halves_the_pass(tmp_path, monkeypatch):
    from gcdbench.backbone.vit import Trunk

    whole = start(tmp_path, where="whole")[0]
    original, sizes = Trunk.raw, []

    def raw(self, images):
        if len(images) > 32:
            torch.empty(1 << 60, dtype=torch.uint8)
        sizes.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Trunk, "raw", raw)
    halved = start(tmp_path)[0]
    assert max(sizes) == 32
    assert halved.metrics == whole.metrics


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("MPS backend out of memory")])
def test_memory_that_runs_out_elsewhere_is_told_with_what_to_lower(error, tmp_path, monkeypatch):
    from gcdbench.runs import finish

    def fail(*_):
        raise error

    monkeypatch.setattr(finish, "make_record", fail)
    with pytest.raises(TrainingError, match="Out of memory in the run of 'rlcd'. Lower"):
        start(tmp_path)


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "The disk is full"), (errno.EROFS, "read-only")])
def test_a_disk_that_fails_in_the_middle_leaves_the_earlier_state(code, words, tmp_path, monkeypatch):
    whole = start(tmp_path, where="whole", epochs=3)[0]
    calls, original = [], os.fsync

    def fsync(handle):
        calls.append(1)
        if checkpoint_there():
            raise OSError(code, os.strerror(code))
        return original(handle)

    def checkpoint_there():
        return len(list((tmp_path / "runs").rglob("previous.pt"))) > 0

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(GcdbenchError, match=words) as fault:
            start(tmp_path, epochs=3)
    assert "what was saved before is intact" in str(fault.value)
    folder = only_run(tmp_path)
    assert checkpoint.load(folder)["epoch"] == 2
    assert not list(folder.rglob("*.tmp"))
    assert_resumed_equal(whole, start(tmp_path, epochs=3)[0])


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    whole = start(tmp_path, where="whole")[0]
    now = [2e9]

    def jumping():
        now[0] = 4e9 - now[0] * 0.9
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    record = start(tmp_path)[0]
    assert_resumed_equal(whole, record)
    assert all(seconds >= 0 for seconds in record.timings.values())
    assert record.timings["train"] < 600


# ---------------------------------------------------------------------------------------------- data that changes


def photos(folder):
    for name, count in (("cat", 12), ("dog", 12), ("unlabelled", 12)):
        for i in range(count):
            write_image(folder / name / f"{i}.png")
    return folder


def sort_photos(tmp_path, **more):
    values = {"views.resize": 18, "views.crop": 16, "train.batch_size": 12, **more.pop("settings", {})}
    place = {"data_root": tmp_path / "photos", "runs": tmp_path / "runs", "cache": tmp_path / "cache"}
    place["runs"] = more.pop("runs", place["runs"])
    return gcdbench.run("rlcd", "folder", backbone="digits-vit", k=3, epochs=3, settings=values, **place, **more)[0]


class Do(Observer):
    """Do something after the first epoch."""

    def __init__(self, action):
        self.action = action

    def epoch(self, t):
        if t.epoch == 0:
            self.action()


def test_images_that_change_under_a_run_stop_it(tmp_path):
    photos(tmp_path / "photos")
    path = tmp_path / "photos/cat/3.png"
    before, facts = path.read_bytes(), path.stat()
    with pytest.raises(DataError, match=r"The image files of Image folder \(train\) have changed since this run began"):
        sort_photos(tmp_path, observer=Do(lambda: path.write_bytes(before + b"more")))
    assert not list((tmp_path / "runs").rglob("record.json"))
    path.write_bytes(before)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    record = sort_photos(tmp_path)
    assert record.warnings == []


def test_images_that_change_between_two_parts_of_a_run_stop_it(tmp_path, monkeypatch):
    """Another picture of another size under the same name is another data set, even if its edges look the same."""
    from gcdbench.data.datasets.folder import ImageFolder

    photos(tmp_path / "photos")
    monkeypatch.setattr(ImageFolder, "content_hash", lambda self, part: "")  # as for the published data sets

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sort_photos(tmp_path, observer=Do(interrupt))
    path = tmp_path / "photos/cat/3.png"
    before = path.read_bytes()
    path.write_bytes(before + b"more")
    with pytest.raises(DataError, match="have changed since this run began"):
        sort_photos(tmp_path)
    path.write_bytes(before)  # the same file, copied back at another time
    record = sort_photos(tmp_path)
    assert [note for note in record.warnings if "other times than when this run began" in note]


def test_files_of_another_time_only_are_noted(tmp_path):
    photos(tmp_path / "photos")
    path = tmp_path / "photos/cat/3.png"
    record = sort_photos(tmp_path, observer=Do(lambda: os.utime(path, (0, 0))))
    assert [note for note in record.warnings if "but the same sizes" in note]


def test_nothing_learnt_from_changed_images_is_kept(tmp_path, monkeypatch):
    """Images are read whenever they are needed, one is another picture for a while: its traces must not be saved."""
    from gcdbench.data import images

    photos(tmp_path / "photos")
    monkeypatch.setattr(images, "KEEP_BYTES", 0)
    whole = sort_photos(tmp_path, image_store=False, runs=tmp_path / "whole")

    def change():
        for other in (tmp_path / "photos/cat").iterdir():
            write_image(other, (30, 30))

    kept = {p: (p.read_bytes(), p.stat()) for p in (tmp_path / "photos/cat").iterdir()}
    with pytest.raises(DataError, match="have changed since this run began"):
        sort_photos(tmp_path, image_store=False, observer=Do(change), checkpoint_every=0)
    for other, (content, times) in kept.items():
        other.write_bytes(content)
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert_resumed_equal(whole, sort_photos(tmp_path, image_store=False))


def test_files_that_change_while_they_are_packed_leave_no_store(tmp_path, monkeypatch):
    from gcdbench.data import images

    photos(tmp_path / "photos")
    monkeypatch.setattr(images, "KEEP_BYTES", 0)

    class Change(Observer):
        def working(self, name, done, total):
            if name.startswith("packing") and done == 5:
                write_image(tmp_path / "new.png", (40, 40))
                (tmp_path / "new.png").replace(tmp_path / "photos/unlabelled/9.png")  # readers see one or the other

    with pytest.raises(DataError, match="have changed while they were packed"):
        sort_photos(tmp_path, observer=Change())
    assert not list((tmp_path / "cache").glob("images/*/store.json"))
    assert sort_photos(tmp_path).metrics


def test_an_image_that_vanishes_is_named_and_the_last_step_is_kept(tmp_path, monkeypatch):
    from gcdbench.data import images

    photos(tmp_path / "photos")
    whole = sort_photos(tmp_path)
    content = {p: p.read_bytes() for p in (tmp_path / "photos/unlabelled").iterdir()}
    times = {p: p.stat() for p in content}
    monkeypatch.setattr(images, "KEEP_BYTES", 0)  # read from the files whenever they are needed
    with pytest.raises(DataError, match=r"unlabelled/\d+\.png does not exist"):
        sort_photos(tmp_path, force=True, image_store=False, observer=Do(lambda: [path.unlink() for path in content]))
    for path, held in content.items():
        path.write_bytes(held)
        os.utime(path, ns=(times[path].st_atime_ns, times[path].st_mtime_ns))
    assert sort_photos(tmp_path, image_store=False).metrics == whole.metrics


# -------------------------------------------------------------------------------------------- faults of datasets


HOOKS = ("__init__", "index", "class_split", "content_hash", "files_hash", "labelled_rows", "remarks")


@pytest.mark.parametrize("hook", HOOKS)
def test_faults_of_a_dataset_are_told_as_such(hook, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Digits, hook, fail)
    with pytest.raises(PluginError, match=f"The dataset 'digits' failed in {hook}: ZeroDivisionError: oops"):
        start(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_an_image_hook_that_fails_names_the_dataset(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Digits, "image", fail)
    with pytest.raises(PluginError, match="The dataset 'digits' failed in image: ZeroDivisionError: oops"):
        start(tmp_path)


def test_images_of_another_mode_are_the_datasets_fault(tmp_path, monkeypatch):
    original = Digits.image
    monkeypatch.setattr(Digits, "image", lambda *a: original(*a).convert("L"))
    with pytest.raises(PluginError, match="'digits' gives digits:.* as a L image; RGB is needed"):
        start(tmp_path)


def test_every_function_of_a_dataset_is_covered():
    """A new one must be guarded too."""
    own = {name for name, value in vars(Dataset).items() if callable(value) and not name.startswith("__")}
    assert own | {"__init__"} == {*HOOKS, "image"}


def test_evidence_names_files(tmp_path, monkeypatch):
    photos(tmp_path / "photos")
    at_step(monkeypatch, 2, 1, lambda self, batch, losses: losses.add("odd", losses["main_ce"].value / 0))
    with pytest.raises(TrainingError, match="not-finite.json"):
        sort_photos(tmp_path)
    (file,) = (tmp_path / "runs").rglob("not-finite.json")
    assert all((tmp_path / "photos" / item).is_file() for item in json.loads(file.read_text())["items"])
    assert Path(file).parent.name != "folder"
