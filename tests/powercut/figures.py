"""What a power-cut run found, as a page of the documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fieldray.bench.report import Block, Points, Report, Table

MEASURED: Final = (
    "app/fieldray/store",
    "app/fieldray/persistence.py",
    "app/fieldray/pipeline",
    "app/fieldray/packs",
    "app/fieldray/reports",
    "app/fieldray/settings.py",
    "tests/powercut",
)
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


def lost_in(facts: Facts) -> int:
    """How much did not hold, over all parts."""
    rows = [row for part in facts.values() if isinstance(part, list) for row in part]
    return sum(sum(row["lost"].values()) for row in rows)


def report(facts: Facts) -> Report:
    """The figures as tables, and what they mean."""
    blocks: list[Block] = [Points("What was run", _told(facts))]
    if "cuts" in facts:
        columns = ("what was cut off", "changes", "disks, ordered", "disks, unordered", "lost, doubled or wrong")
        blocks.append(Table("The power goes", columns, tuple(_cut_row(row) for row in facts["cuts"])))
    if "refusals" in facts:
        columns = ("what was refused something", "changes", "tried", "reasons given", "lost, doubled or wrong")
        blocks.append(Table("The disk is full, or fails", columns, tuple(_refusal_rows(facts["refusals"]))))
    if "rivals" in facts:
        columns = ("at once", "rounds", "killed", "lost, doubled or wrong")
        rows = tuple((row["name"], _n(row["rounds"]), _n(row["killed"]), _lost(row)) for row in facts["rivals"])
        blocks.append(Table("Two programs on one home", columns, rows))
    if "cases" in facts:
        rows = tuple((row["tried"], row["case"], row["verdict"]) for row in facts["cases"])
        blocks.append(Table("Drives, clocks and memory", ("what happens", "case", "holds"), rows))
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


def _cut_row(row: Facts) -> tuple[str, ...]:
    name, _, more = row["act"].partition(", ")
    what = _ACTS[name] + (", while the disk refuses something" if more else "")
    states = row["states"]
    return what, _n(row["changes"]), _n(states.get("ordered", 0)), _n(states.get("unordered", 0)), _lost(row)


def _refusal_rows(rows: Iterable[Facts]) -> Iterable[tuple[str, ...]]:
    """All kinds of an act together."""
    acts: defaultdict[str, list[Facts]] = defaultdict(list)
    for row in rows:
        acts[row["act"]].append(row)
    for act, found in acts.items():
        reasons = sorted({code for row in found for code in row["reasons"]})
        lost = sum(sum(row["lost"].values()) for row in found)
        changes, tried = max(row["changes"] for row in found), sum(row["tried"] for row in found)
        yield _ACTS[act], _n(changes), _n(tried), ", ".join(reasons) or "-", _n(lost)


def _lost(row: Facts) -> str:
    return _n(sum(row["lost"].values()))


def _n(number: int) -> str:
    return f"{number:,}"
