"""Reports in a real headless browser: they render, work by keyboard, fit a phone, and let no name become code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gcdbench.analysis.compare import compare
from gcdbench.analysis.setups import group
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.records.find import read_runs
from gcdbench.records.record import read_record
from gcdbench.report.build import compare_page, run_page
from gcdbench.report.page import write
from gcdbench.report.view import Source
from tests.report.test_page import HOSTILE
from tests.support.trees import write_image

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
REQUIRED = os.environ.get("GCDBENCH_REQUIRE_BROWSER") == "1"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED, reason="no Chromium on this machine; continuous integration installs one"
)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "GCDBENCH_REQUIRE_BROWSER is set, but there is no Chromium"
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


class Opened:
    """A page with everything the browser complained about or asked the network for."""

    def __init__(self, browser, path: Path, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: (self.complaints.append(f"dialog {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.fixture(scope="module")
def run_html(some_runs, tmp_path_factory):
    from tests.support.runs import fewer_digits

    path = tmp_path_factory.mktemp("page") / "run.html"
    with pytest.MonkeyPatch.context() as patch:
        fewer_digits(patch)
        record = read_record(next(some_runs.glob("rlcd/digits/*/record.json")))
        write(run_page(record, Source(path.parent)), path)
    return path


@pytest.fixture(scope="module")
def compare_html(some_runs, tmp_path_factory):
    from tests.support.runs import fewer_digits

    path = tmp_path_factory.mktemp("page") / "compare.html"
    with pytest.MonkeyPatch.context() as patch:
        fewer_digits(patch)
        found = compare(group(read_runs(some_runs)[0]))
        write(compare_page([(found, None)], Source(path.parent)), path)
    return path


@pytest.mark.parametrize("which", ["run_html", "compare_html"])
def test_it_renders_without_a_word_from_the_console(which, browser, request):
    path = request.getfixturevalue(which)
    with Opened(browser, path) as opened:
        assert opened.complaints == []
        assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]
        page = opened.page
        assert page.locator("h1").inner_text().startswith("rlcd")
        assert page.locator("figure svg").count() >= 6
        for svg in page.locator("figure svg").all():
            box = svg.bounding_box()
            assert box["width"] > 200
            assert box["height"] > 100
        assert page.locator("img").evaluate_all("all => all.every(i => i.complete && i.naturalWidth > 0)")
        labels = page.locator("figure svg").evaluate_all("all => all.map(s => s.getAttribute('aria-label'))")
        assert all(labels)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme, browser, run_html):
    with Opened(browser, run_html, color_scheme=scheme) as opened:
        text, paper, drawn = opened.page.evaluate(
            """() => {
                const light = c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 765;
                const of = (e, p) => light(getComputedStyle(e)[p]);
                const labels = [...document.querySelectorAll('figure svg text')].map(l => of(l, 'fill'));
                return [of(document.body, 'color'), of(document.body, 'backgroundColor'), labels];
            }"""
        )
    dark = scheme == "dark"
    assert (text > 0.7) == dark
    assert (paper < 0.3) == dark
    # All of them follow the page, the numbers in the cells of the confusion matrix too.
    assert len(drawn) > 60
    assert all(fill == pytest.approx(text) for fill in drawn)


@pytest.mark.parametrize("which", ["run_html", "compare_html"])
def test_a_phone_needs_no_sideways_scrolling_and_can_read_the_plots(which, browser, request):
    path = request.getfixturevalue(which)
    with Opened(browser, path, viewport={"width": 360, "height": 740}, is_mobile=True) as opened:
        page = opened.page
        page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        sizes = page.locator("figure svg text").evaluate_all("all => all.map(t => t.getBoundingClientRect().height)")
        assert min(size for size in sizes if size) > 7
        plots = page.locator("figure .scroll")
        assert plots.evaluate_all("all => all.every(b => b.scrollWidth <= b.clientWidth + 1)")
        tables = page.locator(".scroll:has(table)")
        wide = "all => all.filter(b => b.scrollWidth > b.clientWidth + 1).map(b => getComputedStyle(b).backgroundImage)"
        assert all(image.count("gradient") == 4 for image in tables.evaluate_all(wide))  # a shadow where more is hidden


def test_by_keyboard_alone(browser, run_html):
    with Opened(browser, run_html) as opened:
        page = opened.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        summary = page.locator("summary").first
        assert not page.locator("details").first.evaluate("d => d.open")
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.evaluate("d => d.open")
        outline = summary.evaluate("s => getComputedStyle(s).outlineStyle")
        assert outline == "solid"
        # Everything that scrolls can be reached.
        boxes = page.locator(".scroll").evaluate_all("all => all.every(b => b.tabIndex === 0)")
        assert boxes


def test_a_hostile_class_name_stays_text(browser, tmp_path, monkeypatch):
    """Folder names are class names; on disk they cannot hold every sign, so the index is made to."""
    import gcdbench

    for kind in ("cat", "dog", "owl"):
        for number in range(8):
            write_image(tmp_path / "photos" / kind / f"{number}.png")
    original = ImageFolder.index

    def index(self, part):
        import dataclasses

        found = original(self, part)
        return dataclasses.replace(found, class_names=tuple(f"{HOSTILE}{n}" for n in found.class_names))

    monkeypatch.setattr(ImageFolder, "index", index)
    record = gcdbench.run(
        "rlcd",
        "folder",
        backbone="digits-vit",
        epochs=1,
        settings={"views.resize": 18, "views.crop": 16, "train.batch_size": 8},
        data_root=tmp_path / "photos",
        runs=tmp_path / "runs",
    )[0]
    path = tmp_path / "hostile.html"
    write(run_page(record, Source(tmp_path / "photos")), path)
    with Opened(browser, path) as opened:
        assert opened.complaints == []
        assert opened.page.title() == "rlcd (released) on folder"
        assert opened.page.locator("script").count() == 0
        assert opened.page.locator("img[onerror]").count() == 0
        opened.page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
        assert opened.page.get_by_text(HOSTILE).count() >= 3
        drawn = opened.page.locator("svg text").evaluate_all("all => all.map(t => t.textContent)")
        assert sum(text.startswith(HOSTILE) for text in drawn) == 6  # in the legends of both maps
