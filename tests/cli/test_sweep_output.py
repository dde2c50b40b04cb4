"""What a sweep shows while it runs: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from gcdbench.cli import sweep_output
from gcdbench.cli.sweep_output import JobTable
from gcdbench.contracts import JobState, LaunchJob
from gcdbench.experiments.monitor import Followed
from gcdbench.experiments.sweep_plan import SweepJob, SweepRun
from gcdbench.records.run_directory import RunDirectory


@pytest.fixture
def jobs(tmp_path):
    """Twelve jobs of a run of ten epochs each; the first has three behind it, the second is finished."""
    found = []
    for number in range(12):
        folder = RunDirectory(tmp_path / str(number))
        folder.open()
        run = SweepRun("RLCD", "rlcd", "paper", "digits", "vit", 0, f"id{number}", folder, 10, None, "new")
        launch = LaunchJob(f"job-{number}", ("true",), {}, tmp_path / "log")
        found.append(Followed(SweepJob(launch.name, [run]), launch))
    (tmp_path / "0" / "metrics.jsonl").write_text('{"epoch": 1}\n' * 3)
    (tmp_path / "1" / "record.json").write_text("{}")
    found[0].state = JobState("running", where="host [red]")
    found[1].state = JobState("ended", 0, "host")
    return found


def test_a_terminal_shows_one_table_of_all_jobs(jobs):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=16)
    with JobTable(console) as table:
        table.show(jobs)
    text = out.getvalue()
    assert "1 of 12 jobs" in text
    assert "running (host [red])" in text  # names are never markup
    assert "3/10" in text
    assert "and 4 more" in text
    assert text.index("running") < text.index("waiting")


def test_elsewhere_a_line_when_something_changes(jobs, monkeypatch):
    monkeypatch.setattr(sweep_output, "QUIET", 0.0)
    out = io.StringIO()
    table = JobTable(Console(file=out, width=200))
    with table:
        table.show(jobs)
        before = out.getvalue()
        table.show(jobs)
        jobs[2].state, jobs[2].tries = JobState("running"), 2
        jobs[3].given_up, jobs[3].state = True, replace(JobState("lost"), reason="NodeDied")
        jobs[4].state = JobState("ended", 5)
        table.show(jobs)
    assert before.count("waiting") == 10
    assert "1 of 12 jobs, 13 of 120 epochs" in before
    after = out.getvalue()[len(before) :]
    assert "job-2: running, attempt 2" in after
    assert "job-3: given up after 1 attempts NodeDied" in after
    assert "job-4: ended with code 5" in after
    assert "waiting" not in after
