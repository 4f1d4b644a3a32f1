"""Build the program for users: the frozen program (with Python and all libraries), then its installers, in `build/`.

    python installer/build.py [frozen] [deb] [portable] [setup]      (without arguments: all)

Installers that this machine cannot build are left out. The build uses a new virtual environment with the locked
dependencies. Equal sources, dependencies and SOURCE_DATE_EPOCH (by default the time of the last commit) give equal
files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import contents
import sizes
import trim

ROOT: Final = contents.ROOT
BUILD: Final = ROOT / "build"
ENVIRONMENT: Final = BUILD / "installer-venv"
FROZEN: Final = BUILD / "frozen" / "fieldray"
OUTPUT: Final = BUILD / "dist"
_PROGRAMS: Final = ("objdump", "strip", "patchelf")  # binutils and patchelf, on Linux
TARGETS: Final = ("frozen", "deb", "portable", "setup")


def main() -> int:
    """Build the targets that the command line names; by default all targets. Returns 0."""
    parser = argparse.ArgumentParser(description="Build the installers for this operating system.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(TARGETS)} (default: all)")
    chosen = parser.parse_args().targets or TARGETS
    if missing := [name for name in _PROGRAMS if sys.platform == "linux" and not shutil.which(name)]:
        parser.error(f"programs are missing, install them first: {', '.join(missing)}")
    if unknown := set(chosen) - set(TARGETS):
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    os.environ.update(reproducible_environment(os.environ))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for target in TARGETS:
        if target in chosen:
            _BUILDERS[target]()
    return 0


def reproducible_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make two builds equal: time, hash seed, locale and time zone."""
    epoch = environment.get("SOURCE_DATE_EPOCH") or _last_commit_time()
    return {"SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def build_frozen() -> None:
    """Freeze the program with PyInstaller, remove unneeded files, and add the licences and the list of parts."""
    python = _environment()
    _run(python, ROOT / "installer" / "icons.py", BUILD / "icons")
    _run(
        python, "-m", "PyInstaller", "--noconfirm", "--clean", "--log-level", "WARN",
        "--distpath", FROZEN.parent, "--workpath", BUILD / "pyinstaller", ROOT / "installer" / "fieldray.spec",
    )  # fmt: skip
    trim.trim(FROZEN)
    for module in ("licences", "sbom"):
        if (ROOT / "installer" / f"{module}.py").exists():
            _run(python, ROOT / "installer" / f"{module}.py", FROZEN)
    trim.normalise_files(FROZEN, epoch_s=int(os.environ["SOURCE_DATE_EPOCH"]))
    sys.stdout.write(sizes.sizes_table(FROZEN))


def build_deb() -> None:
    """Build the .deb package for Debian and Ubuntu from the frozen program, on Linux with dpkg-deb."""
    if _can("deb", sys.platform == "linux" and shutil.which("dpkg-deb") is not None, "needs dpkg-deb"):
        import make_deb

        sys.stdout.write(f"{make_deb.build(FROZEN, OUTPUT, icons=BUILD / 'icons')}\n")


def build_portable() -> None:
    """Build the portable archive, which needs no installation, from the frozen program, on Linux."""
    if _can("portable", sys.platform == "linux", "is for Linux"):
        import make_portable

        sys.stdout.write(f"{make_portable.build(FROZEN, OUTPUT, icons=BUILD / 'icons')}\n")


def build_setup() -> None:
    """Build Setup for Windows from a folder that was frozen on Windows."""
    if _can("setup", (FROZEN / "fieldray-window.exe").exists(), "needs the program frozen on Windows"):
        _run(sys.executable, ROOT / "installer" / "windows" / "build_setup.py", FROZEN, OUTPUT)


_BUILDERS: Final = {"frozen": build_frozen, "deb": build_deb, "portable": build_portable, "setup": build_setup}


def _environment() -> Path:
    """Make the virtual environment for the build, with locked dependencies and the current source of Fieldray.

    Returns the path of the environment's Python.
    """
    python = ENVIRONMENT / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    _run(sys.executable, "-I", "-m", "venv", "--clear", ENVIRONMENT)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    lock = ROOT / "installer" / "requirements.lock"
    _run(*pip, *(["--require-hashes", "--requirement", lock] if lock.exists() else _requirements()))
    _run(*pip, "--no-deps", "--no-build-isolation", "--force-reinstall", ROOT)
    return python


def _requirements() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["desktop"], *extras["installer"]]


def _last_commit_time() -> str:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _can(target: str, possible: bool, why: str) -> bool:
    if not possible:
        sys.stdout.write(f"{target}: cannot be built on this computer: {why}\n")
    return possible


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    sys.exit(main())
