"""What a front end holds: the engine with the pack in use, the run under way, and a reader for the viewer.

Command line and window both work through a `Session`, so they can do the same and nothing else. Nothing here waits
for a backend or a file unless its docstring says so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, cast

from fieldray.domain.events import Publish
from fieldray.domain.finding import Outcome
from fieldray.domain.image import Image
from fieldray.domain.model import Model
from fieldray.domain.prediction import BackendName, DeviceChoice, Policy
from fieldray.domain.run import RunSpec, Verdict
from fieldray.domain.study import ImageRef
from fieldray.errors import PackProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.inference import system as devices
from fieldray.inference.edgetpu import Clock
from fieldray.paths import user_data
from fieldray.pipeline import screen
from fieldray.pipeline.assessment import Assessment, choose
from fieldray.pipeline.batch import Batch, Work
from fieldray.pipeline.readers import number_of_readers, open_readers
from fieldray.pipeline.statistics import Statistics
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.results import ResultStore

DATABASE_NAME: Final = "results.sqlite"
_AWAITING_NETWORK: Final = 2  # so many more images are under way than are being read


class Engine(screen.Engine, Protocol):
    """What is needed of `inference.engine.Engine`."""

    def open(self, model: Model) -> None: ...
    def reconsider(self, name: BackendName) -> None: ...
    def choose(self, device: DeviceChoice, policy: Policy) -> None: ...
    def close(self) -> None: ...


class Readers(screen.Reader, Protocol):
    """What is needed of `imaging.pool.ReaderPool`."""

    def read_image(self, ref: ImageRef, /) -> Image: ...
    def content_hash(self, ref: ImageRef, /) -> str: ...
    def close(self) -> None: ...


def system_engine(publish: Publish, settings: Settings) -> Engine:
    """The engine on this machine's devices."""
    device, policy = device_choice(settings)
    clock = cast("Clock", settings["stick_clock"])
    return devices.system_engine(publish, device=device, policy=policy, clock=clock)


def device_choice(settings: Settings) -> tuple[DeviceChoice, Policy]:
    """What the settings say about devices; their rows allow no other values."""
    return cast("DeviceChoice", settings["device"]), cast("Policy", settings["policy"])


class Session:
    """See the module. All methods are thread-safe.

    engines, readers  make what runs models and what reads files
    warm              readers that were started ahead, for the first run; they are closed with the session
    """

    def __init__(
        self,
        settings: Settings,
        publish: Publish,
        *,
        database: Path | None = None,
        engines: Callable[[Publish, Settings], Engine] = system_engine,
        readers: Callable[[Settings, int], Readers] = open_readers,
        warm: Readers | None = None,
    ) -> None:
        self.database: Final = database or user_data() / DATABASE_NAME
        self._settings = settings
        self._publish = publish
        self._engines = engines
        self._readers = readers
        self._warm = warm
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._model: Model | None = None
        self._batch: Batch | None = None
        self._viewer: Readers | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def model(self) -> Model | None:
        """The pack the next run will use."""
        return self._model

    def use_pack(self, model: Model | None) -> None:
        """Use this pack from the next run on (None: no pack); a run under way finishes with its own.

        Returns at once; `BackendChanged` events tell when the backends are ready. Raises BackendProblem.
        """
        with self._lock:
            self._model = model
            if model and not self._is_running:
                self._open(model)

    def start(self, paths: Sequence[Path], *, operating_point: str | None = None, fresh: bool = False) -> Batch:
        """Begin a run and return at once. An unfinished run of the same request is continued unless `fresh`.

        Raises PackProblem (no_pack), UsageProblem (nothing_to_screen, operating_point); ValueError while another
        run is under way.
        """
        with self._lock:
            if self._is_running:
                raise ValueError("a run is under way")
            if self._model is None:
                raise PackProblem(reason("no_pack"))
            places = _existing(paths)
            assessment = choose(self._model, operating_point=operating_point)
            engine = self._open(self._model)
            self._batch = self._new_batch(places, assessment, engine, fresh=fresh)
            self._batch.start()
            return self._batch

    def reconsider(self, name: BackendName) -> None:
        """Try a backend again that was given up."""
        with self._lock:
            if self._engine:
                self._engine.reconsider(name)

    def choose_devices(self) -> None:
        """Use the devices that the settings now name, at once, in the middle of a run too. Raises BackendProblem."""
        with self._lock:
            if self._engine:
                self._engine.choose(*device_choice(self._settings))

    def read_image(self, ref: ImageRef) -> Image:
        """The film in full resolution, for the viewer; waits for it. Raises Unusable, Unreadable."""
        with self._lock:
            self._viewer = self._viewer or self._readers(self._settings, 1)
            viewer = self._viewer
        return viewer.read_image(ref)

    def set_verdict(self, row_id: int, verdict: Verdict | None) -> None:
        """Keep the reader's verdict on a result, None to take it back; waits for the disk. Raises StorageProblem."""
        with ResultStore(self.database) as store:
            store.set_verdict(row_id, verdict)

    def close(self) -> None:
        """Cancel what runs and end every thread and process; waits for them."""
        with self._lock:
            batch, resources = self._batch, (self._warm, self._viewer, self._engine)
            self._model = self._engine = self._viewer = self._warm = None
        if batch:
            batch.cancel()
            batch.join()
        for resource in resources:
            if resource:
                resource.close()

    @property
    def _is_running(self) -> bool:
        return self._batch is not None and not self._batch.is_over

    def _open(self, model: Model) -> Engine:
        if self._engine is None:
            self._engine = self._engines(self._publish, self._settings)
        self._engine.open(model)
        return self._engine

    def _new_batch(self, paths: Sequence[Path], assessment: Assessment, engine: Engine, *, fresh: bool) -> Batch:
        size = number_of_readers(self._settings)
        readers, self._warm = self._warm or self._readers(self._settings, size), None
        statistics = Statistics()
        cancelled = threading.Event()

        def screen_one(ref: ImageRef) -> Outcome:
            return screen.screen_image(
                ref,
                assessment=assessment,
                reader=readers,
                engine=engine,
                observe=statistics.add,
                is_cancelled=cancelled.is_set,
            )

        def release() -> None:
            cancelled.set()
            readers.close()

        work = Work(
            spec=_spec(paths, assessment),
            discover=lambda: discover(paths),
            count=lambda gives_up: count_files(paths, gives_up=gives_up),
            content_hash=readers.content_hash,
            screen=screen_one,
            release=release,
        )
        return Batch(
            work,
            database=self.database,
            publish=self._publish,
            workers=size + _AWAITING_NETWORK,
            fresh=fresh,
            statistics=statistics,
        )


def _existing(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Absolute (links are not followed: a person knows a file by the name given), without doubles, in order."""
    places = tuple(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))  # noqa: PTH100
    for place in places:
        if not os.path.lexists(place):
            raise UsageProblem(reason("nothing_to_screen", path=place))
    return places


def _spec(paths: Sequence[Path], assessment: Assessment) -> RunSpec:
    model = assessment.model
    return RunSpec(
        paths=tuple(map(str, paths)),
        pack_name=model.pack_name,
        trust=model.trust,
        fingerprint=model.fingerprint,
        model_sha256=model.model_sha256,
        settings_hash=assessment.settings_hash,
        operating_points=tuple(point for point in assessment.points.values() if point),
        program_version=metadata.version("fieldray"),
    )


def count_files(paths: Sequence[Path], *, gives_up: Callable[[], bool]) -> int:
    """About how many images there are, by names alone: a zip or a multi-frame file counts as one."""
    number = 0
    for place in paths:
        number += not place.is_dir()
        for _, _, names in os.walk(place):
            if gives_up():
                return number
            number += sum(not name.startswith(".") for name in names)
    return number
