"""List the third-party parts of a frozen program: Python distributions, Python, and native libraries, with licences.

A native library is an error if it belongs to no distribution and to no row of `native_parts.toml`. This module needs
the Python of the build environment, which has the complete record of every distribution.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

_HERE: Final = Path(__file__).resolve().parent
_TEXTS: Final = _HERE / "licence_texts"
_TEXT_NAMES: Final = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_NATIVE: Final = re.compile(r"(\.so(\.[\w.]+)?|\.dll|\.pyd|\.dylib)$")
_INSIDE: Final = "_internal"
# SPDX licences of distributions whose metadata has no SPDX licence.
_LICENCES: Final = {
    "ai-edge-litert": "Apache-2.0",
    "cryptography": "Apache-2.0 OR BSD-3-Clause",
    "pydicom": "MIT",
    "pyside6-essentials": "LGPL-3.0-only",
    "shiboken6": "LGPL-3.0-only",
}

Kind = Literal["distribution", "native", "interpreter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A third-party part of the frozen program: name, version, licence, licence texts, and files in the program."""

    name: str
    version: str
    licence: str
    kind: Kind
    package_url: str
    texts: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def list_parts(frozen: Path) -> list[Part]:
    """Return all third-party parts of a frozen program, sorted by name.

    Raises ValueError for a native library of unknown origin.
    """
    native = [path for path in file_paths(frozen) if _NATIVE.search(path.rpartition("/")[2])]
    found = {part.name: part for part in _distributions(frozen, native)}
    found["Python"] = _interpreter()
    brought = {file for part in found.values() for file in part.files}
    for part in _native_parts([path for path in native if path not in brought], found):
        found[part.name] = part
    return sorted(found.values(), key=lambda part: part.name.lower())


def file_paths(frozen: Path) -> list[str]:
    """Return the paths of all files in a frozen program, relative to its folder and with /. Links are left out."""
    files = (path for path in frozen.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path.relative_to(frozen).as_posix() for path in files)


def _distributions(frozen: Path, native: Iterable[str]) -> Iterator[Part]:
    by_module = metadata.packages_distributions()
    tops = {module.partition(".")[0] for module in module_names(frozen)} | {
        path.split("/")[1].partition(".")[0] for path in native if path.startswith(f"{_INSIDE}/")
    }
    names = {name for top in tops for name in by_module.get(top, ())} - {"fieldray"}
    for name in sorted({*names, "pyinstaller"}):
        found = metadata.distribution(name)
        files = {f"{_INSIDE}/{file.as_posix()}" for file in found.files or ()}
        yield _distribution(found, tuple(path for path in native if path in files and _row(path) is None))


def module_names(frozen: Path) -> set[str]:
    """Return the names of all Python modules in a frozen program, inside the executables or as files."""
    from PyInstaller.archive.readers import CArchiveReader  # only installed in the build environment

    found: set[str] = set()
    packed = [path for path in frozen.iterdir() if path.is_file() and path.name.startswith("fieldray")]
    for path in packed:
        if path.suffix == ".pkg" or path.with_suffix(".pkg") not in packed:
            archive = CArchiveReader(str(path))
            for name in (name for name in archive.toc if name.lower().endswith(".pyz")):
                found |= set(archive.open_embedded_archive(name).toc)
    return found


def _distribution(found: metadata.Distribution, files: tuple[str, ...]) -> Part:
    facts, name = found.metadata, found.metadata["Name"].replace("_", "-").lower()
    stated = facts.get("License-Expression") or facts.get("License") or "NOASSERTION"
    licence = _LICENCES.get(name, stated.splitlines()[0][:80])
    texts = {
        file.as_posix().partition(".dist-info/")[2].removeprefix("licenses/"): file.read_text()
        for file in found.files or ()
        if ".dist-info/" in file.as_posix() and _TEXT_NAMES.search(file.name)
    }
    if name == "pyinstaller":  # the program contains only PyInstaller's bootloader
        name, licence = "pyinstaller-bootloader", "GPL-2.0-or-later WITH Bootloader-exception"
    texts = texts or {path.stem: path.read_text(encoding="utf-8") for path in _texts_for(name, licence)}
    if not texts:
        raise ValueError(f"{name} comes without its licence: put it into {_TEXTS.name}/{name}.txt")
    url = f"pkg:pypi/{found.metadata['Name'].replace('_', '-').lower()}@{found.version}"
    return Part(
        name=name,
        version=found.version,
        licence=licence,
        kind="distribution",
        package_url=url,
        texts=texts,
        files=files,
    )


def _texts_for(name: str, licence: str) -> list[Path]:
    wanted = [name, *(["LGPL-3.0-only", "GPL-3.0-only"] if licence == "LGPL-3.0-only" else [])]
    return [path for path in (_TEXTS / f"{word}.txt" for word in wanted) if path.is_file()]


@cache
def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads((_HERE / "native_parts.toml").read_text(encoding="utf-8"))["part"]
    return rows


def _row(path: str) -> dict[str, Any] | None:
    """Return the row of `native_parts.toml` for the library at `path`; None if the table has no such row."""
    return next((row for row in _rows() if _fits(row, path.lower())), None)


def _fits(row: Mapping[str, Any], path: str) -> bool:
    patterns = [*row["files"], *(row.get("beside", ()) if path.count("/") == 1 else ())]
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _native_parts(native: Iterable[str], known: Mapping[str, Part]) -> Iterator[Part]:
    files: dict[str, list[str]] = {}
    for path in native:
        row = _row(path)
        if row is None:
            raise ValueError(f"{path} is of unknown origin: add it to native_parts.toml")
        files.setdefault(row["name"], []).append(path)
    for row in _rows():
        if row["name"] not in files:
            continue
        found = tuple(files[row["name"]])
        yield replace(known["Python"], files=found) if row["name"] == "Python" else _native_part(row, found, known)


def _native_part(row: Mapping[str, Any], files: tuple[str, ...], known: Mapping[str, Part]) -> Part:
    name, version = row["name"], _version(row, files, known)
    texts = {word: (_TEXTS / f"{word}.txt").read_text(encoding="utf-8") for word in row.get("texts", ())}
    texts |= known[row["texts_of"]].texts if row.get("texts_of") in known else {}
    texts |= dict(_system_texts(row.get("debian", ())))
    url = f"pkg:generic/{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}" + (f"@{version}" if version else "")
    return Part(
        name=name, version=version, licence=row["licence"], kind="native", package_url=url, texts=texts, files=files
    )


def _version(row: Mapping[str, Any], files: Sequence[str], known: Mapping[str, Part]) -> str:
    if row.get("version_of") in known:
        return known[row["version_of"]].version
    if "listed_by" in row:
        return _listed_version(*row["listed_by"])
    if "stated_by" in row:
        return _stated_version(*row["stated_by"])
    if "debian" in row and sys.platform == "linux":
        command = ["dpkg-query", "--show", "--showformat=${Version}", row["debian"][0]]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\.so\.(\d[\w.]*)$|-(\d[\d.]*\d)\.dll$", files[0])
    return next((group for group in found.groups() if group), "") if found else ""


def _listed_version(distribution: str, name: str) -> str:
    for file in metadata.distribution(distribution).files or ():
        if file.name.endswith(".cdx.json"):
            for component in json.loads(file.read_text()).get("components", ()):
                if component["name"] == name:
                    return str(component.get("version", ""))
    return ""


def _stated_version(module: str, function: str) -> str:
    """Return the version number in the text that a function of a module returns, such as "libpng 1.6.55".

    Returns "" if the text has no version number.
    """
    found = re.search(r"\d+(\.\d+)+", getattr(importlib.import_module(module), function)())
    return found[0] if found else ""


def _system_texts(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    for package in packages:
        path = Path("/usr/share/doc") / package / "copyright"
        if path.is_file():
            yield package, path.read_text(encoding="utf-8")


def _interpreter() -> Part:
    version = ".".join(map(str, sys.version_info[:3]))
    candidates = (Path(metadata.__file__).parents[2] / "LICENSE.txt", Path(sys.base_prefix) / "LICENSE.txt")
    texts = {path.name: path.read_text(encoding="utf-8") for path in candidates if path.is_file()}
    return Part(
        name="Python", version=version, licence="PSF-2.0", kind="interpreter",
        package_url=f"pkg:generic/python@{version}", texts=dict(list(texts.items())[:1]),
    )  # fmt: skip
