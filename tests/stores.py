"""Results databases for tests: runs of outcomes in one call, and direct access to the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fieldray.domain.finding import Outcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader
from fieldray.domain.run import RunSpec, Verdict
from fieldray.store.opening import open_database
from fieldray.store.results import ResultStore
from outcomes import image_ref, read_facts, run_spec, screened

SPEC: Final = run_spec()
AGREE: Final = Verdict(choice="agree", note="seen")
DISAGREE: Final = Verdict(choice="disagree")


def image(
    name: str = "a.dcm", content: str = "c", *, score: float = 0.8, preview: bytes = b"", **header: object
) -> ScreenedOutcome:
    """Return an image with a score, whose bytes are a digit."""
    given = {"header": ImageHeader(**header)} if header else {}  # type: ignore[arg-type]
    facts = replace(read_facts(content * 64), preview=preview)
    return replace(screened(image_ref(name, **given), score=score), facts=facts)


def save_run(
    store: ResultStore, *outcomes: Outcome, spec: RunSpec = SPEC, as_new_run: bool = False, is_over: bool = False
) -> int:
    """Save one pass of a run with one pack over outcomes. Returns its id. A fresh run continues no earlier one."""
    run_id = store.open_run(spec, as_new_run=as_new_run)
    store.save_all(run_id, [([outcome], ()) for outcome in outcomes], spec=spec)
    if is_over:
        store.finish_run(run_id)
    return run_id


def keep(path: Path, outcomes: Iterable[Outcome], *, spec: RunSpec = SPEC) -> int:
    """Save outcomes in a file as a finished run. Returns its id."""
    with ResultStore(path) as store:
        return save_run(store, *outcomes, spec=spec, as_new_run=True, is_over=True)


def rows_of(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def change(path: Path, orders: str, *values: object) -> None:
    """Execute SQL statements; with values, one statement with these."""
    with closing(sqlite3.connect(path)) as connection, connection:
        if values:
            connection.execute(orders, values)
        else:
            connection.executescript(orders)


class AskedStatements(list[str]):
    """Records all SQL statements on the connections of `connect`, in order."""

    def connect(self, path: Path) -> sqlite3.Connection:
        """Return a connection as the program opens it."""
        connection = open_database(path)
        connection.set_trace_callback(self.append)
        return connection

    def plans(self, path: Path) -> list[list[str]]:
        """Return the query plan of each statement."""
        with closing(sqlite3.connect(path)) as connection:
            return [[row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + asked)] for asked in self]
