"""Files that change while they are screened, and folders full of what is no file."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from fieldray.imaging.synthetic import chest_phantom
from harness.case import Group, NotPossible
from harness.record import Fate
from harness.world import Running, World

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
    assert world.run_screen().ends_with(4).lines == []


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
