"""What a run asks of its store: that it can be read, that it holds what was saved, and room for its last words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldray.domain.events import Publish, StoreRepaired
from fieldray.errors import StorageProblem
from fieldray.persistence import write_atomically
from fieldray.reasons import reason
from fieldray.store.database import is_damage
from fieldray.store.maintenance import repair, repair_pictures
from fieldray.store.results import ResultQuery, ResultStore

_RESERVE_BYTES: Final = 2**17  # a few pages, and room for SQLite's log index to grow once


def open_store(database: Path, publish: Publish) -> ResultStore:
    """The store; a damaged one is set aside first, and a person is told. Raises StorageProblem."""
    with contextlib.suppress(StorageProblem):  # without pictures there is a run all the same
        if repaired := repair_pictures(database):
            publish(StoreRepaired(reason=repaired))
    try:
        return ResultStore(database)
    except StorageProblem as problem:
        if not is_damage(problem):
            raise
        if repaired := repair(database):  # or another program has done it
            publish(StoreRepaired(reason=repaired))
        return ResultStore(database)


def require_kept(store: ResultQuery, run_id: int, *, saved: int) -> None:
    """Require that all results of a run are in the store. Raises StorageProblem (results_lost).

    saved  the number of rows that the run was given
    """
    try:
        store.run(run_id)
        found = sum(store.counts(run_id).values())
    except KeyError:
        found = -1
    if found < saved:
        raise StorageProblem(reason("results_lost", path=store.path, found=max(found, 0), saved=saved))


@contextlib.contextmanager
def room_kept_back(database: Path) -> Iterator[None]:
    """While inside, a file beside the database reserves room. Raises StorageProblem (disk_full, not_writable).

    On a full disk not even *failed* could be written, and the run would be called running for ever.
    """
    path = database.with_name(database.name + ".reserve")
    write_atomically(path, os.urandom(_RESERVE_BYTES))  # random bytes: some file systems reserve no room for zeros
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
