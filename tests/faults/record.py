"""Keeps every prediction a session was given, and judges a finished run by it."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.domain.finding import Outcome, Screened
from fieldray.domain.model import BackendName, Model, Prediction, Request
from fieldray.inference.engine import Engine
from fieldray.workers.calls import Look, Seen
from fieldray.workers.pool import Workers

# One level of the 8-bit output that a score comes from
TOLERANCE: Final = 1 / 255
_FLOWING_S: Final = 0.2


def image_key(values: np.ndarray[Any, Any]) -> str:
    """Tells the tensors of images apart."""
    return hashlib.sha256(values.tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Answered:
    """A prediction and when it came (monotonic seconds)."""

    at_s: float
    key: str
    backend: BackendName
    score: float
    feature: float


class Record:
    """Predictions of the current run, which is number `run`; a thread can wait for the next one of a backend."""

    def __init__(self) -> None:
        self.run = 0
        self._answers: list[Answered] = []
        self._changed = threading.Condition()

    def note(self, key: str, future: Future[Prediction]) -> None:
        """An image's future is done."""
        if future.cancelled() or future.exception():
            return
        prediction = future.result()
        assert prediction.features is not None
        score, feature = next(iter(prediction.scores.values())), float(prediction.features[0])
        self.add(key, prediction.backend, score, feature)

    def add(self, key: str, backend: BackendName, score: float, feature: float) -> None:
        """An image has its answer."""
        answered = Answered(time.monotonic(), key, backend, score, feature)
        with self._changed:
            self._answers.append(answered)
            self._changed.notify_all()

    def take(self) -> list[Answered]:
        """All so far, and begin again."""
        with self._changed:
            answers, self._answers = self._answers, []
            self.run += 1
        return answers

    def is_flowing(self) -> bool:
        """Whether images are being answered just now: not at the ends of a run, when nothing is asked."""
        since_s = time.monotonic() - _FLOWING_S
        with self._changed:
            return any(answer.at_s >= since_s for answer in self._answers)

    def next_of(self, backend: BackendName, *, after_s: float, timeout_s: float) -> Answered | None:
        """The first answer of a backend after a moment, None if none comes in time."""

        def found() -> Answered | None:
            fits = (answer for answer in self._answers if answer.backend == backend and answer.at_s > after_s)
            return next(fits, None)

        with self._changed:
            return self._changed.wait_for(found, timeout_s)


class RecordingEngine:
    """The real engine, with a record of what it answers."""

    def __init__(self, engine: Engine, record: Record) -> None:
        self.inner: Final = engine
        self._record = record

    def submit(self, request: Request) -> Future[Prediction]:
        key = image_key(request.values)
        future = self.inner.submit(request)
        future.add_done_callback(lambda done: self._record.note(key, done))
        return future

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class RecordingWorkers:
    """The real workers, with a record of the images that they did whole."""

    def __init__(self, workers: Workers, record: Record, keys: Mapping[Path, str]) -> None:
        self.inner: Final = workers
        self._record, self._keys = record, keys

    def look(self, question: Look, *, model: Model | None) -> Seen:
        seen = self.inner.look(question, model=model)
        answer = seen.answer
        if answer is not None and answer.features is not None:
            features = float(answer.features[0])
            self._record.add(self._keys[question.ref.path], "cpu", float(answer.scores[0]), features)
        return seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Verdicts:
    """Sums over all runs, by the names of the figures.

    All have to stay 0 but those of `batches`, `images`, `images_by_backend` and `largest_score_difference`.
    """

    batches: int = 0
    images: int = 0
    images_by_backend: Counter[str] = field(default_factory=Counter)
    images_lost: int = 0
    images_done_twice: int = 0
    images_not_screened: int = 0
    wrong_backends: int = 0
    wrong_scores: int = 0
    largest_score_difference: float = 0.0
    runs_not_finished: int = 0
    remarks: list[str] = field(default_factory=list)

    def judge(
        self,
        outcomes: Sequence[Outcome],
        answers: Sequence[Answered],
        *,
        keys: Mapping[Path, str],
        references: Mapping[str, Answered],
    ) -> None:
        """Judge a finished run: stored outcomes against files, predictions and those of the CPU before."""
        self.batches += 1
        seen = Counter(outcome.ref.path for outcome in outcomes)
        given = Counter(answer.key for answer in answers)
        by_key = {answer.key: answer for answer in answers}
        self.images_lost += sum(path not in seen for path in keys)
        self.images_done_twice += sum(count > 1 for count in (*seen.values(), *given.values()))
        for outcome in outcomes:
            self.images += 1
            if not isinstance(outcome, Screened):
                self.images_not_screened += 1
                self.remarks.append(f"{outcome.ref.path.name}: {outcome.reason.text}")
                continue
            key = keys[outcome.ref.path]
            self._judge_one(outcome, by_key[key], references[key])

    def _judge_one(self, outcome: Screened, answer: Answered, reference: Answered) -> None:
        # the double marks its results in an output that no score depends on
        really: BackendName = "cpu" if answer.feature == reference.feature else "edgetpu"
        self.images_by_backend[really] += 1
        if not outcome.backend == answer.backend == really:
            self.wrong_backends += 1
            self.remarks.append(f"{outcome.ref.path.name}: {outcome.backend}, {answer.backend}, really {really}")
        difference = max(abs(answer.score - reference.score), abs(outcome.findings[0].score - reference.score))
        self.largest_score_difference = max(self.largest_score_difference, difference)
        self.wrong_scores += difference > TOLERANCE
