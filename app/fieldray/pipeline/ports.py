"""What the pipeline asks of what reads files and runs models; fakes come through the same doors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import ReadFacts
from fieldray.domain.image import Box, Detail, Image, ShownImage, Tensor
from fieldray.domain.model import BackendName, DeviceChoice, HeaderRules, InputSpec, Model, Policy, Prediction, Request
from fieldray.domain.study import ImageRef
from fieldray.imaging.stamp import Stamps
from fieldray.reasons import Reason


class ReadResult(Protocol):
    """What reading gave: a tensor, or the reason why there is none.

    The tensor is None too where the input is cropped: `cropped` makes it once `lungs`, the input of the network that
    finds them, was run.
    """

    @property
    def tensor(self) -> Tensor | None: ...
    @property
    def lungs(self) -> Tensor | None: ...
    def cropped(self, spec: InputSpec, box: Box, /) -> Tensor: ...
    @property
    def facts(self) -> ReadFacts: ...
    @property
    def ref(self) -> ImageRef | None: ...
    @property
    def is_approximate(self) -> bool: ...
    @property
    def step(self) -> int: ...
    @property
    def problem(self) -> Reason | None: ...
    @property
    def problem_is_refusal(self) -> bool: ...


class Decoder(Protocol):
    """Reads, checks and prepares one image; header and pixels are checked where the bytes are.

    `ref` of the result has the header of the very bytes whose hash and pixels it gives: the file may be another one
    than discovery saw. Rules for the header are held against that one.
    With `lungs`, it prepares the input of the network that finds the lungs as well.
    It reads in the detail asked for, one pixel for `step` x `step` of the file's; `is_approximate` if the file in full
    would give a slightly different tensor.
    Refusals by the header whose codes it `waives` are not made: a person overruled them.
    """

    def read(
        self,
        ref: ImageRef,
        spec: InputSpec,
        /,
        *,
        rules: HeaderRules | None = None,
        detail: Detail = "needed",
        lungs: InputSpec | None = None,
        waives: Sequence[str] = (),
    ) -> ReadResult: ...


class Engine(Protocol):
    """Runs the model. `unavailable_reason` tells why no image will be run any more, None while there is hope."""

    @property
    def unavailable_reason(self) -> Reason | None: ...
    def submit(self, request: Request, /) -> Future[Prediction]: ...


class OpenEngine(Engine, Protocol):
    """An engine as a session holds it (`inference.engine.Engine`)."""

    def open(self, model: Model) -> None: ...
    def reconsider(self, name: BackendName) -> None: ...
    def choose(self, device: DeviceChoice, policy: Policy) -> None: ...
    def close(self) -> None: ...


class Decoders(Decoder, Protocol):
    """Decoding processes as a session holds them (`imaging.pool.DecoderPool`)."""

    def read_image(self, ref: ImageRef, /, *, content_sha256: str = "") -> Image: ...
    def read_shown(self, ref: ImageRef, /, *, side: int, content_sha256: str = "") -> ShownImage: ...
    def read_preview(self, preview: bytes, /) -> NDArray[np.uint8]: ...
    def members(self, ref: ImageRef, /) -> Iterator[ImageRef]: ...
    def content_hash(self, ref: ImageRef, /) -> tuple[str, bytes]: ...
    def stamp_with(self, stamps: Stamps, /) -> None: ...
    def close(self) -> None: ...
