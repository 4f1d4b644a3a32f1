"""A small clinic for the fault run: a model drive, a folder of images, an Edge TPU, and the real session on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from fake_compilers import edgetpu_model
from faults.double import DoubleEdgeTpu
from faults.record import Answered, Record, RecordingEngine, RecordingWorkers, Verdicts, image_key
from fieldray.domain.model import Model
from fieldray.domain.run import BackendChanged, BackendState, Event, Publish
from fieldray.imaging.discover import discover
from fieldray.inference.engine import Engine
from fieldray.packs.library import PackLibrary
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.session import Session, device_choice, workers_kind
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery
from fieldray.workers.pool import Workers, open_workers
from harness.record import Record as Ended
from program import runner
from tiny_packs import fingerprint, write_tiny_pack

EDGETPU_TIMEOUT_S: Final = 1.0
_START_TIMEOUT_S: Final = 4.0
ROOT: Final = Path(__file__).parents[2]


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
