"""A state machine for the verdicts on images and the saving of verdicts, without threads, Qt or disk.

The state machine turns events into commands. Only this module stores the verdict on each image, the judged result, and
the state: being saved, saved, or not saved with the reason. Panel, list and the question before closing read the state
from this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from fieldray.domain.finding import Outcome
from fieldray.domain.run import Verdict, VerdictChoice
from fieldray.reasons import Reason
from fieldray.store.rows import result_hash

SavingState = Literal["saved", "saving", "not_saved"]


@dataclass(frozen=True, slots=True)
class VerdictSubject:
    """The result that a verdict judges.

    result_id    row id of the result in the database, which is never reused
    outcome      the outcome that the person saw
    result_hash  hash of the judged facts of the outcome (`store.rows.result_hash`)
    """

    result_id: int
    outcome: Outcome = field(compare=False)
    result_hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result_hash", result_hash(self.outcome))


@dataclass(frozen=True, slots=True)
class ReadVerdictCommand:
    """The command to read the stored verdict on a result, and then to call `Verdicts.handle_verdict_read` with it."""

    judged: VerdictSubject


@dataclass(frozen=True, slots=True)
class WriteVerdictCommand:
    """The command to store a verdict in the database, unless another window has stored a verdict meanwhile.

    verdict               the verdict to store; None withdraws the stored verdict
    replaceable_verdicts  stored verdicts that may be overwritten; None in this set stands for "no verdict stored". If
                          any other verdict is stored, nothing is written

    Afterwards, call `Verdicts.handle_verdict_written` with the verdict that is stored now. After an error, call
    `Verdicts.handle_failed_write` with the reason.
    """

    judged: VerdictSubject
    verdict: Verdict | None
    replaceable_verdicts: frozenset[Verdict | None]


Commands = tuple[ReadVerdictCommand | WriteVerdictCommand, ...]


@dataclass(eq=False, slots=True)
class VerdictState:
    """The state of the verdict on one image.

    stored                the verdict in the database, as far as is known; None without a verdict
    chosen_verdict        the verdict that the person chose last; None without a verdict
    draft_note            the typed note that is not yet part of the verdict; None without such a note
    replaceable_verdicts  stored verdicts that may be overwritten without a question: each verdict that the person saw,
                          and each verdict of the person whose saving failed
    pending_write         the command with the verdict that is being saved, or None
    problem               the reason why the verdict was not saved, or None
    has_conflict          whether `stored` is another window's verdict, so that the person must choose before anything
                          is written
    """

    stored: Verdict | None
    chosen_verdict: Verdict | None = field(init=False)
    draft_note: str | None = None
    replaceable_verdicts: set[Verdict | None] = field(init=False)
    pending_write: WriteVerdictCommand | None = None
    problem: Reason | None = None
    has_conflict: bool = False

    def __post_init__(self) -> None:
        self.mark_saved(self.stored)

    def mark_saved(self, stored: Verdict | None) -> None:
        """Record that the verdict `stored` is in the database, and that nothing is left to save."""
        self.stored = self.chosen_verdict = stored
        self.replaceable_verdicts, self.problem, self.has_conflict = {stored}, None, False

    def accept_stored_verdict(self, stored: Verdict | None) -> None:
        """Take over the verdict that another window stored, and discard the note that was typed in this window."""
        self.mark_saved(stored)
        self.draft_note = None

    def mark_conflict(self, stored: Verdict | None) -> None:
        """Record that the person must choose a verdict, because another window stored a different verdict."""
        self.stored, self.problem, self.has_conflict = stored, None, True

    @property
    def saving_state(self) -> SavingState | None:
        """The state of saving the verdict: "saving", "saved" or "not_saved"; None without a verdict."""
        if self.pending_write is not None:
            return "saving"
        if self.problem is not None or self.has_conflict:
            return "not_saved"
        return "saved" if self.chosen_verdict is not None else None

    @property
    def note(self) -> str:
        """The text for the field of the note: the typed note, or the note of the verdict."""
        return (
            self.draft_note if self.draft_note is not None else self.chosen_verdict.note if self.chosen_verdict else ""
        )

    @property
    def has_unsaved_note(self) -> bool:
        """Whether the typed note differs from the note of the verdict, and is therefore not saved.

        False without a verdict.
        """
        return self.chosen_verdict is not None and self.note.strip() != self.chosen_verdict.note

    @property
    def must_stay_in_memory(self) -> bool:
        """Whether this object must be kept in memory, because the database lacks its verdict or its note."""
        return self.saving_state in ("saving", "not_saved") or bool(self.draft_note)


class Verdicts:
    """The state machine of the verdicts on all images. Methods handle events and return commands.

    Choices and notes apply to the current image until another image is opened.
    """

    def __init__(self) -> None:
        self._given: dict[VerdictSubject, VerdictState] = {}
        self._last: tuple[VerdictSubject, Verdict | None, Verdict | None] | None = (
            None  # image, verdict before and verdict after the last change
        )
        self.open_image: VerdictSubject | None = None
        self.is_repeated = False  # whether the last choice was already the verdict

    # ---- state for display

    def state_for(self, judged: VerdictSubject | None) -> VerdictState:
        """Return the state of the verdict on an image.

        The state is empty for None and for an image without a verdict.
        """
        return (self._given.get(judged) if judged else None) or VerdictState(None)

    def saving_state_of(self, result_id: int, outcome: Outcome, stored: Verdict | None) -> SavingState | None:
        """Return the state of saving the verdict on a result in the work list.

        result_id  row id of the result
        outcome    the outcome in the row
        stored     the verdict that was read with the row
        """
        for judged, given in self._given.items():  # few, so most rows are compared by result_id only
            if judged.result_id == result_id and judged == VerdictSubject(result_id, outcome):
                return given.saving_state
        return "saved" if stored is not None else None

    def unsaved_verdicts(self) -> Iterator[tuple[VerdictSubject, VerdictState]]:
        """Yield the verdicts that would be lost if the program ended now: those being saved, and those not saved."""
        return (
            (judged, given) for judged, given in self._given.items() if given.saving_state in ("saving", "not_saved")
        )

    # ---- commands of a person

    def set_current_image(self, judged: VerdictSubject | None, stored: Verdict | None = None) -> Commands:
        """Make an image the current image. The typed note on the previous image is first added to the previous verdict.

        judged  the result that verdicts judge from now on; None if no image is open, or if no verdict is possible
        stored  the verdict that was read with the image, or None
        """
        commands = self.add_note_to_verdict()
        self.open_image, self.is_repeated = judged, False
        self._given = {key: given for key, given in self._given.items() if given.must_stay_in_memory or key == judged}
        if judged is None:
            return commands
        self._given.setdefault(judged, VerdictState(stored))
        return (*commands, ReadVerdictCommand(judged))

    def discard_unsaved(self) -> None:
        """Discard all verdicts that are not saved, because a person decided so."""
        self._given, self._last, self.open_image = {}, None, None

    def set_draft_note(self, note: str) -> None:
        """Keep in memory the unfinished note that a person is typing on the current image.

        The note is ignored for an image without a verdict.
        """
        given = self.state_for(self.open_image)
        if given.chosen_verdict is not None:
            given.draft_note = note

    def add_note_to_verdict(self) -> Commands:
        """Add the typed note to the verdict on the current image, if the image has a verdict."""
        given = self.state_for(self.open_image)
        if given.chosen_verdict is None or given.draft_note is None:
            return ()
        return self._want(Verdict(choice=given.chosen_verdict.choice, note=given.draft_note.strip()))

    def discard_note(self) -> None:
        """Discard the note that a person is typing on the current image, and restore the saved note."""
        self.state_for(self.open_image).draft_note = None

    def give_verdict(self, choice: VerdictChoice) -> Commands:
        """Give a verdict on the current image, with the typed note.

        If the image already has this verdict, nothing is written, and `is_repeated` becomes True.
        """
        given = self.state_for(self.open_image)
        verdict = Verdict(choice=choice, note=given.note.strip())
        self.is_repeated = verdict == given.chosen_verdict and given.saving_state in ("saved", "saving")
        return () if self.is_repeated else self._want(verdict)

    def withdraw_verdict(self) -> Commands:
        """Withdraw the verdict on the current image together with its note; `undo` restores verdict and note."""
        given = self.state_for(self.open_image)
        if given.chosen_verdict is None:
            return ()
        given.chosen_verdict, given.draft_note = (
            Verdict(choice=given.chosen_verdict.choice, note=given.note.strip()),
            None,
        )
        return self._want(None)

    @property
    def last_changed_image(self) -> VerdictSubject | None:
        """The image whose verdict was changed last; None if `undo` cannot undo the change."""
        if self._last is None:
            return None
        judged, _, after = self._last
        given = self._given.get(judged)  # None for an image whose verdict is saved
        return judged if given is None or (given.chosen_verdict == after and not given.has_conflict) else None

    def forget_last_change(self) -> None:
        """Forget the last change of a verdict, so that it cannot be undone.

        Called when the window no longer shows the run of the changed verdict.
        """
        self._last = None

    def undo(self) -> Commands:
        """Undo the last change of a verdict: save the verdict that the image had before the change.

        Earlier changes cannot be undone.
        """
        judged = self.last_changed_image
        if judged is None or self._last is None:
            return ()
        _, before, after = self._last
        self._given.setdefault(judged, VerdictState(after))
        commands = self._want(before, on=judged)
        self._last = None
        return commands

    def keep_own_verdict(self, judged: VerdictSubject) -> Commands:
        """Try again to save an unsaved verdict. If another window stored a verdict on the image, overwrite that one."""
        given = self.state_for(judged)
        if given.saving_state != "not_saved":
            return ()
        given.replaceable_verdicts.add(given.stored)
        return self._send(judged, given)

    def keep_stored_verdict(self, judged: VerdictSubject) -> Commands:
        """Discard the unsaved verdict of this window. The verdict in the database then applies.

        After a failed write, the verdict as last read is written again, because the failed write may have changed the
        database. Otherwise the verdict is read again, because another window may have changed the database.
        """
        given = self.state_for(judged)
        if given.saving_state != "not_saved":
            return ()
        given.chosen_verdict, given.draft_note = given.stored, None
        return self._save(judged, given) or (ReadVerdictCommand(judged),)

    # ---- the database

    def handle_verdict_read(self, judged: VerdictSubject, stored: Verdict | None) -> Commands:
        """Handle the result of `ReadVerdictCommand`: the verdict that is stored.

        The result is ignored while a verdict on the image is being saved.
        """
        given = self._given.get(judged)
        if given is None or given.pending_write is not None:
            return ()
        if stored == given.chosen_verdict:
            given.mark_saved(stored)
        elif stored in given.replaceable_verdicts:
            given.stored = stored
            # A verdict whose write seemed to fail is stored. So the wanted verdict is written again.
            return () if given.saving_state == "not_saved" else self._save(judged, given)
        elif given.saving_state == "not_saved" or given.has_unsaved_note:
            given.mark_conflict(stored)
        else:
            given.accept_stored_verdict(stored)
        return ()

    def handle_verdict_written(self, judged: VerdictSubject, stored: Verdict | None) -> Commands:
        """Handle the result of `WriteVerdictCommand`: the verdict that is now stored."""
        given = self._given.get(judged)
        if given is None or given.pending_write is None:
            return ()
        sent, given.pending_write = given.pending_write, None
        is_withdrawn = sent.verdict == given.stored == given.chosen_verdict
        if stored == sent.verdict:
            given.stored, given.replaceable_verdicts = stored, {stored}
            return self._save(judged, given)
        if stored == given.chosen_verdict:  # both verdicts are equal
            given.mark_saved(stored)
        elif is_withdrawn:  # the person's verdict is withdrawn, so no conflict
            given.accept_stored_verdict(stored)
        else:
            given.mark_conflict(stored)
        return ()

    def handle_failed_write(self, judged: VerdictSubject, problem: Reason) -> Commands:
        """Handle a failure of `WriteVerdictCommand`.

        If the person has chosen another verdict since, the newer choice is written.
        """
        given = self._given.get(judged)
        if given is None or given.pending_write is None:
            return ()
        sent, given.pending_write = given.pending_write, None
        given.replaceable_verdicts.add(sent.verdict)
        if given.chosen_verdict != sent.verdict:
            return self._send(judged, given)
        if given.replaceable_verdicts == {given.stored}:
            return ()
        given.problem = problem
        # In spite of the error, the verdict may have been stored.
        return (ReadVerdictCommand(judged),) if given.chosen_verdict == given.stored else ()

    # ---- inside

    def _want(self, verdict: Verdict | None, *, on: VerdictSubject | None = None) -> Commands:
        judged = on or self.open_image
        if judged is None:
            return ()
        given = self._given[judged]
        self.is_repeated, self._last = False, (judged, given.chosen_verdict, verdict)
        given.chosen_verdict, given.draft_note = verdict, None
        return self._save(judged, given)

    def _save(self, judged: VerdictSubject, given: VerdictState) -> Commands:
        """Write the chosen verdict.

        Nothing is written if the verdict is stored, being written, or if a person must choose first.
        """
        if given.pending_write is not None:
            return ()
        if given.chosen_verdict == given.stored and (
            given.has_conflict or given.replaceable_verdicts == {given.stored}
        ):
            given.mark_saved(given.stored)
            return ()
        return () if given.has_conflict else self._send(judged, given)

    def _send(self, judged: VerdictSubject, given: VerdictState) -> Commands:
        given.problem, given.has_conflict = None, False
        given.pending_write = WriteVerdictCommand(judged, given.chosen_verdict, frozenset(given.replaceable_verdicts))
        return (given.pending_write,)
