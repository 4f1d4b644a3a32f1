"""What pack ids, versions and file names may look like, and where packs are by names alone.

A drive is hostile: allowed is what is listed here. Nothing is read, no link is followed.

id         1 to 64 of a-z, 0-9 and the hyphen
version    x.y.z, three whole numbers of at most 6 digits, compared as numbers (https://semver.org, without suffixes)
file name  1 to 100 of A-Z a-z 0-9 . _ -, beginning with a letter or digit, not ending with a dot, not a device name
           of Windows ("NUL", "com1.tflite"), not one of the pack's own two
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path
from typing import Final

MANIFEST_NAME: Final = "manifest.json"
SIGNATURE_NAME: Final = "manifest.sig"

ID: Final = r"[a-z0-9-]{1,64}"
VERSION: Final = r"(?:0|[1-9][0-9]{0,5})(?:\.(?:0|[1-9][0-9]{0,5})){2}"
FILE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_SEPARATORS: Final = re.compile(r"[\s:-]")
_DIGITS: Final = re.compile(r"[0-9a-f]{64}")
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def is_version(text: str) -> bool:
    """Whether `text` is a version."""
    return re.fullmatch(VERSION, text) is not None


def pinned(name: str, *, is_signed: bool, fingerprint: str) -> str:
    """A pack's name that means this signer's pack alone; of a pack that ships it is the name itself."""
    return f"{name}@{fingerprint}" if is_signed and fingerprint else name


def split_name(name: str) -> tuple[str, str]:
    """The id or `id-version` of a pack's name, and the fingerprint behind it in its one form, "" without one.

    What is no name with a signer, as a path may be, comes back whole.
    """
    bare, _, signer = name.rpartition("@")
    fingerprint = fingerprint_in(signer)
    return (bare, fingerprint) if bare and fingerprint else (name, "")


def fingerprint_in(text: str) -> str:
    """A fingerprint as a person typed it (any case; spaces, colons, hyphens or nothing between), in its one form.

    "" where it is not one.
    """
    digits = _SEPARATORS.sub("", text).lower()
    return grouped(digits) if _DIGITS.fullmatch(digits) else ""


def grouped(digits: str) -> str:
    """The 64 digits of a fingerprint as 16 groups of 4, joined by hyphens."""
    return "-".join(digits[start : start + 4] for start in range(0, 64, 4))


def version_key(version: str) -> tuple[int, ...]:
    """What a version is compared by. Raises ValueError when it is not one."""
    if not is_version(version):
        raise ValueError(f"not a version: {version!r}")
    return tuple(int(part) for part in version.split("."))


def is_file_name(text: str) -> bool:
    """Whether a pack may list a file by this name."""
    return (
        re.fullmatch(FILE_NAME, text) is not None
        and not text.endswith(".")
        and _DEVICE.fullmatch(text) is None
        and text.lower() not in (MANIFEST_NAME, SIGNATURE_NAME)
    )


DRIVE_FOLDER: Final = "fieldray"
LEGACY_CPU_NAME: Final = "chest_resnet50_grayscale_fp32.tflite"
LEGACY_EDGETPU_NAME: Final = "chest_resnet50_grayscale_uint8_edgetpu.tflite"
_MOST: Final = 100
_MOST_ENTRIES: Final = 10_000  # a folder is looked through again and again; a drive may be made to make that long


def pack_folders(folder: Path) -> tuple[Path, ...]:
    """The folder itself if it is a pack, else the packs in its `fieldray` folder, then a legacy model in its root.

    At most 100, sorted by name. Raises OSError, as a drive does that is being pulled out.
    """
    if is_pack(folder):
        return (folder,)
    inside = folder / DRIVE_FOLDER
    packs = packs_in(inside) if _is_real_folder(inside) else ()
    return (*packs, folder) if is_legacy(folder) else packs


def packs_in(folder: Path) -> tuple[Path, ...]:
    """The packs that lie directly in a folder, sorted by name, at most 100 of 10,000 entries. Raises OSError."""
    with os.scandir(folder) as entries:
        seen = (entry for entry in itertools.islice(entries, _MOST_ENTRIES) if not entry.name.startswith("."))
        names = sorted(entry.name for entry in seen if entry.is_dir(follow_symlinks=False))
    packs = (folder / name for name in names if is_pack(folder / name))
    return tuple(itertools.islice(packs, _MOST))


def is_pack(folder: Path) -> bool:
    """Whether a folder holds a description. Raises OSError."""
    return _is_file(folder / MANIFEST_NAME)


def is_legacy(folder: Path, *, name: str = "") -> bool:
    """Whether a bare model of the dissertation, or the one of its files with this name, lies in a folder. Raises
    OSError.
    """
    names = (name,) if name else (LEGACY_CPU_NAME, LEGACY_EDGETPU_NAME)
    return any(_is_file(folder / known) for known in names)


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_real_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """The file mode, links not followed; 0 when nothing is there."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
