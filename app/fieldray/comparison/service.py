"""The comparison as a child process serves it, and the messages to it and from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fieldray.comparison.compare import compare
from fieldray.comparison.features import Features, band_pass
from fieldray.domain.comparison import (
    Aligned,
    Alignment,
    ChangeRegion,
    FramedImage,
    ImageOfPair,
    Incomparable,
    Match,
    PairComparison,
)
from fieldray.domain.image import PixelMap
from fieldray.processes.wire import Message
from fieldray.reasons import Reason
from fieldray.typed_json import converted

if TYPE_CHECKING:
    from fieldray.processes.wire import Array

SERVICE: Final = "fieldray.comparison.service:handle"
_MATCH: Final = tuple(field.name for field in fields(Match))
_PAIR: Final = ("prior", "current")


def handle(message: Message) -> Message:
    """Answer a `request` with what `answer_of` reads."""
    prior, current = (_framed(message, name) for name in _PAIR)
    return _answer(compare(prior, current, features=_features(message)))


def request(prior: FramedImage, current: FramedImage, *, features: tuple[Array, Array] | None = None) -> Message:
    """Ask for a comparison; `features` are those of both images (rows, columns, channels) where a network made them."""
    arrays: dict[str, Array] = {}
    maps: dict[str, Any] = {}
    for name, image in zip(_PAIR, (prior, current), strict=True):
        arrays |= {f"{name}_pixels": image.pixels, f"{name}_lungs": image.lungs.astype(np.uint8)}
        maps[name] = asdict(image.pixel_map)
    for name, values in zip(_PAIR, features or (), strict=False):
        arrays[f"{name}_features"] = values
    return Message({"maps": maps}, arrays)


def _framed(message: Message, name: str) -> FramedImage:
    return FramedImage(
        pixels=message.arrays[f"{name}_pixels"],
        lungs=message.arrays[f"{name}_lungs"] > 0,
        pixel_map=PixelMap(**message.body["maps"][name]),
    )


def _features(message: Message) -> Features:
    """Those that came with the images, asked for in their order; else the band-pass."""
    if "prior_features" not in message.arrays:
        return band_pass
    given = iter([message.arrays[f"{name}_features"] for name in _PAIR])
    return lambda _: next(given)


def _answer(comparison: PairComparison) -> Message:
    alignment, aligned, problem = comparison.alignment, comparison.aligned, comparison.problem
    body: dict[str, Any] = {"problem": None, "alignment": None, "regions": None, "reliability": comparison.reliability}
    arrays: dict[str, Array] = {}
    if problem:
        parameters = [list(pair) for pair in problem.reason.parameters]
        body["problem"] = {"code": problem.reason.code, "parameters": parameters, "image": problem.image}
    if alignment:
        body["alignment"] = {
            name: getattr(alignment, name) for name in ("similarity_before", "similarity_after", "least_jacobian")
        }
        rows = [[float(getattr(match, name)) for name in _MATCH] for match in alignment.matches]
        arrays["displacement"] = alignment.displacement
        arrays["matches"] = np.array(rows, np.float64).reshape(-1, len(_MATCH))
    if aligned:
        body["regions"] = [asdict(region) for region in aligned.regions]
        arrays |= {"warped_prior": aligned.warped_prior, "change": aligned.change}
    return Message(body, arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """An `Incomparable` as it travels."""

    code: str
    parameters: tuple[tuple[str, str], ...]
    image: ImageOfPair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The body of an answer; its arrays are those of the alignment and of what differs."""

    problem: _Problem | None
    alignment: dict[str, float] | None
    regions: tuple[ChangeRegion, ...] | None
    reliability: float | None


def answer_of(answer: Message, prior: FramedImage, current: FramedImage) -> PairComparison:
    """What the child found of these images. Raises `wire.NONSENSE` for an answer that makes no sense."""
    body = converted(answer.body, _Answer)
    alignment = _alignment(body.alignment, answer) if body.alignment is not None else None
    if body.problem:
        why = Incomparable(reason=Reason(body.problem.code, body.problem.parameters), image=body.problem.image)
        return PairComparison(prior=prior, current=current, problem=why, tried=alignment, reliability=body.reliability)
    if alignment is None or body.regions is None:
        raise ValueError("a comparison without an alignment")
    aligned = Aligned(
        alignment=alignment,
        warped_prior=answer.arrays["warped_prior"],
        change=answer.arrays["change"],
        regions=body.regions,
    )
    return PairComparison(prior=prior, current=current, aligned=aligned, reliability=body.reliability)


def _alignment(figures: Mapping[str, float], answer: Message) -> Alignment:
    matches = tuple(
        Match(**{**dict(zip(_MATCH, row, strict=True)), "is_kept": bool(row[-1])})
        for row in answer.arrays["matches"].tolist()
    )
    return Alignment(displacement=answer.arrays["displacement"], matches=matches, **figures)
