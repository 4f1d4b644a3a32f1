"""Packs: what a drive signed by anybody may hold."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from attack.hostile_packs import edited, nested, npy_file, rewritten, sign, with_file
from harness.case import Group, NotPossible
from harness.world import World
from packs_factory import key
from tiny_models import tiny_inputs
from tiny_packs import fingerprint, write_tiny_pack

CASES = Group("packs")
_SPARSE_BYTES: Final = 256 * 2**30
_INSTALLS: Final = 24

MakePack = Callable[[Path], Path]


def metric(text: str) -> MakePack:
    """A pack with this JSON as a metric."""
    return lambda folder: rewritten(folder, b'"metrics": {}', b'"metrics": {"strange": %s}' % text.encode())


def field(path: str, value: object) -> MakePack:
    """A pack with another value somewhere in its description."""

    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for step in parents:
            document = document[step]
        document[last] = value

    return lambda folder: edited(folder, change)


def array(name: str, data: bytes) -> MakePack:
    """A pack with this as one of its arrays."""
    return lambda folder: with_file(folder, name, data)


def replaced(name: str, make: Callable[[Path], None]) -> MakePack:
    """A pack one of whose files is something else."""

    def made(folder: Path) -> Path:
        pack = write_tiny_pack(folder)
        (pack / name).unlink()
        make(pack / name)
        return pack

    return made


def signature(change: Callable[[bytes], bytes]) -> MakePack:
    """A pack with its signature written in another way."""

    def make(folder: Path) -> Path:
        pack = write_tiny_pack(folder)
        data = (pack / "manifest.sig").read_bytes()
        assert change(data) != data
        (pack / "manifest.sig").write_bytes(change(data))
        return pack

    return make


def device(path: Path) -> None:
    """Make a node that gives zeros without end."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError as error:
        raise NotPossible("only root can make a device node") from error


def sparse(path: Path) -> None:
    """A file of 256 GB that takes no room."""
    try:
        with path.open("wb") as file:
            file.truncate(_SPARSE_BYTES)
    except OSError as error:
        raise NotPossible("this file system holds no file of 256 GB") from error


def loose_base64(data: bytes) -> bytes:
    """The same 64 bytes, with the unused last bits set."""
    parts = json.loads(data)
    text = parts["signature"]
    at = text.index("=") - 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    loose = text[:at] + letters[letters.index(text[at]) | 1] + text[at + 1 :]
    return (json.dumps({**parts, "signature": loose}, sort_keys=True) + "\n").encode()


def evil_pickle() -> bytes:
    """An array file that makes a file when it is unpickled."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch pickle-ran",)

    header = "{'descr': '|O', 'fortran_order': False, 'shape': (5, 64, 64, 1), }"
    return npy_file(header, pickle.dumps(Evil()))


_INPUTS = tiny_inputs().tobytes()
_UINT8 = "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }"
_SCORES = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 1), }"

BROKEN: Final[Mapping[str, tuple[str, MakePack]]] = {
    "manifest-fifo": ("manifest.json is a FIFO", replaced("manifest.json", os.mkfifo)),
    "signature-fifo": ("manifest.sig is a FIFO", replaced("manifest.sig", os.mkfifo)),
    "model-fifo": ("the model is a FIFO", replaced("model.tflite", os.mkfifo)),
    "model-device": ("the model is /dev/zero's device node", replaced("model.tflite", device)),
    "manifest-sparse": ("manifest.json of 256 GB, sparse", replaced("manifest.json", sparse)),
    "model-sparse": ("the model is 256 GB, sparse", replaced("model.tflite", sparse)),
    "model-link": (
        "the model is a link to /etc/passwd",
        replaced("model.tflite", lambda p: p.symlink_to("/etc/passwd")),
    ),
    "model-folder": ("the model is a folder", replaced("model.tflite", Path.mkdir)),
    "doubled-keys": (
        "the description has a key twice",
        lambda folder: rewritten(folder, b'"id": "tiny"', b'"id": "other", "id": "tiny"'),
    ),
    "metric-nan": ("a metric is NaN", metric("NaN")),
    "metric-infinity": ("a metric is 1e999", metric("1e999")),
    "metric-digits": ("a metric has 5,000 digits", metric("9" * 5000)),
    "metric-nested": ("600 nested lists in a metric", metric(nested(600))),
    "metric-deeper": ("100,000 nested lists in a metric", metric(nested(100_000))),
    "metric-surrogate": ("half a surrogate pair in a metric", metric('"\\ud800"')),
    "name-traversal": ("the model is ../../etc/passwd", field("files/litert/name", "../../etc/passwd")),
    "name-absolute": ("the model is /etc/passwd", field("files/litert/name", "/etc/passwd")),
    "name-windows": ("the model is ..\\\\C:model.tflite", field("files/litert/name", "..\\C:model.tflite")),
    "name-nul": ("the model's name holds a NUL", field("files/litert/name", "model.tflite\0")),
    "name-number": ("the model's name is no text", field("files/litert/name", 7)),
    "version-short": ("version 1.0", field("version", "1.0")),
    "version-zeros": ("version 01.0.0", field("version", "01.0.0")),
    "version-sign": ("version -1.0.0", field("version", "-1.0.0")),
    "version-break": ("version with a line break at its end", field("version", "1.0.0\n")),
    "version-arabic": ("version in Arabic digits", field("version", "\u0661.\u0660.\u0660")),
    "version-digits": ("version of 4,000 digits", field("version", "9" * 4000 + ".0.0")),
    "names-break": ("a line break in the pack's name", field("names/en", "Tiny\nnormal 0.01")),
    "names-bidi": ("a right-to-left override in its name", field("names/uk", "Tiny\u202egnp")),
    "names-escape": ("a terminal's escape in its name", field("names/en", "Tiny\x1b[2J")),
    "npy-pickle": ("golden inputs that run a command when unpickled", array("golden_inputs.npy", evil_pickle())),
    "npy-true": (
        "an array of shape (True,)",
        array("golden_scores.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }", b"\0" * 4)),
    ),
    "npy-true-inside": (
        "an array of shape (5, 64, 64, True)",
        array("golden_inputs.npy", npy_file(_UINT8 % "(5, 64, 64, True)", _INPUTS)),
    ),
    "npy-signs": (
        "an array header with 9,000 minus signs",
        array("golden_inputs.npy", npy_file(_UINT8 % ("(" + "-" * 9000 + "5, 64, 64, 1)"), _INPUTS)),
    ),
    "npy-brackets": (
        "an array header with 2,000 brackets",
        array("golden_inputs.npy", npy_file(_UINT8 % ("(" * 2000 + ")" * 2000), _INPUTS)),
    ),
    "npy-vast": (
        "an array header that promises 2**62 values",
        array("golden_inputs.npy", npy_file(_UINT8 % f"({2**40}, {2**11}, {2**11}, 1)", _INPUTS)),
    ),
    "npy-nan": ("a golden score is NaN", array("golden_scores.npy", npy_file(_SCORES, b"\xff" * 20))),
    "signature-space": ("a space after the signature", signature(lambda data: data + b" ")),
    "signature-key": ("a third entry beside the signature", signature(lambda data: data.replace(b"{", b'{"a": 1, '))),
    "signature-bits": ("the signature's unused last bits set", signature(loose_base64)),
    "signature-absent": ("no signature", signature(lambda _: b"")),
    "signature-vast": ("a signature of 2 MB", signature(lambda data: data * 8000)),
}


@CASES.table(BROKEN, quick=("metric-nan", "name-traversal"))
def broken(world: World, make: MakePack) -> None:
    """It is refused as a broken pack by every command, leaves no trace, and nothing of it runs."""
    world.good_images(1)
    trust = ("--trust", fingerprint(write_tiny_pack(world.folder / "good")))
    (world.folder / "hostile").mkdir()
    pack = make(world.folder / "hostile")
    for arguments in (["packs", "verify", pack], ["packs", "install", pack, *trust]):
        world.run(*arguments).ends_with(3)
    refused = world.run("screen", world.images, "--pack", pack, *trust, "--json", "-").ends_with(3).takes()
    assert refused.out == "", "an image was screened with it"
    assert not list((world.home / "packs").glob("*")), "it was installed"
    assert not list(world.folder.rglob("pickle-ran")), "a command of the pack ran"
    record = world.home / "pack_trust.json"
    assert not record.exists() or b'"1.0.0"' not in record.read_bytes(), "its version was recorded"


def put_broken(world: World, place: Path) -> list[str]:
    """Every pack whose description is broken, as folders of `place`; a listing looks no further than descriptions."""
    names = [name for name in BROKEN if name.startswith(("metric", "doubled", "version", "name", "signature"))]
    for name in names:
        (world.folder / name).mkdir()
        shutil.move(BROKEN[name][1](world.folder / name), place / name)
    return names


@CASES.case("broken-beside-good", "broken packs installed beside a good one, which must work by name", limit_s=90)
def broken_beside_good(world: World) -> None:
    expected = world.good_images(2)
    installed = world.home / "packs"
    installed.mkdir(parents=True)
    put_broken(world, installed)
    shutil.copytree(world.pack, installed / "tiny-1.0.0")
    listed = world.run("packs", "list").ends_with(0)
    assert "tiny-1.0.0" in listed.out
    assert not {"\x1b", "\u202e"} & set(listed.out), "a pack's name moves the cursor"
    trust = world.pack_options[2:]
    world.run("screen", world.images, "--pack", "tiny", *trust, "--json", "-").ends_with(0).has(expected)
    plain = world.run("screen", world.images, "--pack", "pneumonia-paediatric", "--json", "-").ends_with(0, 1)
    assert len(plain.lines) == len(expected)


@CASES.case("drive", "a drive of broken packs is listed, each as broken", limit_s=60)
def drive(world: World) -> None:
    place = world.folder / "drive" / "fieldray"
    place.mkdir(parents=True)
    names = put_broken(world, place)
    listed = world.run("packs", "list", place.parent).ends_with(0)
    for name in names:
        lines = [line for line in listed.out.splitlines() if line.startswith(name + " ")]
        assert len(lines) == 1 and " broken " in lines[0], f"{name} is not listed as broken: {lines}"


@CASES.case("swapped", f"files swapped under {_INSTALLS} installs: what is installed is whole or nothing", limit_s=120)
def swapped(world: World) -> None:
    good = world.pack
    other = write_tiny_pack(world.folder / "other", key_number=2)
    for path in other.iterdir():  # another content for every file
        path.write_bytes(path.read_bytes()[::-1])
    live = world.folder / "live" / good.name
    shutil.copytree(good, live)
    is_over = threading.Event()

    def swap() -> None:
        for turn in count():
            if is_over.is_set():
                return
            for name in sorted(path.name for path in good.iterdir()):
                beside = live / f".{name}"
                shutil.copyfile((good, other)[turn % 2] / name, beside)
                beside.replace(live / name)

    swapper = threading.Thread(target=swap, name="swapper", daemon=True)
    swapper.start()
    try:
        for _ in range(_INSTALLS):
            shutil.rmtree(world.home / "packs", ignore_errors=True)
            done = world.run("packs", "install", live, *world.pack_options[2:]).ends_with(0, 3)
            left = list((world.home / "packs").glob("*"))
            assert len(left) == (done.code == 0), f"left behind: {left}"
            if done.code == 0:
                assert digest(left[0]) == digest(good), "what was installed is not what was signed"
    finally:
        is_over.set()
        swapper.join()


def digest(pack: Path) -> dict[str, str]:
    """SHA-256 of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in pack.iterdir()}


@CASES.case("tampered", "one byte changed in each file of a pack", limit_s=60)
def tampered(world: World) -> None:
    for name in sorted(path.name for path in world.pack.iterdir()):
        pack = world.folder / "tampered"
        shutil.copytree(world.pack, pack)
        data = bytearray((pack / name).read_bytes())
        data[len(data) // 2] ^= 1
        (pack / name).write_bytes(data)
        world.run("packs", "verify", pack).ends_with(3)
        shutil.rmtree(pack)


@CASES.case("rollback", "an older version after a newer one, by folder, by id and by install")
def rollback(world: World) -> None:
    expected = world.good_images(1)
    old, new = (write_tiny_pack(world.folder / "packs", version=number) for number in ("1.0.0", "1.0.10"))
    trust = ("--trust", fingerprint(new))
    world.run("screen", world.images, "--pack", new, *trust, "--json", "-").ends_with(0)
    world.run("screen", world.images, "--pack", old, *trust, "--json", "-").ends_with(3).says("older")
    world.run("packs", "install", old, *trust).ends_with(3).says("older")
    world.run("screen", world.images, "--pack", old, "--allow-older", "--json", "-").ends_with(0).has(expected)
    world.run("screen", world.images, "--pack", old, "--json", "-").ends_with(3)


@CASES.case("lock-out", "a garbage model of version 999999.0.0, then the good one")
def lock_out(world: World) -> None:
    expected = world.good_images(1)
    garbage = with_file(world.folder / "far", "model.tflite", b"TFL3" + bytes(5000), version="999999.0.0")
    trust = ("--trust", fingerprint(garbage))
    world.run("screen", world.images, "--pack", garbage, *trust, "--json", "-").ends_with(3)
    world.screen(expected, codes=(0,))


@CASES.case("other-key", "a pack signed by another key, with --trust of the usual one")
def other_key(world: World) -> None:
    world.good_images(1)
    other = write_tiny_pack(world.folder / "other", key_number=2)
    done = world.run("screen", world.images, "--pack", other, *world.pack_options[2:], "--json", "-").ends_with(3)
    assert done.out == ""
    other_signature = (other / "manifest.sig").read_bytes()
    (world.pack / "manifest.sig").write_bytes(other_signature)
    world.run("screen", world.images, *world.pack_options, "--json", "-").ends_with(3)


@CASES.case("trust-record", "the record of trusted keys cut, nested 600 deep, a folder, a FIFO", limit_s=60)
def trust_record(world: World) -> None:
    expected = world.good_images(1)
    world.screen(expected, codes=(0,))
    record = world.home / "pack_trust.json"
    good = record.read_bytes()
    for data in (good[:-5], b"", b'{"format":1,"keys":{},"seen":' + nested(600).encode() + b"}", b"\xff" * 100):
        record.write_bytes(data)
        done = world.run("screen", world.images, *world.pack_options[:2], "--json", "-").ends_with(1, 3)
        assert done.out == "", "a pack was used without a record of trust"
    record.write_bytes(good)
    world.screen(expected, codes=(0,))


@CASES.case("many", "300 broken packs on one drive", limit_s=60)
def many(world: World) -> None:
    place = world.folder / "drive" / "fieldray"
    place.mkdir(parents=True)
    for number in range(300):
        (place / f"p{number:03}").mkdir()
        sign(place / f"p{number:03}", b"{}" * number, key_number=1 + number % 9)
    assert key(1)
    world.run("packs", "list", place.parent).ends_with(0)


@CASES.case("star", "files named as options and commands, screened with `*`", is_quick=True)
def star(world: World) -> None:
    expected = world.good_images(2)
    key_named = fingerprint(world.pack)
    record = world.home / "pack_trust.json"
    pack = ("--pack", world.pack, "--json", "-")
    for names, rest in (((f"--trust={key_named}",), pack), (("packs", "trust", f"\u3000{key_named}"), ())):
        for name in names:
            (world.images / name).touch()
        there = sorted(path.name for path in world.images.iterdir())
        words = ["screen", *there] if rest else [name for name in there if name in names]
        world.run(*words, *rest, cwd=world.images).ends_with(2)
        assert not record.exists(), "a key was trusted by the names of files"
        for name in names:
            (world.images / name).unlink()
    world.screen(expected, codes=(0,))
