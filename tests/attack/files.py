"""Attack cases: image folders removed during a run, many files that are no images, sparse files, dangling links."""

from __future__ import annotations

import os
import signal
from typing import Final

from harness.case import Group, NotPossible
from harness.record import Fate
from harness.world import Running, World

CASES = Group("files")
_COUNT: Final = 120


def begun(world: World) -> tuple[dict[str, Fate], Running]:
    """Begin a held run over `_COUNT` images, and read its first three lines."""
    return world.good_images(_COUNT), world.begin(3, "--jobs", "1")


@CASES.case(
    "unplugged-while-stopping",
    "the folder is removed just before or after Ctrl-C; the run ends with 130 and resumes",
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


@CASES.case("many", "50,000 other files among ten images: each gets a row, in at most 250 MB of memory", limit_s=600)
def many(world: World) -> None:
    expected = world.good_images(10)
    for number in range(50_000):
        path = world.images / f"folder-{number // 1000:02}" / f"note-{number:05}.dat"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no image %d" % number)
        expected[os.path.relpath(path, world.images)] = "unscored"
    world.screen(expected, codes=(0,), parent_mb=250)
    world.run("history", "list").ends_with(0)


@CASES.case("empty", "an empty folder ends with exit code 4, not 0", is_quick=True)
def empty(world: World) -> None:
    assert world.run_screen().ends_with(4).lines == []


@CASES.case("sparse", "a PNG followed by 1 TB of zeros fails at once, in a first and in a second run")
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


@CASES.case("deep-links", "900 broken links below 700 nested folders")
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
