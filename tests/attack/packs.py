"""Attack cases: hostile packs, as anybody could sign them and bring them on a drive."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from harness.case import Group, NotPossible
from harness.world import World
from tiny_packs import edited, fingerprint, npy_file, sign, with_file, write_tiny_pack

CASES = Group("packs")
_SPARSE_BYTES: Final = 256 * 2**30

MakePack = Callable[[Path], Path]


def after_writing(change: Callable[[Path], object]) -> MakePack:
    """Return a function that makes the tiny pack and then changes its folder."""

    def make(folder: Path) -> Path:
        pack = write_tiny_pack(folder)
        change(pack)
        return pack

    return make


def with_metric(text: str) -> MakePack:
    """Return a function that makes a signed pack with this raw text as the JSON of a metric."""
    old, new = b'"metrics": {}', b'"metrics": {"strange": %s}' % text.encode()

    def rewrite(pack: Path) -> None:
        data = (pack / "manifest.json").read_bytes()
        assert old in data
        sign(pack, data.replace(old, new, 1))

    return after_writing(rewrite)


def with_values(*place: str | int, **values: object) -> MakePack:
    """Return a function that makes the tiny pack with these values at a path in its manifest."""

    def change(document: Any) -> None:
        for step in place:
            document = document[step]
        document.update(values)

    return lambda folder: edited(folder, change)


def with_array(name: str, data: bytes) -> MakePack:
    """Return a function that makes the tiny pack with these bytes as one of its array files."""
    return lambda folder: with_file(folder, name, data)


def with_replaced(name: str, make: Callable[[Path], None]) -> MakePack:
    """Return a function that makes the tiny pack and replaces one file by what `make` creates."""

    def replace(pack: Path) -> None:
        (pack / name).unlink()
        make(pack / name)

    return after_writing(replace)


def with_signature(change: Callable[[bytes], bytes]) -> MakePack:
    """Return a function that makes the tiny pack with a changed signature file."""

    def write(pack: Path) -> None:
        data = (pack / "manifest.sig").read_bytes()
        assert change(data) != data
        (pack / "manifest.sig").write_bytes(change(data))

    return after_writing(write)


def device(path: Path) -> None:
    """Make a device node like /dev/zero."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError as error:
        raise NotPossible("only root can make a device node") from error


def sparse(path: Path) -> None:
    """Make a sparse file of 256 GB."""
    try:
        with path.open("wb") as file:
            file.truncate(_SPARSE_BYTES)
    except OSError as error:
        raise NotPossible("this file system holds no file of 256 GB") from error


def loose_base64(data: bytes) -> bytes:
    """Return the signature file with the unused last bits of the base64 text set. It decodes to the same 64 bytes."""
    parts = json.loads(data)
    text = parts["signature"]
    at = text.index("=") - 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    loose = text[:at] + letters[letters.index(text[at]) | 1] + text[at + 1 :]
    return (json.dumps({**parts, "signature": loose}, sort_keys=True) + "\n").encode()


def evil_pickle() -> bytes:
    """Return a .npy file that runs a command when it is unpickled. The command makes the file `pickle-ran`."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch pickle-ran",)

    header = "{'descr': '|O', 'fortran_order': False, 'shape': (5, 64, 64, 1), }"
    return npy_file(header, pickle.dumps(Evil()))


BROKEN: Final[Mapping[str, tuple[str, MakePack]]] = {
    "manifest-fifo": ("manifest.json is a FIFO", with_replaced("manifest.json", os.mkfifo)),
    "model-device": ("the model file is the device /dev/zero", with_replaced("model.tflite", device)),
    "model-sparse": ("the model file is a sparse file of 256 GB", with_replaced("model.tflite", sparse)),
    "metric-nan": ("a metric is NaN", with_metric("NaN")),
    "metric-nested": ("600 nested lists in a metric", with_metric("[" * 600 + "]" * 600)),
    "name-traversal": (
        "the model file is named ../../etc/passwd",
        with_values("files", "litert", name="../../etc/passwd"),
    ),
    "names-escape": ("a terminal escape sequence in the pack's name", with_values("names", en="Tiny\x1b[2J")),
    "npy-pickle": (
        "a pickle in the golden inputs that would run a command",
        with_array("golden_inputs.npy", evil_pickle()),
    ),
    "signature-bits": ("the unused last bits of the signature's base64 text are set", with_signature(loose_base64)),
}


@CASES.table(BROKEN, quick=("metric-nan", "name-traversal"))
def broken(world: World, make: MakePack) -> None:
    """Every command refuses the pack with exit code 3. The pack leaves no trace, and none of its code runs."""
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
