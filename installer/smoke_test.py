"""Test the built installers as a clinic would use them, in a small Debian or Ubuntu without Python and network.

    sudo python installer/smoke_test.py build/dist [--pictures FOLDER] [--cache FOLDER]

The test installs the .deb, screens synthetic studies, opens the window, plugs in drives, upgrades and removes the
package, and then tests the portable archive. A line of output that is not expected fails the test. Needs root. The
first run needs the network, to make the small system. All steps run without network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import clean_root
import smoke_steps
import smoke_window
from expectation import UnexpectedResult

ROOT = Path(__file__).resolve().parent.parent
_ROOM_MB = 2000
_FULL_MB = 130
# The Debian package of each program that the test needs.
_PROGRAMS = {
    "debootstrap": "debootstrap",
    "dpkg-deb": "dpkg",
    "unshare": "util-linux",
    "objdump": "binutils",
    "Xvfb": "xvfb",
    "xwd": "x11-apps",
    "xdotool": "xdotool",
    "desktop-file-validate": "desktop-file-utils",
}


def main() -> int:
    """Run all steps of the smoke test. Returns 0 if every step succeeded, else 1."""
    parser = argparse.ArgumentParser(description="Test the Linux installers in a separate root file system.")
    parser.add_argument("dist", type=Path, help="folder with the .deb and the portable archive")
    parser.add_argument("--pictures", type=Path, help="write screenshots of the window to this folder")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "smoke", help="cache for the root file system")
    parser.add_argument("--upgrade", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    package = next(iter(sorted(options.dist.glob("fieldray_*.deb"))), None)
    if package is None or os.geteuid() != 0:
        parser.error("run this as root, with a .deb file in the folder DIST")
    if missing := missing_packages(_PROGRAMS):
        parser.error(f"programs are missing, install them first: apt-get install {' '.join(missing)}")
    if "FIELDRAY_ALONE" in os.environ:
        return _inside(options, package)
    base = clean_root.prepared_base(options.cache, package)
    with tempfile.TemporaryDirectory(dir=options.cache) as scratch:
        newer = next_version(package, Path(scratch))
        sys.stdout.write(f"{package.name} in {base.name}\n")
        return clean_root.run_isolated([sys.executable, *sys.argv, "--upgrade", str(newer)])


def missing_packages(programs: Mapping[str, str]) -> list[str]:
    """Return the sorted Debian packages whose programs are not installed.

    `programs` has the name of the package by name of the program.
    """
    return sorted({package for program, package in programs.items() if not shutil.which(program)})


def next_version(package: Path, scratch: Path) -> Path:
    """Write a copy of the .deb file `package` with a higher version to `scratch`, for an upgrade. Returns its path."""
    root, target = scratch / "root", scratch / "newer.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", package, root], check=True)
    control = root / "DEBIAN" / "control"
    lines = control.read_text(encoding="utf-8").splitlines()
    changed = [f"{line}+1" if line.startswith("Version: ") else line for line in lines]
    control.write_text("\n".join(changed) + "\n", encoding="utf-8")
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, target]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def _inside(options: argparse.Namespace, package: Path) -> int:
    base = options.cache / clean_root.release_name()
    archive = next(iter(sorted(options.dist.glob("fieldray-*-linux-*.tar.xz"))), None)
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    scratch, failed = options.cache / "trial", 0
    with clean_root.copied_root(base, scratch, size_mb=_FULL_MB) as root:
        trial = smoke_steps.InstallTrial(root, package, options.upgrade, archive)
        failed += not _step(smoke_steps.refuse_on_a_full_disk, trial)
    with clean_root.copied_root(base, scratch, size_mb=_ROOM_MB) as root, smoke_window.virtual_display(root):
        trial = smoke_steps.InstallTrial(root, package, options.upgrade, archive, options.pictures)
        failed += sum(not _step(step, trial) for step in smoke_steps.STEPS)
    sys.stdout.write(f"{failed} steps failed.\n" if failed else "All steps succeeded.\n")
    return 1 if failed else 0


def _step(step: smoke_steps.Step, trial: smoke_steps.InstallTrial) -> bool:
    """Run a step, and print its name and duration. Returns False if the step failed."""
    began_s, problem = time.monotonic(), None
    try:
        step(trial)
    except (UnexpectedResult, OSError, KeyError, subprocess.SubprocessError) as error:
        problem = error
    sys.stdout.write(f"{(step.__doc__ or '').splitlines()[0]:<90} {time.monotonic() - began_s:5.1f} s\n")
    if problem is not None:
        sys.stdout.write(f"FAILED: {type(problem).__name__}: {problem}\n")
    sys.stdout.flush()
    return problem is None


if __name__ == "__main__":
    sys.exit(main())
