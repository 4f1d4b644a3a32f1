"""The formats in which a stored run can be saved: one table for the command line, the window and the export itself.

To add a format, put a module with an `EXPORTER` into `reports/exporters`. Nothing else names it. The module is imported
for every `--help`, so it imports numpy, pydicom and the like inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fieldray.registry import Registry, always_available

if TYPE_CHECKING:
    from fieldray.domain.finding import Category
    from fieldray.domain.run import EarlierVerdict, Run, StoredResult
    from fieldray.reasons import Reason


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredRun:
    """A run as an exporter receives it.

    results           in the order of the work list; read once, as it is written
    counts            images per category
    not_present       images that were there once and are not any more
    earlier_verdicts  verdicts on results that have changed since
    """

    run: Run
    results: Iterable[StoredResult]
    counts: Mapping[Category, int] = field(default_factory=dict)
    not_present: tuple[str, ...] = ()
    earlier_verdicts: tuple[EarlierVerdict, ...] = ()

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files and folders that were screened: an export never replaces one."""
        return tuple(map(Path, self.run.spec.paths))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Exporter:
    """One format.

    name                what `--formats` calls it
    suffix              of the file, with its dot; "" where the format is a folder of files
    title               what the window calls it: a name that is the same in all languages
    write               writes the run to a path, always through `outputs.own_text` or `outputs.write_own`, which
                        replace only what `is_own` recognises. Raises UsageProblem, StorageProblem
    is_own              whether a file that begins with these bytes (up to 64 KB) was written by `write`
    started_of          when the run began that such a file is about, as `content.started` writes it, or None. A report
                        of another run is not replaced: another computer may have saved it here, or this one before
                        its results were deleted
    unavailable_reason  why the format cannot be written on this computer, or None
    """

    name: str
    suffix: str
    title: str
    write: Callable[[Path, StoredRun], None]
    is_own: Callable[[bytes], bool]
    started_of: Callable[[bytes], str | None] = lambda _head: None
    unavailable_reason: Callable[[], Reason | None] = always_available


EXPORTERS: Final[Registry[Exporter]] = Registry("fieldray.reports.exporters", "EXPORTER")


def available_exporters() -> tuple[Exporter, ...]:
    """The formats that can be written on this computer."""
    return tuple(exporter for exporter in EXPORTERS.entries() if exporter.unavailable_reason() is None)
