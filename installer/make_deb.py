"""Make the .deb package from the frozen program, with menu entry, icons, file types and udev rule."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import contents
import shared_libraries
import trim

HERE: Final = Path(__file__).resolve().parent
SCRIPTS: Final = ("preinst", "postinst", "prerm", "postrm")
INSTALL_FOLDER: Final = Path("opt/fieldray")
_SPARE_KB: Final = 20 * 1024  # room for the records of dpkg
_ICON_SIDES: Final = (16, 24, 32, 48, 64, 128, 256)


def build(frozen: Path, output: Path, *, icons: Path, revision: str = "") -> Path:
    """Write `fieldray_<version><revision>_amd64.deb` to the folder `output`. Returns the path of the file.

    `frozen` is the folder of the frozen program, `icons` the folder of the icons. Raises OSError, ValueError.
    """
    version = contents.version() + revision
    target = output / f"fieldray_{version}_amd64.deb"
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        root = Path(scratch) / "root"
        lay_out(root, frozen, icons=icons)
        trim.normalise_files(root, epoch_s=int(os.environ["SOURCE_DATE_EPOCH"]))
        depends = shared_libraries.dependencies(shared_libraries.find_needs(root / INSTALL_FOLDER))
        _write_control(root, version=version, depends=depends)
        trim.normalise_files(root / "DEBIAN", epoch_s=int(os.environ["SOURCE_DATE_EPOCH"]))
        _pack(root, Path(scratch) / target.name)
        (Path(scratch) / target.name).replace(target)
    return target


def lay_out(root: Path, frozen: Path, *, icons: Path) -> None:
    """Write all files that the package installs to the folder `root`."""
    shutil.copytree(frozen, root / INSTALL_FOLDER, symlinks=True)
    share = root / "usr" / "share"
    _copy(HERE / "debian" / "fieldray.desktop", share / "applications" / "fieldray.desktop")
    _copy(HERE / "debian" / "fieldray-mime.xml", share / "mime" / "packages" / "fieldray.xml")
    _copy(HERE / "60-fieldray-coral.rules", root / "usr/lib/udev/rules.d/60-fieldray-coral.rules")
    hicolor = share / "icons" / "hicolor"
    _copy(contents.ROOT / "assets/icons/fieldray.svg", hicolor / "scalable/apps/fieldray.svg")
    for side in _ICON_SIDES:
        _copy(icons / f"fieldray-{side}.png", hicolor / f"{side}x{side}" / "apps" / "fieldray.png")
    documents = share / "doc" / "fieldray"
    documents.mkdir(parents=True)
    (documents / "copyright").write_text(_copyright(), encoding="utf-8")
    changes = (contents.ROOT / "CHANGELOG.md").read_bytes()
    (documents / "changelog.gz").write_bytes(gzip.compress(changes, mtime=0))
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "fieldray").symlink_to("../../opt/fieldray/fieldray")


def control_text(*, version: str, depends: list[str], installed_kb: int) -> str:
    """Return the text of the package's control file (Debian Policy 5.3)."""
    return (
        f"Package: fieldray\nVersion: {version}\nArchitecture: amd64\nMaintainer: The Fieldray project\n"
        f"Installed-Size: {installed_kb}\nDepends: {', '.join(depends)}\n"
        "Recommends: shared-mime-info, desktop-file-utils, hicolor-icon-theme, fonts-dejavu-core\n"
        "Section: science\nPriority: optional\n"
        "Description: offline screening of chest X-rays (research use only)\n"
        " Sorts chest X-rays by urgency on an ordinary PC, without any network connection.\n"
        " Uses the included model packs or packs from a USB drive, and a Coral USB\n"
        " Accelerator if one is plugged in.\n"
        " .\n"
        " Research use only. Not for diagnostic use.\n"
    )


def maintainer_script(name: str, *, installed_kb: int) -> str:
    """Return the text of the maintainer script `name`, such as "preinst", with the installed size in KB."""
    needed_kb = installed_kb + _SPARE_KB
    text = (HERE / "debian" / name).read_text(encoding="utf-8")
    return text.replace("@NEEDED_KB@", str(needed_kb)).replace("@NEEDED_MB@", str(needed_kb // 1024))


def _write_control(root: Path, *, version: str, depends: list[str]) -> None:
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    # dpkg counts each file rounded up to a kilobyte, and one kilobyte for each folder or link.
    others = sum(1 for path in root.rglob("*") if path.is_dir() or path.is_symlink())
    installed_kb = sum((path.stat().st_size + 1023) // 1024 for path in files) + others
    sums = "".join(f"{_md5(path)}  {path.relative_to(root).as_posix()}\n" for path in files)
    folder = root / "DEBIAN"
    folder.mkdir()
    (folder / "md5sums").write_text(sums, encoding="utf-8")
    text = control_text(version=version, depends=depends, installed_kb=installed_kb)
    (folder / "control").write_text(text, encoding="utf-8")
    for name in SCRIPTS:
        (folder / name).write_text(maintainer_script(name, installed_kb=installed_kb), encoding="utf-8")


def _pack(root: Path, target: Path) -> None:
    for name in SCRIPTS:
        (root / "DEBIAN" / name).chmod(0o755)
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z9", "--build", str(root), str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _copyright() -> str:
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        "Upstream-Name: Fieldray\n\nFiles: *\nCopyright: The Fieldray project\nLicense: Apache-2.0\n"
        " See /usr/share/common-licenses/Apache-2.0. What the program brings along and its licences are in\n"
        f" /{INSTALL_FOLDER}/_internal/fieldray/_data/licences and in the program's About box.\n"
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the .deb from a frozen program (set SOURCE_DATE_EPOCH first).")
    for name in ("frozen", "output", "icons"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--revision", default="", help="append this to the version, for example +1")
    options = parser.parse_args()
    path = build(options.frozen, options.output, icons=options.icons, revision=options.revision)
    sys.stdout.write(f"{path}\n")
