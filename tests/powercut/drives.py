"""Cases of a drive with read errors (dying_drive.c) in images, packs, keys or the results database, and later none."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.case import Group
from harness.record import Fate, Record
from harness.world import World

CASES = Group("drive")
_ALWAYS: Final = -1
_RULES: Final = 16
_OPENING: Final = -1
_COUNT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """Reading a file whose path ends in `end` fails at byte `at` (-1: opening it), `times` times."""

    end: str
    at: int = 0
    error: int = errno.EIO
    times: int = _ALWAYS


def failing(world: World, *bad: Bad) -> dict[str, str]:
    """Return the environment variables that make these places of the drive fail."""
    counts = world.folder / "drive-counts"
    counts.write_bytes(bytes(8 * _RULES))
    rules = "".join(f"{one.end},{one.at},{one.error},{one.times};" for one in bad)
    loaded = world.loading(Path(__file__).with_name("dying_drive.c"))
    return {**loaded, "FIELDRAY_DRIVE_ERRORS": rules, "FIELDRAY_DRIVE_COUNTS": str(counts)}


def reasons(done: Record) -> Mapping[str, str]:
    """Return the reason codes by file name."""
    return {Path(line["path"]).name: line["reason_code"] for line in done.lines}


# ---- images


_BYTES: Final[Mapping[str, Callable[[int], int]]] = {
    "first": lambda size: 0,
    "early": lambda size: 40,
    "middle": lambda size: size // 2,
    "last": lambda size: size - 1,
}


@CASES.table({f"image-{name}": (f"an image that cannot be read at its {name} byte", at) for name, at in _BYTES.items()})
@CASES.table(
    {f"image-{name}-once": (f"an image whose {name} byte cannot be read once", at, 1) for name, at in _BYTES.items()}
)
@CASES.table({"image-opened": ("an image that cannot be opened for an error of the drive", lambda size: _OPENING)})
def image(world: World, at: Callable[[int], int], times: int = _ALWAYS) -> None:
    """One image fails with the drive's error, the others get their score. After the recovery it gets its score, too."""
    expected = world.good_images(_COUNT)
    victim = world.images / "image-003.png"
    bad = Bad(end=victim.name, at=at(victim.stat().st_size), times=times)
    sometimes: dict[str, Fate] = {**expected, victim.name: "failed" if times == _ALWAYS else "any"}
    done = world.screen(sometimes, environment=failing(world, bad))
    if times == _ALWAYS:
        assert reasons(done)[victim.name] == "drive_error", reasons(done)[victim.name]
    world.screen(expected, codes=(0,))


# ---- packs


@CASES.case("packs", "each file of a pack is unreadable at its beginning or in its middle", limit_s=200)
def packs(world: World) -> None:
    expected = world.good_images(2)
    for path in sorted(world.pack.iterdir()):
        for at in {0, path.stat().st_size // 2}:
            bad = Bad(end=f"{world.pack.name}/{path.name}", at=at)
            done = world.run_screen(environment=failing(world, bad)).ends_with(3)
            assert not done.lines
            done.says("is failing")
    world.screen(expected, codes=(0,))


# ---- the program's own files


@CASES.case("store", "each page of the results database is unreadable for a time; nothing is lost")
def store(world: World) -> None:
    expected = world.good_images(_COUNT)
    world.screen(expected, codes=(0,))
    size = (world.home / "results.sqlite").stat().st_size
    for at in range(0, size, max(4096, size // 12)):
        done = world.run_screen(environment=failing(world, Bad(end="/results.sqlite", at=at)))
        done.ends_with(0, 1)
        if done.code:
            done.says("The disk reported an error")
        assert not list(world.home.glob("*damaged*")), f"called damaged for an error at byte {at}"
    again = world.screen(expected, codes=(0,))
    assert f"{_COUNT} from an earlier run" in again.err


@CASES.case("keys", "the list of trusted keys is unreadable once, and is not reported as damaged", is_quick=True)
def keys(world: World) -> None:
    expected = world.good_images(2)
    world.screen(expected, codes=(0,))
    environment = failing(world, Bad(end="/pack_trust.json"))
    done = world.run_screen(environment=environment).ends_with(1, 3)
    done.says("The disk reported an error")
    assert "delete" not in done.err
    world.screen(expected, codes=(0,))
