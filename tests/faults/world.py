"""A small clinic for the fault run: a model drive, a folder of images, a fake Edge TPU, and the real session.

Each run's published and stored results are compared with reference results of the CPU. The fake Edge TPU marks its
class maps, which shows on which device an image was really run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from fake_compilers import edgetpu_model
from faults.double import DoubleEdgeTpu
from fieldray.domain.finding import Outcome, ScreenedOutcome
from fieldray.domain.model import BackendName, Model
from fieldray.domain.run import BackendChanged, BackendState, Event, ImageDone, Publish
from fieldray.inference.engine import Engine
from fieldray.packs.library import PackLibrary
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.session import Session, device_choice
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery
from fieldray.workers.pool import WorkerPool, open_workers
from fieldray.workers.readiness import ModelReadiness
from harness.record import Record as Ended
from program import runner
from tiny_packs import fingerprint, write_tiny_pack

EDGETPU_TIMEOUT_S: Final = 1.0
_START_TIMEOUT_S: Final = 4.0
ROOT: Final = Path(__file__).parents[2]
TOLERANCE: Final = 1 / 255  # one level of the 8-bit output from which a score is computed
_FLOWING_S: Final = 0.2


class Record:
    """The published results of the current run, number `run`. A thread can wait for the next result of a device."""

    def __init__(self) -> None:
        self.run = 0
        self._told: list[tuple[float, Outcome]] = []
        self._changed = threading.Condition()

    def add(self, outcome: Outcome) -> None:
        """Record a published result."""
        with self._changed:
            self._told.append((time.monotonic(), outcome))
            self._changed.notify_all()

    def take(self) -> Counter[Path]:
        """Return how many results each image got so far, and begin the next run."""
        with self._changed:
            told, self._told = self._told, []
            self.run += 1
        return Counter(outcome.ref.path for _, outcome in told)

    def is_flowing(self) -> bool:
        """Return whether results came within the last moments, that is, not at the beginning or end of a run."""
        since_s = time.monotonic() - _FLOWING_S
        with self._changed:
            return any(at_s >= since_s for at_s, _ in self._told)

    def next_of(self, backend: BackendName, *, after_s: float, timeout_s: float) -> float | None:
        """Return the time of a device's first result after `after_s` (monotonic seconds), None after the timeout."""

        def found() -> float | None:
            for at_s, told in self._told:
                if at_s > after_s and isinstance(told, ScreenedOutcome) and told.backend == backend:
                    return at_s
            return None

        with self._changed:
            return self._changed.wait_for(found, timeout_s)


# The program with the fake USB tree. An ordinary process would search the real one of this computer.
_WITH_USB_TREE: Final = """
import sys
from functools import partial
from pathlib import Path
from fieldray.__main__ import main
from fieldray.inference import coral, coral_status
sysfs, nodes, *arguments = sys.argv[1:]
find = partial(coral_status.find_usb_devices_on_linux, sysfs=Path(sysfs), nodes=Path(nodes))
coral.edgetpu_kind.__kwdefaults__["find_devices"] = find
sys.exit(main(arguments))
"""


@dataclass
class Verdicts:
    """Sums over all runs.

    All must stay 0, except `batches`, `images`, `images_by_backend` and `largest_score_difference`.
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
        self, outcomes: Sequence[Outcome], told: Counter[Path], *, references: Mapping[Path, ScreenedOutcome]
    ) -> None:
        """Compare a finished run's stored results with its published results and with the references of the CPU."""
        self.batches += 1
        seen = Counter(outcome.ref.path for outcome in outcomes)
        self.images_lost += sum(path not in seen or path not in told for path in references)
        self.images_done_twice += sum(count > 1 for count in (*seen.values(), *told.values()))
        for outcome in outcomes:
            self.images += 1
            if isinstance(outcome, ScreenedOutcome):
                self._judge_one(outcome, references[outcome.ref.path])
            else:
                self.images_not_screened += 1
                self.remarks.append(f"{outcome.ref.path.name}: {outcome.reason.text}")

    def _judge_one(self, outcome: ScreenedOutcome, reference: ScreenedOutcome) -> None:
        assert outcome.class_maps is not None and reference.class_maps is not None
        # the double marks its maps by one bit of one cell, which moves a score by a hundredth of the tolerance
        really: BackendName = "cpu" if np.array_equal(outcome.class_maps, reference.class_maps) else "edgetpu"
        self.images_by_backend[really] += 1
        if outcome.backend != really:
            self.wrong_backends += 1
            self.remarks.append(f"{outcome.ref.path.name}: {outcome.backend}, really {really}")
        difference = abs(outcome.findings[0].score - reference.findings[0].score)
        self.largest_score_difference = max(self.largest_score_difference, difference)
        self.wrong_scores += difference > TOLERANCE


# ---- the clinic


def copy_chests(folder: Path, count: int, *, seed: int) -> tuple[Path, ...]:
    """Write `count` different PNG files of the demonstration's chest X-rays, which pass the check for chest images."""
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
    """All files of the clinic in one folder, which is also the user's home until `close`."""

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
        self.pack_folder: Final = write_tiny_pack(self.drive / "fieldray", edgetpu_file=compiled)
        self.packs.trust_store.trust(fingerprint(self.pack_folder))
        self.record: Final = Record()
        self.verdicts: Final = Verdicts()
        self.settings: Final = Settings()
        self.backends: Final[dict[str, BackendState]] = {}
        self._engines: list[Engine] = []
        self._workers: list[WorkerPool] = []
        self._references: dict[Path, ScreenedOutcome] = {}

    def session(self, publish: Publish) -> Session:
        """Return the real session. Its results are recorded."""

        def hear(event: Event) -> None:
            if isinstance(event, BackendChanged):
                self.backends[event.backend] = event.state
            if isinstance(event, ImageDone):
                self.record.add(event.image.most_urgent_result.outcome)
            publish(event)

        def engines(heard: Publish, settings: Settings, workers: WorkerPool) -> Engine:
            device, policy = device_choice(settings)
            times_s = {"run_timeout_s": EDGETPU_TIMEOUT_S, "start_timeout_s": _START_TIMEOUT_S}
            options = {"device": device, "policy": policy, "passed": self.packs.record_passed_self_test}
            options["cpu"] = partial(ModelReadiness, workers)
            engine = Engine(heard, kinds=[self.edgetpu.kind(heard, **times_s)], **options)
            self._engines.append(engine)
            return engine

        def readers(settings: Settings, size: int) -> WorkerPool:
            self._workers.append(open_workers(settings, size))
            return self._workers[-1]

        return Session(self.settings, hear, make_engine=engines, make_workers=readers)

    def load_pack(self) -> Model:
        """Load the pack from the drive. Raises PackProblem if the drive is pulled out."""
        return self.packs.load(self.pack_folder)

    def worker_pids(self) -> tuple[int, ...]:
        """Return the processes that run the model now."""
        pids = self._engines[-1].pids if self._engines else ()
        return (*pids, *(pid for workers in self._workers for pid in workers.pids))

    def judge(self, session: Session, batch: Batch) -> None:
        """Read a finished run's results from the database and judge them."""
        told = self.record.take()
        if batch.state != "finished":
            self.verdicts.runs_not_finished += 1
            self.verdicts.remarks.append(f"run {batch.state}: {batch.reason.text if batch.reason else ''}")
            return
        with ResultQuery(session.database) as query:
            outcomes = [stored.outcome for stored in query.results(batch.run_id)]
        if not self._references:
            self._references = {
                outcome.ref.path: outcome for outcome in outcomes if isinstance(outcome, ScreenedOutcome)
            }
            self.verdicts.images_lost += len(self.images) - len(self._references)
        self.verdicts.judge(outcomes, told, references=self._references)

    def second_instance(self, *options: str, count: int = 3) -> Ended:
        """Run a second instance of the program on `count` images, with the same home and the same Edge TPU."""
        own = ("--pack", self.pack_folder, "--fresh", "--jobs", "1", "--json", "-")
        library = {"LD_LIBRARY_PATH": str(self.edgetpu.library.parent)}
        seen = (_WITH_USB_TREE, self.edgetpu.sysfs, self.edgetpu.nodes)
        run = runner(self.home, start=(sys.executable, "-W", "error", "-c", *map(str, seen)))
        return run("screen", *self.images[:count], *own, *options, environment=library)

    def close(self) -> None:
        """Restore the environment variables."""
        self.edgetpu.close()
        os.environ.pop("FIELDRAY_HOME", None)
