"""Image files as they are found in the wild: what can be used is used, what cannot is named or left out."""

from __future__ import annotations

import csv
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gcdbench
from gcdbench.config.sections import DataConfig
from gcdbench.data.datasets.files import open_rgb
from gcdbench.data.datasets.folder import ImageFolder
from gcdbench.errors import DataError
from gcdbench.prepare.opened_data import open_data
from tests.support.trees import SMALL_VIEWS, write_image

SMALL = {"views.resize": 18, "views.crop": 16, "train.batch_size": 16}


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header claims a size, with next to nothing behind it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def whole(kind: str) -> bytes:
    import io

    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(stream, kind)
    return stream.getvalue()


BAD = {
    "zero.png": b"",
    "text.jpg": b"this is no image\n" * 20,
    "truncated.jpg": whole("JPEG")[:400],
    "truncated.png": whole("PNG")[:900],
    "corrupt.png": whole("PNG")[:60] + bytes(200) + whole("PNG")[260:],
    "corrupt.tif": whole("TIFF")[:8] + b"\xff" * 60,
    "huge.png": png_of_size(60_000, 60_000),
    "claims.png": png_of_size(4_000, 4_000),
    "thin.png": png_of_size(3_000, 2),
    "html.gif": b"<html>404</html>",
    "archive.webp": b"PK\x03\x04" + bytes(100),
}


def photos(folder: Path, per_class: int = 8) -> Path:
    for name in ("cat", "dog", "unlabelled"):
        for number in range(per_class):
            write_image(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_and_stops_the_run(name, tmp_path):
    photos(tmp_path / "photos")
    (tmp_path / "photos/unlabelled" / name).write_bytes(BAD[name])
    with pytest.raises(DataError, match=name) as fault:
        gcdbench.run(
            *("rlcd", "folder"), backbone="digits-vit", k=3, epochs=1, settings=SMALL,
            data_root=tmp_path / "photos", runs=tmp_path / "runs",
        )  # fmt: skip
    assert fault.value.exit_code == 4
    assert not list((tmp_path / "runs").rglob("record.json"))


def test_bad_files_are_left_out_listed_and_counted(tmp_path):
    photos(tmp_path / "photos")
    common = {
        "backbone": "digits-vit", "k": 3, "epochs": 1, "settings": SMALL, "data_root": tmp_path / "photos",
        "runs": tmp_path / "runs", "cache": tmp_path / "cache",
    }  # fmt: skip
    clean = gcdbench.run("rlcd", "folder", **common)[0]
    same = gcdbench.run("rlcd", "folder", on_bad_image="skip", **common)[0]
    assert same.run_id == clean.run_id  # nothing was left out, so it is the same run
    for name, content in BAD.items():
        (tmp_path / "photos/unlabelled" / name).write_bytes(content)
    record = gcdbench.run("rlcd", "folder", on_bad_image="skip", **common)[0]
    assert record.data["skipped"] == len(BAD)
    assert record.data["unlabelled"] == 8
    assert record.protocol["index_hash"] != clean.protocol["index_hash"]
    assert record.fingerprint != clean.fingerprint
    assert record.run_id != clean.run_id
    with (Path(record.dir) / "skipped.csv").open() as stream:
        rows = {row["item"]: row["reason"] for row in csv.DictReader(stream)}
    assert rows.keys() == {f"unlabelled/{name}" for name in BAD}
    assert all(reason.endswith(".") and name.split("/")[1] in reason for name, reason in rows.items())
    assert any(f"{len(BAD)} images of Image folder cannot be read" in note for note in record.warnings)
    predicted = (Path(record.dir) / "predictions.csv").read_text()
    assert not any(name in predicted for name in BAD)


def test_a_row_left_out_does_not_change_which_others_are_labelled(tmp_path):
    for name in ("cat", "dog", "emu", "fox"):
        for number in range(10):
            write_image(tmp_path / "photos" / name / f"{number}.png")
    before = open_data(ImageFolder, tmp_path / "photos", DataConfig())
    names = {before.index.items[row] for row in before.split.labelled}
    gone = sorted(names)[0]
    (tmp_path / "photos" / gone).write_bytes(b"")
    after = open_data(ImageFolder, tmp_path / "photos", DataConfig(on_bad_image="skip"), cache=tmp_path / "cache")
    assert {after.index.items[row] for row in after.split.labelled} == names - {gone}
    assert len(after.index) == len(before.index) - 1
    assert after.dataset.image("train", 0).size == (24, 20)


def test_what_was_looked_for_once_is_remembered_until_a_file_changes(tmp_path, monkeypatch):
    from gcdbench.data.store import unreadable_scan as scans

    photos(tmp_path / "photos")
    (tmp_path / "photos/cat/bad.png").write_bytes(b"")
    looks, original = [], scans.unreadable
    monkeypatch.setattr(scans, "unreadable", lambda *a: looks.append(1) or original(*a))

    def bad():
        config = DataConfig(on_bad_image="skip")
        opened = open_data(ImageFolder, tmp_path / "photos", config, cache=tmp_path / "cache")
        return [item for item, _ in opened.bad_items()]

    assert bad() == bad() == ["cat/bad.png"]
    assert len(looks) == 1
    (tmp_path / "photos/dog/0.png").write_bytes(b"")
    assert bad() == ["cat/bad.png", "dog/0.png"]
    assert len(looks) == 2


def test_files_that_are_gone_are_bad_images_too(tmp_path):
    photos(tmp_path / "photos")
    rows = [
        f"{name}/{i}.png,{'' if name == 'unlabelled' else name}"
        for name in ("cat", "dog", "unlabelled")
        for i in range(8)
    ]
    (tmp_path / "photos/labels.csv").write_text("path,label\n" + "\n".join([*rows, "gone.png,cat"]) + "\n")
    with pytest.raises(DataError, match=r"1 of 25 images do not exist, first .*gone\.png"):
        open_data(ImageFolder, tmp_path / "photos", DataConfig())
    opened = open_data(ImageFolder, tmp_path / "photos", DataConfig(on_bad_image="skip"), cache=tmp_path / "cache")
    assert [item for item, _ in opened.bad_items()] == ["gone.png"]


def test_nothing_that_can_be_read_is_a_sentence(tmp_path):
    for name in ("cat", "unlabelled"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match="Not one image of Image folder"):
        open_data(ImageFolder, tmp_path / "photos", DataConfig(on_bad_image="skip"), cache=tmp_path / "cache")


PIXELS = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def unusual(kind: str, path: Path) -> np.ndarray:
    """Write an unusual image; what it should be read as."""
    image = Image.fromarray(PIXELS)
    if kind == "cmyk.tif":
        image.convert("CMYK").save(path)
        return np.asarray(image.convert("CMYK").convert("RGB"))
    if kind == "palette.png":
        image.quantize(16).save(path, transparency=0)
        return np.asarray(image.quantize(16).convert("RGB"))
    if kind == "16-bit.png":
        deep = PIXELS[:, :, 0].astype(np.uint16) * 257
        Image.fromarray(deep).save(path)
        return np.repeat(PIXELS[:, :, :1], 3, axis=2)
    if kind == "animated.gif":
        frames = [image.quantize(32), Image.fromarray(255 - PIXELS).quantize(32)]
        frames[0].save(path, save_all=True, append_images=frames[1:])
        return np.asarray(frames[0].convert("RGB"))
    if kind == "grey-alpha.png":
        image.convert("LA").save(path)
        return np.asarray(image.convert("L").convert("RGB"))
    assert kind == "one-bit.png"
    image.convert("1").save(path)
    return np.asarray(image.convert("1").convert("RGB"))


@pytest.mark.parametrize(
    "kind", ["cmyk.tif", "palette.png", "16-bit.png", "animated.gif", "grey-alpha.png", "one-bit.png"]
)
def test_unusual_images_are_used_and_not_skipped(kind, tmp_path):
    folder = photos(tmp_path / "photos")
    expected = unusual(kind, folder / "cat" / kind)
    read = open_rgb(folder / "cat" / kind)
    assert read.mode == "RGB"
    assert (np.asarray(read) == expected).all()
    opened = open_data(ImageFolder, folder, DataConfig(on_bad_image="skip"), cache=tmp_path / "cache")
    assert opened.bad_items() == []
    row = opened.index.items.index(f"cat/{kind}")
    assert (np.asarray(opened.dataset.image("train", row)) == expected).all()


def test_folders_that_link_to_themselves_end(tmp_path):
    photos(tmp_path / "photos")
    (tmp_path / "photos/cat/again").symlink_to(tmp_path / "photos/cat")
    (tmp_path / "photos/cat/up").symlink_to(tmp_path / "photos")
    (tmp_path / "elsewhere").mkdir()
    write_image(tmp_path / "elsewhere/x.png")
    (tmp_path / "photos/dog/linked").symlink_to(tmp_path / "elsewhere")
    items = ImageFolder(tmp_path / "photos").index("train").items
    assert "dog/linked/x.png" in items
    assert len([item for item in items if item.startswith("cat/")]) <= 8 + 8 * 3


@pytest.mark.parametrize("fault", [OSError(24, "Too many open files"), OSError(5, "Input/output error"), MemoryError()])
def test_a_fault_of_the_machine_says_nothing_about_the_images(fault, tmp_path, monkeypatch):
    """It stops the run, and is not remembered."""
    from gcdbench.data.datasets import files

    photos(tmp_path / "photos")
    original = files.Image.open

    def broken(path):
        if Path(path).name == "3.png":
            raise fault
        return original(path)

    def look():
        config = DataConfig(on_bad_image="skip")
        return open_data(ImageFolder, tmp_path / "photos", config, cache=tmp_path / "cache").bad_items()

    with monkeypatch.context() as patch:
        patch.setattr(files.Image, "open", broken)
        with pytest.raises(DataError, match=r"3\.png cannot be read"):
            look()
    assert look() == []


def test_a_file_without_permission_is_looked_at_again(tmp_path, monkeypatch):
    """Permissions change neither size nor time of a file."""
    from gcdbench.data.datasets import files

    photos(tmp_path / "photos")
    monkeypatch.setattr(ImageFolder, "content_hash", lambda self, part: "")  # as for the published data sets
    original = files.Image.open

    def forbidden(path):
        if Path(path).name == "3.png":
            raise PermissionError(13, "Permission denied")
        return original(path)

    def look():
        config = DataConfig(on_bad_image="skip")
        return len(open_data(ImageFolder, tmp_path / "photos", config, cache=tmp_path / "cache").bad_items())

    with monkeypatch.context() as patch:
        patch.setattr(files.Image, "open", forbidden)
        assert look() == 3
    assert look() == 0


def test_a_report_of_a_run_with_images_left_out(tmp_path, cli):
    photos(tmp_path / "photos")
    (tmp_path / "photos/unlabelled/0.png").write_bytes(b"")
    place = ("--data-root", "photos", "--cache", "cache")
    run = ("run", "--method", "rlcd", "--dataset", "folder", "--k", "3", "--epochs", "1", *SMALL_VIEWS, *place)
    answer = cli(*run)
    assert answer.code == 4
    assert "--on-bad-image skip" in answer.stderr
    answer = cli(*run, "--on-bad-image", "skip", "--json")
    assert answer.code == 0, answer.stderr
    assert "1 image of Image folder cannot be read and is left out" in answer.stderr
    made = cli("report", answer.json()["runs"][0]["run_id"], "--data-root", "photos", "-o", "page.html")
    assert made.code == 0, made.stderr
    assert "data:image/png" in (tmp_path / "page.html").read_text()
