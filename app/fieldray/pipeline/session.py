"""The session of a user interface: workers, engine and packs in use, the current run, and the viewer's worker.

Command line and window both use a `Session`. So both offer the same operations. Methods do not wait for a device or a
file unless the docstring says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from fieldray.domain.finding import FailedOutcome, Outcome, RefusedOutcome, without_preview
from fieldray.domain.image import NO_CORRECTION, Image, ImageRef
from fieldray.domain.model import BackendName, DeviceChoice, DevicePolicy, Model
from fieldray.domain.pack_setup import set_up_pack, set_up_packs, setup_of_run
from fieldray.domain.run import (
    ImageDone,
    PackOfRun,
    ProgressHandler,
    Publish,
    RefusalOverrides,
    ResumeOptions,
    StoreUnwritable,
    StoreUpdating,
    Verdict,
)
from fieldray.errors import EnvironmentProblem, InputProblem, PackProblem, Unreadable, UsageProblem
from fieldray.inference.backend import BackendOptions, accelerator_kinds
from fieldray.inference.engine import Engine
from fieldray.paths import data_folder, results_database_path
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import DEFAULT_REPORT_OPTIONS, ReportOptions
from fieldray.settings import Settings
from fieldray.store.locks import SessionLock
from fieldray.store.opening import is_older_version
from fieldray.workers.pool import WorkerPool, number_of_workers, open_workers
from fieldray.workers.readiness import ModelReadiness

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fieldray.pipeline.batch import Batch


def system_engine(publish: Publish, settings: Settings, workers: WorkerPool) -> Engine:
    """Return the engine that runs models on this computer, with device and policy from the settings.

    `workers` run the models on the CPU. The engine records the version of every pack that passed its self-test.
    """
    device, policy = device_choice(settings)
    kinds = accelerator_kinds(BackendOptions(publish=publish, settings=settings))
    cpu = partial(ModelReadiness, workers)
    return Engine(publish, cpu=cpu, device=device, kinds=kinds, policy=policy, passed=record_passed_self_test)


def record_passed_self_test(model: Model) -> None:
    """Record the version of a model that passed its self-test, so that an older version is noticed later.

    Raises StorageProblem.
    """
    from fieldray.packs.library import PackLibrary  # a slow import

    PackLibrary(data_folder()).record_passed_self_test(model)


def device_choice(settings: Settings) -> tuple[DeviceChoice, DevicePolicy]:
    """Return the device and the policy for choosing devices from the settings."""
    return str(settings["device"]), cast("DevicePolicy", settings["policy"])


class Session(contextlib.AbstractContextManager["Session"]):
    """The session of a user interface: one object for all operations of command line and window.

    Methods are thread-safe.

    After `close`, methods that need a process raise EnvironmentProblem.

    make_engine      function that makes the engine, which chooses the device for an image
    make_workers     function that makes the workers, which read images
    running_workers  workers that already run; `close` closes them
    """

    def __init__(
        self,
        settings: Settings,
        publish: Publish,
        *,
        database: Path | None = None,
        make_engine: Callable[[Publish, Settings, WorkerPool], Engine] = system_engine,
        make_workers: Callable[[Settings, int], WorkerPool] = open_workers,
        running_workers: WorkerPool | None = None,
    ) -> None:
        self.database: Final = database or results_database_path()
        self._settings = settings
        self._publish = publish
        self._make_engine, self._make_workers = make_engine, make_workers
        self._workers = running_workers
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self.models: tuple[Model, ...] = ()  # packs of the next run
        self._batch: Batch | None = None
        self._viewer: WorkerPool | None = None
        self._is_closed = False
        self._shows = SessionLock(self.database)
        if self._shows.problem:
            publish(StoreUnwritable(reason=self._shows.problem.reason))
        with contextlib.suppress(OSError):  # opening the file later reports the problem
            if is_older_version(self.database):
                publish(StoreUpdating(reason=reason("store_updating")))

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model(self) -> Model | None:
        """The first pack of the next run; None if no pack is in use."""
        return self.models[0] if self.models else None

    def use_packs(self, *models: Model) -> None:
        """Use these packs from the next run on. A run in progress continues with its own packs.

        A device that can be plugged in runs the first pack; the CPU runs all other packs. Returns at once.
        `BackendChanged` events report when the devices are ready. Raises BackendProblem.
        """
        with self._lock:
            self._require_open()
            self.models = models
            if not self._is_running:
                self._open(models)

    def start(
        self,
        paths: Sequence[Path],
        *,
        operating_point: str | None = None,
        as_new_run: bool = False,
        resume_options: ResumeOptions = ResumeOptions(),  # noqa: B008 - it is frozen
        ages_confirmed: bool = False,
        overrides: RefusalOverrides = RefusalOverrides(),  # noqa: B008 - it is frozen
        watches_folders: bool = False,
    ) -> Batch:
        """Begin a run and return at once. An unfinished run of an equal request is resumed.

        paths            files and folders to screen
        operating_point  name of the operating point, for every pack that has it; other packs use their first one
        as_new_run       whether a new run begins in any case
        resume_options   rules for reusing results of earlier runs
        ages_confirmed   whether a person confirmed that all patients are in the pack's age range
        overrides        reasons for refusal that a person overrules
        watches_folders  whether new files in the folders are screened, too, until the run is cancelled

        Raises PackProblem (no_pack), UsageProblem (nothing_to_screen, watch_no_folder, operating_point, ages_apart),
        ValueError during a run.
        """
        with self._lock:
            models = self._models_to_run()
            from fieldray.imaging.discover import absolute_paths  # slow imports
            from fieldray.pipeline.batch import make_batch
            from fieldray.pipeline.batch_ports import BatchOptions

            set_up = partial(set_up_pack, ages_confirmed=ages_confirmed, overrides=overrides)
            setups = set_up_packs(models, operating_point, set_up)
            whole = resume_options.verifies_content or bool(self._settings["verify_files"])
            batch = make_batch(
                absolute_paths(paths),
                setups,
                engine=self._open(models),
                workers=self._working(),
                database=self.database,
                publish=self._publish,
                options=BatchOptions(
                    as_new_run=as_new_run,
                    keeps_previews=bool(self._settings["keep_previews"]),
                    resume_options=replace(resume_options, verifies_content=whole),
                    watches_folders=watches_folders,
                ),
            )
            batch.start()  # raises if no thread can be started
            self._batch = batch
            return batch

    def _models_to_run(self) -> tuple[Model, ...]:
        """Return the packs for the next run.

        Raises EnvironmentProblem, PackProblem (no_pack), ValueError during a run.
        """
        self._require_open()
        if self._is_running:
            raise ValueError("a run is under way")
        if not self.models:
            raise PackProblem(reason("no_pack"))
        return self.models

    def retry_backend(self, name: BackendName) -> None:
        """Start a failed or absent device again. Returns at once."""
        with self._lock:
            if self._engine:
                self._engine.retry_backend(name)

    def choose_devices(self, only: DeviceChoice | None = None) -> None:
        """Choose the devices that run models. The choice takes effect at once, even during a run.

        only  the only device to use; None for the devices in the settings

        Raises BackendProblem.
        """
        device, policy = device_choice(self._settings)
        with self._lock:
            if self._engine:
                self._engine.choose_devices(only or device, policy)

    def screen_one(self, ref: ImageRef, *, operating_point: str | None = None) -> Outcome | None:
        """Screen one image with the first pack as in a run, but store nothing.

        The call lasts until the image is screened. Returns the outcome.

        operating_point  name of the operating point; None for the pack's first operating points

        Returns None if no pack is in use, and during a run, because the run may have another pack. Raises
        EnvironmentProblem if no image can be read or screened, UsageProblem (operating_point).
        """
        from fieldray.pipeline.screen import screen_image

        with self._lock:
            self._require_open()
            if self.model is None or self._is_running:
                return None
            setup = set_up_pack(self.model, operating_point=operating_point)
            engine = self._open(self.models)
        return screen_image(ref, setup=setup, workers=self._viewing(), engine=engine)

    def screen_again(self, result_id: int, *, judged: Outcome, overrides: RefusalOverrides) -> Outcome:
        """Screen one image of a stored run again, with the settings of the run and a person's overrides.

        The call lasts until the image is screened.

        Returns the new outcome. The new outcome is stored and published if it has a score. A refusal is stored and
        published only if `overrides` is empty. In all other cases the stored outcome is kept.

        result_id  row id of the result to replace, which also identifies the pack
        judged     the outcome that the person saw
        overrides  reasons for refusal that the person overrules

        Raises PackProblem (no_pack). Raises UsageProblem during a run (again_busy), or if the result's pack is not in
        use (again_other_pack). Raises Unreadable (changed) if the file has changed, and EnvironmentProblem.
        """
        from fieldray.pipeline.screen import screen_image
        from fieldray.store.results import ResultQuery, ResultStore

        with self._lock:
            if self._is_running:
                raise UsageProblem(reason("again_busy"))
            models = self._models_to_run()
            with ResultQuery(self.database) as query:
                answer = query.result(result_id)
                run = query.run(answer.run_id)
            pack = run.spec.packs[answer.pack_position]
            index = next((at for at, one in enumerate(models) if one.model_sha256 == pack.model_sha256), 0)
            setup = replace(setup_of_run(run.spec, answer.pack_position, models[index]), overrides=overrides)
            engine = self._open(models)
        ref = replace(judged.ref, correction=NO_CORRECTION)
        found = screen_image(ref, setup=setup, workers=self._viewing(), engine=engine)
        if isinstance(found, FailedOutcome) or (isinstance(found, RefusedOutcome) and overrides != RefusalOverrides()):
            return found
        if found.facts.content_sha256 != judged.facts.content_sha256:
            raise Unreadable(reason("changed"))
        with self._lock, ResultStore(self.database) as store:
            if self._is_running:  # a running batch must be the only writer
                raise UsageProblem(reason("again_busy"))
            keeps = bool(self._settings["keep_previews"])
            image = store.replace_result(result_id, found, run=run, keeps_preview=keeps)
        self._publish(ImageDone(image=image))
        return without_preview(found)

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        """Read an image at full resolution, for the viewer. The call lasts until the image is read.

        Raises UnsuitableImage, Unreadable.

        content_sha256  SHA-256 that the file must have, in hexadecimal; "" for any content
        """
        return self._viewing().read_image(ref, content_sha256=content_sha256)

    def read_preview(self, content_sha256: str, *, frame: int) -> NDArray[np.uint8]:
        """Return the stored preview of an image as grey levels (height, width). The call waits for the disk.

        content_sha256  SHA-256 of the image's file, in hexadecimal
        frame           number of the frame in the file

        Raises Unreadable (preview_missing, preview_damaged), StorageProblem.
        """
        from fieldray.store.work_list import HistoryQuery

        with HistoryQuery(self.database) as query:
            kept = query.preview(content_sha256, frame=frame) if content_sha256 else None
        if kept is None:
            raise Unreadable(reason("preview_missing"))
        try:
            return self._viewing().read_preview(kept)
        except InputProblem as error:
            raise Unreadable(reason("preview_damaged")) from error

    def write_heat_maps(
        self, pack_in_run: PackOfRun, folder: Path, *, pack: Model, progress: Callable[[int], None]
    ) -> tuple[int, int]:
        """Write the heat maps of a pack's results in a run as image files. The call lasts until all are written.

        Parameters, result and exceptions are those of `pipeline.export.write_heat_maps`.
        """
        from fieldray.pipeline.export import write_heat_maps  # a slow import

        return write_heat_maps(
            self.database, pack_in_run, folder, manifest=pack.manifest, workers=self._working(), progress=progress
        )

    def export(
        self,
        run_id: int,
        folder: Path,
        formats: Sequence[str] = (),
        *,
        options: ReportOptions = DEFAULT_REPORT_OPTIONS,
        progress: ProgressHandler = lambda _done, _total: None,
        note: Callable[[Reason], None] = lambda _: None,
        in_child: bool = False,
    ) -> tuple[Path, ...]:
        """Write a run as files (see `pipeline.export`), and return their paths. The call lasts until all are written.

        progress  function called with the number of results written and the total; if the function raises Cancelled,
                  the export stops
        note      function called with each message about results that are missing in an output
        in_child  whether another process writes the files, so that this process stays responsive

        The other parameters and the exceptions are those of `ExportRequest` and `export_run`.
        """
        from fieldray.pipeline.export import ExportRequest, export_in_child, export_run

        with self._lock:
            batch = self._batch
        spec = batch.spec if batch and batch.run_id == run_id else None
        request = ExportRequest(
            database=self.database,
            run_id=run_id,
            folder=folder,
            formats=tuple(formats),
            spec=spec,
            packs=tuple(self.models),
            options=options,
        )
        if in_child:
            return export_in_child(request, settings=self._settings, progress=progress, note=note)
        count = number_of_workers(self._settings)
        make_workers = partial(self._make_workers, self._settings, count)
        return export_run(request, make_workers=make_workers, progress=progress, note=note)

    def set_verdict(
        self,
        result_id: int,
        verdict: Verdict | None,
        *,
        judged: Outcome,
        replaceable: Collection[Verdict | None] = (None,),
    ) -> Verdict | None:
        """Store the reader's verdict on a result, or withdraw it (None). The call waits for the disk.

        result_id    row id of the result (`StoredResult.result_id`)
        judged       the outcome that the person saw
        replaceable  stored verdicts that may be replaced; None in this collection means no verdict. Any other stored
                     verdict is kept

        Returns the verdict that is then stored. Raises StorageProblem.
        """
        from fieldray.store.results import ResultStore

        with ResultStore(self.database) as store:
            return store.set_verdict(result_id, verdict, judged=judged, replaceable=replaceable)

    def set_read_state(self, result_id: int, *, judged: Outcome, is_read: bool) -> None:
        """Record whether a person has read a result. Raises StorageProblem.

        result_id  row id of the result (`StoredResult.result_id`)
        judged     the outcome that the person saw
        """
        from fieldray.store.results import ResultStore

        with ResultStore(self.database) as store:
            store.set_read_state(result_id, judged=judged, is_read=is_read)

    def close(self) -> None:
        """Cancel the run and end all threads and processes, even if one of them fails. Returns when all have ended."""
        with self._lock:
            self._is_closed = True
            batch, resources = self._batch, (self._workers, self._viewer, self._engine)
            self._engine = self._viewer = self._workers = None
            self.models = ()
        with contextlib.ExitStack() as ends:  # the last one first
            ends.callback(self._shows.release)
            for resource in resources:
                if resource:
                    ends.callback(resource.close)
            if batch:
                ends.callback(batch.join)
                ends.callback(batch.cancel)

    def _viewing(self) -> WorkerPool:
        with self._lock:
            self._require_open()
            self._viewer = self._viewer or self._make_workers(self._settings, 1)
            return self._viewer

    def _working(self) -> WorkerPool:
        with self._lock:
            self._require_open()
            self._workers = self._workers or self._make_workers(self._settings, number_of_workers(self._settings))
            return self._workers

    @property
    def _is_running(self) -> bool:
        return self._batch is not None and not self._batch.is_over

    def _require_open(self) -> None:
        if self._is_closed:
            raise EnvironmentProblem(reason("engine_closed"))

    def _open(self, models: Sequence[Model]) -> Engine:
        """Return the engine after opening these packs in it."""
        workers = self._working()
        workers.register_model_group(models)
        self._engine = self._engine or self._make_engine(self._publish, self._settings, workers)
        self._engine.open(*models)
        return self._engine
