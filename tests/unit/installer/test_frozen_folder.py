"""The frozen folder: files that are removed, libraries it needs of the system, and its size."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import contents
import shared_libraries
import sizes
import trim

LISTING = """
/build/libQt6Gui.so.6:     file format elf64-x86-64

Dynamic Section:
  NEEDED               libEGL.so.1
  NEEDED               libQt6Core.so.6
  NEEDED               libstdc++.so.6
  NEEDED               libc.so.6
  SONAME               libQt6Gui.so.6

Version References:
  required from libc.so.6:
    0x09691a75 0x00 05 GLIBC_2.2.5
    0x06969195 0x00 04 GLIBC_2.35
    0x06969190 0x00 04 GLIBC_2.4
  required from libstdc++.so.6:
    0x0297f869 0x00 07 GLIBCXX_3.4.29
    0x08922974 0x00 06 GLIBCXX_3.4
"""


def test_the_systems_libraries_become_dependencies() -> None:
    needs = shared_libraries.parse_needs(LISTING, held={"libQt6Core.so.6", "libQt6Gui.so.6"})
    assert needs.libraries == {"libEGL.so.1", "libstdc++.so.6", "libc.so.6"}
    assert needs.versions == {"GLIBC": "2.35", "GLIBCXX": "3.4.29"}  # 2.35 is newer than 2.4
    # GCC 11 was the first with GLIBCXX_3.4.29
    assert shared_libraries.dependencies(needs) == ["libc6 (>= 2.35)", "libegl1", "libstdc++6 (>= 11)"]


def test_a_missing_library_stops_the_build() -> None:
    needs = shared_libraries.parse_needs("  NEEDED               libodd.so.7\n", held=())
    with pytest.raises(ValueError, match=r"no package is known for libodd\.so\.7"):
        shared_libraries.dependencies(needs)


def test_libraries_that_nothing_loads_are_not_needed() -> None:
    needed = {
        "a.cpython-311.so": frozenset({"libone.so", "libc.so.6"}),
        "libone.so": frozenset({"libtwo.so"}),
        "x.libs/libtwo.so": frozenset({"libone.so"}),  # a circular dependency
        "libthree.so": frozenset({"libone.so"}),
        "libfour.so": frozenset({"libthree.so"}),
    }
    assert trim.unneeded_files(needed, frozenset({"a.cpython-311.so"})) == {"libthree.so", "libfour.so"}


@pytest.mark.skipif(not all(map(shutil.which, ("gcc", "patchelf", "objdump"))), reason="needs gcc, patchelf, binutils")
@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("/opt/python/lib", []),
        ("$ORIGIN/../x.libs:/home/builder/lib", ["$ORIGIN/../x.libs"]),
        ("$ORIGIN/../absent:$ORIGIN/../../beside:$ORIGIN", ["$ORIGIN"]),
        ("$ORIGIN", ["$ORIGIN"]),
        ("lib:$ORIGIN", ["$ORIGIN"]),  # relative to the current folder of the start
    ],
)
def test_libraries_are_searched_in_the_programs_own_folders_only(tmp_path: Path, written: str, left: list[str]) -> None:
    program = tmp_path / "program"
    for folder in ("program/inside", "program/x.libs", "beside"):
        (tmp_path / folder).mkdir(parents=True)
    library = program / "inside" / "libone.so"
    source = tmp_path / "one.c"
    source.write_text("int one(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, f"-Wl,-rpath,{written}"], check=True)
    assert shared_libraries.search_paths(library) == written.split(":")
    assert shared_libraries.forget_outside_paths(library, program) == (left != written.split(":"))
    assert shared_libraries.search_paths(library) == left
    assert not shared_libraries.outside_paths(library, program)


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
def test_all_files_get_fixed_modes_and_one_time(tmp_path: Path) -> None:
    frozen = tmp_path / "fieldray"
    for place in ("fieldray", "_internal/lib.so", "_internal/fieldray/_data/x.json"):
        (frozen / place).parent.mkdir(parents=True, exist_ok=True)
        (frozen / place).write_bytes(b"x")
    (frozen / "_internal/lib.so").chmod(0o777)
    (frozen / "_internal/link.so").symlink_to("lib.so")
    trim.normalise_files(frozen, epoch_s=1_700_000_000)
    modes = {path.relative_to(frozen).as_posix(): path.lstat().st_mode & 0o777 for path in frozen.rglob("*")}
    assert modes["fieldray"] == modes["_internal"] == modes["_internal/fieldray"] == 0o755
    assert modes["_internal/lib.so"] == modes["_internal/fieldray/_data/x.json"] == 0o644
    times = {path.stat().st_mtime for path in (frozen, *frozen.rglob("*"))}
    assert times == {1_700_000_000}


def test_the_size_of_every_file_counts_for_one_part(tmp_path: Path) -> None:
    made = {
        "fieldray-worker": 1000,
        "_internal/ai_edge_litert/a.so": 20_000,
        "_internal/PySide6/Qt/lib/libQt6Core.so.6": 300,
        "_internal/fieldray/_data/models/p/model.tflite": 4,
        "_internal/fieldray/_data/assets/a.svg": 50,
        "_internal/libpython3.11.so.1.0": 600_000,
    }
    for place, size in made.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"x" * size)
    if sys.platform != "win32":
        (tmp_path / "_internal/libQt6Core.so.6").symlink_to("PySide6/Qt/lib/libQt6Core.so.6")
    parts = {name: size for name, size in sizes.sizes_by_part(tmp_path).items() if size}
    assert parts == {
        "inference: LiteRT": 20_000,
        "window: Qt and PySide6": 300,
        "Fieldray: packs": 4,
        "Fieldray: texts, icons, licences": 50,
        "Python and the rest": 600_000,
        "programs with their Python modules": 1000,
    }
    assert f"all{'':<33}     0.6 MB" in sizes.sizes_table(tmp_path)
    assert os.linesep not in sizes.sizes_table(tmp_path).splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="the modules are in the programs there")
def test_modules_of_several_programs_are_stored_once(tmp_path: Path) -> None:
    for name in contents.PROGRAMS:
        (tmp_path / f"{name}.pkg").write_bytes(b"modules")
    trim.share_modules(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.is_symlink()] == ["fieldray.pkg"]
    assert {(tmp_path / f"{name}.pkg").read_bytes() for name in contents.PROGRAMS} == {b"modules"}


def test_programs_with_different_modules_cannot_be_merged(tmp_path: Path) -> None:
    for number, name in enumerate(contents.PROGRAMS):
        (tmp_path / f"{name}.pkg").write_bytes(bytes([number]))
    with pytest.raises(RuntimeError, match="no longer share"):
        trim.share_modules(tmp_path)
    assert not any(path.is_symlink() for path in tmp_path.iterdir())
