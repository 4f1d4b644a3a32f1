"""Screens damaged files and holds the program to what it promises of any file.

One outcome for each, no traceback, no process left behind, the end within the time, and memory within the bounds of
the attack run. What a decoder does to itself on such a file (a crash, a time-out) is contained, and counted.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fuzz.mutations import MUTATIONS, mutated
from harness.record import tail
from harness.world import World
from phantoms import write_collection

LARGEST: Final = 4 * 2**20
_PER_RUN: Final = 250
_PER_SUFFIX: Final = 100
_START_S, _PER_FILE_S = 120.0, 2.0
_CONTAINED: Final = ("decoder_crashed", "decoder_timeout", "memory")


@dataclass(kw_only=True)
class Figures:
    """What became of the files of one kind. `why` says what did not hold, and is empty otherwise."""

    kind: str
    files: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    parent_mb: float = 0.0
    child_mb: float = 0.0
    why: list[str] = field(default_factory=list)

    @property
    def contained(self) -> int:
        """How many decoders ended on a file, and another one read on."""
        return sum(self.reasons[code] for code in _CONTAINED)

    @property
    def line(self) -> str:
        """For a person."""
        counts = "  ".join(f"{name} {self.outcomes[name]}" for name in ("screened", "refused", "failed"))
        verdict = "FAILED" if self.why else "ok"
        why = "".join(f"\n    {each}" for each in self.why)
        return (
            f"{verdict:<8}{self.kind:<10}{self.files:>6} files  {counts}  contained {self.contained}  "
            f"peak {self.parent_mb:.0f} + {self.child_mb:.0f} MB{why}"
        )

    def facts(self) -> dict[str, Any]:
        """For the file of figures."""
        return {**vars(self), "contained": self.contained}


def sources(folder: Path, data: Path | None, *, seed: int) -> list[Path]:
    """The files to damage: every kind of phantom, and of `data` up to 100 per kind of name, none above 4 MB."""
    chosen = write_collection(folder)
    by_suffix: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(data.rglob("*")) if data else ():
        if path.is_file() and path.suffix.lower() in ("", ".dcm", ".png", ".jpg", ".jpeg"):
            by_suffix[path.suffix.lower()].append(path)
    for suffix, found in sorted(by_suffix.items()):
        paths = [path for path in found if 0 < path.stat().st_size <= LARGEST and "DICOMDIR" not in path.name]
        chosen += random.Random(f"{seed} {suffix}").sample(paths, min(_PER_SUFFIX, len(paths)))
    return chosen


def fuzz(
    kinds: Sequence[str], originals: Sequence[Path], program: Sequence[str], *, files: int, seed: int
) -> Iterator[Figures]:
    """Damage and screen about `files` files, as many of each kind; the figures of a kind as soon as it is done."""
    for place, kind in enumerate(kinds):
        share = files // len(kinds) + (place < files % len(kinds))
        figures = Figures(kind=kind)
        for start in range(0, share, _PER_RUN):
            _screen(figures, range(start, min(start + _PER_RUN, share)), originals, program, seed=seed)
        yield figures


def _screen(
    figures: Figures, numbers: Iterable[int], originals: Sequence[Path], program: Sequence[str], *, seed: int
) -> None:
    """One run of the program over the damaged files with these numbers."""
    numbers = list(numbers)
    with World(program, limit_s=_START_S + _PER_FILE_S * len(numbers)) as world:
        names = [_write(world.images, figures.kind, number, originals, seed=seed) for number in numbers]
        figures.files += len(names)
        try:
            lines = world.screen(dict.fromkeys(names, "any")).lines
        except AssertionError as error:
            figures.why.append(f"files {numbers[0]} to {numbers[-1]}: {tail(str(error), longest=600)}")
        else:
            figures.outcomes.update(line["status"] for line in lines)
            figures.reasons.update(line["reason_code"] for line in lines if line["reason_code"])
        figures.parent_mb = max(figures.parent_mb, world.peak_mb["parent"])
        figures.child_mb = max(figures.child_mb, world.peak_mb["child"])


def _write(folder: Path, kind: str, number: int, originals: Sequence[Path], *, seed: int) -> str:
    original = random.Random(f"{seed} {kind} {number} original").choice(originals)
    path = folder / f"{number:05}-{original.name}"
    path.write_bytes(mutated(original.read_bytes(), kind, seed=seed, number=number))
    return path.name


KINDS: Final = tuple(MUTATIONS)
