"""Runs on stores: exact where it is said, and in the fingerprint where it is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import gcdbench
from gcdbench.backbone.vit import Trunk
from gcdbench.data import images
from gcdbench.data.datasets.digits import Digits
from gcdbench.data.store import store_folder as folder
from gcdbench.data.views import random_plan
from gcdbench.errors import DataError, TrainingError, UsageError
from gcdbench.prepare import token_source as tokens
from gcdbench.prepare.environment import RunEnvironment, StoreOptions
from gcdbench.prepare.request import RunRequest, resolve_request
from gcdbench.prepare.shared_resources import SharedResources
from gcdbench.prepare.token_source import PassOptions, TokenSource
from gcdbench.prepare.token_stores import make_stores
from gcdbench.runs.execute import open_runs
from gcdbench.system.observer import Observer
from gcdbench.system.seeding import generator
from tests.support.runs import assert_same, start

pytestmark = pytest.mark.usefixtures("few_digits")


class Listen(Observer):
    def __init__(self):
        self.said, self.noted, self.worked = [], [], []

    def announce(self, text):
        self.said.append(text)

    def warn(self, message):
        self.noted.append(message)

    def working(self, name, done, total):
        self.worked.append((name, done, total))


@pytest.fixture
def on_disk(monkeypatch):
    """Nothing is small enough for memory."""
    monkeypatch.setattr(images, "KEEP_BYTES", 0)
    monkeypatch.setattr(tokens, "KEEP_BYTES", 0)


def made(tmp_path):
    return sorted(p.parent.parent.name for p in (tmp_path / "cache").glob("*/*/store.json"))


def test_packed_images_change_nothing_and_are_made_once(tmp_path, monkeypatch, on_disk):
    direct = start(tmp_path, where="direct", cache=tmp_path / "cache", image_store=False)[0]
    assert made(tmp_path) == []
    listen = Listen()
    packed = start(tmp_path, where="packed", cache=tmp_path / "cache", observer=listen)[0]
    assert made(tmp_path) == ["images"]
    assert any("400 images of Digits (embedded) (train) at 18 px" in text for text in listen.said)
    assert ("packing train images", 400, 400) in listen.worked
    assert packed.run_id == direct.run_id
    assert_same(direct, packed)
    # From now on no image is decoded.
    monkeypatch.setattr(Digits, "image", None)
    again = start(tmp_path, where="again", cache=tmp_path / "cache")[0]
    assert_same(direct, again)


def little_room(monkeypatch, environment):
    """The disk of one folder is full."""
    real = shutil.disk_usage

    def usage(path):
        return real(path)._replace(free=1000) if Path(path).is_relative_to(environment) else real(path)

    monkeypatch.setattr(folder.shutil, "disk_usage", usage)


def test_images_that_do_not_fit_on_the_disk_are_decoded_every_time(tmp_path, monkeypatch, on_disk):
    plain = start(tmp_path, where="plain", epochs=1, cache=tmp_path / "cache", image_store=False)[0]
    little_room(monkeypatch, tmp_path / "cache")
    listen = Listen()
    record = start(tmp_path, epochs=1, cache=tmp_path / "cache", observer=listen)[0]
    assert any("decoded in every epoch instead" in note for note in listen.noted)
    assert_same(plain, record)


def test_exact_tokens_change_nothing(tmp_path, on_disk):
    every = {"eval.every": 1}
    plain = start(tmp_path, where="plain", settings=every, cache=tmp_path / "cache", image_store=False)[0]
    stored = start(tmp_path, where="stored", settings={**every, "store.eval_tokens": "fp32"}, cache=tmp_path / "cache")[
        0
    ]
    assert "tokens" in made(tmp_path)
    assert stored.run_id == plain.run_id
    assert stored.fingerprint == plain.fingerprint
    assert stored.metrics == plain.metrics
    assert_same(plain, stored)


def test_what_several_evaluations_need_is_stored_where_there_is_room(tmp_path, monkeypatch, on_disk):
    """Without being asked: too large for memory, evaluated every epoch, plenty of room; the run is the same one."""
    from gcdbench.prepare import token_stores

    plain = start(tmp_path, "simgcd", settings={"eval.every": 0}, cache=tmp_path / "unused")[0]
    assert not list((tmp_path / "unused").glob("tokens/*/*"))
    passes = []
    original = Trunk.raw
    monkeypatch.setattr(Trunk, "raw", lambda self, x: passes.append(len(x)) or original(self, x))
    often = start(tmp_path, "simgcd", "often", settings={"eval.every": 1}, cache=tmp_path / "cache", epochs=3)[0]
    assert [p for p in (tmp_path / "cache/tokens").iterdir() if p.is_dir()]
    several = passes.count(128)
    passes.clear()
    monkeypatch.setattr(token_stores, "free_bytes", lambda folder: 1000)
    tight = start(tmp_path, "simgcd", "tight", settings={"eval.every": 1}, cache=tmp_path / "full", epochs=3)[0]
    assert passes.count(128) > several  # every evaluation has passes of its own
    assert often.run_id == tight.run_id != plain.run_id
    assert often.metrics == tight.metrics


def test_tokens_kept_in_memory_change_nothing(tmp_path, monkeypatch):
    kept = start(tmp_path, where="kept")[0]
    monkeypatch.setattr(tokens, "KEEP_BYTES", 0)
    assert_same(kept, start(tmp_path, where="fresh")[0])


def test_what_is_kept_in_memory_cannot_be_changed_by_who_reads_it(tmp_path):
    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    rows = np.arange(400)
    first = torch.cat([t.clone() for t in ctx.source.centre("train", rows, 100)])
    for batch in ctx.source.centre("train", rows, 128):
        batch.zero_()
    assert torch.equal(torch.cat(list(ctx.source.centre("train", rows, 100))), first)


def test_evaluation_from_the_store_runs_no_trunk(tmp_path, monkeypatch, on_disk):
    settings = {"store.eval_tokens": "fp32"}
    start(tmp_path, where="first", epochs=1, settings=settings, cache=tmp_path / "cache")
    sizes, original = [], Trunk.raw

    def raw(self, pictures):
        sizes.append(len(pictures))
        return original(self, pictures)

    monkeypatch.setattr(Trunk, "raw", raw)
    start(tmp_path, where="second", epochs=1, settings={**settings, "eval.every": 1}, cache=tmp_path / "cache")
    assert sizes.pop(0) == 4  # how fast the network is
    # The rehearsal: two batches and a few rows. Then six steps of 128 views and one to count operations; nothing for
    # the two evaluations.
    assert sizes[:2] == [128, 128]
    assert 20 < sizes[2] < 64
    assert sizes[3:] == [128] * 7


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rounded_tokens_are_another_protocol(dtype, tmp_path, on_disk):
    plain = start(tmp_path, epochs=1, cache=tmp_path / "cache")[0]
    rounded = start(tmp_path, epochs=1, settings={"store.eval_tokens": dtype}, cache=tmp_path / "cache")[0]
    assert rounded.protocol["approximations"] == {"eval_tokens": dtype}
    assert rounded.fingerprint != plain.fingerprint
    assert rounded.run_id != plain.run_id
    assert "store.eval_tokens" in rounded.chosen
    assert rounded.metrics["all"] == pytest.approx(plain.metrics["all"], abs=1.0)


def test_stored_training_views(tmp_path, monkeypatch):
    settings = {"store.train_views": 3, "store.train_tokens": "fp32"}
    listen = Listen()
    first = start(tmp_path, settings=settings, cache=tmp_path / "cache", observer=listen)[0]
    assert any("fp32 tokens of 3 training views of 400 images" in text for text in listen.said)
    assert first.protocol["approximations"] == {"train_views": 3, "train_tokens": "fp32"}
    assert first.fingerprint != start(tmp_path, where="plain")[0].fingerprint
    # Another seed trains from the same store: the trunk runs for the rehearsal and the evaluation views only.
    sizes, original = [], Trunk.raw
    monkeypatch.setattr(Trunk, "raw", lambda self, x: sizes.append(len(x)) or original(self, x))
    other = start(tmp_path, settings=settings, cache=tmp_path / "cache", seeds=1)[0]
    assert sizes.pop(0) == 4  # how fast the network is
    assert sizes[:2] == [128, 128]
    assert sum(sizes[3:]) == 400 + 1
    assert other.metrics != first.metrics
    again = start(tmp_path, where="again", settings=settings, cache=tmp_path / "cache")[0]
    assert_same(first, again)


def test_a_stored_view_is_a_view_of_its_row(tmp_path):
    request = RunRequest("rlcd", "digits", settings={"store.train_views": 2, "store.train_tokens": "fp32"})
    (ctx,) = open_runs(
        resolve_request(request), SharedResources(RunEnvironment(store_options=StoreOptions(tmp_path), device="cpu"))
    )
    make_stores(ctx, Observer())
    source = ctx.source
    assert len(source.stored_views) == 800
    # The same views, made by hand: view v of row r lies at 2 r + v, whichever chunk it was computed in.
    random = generator(0, "stored views")
    for rows in torch.arange(400).split(tokens.CHUNK):
        drawn = random_plan(rows, ctx.config.views, random, views=2)
        ((_, fresh),) = source.stream("train", [drawn])
        for view in (0, 1):
            stored = source.stored_views.read((2 * rows + view).numpy())
            assert torch.allclose(stored, fresh[view * len(rows) : (view + 1) * len(rows)], atol=1e-5)


def test_micro_batches_change_nothing_but_rounding(tmp_path):
    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    crops = torch.randint(0, 256, (7, 16, 16, 3), dtype=torch.uint8)
    whole = ctx.source._pass(crops)
    ctx.source.micro_batch = 3
    assert torch.allclose(ctx.source._pass(crops), whole, atol=1e-5)
    assert not whole.is_inference()


def test_lanes_share_stored_views(tmp_path):
    settings = {"store.train_views": 2}
    shared = start(tmp_path, "rlcd:paper,rlcd:released", settings=settings, cache=tmp_path / "cache")
    assert [r.lanes for r in shared] == [2, 2]
    alone = start(tmp_path, "rlcd", "alone", recipe="released", settings=settings, cache=tmp_path / "cache")[0]
    assert_same(shared[1], alone)


def test_too_few_stored_views_are_refused(tmp_path):
    with pytest.raises(UsageError, match="store.train_views is 1, but a step takes 2 different views"):
        start(tmp_path, settings={"store.train_views": 1}, cache=tmp_path / "cache")


def test_a_token_store_that_does_not_fit_is_refused_before_training(tmp_path, monkeypatch, on_disk):
    little_room(monkeypatch, tmp_path / "cache")
    with pytest.raises(DataError, match=r"Fp32 tokens of 400 images .* would take 1.74 MB, but"):
        start(tmp_path, settings={"store.eval_tokens": "fp32"}, cache=tmp_path / "cache", image_store=False)


def test_rows_are_computed_in_fixed_chunks_whoever_asks(tmp_path, monkeypatch):
    """The token of a row is the same bits whether few or all rows are asked for, in any batch size."""
    monkeypatch.setattr(tokens, "KEEP_BYTES", 0)
    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    everything = torch.cat(list(ctx.source.centre("train", np.arange(400), 64)))
    some = np.array([3, 127, 128, 200, 399])
    assert torch.equal(torch.cat(list(ctx.source.centre("train", some, 2))), everything[some])
    sizes = [len(t) for t in ctx.source.centre("train", np.arange(0, 400, 3), 50)]
    assert sizes == [50, 50, 34]


def test_pools_keep_the_order_of_their_rows(tmp_path):
    from gcdbench.prepare.pool import ImagePool, PoolOptions, PoolRows

    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    mixed = np.array([300, 2, 2, 131, 7])

    def features(rows, sparse=False):
        pool = ImagePool(PoolRows.unlabelled("train", rows), ctx.source, PoolOptions(2, sparse=sparse))
        return pool.features(lambda t: t[:, 0])

    found = features(mixed)
    for place, row in enumerate(mixed):
        assert torch.equal(found[place], features(np.array([row]))[0])
    assert torch.allclose(features(np.sort(mixed), sparse=True), features(np.sort(mixed)), atol=1e-5)


def test_compiling_is_another_run_and_equal_up_to_rounding(tmp_path, monkeypatch):
    calls = []

    def fake(function, **_):
        calls.append(function)
        return function

    monkeypatch.setattr(torch, "compile", fake)
    plain = start(tmp_path, epochs=1)[0]
    assert calls == []
    compiled = gcdbench.run("rlcd", "digits", runs=tmp_path / "runs", epochs=1, settings={"train.compile": True})[0]
    assert len(calls) == 1
    assert isinstance(calls[0].__self__, Trunk)
    assert compiled.run_id != plain.run_id
    assert compiled.fingerprint == plain.fingerprint
    assert compiled.metrics == plain.metrics


def test_a_compiler_that_fails_is_a_sentence(tmp_path, monkeypatch):
    def broken(function, **_):
        def call(*_):
            raise RuntimeError("no compiler\nand a long story")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(TrainingError, match=r"cannot be compiled here \(RuntimeError: no compiler\). Run without"):
        start(tmp_path, epochs=1, settings={"train.compile": True})


@pytest.mark.slow
def test_a_compiled_trunk_gives_the_tokens(tmp_path):
    """The real compiler, on the real trunk."""
    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    source = ctx.source
    order = ctx.data.order
    compiled = TokenSource(source.trunk, source.images, source.views, source.compute, PassOptions(compiled=True), order)
    rows = np.arange(150)
    plain, fast = (torch.cat(list(s.centre("train", rows, 64))) for s in (source, compiled))
    assert torch.allclose(plain, fast, atol=1e-4)


def test_a_real_data_layout_from_store_to_record(tmp_path):
    """Stanford Cars in its official layout: packed, stored, trained, without the small-set shortcuts."""
    from tests.support.trees import write_scars

    write_scars(tmp_path / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "KEEP_BYTES", 0)
        records = [
            gcdbench.run(
                "rlcd",
                "scars",
                epochs=1,
                backbone="digits-vit",
                settings={"views.resize": 18, "views.crop": 16, "train.batch_size": 8, "store.eval_tokens": "fp32"},
                data_root=tmp_path / "data",
                runs=tmp_path / where,
                cache=tmp_path / "cache",
                image_store=packs,
            )[0]
            for where, packs in (("packed", True), ("direct", False))
        ]
    assert made(tmp_path) == ["images", "tokens"]
    assert_same(*records)
    assert Path(records[0].dir, "predictions.csv").is_file()


def test_a_folder_for_stores_that_cannot_be_written_is_done_without(tmp_path, on_disk):
    (tmp_path / "cache").write_text("a file")
    listen = Listen()
    record = start(tmp_path, epochs=1, cache=tmp_path / "cache", observer=listen)[0]
    assert any("cannot be written" in note and "decoded in every epoch" in note for note in listen.noted)
    assert record.metrics["all"] > 0


def test_a_fault_while_tokens_are_kept_leaves_none_of_them(tmp_path, monkeypatch):
    (ctx,) = open_runs(resolve_request(RunRequest("rlcd", "digits")), SharedResources(RunEnvironment(device="cpu")))
    original = Digits.image

    def image(self, part, row):
        if row == 300:
            raise OSError("broken")
        return original(self, part, row)

    monkeypatch.setattr(Digits, "image", image)
    for _ in range(2):
        with pytest.raises(DataError, match="The image digits:300 cannot be read: broken"):
            list(ctx.source.centre("train", np.arange(400), 64))
    monkeypatch.setattr(Digits, "image", original)
    assert sum(len(t) for t in ctx.source.centre("train", np.arange(400), 64)) == 400
