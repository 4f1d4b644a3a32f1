"""What an export, or the lines of a run, leaves in a person's folder when its program is killed: the next removes it.

A note in the program's own folder says, before anything is written, where an export writes and how the names of what it
has not completed begin: with this process and a number that no other has. Its lock ends with the process, however that
ends. So nothing is removed but what this installation is known to have left, on this computer or on a shared drive.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.persistence import FileLock, HeldError, clear_unfinished, make_private, process_number, write_atomically
from fieldray.typed_json import decoded

_NOTES: Final = "exports"
_counted: Final = itertools.count()
_ENDING: Final = ".json"
_TAKING_S: Final = 5.0  # another process only looks whether anybody holds it


@dataclass(frozen=True, slots=True)
class _Note:
    """Where an export writes."""

    folder: str


@contextlib.contextmanager
def noted(folder: Path, *, home: Path) -> Iterator[None]:
    """While inside, it is on record that this process writes into a folder; what killed ones left is removed first.

    home  of the program. Where it cannot be written (a full disk), the export goes on without a note.
    """
    notes = home / _NOTES
    note = notes / f"{os.getpid()}-{process_number()}.{next(_counted)}{_ENDING}"
    with contextlib.ExitStack() as ends:
        with contextlib.suppress(OSError, StorageProblem, HeldError):
            make_private(notes)
            _clear(notes)
            ends.callback(_forget, note)
            ends.enter_context(FileLock(_lock_of(note), holder=str(os.getpid()), wait_s=_TAKING_S))
            write_atomically(note, json.dumps({"folder": os.fsdecode(folder.absolute())}).encode("ascii"))
            ends.callback(_remove, note)  # before the lock is given back
        yield


def _clear(notes: Path) -> None:
    for note in sorted(notes.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, HeldError):
            with FileLock(_lock_of(note), holder=str(os.getpid())):
                _clear_one(note)
            if not note.exists():
                _forget(note)


def _clear_one(note: Path) -> None:
    """Remove what its process left, and the note; both stay where the folder, on a drive say, is not there now."""
    process, _, number = note.name.partition(".")[0].partition("-")
    with contextlib.suppress(ValueError):  # a note that was cut short names nothing
        folder = Path(decoded(note.read_bytes(), _Note).folder)
        if not folder.is_dir():
            return
        if process.isdigit() and number.isalnum():
            clear_unfinished(folder, process=int(process), number=number)
    _remove(note)


def _lock_of(note: Path) -> Path:
    return note.with_suffix(".lock")


def _remove(note: Path) -> None:
    with contextlib.suppress(OSError):
        note.unlink(missing_ok=True)


def _forget(note: Path) -> None:
    """The lock's file: an open one cannot be deleted everywhere, so it goes once the lock was given back."""
    _remove(_lock_of(note))
