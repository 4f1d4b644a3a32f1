"""A wine prefix for the smoke test, with its files and its registry in a comparable form."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NEEDED: Final = "Debian: apt-get install nsis wine64 libz-mingw-w64"
_PLACES: Final = ("/usr/lib/wine", "/usr/bin", "/opt/wine-stable/bin")
_ZLIB: Final = Path("/usr/x86_64-w64-mingw32/lib/zlib1.dll")  # a loaded NSIS program asks wine for it
# What wine itself writes whenever a program runs; and the key that holds the programs' own, which a new wine may lack.
_RESTLESS: Final = re.compile(
    r"CurrentVersion\\\\Uninstall$|Software\\\\Wine|Explorer|Volatile|Winlogon|Time Zones|\\\\Enum\\\\|ControlSet", re.I
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Hashes of all files of drive C by path, and the lines of every registry key."""

    files: Mapping[str, str]
    registry: Mapping[str, tuple[str, ...]]

    def changes(self, later: Snapshot) -> tuple[set[str], set[str]]:
        """Return paths and keys that came, went or changed between this snapshot and `later`."""
        paths = {path for path in {*self.files, *later.files} if self.files.get(path) != later.files.get(path)}
        keys = {key for key in {*self.registry, *later.registry} if self.registry.get(key) != later.registry.get(key)}
        return paths, keys


class Wine:
    """A wine prefix in `folder`, made if it does not exist. Raises FileNotFoundError if a program is not installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._wine, self._server = _program("wine64"), _program("wineserver64", "wineserver")
        if not _ZLIB.is_file():
            raise FileNotFoundError(f"{_ZLIB} is not there ({NEEDED})")
        self._environment = {
            "LC_ALL": "C.UTF-8",
            **os.environ,
            "WINEPREFIX": str(folder),
            "WINEDEBUG": "-all",
            "WINEARCH": "win64",
        }
        self._environment.pop("DISPLAY", None)
        if not (folder / "system.reg").is_file():
            self.call("wineboot", "-i", timeout_s=300)
        shutil.copy(_ZLIB, self.drive / "windows" / "system32")
        self.settle()

    @property
    def drive(self) -> Path:
        """Drive C as a folder here."""
        return self.folder / "drive_c"

    @property
    def home(self) -> Path:
        """The user's folder."""
        return next(path for path in sorted((self.drive / "users").iterdir()) if path.name != "Public")

    def pretend(self, windows: str) -> None:
        """Be another version of Windows from now on: win7, win10."""
        self.call("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", windows, "/f", timeout_s=120)
        self.settle()

    def give_drive(self, letter: str, folder: Path) -> None:
        """Make a folder the root of another drive."""
        (self.folder / "dosdevices" / f"{letter}:").symlink_to(folder)

    def run(self, program: Path, *arguments: str) -> tuple[int, str]:
        """Run a program to its end. Returns exit code (0..255) and output."""
        done = self.call(str(program), *arguments, timeout_s=300)
        self.settle()
        return done.returncode, done.stdout.strip()

    def start(self, program: Path) -> subprocess.Popen[bytes]:
        """Start a program without waiting."""
        return subprocess.Popen([self._wine, str(program)], env=self._environment, stderr=subprocess.DEVNULL)

    def snapshot(self) -> Snapshot:
        """Return files and registry. No program may be running."""
        self.settle()
        return Snapshot(_hashes(self.drive), _keys(self.folder / "user.reg") | _keys(self.folder / "system.reg"))

    def settle(self) -> None:
        """Wait until every program has ended and the registry is written."""
        subprocess.run([self._server, "-w"], env=self._environment, timeout=300, check=False)

    def end(self) -> None:
        """End all programs that still run."""
        subprocess.run([self._server, "-k"], env=self._environment, timeout=60, check=False)

    def call(self, *command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, even if other programs run."""
        # NSIS wants /D= and _?= without the quotation marks that wine would put around an argument with spaces
        words = [word for argument in command[1:] for word in argument.split(" ")]
        return subprocess.run(
            [self._wine, command[0], *words], env=self._environment, timeout=timeout_s, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
        )  # fmt: skip


def _program(*names: str) -> str:
    for name in names:
        for folder in (*_PLACES, *os.environ["PATH"].split(os.pathsep)):
            if (Path(folder) / name).is_file():
                return str(Path(folder) / name)
    raise FileNotFoundError(f"{names[0]} is not installed ({NEEDED})")


def _hashes(drive: Path) -> dict[str, str]:
    found = {}
    for folder, folders, files in os.walk(drive):
        if Path(folder) == drive / "windows":
            folders[:] = [name for name in folders if name not in ("temp", "Installer")]
        for name in files:
            path = Path(folder) / name
            if path.is_file():  # a shortcut holds the times of what it leads to
                digest = "shortcut" if path.suffix == ".lnk" else hashlib.sha256(path.read_bytes()).hexdigest()
                found[path.relative_to(drive).as_posix()] = digest
        for name in folders:
            if not (Path(folder) / name).is_symlink():
                found[(Path(folder) / name).relative_to(drive).as_posix()] = "folder"
    return {path: digest for path, digest in found.items() if "/Temp" not in path}


def _keys(file: Path) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    key = ""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("["):
            key = f"{file.stem}:{line[1:].partition(']')[0]}"
            keys[key] = ()
        elif key and line.startswith(('"', "@")) and not _RESTLESS.search(key):
            keys[key] = (*keys[key], line)
    return {key: lines for key, lines in keys.items() if not _RESTLESS.search(key)}
