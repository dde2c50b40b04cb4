"""Tables of studies from records made by hand."""

from __future__ import annotations

import dataclasses

import pytest

from gcdbench.analysis.experiment_file import load_experiment
from gcdbench.analysis.published import published_tables
from gcdbench.analysis.study import Study, best_lines, check_study, line_of, study_csv_rows, study_sheet
from gcdbench.errors import ProtocolError
from tests.support.records import record

pytestmark = pytest.mark.usefixtures("few_digits")


def study(name, values, dataset="cub", backbone="dino", **more):
    """Rows of an experiment with All values per seed; rows that are not given are not installed."""
    experiment = load_experiment(name)
    lines = []
    for row in experiment.rows:
        records = [
            record(row.method, seed, v, dataset=dataset, **more) for seed, v in enumerate(values.get(row.key, ()))
        ]
        reason = None if records else f"{row.method} is not installed."
        lines.append(line_of(row, experiment.metrics, records, reason))
    return Study(experiment, dataset, backbone, tuple(lines), published_tables()[experiment.published])


def texts(sheet, row):
    return [cell.text for cell in sheet.rows[row]]


def test_our_row_stands_beside_the_papers_cell():
    sheet = study_sheet(study("ablation", {"a": [60.0, 61.0, 62.0], "f": [70.0, 71.0, 72.1]}))
    assert sheet.columns == (
        "",
        "n",
        "All",
        "Base",
        "Novel",
        "OB",
        "All\n(paper)",
        "Base\n(paper)",
        "Novel\n(paper)",
        "OB\n(paper)",
    )
    assert texts(sheet, 0) == [
        "(a) Main",
        "3",
        "61.0 ± 1.0",
        "66.0 ± 1.0",
        "56.0 ± 1.0",
        "71.0 ± 1.0",
        "62.1",
        "70.8",
        "57.7",
        "83.9",
    ]
    assert texts(sheet, 1)[1:6] == ["0", "-", "-", "-", "-"]
    assert texts(sheet, 1)[6] == "65.7"
    assert sheet.rows[5][2].bold
    assert not sheet.rows[0][2].bold
    assert "Paper: RLCD (ICML 2025), Table 3." in sheet.caption


def test_a_dataset_without_cells_shows_the_published_one_and_says_so():
    found = study("ablation", {"a": [60.0]}, dataset="digits", backbone="digits-vit")
    sheet = study_sheet(found)
    assert "All\n(paper, cub)" in sheet.columns
    assert "for orientation only" in sheet.caption[-1]
    assert found.as_dict()["published_on"] == "cub"


def test_a_published_dataset_without_cells_for_the_backbone_shows_none():
    sheet = study_sheet(study("ablation", {"a": [60.0]}, backbone="dinov2"))
    assert not any("paper" in column for column in sheet.columns)
    assert "No published numbers for cub with dinov2" in sheet.caption[-1]


def test_both_backbones_of_the_main_table():
    one = study_sheet(study("fine-grained", {"rlcd": [70.0]}))
    other = study_sheet(study("fine-grained", {"rlcd": [70.0]}, backbone="dinov2"))
    row = next(i for i, r in enumerate(one.rows) if r[0].text == "RLCD")
    assert texts(one, row)[-3:] == ["70.0", "79.1", "65.4"]
    assert texts(other, row)[-3:] == ["78.7", "79.5", "78.3"]
    # The released recipe is compared with the same published line.
    assert texts(one, row + 1)[-3:] == ["70.0", "79.1", "65.4"]


def test_notes_of_published_rows_and_reasons_are_numbered():
    sheet = study_sheet(study("estimated-k-cms", {"rlcd cms": [50.0]}, dataset="aircraft"))
    row = next(r for r in sheet.rows if r[0].text.startswith("RLCD"))
    (number,) = row[0].notes
    assert "contradict" in sheet.notes[number - 1]
    assert "cms is not installed." in sheet.notes


def test_the_branch_that_a_row_reads():
    metrics = {"pseudo_label_main": 86.0, "pseudo_label_aux": 88.0}
    sheet = study_sheet(study("pseudo-labels", {"rlcd cls": [0.0], "rlcd aux": [0.0]}, metrics=metrics))
    assert texts(sheet, 1) == ["RLCD (CLS)", "1", "86.0", "86.9"]
    assert texts(sheet, 2) == ["RLCD (AUX)", "1", "88.0", "88.3"]


def test_rows_may_differ_in_what_the_study_varies_and_in_nothing_else():
    experiment = load_experiment("estimated-k")
    rows = {row.key: row for row in experiment.rows}

    def made(protocol):
        return line_of(rows["rlcd gcd"], experiment.metrics, [record("rlcd", 0, 60.0, protocol=protocol)])

    first = line_of(rows["rlcd true"], experiment.metrics, [record("rlcd", 0, 70.0)])
    table = published_tables()["estimated-k"]
    allowed = Study(experiment, "cub", "dino", (first, made({"k": 231, "k_source": "given"})), table)
    check_study(allowed)
    assert best_lines(allowed) == {}
    assert "Rows differ on purpose in k, k_source" in " ".join(study_sheet(allowed).caption)
    refused = dataclasses.replace(allowed, lines=(first, made({"k": 231, "selection": "best-base-test"})))
    with pytest.raises(ProtocolError, match="selection") as caught:
        check_study(refused)
    assert "k:" not in str(caught.value)


def test_how_our_numbers_were_made_is_noted():
    quick = {"settings": {"train.epochs": 1, "method.alpha": 0.3}, "chosen": ["train.epochs", "method.alpha"]}
    found = study("alpha", {"0": [60.0]}, warnings=["Something odd."], **quick)
    sheet = study_sheet(found)
    # The row itself prescribes alpha, so only the epochs are news.
    assert "Ours with train.epochs=1." in sheet.notes
    assert "Something odd." in sheet.notes
    assert "rlcd (paper)" in sheet.caption[0]
    assert found.as_dict()["rows"][0]["notes"] == ["Ours with train.epochs=1.", "Something odd."]


def test_rows_with_different_numbers_of_scored_rows():
    data = {"labelled": 1, "unlabelled": 1, "base_classes": 1, "novel_classes": 1}
    experiment = load_experiment("label-ratios")
    lines = [
        line_of(
            row,
            experiment.metrics,
            [record(row.method, 0, data={**data, "scored": n}, protocol={"split_hash": str(n)})],
        )
        for row, n in zip(experiment.rows, (10, 10, 20, 20, 3000, 3000), strict=True)
    ]
    sheet = study_sheet(Study(experiment, "cub", "dino", tuple(lines), published_tables()["label-ratios"]))
    assert "10 to 3,000 unlabelled rows" in sheet.caption[0]
    assert not any("Bold" in sentence for sentence in sheet.caption)


def test_csv():
    lines = study_csv_rows(study("ablation", {"a": [60.0, 62.0]}))
    assert len(lines) == 8 * 4
    assert lines[0]["mean"] == 61.0
    assert lines[0]["published"] == 62.1
    assert lines[4]["reason"] == "rlcd is not installed."
