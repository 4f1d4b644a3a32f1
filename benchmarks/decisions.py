"""Whether reading at a reduced resolution changes decisions: every image is read both ways and run.

A borderline image is decided by a finer reading, as in screening. Images below a megapixel would hardly be reduced;
they are enlarged first, given a detector's grain, and written as one kind of file after another.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.image_files import KINDS, ImageKind, enlarged, read_image, write_image
from benchmarks.reports import Mark
from fieldray.bench.report import Points, Report, Table
from fieldray.domain.finding import Decision, Finding, borderline_scores, is_borderline
from fieldray.domain.image import Detail
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.study import ImageRef
from fieldray.errors import InputProblem
from fieldray.imaging.answers import ReadResult
from fieldray.imaging.discover import discover
from fieldray.inference.backend import Answer, Backend
from fieldray.pipeline.assessment import Assessment, choose

_LEAST_PIXELS: Final = 1_000_000
_MEGAPIXELS: Final = (1.0, 1.5, 2.0, 3.0)
_AT_ONCE: Final = 20

Notify = Callable[[str], None]


class BothWays(Protocol):
    """Decoders that can be told how much to read."""

    def read(self, ref: ImageRef, spec: InputSpec, *, detail: Detail = "needed") -> ReadResult: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """One label of one image: calibrated scores, decisions, and whether the OOD gate passes; reduced, then in full.

    `is_close` says that the reduced reading was borderline, so that the first of each pair is of a finer one.
    """

    kind: str
    label: str
    scores: tuple[float, float]
    decisions: tuple[Decision, Decision]
    passes: tuple[bool, bool]
    is_close: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether a person sees the same: the same decision, or refused both times."""
        return self.passes == (False, False) or (self.passes[0] == self.passes[1] and len(set(self.decisions)) == 1)


@dataclass(eq=False, slots=True, kw_only=True)
class Compared:
    """All pairs, and counts.

    Attributes
    ----------
    pairs
        One per image and label.
    images, changed
        By kind of file: the images, and those for which the network's input differed at all.
    unread
        By reason: the images that could not be read both ways.
    """

    pairs: list[Pair] = field(default_factory=list)
    images: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def differences(self) -> NDArray[np.float64]:
        """Absolute differences of the calibrated scores."""
        return np.array([abs(pair.scores[0] - pair.scores[1]) for pair in self.pairs])

    @property
    def equal_share(self) -> float:
        """The share of pairs that are equal, 0..1."""
        return sum(pair.is_equal for pair in self.pairs) / len(self.pairs)

    @property
    def jumps(self) -> int:
        """The number of decisions that changed between above and below."""
        return sum(set(pair.decisions) == {"above", "below"} for pair in self.pairs)


def compare(
    folder: Path,
    model: Model,
    decoders: BothWays,
    backend: Backend,
    *,
    most: int,
    cores: int,
    notify: Notify,
    kinds: Sequence[str] = (),
) -> Compared:
    """Read and run the images of a folder both ways.

    Parameters
    ----------
    folder
        Where the images are.
    model, decoders, backend
        What reads and runs them.
    most
        The largest number of images.
    cores
        How many images are read at once.
    notify
        Hears what is being done.
    kinds
        What images that have to be enlarged are written as, in turn; all kinds if empty.

    Raises
    ------
    BackendProblem, OSError
    """
    compared = Compared()
    refs = itertools.islice((ref for ref in discover([folder]) if ref.problem is None), most)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as place, ThreadPoolExecutor(cores) as threads:
        written = [kind for kind in KINDS.values() if kind.name in kinds or not kinds]
        read = functools.partial(_read, place=Path(place), spec=model.manifest.input, decoders=decoders, kinds=written)
        for batch in _batches(refs):
            notify(f"from image {batch[0][0] + 1}")
            for found in threads.map(read, batch):
                _add(compared, found, model, backend)
    return compared


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """The network's input of an image read reduced, in full, and finer if the reduced one is approximate.

    Empty where `unavailable_reason` says why.
    """

    kind: str
    values: list[NDArray[np.uint8]]
    unavailable_reason: str = ""


def _read(
    item: tuple[int, ImageRef], *, place: Path, spec: InputSpec, decoders: BothWays, kinds: Sequence[ImageKind]
) -> _Found:
    """Read an image both ways; a file that had to be written for this is removed."""
    number, source = item
    made = _large_enough(source, number, place, kinds)
    if made is None:
        return _Found("", [], unavailable_reason="source")
    kind, ref = made
    results = [decoders.read(ref, spec), decoders.read(ref, spec, detail="full")]
    if results[0].is_approximate:
        results.append(decoders.read(ref, spec, detail="finer"))
    if ref is not source:
        ref.path.unlink()
    codes = sorted({result.problem.code for result in results if result.problem})
    values = [result.tensor.values[0] for result in results if result.tensor]
    return _Found(kind, values if len(values) == len(results) else [], unavailable_reason=", ".join(codes))


def _add(compared: Compared, found: _Found, model: Model, backend: Backend) -> None:
    if not found.values:
        compared.unread[found.unavailable_reason] += 1
        return
    compared.images[found.kind] += 1
    compared.changed[found.kind] += not np.array_equal(found.values[0], found.values[1])
    compared.pairs += evaluate_both(found.kind, found.values, model, backend)


def _batches(refs: Iterator[ImageRef]) -> Iterator[list[tuple[int, ImageRef]]]:
    numbered = enumerate(refs)
    while batch := list(itertools.islice(numbered, _AT_ONCE)):
        yield batch


def _large_enough(ref: ImageRef, number: int, place: Path, kinds: Sequence[ImageKind]) -> tuple[str, ImageRef] | None:
    """The image itself, or a larger one written in the kind whose turn it is; None if it cannot be read."""
    try:
        shown = read_image(ref)
    except InputProblem:
        return None
    if shown.size >= _LEAST_PIXELS:
        return "as it is", ref
    kind, megapixels = kinds[number % len(kinds)], _MEGAPIXELS[number // len(kinds) % len(_MEGAPIXELS)]
    image = enlarged(shown, megapixels=megapixels, seed=number)
    return kind.name, ImageRef(path=write_image(place / f"{number:06}", image, kind, number=number))


def evaluate_both(kind: str, values: Sequence[NDArray[np.uint8]], model: Model, backend: Backend) -> Iterator[Pair]:
    """A pair for each label, of inputs (height, width, channels) uint8 read reduced and in full.

    A third input is of a finer reading; it replaces the first where that one is borderline.
    """
    assessment, gate = choose(model), model.manifest.ood_gate
    reduced, in_full, *finer = (_evaluated(backend.run([one])[0], assessment) for one in values)
    moved = map(assessment.findings, borderline_scores(reduced.scores))
    is_close = bool(finer) and is_borderline(reduced.findings, *moved, gate=gate, distance=reduced.distance)
    both = [finer[0] if is_close else reduced, in_full]
    passes = (both[0].passes, both[1].passes)
    for first, second in zip(*(one.findings for one in both), strict=True):
        scores, decisions = (first.score, second.score), (first.decision, second.decision)
        yield Pair(kind, first.label, scores, decisions, passes, is_close)


@dataclass(frozen=True, eq=False, slots=True)
class _Evaluated:
    scores: Mapping[str, float]
    findings: tuple[Finding, ...]
    distance: float | None
    passes: bool


def _evaluated(answer: Answer, assessment: Assessment) -> _Evaluated:
    """Raw scores by label, and findings by the first operating point of each."""
    manifest, gate = assessment.model.manifest, assessment.model.manifest.ood_gate
    scores = {label.code: float(raw) for label, raw in zip(manifest.labels, answer.scores, strict=True)}
    distance = gate.distance(answer.features) if gate and answer.features is not None else None
    passes = gate is None or distance is None or distance <= gate.limit
    return _Evaluated(scores, assessment.findings(scores), distance, passes)


MOST_MEAN_DIFFERENCE: Final = 0.01
LEAST_EQUAL: Final = 0.995
FEWEST_IMAGES: Final = 1000


def decision_report(compared: Compared, *, pack: str, images: str) -> Report:
    """Tables, marks and notes; `compared` holds at least one pair."""
    marks = _marks(compared)
    notes = [
        f"Run on {images} with {pack}. Each image is read twice, at the resolution that screening needs and in full; "
        "everything else is the same. A borderline image is decided by a finer reading, as in screening. Decisions "
        "are those at each label's first operating point. An image that the OOD gate refuses both times counts as "
        "equal.",
        *(f"Not compared: {count} images, {why}." for why, count in sorted(compared.unread.items()) if count),
    ]
    return Report(
        kind="decisions",
        title="Fieldray: decisions on images read reduced and in full",
        blocks=(
            _by_kind(compared),
            _decisions(compared),
            Points("What had to be reached", tuple(mark.sentence for mark in marks)),
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
    """How often each decision became which other one."""
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
