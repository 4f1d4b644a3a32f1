"""One run folder, one run: two at work in one folder would mix their files."""

from __future__ import annotations

import datetime
import getpass
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.file_lock import FileLock, HeldError
from fieldray.reasons import reason

LOCK_NAME: Final = "run.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder. A lock whose process has ended counts for nothing: the kernel released it.

    Raises UsageProblem `run_in_use` saying who holds it, StorageProblem if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME, holder=_holder())
    except HeldError as held:
        raise UsageProblem(reason("run_in_use", path=folder, holder=held.holder)) from held
    except OSError as problem:
        raise StorageProblem(reason("not_writable", path=folder, detail=problem.strerror or problem)) from problem
    try:
        yield
    finally:
        lock.release()


def _holder() -> str:
    """Who this is, for a person who finds the folder in use."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "?"
    since = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    return f"process {os.getpid()} of {user} on {platform.node() or '?'}, since {since}"
