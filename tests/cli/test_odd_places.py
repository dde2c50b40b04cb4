"""Odd files and folders: pipes, devices, links, names that are no text."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from gcdbench.cli.output import plain
from gcdbench.system.files import write_json, write_text
from tests.support.trees import SMALL_VIEWS, write_image

RUN = ("run", "--method", "rlcd", "--dataset", "folder", "--data-root", "photos", "--epochs", "1", "--k", "3")
RUN += SMALL_VIEWS
DIGITS = ("run", "--method", "rlcd", "--dataset", "digits", "--epochs", "1")


def photos(tmp_path):
    for name in ("cat", "dog", "unlabelled"):
        for i in range(5):
            write_image(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_a_pipe_among_the_images_is_a_bad_image(cli, tmp_path):
    os.mkfifo(photos(tmp_path) / "unlabelled/pipe.png")
    answer = cli(*RUN)
    assert answer.code == 4
    assert "pipe.png" in answer.stderr
    answer = cli(*RUN, "--on-bad-image", "skip", "--json")
    assert answer.code == 0, answer.stderr
    folder = Path(answer.json()["runs"][0]["dir"])
    assert "pipe.png is no regular file" in (folder / "skipped.csv").read_text()


def test_pipes_and_devices_are_no_config_and_no_predictions(cli, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", "."):
        for command in ((*DIGITS, "--config", name), ("score", name), ("check", "rlcd", "--trajectory", name)):
            answer = cli(*command)
            assert answer.code in (2, 4)
            assert "is no regular file" in answer.stderr
    assert cli(*DIGITS, "--set", "backbone.weights=/dev/zero").code == 4
    os.mkfifo(photos(tmp_path) / "labels.csv")
    assert cli(*RUN, "--dry-run").code == 0


def test_a_pipe_or_a_link_is_not_replaced_by_what_is_written(tmp_path):
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("old")
    link.symlink_to(target)
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_names_that_are_no_text(cli, tmp_path):
    folder = photos(tmp_path)
    os.rename(folder / "cat", os.fsencode(folder) + b"/\xffcat")
    os.rename(folder / "unlabelled/0.png", os.fsencode(folder / "unlabelled") + b"/\xfe\x1b[31m.png")
    answer = cli(*RUN)
    assert answer.code == 0, answer.stderr
    assert "\x1b" not in answer.stdout + answer.stderr
    run = cli(*RUN, "--json").json()["runs"][0]
    table = (Path(run["dir"]) / "predictions.csv").read_bytes()
    assert b"unlabelled/\xfe\x1b[31m.png" in table
    answer = cli("report", run["run_id"], "--data-root", "photos", "-o", "page.html")
    assert answer.code == 0, answer.stderr
    (tmp_path / "page.html").read_text(encoding="utf-8")
    assert cli("show", run["run_id"]).code == 0
    weird = tmp_path / os.fsdecode(b"runs\xff")
    assert cli(*DIGITS, "--runs", weird, "--json").code == 0


def test_a_bad_image_whose_name_is_no_text(cli, tmp_path):
    bad = os.fsencode(photos(tmp_path) / "unlabelled") + b"/bad\xff.png"
    with open(bad, "wb"):
        pass
    answer = cli(*RUN)
    assert answer.code == 4
    assert "bad\\xff.png cannot be read" in answer.stderr
    assert "Traceback" not in answer.stderr
    answer = cli(*RUN, "--on-bad-image", "skip", "--json")
    assert answer.code == 0, answer.stderr


def test_what_a_terminal_is_shown():
    assert plain("a\x1b[31mb\x07\x9b\udcff\n\tä") == "a\\x1b[31mb\\x07\\x9b\\xff\n\tä"


def test_force_on_a_run_directory_that_is_a_link(cli, tmp_path):
    first = cli(*DIGITS, "--json").json()["runs"][0]
    place = tmp_path / first["dir"]
    os.rename(place, tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    answer = cli(*DIGITS, "--force", "--json")
    assert answer.code == 0, answer.stderr
    assert place.is_symlink()
    assert answer.json()["runs"][0]["metrics"] == first["metrics"]


@pytest.mark.parametrize("name", ["record.json", "log.txt", "checkpoint"])
def test_something_else_in_the_place_of_a_file(name, cli, tmp_path):
    run = cli(*DIGITS, "--json").json()["runs"][0]
    folder = tmp_path / run["dir"]
    (folder / "record.json").unlink()
    if name == "checkpoint":
        import shutil

        shutil.rmtree(folder / name)
        (folder / name).write_text("a file")
    else:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
    answer = cli(*DIGITS, "--json")
    assert answer.code == 1
    assert "Something else is in its place" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_epochs_that_someone_has_removed_are_told(cli, tmp_path):
    run = cli(*DIGITS, "--json").json()["runs"][0]
    folder = tmp_path / run["dir"]
    (folder / "record.json").unlink()
    (folder / "metrics.jsonl").write_text("garbage\n")
    answer = cli(*DIGITS, "--json")
    assert answer.code == 0
    assert "lacks 1 of 1 epochs" in answer.stderr
    assert answer.json()["runs"][0]["metrics"] == run["metrics"]


@pytest.mark.parametrize("option", ["--runs", "--cache", "--config", "--data-root"])
def test_an_empty_path_is_a_slip(option, cli):
    answer = cli(*DIGITS, option, "")
    assert answer.code == 2
    assert "must not be empty" in answer.stderr


def test_a_batch_that_cannot_fit_is_told_before_it_is_tried(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("gcdbench.prepare.shared_resources.free_memory", lambda: 10_000_000)
    answer = cli(*DIGITS, "--set", "views.resize=256", "--set", "views.crop=256", "--dry-run")
    assert answer.code == 6
    assert "128 views of 256 x 256 pixels takes" in answer.stderr
    assert "only 10 MB of memory are free" in answer.stderr


def test_a_run_directory_that_vanishes_is_told(cli, tmp_path, monkeypatch):
    import shutil

    from gcdbench_rlcd import RLCD

    original = RLCD.on_step_end

    def vanish(self, batch, t):
        if t.step == 5:
            shutil.rmtree(tmp_path / "runs/rlcd", ignore_errors=True)
        return original(self, batch, t)

    monkeypatch.setattr(RLCD, "on_step_end", vanish)
    answer = cli(*DIGITS)
    assert answer.code == 1
    assert "vanished" in answer.stderr or "No such file" in answer.stderr
    assert not list((tmp_path / "runs").rglob("record.json"))


def test_a_link_to_the_folder_above_brings_no_images_of_other_classes(cli, tmp_path):
    folder = photos(tmp_path)
    (folder / "cat/up").symlink_to("..")
    (folder / "cat/self").symlink_to(".")
    answer = cli("data", "split", "folder", "--data-root", "photos", "--json")
    assert answer.code == 0, answer.stderr
    assert len(answer.json()["labelled"]) == 10


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("cat/0.png,cat,extra", "more or fewer columns"),
        ("cat/0.png", "more or fewer columns"),
    ],
)
def test_lines_of_another_width(rows, words, cli, tmp_path):
    folder = photos(tmp_path)
    (folder / "labels.csv").write_text(f"path,label\ndog/0.png,dog\n{rows}\n")
    answer = cli(*RUN)
    assert answer.code == 4
    assert words in answer.stderr
    (folder / "labels.csv").write_text("path,label,path\na,b,c\n")
    assert "two columns of the same name" in cli(*RUN).stderr
