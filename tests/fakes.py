"""Fake workers and engines for tests of the pipeline, with the interfaces of the real ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import ImageFacts
from fieldray.domain.image import CoordinateMap, Correction, Image, ImageRef, Window
from fieldray.domain.model import LUNG_NETWORK_CHECKS, BackendName, Model, Prediction
from fieldray.errors import BackendProblem, Cancelled, Unreadable
from fieldray.imaging.discover import zip_search_in_this_process
from fieldray.imaging.quality import check_header
from fieldray.imaging.reading import decode_preview
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.source import FileStamper
from fieldray.inference.backend import NetworkOutput
from fieldray.reasons import Reason, reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult, DeviceRunRequest, DeviceRunResult, load_request
from fieldray.workers.image_worker import ImageWorker
from fieldray.workers.pool import PoolClosed

PIXEL_MAP = CoordinateMap(1.0, 0.0, 1.0, 0.0)
RunElsewhere = Callable[[int, NDArray[np.uint8]], DeviceRunResult]


def hash_of(ref: ImageRef) -> str:
    """Return the SHA-256 of a file's name in place of its content."""
    return hashlib.sha256(ref.path.name.encode("utf-8", "surrogateescape")).hexdigest()


class FakeReaders:
    """Fake workers whose result depends on the file's name.

    The names are `bright`, `dark`, `blank` (refused), `cut` (failed), `unloaded`, `bug` and `slow`.
    """

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._given_up = threading.Event()
        self.reading = threading.Event()
        self.read_names: list[str] = []
        self.looked: list[int] = []  # the number of packs of each call
        self.listed: list[Path] = []
        self.close_problem: Exception | None = None

    @property
    def size(self) -> int:
        return 1

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        ref, name = question.ref, question.ref.path.name
        if self.closed.is_set():
            raise PoolClosed
        self.read_names.append(name)
        self.reading.set()
        if "slow" in name:
            self._given_up.wait()
            raise PoolClosed
        if "bug" in name:
            raise ZeroDivisionError
        if "unloaded" in name:
            raise BackendProblem(reason("worker_died"))
        if question.rules and (unsuitable := check_header(ref.header, question.rules)):
            facts = ImageFacts(content_sha256=hash_of(ref))
            return AnalysisResult(facts=facts, problem=unsuitable, is_refusal=True)
        spec = question.whole_image_input_spec or (model and model.manifest.input)
        assert spec
        facts = ImageFacts(content_sha256=hash_of(ref), rows=spec.height, columns=spec.width, decode_ms=1.5)
        if "blank" in name:
            return AnalysisResult(facts=facts, problem=reason("blank"), is_refusal=True)
        if "cut" in name:
            return AnalysisResult(facts=facts, problem=reason("truncated"))
        grey = 255 if "bright" in name else 0
        values = np.full((1, spec.height, spec.width, spec.channels), grey, np.uint8)
        return AnalysisResult(facts=replace(facts, input_to_image=PIXEL_MAP), input_values=values, stage="inference")

    def register_model_group(self, models: Sequence[Model]) -> None:
        """Nothing is loaded."""

    def analyse_for_models(
        self,
        questions: Sequence[tuple[AnalysisRequest, Model | None]],
        *,
        run_elsewhere: RunElsewhere,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[AnalysisResult, ...]:
        """Return the results of `analyse`, with each input run elsewhere. No image is read in finer detail."""
        self.looked.append(len(questions))

        def seen(number: int, question: AnalysisRequest, model: Model | None) -> AnalysisResult:
            found = self.analyse(question, model=model)
            if is_cancelled():
                raise PoolClosed
            if found.input_values is not None and not found.problem:
                with contextlib.suppress(BackendProblem):
                    run_elsewhere(number, found.input_values)
            return replace(found, input_values=None)

        return tuple(seen(number, *asked) for number, asked in enumerate(questions))

    def read_preview(self, preview: bytes) -> NDArray[np.uint8]:
        return decode_preview(preview)

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        return Image(pixels=np.zeros((4, 4), np.uint8))

    def zip_members(self, ref: ImageRef) -> Iterator[ImageRef]:
        self.listed.append(ref.path)
        return zip_search_in_this_process()(ref)

    def hash_file(self, ref: ImageRef) -> tuple[str, bytes]:
        if "gone" in ref.path.name:
            raise Unreadable(reason("missing"))
        return hash_of(ref), b""

    def set_stamper(self, stamps: FileStamper) -> None:
        """Do nothing, because no file is read."""

    def abort_calls(self) -> None:
        given_up, self._given_up = self._given_up, threading.Event()
        given_up.set()

    def close(self) -> None:
        self.closed.set()
        self._given_up.set()
        if self.close_problem:
            raise self.close_problem


def never(is_cancelled: Callable[[], bool]) -> None:
    """Wait until cancelled: the network gives no answer."""
    while not is_cancelled():
        time.sleep(0.01)
    raise Cancelled


class FakeEngine:
    """A fake engine that scores an image by its brightness, or gives `scores` in turn.

    `answer` is called before each score, and may raise an error or wait.

    problem   why no image can be run
    problems  the reasons by model
    """

    def __init__(
        self,
        *,
        features: float = 0.0,
        answer: Callable[[Callable[[], bool]], object] | None = None,
        scores: Sequence[float] = (),
    ) -> None:
        self._scores = list(scores)
        self.problem: Reason | None = None
        self.problems: dict[Model, Reason] = {}
        self.opened: list[Model] = []
        self.is_closed = False
        self._features = features
        self._answer = answer or (lambda _: None)
        self._sequence = 0

    def open(self, *models: Model) -> None:
        self.opened += models

    def unavailable_reason(self, model: Model) -> Reason | None:
        return self.problem or self.problems.get(model)

    def next_device(self, model: Model, *, is_cancelled: Callable[[], bool]) -> BackendName:
        if is_cancelled():
            raise Cancelled
        if why := self.unavailable_reason(model):
            raise BackendProblem(why)
        return "fake"

    def run(self, values: NDArray[np.uint8], *, model: Model, is_cancelled: Callable[[], bool]) -> Prediction:
        if why := self.unavailable_reason(model):
            raise BackendProblem(why)
        if is_cancelled():
            raise Cancelled
        self._answer(is_cancelled)
        return self._prediction(values)

    def close(self) -> None:
        self.is_closed = True

    def _prediction(self, values: NDArray[np.uint8]) -> Prediction:
        self._sequence += 1
        return Prediction(
            pack_name="tiny-1.0.0",
            model_sha256="m" * 64,
            backend="cpu",
            scores={"opacity": self._scores.pop(0) if self._scores else float(values.mean()) / 255},
            class_maps=np.zeros((1, 2, 2), np.float32),
            features=np.full(4, self._features, np.float32),
            latency_ms=2.0,
            image_number_on_backend=self._sequence,
        )


class FakeFinder:
    """A lung network that finds equal lungs in every image: a mask (rows, columns), and scores of the checks.

    `problem` is raised for every image, `unloadable` when the network is loaded.
    """

    def __init__(self, mask: NDArray[Any], *, problem: Reason | None = None, **scores: float) -> None:
        self._mask = mask.astype(np.float32)
        self._checks = {"frontal_chest": 0.9, **dict.fromkeys(LUNG_NETWORK_CHECKS[1:], 0.1), **scores}
        self._problem = problem
        self.unloadable: Reason | None = None

    def run(self, _image: NDArray[np.uint8]) -> NetworkOutput:
        if self._problem:
            raise BackendProblem(self._problem)
        scores = np.array([self._checks[name] for name in LUNG_NETWORK_CHECKS], np.float32)
        return NetworkOutput(scores=scores, class_maps=None, features=None, latency_ms=0.5, mask=self._mask)


class PaintedFile:
    """A file of 64 x 64 pixels, bright or dark by its name, with the header of its reference."""

    def __init__(self, ref: ImageRef, *, stamps: FileStamper | None = None) -> None:
        self._ref = ref
        self.content_sha256, self.stamp = hash_of(ref), b""

    def identified_ref(self) -> ImageRef:
        return self._ref

    def decode_image(self, needed: TargetSize | None = None) -> Image:
        is_bright = "bright" in self._ref.path.name
        pixels = np.full((64, 64), 250 if is_bright else 0, np.uint8)
        pixels[2::5, 2::5] = 0 if is_bright else 250  # an image needs some contrast
        return Image(pixels=pixels, window=Window(127.5, 255.0, "LINEAR_EXACT"))


class LungReaders(FakeReaders):
    """The real worker in this process, with painted files and a fake lung network."""

    def __init__(self, finder: FakeFinder | None, *, open_file: Callable[..., Any] = PaintedFile) -> None:
        super().__init__()
        self._finder, self._model = finder, None
        self.turns: list[Correction] = []
        self._run: RunElsewhere | None = None
        self._worker = ImageWorker(open_file=open_file, open_network=self._network, run_elsewhere=self._elsewhere)

    def _network(self, _model: Model, _file: NDArray[np.uint8]) -> Any:
        if self._finder and self._finder.unloadable:
            raise BackendProblem(self._finder.unloadable)
        return self._finder

    def _elsewhere(self, question: DeviceRunRequest) -> DeviceRunResult:
        assert self._run
        return self._run(question.request_number, question.values)

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        assert model
        self.turns.append(question.ref.correction)
        self._worker.load(load_request(model if self._finder else replace(model, lungs=None)))
        return self._worker.analyse_for_packs([replace(question, finds_lungs=self._finder is not None)])[0]

    def analyse_for_models(
        self, questions: Sequence[tuple[AnalysisRequest, Model | None]], *, run_elsewhere: RunElsewhere, **_: Any
    ) -> tuple[AnalysisResult, ...]:
        ((question, model),) = questions
        self._run = run_elsewhere
        return (self.analyse(question, model=model),)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
