"""Where things are on this machine, installed, frozen or run from a checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

APP_NAME: Final = "fieldray"
# The installed package knows it too, but asking takes longer than anything else a run begins with.
VERSION: Final = "0.1.0"
_PACKAGE: Final = Path(__file__).resolve().parent


def _data_root() -> Path:
    """The folder that holds `assets` and `models`: inside the package when installed, the checkout's root else."""
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent.parent


def asset(name: str) -> Path:
    """A file of `assets/`, for example `translations/uk.json`."""
    return _data_root() / "assets" / name


def builtin_packs() -> Path:
    """The folder of the packs that ship with the program."""
    return _data_root() / "models"


def licence_table() -> Path:
    """The licences of what others made, written when an installer is built; not there in a checkout."""
    return _data_root() / "licences" / "licences.json"


def program_folder() -> Path:
    """The folder the program is installed in, or the one its Python is in."""
    return Path(sys.executable).resolve().parent


def user_data() -> Path:
    """This user's data folder (results, trusted keys), made if absent; FIELDRAY_HOME overrides it."""
    override = os.environ.get("FIELDRAY_HOME")
    folder = Path(override) if override else _system_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def installed_program(name: str) -> Path | None:
    """The installed program `name` beside the one that runs; None when this is no installed program."""
    if not getattr(sys, "frozen", False):
        return None
    return Path(sys.executable).with_name(name + (".exe" if sys.platform == "win32" else ""))


def _system_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))


def child_command(service: str) -> list[str]:
    """The command that starts a child process serving `service` ("module:function" of this package)."""
    worker = installed_program("fieldray-worker")
    return [str(worker), service] if worker else [sys.executable, "-m", "fieldray.child_main", service]
