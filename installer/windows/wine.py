"""Run Windows programs in a wine prefix for the smoke test, and compare its files and registry before and after."""

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
_ZLIB: Final = Path("/usr/x86_64-w64-mingw32/lib/zlib1.dll")  # needed by NSIS programs
# Registry keys that wine itself changes, and the key Uninstall, which may not exist in a new prefix.
_RESTLESS: Final = re.compile(
    r"CurrentVersion\\\\Uninstall$|Software\\\\Wine|Explorer|Volatile|Winlogon|Time Zones|\\\\Enum\\\\|ControlSet", re.I
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a wine prefix: hash of each file of drive C by path, and lines of each registry key by name."""

    files: Mapping[str, str]
    registry: Mapping[str, tuple[str, ...]]

    def changes(self, later: Snapshot) -> tuple[set[str], set[str]]:
        """Return the paths, and the registry keys, that are new, missing or changed in the snapshot `later`."""
        paths = {path for path in {*self.files, *later.files} if self.files.get(path) != later.files.get(path)}
        keys = {key for key in {*self.registry, *later.registry} if self.registry.get(key) != later.registry.get(key)}
        return paths, keys


class Wine:
    """A wine prefix (a Windows environment) in the folder `folder`, which is made if it does not exist.

    Raises FileNotFoundError if wine is not installed.
    """

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
        self.wait_until_idle()

    @property
    def drive(self) -> Path:
        """The folder on this computer that is drive C in the wine prefix."""
        return self.folder / "drive_c"

    @property
    def home(self) -> Path:
        """The folder on this computer that is the Windows user's home folder."""
        return next(path for path in sorted((self.drive / "users").iterdir()) if path.name != "Public")

    def set_windows_version(self, windows: str) -> None:
        """From now on, report the Windows version `windows`, such as "win7" or "win10", to programs."""
        self.call("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", windows, "/f", timeout_s=120)
        self.wait_until_idle()

    def give_drive(self, letter: str, folder: Path) -> None:
        """Make a folder of this computer the Windows drive with the letter `letter`."""
        (self.folder / "dosdevices" / f"{letter}:").symlink_to(folder)

    def run(self, program: Path, *arguments: str) -> tuple[int, str]:
        """Run a Windows program and wait for its end. Returns the exit code (0..255) and the output."""
        done = self.call(str(program), *arguments, timeout_s=300)
        self.wait_until_idle()
        return done.returncode, done.stdout.strip()

    def start(self, program: Path) -> subprocess.Popen[bytes]:
        """Start a Windows program without waiting for its end. Returns the process."""
        return subprocess.Popen([self._wine, str(program)], env=self._environment, stderr=subprocess.DEVNULL)

    def snapshot(self) -> Snapshot:
        """Return the current state of files and registry. Waits until all Windows programs have ended."""
        self.wait_until_idle()
        return Snapshot(_hashes(self.drive), _keys(self.folder / "user.reg") | _keys(self.folder / "system.reg"))

    def wait_until_idle(self) -> None:
        """Wait until every Windows program has ended and the registry is written to its files."""
        subprocess.run([self._server, "-w"], env=self._environment, timeout=300, check=False)

    def end(self) -> None:
        """End all running Windows programs of this wine prefix."""
        subprocess.run([self._server, "-k"], env=self._environment, timeout=60, check=False)

    def call(self, *command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a Windows command and wait for its end, even if other Windows programs are running.

        Raises TimeoutExpired after `timeout_s` seconds.
        """
        # NSIS needs /D= and _?= without quotation marks, which wine adds to arguments with spaces.
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
            if path.is_file():  # a shortcut contains the times of its target
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
