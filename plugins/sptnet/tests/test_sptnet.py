from __future__ import annotations

import pytest
import torch
from gcdbench_simgcd import SimGCD
from gcdbench_sptnet import SPTNet, SPTNetConfig
from gcdbench_sptnet.method import trains_model

import gcdbench
from gcdbench.backbone.vit import SplitViT
from gcdbench.config.presets import read_preset
from gcdbench.config.sections import TrainConfig
from gcdbench.contracts import Batch, Progress, Stage, Task
from gcdbench.errors import UsageError
from gcdbench.system.device import Compute
from gcdbench.testing import run_checks
from gcdbench.training.method_trainer import MethodTrainer
from tests.support.tiny import VisionTransformer, tiny_task

SMALL = {"frame": 2, "alternate_every": 2, "projector_hidden": 16, "projector_out": 8, "prompt_warmup": 2}


def task() -> Task:
    torch.manual_seed(0)
    vit = VisionTransformer(img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    train = TrainConfig(epochs=3, batch_size=12)
    return Task(3, 5, SplitViT(vit, 0), train, 6, torch.Generator().manual_seed(1))


def pixels(rows: int = 12) -> Batch:
    images = torch.randn(2 * rows, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    known = torch.arange(rows) < 6
    return Batch(images, torch.where(known, torch.arange(rows) % 3, -1), known, torch.arange(rows))


def at(stage: str, step: int = 0, epoch: int = 0) -> Progress:
    return Progress(stage, epoch, 3, step, 6)


def test_the_first_stage_is_simgcd():
    own, simgcd = SPTNet(SPTNetConfig(**SMALL), task()), None
    simgcd = SimGCD(SPTNetConfig(**SMALL), task())
    simgcd.load_state_dict({n: v for n, v in own.state_dict().items() if not n.startswith("prompt")})
    batch = pixels()
    ours, theirs = own(batch, at("simgcd")), simgcd(batch, at("simgcd"))
    assert {n: term.value.item() for n, term in ours.items()} == {n: term.value.item() for n, term in theirs.items()}
    assert own.active(at("simgcd", 5)) == ("model",)
    assert torch.equal(own.logits(batch.tokens)["main"], simgcd.logits(batch.tokens)["main"])  # no prompts yet
    trained = {n for n, p in own.named_parameters() if p.requires_grad and n.startswith("tail.")}
    assert trained
    assert all(n.startswith("tail.blocks.1.") for n in trained)


def test_prompts_and_network_are_trained_in_turns():
    method = SPTNet(SPTNetConfig(**SMALL), task())
    trainer = MethodTrainer("sptnet", method, Compute(torch.device("cpu"), "fp32"))
    trainer.start_stage(Stage("prompts", 3))
    method.on_epoch_start(None, at("prompts"))
    seen = []
    for step in range(6):
        before = {n: v.clone() for n, v in method.state_dict().items()}
        t = at("prompts", step)
        if step == 0:
            trainer.start_epoch(t)
        trainer.step(pixels(), t)
        moved = {n for n, v in method.state_dict().items() if not torch.equal(v, before[n])}
        prompts = {n for n in moved if n.startswith("prompts.")}
        assert moved == (prompts if prompts else moved - prompts)
        assert bool(prompts) != trains_model(step, 2)
        seen.append(trainer.learning_rates()["prompt"])
    assert seen[0] == pytest.approx(12.5)  # the first of two steps of warm-up
    assert seen[3] < 25.0


def test_a_step_of_the_network_sees_the_first_view_without_and_with_prompts():
    method, batch = SPTNet(SPTNetConfig(**SMALL), task()), pixels()
    t = at("prompts", 1)  # the second step trains the network
    assert method.active(t) == ("model",)
    changed = Batch(batch.tokens.clone(), batch.target, batch.labelled, batch.index)
    changed.tokens[12:] = 0
    first, second = method(batch, t), method(changed, t)
    assert first.total().item() == second.total().item()  # second views are not looked at
    first.total().backward()
    assert all(p.grad is None for p in method.prompts.parameters())
    assert method(batch, at("prompts", 0)).total().item() != method(changed, at("prompts", 0)).total().item()


def test_answers_have_prompts_from_the_second_stage_on():
    method, batch = SPTNet(SPTNetConfig(**SMALL), task()), pixels()
    plain = method.features(batch.tokens)
    method.on_epoch_start(None, at("prompts"))
    prompted = method.features(batch.tokens)
    assert not torch.allclose(plain, prompted)
    torch.testing.assert_close(prompted, method.tail(method.prompts(batch.tokens))[:, 0])


def test_the_second_stage_has_settings_of_its_own():
    config = SPTNetConfig(**SMALL, entropy_weight=4.0, prompt_entropy_weight=1.0)
    method = SPTNet(config, task())
    assert method.config_at(at("simgcd")).entropy_weight == 4.0
    assert method.config_at(at("prompts")).entropy_weight == 1.0
    assert method.config_at(at("prompts")).teacher_temp_epochs == 10
    presets = read_preset(SPTNet, "released")["dataset"]
    assert presets["cifar100"]["method"]["frame"] == 0
    assert "frame" not in presets["cub"]["method"]
    assert read_preset(SPTNet, "spatial")["default"]["method"]["frame"] == 0


def test_what_cannot_be_meant_is_refused():
    for wrong in ({"alternate_every": 0}, {"frame": 0, "border": 0}, {"model_floor": 2.0}):
        with pytest.raises(UsageError, match="method"):
            SPTNetConfig(**wrong)
    with pytest.raises(UsageError, match="less than half"):
        SPTNet(SPTNetConfig(**{**SMALL, "frame": 4}), task())
    with pytest.raises(UsageError, match="train_from=0"):
        SPTNet(SPTNetConfig(**SMALL), tiny_task())


def test_networks_with_a_feature_map_are_refused(cli):
    network = ("--backbone", "resnet18", "--set", "backbone.weights=random")
    said = cli("run", "--method", "sptnet", "--dataset", "digits", *network, "--dry-run")
    assert said.code == 2, said.stderr
    assert "train_from is 0" in said.stderr


def test_the_cost_of_both_stages_is_shown(cli):
    found = cli("run", "--method", "sptnet", "--dataset", "digits", "--dry-run", "--json").json()["plan"][0]
    assert found["epochs"] == 30
    assert 0 < found["estimated_training_seconds"] < found["seconds_per_step"] * found["steps_per_epoch"] * 30 * 1.01


def test_operations_are_counted_without_data(tmp_path):
    """Both kinds of steps: those of the prompts go back through all blocks, those of the network through the last."""
    from gcdbench.experiments.operation_counts import count_run
    from gcdbench.prepare.request import RunRequest

    ours, simgcd = (count_run(RunRequest(name, "cub"), tmp_path) for name in ("sptnet", "simgcd"))
    first, second = ours.stages
    views = simgcd.config.train.batch_size * simgcd.config.views.count
    assert first.step == pytest.approx(simgcd.stages[0].step + views * simgcd.trunk, rel=0.01)
    assert 1.4 < second.step / first.step < 1.8  # 26 steps of 46 train prompts, at about twice the cost
    assert ours.trunk == 0


@pytest.mark.parametrize("option", [("--train-views", 4), ("--store-tokens", "bf16")])
def test_pixels_are_no_tokens_that_could_be_stored(option, cli):
    said = cli("run", "--method", "sptnet", "--dataset", "digits", *option, "--dry-run")
    assert said.code == 2, said.stderr
    assert "from the pixels on" in said.stderr


def test_epochs_too_short_to_train_the_network_are_refused(cli):
    said = cli("run", "--method", "sptnet", "--dataset", "digits", "--set", "method.alternate_every=500", "--dry-run")
    assert said.code == 2, said.stderr
    assert "would never be trained" in said.stderr


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "spatial"])
def test_conformance(recipe):
    report = run_checks("sptnet", recipe=recipe)
    assert report.ok, report.summary()
    assert not report.of("failed as expected")


@pytest.mark.kit
@pytest.mark.parametrize("recipe", ["released", "spatial"])
def test_a_run_on_digits_is_better_than_chance(recipe, tmp_path):
    settings = {"method.simgcd_epochs": 3}
    (record,) = gcdbench.run("sptnet", "digits", recipe=recipe, runs=tmp_path / "runs", epochs=2, settings=settings)
    assert record.metrics["all"] > 40
    assert record.selected["stage"] == "prompts"
