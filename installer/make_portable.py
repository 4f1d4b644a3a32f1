"""Make the portable archive for Linux from the frozen program. The user unpacks the archive and starts the window."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import contents
import trim

HERE: Final = Path(__file__).resolve().parent
_EXTRAS: Final = {
    "portable/README.txt": "README.txt",
    "portable/add-to-menu": "add-to-menu",
    "debian/fieldray.desktop": "share/fieldray.desktop",
    "60-fieldray-coral.rules": "share/60-fieldray-coral.rules",
}


def build(frozen: Path, output: Path, *, icons: Path) -> Path:
    """Write `fieldray-<version>-linux-x86_64.tar.xz` to the folder `output`. Returns the path of the archive.

    `frozen` is the folder of the frozen program, `icons` the folder of the icons. Raises OSError.
    """
    name = f"fieldray-{contents.version()}-linux-x86_64"
    target = output / f"{name}.tar.xz"
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        root = Path(scratch) / name
        lay_out(root, frozen, icons=icons)
        trim.normalise_files(root, epoch_s=int(os.environ["SOURCE_DATE_EPOCH"]))
        made = Path(scratch) / target.name
        with tarfile.open(made, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
            for path in (root, *sorted(root.rglob("*"))):
                archive.add(path, path.relative_to(scratch).as_posix(), recursive=False, filter=_owned_by_root)
        made.replace(target)
    return target


def lay_out(root: Path, frozen: Path, *, icons: Path) -> None:
    """Write all files of the archive to the folder `root`."""
    shutil.copytree(frozen, root, symlinks=True)
    (root / "share").mkdir()
    for source, place in _EXTRAS.items():
        shutil.copyfile(HERE / source, root / place)
    shutil.copyfile(icons / "fieldray-256.png", root / "share" / "fieldray.png")


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an archive entry with the user and group of root, and (also for links) with the time of the build."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
    return entry


if __name__ == "__main__":
    sys.stdout.write(f"{build(*map(Path, sys.argv[1:3]), icons=Path(sys.argv[3]))}\n")
