"""The pool of processes that analyse images: a crash, a hang or lack of memory costs one image only."""

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

from fieldray.errors import BackendProblem, EnvironmentProblem, FieldrayError, ReaderProblem, Unreadable, Unusable
from fieldray.paths import child_command
from fieldray.processes.child import Child, ChildDied, ChildLost, ChildTimeout, handler_of
from fieldray.processes.serving import memory_limit_mb
from fieldray.reasons import Reason, reason
from fieldray.surroundings import usable_cores

# Everything else is imported where it is used: the children start first, and import what they need meanwhile.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fieldray.domain.finding import Stage
    from fieldray.domain.image import Image, ImageRef, NetworkInput, ShownImage
    from fieldray.domain.model import InputSpec, Model
    from fieldray.imaging.beginning import ObjectBeginning, ObjectContent
    from fieldray.imaging.source import Stamps
    from fieldray.inference.backend import NetworkOutput
    from fieldray.processes.child import Call
    from fieldray.processes.serving import Handler
    from fieldray.settings import Settings
    from fieldray.workers.calls import AnalyseRequest, AnalysisResult, DeviceRunResult

    RunElsewhere = Callable[[int, NDArray[np.uint8]], DeviceRunResult]

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

_SERVICE: Final = "fieldray.workers.image_worker:handle"
_HEAD_START_S: Final = 0.5
_TRIES: Final = 2
_TRIES_IN_CLASSIFIER: Final = 3
_KILLED: Final = -9  # SIGKILL: nobody here waits for a process that was sent it, so it was the system, short of memory
_MOST_WORKERS: Final = 8
# What the networks of a pack take beside the image, as in `inference.litert`: 560 MB for the packs that ship.
_NETWORKS_MB: Final = 768
# Pipes of a process, and the results as its two threads read them; what everything else has open, with some to spare.
_FILES_PER_WORKER: Final = 6
_OTHER_FILES: Final = 32
# Address space of this process, measured as VmPeak on 64-bit Linux with 1, 2, 4, 8 and 16 children: 1145, 1321, 1345,
# 1442 and 1635 MB. Nearly all of it is what each thread sets aside for its stack and its heap.
_OTHER_MEMORY_MB: Final = 1300
_MEMORY_MB_PER_WORKER: Final = 22


class PoolClosed(ReaderProblem):
    """The pool of workers was closed, or a call was cancelled before its end."""

    def __init__(self) -> None:
        super().__init__(reason("engine_closed"))


class _LostInClassifier(BackendProblem):
    """A classifier ended every child process that ran it on an image."""


class _Worker(Child):
    """A child process, and the models that it has loaded."""

    models: Sequence[Model] = ()
    is_ending = False

    def start(self) -> None:
        """Start the child process, without a model."""
        self.models, self.is_ending = (), False
        super().start()


class Workers(contextlib.AbstractContextManager["Workers"]):
    """A pool of `size` child processes that read and analyse images.

    Calls from any thread wait for a free child. The pool must be closed, or be used in a `with` statement.

    The first child starts at once. The others start when the first child has analysed an image, or after a while: while
    a program starts, cores are scarce, and a person waits for the first result.

    timeout_s        time limit in seconds for one stage of an image; a slower child is killed
    memory_limit_mb  address space of one child in MB, without its networks
    command          returns the command line that starts a child
    """

    def __init__(
        self,
        size: int,
        *,
        timeout_s: float,
        memory_limit_mb: int,
        command: Callable[[str], list[str]] = child_command,
    ) -> None:
        self._timeout_s = timeout_s
        self._children = [
            _Worker(_SERVICE, memory_limit_mb=memory_limit_mb + _NETWORKS_MB, command=command)
            for _ in range(max(1, size))
        ]
        self._idle = self._children[:1]
        self._held_back = self._children[1:]
        self._condition = threading.Condition()
        self._under_way: dict[_Worker, Callable[[], bool]] = {}  # and whether what each does is wanted no more
        self._given_up = 0
        self._is_closed = False  # then no call is answered any more
        self.detail = ""  # what runs models, in a few words; known once a child has loaded any
        self._stamps: Stamps | None = None
        self._group: tuple[Model, ...] = ()
        with contextlib.suppress(OSError):  # the first call tries again and reports why
            self._children[0].start()

    @property
    def size(self) -> int:
        """The number of children, which is the number of images analysed at the same time."""
        return len(self._children)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the running children."""
        return tuple(child.pid for child in self._children if child.is_running and child.pid is not None)

    def stamp_with(self, stamps: Stamps) -> None:
        """From now on, make a stamp of every file that is read, by which the unchanged file is recognised later."""
        self._stamps = stamps

    def load_as_group(self, models: Sequence[Model]) -> None:
        """Declare that these models screen the same images. A child that needs one of them then loads all of them."""
        self._group = tuple(models)

    def analyse(self, question: AnalyseRequest, *, model: Model | None) -> AnalysisResult:
        """Analyse an image for one model. Never raises for a bad file.

        If the child process ends during the analysis, the image is tried once more, or twice if its classifier ran.
        Raises BackendProblem if the model cannot be loaded, and PoolClosed. Raises ReaderProblem if no child can be
        started, which is not the fault of the file.

        model  the model, loaded in the child if needed; None to read the image without a network
        """
        return self.analyse_for_each([(question, model)])[0]

    def analyse_for_each(
        self,
        questions: Sequence[tuple[AnalyseRequest, Model | None]],
        *,
        run_elsewhere: RunElsewhere | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[AnalysisResult, ...]:
        """Analyse one image, read once, for several models that are loaded together. Raises as `analyse`.

        questions      pairs of a request and the model that it needs, or None
        run_elsewhere  runs a classifier on a device instead of in the child. It gets the position of the question in
                       `questions` and the network's input, and is called in the calling thread
        is_cancelled   whether the image is no longer wanted; the call then raises PoolClosed
        """
        ask = partial(self._look_for_each, run_elsewhere=run_elsewhere, is_cancelled=is_cancelled)
        try:
            return ask(questions)
        except _LostInClassifier as error:
            if len(questions) == 1:  # what there is to show of the image is read without its classifier
                ((question, model),) = questions
                (seen,) = ask([(replace(question, runs="nowhere"), model)])
                why = seen.problem or error.reason
                return (replace(seen, problem=why, stage=seen.stage if seen.problem else "inference", values=None),)

        def look_alone(number: int) -> AnalysisResult:
            run = run_elsewhere and (lambda _, values: run_elsewhere(number, values))
            (seen,) = self.analyse_for_each([questions[number]], run_elsewhere=run, is_cancelled=is_cancelled)
            return seen

        return tuple(map(look_alone, range(len(questions))))  # one pack's network says nothing of the others

    def _look_for_each(
        self,
        questions: Sequence[tuple[AnalyseRequest, Model | None]],
        *,
        run_elsewhere: RunElsewhere | None,
        is_cancelled: Callable[[], bool],
    ) -> tuple[AnalysisResult, ...]:
        """Analyse one image for several models, in one child. Raises as `analyse`.

        Raises _LostInClassifier if a classifier ended its child; with several models already at the first loss.
        """
        from fieldray.domain.finding import ReadFacts
        from fieldray.workers import calls

        ref = questions[0][0].ref
        slim = replace(ref, header=type(ref.header)(number_of_frames=ref.header.number_of_frames))
        key = self._stamps.key.hex() if self._stamps else ""
        begun = self._given_up

        def asked(loaded: Sequence[Model]) -> tuple[AnalyseRequest, ...]:
            numbered = [(one, of, _index(of, loaded) if of else 0) for one, of in questions]
            return tuple(
                replace(one, ref=slim, stamp_key=key, pack=pack, finds=bool(of and calls.lung_finder_of(of)))
                for one, of, pack in numbered
            )

        def elsewhere(question: calls.DeviceRunRequest) -> calls.DeviceRunResult:
            if run_elsewhere is None or not 0 <= question.number < len(questions):
                raise ValueError("a question that nobody expects")
            return run_elsewhere(question.number, question.values)

        try:
            seen = self._ask(
                calls.ANALYSE,
                asked,
                models=[of for _, of in questions if of],
                tries_in_classifier=1 if len(questions) > 1 else _TRIES_IN_CLASSIFIER,
                is_cancelled=lambda: self._given_up != begun or is_cancelled(),
                reply=handler_of((calls.ELSEWHERE, elsewhere)),
            )
            if len(seen) != len(questions):
                raise Unreadable(reason("decoder_crashed"))
            return seen
        except (Unreadable, Unusable) as error:
            stage: Stage = "inference" if error.reason.code == "lungs_failed" else "decode"
            facts = ReadFacts(content_sha256=self._hash_if_readable(ref, error))
            is_refusal = isinstance(error, Unusable)
            lost = calls.AnalysisResult(problem=error.reason, is_refusal=is_refusal, stage=stage, facts=facts)
            return (lost,) * len(questions)

    def read_network_input(self, ref: ImageRef, spec: InputSpec) -> NetworkInput | None:
        """Make a network's input of the whole image, even if `spec` crops to the lungs.

        Returns None if the image cannot be read.
        """
        from fieldray.domain.image import NetworkInput
        from fieldray.workers.calls import AnalyseRequest

        seen = self.analyse(AnalyseRequest(ref=ref, frame=spec), model=None)
        if seen.values is None or seen.facts.pixel_map is None:
            return None
        return NetworkInput(values=seen.values, pixel_map=seen.facts.pixel_map)

    def run(self, values: NDArray[np.uint8], *, model: Model, is_cancelled: Callable[[], bool]) -> NetworkOutput:
        """Run a model on an input (height, width, channels) uint8, in a free child process.

        If the child process ends during the run, the input is tried in another one, up to three times in all. Raises
        FieldrayError: BackendProblem if every try ended its child, PoolClosed, ReaderProblem.
        """
        from fieldray.workers.calls import RUN, PackInferRequest

        def asked(loaded: Sequence[Model]) -> PackInferRequest:
            return PackInferRequest(values=values, pack=_index(model, loaded))

        return self._ask(RUN, asked, models=[model], is_cancelled=is_cancelled)

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        """Read an image at full resolution.

        content_sha256  SHA-256 that the file must have; "" for any content
        Raises Unreadable (`changed` for other content), Unusable, ReaderProblem, PoolClosed.
        """
        from fieldray.workers import calls

        return self._ask(calls.READ_IMAGE, lambda *_: calls.DisplayRequest(ref=ref, content_sha256=content_sha256))

    def read_shown(self, ref: ImageRef, *, side: int, content_sha256: str = "") -> ShownImage:
        """Read an image as displayed by default, with a longer side of at most `side` pixels.

        Raises as `read_image`.
        """
        from fieldray.workers import calls

        return self._ask(
            calls.READ_SHOWN_IMAGE, lambda *_: calls.DisplayRequest(ref=ref, content_sha256=content_sha256, side=side)
        )

    def read_preview(self, preview: bytes) -> NDArray[np.uint8]:
        """Decode the grey levels (h, w) of a stored preview. Raises Unreadable, ReaderProblem, PoolClosed."""
        from fieldray.workers import calls

        return self._ask(calls.DECODE_PREVIEW, lambda *_: preview).pixels

    def zip_members(self, ref: ImageRef) -> Iterator[ImageRef]:
        """Yield references to the images in a zip file, while a child is still searching the file.

        Raises Unreadable or Unusable for the zip file as a whole, PoolClosed.
        """
        from fieldray.imaging.archive import members_of
        from fieldray.workers import calls

        return members_of(ref, lambda question: self._ask(calls.SEARCH_MEMBERS, lambda *_: question))

    def identify(self, question: ObjectBeginning) -> ObjectContent:
        """Identify an object on a server by its first bytes. Raises Unreadable, Unusable, ReaderProblem, PoolClosed."""
        from fieldray.workers import calls

        return self._ask(calls.IDENTIFY_OBJECT, lambda *_: question)

    def content_hash(self, ref: ImageRef) -> tuple[str, bytes]:
        """Return the SHA-256 (hex) of a file and its stamp; computed in this process unless the file is in a zip.

        The stamp is empty without stamps, or if no stamp can identify the file's state. Raises Unreadable, PoolClosed.
        """
        if ref.member is not None:
            return self._hash_in_child(ref), b""
        from fieldray.imaging.whole_file import content_hash

        return content_hash(ref, stamps=self._stamps)

    def abort_calls(self) -> None:
        """Abort all running calls, which then raise PoolClosed. Later calls work as before."""
        with self._condition:
            self._given_up += 1
            self.abort_cancelled_calls()

    def abort_cancelled_calls(self) -> None:
        """Abort all calls whose `is_cancelled` now returns True. They raise PoolClosed; other calls continue."""
        with self._condition:  # till all are ended: a child that is free meanwhile does something else
            for child, is_cancelled in self._under_way.items():
                if is_cancelled():
                    child.is_ending = True
                    child.kill(waits=False)
            self._condition.notify_all()

    def close(self) -> None:
        """Kill the children. Waiting and running calls raise PoolClosed."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for child in self._children:
            child.kill()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, child: _Worker, models: Sequence[Model]) -> None:
        """Load models and their group into a child that lacks them. Raises BackendProblem."""
        from fieldray.workers import calls

        group = self._group
        if all(any(one is of for of in group) for one in models):
            models = group
        if len(child.models) == len(models) and all(map(operator.is_, child.models, models)):
            return
        child.models = ()
        try:
            loaded = calls.LOAD.ask(child, calls.load_request(*models), timeout_s=self._timeout_s)
        except FieldrayError as error:
            raise BackendProblem(error.reason) from error
        child.models, self.detail = models, f"{loaded.runtime} {loaded.version}, {self.size} x 1"

    def _hash_in_child(self, ref: ImageRef, *, tries: int = _TRIES) -> str:
        from fieldray.workers import calls

        return self._ask(calls.HASH_FILE, lambda *_: calls.DisplayRequest(ref=ref), tries=tries)

    def _hash_if_readable(self, ref: ImageRef, error: FieldrayError) -> str:
        """Hash a file after a child's time-out, with the child's time limit: its drive may not respond."""
        try:
            if error.reason.code == "decoder_timeout":
                return self._hash_in_child(ref, tries=1)
            return self.content_hash(ref)[0]
        except PoolClosed:
            raise
        except FieldrayError:
            return ""

    def _ask(
        self,
        call: Call[Q, A],
        asked: Callable[[Sequence[Model]], Q],
        *,
        models: Sequence[Model] = (),
        tries: int = _TRIES,
        tries_in_classifier: int = _TRIES_IN_CLASSIFIER,
        is_cancelled: Callable[[], bool] | None = None,
        reply: Handler | None = None,
    ) -> A:
        """Return a child's answer.

        A child that dies, hangs or gives an invalid answer is replaced, and another is asked once more.

        The loss of a child before it has the question is not the file's fault, and is counted apart, as are losses in a
        classifier. `asked` makes the question from the models that the child has loaded, because the question contains
        their numbers. The call ends when `is_cancelled` returns True. `reply` as in `Child.call`.
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
                log.warning("worker: %s", error)
                if not is_asked or isinstance(error, OSError) or not error.was_ready:
                    failed_starts.append(error)
                else:
                    (in_classifier if stage == "inference" else losses).append(error)
        if len(in_classifier) == tries_in_classifier:
            raise _LostInClassifier(_end_of_model(in_classifier[-1], self._timeout_s))
        if losses and len(losses) == tries:
            raise _lost(losses[-1], stage, timeout_s=self._timeout_s)
        failed = failed_starts[-1]
        if isinstance(failed, ChildLost) and failed.was_ready:  # as it loaded the model
            raise BackendProblem(_end_of_model(failed, self._timeout_s))
        raise ReaderProblem(reason("readers_not_started", detail=getattr(failed, "strerror", None) or failed))

    @contextlib.contextmanager
    def _free_child(self, is_cancelled: Callable[[], bool]) -> Iterator[_Worker]:
        """Yield the most recently used free child, which has loaded codecs; restart the child if it died.

        Raises OSError; PoolClosed if the call is cancelled or the pool is closed.
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
                self._condition.notify_all()  # the first that wakes may be one that is cancelled

    def _hold_none_back(self) -> None:
        if self._held_back:
            self._idle += self._held_back
            self._held_back = []
            self._condition.notify_all()


def number_of_workers(settings: Settings) -> int:
    """Return the number of workers: that of the settings, else one per usable core, up to eight.

    More than eight would waste memory, because the disk and the program's own process limit the speed.
    """
    return settings.integer("decoders") or min(usable_cores(), _MOST_WORKERS)


def open_workers(settings: Settings, size: int) -> Workers:
    """Open `size` workers with the limits of the settings. They start at once.

    Raises EnvironmentProblem (open_files, memory_limit) if this process's limits are too low for a run, which would
    otherwise fail in the middle of an image.
    """
    if sys.platform != "win32":  # it sets no such limits
        _require_open_files(size)
        # Short of address space, Python may wait for ever for a thread that was just started and cannot begin.
        limit_mb, needed_mb = memory_limit_mb(), _OTHER_MEMORY_MB + _MEMORY_MB_PER_WORKER * size
        if limit_mb is not None and limit_mb < needed_mb:
            raise EnvironmentProblem(reason("memory_limit", limit_mb=limit_mb, needed_mb=needed_mb))
    return Workers(
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
    from fieldray.inference.worker import explain_end

    assert isinstance(error, ChildDied | ChildTimeout)
    return explain_end(error, is_open=True, timeout_s=timeout_s)


def _index(model: Model, loaded: Sequence[Model]) -> int:
    """Return the number of a model among a child's loaded models. Raises ValueError if it is not loaded."""
    return [one is model for one in loaded].index(True)


def _lost(error: ChildLost, stage: str, *, timeout_s: float) -> FieldrayError:
    """Return the problem of a file or an input that ended one child after another."""
    if stage == "run":
        return BackendProblem(_end_of_model(error, timeout_s))
    if stage == "lungs":
        return Unreadable(reason("lungs_failed", detail=_end_of_model(error, timeout_s).text))
    if isinstance(error, ChildTimeout):
        return Unreadable(reason("decoder_timeout", seconds=f"{timeout_s:g}"))
    is_killed = isinstance(error, ChildDied) and error.exit_code == _KILLED
    return Unreadable(reason("reader_killed" if is_killed else "decoder_crashed"))
