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

from fieldray.command_names import OPTIONAL_PACKAGES
from fieldray.errors import StorageProblem
from fieldray.persistence import make_private_folder, remove_unfinished_files, storage_problem, temporary_path
from fieldray.reasons import reason

APP_NAME: Final = "fieldray"
# The installed package's metadata has the version, too, but reading the metadata is the slowest step of a start.
VERSION: Final = "0.2.0"
SCRATCH_FOLDER_NAME: Final = "cluster"
DATABASE_NAME: Final = "results.sqlite"
DATA_FOLDER_VARIABLE: Final = "FIELDRAY_HOME"
# Beginnings of the names of all files that the program stores in `data_folder`; docs/privacy.md describes them.
DATA_FOLDER_FILE_PREFIXES: Final = (
    "results.sqlite", "results.pictures", "results.damaged-", "results.replaced-", "results.lost-", "pseudonym.key",
    "settings.json", "pack_trust", "folders",
    "site_points", "packs", "demo", "translations", "edgetpu-", "fieldray.log", SCRATCH_FOLDER_NAME,
)  # fmt: skip
_PACKAGE: Final = Path(__file__).resolve().parent
_LANGUAGE_CODE: Final = re.compile(r"[a-z]{2,3}(_[A-Za-z]{2,8})*")
# Each package is imported while its folder is first in the search path. All its modules then come from this folder.
_BEGIN: Final = (
    "import sys; from importlib import import_module; from importlib.machinery import PathFinder; "
    "count = int(sys.argv.pop(1)); sys.path[:0] = sys.argv[1 : 1 + count]; del sys.argv[1 : 1 + count]; "
    "module = sys.argv.pop(1); import fieldray; import_module(module.partition('.')[0]); "
    f"[import_module(name) for name in {OPTIONAL_PACKAGES} if PathFinder.find_spec(name, sys.path[:count])]; "
    "sys.path += sys.path[:count]; del sys.path[:count]; sys.exit(import_module(module).main())"
)


def _data_root() -> Path:
    """Return the folder of `assets`, `models` and the user guide.

    The folder is inside the installed package, or is the root of the checkout.
    """
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent.parent


def asset_path(name: str) -> Path:
    """Return the path of a file of `assets/`, for example `style/fieldray.qss`."""
    return _data_root() / "assets" / name


def translation_catalogue_paths() -> dict[str, Path]:
    """Return the compiled gettext catalogue of each language, by language code (`uk`, `pt_BR`).

    A catalogue in `translations/` of the user's data folder adds a language, or replaces the program's catalogue of
    that language.
    """
    found = {}
    for folder in (asset_path("translations"), _user_folder() / "translations"):
        with contextlib.suppress(OSError):  # an unreadable data folder is reported when it is needed
            for path in sorted(folder.glob("*/LC_MESSAGES/fieldray.mo")):
                if _LANGUAGE_CODE.fullmatch(code := path.parent.parent.name):
                    found[code] = path
    return found


def guide_folder() -> Path:
    """Return the folder of the user guide: one Markdown file per language (`en.md`), and the pictures."""
    return _data_root() / "docs" / "guide"


def builtin_packs_folder() -> Path:
    """Return the folder of the packs that ship with the program."""
    return _data_root() / "models"


def licence_table_path() -> Path:
    """Return the path of the table of third-party licences.

    The table is written when an installer is built, and is missing in a checkout.
    """
    return _data_root() / "licences" / "licences.json"


def program_folder() -> Path:
    """Return the folder of the running program; in a checkout, the folder of the Python interpreter that runs it."""
    return Path(sys.executable).resolve().parent


def data_folder() -> Path:
    """Return the path of this user's data folder (results, trusted keys). A missing folder is created.

    The variable FIELDRAY_HOME overrides the path. Only this user may read the folder, because results name patients.
    Raises StorageProblem (home_unusable).
    """
    folder = _user_folder()
    try:
        make_private_folder(folder)
    except OSError as error:
        detail = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or error
        raise StorageProblem(reason("home_unusable", path=folder, detail=detail)) from error
    return folder


def results_database_path() -> Path:
    """Return the path of this user's results database. Raises StorageProblem (home_unusable)."""
    return data_folder() / DATABASE_NAME


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, readable only by this user, for patients' files and keys needed during the block.

    Temporary folders of processes that were killed are removed first. Raises StorageProblem.
    """
    folder = data_folder() / SCRATCH_FOLDER_NAME
    remove_unfinished_files(folder)
    own = temporary_path(folder / SCRATCH_FOLDER_NAME)
    try:
        make_private_folder(folder)
        make_private_folder(own)
    except OSError as error:
        raise storage_problem(error, own) from error
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def installed_program_path(name: str) -> Path | None:
    """Return the path of a program in the installation folder. None if Fieldray was not installed by an installer.

    name  file name of the program without suffix
    """
    if not getattr(sys, "frozen", False):
        return None
    return Path(sys.executable).with_name(name + (".exe" if sys.platform == "win32" else ""))


def _user_folder() -> Path:
    override = os.environ.get(DATA_FOLDER_VARIABLE)
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))


def child_process_command(service: str) -> list[str]:
    """Return the command that starts a child process in which `service` ("module:function" of this package) runs."""
    worker = installed_program_path("fieldray-worker")
    return [str(worker), service] if worker else python_command("fieldray.processes.child_main", service)


def program_command(*arguments: str) -> list[str]:
    """Return the command that starts this program with `arguments`, whether installed, frozen or from a checkout."""
    frozen = getattr(sys, "frozen", False)
    return [sys.executable, *arguments] if frozen else python_command("fieldray.__main__", *arguments)


def python_command(module: str, *arguments: str, folders: Sequence[Path] = (_PACKAGE.parent,)) -> list[str]:
    """Return the command that runs `main()` of a module of this package in a new Python process.

    The process is isolated (-I). No code is imported from the current directory, where foreign images and packs may
    lie, or from folders in variables such as PYTHONPATH. `fieldray` and its companion packages are imported from
    `folders`, the folders from which this process imported them. For every other module, `folders` come last in the
    search path. So dependencies installed next to `fieldray` are found (`pip install --user` and `--target`, which -I
    ignores), and no module in `folders` can replace a module of the standard library.

    Parameters
    ----------
    module
        Full name of the module.
    arguments
        Arguments in `sys.argv`, after the program's name.
    folders
        Folders of `fieldray` and, if different, of the module's top-level package (`benchmarks`).
    """
    utf8 = ["-X", "utf8"] if sys.flags.utf8_mode else []  # file names must be decoded as in this process
    named = [str(len(folders)), *map(str, folders)]
    return [sys.executable, "-I", *utf8, "-c", _BEGIN, *named, module, *arguments]
