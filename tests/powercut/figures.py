"""What a power-cut run found: counted while it is tried, and shown as a page of the documents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fieldray.bench.report import Block, Points, Report
from harness.runner import table
from powercut.place import Lost

MEASURED: Final = (
    *(f"app/fieldray/{part}" for part in ("store", "persistence.py", "pipeline", "packs", "reports", "settings.py")),
    "tests/powercut",
)
_MOST_EXAMPLES: Final = 12
_ACTS: Final[Mapping[str, str]] = {
    "screen": "a run, from an empty home",
    "resume": "a run that is resumed",
    "verdicts": "verdicts during a run",
    "export": "CSV, JSON and DICOM SR, twice",
    "documents": "PDF of the run and of its studies, twice",
    "install": "packs installed, and replaced",
    "keep": "settings, keys, folders, a site's operating points",
    "delete": "runs deleted",
    "mend": "a damaged store mended",
    "program": "the command line, with its processes, maps and exports",
}
Facts = Mapping[str, Any]


@dataclass(eq=False, slots=True)
class Figures:
    """What came of one thing that was tried at many moments.

    name    what it is called, and what was tried: an act or two programs at once
    counts  what was tried how often, and what was given as the reason
    lost    what did not hold, each with how often; `examples` says where it is found again
    """

    name: Mapping[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @contextmanager
    def judging(self, where: object, *, under: str = "") -> Iterator[None]:
        """Note what does not hold inside."""
        try:
            yield
        except Exception as error:
            what = str(error) if isinstance(error, Lost) else f"{type(error).__name__}: {error}"
            self.lost[under + what] += 1
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append(f"{where}: {what}")

    def add(self, other: Figures) -> None:
        """Those of the same act, tried otherwise."""
        self.counts = {name: max(count, self.counts.get(name, 0)) for name, count in other.counts.items()}
        self.states += other.states
        self.lost += other.lost
        self.examples = [*self.examples, *other.examples][:_MOST_EXAMPLES]

    def facts(self) -> dict[str, Any]:
        """As JSON has them."""
        counted = {"states": dict(self.states), "reasons": dict(self.reasons), "lost": dict(self.lost)}
        return {**self.name, **self.counts, **counted, "examples": self.examples}


def lost_in(facts: Facts) -> int:
    """How much did not hold, over all parts."""
    return sum(_lost(row) for part in facts.values() if isinstance(part, list) for row in part)


def report(facts: Facts) -> Report:
    """The figures as tables, and what they mean."""
    wrong = "lost, doubled or wrong"
    blocks: list[Block] = [Points("What was run", _told(facts))]
    if cuts := facts.get("cuts"):
        columns = {
            "what was cut off": _what,
            "changes": lambda row: f"{row['changes']:,}",
            "disks, ordered": lambda row: f"{row['states'].get('ordered', 0):,}",
            "disks, unordered": lambda row: f"{row['states'].get('unordered', 0):,}",
            wrong: _lost,
        }
        blocks.append(table("The power goes", cuts, columns))
    if refusals := facts.get("refusals"):
        columns = {
            "what was refused something": lambda rows: _what(rows[0]),
            "changes": lambda rows: f"{max(row['changes'] for row in rows):,}",
            "tried": lambda rows: f"{sum(row['tried'] for row in rows):,}",
            "reasons given": lambda rows: (
                ", ".join(sorted({code for row in rows for code in row.get("reasons", ())})) or "-"
            ),
            wrong: lambda rows: sum(map(_lost, rows)),
        }
        blocks.append(table("The disk is full, or fails", _by_act(refusals), columns))
    if rivals := facts.get("rivals"):
        columns = {"at once": lambda row: row["name"], "rounds": lambda row: row["rounds"]}
        columns |= {"killed": lambda row: row["killed"], wrong: _lost}
        blocks.append(table("Two programs on one home", rivals, columns))
    if cases := facts.get("cases"):
        columns = {"what happens": lambda row: row["tried"], "case": lambda row: row["case"]}
        blocks.append(table("Drives, clocks and memory", cases, {**columns, "holds": lambda row: row["verdict"]}))
    return Report(kind="powercut", title="Fieldray: faults at every moment", blocks=tuple(blocks), data=dict(facts))


def _told(facts: Facts) -> Sequence[str]:
    disks = sum(sum(row["states"].values()) for row in facts.get("cuts", ()))
    tried = sum(row["tried"] for row in facts.get("refusals", ()))
    rounds = sum(row["rounds"] for row in facts.get("rivals", ()))
    found = f"lost, doubled or wrong: {lost_in(facts)}"
    return (
        f"{disks:,} disks after a power cut, {tried:,} refusals of a disk, {rounds:,} rounds of two programs and "
        f"{len(facts.get('cases', ()))} cases in {facts['seconds']:.0f} s (seed {facts['seed']}); {found}.",
        "Each act was recorded once: every write, rename, link, removal and fsync of all its processes. For moments "
        "of the recording, disks were made on which anything that was not brought to the disk may be missing, in "
        "sectors of 512 or 4,096 bytes, and the program was started on each. Ordered: names change in order, as with "
        "a journal (ext4, XFS, Btrfs, NTFS, APFS). Unordered: the least that POSIX promises.",
        "It holds: the store opens whole, results are right and none is doubled, a run that is resumed is complete, a "
        "verdict, a deletion, an export, a pack or a setting that was told as saved is there, and what lies under a "
        "final name is the old one or the new one.",
        "Results that were shown may be missing after a power cut; the next run screens those images again.",
        "What this does not show: disks that lie about fsync or change what they hold, errors of file systems, "
        "Windows and macOS, and a limit of memory for a group of processes (cgroup), for which a process stood in "
        "that ends readers.",
    )


def _what(row: Facts) -> str:
    name, _, more = row["act"].partition(", ")
    return _ACTS[name] + (", while the disk refuses something" if more else "")


def _by_act(rows: Sequence[Facts]) -> Sequence[Sequence[Facts]]:
    """All kinds of an act together."""
    acts: defaultdict[str, list[Facts]] = defaultdict(list)
    for row in rows:
        acts[row["act"]].append(row)
    return list(acts.values())


def _lost(row: Facts) -> int:
    return sum(row["lost"].values())
