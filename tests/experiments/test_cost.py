"""What a sweep costs: the counted operations are those of real runs, and every saving is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcdbench.analysis.experiment_file import load_experiment, parse_experiment
from gcdbench.experiments.cost import Assumptions, cost_of
from gcdbench.experiments.cost_table import cost_sheets
from gcdbench.experiments.operation_counts import count_run
from gcdbench.experiments.study_runs import Asked
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest
from tests.support.runs import settings_of, start
from tests.support.sweeps import write_sweep

HERE = Path(".")


@pytest.mark.parametrize("method", ["rlcd", "simgcd", "orca"])
def test_counted_operations_are_those_in_the_record_of_a_run(method, tmp_path):
    (record,) = start(tmp_path, method, epochs=1)
    request = RunRequest(method, "digits", seeds=(0,), settings=settings_of(method))
    found = count_run(request, HERE)
    batch, views = found.config.train.batch_size, found.config.views.count
    assert found.trunk * batch * views == record.flops_per_step["trunk"]
    assert found.stages[-1].step == record.flops_per_step["method"]
    assert found.steps == 1797 // batch


def test_the_published_geometry_is_counted_without_data_or_weights():
    """ViT-B/16, one image: the step of two views that `python -m benchmarks` measures on random weights."""
    found = count_run(RunRequest("rlcd", "cub", seeds=(0,)), HERE)
    per_image = (2 * found.trunk + found.stages[0].step / 128) / 1e9
    assert per_image == pytest.approx(67.4, abs=0.05)
    assert (found.rows, found.steps, found.epochs, found.tokens) == (5994, 46, 200, (197, 768))


def test_pools_that_methods_go_through_are_counted():
    cms = count_run(RunRequest("cms", "cub", seeds=(0,)), HERE)
    assert [(p.views, p.rows) for p in cms.stages[0].pools] == [("train", 5994)] * 2
    assert len(cms.passes("train")) == 2 * cms.epochs
    orca = count_run(RunRequest("orca", "cub", seeds=(0,)), HERE)
    assert [p.views for p in orca.stages[0].pools] == ["test"]
    uno = count_run(RunRequest("uno", "cub", seeds=(0,)), HERE)
    assert [stage.name for stage in uno.stages] == ["pretrain", "discover"]
    assert len(uno.final) == 1
    assert uno.final[0].embed > 0


def cost(tmp_path, more="", lanes=32, **assumed):
    experiment = parse_experiment(write_sweep(tmp_path, epochs=10, more=more))
    return cost_of(experiment, Asked(), RunEnvironment(tmp_path / "runs", lanes=lanes), Assumptions(**assumed))


def test_lanes_and_stores_save_what_they_share(tmp_path):
    found = cost(tmp_path)
    (environment,) = found.places
    ways = environment.operations
    assert environment.runs == 6
    trunk = count_run(RunRequest("rlcd", "digits", seeds=(0,)), HERE).trunk
    epoch = 28 * 64 * 2 * trunk
    assert environment.images == 6 * 10 * 28 * 64
    # Six runs alone make six times the trunk passes of an epoch, two jobs make two.
    assert ways["alone"] - ways["lanes"] == pytest.approx(4 * 10 * epoch)
    assert ways["lanes"] > ways["eval_store"]
    assert ways["eval_store"] - ways["train_views"] == pytest.approx(2 * 10 * epoch - 4 * 1797 * trunk)
    assert cost(tmp_path, lanes=1).total("lanes") == pytest.approx(ways["alone"])
    assert found.hours(found.assumed.tflops * 1e12 * 3600) == 1
    assert cost(tmp_path, tflops=120.0).hours(1e18) == pytest.approx(found.hours(1e18) / 2)


def test_rows_that_mean_the_same_run_count_once_and_evaluation_counts(tmp_path):
    twice = cost(tmp_path, more='[[row]]\nkey = "same"\nlabel = "Same"\nmethod = "rlcd"\nrecipe = "released"\n')
    assert twice.places[0].runs == 6
    often = RunRequest("rlcd", "digits", seeds=(0,), epochs=5, settings={"eval.every": 2})
    assert [len(count_run(r, HERE).passes("test")) for r in (often, RunRequest("rlcd", "digits", seeds=(0,)))] == [4, 1]
    selected = RunRequest("rlcd", "digits", seeds=(0,), epochs=5, settings={"eval.selection": "best-base-test"})
    assert count_run(selected, HERE).predictions == 10


def test_stages_of_other_names_share_nothing(tmp_path):
    alone = cost(tmp_path).total("lanes")
    more = '[[row]]\nkey = "uno"\nlabel = "UNO"\nmethod = "uno"\n'
    both = cost(tmp_path, more)
    uno = count_run(RunRequest("uno", "digits", seeds=(0,), epochs=10), HERE)
    own = uno.own + uno.epochs * uno.views_per_epoch * uno.trunk + sum(p.rows * uno.trunk for p in uno.passes("test"))
    assert both.total("lanes") - alone == pytest.approx(2 * own)


def test_the_sheets_show_every_place_and_a_total(tmp_path):
    found = cost(tmp_path, more='[[row]]\nkey = "x"\nlabel = "Not there"\nmethod = "nowhere"\n')
    assert found.not_installed == ("Not there",)
    hours, disk, steps = cost_sheets(found)
    assert [row[0].text for row in hours.rows] == ["digits", "all"]
    assert "Not there" in " ".join(hours.caption)
    assert len(disk.rows) == 2
    assert len(steps.rows) == 2
    plain = found.as_dict()
    assert plain["total"]["runs"] == 6
    assert plain["total"]["gpu_hours"]["alone"] > 0


@pytest.mark.parametrize("name", ["paper", "paper-fine-grained"])
def test_the_whole_paper_is_written_down(name):
    experiment = load_experiment(name)
    assert experiment.backbones == ("dino", "dinov2")
    assert len(experiment.seeds) == 5
    from gcdbench import registry

    assert {row.method for row in experiment.rows} == {p.name for p in registry.plugins("method")}
