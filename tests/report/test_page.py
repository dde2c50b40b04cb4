"""Pages and plots without a browser: escaping, plots as files, sections that say why something is missing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from gcdbench.analysis.table import Sheet, cells
from gcdbench.records.record import read_record
from gcdbench.report import plots
from gcdbench.report.build import run_page, study_page
from gcdbench.report.figure import INK, save, to_html, to_svg
from gcdbench.report.page import Facts, Page, Section, Words, render, write
from gcdbench.report.view import Source
from tests.report.test_outcome import outcome

HOSTILE = "</title><script>document.title='gone'</script><img src=x onerror=alert(1)>\"'&$\\alpha$"


class Tags(HTMLParser):
    """Collects tags and whether all of them are closed."""

    VOID = ("meta", "link", "img", "br", "use")

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def figures():
    found = outcome([0, 1, 2, 3], [0, 1, 2, 2], confidence=[0.1, 0.9, 0.5, 1.0], names=(HOSTILE, "b", "c"))
    epochs = [{"losses": {"ce": 1.0, HOSTILE: 2.0}}, {"losses": {"ce": 0.5}}]
    return {
        "losses": plots.loss_terms(epochs),
        "curves": plots.curves({HOSTILE: [(1.0, 2.0)]}, "x", "y"),
        "sweep": plots.sweep({"All": [(0.5, 1.0, 0.1), (0.1, 2.0, 0.0)]}, "method.alpha"),
        "distribution": plots.class_distribution({HOSTILE: found, "b": found, "c": found, "d": found}),
        "confusion": plots.confusion(found),
        "confidence": plots.confidence({"a": found}),
        "accuracy": plots.class_accuracy(found),
        "maps": plots.maps({HOSTILE: np.eye(4)[:, :2]}, found.target, {0: HOSTILE, 1: "b", 2: "c"}, 2),
    }


@pytest.mark.parametrize("name", list(figures()))
def test_plots_are_well_formed_and_hostile_names_stay_text(name, tmp_path):
    figure = figures()[name]
    svg = to_svg(figure)
    root = ET.fromstring(svg)
    assert not [e for e in root.iter() if e.tag.endswith("script") or e.tag.endswith("}img")]
    assert INK not in svg
    element = to_html(figure, HOSTILE)
    assert "<script" not in element
    assert "<img" not in element
    assert "currentColor" in element
    drawn = ["".join(e.itertext()) for e in ET.fromstring(element).iter() if e.tag.endswith("}text")]
    assert (HOSTILE in drawn) == (name in ("losses", "curves", "distribution", "maps"))
    files = save(figure, tmp_path, name)
    assert [f.suffix for f in files] == [".svg", ".pdf"]
    assert files[1].read_bytes().startswith(b"%PDF")
    assert to_svg(figures()[name]) == svg


def test_ids_of_figures_do_not_clash():
    import re

    text = "".join(to_html(f, n) for n, f in figures().items())
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'xlink:href="#([^"]+)"', text)
    assert set(used) <= set(ids)


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    figure = plots.maps({"a": np.eye(4)[:, :2]}, np.array([0, 0, 1, 1]), {0: "_hidden", 1: "b"}, 1)
    assert "_hidden" in to_svg(figure)


def test_nothing_to_draw_is_none():
    unknown = outcome([0, 1])
    assert plots.loss_terms([]) is None
    assert plots.curves({"a": []}, "x", "y") is None
    assert plots.sweep({}, "k") is None
    assert plots.class_distribution({"a": unknown}) is None
    assert plots.confusion(unknown) is None
    assert plots.confidence({"a": unknown}) is None
    assert plots.class_accuracy(unknown) is None


def test_every_text_of_a_page_is_escaped():
    sheet = Sheet(HOSTILE, (HOSTILE,), (cells(HOSTILE),), notes=(HOSTILE,), caption=(HOSTILE,))
    page = Page(HOSTILE, HOSTILE, [Section("x", HOSTILE, [Words(HOSTILE), Facts([(HOSTILE, HOSTILE)]), sheet])])
    text = render(page)
    tags = Tags(text)
    assert tags.open == []
    names = {tag for tag, _ in tags.found}
    assert "script" not in names
    assert "img" not in names
    assert not any(name.startswith("on") for _, attributes in tags.found for name in attributes)


def test_a_page_loads_nothing(some_runs, tmp_path):
    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    page = run_page(record, Source(tmp_path))
    files = write(page, tmp_path / "r.html", tmp_path / "plots")
    text = files[0].read_text()
    tags = Tags(text)
    assert tags.open == []
    for _, attributes in tags.found:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name, "")
            assert value.startswith(("data:", "#")) or value == "", value
    assert "default-src 'none'" in text
    assert len(files) == 1 + 2 * len(page.plots())
    assert {s.id for s in page.sections} == {
        "summary",
        "learning",
        "predictions",
        "features",
        "clusters",
        "classes",
        "settings",
    }
    assert {p.name.split("-rlcd")[0] for p in page.plots()} >= {
        "losses",
        "supervised-ce",
        "class-distribution",
        "confusion",
        "confidence",
        "tsne-backbone",
        "class-accuracy",
    }
    assert text.count("data:image/png") > 50


def test_without_images_the_page_says_so(some_runs, tmp_path):
    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    text = render(run_page(record, Source(tmp_path, with_data=False)))
    assert "Images are left out. They were not asked for." in text
    assert "data:image" not in text
    assert "class 7" in text


def test_changed_data_is_noticed(some_runs, tmp_path, monkeypatch):
    from pathlib import Path

    from gcdbench.data.datasets.digits import Digits

    pixels, labels = Digits(Path("."))._data
    monkeypatch.setattr(Digits, "_data", (pixels[:300], labels[:300]))
    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    text = render(run_page(record, Source(tmp_path)))
    assert "are not those of the run any more" in text
    assert "data:image" not in text


def test_a_method_without_features_and_a_lost_checkpoint(some_runs, tmp_path, monkeypatch):
    import shutil
    from pathlib import Path

    from gcdbench_rlcd import RLCD

    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    with monkeypatch.context() as patch:
        patch.setattr(RLCD, "features", lambda self, tokens: None)
        assert "shows no features" in render(run_page(record, Source(tmp_path)))
    folder = tmp_path / "runs" / "rlcd" / "digits" / record.run_id
    shutil.copytree(Path(record.dir), folder)
    shutil.rmtree(folder / "checkpoint")
    text = render(run_page(read_record(folder / "record.json"), Source(tmp_path)))
    assert "its checkpoint is gone" in text
    assert "t-SNE of" in text


def test_a_broken_features_hook_is_told(some_runs, tmp_path, monkeypatch):
    from gcdbench_rlcd import RLCD

    def fail(*_):
        raise AttributeError("oops")

    monkeypatch.setattr(RLCD, "features", fail)
    record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
    assert "failed in features: AttributeError: oops" in render(run_page(record, Source(tmp_path)))


def test_the_curve_of_a_sweep(tmp_path):
    from gcdbench.analysis.experiment_file import load_experiment
    from gcdbench.experiments.study_runs import Asked, make_studies
    from gcdbench.prepare.environment import RunEnvironment
    from gcdbench.system.observer import Observer

    environment = RunEnvironment(tmp_path / "runs", tmp_path, "cpu")
    studies, _ = make_studies(load_experiment("alpha"), Asked(("digits",), (0,), epochs=1), environment, Observer())
    page = study_page(studies, Source(tmp_path))
    plot = next(p for p in page.plots() if p.name == "sweep-alpha-digits")
    (axes,) = plot.figure.axes
    lines = [container.lines[0].get_xdata().tolist() for container in axes.containers]
    assert lines == [[0.0, 0.1, 0.3, 0.5, 0.7, 1.0]] * 3
    assert "supervised-ce-digits" in {p.name for p in page.plots()}
    Tags(render(page))
