"""Remove unneeded files from a frozen program, and set modes and times of its files, so that builds are equal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import shared_libraries
from contents import PROGRAMS

_PROGRAMS: Final = frozenset({*PROGRAMS, "add-to-menu"})
# Libraries with large symbol tables, which only a debugger reads. Stripping breaks libraries that were patched after
# linking, so such libraries are not in this list.
_STRIPPED: Final = (
    "libpython3*.so*",
    "python3*/lib-dynload/*.so",
    "PIL/*.so",
    "ai_edge_litert/libpywrap_litert_common.so",
    "cryptography/hazmat/bindings/_rust.abi3.so",
    "fontTools/*/*.so",
    "uharfbuzz/*.abi3.so",
    "imagecodecs/*.abi3.so",
)
# Files that are loaded by the program itself or by name, so no other file needs to name them.
_ROOTS: Final = ("*.cpython-*.so", "*.abi3.so", "*/plugins/*", "libpython3*", "ai_edge_litert/*")


def trim(frozen: Path) -> None:
    """Make a frozen program smaller and safer. Empty folders are removed.

    On Linux, symbols, unused libraries, and search paths outside the program are removed, too.
    """
    inside = frozen / "_internal"
    if sys.platform == "linux":
        for path in sorted({path for pattern in _STRIPPED for path in inside.glob(pattern)}):
            if not path.is_symlink():
                subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
        for path in _unneeded(inside):
            path.unlink()
        for path in shared_libraries.elf_files(frozen):
            shared_libraries.forget_outside_paths(path, frozen)
        for path in inside.rglob("*"):
            if path.is_symlink() and not path.exists():
                path.unlink()
        share_modules(frozen)
    for folder in sorted((path for path in inside.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            shutil.rmtree(folder)


def share_modules(frozen: Path) -> None:
    """Keep one copy of the archive of Python modules, and replace the other programs' copies by links.

    Raises RuntimeError if the copies differ.
    """
    first, *others = (frozen / f"{name}.pkg" for name in PROGRAMS)
    for other in others:
        if other.read_bytes() != first.read_bytes():
            raise RuntimeError(f"{other.name} and {first.name} differ: the programs no longer share their modules")
        other.unlink()
        other.symlink_to(first.name)


def unneeded_files(needed: Mapping[str, frozenset[str]], roots: frozenset[str]) -> set[str]:
    """Return the paths of the files that no file in `roots` needs, directly or through other files.

    `needed` has, for each path, the names of the libraries that the file needs.
    """
    by_name: dict[str, list[str]] = {}
    for place in needed:
        by_name.setdefault(Path(place).name, []).append(place)
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += [other for name in needed[place] for other in by_name.get(name, [])]
    return set(needed) - reached


def normalise_files(folder: Path, *, epoch_s: int) -> None:
    """Give every file and folder the usual mode and the time `epoch_s` (seconds since 1970): builds become equal."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        is_program = path.name.removesuffix(".exe") in _PROGRAMS
        path.chmod(0o755 if path.is_dir() or is_program else 0o644)
        os.utime(path, (epoch_s, epoch_s))


def _unneeded(inside: Path) -> list[Path]:
    files = {path.relative_to(inside).as_posix(): path for path in shared_libraries.elf_files(inside)}
    needed = {place: shared_libraries.needed_by(path) for place, path in files.items()}
    roots = frozenset(place for place in files if any(fnmatchcase(place, pattern) for pattern in _ROOTS))
    return [files[place] for place in sorted(unneeded_files(needed, roots))]
