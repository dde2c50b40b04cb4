"""What a person with a folder of images is told, through the real command."""

from __future__ import annotations

import csv
import shutil

import pytest

from tests.support.trees import write_image

BACKBONE = ("--backbone", "vit_tiny_patch16_224.augreg_in21k", "--set", "backbone.weights=random")
SMALL = ("--set", "views.crop=32", "--set", "views.resize=36", "--set", "train.batch_size=4", "--epochs", "1")
RUN = ("run", "--method", "kmeans", "--dataset", "folder", "--data-root", "photos", "--k", "3", *BACKBONE, *SMALL)


@pytest.fixture
def photos(tmp_path):
    for kind in ("cat", "dog", "unlabelled"):
        for number in range(6):
            write_image(tmp_path / f"photos/{kind}/{number}.png")
    return tmp_path / "photos"


def test_what_was_found_and_what_was_ignored_is_said(cli, photos):
    (photos / "cat/clip.MOV").write_text("x")
    (photos / "dog/live.HEIC").write_text("x")
    shutil.copy(photos / "cat/0.png", photos / "loose.png")
    answer = cli(*RUN, "--dry-run")
    assert answer.code == 0, answer.stderr
    assert "2 classes: cat (6), dog (6); 6 images without a label." in answer.stderr
    for words in ("1 .MOV", "1 .HEIC", "1 image outside the class folders"):
        assert words in answer.stderr


def test_a_folder_that_is_hardly_a_class_and_one_without_anything_to_sort(cli, photos):
    (photos / "unlabelled").rename(photos / "Unsorted")
    answer = cli(*[w for w in RUN if w not in ("--k", "3")], "--dry-run")
    assert answer.code == 0, answer.stderr
    assert "The folder 'Unsorted' counts as a class of its own." in answer.stderr
    assert "No image is without a label" in answer.stderr


def test_predictions_can_be_given_back(cli, photos):
    answer = cli(*RUN)
    assert answer.code == 0, answer.stderr
    (table,) = photos.parent.glob("runs/kmeans/folder/*/predictions.csv")
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 6
    shutil.copy(table, photos / "labels.csv")
    with (photos / "labels.csv").open("a", newline="") as stream:
        for name in ("cat/0.png", "cat/1.png"):
            csv.writer(stream).writerow([name, "", "", ""])
    again = cli(*RUN, "--dry-run", "--json")
    assert again.code == 0, again.stderr
    plan = again.json()["plan"][0]
    assert (plan["labelled_rows"], plan["unlabelled_rows"]) == (6, 2)
    assert "10 images that labels.csv does not list" in again.stderr


def test_images_outside_of_class_folders_are_no_images_that_are_not_there(cli, tmp_path):
    for number in range(3):
        write_image(tmp_path / f"photos/{number}.png")
    answer = cli(*RUN, "--dry-run")
    assert answer.code == 4
    assert "3 images lie outside class folders" in answer.stderr


def test_a_run_with_an_estimated_number_says_how_far_to_trust_it(cli, photos):
    answer = cli(*[w if w != "3" else "max-acc" for w in RUN])
    assert answer.code == 0, answer.stderr
    assert "by max-acc. Not reliable: 2 known classes" in answer.stderr
    assert answer.stderr.index("2 classes: cat (6)") < answer.stderr.index("by max-acc")


def test_an_estimate_is_bounded_by_the_images_and_says_how_far_to_trust_it(cli, photos):
    answer = cli("estimate-k", "--dataset", "folder", "--data-root", "photos", *BACKBONE, *SMALL[:6])
    assert answer.code == 0, answer.stderr
    assert "Not reliable: 2 known classes" in answer.stdout
    found = cli("estimate-k", "--dataset", "folder", "--data-root", "photos", *BACKBONE, *SMALL[:6], "--json").json()
    assert found["largest"] == 6  # a third of 18 images
    assert found["k"] <= 6


def test_a_network_that_is_too_large_for_the_processor_is_called_that_at_once(cli, photos, monkeypatch):
    monkeypatch.setattr("gcdbench.runs.expectation.SLOW", 0.0)
    answer = cli(*[w if w != "kmeans" else "simgcd" for w in RUN], "--dry-run")
    assert answer.code == 0, answer.stderr
    assert "On this processor 'vit_tiny_patch16_224.augreg_in21k' alone takes about" in answer.stderr
    assert "--train-views 4" in answer.stderr
