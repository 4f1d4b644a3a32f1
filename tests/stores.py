"""Stores of the tests: a run of outcomes at one stroke, and what is asked of and done to a file past the program."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fieldray.domain.finding import Outcome, Screened
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
) -> Screened:
    """An image with this score, whose bytes are a digit."""
    given = {"header": ImageHeader(**header)} if header else {}  # type: ignore[arg-type]
    facts = replace(read_facts(content * 64), preview=preview)
    return replace(screened(image_ref(name, **given), score=score), facts=facts)


def save_run(
    store: ResultStore, *outcomes: Outcome, spec: RunSpec = SPEC, fresh: bool = False, is_over: bool = False
) -> int:
    """One pass of a run of one pack over these, from its beginning; its id. A fresh one continues none from before."""
    run_id = store.open_run(spec, fresh=fresh)
    store.save_all(run_id, [([outcome], ()) for outcome in outcomes], spec=spec)
    if is_over:
        store.finish(run_id)
    return run_id


def keep(path: Path, outcomes: Iterable[Outcome], *, spec: RunSpec = SPEC) -> int:
    """Save these in a file, as a run of its own that is over; its id."""
    with ResultStore(path) as store:
        return save_run(store, *outcomes, spec=spec, fresh=True, is_over=True)


def rows_of(path: Path, query: str) -> list[tuple[Any, ...]]:
    """The rows of an answer."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def change(path: Path, orders: str, *values: object) -> None:
    """Carry orders out; where there are values, one order with these."""
    with closing(sqlite3.connect(path)) as connection, connection:
        if values:
            connection.execute(orders, values)
        else:
            connection.executescript(orders)


class AskedStatements(list[str]):
    """What a store asks SQLite: every statement on the connections made by `connect`, in order."""

    def connect(self, path: Path) -> sqlite3.Connection:
        """A connection as the program opens it."""
        connection = open_database(path)
        connection.set_trace_callback(self.append)
        return connection

    def plans(self, path: Path) -> list[list[str]]:
        """For each statement, the steps in which it goes through the tables."""
        with closing(sqlite3.connect(path)) as connection:
            return [[row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + asked)] for asked in self]
