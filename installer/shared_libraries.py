"""Find the system libraries that a frozen program needs, by its ELF files, and the Debian packages that have them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The Debian package of each library, on Debian 12 or later and Ubuntu 22.04 or later. Some packages have two names.
PACKAGES: Final[Mapping[str, str]] = {
    "ld-linux-x86-64.so.2": "libc6",
    "libc.so.6": "libc6",
    "libdl.so.2": "libc6",
    "libm.so.6": "libc6",
    "libpthread.so.0": "libc6",
    "libresolv.so.2": "libc6",
    "librt.so.1": "libc6",
    "libutil.so.1": "libc6",
    "libgcc_s.so.1": "libgcc-s1",
    "libstdc++.so.6": "libstdc++6",
    "libz.so.1": "zlib1g",
    "libexpat.so.1": "libexpat1",
    "libuuid.so.1": "libuuid1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libglib-2.0.so.0": "libglib2.0-0t64 | libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0t64 | libglib2.0-0",
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libGLX.so.0": "libglx0",
    "libOpenGL.so.0": "libopengl0",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libX11.so.6": "libx11-6",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb.so.1": "libxcb1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libzstd.so.1": "libzstd1",
}
_NEEDED: Final = re.compile(r"^\s+NEEDED\s+(\S+)$", re.MULTILINE)
_SEARCHED: Final = re.compile(r"^\s+(?:RPATH|RUNPATH)\s+(.*)$", re.MULTILINE)
_ORIGIN: Final = ("$ORIGIN", "${ORIGIN}")  # the folder of the file itself (ld.so(8))
_VERSION: Final = re.compile(r"\b(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)\b")
_VERSIONED: Final = {"GLIBC": "libc6", "GLIBCXX": "libstdc++6"}
# The first release of GCC with each version of its C++ library (gcc.gnu.org, "ABI Policy and Guidelines").
_GCC: Final = {"3.4.26": "9", "3.4.28": "9.3", "3.4.29": "11", "3.4.30": "12", "3.4.31": "13", "3.4.32": "13.2"}


@dataclass(frozen=True, slots=True)
class LibraryNeeds:
    """The needs of a frozen program: system libraries that it does not contain, and minimum versions.

    The versions are the newest GLIBC and GLIBCXX that a file of the program needs.
    """

    libraries: frozenset[str]
    versions: Mapping[str, str]


def find_needs(folder: Path) -> LibraryNeeds:
    """Return the needs of a frozen program, by reading every ELF file in the folder with objdump.

    Raises OSError, CalledProcessError.
    """
    return parse_needs(_listing(elf_files(folder)), held={path.name for path in folder.rglob("*.so*")})


def elf_files(folder: Path) -> list[Path]:
    """Return the paths of all ELF files (programs and libraries) in a folder. Links are left out."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink() and _is_elf(path)]


def needed_by(file: Path) -> frozenset[str]:
    """Return the names of the libraries that the ELF file `file` needs."""
    return frozenset(_NEEDED.findall(_listing([file])))


def search_paths(file: Path) -> list[str]:
    """Return the folders in which the loader searches the libraries of an ELF file before the system folders.

    These folders are the RUNPATH of the file (see ld.so(8)).
    """
    return [folder for line in _SEARCHED.findall(_listing([file])) for folder in line.split(":") if folder]


def outside_paths(file: Path, program: Path) -> list[str]:
    """Return those search paths of an ELF file that are outside `program`, the folder of the program."""
    return [folder for folder in search_paths(file) if not _is_inside(folder, file, program)]


def forget_outside_paths(file: Path, program: Path) -> bool:
    """Remove search paths outside `program` from an ELF file. Returns whether the file had such paths.

    Such paths are folders of the build computer, or next to the installed program. A user who can make such a folder
    could let the program load any library. Raises CalledProcessError, and FileNotFoundError if patchelf is missing.
    """
    found = search_paths(file)
    kept = [folder for folder in found if _is_inside(folder, file, program)]
    if kept == found:
        return False
    change = ["--set-rpath", ":".join(kept)] if kept else ["--remove-rpath"]
    subprocess.run(["patchelf", *change, str(file)], check=True)
    return True


def _is_inside(folder: str, file: Path, program: Path) -> bool:
    if not folder.startswith(_ORIGIN):
        return False
    for origin in _ORIGIN:
        folder = folder.replace(origin, str(file.parent))
    found = Path(folder).resolve()
    return found.is_dir() and found.is_relative_to(program.resolve())


def parse_needs(listing: str, *, held: Iterable[str]) -> LibraryNeeds:
    """Return the needs in the output of `objdump -p`. `held` are the names of libraries that the program contains."""
    versions: dict[str, str] = {}
    for family, version in _VERSION.findall(listing):
        versions[family] = max(versions.get(family, "0"), version, key=_number)
    return LibraryNeeds(frozenset(_NEEDED.findall(listing)) - frozenset(held), versions)


def dependencies(needs: LibraryNeeds) -> list[str]:
    """Return the entries of the field Depends of the .deb package, for the needs of a frozen program.

    Raises ValueError for a library that no package in `PACKAGES` has.
    """
    unknown = sorted(needs.libraries - PACKAGES.keys())
    if unknown:
        raise ValueError(f"no package is known for {', '.join(unknown)}")
    packages = {PACKAGES[library] for library in needs.libraries}
    least = {_VERSIONED[family]: version for family, version in needs.versions.items()}
    if "libstdc++6" in least:
        least["libstdc++6"] = next(gcc for lib, gcc in _GCC.items() if _number(lib) >= _number(least["libstdc++6"]))
    return sorted(f"{package} (>= {least[package]})" if package in least else package for package in packages)


def _listing(files: Iterable[Path]) -> str:
    return subprocess.run(["objdump", "-p", *map(str, files)], capture_output=True, text=True, check=True).stdout


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
