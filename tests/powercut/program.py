"""An act of the whole program: its command line screens real images with a real pack, exports, and draws maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fieldray.store.results import ResultQuery
from powercut.exporting import is_whole_table
from powercut.place import Log, Lost, Place, require, require_whole
from program import command, runner, write_images
from tiny_packs import fingerprint, write_tiny_pack

_COUNT: Final = 6
_RESUMED_EVERY: Final = 10  # so many disks; the others are looked at without the program

Row = tuple[str, str, float | None]


class Program:
    """Its images, its pack, and what comes out where nothing happens."""

    def __init__(self) -> None:
        self._expected: Mapping[str, Row] = {}
        self._checked = 0

    def prepare(self, place: Place) -> None:
        """A new home."""
        place.clear()
        if not self._studies(place).exists():
            write_images(self._studies(place), _COUNT, side=128)
            (self._studies(place) / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
            write_tiny_pack(place.drive / "tiny")
            self._run(place)
            self._expected = self._rows(place)
            place.clear()

    def command(self, place: Place) -> Sequence[str]:
        """What is typed."""
        return command(*self._arguments(place))

    def _arguments(self, place: Place) -> tuple[object, ...]:
        (pack,) = (place.drive / "tiny").iterdir()
        options = ["--pack", pack, "--trust", fingerprint(pack), "--json", "-"]
        return "screen", self._studies(place), *options, "--out", place.out, "--maps", place.root / "maps"

    def check(self, place: Place, log: Log, end: str) -> None:
        """What is there is right and whole; a run that is resumed, as some are, comes to the very same list."""
        require_whole(place)
        rows = self._rows(place)
        if wrong := [name for name, row in rows.items() if self._expected[name] != row]:
            raise Lost(f"another result for {', '.join(wrong)}")
        require(len(place.runs()) <= 1, "more than one run")
        self._require_tables(place, None if end == "fault" else len(self._expected))  # what failed is exported, too
        self._checked += 1
        if end == "fault" or self._checked % _RESUMED_EVERY == 0:
            self._resume(place)

    def _resume(self, place: Place) -> None:
        said = self._run(place)
        names = sorted(Path(line["path"]).name for line in said)
        require(names == sorted(self._expected), f"the resumed list is not complete: {names}")
        require(self._rows(place) == self._expected, "the resumed run has other results")
        self._require_tables(place, len(self._expected))

    @staticmethod
    def _require_tables(place: Place, rows: int | None) -> None:
        for path in place.out.glob("*.csv"):
            require(is_whole_table(path, rows), f"half an output: {path.name}")

    def _run(self, place: Place) -> list[dict[str, Any]]:
        said = runner(place.home)(*self._arguments(place))
        return said.ends_with(1).lines  # 1: an image failed, as is to be

    def _rows(self, place: Place) -> dict[str, Row]:
        """Of the newest run: status, category and score by file name."""
        runs, found = place.runs(), {}
        with ResultQuery(place.store) as query:
            for result in query.rows(runs[0].run_id) if runs else ():
                outcome = result.outcome
                require(outcome.ref.path.name not in found, f"{outcome.ref.path.name} is there twice")
                scores = [finding.score for finding in getattr(outcome, "findings", ())]
                found[outcome.ref.path.name] = outcome.status, outcome.category, max(scores, default=None)
        return found

    @staticmethod
    def _studies(place: Place) -> Path:
        return place.root.with_name("studies")
