"""What is installed that reading and running need, by the packages' own records; nothing is imported."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from fieldray.inference.runtime import RUNTIMES

# package by the name it is imported by, and the name it is installed by
_LIBRARIES: Final = {
    "numpy": "numpy",
    "PIL": "pillow",
    "pydicom": "pydicom",
    "openjpeg": "pylibjpeg-openjpeg",
    "jpeg_ls": "pyjpegls",
    "imagecodecs": "imagecodecs",
    "psutil": "psutil",
    "cryptography": "cryptography",
    "PySide6": "PySide6-Essentials",
    "ai_edge_litert": "ai-edge-litert",
    "tflite_runtime": "tflite-runtime",
}
_OPTIONAL: Final = frozenset({"PySide6", *RUNTIMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFacts:
    """`versions` by package, an empty text for one that is not there; `runtimes` that are there, in order of use."""

    program: str
    python: str
    versions: Mapping[str, str]
    runtimes: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that ought to be there and are not; the runtimes and the window have sentences of their own."""
        return tuple(_LIBRARIES[name] for name in _LIBRARIES if name not in _OPTIONAL and not self.versions[name])


def software_facts() -> SoftwareFacts:
    """Ask the installed packages."""
    return SoftwareFacts(
        program=metadata.version("fieldray"),
        python=platform.python_version(),
        versions={name: _version(name, installed_as) for name, installed_as in _LIBRARIES.items()},
        runtimes=tuple(name for name in RUNTIMES if _is_there(name)),
    )


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str, installed_as: str) -> str:
    if not _is_there(name):
        return ""
    try:
        return metadata.version(installed_as)
    except metadata.PackageNotFoundError:  # there, but without its record, as in the installed program
        return "?"
