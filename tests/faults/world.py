"""A small clinic for the fault run: a model drive, a folder of images, an Edge TPU, and the real session on them.

Every prediction that the session was given is kept, and a finished run is judged by it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from fake_compilers import edgetpu_model
from faults.double import DoubleEdgeTpu
from fieldray.domain.finding import Outcome, Screened
from fieldray.domain.model import BackendName, Model, Prediction, Request
from fieldray.domain.run import BackendChanged, BackendState, Event, Publish
from fieldray.imaging.discover import discover
from fieldray.inference.engine import Engine
from fieldray.packs.library import PackLibrary
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.session import Session, device_choice, workers_kind
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery
from fieldray.workers.calls import Look, Seen
from fieldray.workers.pool import Workers, open_workers
from harness.record import Record as Ended
from program import runner
from tiny_packs import fingerprint, write_tiny_pack

# One level of the 8-bit output that a score comes from

EDGETPU_TIMEOUT_S: Final = 1.0
_START_TIMEOUT_S: Final = 4.0
ROOT: Final = Path(__file__).parents[2]
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


# ---- the clinic


def copy_chests(folder: Path, count: int, *, seed: int) -> tuple[Path, ...]:
    """`count` different PNG files of the demonstration's chest X-rays, for a program that asks whether they are any."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    chests = sorted((ROOT / "assets" / "demonstration" / "children").glob("*.jpg"))
    paths = []
    for number in range(count):
        with Image.open(chests[number % len(chests)]) as picture:
            grey = np.asarray(picture.convert("L"), np.float64) * random.uniform(0.9, 1)
        paths.append(folder / f"image-{number:04d}.png")
        noisy = np.clip(grey + random.normal(0, 4, grey.shape), 0, 255)
        Image.fromarray(noisy.astype(np.uint8)).save(paths[-1], compress_level=1)
    return tuple(paths)


class Clinic:
    """Everything under one folder, which is also the user's home while it is open."""

    def __init__(self, folder: Path, library: Path, *, images: int, seed: int) -> None:
        self.folder: Final = folder
        self.home: Final = folder / "home"
        self.home.mkdir()
        os.environ["FIELDRAY_HOME"] = str(self.home)
        (folder / "edgetpu").mkdir()
        self.edgetpu: Final = DoubleEdgeTpu(folder / "edgetpu", library)
        self.edgetpu.order(mark=1)
        self.images: Final = copy_chests(folder / "images", images, seed=seed)
        self.drive: Final = folder / "drive"
        self.packs: Final = PackLibrary(self.home, builtin_root=folder / "no packs")
        compiled = edgetpu_model().files["edgetpu"]
        self.pack_folder: Final = write_tiny_pack(
            self.drive / "fieldray", edgetpu_file=compiled, minimum_edgetpu_runtime=13
        )
        self.packs.keys.trust(fingerprint(self.pack_folder))
        self.record: Final = Record()
        self.verdicts: Final = Verdicts()
        self.settings: Final = Settings()
        self.keys: Final[Mapping[Path, str]] = self._image_keys()
        self.backends: Final[dict[str, BackendState]] = {}
        self._engines: list[RecordingEngine] = []
        self._workers: list[RecordingWorkers] = []
        self._references: dict[str, Answered] = {}

    def session(self, publish: Publish) -> Session:
        """The real session; its engine's answers are recorded."""

        def engines(heard: Publish, settings: Settings, workers: Workers) -> RecordingEngine:
            device, policy = device_choice(settings)

            def hear(event: Event) -> None:
                if isinstance(event, BackendChanged):
                    self.backends[event.backend] = event.state
                heard(event)

            times_s = {"run_timeout_s": EDGETPU_TIMEOUT_S, "start_timeout_s": _START_TIMEOUT_S}
            kinds = self.edgetpu.kinds(hear, cpu=workers_kind(workers), **times_s)
            engine = Engine(hear, device=device, policy=policy, kinds=kinds, passed=self.packs.record_run)
            self._engines.append(RecordingEngine(engine, self.record))
            return self._engines[-1]

        def readers(settings: Settings, size: int) -> RecordingWorkers:
            self._workers.append(RecordingWorkers(open_workers(settings, size), self.record, self.keys))
            return self._workers[-1]

        return Session(self.settings, publish, engines=engines, readers=readers)

    def load_pack(self) -> Model:
        """From the drive, into memory. Raises PackProblem when the drive is out."""
        return self.packs.load(self.pack_folder)

    def worker_pids(self) -> tuple[int, ...]:
        """The processes that run the model now."""
        pids = self._engines[-1].inner.pids if self._engines else ()
        return (*pids, *(pid for workers in self._workers for pid in workers.inner.pids))

    def judge(self, session: Session, batch: Batch) -> None:
        """Take a finished run's results out of the store and judge them."""
        answers = self.record.take()
        if batch.state != "finished":
            self.verdicts.runs_not_finished += 1
            self.verdicts.remarks.append(f"run {batch.state}: {batch.reason.text if batch.reason else ''}")
            return
        with ResultQuery(session.database) as query:
            outcomes = [stored.outcome for stored in query.rows(batch.run_id)]
        if not self._references:
            self._references = {answer.key: answer for answer in answers}
        self.verdicts.judge(outcomes, answers, keys=self.keys, references=self._references)

    def second_instance(self, *options: str, count: int = 3) -> Ended:
        """Another start of the program on `count` of the images, in the same home and with the same Edge TPU."""
        own = ("--pack", self.pack_folder, "--fresh", "--jobs", "1", "--json", "-")
        library = {"LD_LIBRARY_PATH": str(self.edgetpu.library.parent)}
        return runner(self.home)("screen", *self.images[:count], *own, *options, environment=library)

    def close(self) -> None:
        """Leave the environment as it was."""
        self.edgetpu.close()
        os.environ.pop("FIELDRAY_HOME", None)

    def _image_keys(self) -> dict[Path, str]:
        spec = edgetpu_model().manifest.input
        with Workers(1, timeout_s=60, memory_limit_mb=2048) as pool:
            return {ref.path: image_key(pool.tensor(ref, spec).values) for ref in discover([self.images[0].parent])}
