"""What a run asks of its store: that it can be read, and that it holds what was saved."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fieldray.domain.events import Publish, StoreRepaired
from fieldray.errors import StorageProblem
from fieldray.reasons import reason
from fieldray.store.database import is_damage
from fieldray.store.maintenance import repair, repair_pictures
from fieldray.store.results import ResultQuery, ResultStore


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
