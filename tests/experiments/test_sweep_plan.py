"""From experiments to jobs: what is packed together, what is left out, what is tried again."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gcdbench.analysis.experiment_file import parse_experiment
from gcdbench.config.resolve import Layer
from gcdbench.errors import GcdbenchError, UsageError
from gcdbench.experiments.job_file import JobEnvironment, JobFile
from gcdbench.experiments.job_worker import work
from gcdbench.experiments.study_runs import Asked
from gcdbench.experiments.sweep_plan import plan_sweep
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.request import RunRequest
from gcdbench.system.observer import Observer
from gcdbench.system.parallel.communicator import ALONE
from tests.support.sweeps import write_sweep

pytestmark = pytest.mark.usefixtures("few_digits")


def planned(tmp_path, retry_failed=False, lanes=32, **more):
    environment = RunEnvironment(
        tmp_path / "runs", device="cpu", store_options=StoreOptions(tmp_path / "cache"), lanes=lanes
    )
    experiment = parse_experiment(write_sweep(tmp_path, **more))
    return plan_sweep(experiment, Asked(), environment, Observer(), retry_failed)


def test_runs_with_the_same_batches_are_one_job(tmp_path):
    plan = planned(tmp_path)
    assert [(len(job.runs), {run.seed for run in job.runs}) for job in plan.jobs] == [(3, {0}), (3, {1})]
    names = [job.name for job in plan.jobs]
    assert [name[:-7] for name in names] == ["001-digits-digits-vit-seed0", "002-digits-digits-vit-seed1"]
    assert [job.name for job in planned(tmp_path).jobs] == names
    assert planned(tmp_path, epochs=2).jobs[0].name != names[0]  # whose file may still be wanted
    assert {run.status for run in plan.runs} == {"new"}
    assert {run.epochs for run in plan.runs} == {1}
    assert len(planned(tmp_path, lanes=2).jobs) == 4
    assert len(planned(tmp_path, lanes=1).jobs) == 6


def test_other_batches_are_another_job(tmp_path):
    more = '[[override]]\nkey = "b"\nlabel = "small"\nsettings = { "train.batch_size" = 32 }\n'
    plan = planned(tmp_path, more=more)
    assert sorted(len(job.runs) for job in plan.jobs) == [3, 3, 3, 3]
    assert len({run.run_id for run in plan.runs}) == 12


def test_what_is_finished_is_left_out_and_what_failed_waits_to_be_asked_for(tmp_path):
    first = planned(tmp_path)
    done, failed, begun = first.jobs[0].runs
    for run in (done, failed, begun):
        run.folder.open()
    (done.folder.path / "record.json").write_text("{}")
    failed.folder.write_failure("The disk is made of cheese.")
    (begun.folder.path / "checkpoint").mkdir()
    (begun.folder.path / "checkpoint" / "last.pt").write_text("")
    plan = planned(tmp_path)
    assert [plan.count(state) for state in ("finished", "failed", "unfinished", "new")] == [1, 1, 1, 3]
    assert sorted(len(job.runs) for job in plan.jobs) == [1, 3]
    again = planned(tmp_path, retry_failed=True)
    assert sorted(len(job.runs) for job in again.jobs) == [2, 3]
    assert next(run for run in again.runs if run.status == "failed").folder.failure == "The disk is made of cheese."


def test_runs_that_someone_works_on_are_left_to_him(tmp_path):
    run = planned(tmp_path).jobs[0].runs[0]
    with run.folder.lock(lambda who: None):
        plan = planned(tmp_path)
        assert plan.count("busy") == 1
        assert sum(len(job.runs) for job in plan.jobs) == 5
        assert f"process {os.getpid()}" in run.folder.worker
    assert run.folder.worker is None
    assert planned(tmp_path).count("new") == 6


def test_a_run_that_has_failed_is_not_tried_again_because_its_job_is(tmp_path):
    """Nor one that is another run on this machine."""
    plan = planned(tmp_path)
    job, failed = plan.jobs[0], plan.jobs[0].runs[1]
    ids = [run.run_id for run in job.runs]
    environment = JobEnvironment(str(tmp_path / "runs"), "data", str(tmp_path / "cache"), "cpu")
    path = tmp_path / "job.json"
    JobFile(environment, tuple(run.request for run in job.runs), (*ids[:2], "other")).write(path)
    failed.folder.open()
    failed.folder.write_failure("It rains.")
    with pytest.raises(GcdbenchError, match="It rains|not other"):
        work(JobFile.read(path), path, ALONE, Observer())
    assert [run.folder.finished for run in job.runs] == [True, False, False]
    assert failed.folder.failure == "It rains."


def test_rows_that_cannot_run_do_not_keep_others_from_running(tmp_path):
    more = '[[row]]\nkey = "odd"\nlabel = "Odd"\nmethod = "rlcd"\nsettings = { "data.k" = 3 }\n'
    plan = planned(tmp_path, more=more)
    assert len(plan.runs) == 6
    ((what, why),) = plan.cannot.items()
    assert what == "Odd on digits, digits-vit"
    assert "5 base classes already" in str(why)


def test_a_job_file_makes_the_same_runs(tmp_path):
    plan = planned(tmp_path, more='[[override]]\nkey = "k"\nlabel = "K"\nsettings = { "train.lr" = 0.5 }\n')
    environment = JobEnvironment(str(tmp_path / "runs"), "data", str(tmp_path / "cache"), "cpu", lanes=3)
    for job in plan.jobs[:1]:
        ids = tuple(run.run_id for run in job.runs)
        JobFile(environment, tuple(run.request for run in job.runs), ids).write(tmp_path / "job.json")
        read = JobFile.read(tmp_path / "job.json")
        assert read.run_ids == ids
        assert read.environment == environment
        assert read.requests == tuple(run.request for run in job.runs)
        opened = read.environment.open()
        assert (opened.runs, opened.lanes, opened.device) == (tmp_path / "runs", 3, "cpu")


ASKED = RunRequest(
    method="rlcd",
    dataset="cub",
    recipe="released",
    seeds=(7,),
    backbone="dinov2",
    epochs=3,
    k="max-acc",
    label_ratio=0.25,
    novel_ratio=0.6,
    precision="bf16",
    compile=True,
    train_views=4,
    store_tokens="fp16",
    on_bad_image="skip",
    settings={"method.alpha": 0.3, "method.milestones": [0.5, 0.7]},
    config=Path("some") / "file.toml",
    study=Layer("experiment x, row y", {"train.lr": 0.5}),
)


def test_a_job_file_keeps_every_field_of_a_request(tmp_path):
    nothing = RunRequest()
    left_out = [f.name for f in fields(RunRequest) if getattr(ASKED, f.name) == getattr(nothing, f.name)]
    assert not left_out, "a new field needs a value here"
    environment = JobEnvironment("runs", "data", "cache")
    for request in (ASKED, replace(ASKED, k=12), RunRequest(method="a", dataset="b", seeds=(0,))):
        JobFile(environment, (request,), ("abc",)).write(tmp_path / "job.json")
        assert JobFile.read(tmp_path / "job.json").requests == (request,)


def test_a_job_file_of_the_first_version_is_read(tmp_path):
    run = {"run_id": "abc", "method": "rlcd", "dataset": "digits", "recipe": None, "seed": 3, "backbone": None,
           "epochs": 2, "settings": {"train.lr": 0.5}, "study": None}  # fmt: skip
    environment = {"runs": "runs", "data_root": "data", "cache": "cache"}
    (tmp_path / "job.json").write_text(json.dumps({"version": 1, "place": environment, "runs": [run]}))
    (request,) = JobFile.read(tmp_path / "job.json").requests
    assert request == RunRequest(method="rlcd", dataset="digits", seeds=(3,), epochs=2, settings={"train.lr": 0.5})
    (tmp_path / "job.json").write_text(json.dumps({"version": 9, "place": environment, "runs": [run]}))
    with pytest.raises(UsageError, match="of version 9"):
        JobFile.read(tmp_path / "job.json")
    (tmp_path / "job.json").write_text(json.dumps({"version": 2, "place": environment, "runs": [{**run, "extra": 1}]}))
    with pytest.raises(UsageError, match="unknown keys"):
        JobFile.read(tmp_path / "job.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "place": {}, "runs": []}'])
def test_a_damaged_job_file_is_told(text, tmp_path):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(UsageError, match="job.json"):
        JobFile.read(tmp_path / "job.json")
    with pytest.raises(UsageError, match="cannot be read as a job"):
        JobFile.read(Path(tmp_path / "none.json"))
