"""What stands in one table, what is said of it, and what is refused."""

from __future__ import annotations

import pytest

from gcdbench.analysis.compare import compare
from gcdbench.analysis.compare_table import compare_sheet, csv_rows
from gcdbench.analysis.select import Wanted, select
from gcdbench.analysis.setups import group
from gcdbench.config.method_ref import MethodRef
from gcdbench.errors import ProtocolError, UsageError
from tests.support.records import BACKBONE, record

pytestmark = pytest.mark.usefixtures("few_digits")


def runs(method, values, **more):
    return [record(method, seed, value, **more) for seed, value in enumerate(values)]


def compared(*lists):
    return compare([setup for records in lists for setup in group(records)])


def choose(records, *names, recipe="paper", all_setups=False, **wanted):
    asked_methods = [MethodRef.parse(n) for n in names]
    return select(records, asked_methods, Wanted(**wanted), lambda _: recipe, all_setups)


def test_means_differences_and_verdicts():
    found = compared(runs("rlcd", [70.0, 71.0, 72.0]), runs("simgcd", [60.0, 61.1, 61.9]))
    assert found.names == ("rlcd (paper)", "simgcd (paper)")
    against = found.paired[1, "all"]
    assert against.difference.mean == pytest.approx(-10.0)
    assert against.verdict == "worse"
    assert found.best == {"all": 0, "base": 0, "novel": 0, "ob": 0}
    sheet = compare_sheet(found)
    assert [c.text for c in sheet.rows[0]][:3] == ["rlcd (paper)", "3", "71.0 ± 1.0"]
    assert sheet.rows[0][2].bold
    assert not sheet.rows[1][2].bold
    assert sheet.rows[2][0].text == "simgcd (paper) − rlcd (paper)"
    assert sheet.rows[2][2].text.startswith("−10.0 [−10.2, −9.8] worse")


def test_the_best_is_bold_only_where_it_is_separable():
    found = compared(runs("rlcd", [70.0, 72.0, 65.0]), runs("simgcd", [69.0, 60.0, 66.0]))
    assert found.best == {}
    assert {p.verdict for p in found.paired.values()} == {"cannot tell"}
    assert not any(cell.bold for row in compare_sheet(found).rows for cell in row)


def test_the_best_must_beat_everybody():
    """The second beats the third but not the first: nobody is bold."""
    a, b, c = [70.0, 71.0, 72.0, 73.0], [70.5, 70.9, 72.4, 72.8], [50.0, 51.2, 51.9, 53.1]
    found = compared(runs("a", a), runs("b", b), runs("c", c))
    assert found.paired[2, "all"].verdict == "worse"
    assert found.best == {}


def test_holm_is_applied_over_all_pairs():
    """A gap that is clear between two methods alone is not among three."""
    a, b = [70.0, 71.0, 72.0, 73.0], [68.0, 70.3, 69.2, 71.8]
    alone = compared(runs("a", a), runs("b", b)).paired[1, "all"]
    assert alone.p_adjusted == alone.difference.p < 0.05
    third = [69.0, 73.0, 70.0, 71.0]
    among = compared(runs("a", a), runs("b", b), runs("c", third)).paired[1, "all"]
    assert among.p_adjusted == pytest.approx(3 * alone.difference.p)
    assert among.verdict == "cannot tell"


def test_a_single_run_each_cannot_tell():
    found = compared(runs("rlcd", [90.0]), runs("simgcd", [10.0]))
    assert found.paired[1, "all"].verdict == "too few pairs"
    assert "−80.0 too few pairs" in compare_sheet(found).rows[2][2].text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 231}, "k: 200 in rlcd (paper); 231 in simgcd (paper)"),
        ({"split_hash": "t" * 16}, "split_hash"),
        ({"index_hash": "j" * 16}, "index_hash"),
        ({"selection": "best-base-test"}, "selection: last in rlcd (paper); best-base-test in simgcd (paper)"),
        ({"scored_rows": "test"}, "scored_rows"),
        ({"evaluators": {"cluster_accuracy": 2}}, "evaluators"),
        ({"reads": ("test labels",)}, "reads"),
        ({"k_source": "estimated"}, "k_source"),
    ],
)
def test_different_protocols_are_refused_with_the_fields(change, words):
    with pytest.raises(ProtocolError, match="do not stand in one table") as caught:
        compared(runs("rlcd", [70.0]), runs("simgcd", [60.0], protocol=change))
    assert words in str(caught.value)
    assert caught.value.exit_code == 3


def test_runs_of_one_method_with_different_data_are_refused():
    mixed = [record("rlcd", 0, 70.0), record("rlcd", 1, 71.0, protocol={"index_hash": "j" * 16})]
    with pytest.raises(ProtocolError, match="index_hash"):
        compared(mixed, runs("simgcd", [60.0]))


def test_setup_differences_become_numbered_notes():
    found = compared(
        runs("rlcd", [70.0, 71.0], settings={"train.epochs": 200}, chosen=[]),
        runs("simgcd", [60.0], settings={"train.epochs": 100, "train.precision": "bf16"}, chosen=[], device="cuda (x)"),
    )
    text = "\n".join(found.notes)
    assert "train.epochs differs: rlcd (paper) 200; simgcd (paper) 100." in text
    assert "train.precision differs" in text
    assert "device differs: rlcd (paper) cpu; simgcd (paper) cuda (x)." in text
    assert "Seeds differ: rlcd (paper) 0, 1; simgcd (paper) 0." in text
    assert found.note_numbers == ((1, 2, 3, 4), (1, 2, 3, 4))
    assert compare_sheet(found).rows[0][0].notes == (1, 2, 3, 4)


def test_what_changes_no_result_is_no_difference():
    found = compared(
        runs("rlcd", [70.0, 71.0], settings={"train.micro_batch": 8, "eval.every": 5}, chosen=[]),
        runs("simgcd", [60.0, 61.0]),
    )
    assert found.notes == ()


def test_settings_of_the_methods_themselves_are_no_note():
    found = compared(runs("rlcd", [70.0]), runs("simgcd", [60.0], settings={"method.alpha": 1.0}, chosen=[]))
    assert found.notes == ()


def test_warnings_of_runs_become_notes():
    found = compared(runs("rlcd", [70.0], warnings=["Something odd."]), runs("simgcd", [60.0]))
    assert found.notes == ("Something odd.",)
    assert found.note_numbers == ((1,), ())


def test_runs_without_truth_are_refused():
    with pytest.raises(UsageError, match="the true classes are not known"):
        compared(runs("rlcd", [0.0], metrics={"clusters_used": 3.0}))


def test_a_metric_that_one_method_lacks():
    plain = {"all": 60.0, "base": 61.0, "novel": 59.0}
    found = compared(runs("rlcd", [70.0]), runs("kmeans", [60.0], metrics=plain))
    sheet = compare_sheet(found)
    assert sheet.rows[1][-1].text == "-"
    assert sheet.rows[2][-1].text == "-"


def test_csv_has_a_line_per_method_and_metric():
    lines = csv_rows(compared(runs("rlcd", [70.0, 71.0, 72.0]), runs("simgcd", [60.0, 61.1, 61.9])))
    assert len(lines) == 8
    last = next(line for line in lines if line["method"] == "simgcd" and line["metric"] == "all")
    assert last["verdict"] == "worse"
    assert last["n"] == 3
    assert last["difference"] == pytest.approx(-10.0)


# ------------------------------------------------------------------------------------- which runs are meant


def test_ablations_do_not_pollute_the_method():
    records = [
        *runs("rlcd", [70.0, 71.0]),
        *runs("rlcd", [10.0, 11.0], settings={"method.alpha": 0.0}),
        *runs("simgcd", [60.0, 61.0]),
    ]
    (found,) = choose(records, "rlcd", "simgcd")
    assert [s.name for s in found.setups] == ["rlcd (paper)", "simgcd (paper)"]
    assert found.left_out == ("Other set-ups are left out: rlcd (paper; alpha=0) (--all-setups shows them).",)
    (found,) = choose(records, "rlcd", "simgcd", all_setups=True)
    assert [s.name for s in found.setups] == ["rlcd (paper)", "rlcd (paper; alpha=0)", "simgcd (paper)"]
    (found,) = choose(records, "rlcd", settings={"method.alpha": 0})
    assert [s.name for s in found.setups] == ["rlcd (paper; alpha=0)"]


def test_recipes_are_different_contestants():
    records = [*runs("rlcd", [70.0]), *runs("rlcd", [65.0], recipe="released")]
    (found,) = choose(records, "rlcd", "rlcd:released")
    assert [s.name for s in found.setups] == ["rlcd (paper)", "rlcd (released)"]
    (found,) = choose(records, "rlcd", recipe="released")
    assert [s.name for s in found.setups] == ["rlcd (released)"]


def test_a_single_setup_is_taken_as_it_is():
    records = [*runs("rlcd", [70.0], settings={"train.epochs": 5}), *runs("simgcd", [60.0])]
    (found,) = choose(records, "rlcd", "simgcd")
    assert found.setups[0].name == "rlcd (paper; train.epochs=5)"


def test_several_setups_and_none_prescribed_is_a_question():
    records = [
        *runs("rlcd", [70.0], settings={"train.epochs": 5}),
        *runs("rlcd", [70.0], settings={"train.epochs": 9}),
    ]
    with pytest.raises(UsageError, match=r"has 2 set-ups on cub .*train.epochs=5.*train.epochs=9.*--all-setups"):
        choose(records, "rlcd")


def test_one_selection_per_dataset_and_backbone():
    other = {**BACKBONE, "name": "dinov2", "weights_hash": "v"}
    records = [
        *runs("rlcd", [70.0]),
        *runs("rlcd", [60.0], dataset="scars"),
        *runs("rlcd", [80.0], backbone=other),
        *runs("simgcd", [50.0]),
    ]
    found = choose(records, "rlcd", "simgcd")
    assert [(s.dataset, s.backbone) for s in found] == [("cub", "dino"), ("cub", "dinov2"), ("scars", "dino")]
    assert [s.missing for s in found] == [(), ("simgcd",), ("simgcd",)]
    assert len(choose(records, "rlcd", datasets=("scars",))) == 1
    assert len(choose(records, "rlcd", backbone="dinov2")) == 1
    assert choose(records, "rlcd", seeds=(7,)) == []


def test_the_same_run_counts_once():
    """Copied, or evaluated more often: equal settings and seed are one run, and n says so."""
    plain = runs("rlcd", [70.0, 71.0, 72.0])
    often = runs("rlcd", [70.0, 71.0, 72.0], settings={"eval.every": 1}, finished="2026-02-01T00:00:00+00:00")
    (setup,) = group([*plain, *often])
    assert [r.seed for r in setup.records] == [0, 1, 2]
    assert setup.records[0].config["eval"]["every"] == 1
    found = compare([setup, *group(runs("simgcd", [60.0, 61.0, 62.0]))])
    assert compare_sheet(found).rows[0][1].text == "3"
    assert found.notes == ()


def test_how_often_is_evaluated_matters_under_a_rule_that_selects():
    rule = {"settings": {"eval.selection": "best-all-unlabelled"}, "protocol": {"selection": "best-all-unlabelled"}}
    often = {**rule, "settings": {**rule["settings"], "eval.every": 10}}
    assert len(group([record("rlcd", 0, **rule), record("rlcd", 0, **often)])) == 2


def test_random_weights_are_one_setup():
    weights = [{**BACKBONE, "weights": "random", "weights_hash": str(seed)} for seed in range(3)]
    assert len(group(record("rlcd", seed, backbone=w) for seed, w in enumerate(weights))) == 1


def test_the_timm_name_of_a_backbone_is_the_same_backbone():
    other = {**BACKBONE, "name": "vit_base_patch16_224.dino"}
    records = [
        record("rlcd", 0),
        record("rlcd", 1, backbone=other, settings={"backbone.name": other["name"]}, chosen=[]),
    ]
    (setup,) = group(records)
    assert setup.backbone == "dino"
    assert len(choose(records, "rlcd", backbone="vit_base_patch16_224.dino")[0].setups[0].records) == 2


def test_setups_that_differ_in_the_plugin_only_are_told_apart():
    new = {"plugin": {"package": "gcdbench-rlcd", "version": "0.2.0"}, "finished": "2026-02-01T00:00:00+00:00"}
    records = [*runs("rlcd", [70.0, 71.0]), *runs("rlcd", [72.0, 73.0], **new)]
    (found,) = choose(records, "rlcd")
    assert [s.settings["plugin"] for s in found.setups] == ["gcdbench-rlcd 0.2.0"]
    assert "rlcd (paper) [gcdbench-rlcd 0.1.0]" in found.left_out[0]
    both = compare(group(records))
    assert both.names == ("rlcd (paper) [gcdbench-rlcd 0.1.0]", "rlcd (paper) [gcdbench-rlcd 0.2.0]")
    assert "Plugin differs" in both.notes[0]


def test_runs_of_cores_that_give_other_numbers_are_told_apart():
    records = [*runs("rlcd", [70.0, 71.0], versions={"gcdbench": "0.1.4"})]
    records += runs("rlcd", [72.0, 73.0], versions={"gcdbench": "0.2.0"}, finished="2026-02-01T00:00:00+00:00")
    assert len(group(records)) == 2
    both = compare(group(records))
    assert both.names == ("rlcd (paper) [0.1]", "rlcd (paper) [0.2]")
    same = [*runs("rlcd", [70.0], versions={"gcdbench": "0.2.0"}), record("rlcd", 1, versions={"gcdbench": "0.2.7"})]
    assert len(group(same)) == 1


def test_other_sources_are_noted():
    commit = {"core": {"commit": "a" * 40, "dirty": True}, "plugin": None}
    found = compared(runs("rlcd", [70.0], git=commit), runs("simgcd", [60.0]))
    assert (
        "Source of gcdbench differs: rlcd (paper) aaaaaaaaaaaa with changes; simgcd (paper) not under git."
        in found.notes
    )


def test_a_place_without_an_answer_does_not_block_the_others():
    records = [
        *runs("rlcd", [70.0]),
        *runs("rlcd", [70.0], dataset="scars", settings={"train.epochs": 5}),
        *runs("rlcd", [70.0], dataset="scars", settings={"train.epochs": 9}),
    ]
    cub, scars = choose(records, "rlcd")
    assert cub.problem is None
    assert "has 2 set-ups on scars" in scars.problem
    with pytest.raises(UsageError, match="has 2 set-ups on scars"):
        choose(records, "rlcd", datasets=("scars",))


def test_published_rows_of_another_protocol_are_noted_on_ours():
    from gcdbench.analysis.compare_table import published_rows
    from gcdbench.analysis.published import published_tables

    rows = published_rows(published_tables(), "cub", "dino")
    ours = {"settings": {"data.k": 231, "data.label_ratio": 0.1}, "protocol": {"k": 231, "k_source": "given"}}
    sheet = compare_sheet(compared(runs("rlcd", [70.0], **ours)), rows)
    (number,) = sheet.rows[0][0].notes
    assert sheet.notes[number - 1] == "Not the protocol of the published rows: K = 231 (given); label ratio 0.1."
    assert compare_sheet(compared(runs("rlcd", [70.0])), rows).rows[0][0].notes == ()


def test_other_weights_or_another_plugin_version_is_another_setup():
    one = runs("rlcd", [70.0])
    weights = runs("rlcd", [71.0], backbone={**BACKBONE, "weights_hash": "v"})
    version = runs("rlcd", [72.0], plugin={"package": "gcdbench-rlcd", "version": "0.2.0"})
    assert len(group([*one, *weights, *version])) == 3
