"""Whether reading at a reduced resolution changes what is decided: every image read both ways, and run.

A close call is decided by a finer picture, as in screening. Images below a megapixel would hardly be reduced; they are
enlarged first, given a detector's grain, and written in one kind of file after another.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Decision, Finding, calibrate, decide, is_borderline
from fieldray.domain.image import Detail
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.study import ImageRef
from fieldray.errors import InputProblem
from fieldray.imaging.answers import ReadResult
from fieldray.imaging.discover import discover
from fieldray.imaging.image_files import KINDS, ImageKind, enlarged, read_image, write_image
from fieldray.inference.backend import Answer, Backend

_LEAST_PIXELS: Final = 1_000_000
_MEGAPIXELS: Final = (1.0, 1.5, 2.0, 3.0)
_AT_ONCE: Final = 20

Notify = Callable[[str], None]


class BothWays(Protocol):
    """Readers that can be told how much to read."""

    def read(self, ref: ImageRef, spec: InputSpec, *, detail: Detail = "needed") -> ReadResult: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """One image read reduced and in full: calibrated scores of one label, decisions, and whether the gate passes it.

    is_close  the reduced image was a close call, so the first is of a finer picture
    """

    kind: str
    label: str
    scores: tuple[float, float]
    decisions: tuple[Decision, Decision]
    passes: tuple[bool, bool]
    is_close: bool = False

    @property
    def is_equal(self) -> bool:
        """The same to a person: the same decision, or refused both times."""
        return self.passes == (False, False) or (self.passes[0] == self.passes[1] and len(set(self.decisions)) == 1)


@dataclass(eq=False, slots=True, kw_only=True)
class Compared:
    """All pairs. By kind of file: how many images, and of how many the network's input differed at all; by reason: how
    many could not be read both ways.
    """

    pairs: list[Pair] = field(default_factory=list)
    images: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def differences(self) -> NDArray[np.float64]:
        """Absolute differences of calibrated scores."""
        return np.array([abs(pair.scores[0] - pair.scores[1]) for pair in self.pairs])

    @property
    def equal_share(self) -> float:
        """Of all pairs, 0..1."""
        return sum(pair.is_equal for pair in self.pairs) / len(self.pairs)

    @property
    def jumps(self) -> int:
        """Decisions that went from above to below or back."""
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
    """Compare up to `most` images of a folder; those that must be written become `kinds` in turn (empty: all).

    Raises BackendProblem, OSError.
    """
    compared = Compared()
    refs = itertools.islice((ref for ref in discover([folder]) if ref.problem is None), most)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as place, ThreadPoolExecutor(cores) as threads:
        written = [kind for kind in KINDS.values() if kind.name in kinds or not kinds]
        read = functools.partial(_read, place=Path(place), spec=model.manifest.input, decoders=decoders, kinds=written)
        for batch in _batches(refs):
            notify(f"image {batch[0][0] + 1} and on")
            for found in threads.map(read, batch):
                _add(compared, found, model, backend)
    return compared


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """What the network gets of an image read reduced, in full, and finer where that may be asked for.

    Empty where `unavailable_reason` says why.
    """

    kind: str
    values: list[NDArray[np.uint8]]
    unavailable_reason: str = ""


def _read(
    item: tuple[int, ImageRef], *, place: Path, spec: InputSpec, decoders: BothWays, kinds: Sequence[ImageKind]
) -> _Found:
    """Read an image both ways; one that had to be written for it is removed again."""
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
    """A pair for each label, of the network's inputs (height, width, channels) read reduced and in full.

    A third one is of a finer picture and decides what is a close call by the first.
    """
    reduced, in_full, *finer = (_evaluated(backend.run([one])[0], model) for one in values)
    is_close = bool(finer) and is_borderline(reduced.findings, gate=model.manifest.ood_gate, distance=reduced.distance)
    both = [finer[0] if is_close else reduced, in_full]
    passes = (both[0].passes, both[1].passes)
    for first, second in zip(*(one.findings for one in both), strict=True):
        scores, decisions = (first.score, second.score), (first.decision, second.decision)
        yield Pair(kind, first.label, scores, decisions, passes, is_close)


@dataclass(frozen=True, eq=False, slots=True)
class _Evaluated:
    findings: tuple[Finding, ...]
    distance: float | None
    passes: bool


def _evaluated(answer: Answer, model: Model) -> _Evaluated:
    """By the first operating point of each label."""
    manifest, gate, found = model.manifest, model.manifest.ood_gate, []
    for label, raw in zip(manifest.labels, answer.scores, strict=True):
        score, point = calibrate(float(raw), manifest.calibration.get(label.code)), manifest.point(label.code)
        found.append(Finding(label=label.code, score=score, point=point, decision=decide(score, point)))
    distance = gate.distance(answer.features) if gate and answer.features is not None else None
    return _Evaluated(tuple(found), distance, gate is None or distance is None or distance <= gate.limit)
