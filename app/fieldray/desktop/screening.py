"""The run: what was chosen, starting, pausing, stopping, and what follows it. No widget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import Action, Notice, NoticeBoard
from fieldray.desktop.services import BatchPort, SessionPort
from fieldray.domain.events import Progress, RunChanged
from fieldray.domain.model import BackendName, Manifest, Model
from fieldray.domain.run import Run
from fieldray.errors import FieldrayError
from fieldray.packs.legacy import known_manifest
from fieldray.reasons import Reason

State = Literal["empty", "waiting", "starting", "running", "paused", "stopping", "finished", "cancelled", "failed"]
# Notes that a run may carry, by code.
_RUN_NOTES: Final = (
    "run_elsewhere",
    "not_present",
    "own_reports",
    "unlike_images",
    "asked_for_images",
    "drift_evidence",
)
_BUSY: tuple[State, ...] = ("starting", "running", "paused", "stopping")


class Screening(QObject):
    """One run at a time. Paths chosen while one is under way are screened after it.

    A run starts when it is known whose images they are: `chosen` and `start_asked` ask for it, `approve` tells it.
    """

    changed = Signal()
    chosen = Signal()
    start_asked = Signal()
    started = Signal()
    idle = Signal()

    def __init__(self, background: Background, board: NoticeBoard) -> None:
        super().__init__()
        self._background, self._board = background, board
        self._session: SessionPort | None = None
        self._model: Model | None = None
        self._used: Model | None = None
        self._batch: BatchPort | None = None
        self._next: tuple[Path, ...] = ()
        self._starts_when_ready = False
        self._is_approved = False
        self.ages_confirmed = False
        self.point_name: str | None = None
        self.paths: tuple[Path, ...] = ()
        self.state: State = "empty"
        self.run_id: int | None = None
        self.manifest: Manifest | None = None
        self.run_model: Model | None = None
        self.progress: Progress | None = None
        self.past: Run | None = None

    # ---- what can be done now

    @property
    def is_busy(self) -> bool:
        return self.state in _BUSY

    @property
    def can_start(self) -> bool:
        return bool(self.paths) and not self.is_busy and self._session is not None and self._model is not None

    @property
    def can_pause(self) -> bool:
        return self.state in ("running", "paused")

    @property
    def can_stop(self) -> bool:
        return self.state in ("running", "paused")

    # ---- what a person does

    def choose(self, paths: Sequence[Path]) -> None:
        """Screen these files and folders: now, as soon as a pack is ready, or after the run under way."""
        if not paths:
            return
        self._board.withdraw(_unscreened(paths))
        if self.is_busy:
            self._next = (*self._next, *paths)
            count = len(self._next)
            self._board.post(
                Notice(
                    key="next",
                    level="info",
                    text=lambda t: t.plural(
                        "{count} file or folder will be screened after this run.",
                        "{count} files or folders will be screened after this run.",
                        count,
                    ),
                )
            )
            return
        self._name_waiting(paths)
        self.paths, self._starts_when_ready, self._is_approved = tuple(paths), True, False
        self._enter("waiting")
        self.chosen.emit()

    def start(self, *, fresh: bool = False) -> None:
        """Screen what was chosen; what was done before with the same pack is taken over unless `fresh`."""
        session, model = self._session, self._model
        if not self.can_start or session is None or model is None:
            return
        if not self._is_approved:
            self._starts_when_ready = True
            self.start_asked.emit()
            return
        self._starts_when_ready = False
        for key in ("run", *_RUN_NOTES):
            self._board.withdraw(key)
        self.manifest, self.progress, self.run_id, self.run_model = model.manifest, None, None, model
        self.past = None
        self._enter("starting")
        self.started.emit()
        paths, point_name, ages_confirmed = self.paths, self.point_name, self.ages_confirmed
        self._use(session, model)
        self._background.run(
            lambda: session.start(paths, operating_point=point_name, fresh=fresh, ages_confirmed=ages_confirmed),
            channel="run",
            done=self._has_started,
            failed=self._not_started,
        )

    def approve(self, *, ages_confirmed: bool) -> None:
        """The pack in use is the one for these images; a run that waits for that starts."""
        self._is_approved, self.ages_confirmed = True, ages_confirmed
        self._start_if_ready()

    def pause_or_resume(self) -> None:
        """Pause a running batch or resume a paused one."""
        if self._batch is not None and self.can_pause:
            command = self._batch.pause if self.state == "running" else self._batch.resume
            self._background.run(command, channel="run", failed=self._command_failed)

    def stop(self) -> None:
        """End the run. Its results stay, and Start resumes from there."""
        batch = self._batch
        if batch is not None and self.can_stop:
            waiting, self._next = self._next, ()
            self._board.withdraw("next")
            self._name_unscreened(waiting)
            self._enter("stopping")
            self._background.run(batch.cancel, channel="run", failed=self._command_failed)

    # ---- what happens

    def attach(self, session: SessionPort) -> None:
        """The session is open."""
        self._session = session
        self._warm_up()
        self._start_if_ready()

    def set_model(self, model: Model | None, point_name: str | None) -> None:
        """Another pack or operating point is to be used from the next run on."""
        if model is not self._model:
            self._is_approved = False  # it was another pack that the images were said to be for
        self._model, self.point_name = model, point_name
        self._warm_up()
        self.changed.emit()
        self._start_if_ready()

    def show_past(self, run: Run, model: Model | None) -> None:
        """A run of the past is in sight: it can be saved and audited, and Start screens its folders again.

        model  of the pack that made its results, None where it is not at hand
        """
        for key in ("run", *_RUN_NOTES):
            self._board.withdraw(key)
        self._name_waiting()
        self._starts_when_ready = self._is_approved = False
        self.paths, self.past = tuple(map(Path, run.spec.paths)), run
        self.manifest, self.run_model = model.manifest if model else known_manifest(run.spec.trust), model
        self.run_id, self.progress = run.run_id, None
        is_over: dict[str, State] = {"finished": "finished", "failed": "failed"}
        self._enter(is_over.get(run.state, "cancelled"))

    def forget_run(self) -> None:
        """The run in sight was deleted."""
        self.paths, self.past, self.run_id, self.run_model, self.manifest = (), None, None, None, None
        self.progress = None
        self._enter("empty")

    def try_again(self, name: BackendName) -> None:
        """Try a backend again that was given up."""
        session = self._session
        if session is not None:
            self._background.run(lambda: session.reconsider(name), channel="run", failed=self._command_failed)

    def choose_devices(self) -> None:
        """Put the settings on devices in force, also in the middle of a run."""
        session = self._session
        if session is not None:
            self._background.run(session.choose_devices, channel="run", failed=self._command_failed)

    def take_run(self, event: RunChanged) -> None:
        """The batch entered a state."""
        self.run_id = event.run_id
        if self.state == "stopping" and event.state in ("running", "paused"):
            return
        self._enter(event.state)
        if event.reason is not None:
            self._post_failure(event.reason)
        self.tell(event.notes)
        if not self.is_busy:
            self._batch = None
            self._after_run()

    def tell(self, notes: Sequence[Reason]) -> None:
        """What a person should know of the run in sight."""
        for note in notes:  # what a drive lacked stays until it is dismissed, as a failure does
            key = note.text if note.code == "no_image_in" else note.code
            self._board.post_reason(key, note, level="warning" if note.code == "drift_evidence" else "info")

    def take_progress(self, event: Progress) -> None:
        """How far the batch is."""
        self.progress = event
        self.changed.emit()

    def end(self) -> Callable[[], None]:
        """For closing: a function that ends the batch and waits for it; call it off the window's thread."""
        batch = self._batch

        def finish() -> None:
            if batch is not None:
                batch.cancel()
                batch.join()

        return finish

    # ---- inside

    def _enter(self, state: State) -> None:
        self.state = state
        self.changed.emit()

    def _start_if_ready(self) -> None:
        if self._starts_when_ready and self._is_approved and self.can_start:
            self.start()

    def _warm_up(self) -> None:
        """Open the model ahead of the first run, unless one is under way: that one keeps its own."""
        if self._session is not None and self._model is not None and not self.is_busy:
            self._use(self._session, self._model)

    def _use(self, session: SessionPort, model: Model) -> None:
        if self._used is not model:
            self._used = model
            self._background.run(lambda: session.use_pack(model), channel="run", failed=self._command_failed)

    def _has_started(self, batch: BatchPort) -> None:
        if self.state in ("starting", "running", "paused"):
            self._batch = batch

    def _not_started(self, error: Exception) -> None:
        self._enter("failed")
        if isinstance(error, FieldrayError):
            self._post_failure(error.reason)
        else:
            self._command_failed(error)
        self._after_run()

    def _post_failure(self, why: Reason) -> None:
        """It stays until it is dismissed: nobody may have seen it when the next run starts."""
        paths = _listed(self.paths)
        self._board.post(
            Notice(
                key=f"failed {paths} {why.code}",
                level="error",
                text=lambda t: t.text("Screening ended early: {paths}. {reason}", paths=paths, reason=t.reason(why)),
            )
        )

    def _name_waiting(self, instead: Sequence[Path] = ()) -> None:
        """Name what waited for an answer, unless the same is chosen again."""
        if self.state == "waiting" and self.paths != tuple(instead):
            self._name_unscreened(self.paths)

    def _name_unscreened(self, paths: tuple[Path, ...]) -> None:
        """What was chosen is not forgotten without a word."""
        if paths:
            self._board.post(
                Notice(
                    key=_unscreened(paths),
                    level="warning",
                    text=lambda t: t.text("Chosen, but not screened: {paths}", paths=_listed(paths)),
                    action=Action(lambda t: t.text("Screen now"), lambda: self.choose(paths)),
                )
            )

    def _command_failed(self, error: Exception) -> None:
        self._board.post_error("run", error)

    def _after_run(self) -> None:
        self._warm_up()
        self.idle.emit()
        if self._next:
            following, self._next = self._next, ()
            self._board.withdraw("next")
            self.choose(following)


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _unscreened(paths: Sequence[Path]) -> str:
    """The key of the notice that these were not screened."""
    return f"unscreened {_listed(paths)}"
