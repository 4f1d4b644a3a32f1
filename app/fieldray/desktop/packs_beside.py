"""Further packs that screen in one pass with the one in use: ticked by a person, told if left out. No widget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import Background
from fieldray.desktop.notices import NoticeBoard
from fieldray.domain.model import Model
from fieldray.domain.purpose import shared_ages
from fieldray.packs.naming import PackCandidate
from fieldray.reasons import Reason, reason


class PacksBeside(QObject):
    """In the order in which they were ticked: those that were `taken`, and those that are `loading`."""

    changed = Signal()

    def __init__(self, background: Background, board: NoticeBoard) -> None:
        super().__init__()
        self._background, self._board = background, board
        self._used: Model | None = None
        self._here: Collection[Path] | None = None
        self.taken: tuple[tuple[PackCandidate, Model], ...] = ()
        self.loading: tuple[PackCandidate, ...] = ()

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(model for _, model in self.taken)

    @property
    def names(self) -> tuple[str, ...]:
        """Under which a folder remembers them."""
        return tuple(entry.lasting_name for entry, _ in self.taken)

    def has(self, candidate: PackCandidate) -> bool:
        """Whether it is ticked."""
        return candidate.folder in {entry.folder for entry in (*self.loading, *(entry for entry, _ in self.taken))}

    def tick(self, candidate: PackCandidate, *, is_on: bool) -> None:
        """Screen with this pack too from the next run on, or not any more. It must need no question."""
        self.loading = tuple(entry for entry in self.loading if entry.folder != candidate.folder)
        if is_on:
            self.loading = (*self.loading, candidate)
            self._board.withdraw("beside")
            self._background.ask(
                lambda services: services.library.load(candidate.folder),
                channel="packs",
                done=lambda model: self._loaded(candidate, model),
                failed=lambda error: self._failed(candidate, error.reason),
            )
        self._take(entry for entry in self.taken if entry[0].folder != candidate.folder)

    def fit(self, used: Model | None, here: Collection[Path] | None) -> None:
        """Another pack is in use, or packs came or went; `here`: their folders, None while a run has them in memory."""
        self._used, self._here = used, here
        if self.taken:
            self._take(self.taken)

    def _loaded(self, candidate: PackCandidate, model: Model) -> None:
        if candidate in self.loading and not is_of(model, candidate):
            self._failed(candidate, reason("pack_another_there", pack=candidate.pack_name))
        elif candidate in self.loading:  # else nobody wants it any more
            self.loading = tuple(entry for entry in self.loading if entry is not candidate)
            self._take((*self.taken, (candidate, model)))

    def _failed(self, candidate: PackCandidate, why: Reason) -> None:
        self.loading = tuple(entry for entry in self.loading if entry is not candidate)
        name = candidate.pack_name
        self._board.post(
            "beside",
            lambda t: t.text("{pack} does not screen in this pass. {reason}", pack=name, reason=t.reason(why)),
            level="warning",
        )
        self.changed.emit()

    def _take(self, entries: Iterable[tuple[PackCandidate, Model]]) -> None:
        """These, but for the pack in use, what went with a drive, and what is for patients of other ages."""
        before, self.taken = [self._used] if self._used else [], ()
        for candidate, model in entries:
            ages = shared_ages(one.manifest.accepted.ages_years for one in (*before, model))
            if self._here is not None and candidate.folder not in self._here:
                self._say("beside_gone", model)
            elif ages is not None and ages[0] > ages[1]:
                self._say("beside_apart", model, before)
            elif not any(is_of(one, candidate) for one in before):
                before.append(model)
                self.taken = (*self.taken, (candidate, model))
        self.changed.emit()

    def _say(self, code: str, model: Model, others: Sequence[Model] = ()) -> None:
        names = ", ".join(one.pack_name for one in others)
        self._board.post_reason("beside", reason(code, pack=model.pack_name, others=names), level="warning")


def is_of(model: Model, candidate: PackCandidate) -> bool:
    """Whether a pack that was loaded is the one that was listed: a drive may hold another one by now."""
    listed = candidate.pack_id, candidate.version, candidate.fingerprint
    return (model.manifest.pack_id, model.manifest.version, model.fingerprint) == listed
