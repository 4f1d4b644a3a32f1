"""What a person or a run does with a store and the files beside it; each act is performed, cut off, and looked at.

`prepare` makes the place as it is before, `perform` is the act, and `check` says what must hold at the next start of
the program, wherever the act was cut off: it raises `Lost`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from fieldray.errors import FieldrayError
from powercut.exporting import DOCUMENTS, QUICK, check_export, export
from powercut.keeping import check_kept, check_packs, install, keep, prepare_packs
from powercut.place import Emit, Log, Place, emitter
from powercut.program import Program
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

# How an act was cut off: the power went, a change failed and the program told of it, or its process was killed.
End = Literal["power", "fault", "kill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """See the module.

    perform        None where a program does it
    command        that program, as it is typed
    changes_whole  files and folders that are to be the old ones or the new ones after a power cut, as patterns
    """

    prepare: Callable[[Place], None]
    check: Callable[[Place, Log, End], None]
    perform: Callable[[Place, Emit], None] | None = None
    command: Callable[[Place], Sequence[str]] | None = None
    changes_whole: tuple[str, ...] = ()

    def performed(self, place: Place, log: Path) -> dict[str, Any]:
        """Perform it, and say how it ended: code and sentence of a FieldrayError, or the traceback of another."""
        assert self.perform
        problem, crash = None, ""
        try:
            self.perform(place, emitter(log))
        except FieldrayError as error:
            problem = error.reason.code, error.reason.text
        except BaseException:
            crash = traceback.format_exc()
        return {"problem": problem, "crash": crash}


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
