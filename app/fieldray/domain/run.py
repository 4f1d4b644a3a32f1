"""The events of a run for the front ends, the request of a run, and the stored results of a run.

Events are frozen, and sent through one callable `publish(event)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from fieldray.domain.finding import Category, Outcome, ResultKind, can_be_overruled, can_be_turned, leading_position
from fieldray.domain.image import UPRIGHT, ImageRef, Turn
from fieldray.domain.model import BackendName, OperatingPoint, Trust
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason

BackendState = Literal["stopped", "starting", "ready", "unavailable"]
DeviceState = Literal["absent", "uninitialised", "ready"]
RunState = Literal["running", "paused", "finished", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChanged:
    """A backend entered a state; `reason` says why it is unavailable.

    `in_use` tells that results now come from this backend.
    """

    backend: BackendName
    state: BackendState
    in_use: bool
    detail: str = ""
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChanged:
    """The current state of a device that can be plugged in.

    backend          backend that runs models on the device
    state            "uninitialised": plugged in, its firmware is loaded when it is first used
    port_mbit        speed of its port, 480 (USB 2) or 5000 (USB 3) and more; None if the system does not say
    reason           reason why the device cannot be used, or None
    notes            advice for a device that can be used
    """

    backend: BackendName
    state: DeviceState
    port_mbit: int | None = None
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanged:
    """A batch started, paused, resumed or ended (`reason` if it failed); `notes` are for the user.

    pack_notes  notes on the answers of each pack, by its position; empty until the run has ended
    """

    run_id: int
    state: RunState
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()
    pack_notes: tuple[tuple[Reason, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDone:
    """One image has its answers, and they are committed to the store.

    Either all packs answered, or one pack's answer was replaced.
    """

    image: StoredImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTakenOver:
    """The answers of earlier runs were taken over for many images at once, recognised by a sample, and committed.

    Replaces one `ImageDone` for each image if the caller did not ask for those.

    row_ids  rows of the images
    kinds    kinds of the answers, by the position of the pack
    """

    run_id: int
    row_ids: tuple[int, ...]
    kinds: tuple[tuple[ResultKind, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a batch. `total` grows while folders are still being searched (`total_is_final` False)."""

    done: int
    total: int
    total_is_final: bool
    images_per_s: float
    remaining_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Frames per second of the current run's inference, and the load of the computer.

    The rate counts from the third image of a backend on; None before. cpu_percent is of the whole machine, memory_mb of
    all processes of this program together.
    """

    fps_now: float | None = None
    fps_min: float | None = None
    fps_avg: float | None = None
    fps_max: float | None = None
    first_ms: float | None = None
    second_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None


# The packs that lie on each removable drive, by where it is mounted.
Drives = Mapping[Path, tuple[Path, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivesChanged:
    """The removable drives that are connected now."""

    drives: Drives = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRepaired:
    """The results database was damaged; `reason` says where the damaged file is now and which results were
    recovered.
    """

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUpdating:
    """The results database of an earlier version is being updated to this version; `reason` says so."""

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnwritable:
    """Results cannot be stored; `reason` says why. Sent before the first image is screened."""

    reason: Reason


Event = (
    BackendChanged
    | DeviceChanged
    | RunChanged
    | ImageDone
    | ResultsTakenOver
    | Progress
    | Speed
    | DrivesChanged
    | StoreRepaired
    | StoreUpdating
    | StoreUnwritable
)
Publish = Callable[[Event], None]
Say = Callable[[str], None]  # a line
Count = Callable[[int, int], None]  # how many of how many are done


# ---- what is asked for, and what is kept

VerdictChoice = Literal["agree", "disagree", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictValue:
    """A value that a reader's verdict can have. Its texts are translated by a `translation.Translator`.

    key       keyboard key of the verdict in the window
    confirms  whether it confirms the program's answer or contradicts it, for an audit, filters and the monthly report;
              None where it does neither
    title     the verdict's name on its button
    command   the name of the key's command
    column    the heading of a count of such verdicts
    """

    choice: VerdictChoice
    key: str
    confirms: bool | None
    title: Callable[[Any], str]
    command: Callable[[Any], str]
    column: Callable[[Any], str]


_VERDICT_VALUES: Final = (
    VerdictValue(
        choice="agree",
        key="Ctrl+1",
        confirms=True,
        title=lambda translator: translator.text("Agree"),
        command=lambda translator: translator.text("My verdict: agree"),
        column=lambda translator: translator.text("Reader agrees"),
    ),
    VerdictValue(
        choice="disagree",
        key="Ctrl+2",
        confirms=False,
        title=lambda translator: translator.text("Disagree"),
        command=lambda translator: translator.text("My verdict: disagree"),
        column=lambda translator: translator.text("Reader disagrees"),
    ),
    VerdictValue(
        choice="unsure",
        key="Ctrl+3",
        confirms=None,
        title=lambda translator: translator.text("Unsure"),
        command=lambda translator: translator.text("My verdict: unsure"),
        column=lambda translator: translator.text("Reader unsure"),
    ),
)
# All values, in the order in which a person sees them.
VERDICT_VALUES: Final[Mapping[VerdictChoice, VerdictValue]] = {value.choice: value for value in _VERDICT_VALUES}
CONTRADICTING: Final = tuple(value.choice for value in _VERDICT_VALUES if value.confirms is False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a person overrules of the pack's refusals. Each result that it changes has a note.

    overrules  screen images whose refusal the person can see to be wrong (`finding.can_be_overruled`)
    turns      turn images that lie on their side, upside down or inverted
    """

    overrules: bool = False
    turns: bool = False

    def will_turn(self, why: Reason, turn: Turn) -> bool:
        """Return whether an image refused for this reason is turned and screened again. `turn` is its turn so far."""
        return self.turns and can_be_turned(why) and turn == UPRIGHT

    def will_overrule(self, why: Reason, turn: Turn) -> bool:
        """Return whether an image refused for this reason is screened all the same. Turning has precedence."""
        return self.overrules and can_be_overruled(why) and not self.will_turn(why, turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpec:
    """A pack of a run. Two with equal `model_sha256` and `settings_hash` give equal answers for an image.

    settings_hash     SHA-256 of everything besides the model file that decides a result (see domain/assessment)
    operating_points  those in force, at most one for each label
    lungs_pack        the lung-field pack that ran before it (see `Model.lungs_pack`), "" for none
    """

    pack_name: str
    trust: Trust
    fingerprint: str
    model_sha256: str
    settings_hash: str
    operating_points: tuple[OperatingPoint, ...] = ()
    lungs_pack: str = ""

    @property
    def work(self) -> tuple[str, str, str]:
        """The key of the pack's work: equal keys give equal answers."""
        return self.pack_name, self.model_sha256, self.settings_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The request of a run: one pass over images by one or more packs of equal rank.

    paths           absolute paths, as given
    packs           packs in the order of their answers
    ages_confirmed  whether a person said that patients without a stated age are of the ages the packs are for
    overrides       what the person overruled; None for a run of version 0.2.0, which did not store them
    """

    paths: tuple[str, ...]
    packs: tuple[PackSpec, ...]
    program_version: str = ""
    ages_confirmed: bool = False
    overrides: Overrides | None = None

    @property
    def work(self) -> tuple[object, ...]:
        """The key of the run's work: a run resumes another with an equal key. The order of paths does not matter."""
        return sorted(self.paths), [pack.work for pack in self.packs]


class PackOfRun(NamedTuple):
    """One pack of a run, named `12` for the first pack of run 12, or `12.2` for the second."""

    run_id: int
    position: int = 0

    @classmethod
    def named(cls, text: str) -> PackOfRun:
        """Parse a name such as `12` or `12.2`. Raises ValueError."""
        run_id, _, number = text.partition(".")
        if not (text.isascii() and run_id.isdigit() and (number or "1").isdigit() and int(number or "1")):
            raise ValueError(f"no pack of a run is called {text}")
        return cls(int(run_id), int(number or "1") - 1)

    def __str__(self) -> str:
        return f"{self.run_id}.{self.position + 1}" if self.position else str(self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in the store; times are seconds since 1970 (UTC), `ended_s` None while it is not over.

    state    "interrupted" if it did not end and no process works on it, for example after a power failure
    """

    run_id: int
    spec: RunSpec
    state: RunState | Literal["interrupted"]
    reason: Reason | None
    started_s: float
    ended_s: float | None


def pack_of_run(run: Run, position: int) -> PackSpec:
    """Return the pack at a position of a run. Raises UsageProblem (history_no_pack)."""
    if not 0 <= position < len(run.spec.packs):
        raise UsageProblem(reason("history_no_pack", run=run.run_id, pack=position + 1, packs=len(run.spec.packs)))
    return run.spec.packs[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The reader's judgement of a result, stored beside the program's result and never over it.

    A verdict belongs to the content, the model and the score that were judged, and to no other result.
    """

    choice: VerdictChoice
    note: str = ""

    def __post_init__(self) -> None:
        if self.choice not in VERDICT_VALUES:
            raise ValueError(f"a verdict is one of {', '.join(VERDICT_VALUES)}, not {self.choice}")

    @property
    def value(self) -> VerdictValue:
        """Return the entry of `VERDICT_VALUES` for the choice of this verdict."""
        return VERDICT_VALUES[self.choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededVerdict:
    """A verdict on content that a run no longer holds: its image now has other bytes, another score, or no result.

    image           the key of the image (`ImageRef.key`)
    content_sha256  SHA-256 of the bytes judged, empty if they could not be read
    score           the highest score, or None
    given_s         seconds since 1970 (UTC)
    """

    image: str
    content_sha256: str
    category: Category
    score: float | None
    verdict: Verdict
    given_s: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredAnswer:
    """The stored answer of one pack of a run for an image.

    answer_id   row of the answer in the store, to which a verdict refers
    row_id      row of the image
    position    position of the pack in the run
    is_resumed  whether the answer was taken over from an earlier start of the program
    is_sampled  whether it was taken over by size, times and a part of the file's content, without reading all of it
    is_read     whether a person has read the image, with or without a verdict
    is_earlier  whether the run has an image of a later day of the same patient; known only when read in order
    """

    answer_id: int
    row_id: int
    run_id: int
    position: int = 0
    outcome: Outcome
    is_resumed: bool
    verdict: Verdict | None = None
    is_sampled: bool = False
    is_read: bool = False
    is_earlier: bool = False

    @property
    def identity(self) -> tuple[str, int]:
        """Return the identity of the image in all runs: hash of the bytes (else the name) and frame."""
        return (self.outcome.facts.content_sha256 or self.outcome.ref.key, self.outcome.ref.frame)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredImage:
    """An image of a run, as stored.

    answers  in the order of the packs: one for each pack; fewer only in a run of version 0.2.0 that was killed
    """

    row_id: int
    run_id: int
    answers: tuple[StoredAnswer, ...]

    @property
    def ref(self) -> ImageRef:
        """Return the reference to the image: its path and header."""
        return self.answers[0].outcome.ref

    @property
    def leading(self) -> StoredAnswer:
        """Return the most urgent answer, which orders the image; of equals, the first."""
        return self.answers[leading_position([answer.outcome for answer in self.answers])]

    def of_earlier_day(self) -> StoredImage:
        """Return a copy marked as an image of an earlier day than its patient's newest image in the run."""
        return replace(self, answers=tuple(replace(answer, is_earlier=True) for answer in self.answers))

    def answer_of_model(self, model_sha256: str) -> StoredAnswer:
        """Return the answer of this model, or else the first answer."""
        of_model = (one for one in self.answers if getattr(one.outcome, "model_sha256", "") == model_sha256)
        return next(of_model, self.answers[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """The way in which results of earlier runs are taken over.

    verifies      whether a file is recognised only by its whole content, not by a sample
    reports_each  whether each result is reported, or only the number of each kind (`ResultsTakenOver`)
    """

    verifies: bool = False
    reports_each: bool = True


def site_of(path: str) -> str:
    """Return the folder that identifies the origin of images: a path without the dates and numbers at its end."""
    parts = re.split(r"([\\/]+)", path.rstrip("\\/"))
    while len(parts) > 1 and not any(map(str.isalpha, parts[-1])):
        del parts[-2:]
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSample:
    """The part of a stored result that drift is measured by.

    scores           calibrated, by label
    grey             median of the thumbnail, 0 (black) to 255; None if the image was not read
    evidence_inside  share of the evidence that lies inside the lungs, 0..1; None without a lung-field pack
    """

    category: Category
    scores: Mapping[str, float]
    grey: float | None
    evidence_inside: float | None = None
