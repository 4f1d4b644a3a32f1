"""Paths of the program's files and folders on this computer, whether installed, frozen or run from a checkout."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fieldray.command_names import PACKAGES
from fieldray.errors import StorageProblem
from fieldray.persistence import clear_abandoned, make_private, storage_problem, unfinished
from fieldray.reasons import reason

APP_NAME: Final = "fieldray"
# The installed package knows it too, but asking takes longer than anything else a run begins with.
VERSION: Final = "0.2.0"
SCRATCH: Final = "cluster"
DATABASE_NAME: Final = "results.sqlite"
HOME_VARIABLE: Final = "FIELDRAY_HOME"
# Everything that the program keeps in `user_data`, by what the names begin with; docs/privacy.md says what it holds.
KEPT: Final = (
    "results.sqlite", "results.pictures", "results.damaged-", "results.replaced-", "results.lost-", "pseudonym.key",
    "settings.json", "pack_trust", "folders",
    "site_points", "packs", "demo", "translations", "edgetpu-", "fieldray.log", SCRATCH,
)  # fmt: skip
_PACKAGE: Final = Path(__file__).resolve().parent
_LANGUAGE_CODE: Final = re.compile(r"[a-z]{2,3}(_[A-Za-z]{2,8})*")
# Importing a package fixes where its modules come from.
_BEGIN: Final = (
    "import sys; from importlib import import_module; from importlib.machinery import PathFinder; "
    "count = int(sys.argv.pop(1)); sys.path[:0] = sys.argv[1 : 1 + count]; del sys.argv[1 : 1 + count]; "
    "module = sys.argv.pop(1); import fieldray; import_module(module.partition('.')[0]); "
    f"[import_module(name) for name in {PACKAGES} if PathFinder.find_spec(name, sys.path[:count])]; "
    "sys.path += sys.path[:count]; del sys.path[:count]; sys.exit(import_module(module).main())"
)


def _data_root() -> Path:
    """The folder of `assets`, `models` and the user guide: in the package when installed, else the checkout's root."""
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent.parent


def asset(name: str) -> Path:
    """A file of `assets/`, for example `style/fieldray.qss`."""
    return _data_root() / "assets" / name


def catalogues() -> dict[str, Path]:
    """The compiled gettext catalogue of each language, by its code (`uk`, `pt_BR`).

    They come with the program; one in `translations/` of the user's data folder adds a language or replaces ours.
    """
    found = {}
    for folder in (asset("translations"), _user_folder() / "translations"):
        with contextlib.suppress(OSError):  # a data folder that cannot be looked into is told of when it is needed
            for path in sorted(folder.glob("*/LC_MESSAGES/fieldray.mo")):
                if _LANGUAGE_CODE.fullmatch(code := path.parent.parent.name):
                    found[code] = path
    return found


def guide_folder() -> Path:
    """The user guide: one Markdown file per language (`en.md`), and its pictures."""
    return _data_root() / "docs" / "guide"


def builtin_packs() -> Path:
    """The folder of the packs that ship with the program."""
    return _data_root() / "models"


def licence_table() -> Path:
    """Return the table of third-party licences, written when an installer is built; missing in a checkout."""
    return _data_root() / "licences" / "licences.json"


def program_folder() -> Path:
    """The folder the program is installed in, or the one its Python is in."""
    return Path(sys.executable).resolve().parent


def user_data() -> Path:
    """This user's data folder (results, trusted keys), made if absent; FIELDRAY_HOME overrides it.

    Nobody else may look into it: results name patients. Raises StorageProblem (home_unusable).
    """
    folder = _user_folder()
    try:
        make_private(folder)
    except OSError as error:
        detail = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or error
        raise StorageProblem(reason("home_unusable", path=folder, detail=detail)) from error
    return folder


def results_path() -> Path:
    """Where this user's results are. Raises StorageProblem (home_unusable)."""
    return user_data() / DATABASE_NAME


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the user's own for files of patients and keys that are needed within the block alone.

    What processes that were killed left in theirs is removed first. Raises StorageProblem.
    """
    folder = user_data() / SCRATCH
    clear_abandoned(folder)
    own = unfinished(folder / SCRATCH)
    try:
        make_private(folder)
        make_private(own)
    except OSError as error:
        raise storage_problem(error, own) from error
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def installed_program(name: str) -> Path | None:
    """The installed program `name` beside the one that runs; None when this is no installed program."""
    if not getattr(sys, "frozen", False):
        return None
    return Path(sys.executable).with_name(name + (".exe" if sys.platform == "win32" else ""))


def _user_folder() -> Path:
    override = os.environ.get(HOME_VARIABLE)
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))


def child_command(service: str) -> list[str]:
    """The command that starts a child process serving `service` ("module:function" of this package)."""
    worker = installed_program("fieldray-worker")
    return [str(worker), service] if worker else python_command("fieldray.processes.child_main", service)


def program_command(*arguments: str) -> list[str]:
    """The command line of this program, installed, frozen or run from a checkout."""
    frozen = getattr(sys, "frozen", False)
    return [sys.executable, *arguments] if frozen else python_command("fieldray.__main__", *arguments)


def python_command(module: str, *arguments: str, folders: Sequence[Path] = (_PACKAGE.parent,)) -> list[str]:
    """The command that runs `main()` of a module of this very package in a Python of its own: the only way to one.

    That Python is isolated (-I): neither the current directory, where images and pack folders of others lie, nor
    PYTHONPATH, whose empty entry means the same, nor any other variable names code for it. It takes `fieldray` and the
    packages beside it from where this process has them, whatever else is installed under these names; that folder comes
    last for everything else, so that dependencies beside the package are found (`pip install --user` and `--target`,
    which -I knows nothing of), and nothing there can take the place of a module of the standard library.

    Parameters
    ----------
    module
        Its full name.
    arguments
        What `main()` finds in `sys.argv` after the program's name.
    folders
        Where `fieldray` is, and the top-level package of `module` if that is another one (`benchmarks`).
    """
    utf8 = ["-X", "utf8"] if sys.flags.utf8_mode else []  # file names have to mean the same bytes there
    named = [str(len(folders)), *map(str, folders)]
    return [sys.executable, "-I", *utf8, "-c", _BEGIN, *named, module, *arguments]
