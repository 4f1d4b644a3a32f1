"""`bench pipeline --decisions`, the report: how far scores move when images are read reduced, and what that decides."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from benchmarks.contest_report import Mark
from benchmarks.decisions import Compared
from fieldray.bench.report import Points, Report, Table

MOST_MEAN_DIFFERENCE: Final = 0.01
LEAST_EQUAL: Final = 0.995
FEWEST_IMAGES: Final = 1000


def decision_report(compared: Compared, *, pack: str, images: str) -> Report:
    """Tables, verdicts and figures; the comparison holds at least one pair."""
    marks = _marks(compared)
    notes = [
        f"Run on {images} with {pack}. Each is read twice: at the resolution that screening needs, and in full; the "
        "rest is the same; a close call is decided by a finer picture, as in screening. The decision is the one at "
        "each label's first operating point, and an image that the gate refuses both times counts as equal.",
        *(f"Not compared: {count} images, {why}." for why, count in sorted(compared.unread.items()) if count),
    ]
    return Report(
        kind="bench-decisions",
        title="Fieldray: decisions of images read reduced and in full",
        blocks=(
            _by_kind(compared),
            _decisions(compared),
            Points("What was to be reached", tuple(mark.sentence for mark in marks)),
            Points("How it was measured", tuple(notes)),
        ),
        data=_data(compared, marks, pack=pack, images=images),
    )


def _marks(compared: Compared) -> tuple[Mark, ...]:
    differences = compared.differences
    count, mean = float(sum(compared.images.values())), float(differences.mean())
    return (
        Mark(name="Images compared", measured=count, goal=FEWEST_IMAGES, unit="images"),
        Mark(name="Mean difference of scores", measured=mean, goal=MOST_MEAN_DIFFERENCE, is_most=True, unit=""),
        Mark(name="Share of equal decisions", measured=compared.equal_share, goal=LEAST_EQUAL, unit=""),
        Mark(name="Jumps between above and below", measured=compared.jumps, goal=0, is_most=True, unit="images"),
    )


def _by_kind(compared: Compared) -> Table:
    columns = (
        "kind of file",
        "images",
        "input differs",
        "read twice",
        "mean",
        "99 % within",
        "largest",
        "equal decisions",
    )
    rows = [_row(kind, images, compared.changed[kind], compared) for kind, images in compared.images.items()]
    rows.append(_row("all", sum(compared.images.values()), sum(compared.changed.values()), compared))
    return Table("Absolute difference of the calibrated score", columns, tuple(rows))


def _row(kind: str, images: int, changed: int, compared: Compared) -> tuple[str, ...]:
    part = Compared(pairs=[pair for pair in compared.pairs if kind in (pair.kind, "all")])
    moved = part.differences
    twice = f"{sum(pair.is_close for pair in part.pairs) / len(part.pairs):.1%}"
    cells = (twice, f"{moved.mean():.5f}", f"{np.percentile(moved, 99):.4f}", f"{moved.max():.4f}")
    return (kind, str(images), str(changed), *cells, f"{part.equal_share:.2%}")


def _decisions(compared: Compared) -> Table:
    """How often which decision became which."""
    counts = Counter(
        tuple(decision if passes else "refused" for decision, passes in zip(pair.decisions, pair.passes, strict=True))
        for pair in compared.pairs
    )
    rows = tuple((reduced, in_full, str(count)) for (reduced, in_full), count in counts.most_common())
    return Table("Decisions", ("reduced", "in full", "images"), rows)


def _data(compared: Compared, marks: tuple[Mark, ...], *, pack: str, images: str) -> dict[str, Any]:
    return {
        "pack": pack,
        "source": images,
        "images": dict(compared.images),
        "changed": dict(compared.changed),
        "not_compared": dict(compared.unread),
        "marks": [{"name": mark.name, "measured": mark.measured, "is_met": mark.is_met} for mark in marks],
        "pairs": [
            [pair.kind, pair.label, *pair.scores, *pair.decisions, *pair.passes, pair.is_close]
            for pair in compared.pairs
        ],
    }
