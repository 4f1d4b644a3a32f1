"""A pool of processes that analyse images. A crash, a hang or a lack of memory in a process costs one image only."""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from fieldray.errors import (
    BackendProblem,
    EnvironmentProblem,
    FieldrayError,
    Unreadable,
    UnsuitableImage,
    WorkerProblem,
)
from fieldray.paths import child_process_command
from fieldray.process_environment import usable_cores
from fieldray.processes.child import Child, ChildDied, ChildLost, ChildTimeout, make_message_handler
from fieldray.processes.serving import memory_limit_mb
from fieldray.reasons import Reason, reason

# All other modules are imported inside functions, so that the child processes start first and import at the same time.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fieldray.domain.finding import Stage
    from fieldray.domain.image import Image, ImageRef, NetworkInput, ShownImage
    from fieldray.domain.model import InputSpec, Model
    from fieldray.imaging.object_identify import ServerFileContent, ServerFileHead
    from fieldray.imaging.source import FileStamper
    from fieldray.inference.backend import NetworkOutput
    from fieldray.processes.child import ChildFunction
    from fieldray.processes.serving import Handler
    from fieldray.settings import Settings
    from fieldray.workers.calls import AnalysisRequest, AnalysisResult, DeviceRunResult

    RunElsewhere = Callable[[int, NDArray[np.uint8]], DeviceRunResult]

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

_SERVICE: Final = "fieldray.workers.image_worker:handle"
_HEAD_START_S: Final = 0.5
_TRIES: Final = 2
_TRIES_IN_CLASSIFIER: Final = 3
_KILLED: Final = -9  # SIGKILL by the system, short of memory. This pool kills only processes without a call
_MAX_WORKERS: Final = 8
# Memory for the networks of a pack, in addition to the image. The shipped packs need 560 MB.
_NETWORKS_MB: Final = 768
# Open files: for each worker (pipes, and the results database in two threads), and for all else with a margin.
_FILES_PER_WORKER: Final = 6
_OTHER_FILES: Final = 32
# Address space of this process, measured as VmPeak on 64-bit Linux with 1, 2, 4, 8 and 16 children: 1145, 1321, 1345,
# 1442 and 1635 MB. Nearly all of this is reserved for the stacks and heaps of the threads.
_OTHER_MEMORY_MB: Final = 1300
_MEMORY_MB_PER_WORKER: Final = 22


class PoolClosed(WorkerProblem):
    """Raised by a call to the pool of workers if the pool was closed, or if the call was cancelled."""

    def __init__(self) -> None:
        super().__init__(reason("engine_closed"))


class _LostInClassifier(BackendProblem):
    """Raised if every child process ended while it ran a classifier on an image."""


class _Worker(Child):
    """A child process of the pool, with the models that the process has loaded."""

    models: Sequence[Model] = ()
    is_ending = False

    def start(self) -> None:
        """Start the child process, without a model."""
        self.models, self.is_ending = (), False
        super().start()


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """A pool of `size` child processes that read and analyse images.

    A call, from any thread, waits for a free child process. Close the pool after use, or use it in a `with` statement.

    The first child process starts at once. The other processes start when the first process has analysed an image, or
    after half a second. So the first result, for which a person waits, comes sooner.

    timeout_s        time limit in seconds for one stage of an image; a slower child process is killed
    memory_limit_mb  address space of one child process in MB, without its networks
    command          function that returns the command line of a child process
    """

    def __init__(
        self,
        size: int,
        *,
        timeout_s: float,
        memory_limit_mb: int,
        command: Callable[[str], list[str]] = child_process_command,
    ) -> None:
        self._timeout_s = timeout_s
        self._children = [
            _Worker(_SERVICE, memory_limit_mb=memory_limit_mb + _NETWORKS_MB, command=command)
            for _ in range(max(1, size))
        ]
        self._idle = self._children[:1]
        self._held_back = self._children[1:]
        self._condition = threading.Condition()
        self._under_way: dict[_Worker, Callable[[], bool]] = {}  # running calls, each with its `is_cancelled`
        self._given_up = 0
        self._is_closed = False  # a closed pool answers no call
        self.detail = ""  # runtime and threads for display; "" until a child has loaded a model
        self._stamps: FileStamper | None = None
        self._group: tuple[Model, ...] = ()
        with contextlib.suppress(OSError):  # the first call starts the process again and reports the error
            self._children[0].start()

    @property
    def size(self) -> int:
        """The number of child processes, which is the maximum number of images analysed at the same time."""
        return len(self._children)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the running children."""
        return tuple(child.pid for child in self._children if child.is_running and child.pid is not None)

    def set_stamper(self, stamps: FileStamper) -> None:
        """Compute a stamp of each file read from now on. A stamp shows later whether the file is unchanged."""
        self._stamps = stamps

    def register_model_group(self, models: Sequence[Model]) -> None:
        """Register models that screen images together.

        A child process that needs one of these models then loads all.
        """
        self._group = tuple(models)

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        """Analyse an image for one model. Never raises for a bad file: the result contains the problem.

        If the child process ends during the analysis, the image is tried again: once, or twice if the classifier was
        running. Raises BackendProblem if the model cannot be loaded. Raises WorkerProblem if no child process can be
        started. Raises PoolClosed if the pool was closed.

        model  the model, loaded in the child process if needed; None to read the image without a network
        """
        return self.analyse_for_models([(question, model)])[0]

    def analyse_for_models(
        self,
        questions: Sequence[tuple[AnalysisRequest, Model | None]],
        *,
        run_elsewhere: RunElsewhere | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[AnalysisResult, ...]:
        """Analyse one image, read once, for several models. Returns a result for each model. Raises as `analyse`.

        questions      pairs of a request and its model; None in place of a model to run no network
        run_elsewhere  function that runs a classifier on a device instead of in the child process, in the thread of the
                       caller. Its arguments are the position of the request in `questions` and the network input
        is_cancelled   function that returns whether the image is no longer wanted; `analyse_for_models` then raises
                       PoolClosed
        """
        ask = partial(self._analyse_in_one_child, run_elsewhere=run_elsewhere, is_cancelled=is_cancelled)
        try:
            return ask(questions)
        except _LostInClassifier as error:
            if len(questions) == 1:  # read the image for display, without the classifier
                ((question, model),) = questions
                (seen,) = ask([(replace(question, classifier_location="nowhere"), model)])
                why = seen.problem or error.reason
                return (
                    replace(seen, problem=why, stage=seen.stage if seen.problem else "inference", input_values=None),
                )

        def analyse_alone(number: int) -> AnalysisResult:
            run = run_elsewhere and (lambda _, values: run_elsewhere(number, values))
            (seen,) = self.analyse_for_models([questions[number]], run_elsewhere=run, is_cancelled=is_cancelled)
            return seen

        return tuple(map(analyse_alone, range(len(questions))))  # the other packs' networks may run without a crash

    def _analyse_in_one_child(
        self,
        questions: Sequence[tuple[AnalysisRequest, Model | None]],
        *,
        run_elsewhere: RunElsewhere | None,
        is_cancelled: Callable[[], bool],
    ) -> tuple[AnalysisResult, ...]:
        """Analyse one image for several models, in one child process. Raises as `analyse`.

        Raises _LostInClassifier if classifiers ended three child processes. With several models, the first loss
        suffices.
        """
        from fieldray.domain.finding import ImageFacts
        from fieldray.workers import calls

        ref = questions[0][0].ref
        slim = replace(ref, header=type(ref.header)(number_of_frames=ref.header.number_of_frames))
        key = self._stamps.key.hex() if self._stamps else ""
        begun = self._given_up

        def request(one: AnalysisRequest, model: Model | None, loaded: Sequence[Model]) -> AnalysisRequest:
            finds, number = bool(model and calls.lung_finder_of(model)), _index(model, loaded) if model else 0
            return replace(one, ref=slim, file_stamp_key=key, pack_number=number, finds_lungs=finds)

        def asked(loaded: Sequence[Model]) -> tuple[AnalysisRequest, ...]:
            return tuple(request(one, model, loaded) for one, model in questions)

        def elsewhere(question: calls.DeviceRunRequest) -> calls.DeviceRunResult:
            if run_elsewhere is None or not 0 <= question.request_number < len(questions):
                raise ValueError("a question that nobody expects")
            return run_elsewhere(question.request_number, question.values)

        try:
            seen = self._ask(
                calls.ANALYSE_IMAGE,
                asked,
                models=[of for _, of in questions if of],
                tries_in_classifier=1 if len(questions) > 1 else _TRIES_IN_CLASSIFIER,
                is_cancelled=lambda: self._given_up != begun or is_cancelled(),
                reply=make_message_handler((calls.RUN_ON_DEVICE, elsewhere)),
            )
            if len(seen) != len(questions):
                raise Unreadable(reason("decoder_crashed"))
            return seen
        except (Unreadable, UnsuitableImage) as error:
            stage: Stage = "inference" if error.reason.code == "lungs_failed" else "decode"
            facts = ImageFacts(content_sha256=self._hash_if_readable(ref, error))
            is_refusal = isinstance(error, UnsuitableImage)
            lost = calls.AnalysisResult(problem=error.reason, is_refusal=is_refusal, stage=stage, facts=facts)
            return (lost,) * len(questions)

    def read_network_input(self, ref: ImageRef, spec: InputSpec) -> NetworkInput | None:
        """Make a network input of the whole image, even if `spec` asks for the lung region only.

        Returns None if the image cannot be read.
        """
        from fieldray.domain.image import NetworkInput
        from fieldray.workers.calls import AnalysisRequest

        seen = self.analyse(AnalysisRequest(ref=ref, whole_image_input_spec=spec), model=None)
        if seen.input_values is None or seen.facts.input_to_image is None:
            return None
        return NetworkInput(values=seen.input_values, input_to_image=seen.facts.input_to_image)

    def run(self, values: NDArray[np.uint8], *, model: Model, is_cancelled: Callable[[], bool]) -> NetworkOutput:
        """Run a model on a network input (height, width, channels) uint8, in a free child process.

        If the child process ends, the input is tried in another child process: up to three child processes in all.

        is_cancelled  function that returns whether the output is no longer wanted; `run` then raises PoolClosed

        Raises BackendProblem if every child process ended, PoolClosed, WorkerProblem.
        """
        from fieldray.workers.calls import RUN_CLASSIFIER, PackInferRequest

        def asked(loaded: Sequence[Model]) -> PackInferRequest:
            return PackInferRequest(values=values, pack_number=_index(model, loaded))

        return self._ask(RUN_CLASSIFIER, asked, models=[model], is_cancelled=is_cancelled)

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        """Read an image at full resolution.

        content_sha256  SHA-256 that the file must have, in hexadecimal; "" for any content

        Raises Unreadable (reason `changed` for other content), UnsuitableImage, WorkerProblem, PoolClosed.
        """
        from fieldray.workers import calls

        return self._ask(calls.READ_IMAGE, lambda *_: calls.DisplayRequest(ref=ref, content_sha256=content_sha256))

    def read_display_image(self, ref: ImageRef, *, side: int, content_sha256: str = "") -> ShownImage:
        """Read an image for display, with the display window of its header and a longer side of at most `side` pixels.

        content_sha256  SHA-256 that the file must have, in hexadecimal; "" for any content

        Raises as `read_image`.
        """
        from fieldray.workers import calls

        return self._ask(
            calls.READ_SHOWN_IMAGE,
            lambda *_: calls.DisplayRequest(ref=ref, content_sha256=content_sha256, longer_side_px=side),
        )

    def read_preview(self, preview: bytes) -> NDArray[np.uint8]:
        """Decode a stored preview image to grey levels (height, width) uint8.

        Raises Unreadable, WorkerProblem, PoolClosed.
        """
        from fieldray.workers import calls

        return self._ask(calls.DECODE_PREVIEW, lambda *_: preview).pixels

    def zip_members(self, ref: ImageRef) -> Iterator[ImageRef]:
        """Yield a reference to each image in a zip file. The first ones are yielded before the whole file is searched.

        Raises Unreadable or UnsuitableImage for the zip file as a whole, and PoolClosed.
        """
        from fieldray.imaging.archive import image_refs_in_zip
        from fieldray.workers import calls

        return image_refs_in_zip(ref, lambda question: self._ask(calls.SEARCH_ZIP_MEMBERS, lambda *_: question))

    def identify_server_file(self, question: ServerFileHead) -> ServerFileContent:
        """Identify an object on a server by its first bytes.

        Raises Unreadable, UnsuitableImage, WorkerProblem, PoolClosed.
        """
        from fieldray.workers import calls

        return self._ask(calls.IDENTIFY_SERVER_FILE, lambda *_: question)

    def hash_file(self, ref: ImageRef) -> tuple[str, bytes]:
        """Return the SHA-256 of a file (hexadecimal) and the stamp by which the unchanged file is recognised later.

        The stamp is empty if `set_stamper` was not called, for a file in a zip file, and for a file that was changed
        seconds ago. A file in a zip file is read in a child process, any other file in this process.

        Raises Unreadable, PoolClosed.
        """
        if ref.zip_member is not None:
            return self._hash_in_child(ref), b""
        from fieldray.imaging.whole_file import hash_file

        return hash_file(ref, stamper=self._stamps)

    def abort_calls(self) -> None:
        """Abort all running calls, which then raise PoolClosed. Later calls work as before."""
        with self._condition:
            self._given_up += 1
            self.abort_cancelled_calls()

    def abort_cancelled_calls(self) -> None:
        """Abort all calls whose function `is_cancelled` now returns True.

        The aborted calls raise PoolClosed. All other calls continue.
        """
        with self._condition:  # locked, so that no child gets a new call before it is killed
            for child, is_cancelled in self._under_way.items():
                if is_cancelled():
                    child.is_ending = True
                    child.kill(waits=False)
            self._condition.notify_all()

    def close(self) -> None:
        """Kill the child processes. Calls that wait or run then raise PoolClosed."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for child in self._children:
            child.kill()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, child: _Worker, models: Sequence[Model]) -> None:
        """Load models, with all models of their group, into a child process without them. Raises BackendProblem."""
        from fieldray.workers import calls

        group = self._group
        if all(any(one is of for of in group) for one in models):
            models = group
        if len(child.models) == len(models) and all(map(operator.is_, child.models, models)):
            return
        child.models = ()
        try:
            loaded = calls.LOAD_NETWORKS.ask(child, calls.load_request(*models), timeout_s=self._timeout_s)
        except FieldrayError as error:
            raise BackendProblem(error.reason) from error
        child.models, self.detail = models, f"{loaded.runtime} {loaded.version}, {self.size} x 1"

    def _hash_in_child(self, ref: ImageRef, *, tries: int = _TRIES) -> str:
        from fieldray.workers import calls

        return self._ask(calls.HASH_FILE, lambda *_: calls.DisplayRequest(ref=ref), tries=tries)

    def _hash_if_readable(self, ref: ImageRef, error: FieldrayError) -> str:
        """Return the SHA-256 of a file that could not be analysed; "" if the file cannot be read.

        After a time-out, a child process reads the file under a time limit, because the file's drive may not respond.
        """
        try:
            if error.reason.code == "decoder_timeout":
                return self._hash_in_child(ref, tries=1)
            return self.hash_file(ref)[0]
        except PoolClosed:
            raise
        except FieldrayError:
            return ""

    def _ask(
        self,
        call: ChildFunction[Q, A],
        asked: Callable[[Sequence[Model]], Q],
        *,
        models: Sequence[Model] = (),
        tries: int = _TRIES,
        tries_in_classifier: int = _TRIES_IN_CLASSIFIER,
        is_cancelled: Callable[[], bool] | None = None,
        reply: Handler | None = None,
    ) -> A:
        """Send a request to a free child process and return its answer.

        A child process that ends, hangs or gives an invalid answer is replaced, and the request is sent again. The call
        fails after `tries` lost child processes, or after `tries_in_classifier` child processes lost in a classifier.
        `asked` returns the request, given the models that the child process has loaded. `reply` answers questions of
        the child process (see `Child.call`). Raises Unreadable, BackendProblem, WorkerProblem, PoolClosed.
        """
        losses: list[ChildLost] = []
        in_classifier: list[ChildLost] = []
        failed_starts: list[OSError | ChildLost] = []
        begun, stage = self._given_up, ""
        is_over = is_cancelled or (lambda: self._given_up != begun)
        while len(losses) < tries and len(in_classifier) < tries_in_classifier and len(failed_starts) < _TRIES:
            is_asked = False
            try:
                with self._free_child(is_over) as child:
                    if models:
                        self._load(child, models)
                    is_asked = True
                    try:
                        question = asked(child.models)
                        return call.ask(child, question, timeout_s=self._timeout_s, reply=reply)
                    finally:
                        stage = child.stage or call.name
            except (OSError, ChildLost) as error:
                log.warning("a worker process was lost: %s", error)
                if not is_asked or isinstance(error, OSError) or not error.was_ready:
                    failed_starts.append(error)
                else:
                    (in_classifier if stage == "inference" else losses).append(error)
        if len(in_classifier) == tries_in_classifier:
            raise _LostInClassifier(_end_of_model(in_classifier[-1], self._timeout_s))
        if losses and len(losses) == tries:
            raise _lost(losses[-1], stage, timeout_s=self._timeout_s)
        failed = failed_starts[-1]
        if isinstance(failed, ChildLost) and failed.was_ready:  # the child ended while loading the model
            raise BackendProblem(_end_of_model(failed, self._timeout_s))
        raise WorkerProblem(reason("readers_not_started", detail=getattr(failed, "strerror", None) or failed))

    @contextlib.contextmanager
    def _free_child(self, is_cancelled: Callable[[], bool]) -> Iterator[_Worker]:
        """Yield a free child process: among all free ones, the one that was used last.

        A child process that ended is restarted.

        Raises OSError. Raises PoolClosed if the call is cancelled or the pool is closed.
        """

        def is_over() -> bool:
            return self._is_closed or is_cancelled()

        def can_go_on() -> bool:
            return is_over() or bool(self._idle)

        with self._condition:
            if self._held_back and not self._condition.wait_for(can_go_on, _HEAD_START_S):
                self._hold_none_back()
            self._condition.wait_for(can_go_on)
            if is_over():
                raise PoolClosed
            child = self._idle.pop()
            self._under_way[child] = is_cancelled
        try:
            with self._condition:
                if is_over():
                    raise PoolClosed
                if child.is_ending:
                    child.kill()
                if not child.is_running:
                    child.start()
            yield child
        except (OSError, ChildLost) as error:
            if is_over():
                raise PoolClosed from error
            raise
        finally:
            with self._condition:
                del self._under_way[child]
                self._hold_none_back()
                self._idle.append(child)
                self._condition.notify_all()  # all, because the first thread to wake may be cancelled

    def _hold_none_back(self) -> None:
        if self._held_back:
            self._idle += self._held_back
            self._held_back = []
            self._condition.notify_all()


def number_of_workers(settings: Settings) -> int:
    """Return the number of worker processes: the number in the settings, or else one per usable core, at most eight.

    More than eight would waste memory, because the disk and the parent process limit the speed.
    """
    return settings.integer("decoders") or min(usable_cores(), _MAX_WORKERS)


def open_workers(settings: Settings, size: int) -> WorkerPool:
    """Open a pool of `size` worker processes, with the time limit and the memory limit of the settings.

    Raises EnvironmentProblem (open_files, memory_limit) if the limits of this process are too low for a run. Without
    this check the run would fail in the middle of an image.
    """
    if sys.platform != "win32":  # Windows sets no such limits
        _require_open_files(size)
        # Short of address space, Python may wait for ever for a thread that was just started and cannot begin.
        limit_mb, needed_mb = memory_limit_mb(), _OTHER_MEMORY_MB + _MEMORY_MB_PER_WORKER * size
        if limit_mb is not None and limit_mb < needed_mb:
            raise EnvironmentProblem(reason("memory_limit", limit_mb=limit_mb, needed_mb=needed_mb))
    return WorkerPool(
        size,
        timeout_s=settings.integer("decode_timeout_s"),
        memory_limit_mb=settings.integer("decode_memory_mb"),
    )


def _require_open_files(size: int) -> None:
    import resource

    needed = _OTHER_FILES + _FILES_PER_WORKER * size
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        if most != resource.RLIM_INFINITY and most < needed:
            raise EnvironmentProblem(reason("open_files", limit=limit, needed=needed))
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def _end_of_model(error: ChildLost, timeout_s: float) -> Reason:
    from fieldray.inference.worker import explain_exit

    assert isinstance(error, ChildDied | ChildTimeout)
    return explain_exit(error, is_model_loaded=True, timeout_s=timeout_s)


def _index(model: Model, loaded: Sequence[Model]) -> int:
    """Return the position of a model in a list of loaded models. Raises ValueError if the list lacks the model."""
    return [one is model for one in loaded].index(True)


def _lost(error: ChildLost, stage: str, *, timeout_s: float) -> FieldrayError:
    """Return the exception for a file or a network input that ended every child process that worked on it.

    error  the end of the last child process
    stage  the stage at which that child process ended
    """
    if stage == "run":
        return BackendProblem(_end_of_model(error, timeout_s))
    if stage == "lungs":
        return Unreadable(reason("lungs_failed", detail=_end_of_model(error, timeout_s).text))
    if isinstance(error, ChildTimeout):
        return Unreadable(reason("decoder_timeout", seconds=f"{timeout_s:g}"))
    is_killed = isinstance(error, ChildDied) and error.exit_code == _KILLED
    return Unreadable(reason("reader_killed" if is_killed else "decoder_crashed"))
