"""The state of verdicts on images and of their saving: a state machine that turns events into
commands, without threads, Qt or disk.

Only this module knows the verdict on each image, the result it judges, and its state: being saved, saved, or not saved
with the reason. Panel, list and the question before closing read that state and store none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from fieldray.domain.finding import Outcome
from fieldray.domain.run import Verdict, VerdictChoice
from fieldray.reasons import Reason
from fieldray.store.rows import result_hash

State = Literal["saved", "saving", "not_saved"]


@dataclass(frozen=True, slots=True)
class VerdictSubject:
    """The subject of a verdict: a stored result, whose number is never reused, and the outcome in it."""

    answer_id: int
    outcome: Outcome = field(compare=False)
    result: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", result_hash(self.outcome))


@dataclass(frozen=True, slots=True)
class ReadVerdict:
    """Command: read the stored verdict, then call `found` with it."""

    judged: VerdictSubject


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """Command: replace one of the verdicts `over` by `verdict`.

    Then `written` must be called with the verdict that is stored now, or `failed` with the reason.
    """

    judged: VerdictSubject
    verdict: Verdict | None
    over: frozenset[Verdict | None]


Commands = tuple[ReadVerdict | WriteVerdict, ...]


@dataclass(eq=False, slots=True)
class VerdictState:
    """The state of the verdict on one image.

    stored   the verdict in the store, as far as is known
    wanted   the person's last choice
    draft    the note while it is typed, else None
    known    verdicts that may be replaced: those the person saw, and the person's own refused ones, which may be in the
             log
    sent     the verdict being saved
    problem  why the verdict was not saved
    asks     whether another window's verdict is `stored`: nothing is written before a person has chosen
    """

    stored: Verdict | None
    wanted: Verdict | None = field(init=False)
    draft: str | None = None
    known: set[Verdict | None] = field(init=False)
    sent: WriteVerdict | None = None
    problem: Reason | None = None
    asks: bool = False

    def __post_init__(self) -> None:
        self.settle(self.stored)

    def settle(self, stored: Verdict | None) -> None:
        """Record that this verdict is stored and that nothing remains to be saved."""
        self.stored = self.wanted = stored
        self.known, self.problem, self.asks = {stored}, None, False

    def show(self, stored: Verdict | None) -> None:
        """Show another window's stored verdict and drop the draft, whose note must not get onto it."""
        self.settle(stored)
        self.draft = None

    def ask(self, stored: Verdict | None) -> None:
        """Ask the person which verdict to keep, because another window stored a different one."""
        self.stored, self.problem, self.asks = stored, None, True

    @property
    def state(self) -> State | None:
        """Return the state for display; None without a verdict."""
        if self.sent is not None:
            return "saving"
        if self.problem is not None or self.asks:
            return "not_saved"
        return "saved" if self.wanted is not None else None

    @property
    def note(self) -> str:
        """The note as shown in the field."""
        return self.draft if self.draft is not None else self.wanted.note if self.wanted else ""

    @property
    def is_typing(self) -> bool:
        """Whether the note in the field differs from the note of the verdict. False without a verdict."""
        return self.wanted is not None and self.note.strip() != self.wanted.note

    @property
    def is_needed(self) -> bool:
        """Whether this state holds something that the store does not."""
        return self.state in ("saving", "not_saved") or bool(self.draft)


class Verdicts:
    """The verdicts on all images, and the current image.

    Choices and notes apply to the current image until another is opened.
    """

    def __init__(self) -> None:
        self._given: dict[VerdictSubject, VerdictState] = {}
        self._last: tuple[VerdictSubject, Verdict | None, Verdict | None] | None = (
            None  # before and after the last change
        )
        self.open_image: VerdictSubject | None = None
        self.is_repeated = False  # the verdict on the open image was given once more, and is kept as it was

    # ---- what is shown

    def of(self, judged: VerdictSubject | None) -> VerdictState:
        """Return the state of the verdict on an image."""
        return (self._given.get(judged) if judged else None) or VerdictState(None)

    def state_of(self, answer_id: int, outcome: Outcome, stored: Verdict | None) -> State | None:
        """Return the state of a row's verdict; `stored` is the verdict that was read with the row."""
        for judged, given in self._given.items():  # few: most rows are painted without working out what they hold
            if judged.answer_id == answer_id and judged == VerdictSubject(answer_id, outcome):
                return given.state
        return "saved" if stored is not None else None

    def unsaved(self) -> Iterator[tuple[VerdictSubject, VerdictState]]:
        """Yield the verdicts that would be lost now: those being saved, and unsaved ones."""
        return ((judged, given) for judged, given in self._given.items() if given.state in ("saving", "not_saved"))

    # ---- a person

    def open(self, judged: VerdictSubject | None, stored: Verdict | None = None) -> Commands:
        """Open another image, or none; `stored` is the verdict that was read with the image."""
        commands = self.commit()
        self.open_image, self.is_repeated = judged, False
        self._given = {key: given for key, given in self._given.items() if given.is_needed or key == judged}
        if judged is None:
            return commands
        self._given.setdefault(judged, VerdictState(stored))
        return (*commands, ReadVerdict(judged))

    def discard_unsaved(self) -> None:
        """Discard unsaved verdicts, as the person has decided."""
        self._given, self._last, self.open_image = {}, None, None

    def type(self, note: str) -> None:
        """Record the note on the current image while it is typed; ignored without a verdict."""
        given = self.of(self.open_image)
        if given.wanted is not None:
            given.draft = note

    def commit(self) -> Commands:
        """Add the typed note to the verdict on the current image, if there is one."""
        given = self.of(self.open_image)
        if given.wanted is None or given.draft is None:
            return ()
        return self._want(Verdict(choice=given.wanted.choice, note=given.draft.strip()))

    def discard_note(self) -> None:
        """Discard the note that is being typed on the current image, and restore the saved note."""
        self.of(self.open_image).draft = None

    def choose(self, choice: VerdictChoice) -> Commands:
        """Give this verdict on the current image, with the typed note.

        A verdict that is saved or being saved already is kept: `is_repeated` says so, and nothing is written.
        """
        given = self.of(self.open_image)
        verdict = Verdict(choice=choice, note=given.note.strip())
        self.is_repeated = verdict == given.wanted and given.state in ("saved", "saving")
        return () if self.is_repeated else self._want(verdict)

    def withdraw(self) -> Commands:
        """Withdraw the verdict on the current image together with its note; `take_back` restores both."""
        given = self.of(self.open_image)
        if given.wanted is None:
            return ()
        given.wanted, given.draft = Verdict(choice=given.wanted.choice, note=given.note.strip()), None
        return self._want(None)

    @property
    def last_changed(self) -> VerdictSubject | None:
        """The image whose verdict was given, changed or withdrawn last, if `take_back` can undo that change."""
        if self._last is None:
            return None
        judged, _, after = self._last
        given = self._given.get(judged)  # an image without an entry is not open, and all that was given on it is saved
        return judged if given is None or (given.wanted == after and not given.asks) else None

    def forget_last(self) -> None:
        """Forget the last change, because another run is visible: undo does not reach behind that."""
        self._last = None

    def take_back(self) -> Commands:
        """Undo the last change of a verdict: the previous verdict is wanted again.

        Only the last change can be undone.
        """
        judged = self.last_changed
        if judged is None or self._last is None:
            return ()
        _, before, after = self._last
        self._given.setdefault(judged, VerdictState(after))
        commands = self._want(before, on=judged)
        self._last = None
        return commands

    def keep_own_verdict(self, judged: VerdictSubject) -> Commands:
        """Save an unsaved verdict: try again, or replace another window's verdict."""
        given = self.of(judged)
        if given.state != "not_saved":
            return ()
        given.known.add(given.stored)
        return self._send(judged, given)

    def keep_stored_verdict(self, judged: VerdictSubject) -> Commands:
        """Discard an unsaved verdict. The stored verdict applies, even if another window stored it.

        If nothing is to be written, the store is read again: another window may have changed its verdict meanwhile.
        """
        given = self.of(judged)
        if given.state != "not_saved":
            return ()
        given.wanted, given.draft = given.stored, None
        return self._save(judged, given) or (ReadVerdict(judged),)

    # ---- the store

    def found(self, judged: VerdictSubject, stored: Verdict | None) -> Commands:
        """Handle the stored verdict that was read; ignored while another one is being saved."""
        given = self._given.get(judged)
        if given is None or given.sent is not None:
            return ()
        if stored == given.wanted:
            given.settle(stored)
        elif stored in given.known:
            given.stored = stored
            return () if given.state == "not_saved" else self._save(judged, given)  # what was refused lies there
        elif given.state == "not_saved" or given.is_typing:
            given.ask(stored)
        else:
            given.show(stored)
        return ()

    def written(self, judged: VerdictSubject, stored: Verdict | None) -> Commands:
        """Handle the answer to a write: the verdict that is now stored."""
        given = self._given.get(judged)
        if given is None or given.sent is None:
            return ()
        sent, given.sent = given.sent, None
        is_withdrawn = sent.verdict == given.stored == given.wanted
        if stored == sent.verdict:
            given.stored, given.known = stored, {stored}
            return self._save(judged, given)
        if stored == given.wanted:  # both say the same
            given.settle(stored)
        elif is_withdrawn:  # nothing of the person's own is left to be asked about
            given.show(stored)
        else:
            given.ask(stored)
        return ()

    def failed(self, judged: VerdictSubject, problem: Reason) -> Commands:
        """Handle the failure of a write; a newer verdict is tried too."""
        given = self._given.get(judged)
        if given is None or given.sent is None:
            return ()
        sent, given.sent = given.sent, None
        given.known.add(sent.verdict)
        if given.wanted != sent.verdict:
            return self._send(judged, given)
        if given.known == {given.stored}:
            return ()
        given.problem = problem
        # One that was refused may lie there, in the place of what is wanted.
        return (ReadVerdict(judged),) if given.wanted == given.stored else ()

    # ---- inside

    def _want(self, verdict: Verdict | None, *, on: VerdictSubject | None = None) -> Commands:
        judged = on or self.open_image
        if judged is None:
            return ()
        given = self._given[judged]
        self.is_repeated, self._last = False, (judged, given.wanted, verdict)
        given.wanted, given.draft = verdict, None
        return self._save(judged, given)

    def _save(self, judged: VerdictSubject, given: VerdictState) -> Commands:
        """Write the wanted verdict, unless it is stored, another write is running, or a person is asked."""
        if given.sent is not None:
            return ()
        if given.wanted == given.stored and (given.asks or given.known == {given.stored}):
            given.settle(given.stored)
            return ()
        return () if given.asks else self._send(judged, given)

    def _send(self, judged: VerdictSubject, given: VerdictState) -> Commands:
        given.problem, given.asks = None, False
        given.sent = WriteVerdict(judged, given.wanted, frozenset(given.known))
        return (given.sent,)
