"""Control of the run: chosen folders, question about the pack, start, pause, stop and messages. No widgets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import BackgroundTasks, Services
from fieldray.desktop.intent import (
    CollectPathFactsCommand,
    Commands,
    IntentQuestion,
    IntentStateMachine,
    ReportDroppedIntentCommand,
    ScreeningIntent,
    StartIntendedRunCommand,
    UsePackCommand,
)
from fieldray.desktop.notices import NoticeAction, NoticeLevel
from fieldray.desktop.pack_choice import PackController
from fieldray.domain.model import BackendName, Manifest, Model
from fieldray.domain.run import Progress, Run, RunChanged
from fieldray.errors import FieldrayError
from fieldray.formatting import date_and_time_text
from fieldray.packs.naming import PackCandidate
from fieldray.packs.verified import manifest_of_removed_pack
from fieldray.reasons import Reason, reason

if TYPE_CHECKING:
    from fieldray.packs.site_choices import RememberedPack
    from fieldray.pipeline.batch import Batch

ScreeningState = Literal[
    "empty", "waiting", "starting", "running", "paused", "stopping", "finished", "cancelled", "failed"
]
RUN_NOTICE_PREFIX: Final = "of the run "  # beginning of the keys of notices about the visible run
_OF_WATCH: Final = {"watch_waits": "watch_waits", "watch_goes_on": "watch_waits", "watch_stopped": "watch"}
_GRAVE: Final = ("drift_evidence", "watch_waits", "other_patients", "ages_not_stated")
_BUSY: tuple[ScreeningState, ...] = ("starting", "running", "paused", "stopping")


class ScreeningController(QObject):
    """Controls the runs of the window, one at a time. Paths that are chosen during a run are screened after the run.

    A run starts when its pack and the patients' ages are known. `question_changed` is emitted when a question about the
    pack or the ages was opened or closed.
    """

    changed = Signal()
    question_changed = Signal()
    run_started = Signal()
    became_idle = Signal()

    def __init__(self, background: BackgroundTasks, packs: PackController) -> None:
        super().__init__()
        self.background, self._board, self.packs = background, background.notice_board, packs
        self._playbook = IntentStateMachine()
        self._models: tuple[Model, ...] = ()  # packs of the next run
        self._used: tuple[Model, ...] = ()
        self._begun: Future[Batch] | None = None
        self._next: dict[bool, tuple[Path, ...]] = {False: (), True: ()}  # waiting paths; paths to watch (True) last
        self.watches = False
        self._before: tuple[ScreeningState, tuple[Path, ...], Run | None, Progress | None] = "empty", (), None, None
        self._seen: IntentQuestion | None = None
        self.paths: tuple[Path, ...] = ()
        self.state: ScreeningState = "empty"
        self.run_id: int | None = None
        self.manifest: Manifest | None = None
        self.run_models: tuple[Model | None, ...] = ()
        self.progress: Progress | None = None
        self.past_run: Run | None = None
        packs.packs_listed.connect(self._see_packs)
        packs.model_changed.connect(self._see_packs)
        packs.question_changed.connect(self._see_packs)

    # ---- state

    @property
    def is_busy(self) -> bool:
        """Whether a run is starting, active or stopping."""
        return self.state in _BUSY

    @property
    def can_start(self) -> bool:
        """Whether the Start button can begin a run now."""
        return bool(self.paths) and not self.is_busy and bool(self._models)

    @property
    def question(self) -> IntentQuestion | None:
        """The question that a person must answer before the waiting run can start; None without a question."""
        return self._playbook.question

    @property
    def can_stop(self) -> bool:
        """Whether a run can be stopped, paused or resumed."""
        return self.state in ("running", "paused")

    # ---- commands of a person

    def screen_paths(self, paths: Sequence[Path], *, watches: bool = False) -> None:
        """Screen files and folders: now, as soon as a pack is ready, or after the active run.

        watches  whether the run continues with images that are added to the folders later, until it is stopped
        """
        if not paths:
            return
        self._board.withdraw(_unscreened(paths))
        if self.is_busy:
            self._next[watches] += tuple(paths)
            self._say_next()
            return
        if self.state != "waiting":
            self._before = self.state, self.paths, self.past_run, self.progress
        self.paths, self.past_run, self.progress = tuple(paths), None, None
        self._enter("waiting")
        self._do(self._playbook.handle_chosen_paths(paths, watches=watches))

    def start(self, *, listed_image_count: int = 0) -> None:
        """Start a run over the chosen folders, or over the folders of the visible work list.

        listed_image_count  number of images in the visible work list; ignored while other folders wait to be screened
        """
        if self.can_start:
            images = listed_image_count if self.state != "waiting" else 0
            self._do(self._playbook.handle_start_button(self.paths, listed_image_count=images))

    def answer(self, question: IntentQuestion | None, answer: PackCandidate | bool | None) -> None:
        """Handle a person's answer to the open question, or a click on a pack's card without a question.

        The parameters are those of `IntentStateMachine.answer`.
        """
        self._do(self._playbook.answer(question, answer))

    def cancel_waiting_run(self) -> None:
        """Close the open question without an answer: cancel the waiting run, and report its folders as not screened."""
        commands = self._playbook.drop_intent()
        self._restore()
        self._do(commands)

    def pause_or_resume(self) -> None:
        """Pause the run if it is running. Resume the run if it is paused."""
        if self.can_stop:
            is_running = self.state == "running"
            self._call_run(lambda batch: batch.pause() if is_running else batch.resume())

    def stop(self) -> None:
        """Stop the run. Its results are kept, and the Start button continues the run."""
        if self.can_stop:
            if not self.watches:  # after watching, waiting folders are screened
                self._name_waiting()
            self._enter("stopping")
            self._call_run(lambda batch: batch.cancel())

    # ---- events

    def show_past_run(self, run: Run, *models: Model | None) -> None:
        """Show a past run. The run can be exported and audited, and the Start button screens its folders again.

        models  the packs of the run; None for a pack that is not available
        """
        self._forget_notes()
        self._do(self._playbook.drop_intent())
        self._name_waiting()
        self.paths, self.past_run = tuple(map(Path, run.spec.paths)), run
        self.run_models, model = models, models[0]
        self.manifest = model.manifest if model else manifest_of_removed_pack(run.spec.packs[0].trust)
        self.run_id, self.progress = run.run_id, None
        is_over: dict[str, ScreeningState] = {"finished": "finished", "failed": "failed"}
        self._enter(is_over.get(run.state, "cancelled"))

    def close_deleted_run(self) -> None:
        """Close the visible run, which was deleted, and remove the notices about its end."""
        self._forget_notes()
        self._board.withdraw_by_prefix(_failed(self.paths))
        self._board.withdraw(_unscreened(self.paths))
        self._do(self._playbook.drop_intent())
        self._name_waiting()
        self.paths, self.past_run, self.run_id, self.run_models, self.manifest = (), None, None, (), None
        self.progress = None
        self._enter("empty")

    def retry_backend(self, name: BackendName) -> None:
        """Start a device again that is unavailable.

        name  name of the device
        """
        self._ask(lambda services: services.session.retry_backend(name))

    def apply_device_settings(self) -> None:
        """Apply the settings about devices, also during a run."""
        self._ask(lambda services: services.session.choose_devices())

    def handle_run_changed(self, event: RunChanged) -> None:
        """Handle an event about a new state of the run, for example the end of the run."""
        self.run_id = event.run_id
        if self.state == "stopping" and event.state in ("running", "paused"):
            return
        self._enter(event.state)
        if event.reason is not None:
            self._board.withdraw_by_prefix("watch")  # watching has ended
            self._post_failure(event.reason)
        self.show_run_notes(event.notes)
        if not self.is_busy:
            self._begun = None
            self._after_run()

    def show_run_notes(self, notes: Sequence[Reason]) -> None:
        """Show notes on the visible run as notices in the window."""
        for note in notes:
            # A notice that a drive has no images stays until a person closes it, as a failure does.
            key = note.text if note.code == "no_image_in" else _OF_WATCH.get(note.code, RUN_NOTICE_PREFIX + note.code)
            if note.code == "watch_stopped":
                self._board.withdraw_by_prefix("watch")
            self._board.post_reason(key, note, level=notice_level(note))

    def handle_progress(self, event: Progress) -> None:
        """Handle the event with the progress of the run."""
        self.progress = event
        self.changed.emit()

    def make_run_stopper(self) -> Callable[[], None]:
        """Return a function that ends the active run and waits for its end.

        Call the returned function outside the window's thread, before the program closes.
        """
        begun = self._begun

        def finish() -> None:
            if begun and not begun.exception():
                begun.result().cancel()
                begun.result().join()

        return finish

    # ---- carrying out commands

    def _forget_notes(self) -> None:
        """Remove the notices with notes on the run, because another run, or none, becomes visible."""
        for start in ("watch", RUN_NOTICE_PREFIX):
            self._board.withdraw_by_prefix(start)

    def _enter(self, state: ScreeningState) -> None:
        self.state, self.packs.may_change_pack = state, state not in _BUSY
        self.changed.emit()

    def _see_packs(self) -> None:
        """Handle a change of the available packs. The next run uses the packs that are now in use."""
        if self._models != self.packs.loaded_models:
            self._models = self.packs.loaded_models
            self._warm_up()
            self.changed.emit()
        self._do(
            self._playbook.update_packs(self.packs.available_packs, default=self.packs.default_pack_and_point_names)
        )

    def _do(self, commands: Commands) -> None:
        """Carry out the commands of the state machine.

        Then emit `question_changed` if the open question has changed.
        """
        for command in commands:
            match command:
                case CollectPathFactsCommand():
                    self._collect_facts(command.intent)
                case UsePackCommand():
                    use = self.packs.use_pack if command.is_pack_card_clicked else self.packs.use_earlier_chosen_pack
                    use(command.candidate, point=command.operating_point_name)
                case StartIntendedRunCommand():
                    self._screen(command.intent, command.remembered)
                case ReportDroppedIntentCommand(is_pack_replaced=True):
                    closed = reason("question_closed", paths=_listed(command.intent.paths))
                    self._board.post_reason("question", closed, level="warning")
                case ReportDroppedIntentCommand():
                    self._name_unscreened(command.intent.paths, watches=command.intent.watches_folders)
        if self._seen != self.question:  # only now, because the start of a run empties the work list
            self._seen = self.question
            self.question_changed.emit()

    def _collect_facts(self, intent: ScreeningIntent) -> None:
        """Collect the facts about an intent's paths in the background, because the disk may be slow."""
        self.background.run_with_services(
            lambda services: (
                services.are_empty_folders(intent.paths),
                services.remembered_packs.find(intent.paths),
                services.may_lack_patient_ages(intent.paths),
            ),
            channel="whose",
            done=lambda known: self._looked(intent, *known),
            newest_only=True,
        )

    def _looked(
        self, intent: ScreeningIntent, are_empty_folders: bool, remembered: RememberedPack | None, lacks_ages: bool
    ) -> None:
        """Handle the facts about an intent's paths.

        If the folders contain no file, no question is asked and no run starts. The previous state is restored.

        are_empty_folders  whether the folders contain no file
        remembered         the pack that a person chose for these paths earlier, or None
        lacks_ages         whether files may lack the patient's age
        """
        if not are_empty_folders or intent.watches_folders or self._playbook.intent != intent:
            self._do(self._playbook.handle_collected_facts(intent, remembered, lacks_ages or are_empty_folders))
            return
        self._do(self._playbook.drop_intent(replacement_paths=intent.paths))
        self.show_run_notes([reason("no_image_in", path=path) for path in intent.paths])
        self._restore()

    def _restore(self) -> None:
        """Return to the folders that were chosen before the latest choice, because that choice is not screened."""
        if self.state == "waiting":
            state, self.paths, self.past_run, self.progress = self._before
            self._enter(state)
            self._begin_next()

    def _screen(self, intent: ScreeningIntent, remembered: RememberedPack | None) -> None:
        models = self._models
        self._forget_notes()
        self._board.withdraw("question")
        self._board.withdraw_by_prefix(_failed(intent.paths))
        self.paths, self.manifest, self.run_models = intent.paths, models[0].manifest, models
        self.progress = self.run_id = self.past_run = None
        self.watches = intent.watches_folders
        self._remember(intent, remembered)
        self._enter("starting")
        if intent.watches_folders:
            paths, since_s = _listed(intent.paths), time.time()
            self._board.post(
                "watch",
                lambda t: t.text(
                    "Watching {folders} since {since}.",
                    folders=t.name_unless_hidden(paths),
                    since=date_and_time_text(t, since_s),
                ),
                action=NoticeAction(lambda t: t.text("Stop"), self.stop),
            )
        self.run_started.emit()
        point, ages_confirmed = self.packs.point_name, bool(intent.ages_confirmed)
        self._use(models)
        self._begun = self.background.run_with_services(
            lambda services: services.session.start(
                intent.paths,
                operating_point=point,
                ages_confirmed=ages_confirmed,
                watches_folders=intent.watches_folders,
            ),
            channel="run",
            failed=self._not_started,
        )

    def _remember(self, intent: ScreeningIntent, remembered: RememberedPack | None) -> None:
        """Store the packs of a folder for later runs over the folder, unless they are the site's default.

        remembered  the packs stored so far, or None
        """
        pack, point = intent.pack, self.packs.point_name or ""
        assert pack is not None
        known = (remembered.pack, remembered.operating_point) if remembered else self.packs.default_pack_and_point_names
        additional = tuple(one.name for one in intent.additional_packs)
        before = remembered.additional if remembered and remembered.pack == pack.name else ()
        if missing := [name for name in before if name not in additional]:
            self._board.post_reason(
                RUN_NOTICE_PREFIX + "packs_missing",
                reason("packs_missing", packs=", ".join(missing), pack=pack.name),
                level="warning",
            )
        if ((pack.name, point) != known or additional != before) and pack.listed_pack.trust != "legacy":
            self.background.run_with_services(
                lambda services: services.remembered_packs.remember(
                    intent.paths, pack.name, operating_point=point, additional=additional
                ),
                channel="whose",
            )

    def _warm_up(self) -> None:
        """Load the models on their devices before the first run.

        During a run nothing is done, because the run continues with its own models.
        """
        if self._models and not self.is_busy:
            self._use(self._models)

    def _use(self, models: tuple[Model, ...]) -> None:
        if self._used != models:
            self._used = models
            self._ask(lambda services: services.session.use_packs(*models))

    def _ask(self, work: Callable[[Services], object]) -> None:
        self.background.run_with_services(work, channel="run")

    def _call_run(self, act: Callable[[Batch], object]) -> None:
        """Call a method of the active run in the background. Several calls are carried out in order.

        act  function that calls the method
        """
        if begun := self._begun:
            self.background.run(lambda: act(begun.result()), channel="run")

    def _not_started(self, error: FieldrayError) -> None:
        self._enter("failed")
        self._post_failure(error.reason)
        self._after_run()

    def _post_failure(self, why: Reason) -> None:
        """Show a notice that a run failed.

        The notice stays until the paths of the run are screened again, so that a later run cannot hide the failure.
        """
        paths = _listed(self.paths)
        self._board.post(
            _failed(self.paths) + why.code,
            lambda t: t.text(
                "The run of {paths} failed. {reason}", paths=t.name_unless_hidden(paths), reason=t.reason(why)
            ),
            level="error",
        )

    def _name_waiting(self) -> None:
        """Replace the waiting folders by notices that they were not screened."""
        for watches, paths in self._next.items():
            self._name_unscreened(paths, watches=watches)
            self._next[watches] = ()
        self._say_next()

    def _name_unscreened(self, paths: tuple[Path, ...], *, watches: bool) -> None:
        """Show a notice that the chosen folders were not screened, with a button to screen them."""
        if paths:
            self._board.post(
                _unscreened(paths),
                lambda t: t.text("Chosen, but not screened: {paths}", paths=t.name_unless_hidden(_listed(paths))),
                level="warning",
                action=NoticeAction(lambda t: t.text("Screen now"), lambda: self.screen_paths(paths, watches=watches)),
            )

    def _after_run(self) -> None:
        self._warm_up()
        self.became_idle.emit()
        self._begin_next()

    def _begin_next(self) -> None:
        for watches, paths in self._next.items():
            if paths:
                self._next[watches] = ()
                self._say_next()
                self.screen_paths(paths, watches=watches)
                return

    def _say_next(self) -> None:
        if count := sum(map(len, self._next.values())):
            self._board.post_reason("next", reason("next_run", count=count), level="info")
        else:
            self._board.withdraw("next")


def notice_level(note: Reason) -> NoticeLevel:
    """Return the severity of a note on a run or on one of its packs: "info" or "warning"."""
    return "warning" if note.code in _GRAVE else "info"


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _failed(paths: Sequence[Path]) -> str:
    """Return the beginning of the keys of notices that a run over these paths failed."""
    return f"failed {_listed(paths)} "


def _unscreened(paths: Sequence[Path]) -> str:
    """Return the key of the notice that these paths were not screened."""
    return f"unscreened {_listed(paths)}"
