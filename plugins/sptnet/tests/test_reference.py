"""Against numbers recorded from the authors' code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gcdbench_sptnet import SPTNet, SPTNetConfig
from gcdbench_sptnet.method import WarmupCosinePerStep, trains_model
from gcdbench_sptnet.prompts import PatchBorders, Prompts, border_pixels

from gcdbench.contracts import Progress, Stage
from gcdbench.testing.recording import Recording
from gcdbench.testing.trajectory import build, replay
from gcdbench.toolbox.optim import CosinePerEpoch
from tests.support.recorded import close, recorded, tensor

SIDES = ("up", "down", "left", "right")


def trajectory() -> Path:
    folder = os.environ.get("GCDBENCH_GOLDEN") or Path(__file__).parent / "golden"
    return Path(folder) / "sptnet_trajectory.npz"


@pytest.fixture
def prompts():
    """Prompts with the recorded numbers, and the recording."""
    g = recorded(__file__, "sptnet_prompts")
    s = json.loads(str(g["config"]))
    found = Prompts(s["image"], s["patch"], s["frame"], s["patch_prompt"])
    with torch.no_grad():
        found.patches.values.copy_(tensor(g["param.patch"])[0].flatten(1)[:, found.patches.where])
        for side in SIDES:
            getattr(found.frame, side).copy_(tensor(g[f"param.pad_{side}"])[0])
    return found, g, s


def test_prompts_and_their_gradients(prompts):
    found, g, _ = prompts
    x, w = tensor(g["x"]), tensor(g["w"])
    close(x + found.patches(), g["out.patch"])
    close(x + found.frame(), g["out.pad"])
    close(found(x), g["out.all"])
    (w * found(x)).sum().backward()
    expected = g["grad.patch"][0].reshape(3, -1)
    where = found.patches.where.numpy()
    close(found.patches.values.grad, expected[:, where], atol=1e-6)
    inner = np.setdiff1d(np.arange(expected.shape[1]), where)
    assert len(inner)
    assert not expected[:, inner].any()
    for side in SIDES:
        close(getattr(found.frame, side).grad, g[f"grad.pad_{side}"][0], atol=1e-6)


def test_one_border_for_all_patches(prompts):
    """The third kind of the authors' file, which cannot be chosen there: ours with the same numbers in every patch."""
    found, g, s = prompts
    side, patch = s["image"], s["patch"]
    tiled = tensor(g["param.shared"])[0].repeat(1, side // patch, side // patch)
    with torch.no_grad():
        found.patches.values.copy_(tiled.flatten(1)[:, found.patches.where])
    x, w = tensor(g["x"]), tensor(g["w"])
    close(x + found.patches(), g["out.shared"])
    (w * (x + found.patches())).sum().backward()
    whole = torch.zeros(3, side * side)
    whole[:, found.patches.where] = found.patches.values.grad
    summed = whole.view(3, side // patch, patch, side // patch, patch).sum((1, 3))
    close(summed, g["grad.shared"][0], atol=1e-6)


def test_published_masks_and_counts():
    g = recorded(__file__, "sptnet_prompts")
    counts = json.loads(str(g["config"]))["published"]
    config = SPTNetConfig()
    mask = np.unpackbits(g["published.patch_mask"]).astype(bool)
    np.testing.assert_array_equal(np.flatnonzero(mask), border_pixels(224, 16, config.border))
    prompts = Prompts(224, 16, config.frame, config.border)
    assert prompts.patches.values.numel() == counts["patch_effective"]
    assert sum(p.numel() for p in prompts.frame.parameters()) == counts["frame"]
    assert sum(p.numel() for p in prompts.parameters()) == counts["counted_by_tables"]
    with torch.no_grad():
        for p in prompts.frame.parameters():
            p.fill_(1.0)
    frame = np.unpackbits(g["published.frame_mask"]).astype(bool)
    np.testing.assert_array_equal(prompts.frame()[0].flatten().bool().detach().numpy(), frame)


def test_schedules():
    g = recorded(__file__, "sptnet_prompts")
    for base, warmup, steps, step, rate in g["schedule.prompt"]:
        t = Progress("prompts", 0, 1, int(step), int(steps))
        close(WarmupCosinePerStep(int(warmup))(base, t), rate, rtol=1e-9, atol=1e-9)
        if steps % 2 == 0:  # steps count across epochs
            half = int(steps) // 2
            t = Progress("prompts", int(step) // half, 2, int(step) % half, half)
            close(WarmupCosinePerStep(int(warmup))(base, t), rate, rtol=1e-9, atol=1e-9)
    for base, epochs, epoch, rate in g["schedule.model"]:
        floor = base * SPTNetConfig().model_floor
        close(
            CosinePerEpoch(floor)(base, Progress("prompts", int(epoch), int(epochs), 0, 1)), rate, rtol=1e-9, atol=1e-9
        )
    modes = [name for name in g if name.startswith("mode.")]
    assert modes
    for name in modes:
        every = int(name.split("freq")[1].split(".")[0])
        np.testing.assert_array_equal([trains_model(step, every) for step in range(len(g[name]))], g[name])


@pytest.mark.parametrize("variant", ["all", "patch"])
def test_a_trajectory(variant):
    found = replay(SPTNet, trajectory(), "released", variant)
    names = {d.name for d in found}
    assert {"total", "self", "neg_entropy", "final prompt.patch", "final head.last_layer.weight_v"} <= names
    assert ("final prompt.pad_up" in names) == (variant == "all")
    for deviation in found:
        assert deviation.largest <= 1e-4, deviation


@pytest.mark.parametrize("variant", ["all", "patch"])
def test_answers_and_rates_of_the_trajectory(variant):
    recording = Recording(trajectory())
    start = build(SPTNet, recording, "released", variant)
    method, g = start.method, recording.arrays
    images = recording.batches()[0]["images"]
    method.eval()
    with torch.no_grad():
        close(method.features(images), g["step0.raw_feature"], atol=1e-4)
        method.on_epoch_start(None, Progress("prompts", 0, 3, 0, 8))
        close(method.features(images), g[f"{variant}.step0.prompted_feature"], atol=1e-4)
        close(method.logits(images)["main"], g[f"{variant}.step0.prompted_logits"], atol=1e-4)
    optims = method.optimizers(Stage("prompts", start.settings["epochs"]))
    steps = start.settings["steps_per_epoch"]
    columns = [str(name) for name in g["lr_names"]]
    for number, row in enumerate(g[f"{variant}.lr"]):
        t = Progress("prompts", number // steps, start.settings["epochs"], number % steps, steps)
        assert method.active(t) == (("model",) if g[f"{variant}.model_step"][number] else ("prompt",))
        rates = {name: o.schedule(o.optimizer.param_groups[0]["lr"], t) for name, o in optims.items()}
        for column, name in enumerate(columns):
            close(rates[name], row[column], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("variant", ["all", "patch"])
def test_the_trained_network_answers_as_recorded(variant):
    """After the replay: logits of the first batch with the prompts."""
    from gcdbench.testing import trajectory as replaying

    recording = Recording(trajectory())
    start = build(SPTNet, recording, "released", variant)
    for _ in replaying._steps(start, recording, len(recording.losses(variant))):
        pass
    start.method.eval()
    with torch.no_grad():
        found = start.method.logits(recording.batches()[0]["images"])["main"]
    close(found[: len(found) // 2], recording.arrays[f"{variant}.final.logits"], rtol=1e-4, atol=1e-4)


def test_the_same_border_pixels_whatever_they_hold():
    borders = PatchBorders(8, 4, 1, None)
    assert len(borders.where) == 4 * 12
