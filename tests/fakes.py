"""Readers and engines for tests of the pipeline: they come through the same doors as the real ones."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import ReadFacts
from fieldray.domain.image import Detail, Image, PixelMap, ShownImage, Tensor
from fieldray.domain.model import (
    LUNG_CHECKS,
    BackendName,
    DeviceChoice,
    HeaderRules,
    InputSpec,
    Model,
    Policy,
    Prediction,
    Request,
)
from fieldray.domain.study import ImageRef
from fieldray.errors import BackendProblem, Unreadable
from fieldray.imaging.answers import ReadResult
from fieldray.imaging.discover import members_here
from fieldray.imaging.pool import PoolClosed
from fieldray.imaging.preview_file import unpacked
from fieldray.imaging.quality import check_header
from fieldray.imaging.stamp import Stamps
from fieldray.reasons import Reason, reason

PIXEL_MAP = PixelMap(1.0, 0.0, 1.0, 0.0)


def hash_of(ref: ImageRef) -> str:
    """As if the file's bytes were its name."""
    return hashlib.sha256(ref.path.name.encode("utf-8", "surrogateescape")).hexdigest()


def _even(grey: int, spec: InputSpec) -> Tensor:
    values = np.full((1, spec.height, spec.width, spec.channels), grey, np.uint8)
    return Tensor(values=values, pixel_map=PIXEL_MAP)


class FakeReaders:
    """Reads what a file's name says: `bright`, `dark`, `blank` (refused), `cut` (failed), `bug`, `slow`."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.reading = threading.Event()
        self.read_names: list[str] = []
        self.listed: list[Path] = []
        self.close_problem: Exception | None = None

    def read(
        self,
        ref: ImageRef,
        spec: InputSpec,
        *,
        rules: HeaderRules | None = None,
        detail: Detail = "needed",
        lungs: InputSpec | None = None,
        waives: Sequence[str] = (),
    ) -> ReadResult:
        if self.closed.is_set():
            raise PoolClosed
        name = ref.path.name
        self.read_names.append(name)
        self.reading.set()
        if "slow" in name:
            self.closed.wait()
            raise PoolClosed
        if "bug" in name:
            raise ZeroDivisionError
        if rules and (unsuitable := check_header(ref.header, rules, waives=waives)):
            facts = ReadFacts(content_sha256=hash_of(ref))
            return ReadResult(tensor=None, facts=facts, problem=unsuitable, problem_is_refusal=True)
        facts = ReadFacts(content_sha256=hash_of(ref), rows=spec.height, columns=spec.width, decode_ms=1.5)
        if "blank" in name:
            return ReadResult(tensor=None, facts=facts, problem=reason("blank"), problem_is_refusal=True)
        if "cut" in name:
            return ReadResult(tensor=None, facts=facts, problem=reason("truncated"))
        grey = 255 if "bright" in name else 0
        whole = _even(grey, lungs) if lungs else None
        if spec.crop == "lungs":
            pixels = np.full((spec.height, spec.width), grey, np.uint8)
            return ReadResult(tensor=None, lungs=whole, image=Image(pixels=pixels), facts=facts)
        return ReadResult(tensor=_even(grey, spec), lungs=whole, facts=facts)

    def read_preview(self, preview: bytes) -> NDArray[np.uint8]:
        return unpacked(np.frombuffer(preview, np.uint8))

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        return Image(pixels=np.zeros((4, 4), np.uint8))

    def read_shown(self, ref: ImageRef, *, side: int, content_sha256: str = "") -> ShownImage:
        return ShownImage(pixels=np.zeros((4, 4), np.uint8), rows=4, columns=4)

    def members(self, ref: ImageRef) -> Iterator[ImageRef]:
        self.listed.append(ref.path)
        return members_here()(ref)

    def content_hash(self, ref: ImageRef) -> tuple[str, bytes]:
        if "gone" in ref.path.name:
            raise Unreadable(reason("missing"))
        return hash_of(ref), b""

    def stamp_with(self, stamps: Stamps) -> None:
        """No file is read, so none is stamped."""

    def close(self) -> None:
        self.closed.set()
        if self.close_problem:
            raise self.close_problem


class FakeEngine:
    """Scores an image by its brightness, at once. `answer` replaces what a future is given; `problem`: all is lost."""

    def __init__(self, *, features: float = 0.0, answer: Callable[[Future[Prediction]], None] | None = None) -> None:
        self.unavailable_reason: Reason | None = None
        self.opened: list[Model] = []
        self.chosen: tuple[DeviceChoice, Policy] | None = None
        self.is_closed = False
        self._features = features
        self._answer = answer
        self._sequence = 0

    def open(self, model: Model) -> None:
        self.opened.append(model)

    def reconsider(self, name: BackendName) -> None:
        self.unavailable_reason = None

    def choose(self, device: DeviceChoice, policy: Policy) -> None:
        self.chosen = (device, policy)

    def submit(self, request: Request) -> Future[Prediction]:
        future: Future[Prediction] = Future()
        if self.unavailable_reason:
            future.set_exception(BackendProblem(self.unavailable_reason))
        elif self._answer:
            self._answer(future)
        else:
            future.set_result(self._prediction(request))
        return future

    def close(self) -> None:
        self.is_closed = True

    def _prediction(self, request: Request) -> Prediction:
        self._sequence += 1
        return Prediction(
            request_id=request.request_id,
            pack_name="tiny-1.0.0",
            model_sha256="m" * 64,
            backend="cpu",
            scores={"opacity": float(request.values.mean()) / 255},
            class_maps=np.zeros((1, 2, 2), np.float32),
            features=np.full(4, self._features, np.float32),
            latency_ms=2.0,
            sequence=self._sequence,
        )


class FakeLungEngine(FakeEngine):
    """Finds the same lungs in every image: a mask (rows, columns), and scores of the checks that are not a chest's."""

    def __init__(
        self,
        mask: np.ndarray,
        *,
        answer: Callable[[Future[Prediction]], None] | None = None,
        **scores: float,
    ) -> None:
        super().__init__(answer=answer)
        self._mask = mask.astype(np.float32)
        self._checks = {"frontal_chest": 0.9, **dict.fromkeys(LUNG_CHECKS[1:], 0.1), **scores}
        self.requested: list[int] = []

    def _prediction(self, request: Request) -> Prediction:
        self.requested.append(request.request_id)
        return replace(super()._prediction(request), scores=self._checks, mask=self._mask, latency_ms=0.5)
