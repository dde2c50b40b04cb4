"""Many runs in one go, and studies made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gcdbench.analysis.experiment_file import load_experiment
from gcdbench.analysis.published import published_tables
from gcdbench.errors import DataError, TrainingError, UsageError
from gcdbench.experiments.jobs import Job, plan_jobs, run_jobs
from gcdbench.experiments.parameters import count_parameters
from gcdbench.experiments.study_runs import Asked, make_studies, plan_studies
from gcdbench.prepare.environment import RunEnvironment
from gcdbench.prepare.request import RunRequest
from gcdbench.system.observer import Observer

pytestmark = pytest.mark.usefixtures("few_digits")


def job(label="a", method="rlcd", dataset="digits", **more):
    return Job(label, RunRequest(method, dataset, **{"epochs": 1, **more}))


@pytest.fixture
def environment(tmp_path):
    return RunEnvironment(tmp_path / "runs", tmp_path, "cpu")


def test_a_failing_job_does_not_stop_the_others(environment, monkeypatch):
    from gcdbench_rlcd import RLCD

    original = RLCD.forward

    def forward(self, batch, t):
        if self.config.alpha == 0.25:
            raise TrainingError("pretend")
        return original(self, batch, t)

    monkeypatch.setattr(RLCD, "forward", forward)
    jobs = [job("bad", settings={"method.alpha": 0.25}), job("good", seeds=(0, 1)), job("lost", dataset="cub")]
    bad, good, lost = run_jobs(jobs, environment, Observer())
    assert isinstance(bad.fault, TrainingError)
    assert bad.records == []
    assert [r.seed for r in good.records] == [0, 1]
    assert isinstance(lost.fault, DataError)


def test_finished_runs_only(environment):
    run_jobs([job(seeds=(0,))], environment, Observer())
    (outcome,) = run_jobs([job(seeds=(0, 1))], environment, Observer(), train=False)
    assert [r.seed for r in outcome.records] == [0]
    assert len(list(environment.runs.glob("*/*/*"))) == 1


def test_plans_say_what_is_finished_unfinished_and_new(environment):
    class Stop(Observer):
        def step(self, t):
            if t.epoch == 1:
                raise KeyboardInterrupt

    run_jobs([job(seeds=(0,), epochs=4)], environment, Observer())
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(seeds=(1,), epochs=4)], environment, Stop())
    jobs = [job("x", seeds=(0, 1, 2), epochs=4), job("same", seeds=(0,), epochs=4), job("lost", dataset="scars")]
    planned, faults = plan_jobs(jobs, environment, Observer())
    assert [(p.label, p.seed, p.status) for p in planned] == [
        ("x", 0, "finished"),
        ("x", 1, "unfinished"),
        ("x", 2, "new"),
    ]
    done, half, new = (p.seconds for p in planned)
    assert done == 0
    assert half == pytest.approx(0.75 * new, abs=0.11)  # both are rounded to tenths
    assert isinstance(faults["lost on scars"], DataError)


def test_parameters_are_the_published_ones():
    for row in published_tables()["parameters"].rows:
        if row.method in ("rlcd", "simgcd"):
            assert count_parameters(RunRequest(row.method, "cub"), Path(".")) == row.cells["cub"]


def test_parameters_follow_k():
    one, two = (count_parameters(RunRequest("rlcd", "cub", k=k), Path(".")) for k in (200, 231))
    assert two["classifier"] - one["classifier"] == 31 * 768


def test_a_study_shares_runs_resumes_and_reads_branches(environment):
    experiment = load_experiment("pseudo-labels")
    asked = Asked(("digits",), (0,), epochs=1)
    (study,), faults = make_studies(experiment, asked, environment, Observer())
    assert faults == []
    assert len(list(environment.runs.glob("*/*/*/record.json"))) == 2
    simgcd, cls, aux = study.lines
    assert cls.records[0].run_id == aux.records[0].run_id
    assert cls.values["pseudo_label"][0] == cls.records[0].metrics["pseudo_label_main"]
    assert aux.values["pseudo_label"][0] == aux.records[0].metrics["pseudo_label_aux"]
    assert simgcd.records[0].method == "simgcd"
    planned, _ = plan_studies(experiment, asked, environment, Observer())
    assert {p.status for p in planned} == {"finished"}


def test_rows_of_methods_that_are_not_installed(environment):
    whole = load_experiment("fine-grained")
    rows = tuple(dataclasses.replace(row, method="unheard") if row.key == "ugcd" else row for row in whole.rows)
    experiment = dataclasses.replace(whole, rows=rows)
    (study,), _ = make_studies(experiment, Asked(("digits",), (0,), epochs=1), environment, Observer(), False)
    reasons = {line.row.key: line.reason for line in study.lines}
    assert reasons["ugcd"] == "unheard is not installed."
    assert reasons["simgcd"] == reasons["legogcd"] == reasons["rlcd"] != reasons["ugcd"]
    assert study.backbone == "digits-vit"


def test_the_source_of_a_rows_values_is_recorded(environment):
    experiment = load_experiment("distillation")
    (study,), _ = make_studies(experiment, Asked(("digits",), (0,), epochs=1), environment, Observer())
    first = study.lines[0].records[0]
    assert first.sources["method.distill_on"] == "experiment distillation, row all"
    assert first.chosen == ["train.epochs", "method.distill_on"]
    assert study.lines[2].records[0].chosen == ["train.epochs"]


def test_what_a_row_prescribes_cannot_be_set(environment):
    experiment = load_experiment("alpha")
    asked = Asked(("digits",), (0,), epochs=1, settings={"method.alpha": 0.9})
    with pytest.raises(UsageError, match="method.alpha is what the row 'α = 0' of alpha prescribes"):
        plan_studies(experiment, asked, environment, Observer())
    asked = Asked(("digits",), (0,), epochs=1, settings={"method.beta": 0.9})
    assert len(plan_studies(experiment, asked, environment, Observer())[0]) == 6


def test_an_experiment_without_published_numbers(tmp_path, environment):
    from gcdbench.analysis.experiment_file import parse_experiment
    from gcdbench.analysis.study import study_sheet

    text = '[experiment]\ntitle = "T"\ndatasets = ["digits"]\nseeds = [0]\n'
    text += '[[row]]\nkey = "a"\nlabel = "A"\nmethod = "rlcd"\n'
    (tmp_path / "mine.toml").write_text(text)
    (study,), _ = make_studies(parse_experiment(tmp_path / "mine.toml"), Asked(epochs=1), environment, Observer())
    assert study_sheet(study).columns == ("", "n", "All", "Base", "Novel")
    (tmp_path / "mine.toml").write_text(text.replace("seeds", 'published = "nothing"\nseeds'))
    with pytest.raises(Exception, match="no installed plugin has published numbers called 'nothing'"):
        make_studies(parse_experiment(tmp_path / "mine.toml"), Asked(epochs=1), environment, Observer())


def test_a_wrong_setting_is_told_before_anything_runs(environment):
    asked = Asked(("digits",), (0,), settings={"method.alhpa": 1})
    with pytest.raises(UsageError, match="method.alpha"):
        make_studies(load_experiment("distillation"), asked, environment, Observer())
    assert not Path(environment.runs).exists()


def test_the_backbone_of_a_study_is_the_one_its_runs_have(environment, tmp_path):
    from gcdbench.analysis.experiment_file import parse_experiment

    experiment = load_experiment("ablation")
    for asked in (
        Asked(("cub",), backbone="dinov2"),
        Asked(("cub",), settings={"backbone.name": "dinov2"}),
        Asked(("cub",), backbone="vit_base_patch14_dinov2.lvd142m"),
    ):
        (study,), faults = make_studies(experiment, asked, environment, Observer())
        assert study.backbone == "dinov2"
        assert len(faults) == 8  # there is no data here
    text = '[experiment]\ntitle = "T"\ndatasets = ["cub"]\n'
    for key, name in (("a", "dino"), ("b", "dinov2")):
        text += f'[[row]]\nkey = "{key}"\nlabel = "{key}"\nmethod = "rlcd"\n'
        text += f'settings = {{ "backbone.name" = "{name}" }}\n'
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError, match="different backbones"):
        make_studies(parse_experiment(tmp_path / "mine.toml"), Asked(), environment, Observer())
