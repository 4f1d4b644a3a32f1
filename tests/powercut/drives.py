"""Cases: a drive that fails while images, packs, settings or the store are read, and recovers later (dying_drive.c)."""

from __future__ import annotations

import errno
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.imaging.synthetic import write_studies
from harness.case import Group
from harness.record import Fate, Record
from harness.world import World
from program import write_images

CASES = Group("drive")
_ALWAYS: Final = -1
_RULES: Final = 16
_OPENING: Final = -1
_COUNT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """Reading a file whose path ends in `end` fails at byte `at` (-1: opening it), `times` times; it takes seconds."""

    end: str
    at: int = 0
    error: int = errno.EIO
    times: int = _ALWAYS
    seconds: int = 0


def failing(world: World, *bad: Bad) -> dict[str, str]:
    """The environment in which these places of the drive are bad."""
    counts = world.folder / "drive-counts"
    counts.write_bytes(bytes(8 * _RULES))
    rules = "".join(f"{one.end},{one.at},{one.error},{one.times},{one.seconds};" for one in bad)
    loaded = world.loading(Path(__file__).with_name("dying_drive.c"))
    return {**loaded, "FIELDRAY_DRIVE_ERRORS": rules, "FIELDRAY_DRIVE_COUNTS": str(counts)}


def reasons(done: Record) -> Mapping[str, str]:
    """The codes by file name."""
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
    """One image failed with the drive's error, the others have their score; later it has its own, too."""
    expected = world.good_images(_COUNT)
    victim = world.images / "image-003.png"
    bad = Bad(end=victim.name, at=at(victim.stat().st_size), times=times)
    sometimes: dict[str, Fate] = {**expected, victim.name: "failed" if times == _ALWAYS else "any"}
    done = world.screen(sometimes, environment=failing(world, bad))
    if times == _ALWAYS:
        assert reasons(done)[victim.name] == "drive_error", reasons(done)[victim.name]
    world.screen(expected, codes=(0,))


@CASES.case("dicom", "DICOM files that break off with an error in the header, and in the pixels")
def dicom(world: World) -> None:
    write_studies(world.images, count=3)
    names = [str(path.relative_to(world.images)) for path in sorted(world.images.rglob("*.dcm"))]
    expected: dict[str, Fate] = dict.fromkeys(names, "screened")
    bad = (Bad(end=names[0], at=300), Bad(end=names[1], at=40_000))
    cut: dict[str, Fate] = {**expected, names[0]: "failed", names[1]: "failed"}
    done = world.screen(cut, environment=failing(world, *bad))
    assert set(reasons(done).values()) == {"drive_error", None}, reasons(done)
    world.screen(expected, codes=(0,))


@CASES.case("zip", "a zip file with an error in the middle of one member")
def in_a_zip(world: World) -> None:
    loose = world.folder / "loose"
    paths = write_images(loose, 5, side=128)
    place = world.images / "archive.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for path in paths:
            archive.write(path, path.name)
        middle = archive.getinfo(paths[2].name).header_offset + 2000
        end = archive.getinfo(paths[3].name).header_offset
    done = world.run_screen(environment=failing(world, Bad(end=place.name, at=middle, times=3)))
    done.ends_with(0, 1)
    assert {line["reason_code"] for line in done.lines} <= {"drive_error", None}, reasons(done)
    again = world.run_screen().ends_with(0)
    assert len(again.lines) == len({line["image"] for line in again.lines}) == len(paths)
    assert middle < end


@CASES.case("folder", "a folder that cannot be listed for an error of the drive")
def folder(world: World) -> None:
    expected = world.good_images(3)
    write_images(world.images / "inner", 2, side=128)
    inner: dict[str, Fate] = {f"inner/image-00{number}.png": "screened" for number in range(2)}
    environment = failing(world, Bad(end="/inner", at=_OPENING))
    done = world.screen({**expected, "inner": "failed"}, environment=environment)
    assert reasons(done)["inner"] == "folder_not_read"
    world.screen({**expected, **inner}, codes=(0,))


@CASES.case("slow", "an image that takes two seconds to be read, in a run of others")
def slow(world: World) -> None:
    expected = world.good_images(_COUNT)
    world.screen(expected, codes=(0,), environment=failing(world, Bad(end="image-003.png", error=0, seconds=2)))


@CASES.case("hanging", "an image whose reading hangs for longer than its time limit", limit_s=120)
def hanging(world: World) -> None:
    world.write_settings(decode_timeout_s=5)
    expected = world.good_images(_COUNT, side=512)
    victim = world.images / "image-003.png"
    bad = Bad(end=victim.name, at=victim.stat().st_size - 1, error=0, seconds=20)
    done = world.screen({**expected, victim.name: "failed"}, environment=failing(world, bad))
    assert reasons(done)[victim.name] == "decoder_timeout"
    world.screen(expected, codes=(0,))


# ---- packs


@CASES.case("packs", "each file of a pack unreadable at its beginning and in its middle", limit_s=200)
def packs(world: World) -> None:
    expected = world.good_images(2)
    for path in sorted(world.pack.iterdir()):
        for at in {0, path.stat().st_size // 2}:
            bad = Bad(end=f"{world.pack.name}/{path.name}", at=at)
            done = world.run_screen(environment=failing(world, bad)).ends_with(3)
            assert not done.lines
            done.says("it is failing")
    world.screen(expected, codes=(0,))


@CASES.case("pack-once", "a model that cannot be read the first time")
def pack_once(world: World) -> None:
    expected = world.good_images(2)
    environment = failing(world, Bad(end="/model.tflite", at=50, times=1))
    world.run_screen(environment=environment).ends_with(3).says("it is failing")
    world.screen(expected, codes=(0,), environment=environment)


# ---- the program's own files


@CASES.case("store", "the store unreadable in each of its pages, and again when it can be read: nothing is lost")
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


@CASES.case("keys", "the list of trusted keys unreadable once: it is not called damaged")
def keys(world: World) -> None:
    expected = world.good_images(2)
    world.screen(expected, codes=(0,))
    environment = failing(world, Bad(end="/pack_trust.json"))
    done = world.run_screen(environment=environment).ends_with(1, 3)
    done.says("The disk reported an error")
    assert "delete" not in done.err
    world.screen(expected, codes=(0,))


@CASES.case("settings", "settings that cannot be read are not replaced by others", is_quick=True)
def settings(world: World) -> None:
    place = world.write_settings(theme="dark", decoders=3)
    name = world.pack.name.rpartition("-")[0]
    world.run("packs", "trust", world.pack_options[3]).ends_with(0)
    world.run("packs", "install", world.pack).ends_with(0)
    done = world.run("packs", "default", name, environment=failing(world, Bad(end="/settings.json")))
    done.ends_with(1).says("settings.json")
    assert json.loads(place.read_text()) == {"theme": "dark", "decoders": 3}
    world.run("packs", "default", name).ends_with(0)
    kept = json.loads(place.read_text())
    assert kept.pop("pack").startswith(f"{name}@")
    assert kept == {"theme": "dark", "decoders": 3, "operating_point": ""}
