"""Acts on files other than the results database: packs, settings, trusted keys, folders, local operating points."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from fieldray.errors import FieldrayError, UsageProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.signing import TrustStore
from fieldray.packs.site_choices import LocalPointFile, RememberedPacks
from fieldray.packs.verified import read_pack
from fieldray.reports.exporter import pseudonym_key
from fieldray.settings import Settings, load_settings
from packs_factory import make_pack, site_point
from powercut.place import Emit, Log, Lost, Place, do_each, require
from tiny_packs import fingerprint

_PACK: Final = "test-chest-1.2.3"
_KEYS: Final = ("-".join(["1111"] * 16), "-".join(["2222"] * 16))


# ---- packs


def prepare_packs(place: Place) -> None:
    """Make a home that trusts a key, and a drive with a pack, another with the same name, and a newer version."""
    place.clear()
    if not (place.drive / "first").exists():
        for name, slope in (("first", "first"), ("second", "second")):
            make_pack(place.drive / name, names={"en": slope, "uk": slope})
        make_pack(place.drive / "third", version="2.0.0")
    PackLibrary(place.home).trust_store.trust(fingerprint(place.drive / "first" / _PACK))


def install(place: Place, emit: Emit) -> None:
    """Install a pack, then another one in its place, then a newer version next to it. Raises the last failure."""
    library = PackLibrary(place.home)

    def once(name: str) -> tuple[str, str, str]:
        (folder,) = (place.drive / name).iterdir()
        return "installed", name, library.install(folder).name

    do_each(emit, [partial(once, name) for name in ("first", "second", "third")])


def check_packs(place: Place, log: Log, end: str) -> None:
    """Reported packs are installed, every pack is whole, and installing all again leaves no other files."""
    root = place.home / "packs"
    found = {path.name: _name_of(path) for path in root.iterdir() if path.name[0] != "."} if root.is_dir() else {}
    for name in (event[2] for event in log if event[0] == "installed"):
        require(name in found, f"told as installed, but gone: {name}")
    library = PackLibrary(place.home)
    usable = [pack for pack in library.installed() if pack.trust == "trusted"]
    require(len(usable) == len(found), "a pack that is there is not listed as usable")
    for name in ("second", "third"):
        library.install(next((place.drive / name).iterdir()))
    left = sorted(path.name for path in root.iterdir())
    require(left == [_PACK, "test-chest-2.0.0"], f"after the next installation there are {left}")


def _name_of(folder: Path) -> str:
    try:
        manifest = read_pack(folder).manifest
    except FieldrayError as problem:
        raise Lost(f"half a pack: {folder.name}, {problem.reason.code}") from problem
    return manifest.content.names["en"]


# ---- settings and other small files

Step = tuple[str, Callable[[Path], object]]


def _steps(place: Place) -> list[Step]:
    return [
        ("theme dark", lambda home: Settings({"theme": "dark"}).save(home / "settings.json")),
        ("decoders 3", lambda home: Settings({"theme": "dark", "decoders": 3}).save(home / "settings.json")),
        ("key 0", lambda home: TrustStore(home).trust(_KEYS[0])),
        ("key 1", lambda home: TrustStore(home).trust(_KEYS[1])),
        (
            "version",
            lambda home: TrustStore(home).record_used_version(
                _KEYS[0], pack_id="tiny", version="1.0.0", manifest_sha256="0" * 64
            ),
        ),
        ("without key 1", lambda home: TrustStore(home).forget(_KEYS[1])),
        ("images", lambda home: RememberedPacks(home).remember([place.images], "tiny")),
        ("drive", lambda home: RememberedPacks(home).remember([place.drive], "other")),
        ("point a", lambda home: LocalPointFile(home).add(site_point(name="a"))),
        ("point b", lambda home: LocalPointFile(home).add(site_point(name="b"))),
        ("without point a", lambda home: LocalPointFile(home).remove("a", _PACK, "a" * 64)),
        ("pseudonyms", pseudonym_key),
    ]


def keep(place: Place, emit: Emit) -> None:
    """Save one thing after another. Raises the last failure."""

    def once(name: str, step: Callable[[Path], object]) -> tuple[str, str]:
        emit("begun", name)
        try:
            step(place.home)
        except UsageProblem:  # nothing to remove, because saving it had failed
            return "left", name
        return "kept", name

    do_each(emit, [partial(once, *step) for step in _steps(place)])


def check_kept(place: Place, log: Log, end: str) -> None:
    """Every file can be read, and everything reported as saved is there."""
    kept = [event[1] for event in log if event[0] == "kept"]
    begun = {event[1] for event in log if event[0] == "begun"}
    settings, problems = load_settings(place.home / "settings.json")
    if problems:
        raise Lost(f"the settings cannot be read: {problems[0].text}")
    trust, points = TrustStore(place.home), LocalPointFile(place.home)
    keys = set(trust.trusted_key_dates())
    names = {point.name for point in points.all_points()}
    memory = RememberedPacks(place.home)
    holds = {
        "theme dark": settings["theme"] == "dark",
        "decoders 3": settings["decoders"] == 3,
        "key 0": _KEYS[0] in keys,
        "key 1": _KEYS[1] in keys or "without key 1" in begun,
        "version": trust.highest_version(_KEYS[0], pack_id="tiny") == "1.0.0",
        "without key 1": _KEYS[1] not in keys,
        "images": (found := memory.find([place.images])) is not None and found.pack == "tiny",
        "drive": (found := memory.find([place.drive])) is not None and found.pack == "other",
        "point a": "a" in names or "without point a" in begun,
        "point b": "b" in names,
        "without point a": "a" not in names,
        "pseudonyms": (place.home / "pseudonym.key").is_file(),
    }
    if lost := [name for name in kept if not holds[name]]:
        raise Lost(f"told as kept, but gone: {lost}")
    for _, step in _steps(place):
        try:
            step(place.home)
        except FieldrayError as problem:
            if problem.reason.code not in ("site_point_name", "site_point_unknown"):
                raise Lost(f"it cannot be done again: {problem.reason.text}") from problem
