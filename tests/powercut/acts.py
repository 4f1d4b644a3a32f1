"""The acts of the power-cut run: what a person or a run does with the results database and other files.

`prepare` makes the files that exist before the act, and `perform` performs it. After an interruption at any moment,
`check` looks at what the next start of the program finds. It raises `Lost` if anything is lost, doubled or wrong.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from fieldray.errors import FieldrayError
from fieldray.store.results import ResultQuery
from powercut.exporting import DOCUMENTS, QUICK, check_export, export, is_whole_table
from powercut.keeping import check_kept, check_packs, install, keep, prepare_packs
from powercut.place import Emit, Log, Lost, Place, emitter, require, require_whole
from powercut.storing import (
    check_deleted,
    check_run,
    check_verdicts,
    delete,
    give_verdicts,
    prepare_half,
    prepare_run,
    prepare_runs,
    screen,
)
from program import command, runner, write_images
from tiny_packs import fingerprint, write_tiny_pack

_COUNT: Final = 6
_RESUMED_EVERY: Final = 10  # a run is resumed on every tenth disk only, because that takes long

Row = tuple[str, str, float | None]

# How an act was interrupted: power cut, failed change that the program reported, or killed process.
End = Literal["power", "fault", "kill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act; see the module's docstring. It has either `perform` or `command`.

    command        the command line of a program that performs the act
    changes_whole  patterns of files and folders that must be completely old or completely new after a power cut
    """

    prepare: Callable[[Place], None]
    check: Callable[[Place, Log, End], None]
    perform: Callable[[Place, Emit], None] | None = None
    command: Callable[[Place], Sequence[str]] | None = None
    changes_whole: tuple[str, ...] = ()

    def performed(self, place: Place, log: Path) -> dict[str, Any]:
        """Perform the act. Returns its end: code and text of a FieldrayError, or the traceback of another error."""
        assert self.perform
        problem, crash = None, ""
        try:
            self.perform(place, emitter(log))
        except FieldrayError as error:
            problem = error.reason.code, error.reason.text
        except BaseException:
            crash = traceback.format_exc()
        return {"problem": problem, "crash": crash}


class Program:
    """The act `program`: `fieldray screen` with real images and a real pack, an export, and maps.

    Images, pack and the expected results are made once and kept for all moments.
    """

    def __init__(self) -> None:
        self._expected: Mapping[str, Row] = {}
        self._checked = 0

    def prepare(self, place: Place) -> None:
        """Make an empty home, and the first time the images, the pack and the expected results."""
        place.clear()
        if not self._studies(place).exists():
            write_images(self._studies(place), _COUNT, side=128)
            (self._studies(place) / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
            write_tiny_pack(place.drive / "tiny")
            self._run(place)
            self._expected = self._rows(place)
            place.clear()

    def command(self, place: Place) -> Sequence[str]:
        """Return the command line of the act."""
        return command(*self._arguments(place))

    def _arguments(self, place: Place) -> tuple[object, ...]:
        (pack,) = (place.drive / "tiny").iterdir()
        options = ["--pack", pack, "--trust", fingerprint(pack), "--json", "-"]
        return "screen", self._studies(place), *options, "--out", place.out, "--maps", place.root / "maps"

    def check(self, place: Place, log: Log, end: str) -> None:
        """Require correct results and whole outputs. Some runs are resumed, and must come to the expected results."""
        require_whole(place)
        rows = self._rows(place)
        if wrong := [name for name, row in rows.items() if self._expected[name] != row]:
            raise Lost(f"another result for {', '.join(wrong)}")
        require(len(place.runs()) <= 1, "more than one run")
        self._require_tables(place, None if end == "fault" else len(self._expected))  # failed images are exported, too
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
        return said.ends_with(1).lines  # 1: an image failed, as expected

    def _rows(self, place: Place) -> dict[str, Row]:
        """Return status, category and score by file name for the newest run."""
        runs, found = place.runs(), {}
        with ResultQuery(place.store) as query:
            for result in query.results(runs[0].run_id) if runs else ():
                outcome = result.outcome
                require(outcome.ref.path.name not in found, f"{outcome.ref.path.name} is there twice")
                scores = [finding.score for finding in getattr(outcome, "findings", ())]
                found[outcome.ref.path.name] = outcome.status, outcome.category, max(scores, default=None)
        return found

    @staticmethod
    def _studies(place: Place) -> Path:
        return place.root.with_name("studies")


_PROGRAM: Final = Program()
ACTS: Final[Mapping[str, Act]] = {
    "screen": Act(prepare=Place.clear, perform=screen, check=check_run),
    "resume": Act(prepare=prepare_half, perform=screen, check=check_run),
    "verdicts": Act(prepare=prepare_run, perform=give_verdicts, check=check_verdicts),
    "export": Act(
        prepare=prepare_run, perform=partial(export, formats=QUICK), check=check_export, changes_whole=("out/*",)
    ),
    "documents": Act(
        prepare=prepare_run, perform=partial(export, formats=DOCUMENTS), check=check_export, changes_whole=("out/*",)
    ),
    "install": Act(prepare=prepare_packs, perform=install, check=check_packs, changes_whole=("home/packs/*",)),
    "keep": Act(prepare=Place.clear, perform=keep, check=check_kept, changes_whole=("home/*.json",)),
    "delete": Act(prepare=prepare_runs, perform=delete, check=check_deleted),
    "program": Act(
        prepare=_PROGRAM.prepare,
        command=_PROGRAM.command,
        check=_PROGRAM.check,
        changes_whole=("out/*", "maps/*", "home/pack_trust.json"),
    ),
}
