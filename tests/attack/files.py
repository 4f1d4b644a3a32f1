"""Files that change while they are screened, and folders full of what is no file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from fieldray.domain.model import HeaderRules
from fieldray.imaging.synthetic import chest_phantom
from harness.case import Group, NotPossible
from harness.record import Fate
from harness.world import Running, World
from phantoms import write_dicom
from tiny_packs import fingerprint, write_tiny_pack

CASES = Group("files")
_COUNT: Final = 120
_TOUCHED: Final = range(60, 66)


def level(world: World, name: str, *, bright: bool) -> Path:
    """A bright or a dark chest, which the tiny pack's score follows; each is another content."""
    path = world.images / name
    chest = chest_phantom(128, 128, 7, abnormal=False) / 4095
    pixels = (255 * chest ** (0.4 if bright else 2.0)).astype(np.uint8)
    pixels[0, :3] += np.uint8(int(Path(name).stem) % 20)
    Image.fromarray(pixels).save(path)
    return path


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def begun(world: World) -> tuple[dict[str, Fate], Running]:
    """A run over many images that waits after a few."""
    return world.good_images(_COUNT), world.begin(3, "--jobs", "1")


_ACTS: Final[Mapping[str, tuple[str, Callable[[Path], object]]]] = {
    "rename": ("images renamed in mid-run", lambda path: path.rename(path.with_name("renamed-" + path.name))),
    "delete": ("images deleted in mid-run", Path.unlink),
    "cut": ("images cut in mid-run", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "grow": ("images that grow in mid-run", lambda path: os.truncate(path, path.stat().st_size + 100_000)),
}


@CASES.table(_ACTS)
def changed(world: World, act: Callable[[Path], object]) -> None:
    """One row for each image that was there; the next run has exactly what is there then."""
    expected, running = begun(world)
    for number in _TOUCHED:
        name = f"image-{number:03}.png"
        act(world.images / name)
        expected[name] = "any"
    expected |= {path.name: "screened" for path in world.images.iterdir() if path.name not in expected}
    running.finish().ends_with(0, 1).has(expected)
    there: dict[str, Fate] = {path.name: expected.get(path.name, "any") for path in world.images.iterdir()}
    world.run_screen().ends_with(0, 1).has(there)
    assert set(world.rows_in_store()) == set(there)


@CASES.case("become-fifo", "images that become a FIFO in mid-run: nothing waits for a writer")
def becomes_fifo(world: World) -> None:
    expected, running = begun(world)
    for number in range(5, _COUNT):
        path = world.images / f"image-{number:03}.png"
        path.unlink()
        os.mkfifo(path)
        expected[path.name] = "any"
    lines = running.finish().ends_with(0, 1).lines
    found = {Path(line["path"]).name for line in lines}
    assert found <= set(expected) and len(lines) == len(found)
    assert {f"image-{number:03}.png" for number in range(3)} <= found


@CASES.case("moved-about", "images moved in mid-run to folders already and not yet searched: each is listed once")
def moved_about(world: World) -> None:
    for name in "abz":
        world.good_images(60, folder=world.images / name)
    for number, path in enumerate(sorted(world.images.rglob("*.png"))):
        path.write_bytes(path.read_bytes() + bytes([number]))
    running = world.start_screen("--jobs", "1", held=True)
    told = [Path(line["path"]) for line in running.read_lines(5)]
    for path in [*told, *(world.images / "z").iterdir()]:
        path.rename(world.images / ("z" if path in told else "a") / f"moved-{path.name}")
    (world.images / "b").rename(world.images / "new")
    lines = running.finish().ends_with(0, 1).lines
    there = {str(path) for path in world.images.rglob("*.png")}
    assert there <= {line["path"] for line in lines}, "images are lost"
    placed = "SELECT CAST(image_key AS TEXT) FROM results WHERE absent_s IS NULL AND status = 'screened'"
    assert sorted(name for (name,) in world.query(placed)) == sorted(there), "images are listed twice"


@CASES.case("other-kinds", "a file that becomes a folder, and a folder that becomes a file, in mid-run")
def other_kinds(world: World) -> None:
    expected, running = begun(world)
    first, last = world.images / "image-000.png", world.images / "image-119.png"
    data = first.read_bytes()
    for path in (first, last):
        path.unlink()
        path.mkdir()
        (path / "inner.png").write_bytes(data + path.name.encode())
        expected[f"{path.name}/inner.png"] = "screened"
    del expected[last.name]
    running.finish().ends_with(0).has(expected)


@CASES.case("linked-folder", "a folder moved to another disk, with a link in its place: it is told", is_quick=True)
def linked_folder(world: World) -> None:
    expected = world.good_images(2)
    elsewhere = world.folder / "elsewhere"
    world.good_images(2, folder=elsewhere)
    (world.images / "linked").symlink_to(elsewhere)
    world.screen({**expected, "linked": "failed"}, codes=(1,)).says("linked_folder")
    done = world.run_screen(paths=[world.images, elsewhere]).ends_with(0)
    assert len(done.lines) == 4


@CASES.case("link-before-file", "links that sort before their files: a file is listed under its own name")
def link_before_file(world: World) -> None:
    expected = world.good_images(5)
    for number in range(5):
        (world.images / f"a-{number}.png").symlink_to(f"image-{number:03}.png")
    world.screen(expected, codes=(0,))


@CASES.case("zip-replaced", "a zip file replaced while its members are listed, and one that grows: not without a word")
def zip_replaced(world: World) -> None:
    world.good_images(1)
    data = (world.images / "image-000.png").read_bytes()

    def zipped(path: Path, names: list[str]) -> Path:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, data + name.encode())
        return path

    members = [f"m-{number:03}.png" for number in range(300)]
    path = zipped(world.images / "images.zip", members)
    other = zipped(world.folder / "other.zip", [*(f"a-{number:03}.png" for number in range(60)), *members])
    running = world.begin(3, "--jobs", "1")
    other.replace(path)
    running.finish().ends_with(1).says("changed")
    done = world.run_screen().ends_with(0)
    assert len(done.lines) == 361


@CASES.case("folder-gone", "the folder removed in mid-run, as a drive that is pulled out")
def folder_gone(world: World) -> None:
    expected, running = begun(world)
    world.images.rename(world.folder / "unplugged")
    world.images.mkdir()
    done = running.finish().ends_with(1)
    found = [Path(line["path"]).name for line in done.lines]
    assert len(found) == len(set(found)), "rows doubled"
    screened = [line for line in done.lines if line["status"] == "screened"]
    assert 3 <= len(screened) < len(expected)
    shutil.rmtree(world.images)
    (world.folder / "unplugged").rename(world.images)
    world.run_screen().ends_with(0).has(expected)


@CASES.case(
    "unplugged-while-stopping",
    "the folder removed, and Ctrl-C before and after: it ends in order and resumes",
    limit_s=120,
)
def unplugged_while_stopping(world: World) -> None:
    away, expected = world.folder / "unplugged", world.good_images(_COUNT)
    for is_stopped_first in (True, False):
        running = world.start_screen("--fresh", "--jobs", "1", held=True)
        running.read_lines(3)
        if is_stopped_first:
            running.signal(signal.SIGINT)
        world.images.rename(away)
        if not is_stopped_first:
            running.signal(signal.SIGINT)
        running.finish().ends_with(130)
        away.rename(world.images)
    world.run_screen("--resume").ends_with(0).has(expected)


@CASES.case("many", "50,000 files that are no images around ten that are: all named, in 250 MB", limit_s=600)
def many(world: World) -> None:
    expected = world.good_images(10)
    for number in range(50_000):
        path = world.images / f"folder-{number // 1000:02}" / f"note-{number:05}.dat"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no image %d" % number)
        expected[os.path.relpath(path, world.images)] = "unscored"
    world.screen(expected, codes=(0,), parent_mb=250)
    world.run("history", "list").ends_with(0)


@CASES.case("swapped", "the contents of bright and dark images swapped in mid-run: each score belongs to its content")
def swapped(world: World) -> None:
    for number in range(100):
        level(world, f"{number:03}.png", bright=bool(number % 2))
    running = world.begin(3, "--jobs", "1")
    for number in range(10, 100, 2):
        one, other = world.images / f"{number:03}.png", world.images / f"{number + 1:03}.png"
        beside = world.folder / "beside"
        one.rename(beside)
        other.rename(one)
        beside.rename(other)
    running.finish().ends_with(0)
    hold_scores_to_contents(world)


def hold_scores_to_contents(world: World) -> None:
    """Bright contents score high and dark ones low, whatever file they are in now."""
    rows = world.rows_in_store()
    for name, row in rows.items():
        pixels = np.asarray(Image.open(world.images / name))
        assert row["content_sha256"] == digest(world.images / name), f"{name}: the hash of another content"
        assert (row["score"] > 0.5) == (pixels.mean() > 125), f"{name}: the score of another content"


@CASES.case("content-replaced", "contents replaced after a run that was interrupted, then resumed")
def content_replaced(world: World) -> None:
    for number in range(60):
        level(world, f"{number:03}.png", bright=True)
    world.begin(10).interrupt()
    for number in range(0, 60, 3):
        level(world, f"{number:03}.png", bright=False)
    world.run_screen().ends_with(0)
    hold_scores_to_contents(world)


@CASES.case("resumed-names", "a run interrupted, images renamed and deleted, then resumed: what is gone has no row")
def resumed_names(world: World) -> None:
    world.good_images(60)
    world.begin(20).interrupt()
    (world.images / "image-000.png").rename(world.images / "zz-renamed.png")
    (world.images / "image-001.png").unlink()
    (world.images / "image-059.png").rename(world.images / "aa-renamed.png")
    there: dict[str, Fate] = {path.name: "screened" for path in world.images.iterdir()}
    out = world.folder / "out"
    world.run_screen("--out", out, "--names", "--formats", "json").ends_with(0).has(there)
    (path,) = out.glob("*.json")
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["results"] if is_present(row)]
    names = [Path(row["path"]).name for row in rows]
    assert sorted(names) == sorted(there), f"{len(names)} rows for {len(there)} images"


def is_present(row: dict[str, Any]) -> bool:
    """Whether an exported row is of an image that this run saw; one marked as not there any more has no score."""
    if Path(row["path"]).exists():
        return True
    assert row["score"] is None, "a file that is not there has a score"
    return "not_present" not in json.dumps(row) and "not present" not in json.dumps(row)


def swapped_headers(world: World, *options: object) -> tuple[tuple[object, ...], set[str]]:
    """A run of adults' images that children's replace while it waits: how it was asked for, the adults' contents."""
    pixels = chest_phantom(160, 128, 7, abnormal=False)
    children, adults = world.folder / "children", set()
    children.mkdir()
    for number in range(_COUNT):
        pixels[0, 0] = number
        name = f"{number:03}.dcm"
        adults.add(digest(write_dicom(world.images / name, pixels, number=number + 1, changes={"PatientAge": "040Y"})))
        write_dicom(children / name, pixels, number=number + 1, changes={"PatientAge": "005Y"})
    pack = write_tiny_pack(world.folder / "adults", accepted=HeaderRules(ages_years=(18, 90)))
    named = (world.images, "--pack", pack, "--trust", fingerprint(pack), "--json", "-")
    running = world.start("screen", *named, "--jobs", "1", *options, held=True)
    running.read_lines(3)
    for path in children.iterdir():
        path.replace(world.images / path.name)
    running.finish().ends_with(0, 1)
    return named, adults


@CASES.case("header-swapped", "adults' images replaced by children's in mid-run: none gets a score of an adults' pack")
def header_swapped(world: World) -> None:
    named, _ = swapped_headers(world)
    for mode in ("--resume", "--fresh", "--resume"):
        done = world.run("screen", *named, mode, "--out", world.folder / f"out{mode}", "--formats", "json")
        scored = [line["path"] for line in done.ends_with(0, 1).lines if line["score"] is not None]
        assert not scored, f"{mode}: {len(scored)} children's images have a score of the adults' pack"


@CASES.case("header-swapped-at-once", "the same within the one run: every score is of a content with an adult's header")
def header_swapped_at_once(world: World) -> None:
    out = world.folder / "out"
    _, adults = swapped_headers(world, "--out", out, "--formats", "json")
    (export,) = out.glob("*.json")
    results = json.loads(export.read_text(encoding="utf-8"))["results"]
    wrong = [row["path"] for row in results if row["score"] is not None and row["content_sha256"] not in adults]
    assert not wrong, f"{len(wrong)} children's images were judged by the headers of adults"


@CASES.case("no-files", "links in a circle, to /dev/zero and to nothing, FIFO, socket and device among the images")
def no_files(world: World) -> None:
    expected = world.good_images(3)
    (world.images / "circle").symlink_to(world.images)
    (world.images / "itself").symlink_to("itself")
    (world.images / "zero").symlink_to("/dev/zero")
    (world.images / "nothing").symlink_to("not-there")
    os.mkfifo(world.images / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(world.images / "socket"))
        (world.images / "same").symlink_to("image-000.png")
        done = world.run_screen().ends_with(0, 1)
    scored = [Path(line["path"]).name for line in done.lines if line["status"] == "screened"]
    assert len(scored) == len(expected), f"{scored} for three images"
    assert {Path(line["path"]).name for line in done.lines} <= {*expected, "same", "itself", "nothing", "circle"}


@CASES.case("deep", "150 folders in one another, and 2,000 empty ones")
def deep(world: World) -> None:
    folder = world.images
    for _ in range(150):
        folder = folder / "deep"
    expected = world.good_images(2, folder=folder)
    for number in range(2_000):
        (world.images / f"empty-{number}").mkdir()
    world.screen(expected, codes=(0,))


@CASES.case("empty", "an empty folder: exit code 4, not 0", is_quick=True)
def empty(world: World) -> None:
    done = world.run_screen().ends_with(4)
    assert done.lines == []


@CASES.case("hidden-only", "a folder with nothing but what systems leave behind: exit code 4")
def hidden_only(world: World) -> None:
    (world.images / "Thumbs.db").write_bytes(b"x" * 100)
    (world.images / ".DS_Store").write_bytes(b"x" * 100)
    assert world.run_screen().ends_with(4).lines == []


@CASES.case("sparse", "a PNG that goes on for 1 TB: nobody waits for it, the second time neither")
def sparse(world: World) -> None:
    expected = world.good_images(2)
    vast = world.images / "vast.png"
    vast.write_bytes((world.images / min(expected)).read_bytes())
    try:
        os.truncate(vast, 2**40)
    except OSError as error:
        raise NotPossible("this file system has no such files") from error
    for _ in range(2):
        world.screen({**expected, vast.name: "failed"})


@CASES.case("deep-links", "900 links to nowhere below 700 folders")
def deep_links(world: World) -> None:
    expected = world.good_images(2)
    folder = world.images
    for _ in range(700):
        folder = folder / "d"
        os.mkdir(str(folder))  # noqa: PTH102 - Path.mkdir is as slow as the folders are deep
    for number in range(900):
        (folder / f"{number}").symlink_to("nowhere")
        expected[os.path.relpath(folder / f"{number}", world.images)] = "failed"
    world.screen(expected)
