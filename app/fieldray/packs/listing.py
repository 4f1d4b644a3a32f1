"""Where packs are in a folder or on a drive, by names alone: nothing is read, no link is followed."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Final

from fieldray.packs.naming import MANIFEST_NAME

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
        seen = itertools.islice(entries, _MOST_ENTRIES)
        names = sorted(entry.name for entry in seen if not entry.name.startswith(".") and _is_folder(entry))
    packs = (folder / name for name in names if is_pack(folder / name))
    return tuple(itertools.islice(packs, _MOST))


def is_pack(folder: Path) -> bool:
    """Whether a folder holds a description. Raises OSError."""
    return _is_file(folder / MANIFEST_NAME)


def is_legacy(folder: Path) -> bool:
    """Whether a bare model of the dissertation lies in a folder. Raises OSError."""
    return _is_file(folder / LEGACY_CPU_NAME)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


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
