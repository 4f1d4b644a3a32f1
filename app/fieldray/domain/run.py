"""The request of a run, the stored results of a run, and the events of a run for the user interfaces.

Events are frozen objects. Each event is sent by a call of one function, `publish(event)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from fieldray.domain.finding import (
    Category,
    Outcome,
    ResultCount,
    can_be_fixed_by_turning,
    can_refusal_be_overruled,
    most_urgent_pack_position,
)
from fieldray.domain.image import NO_CORRECTION, Correction, ImageRef
from fieldray.domain.model import BackendName, OperatingPoint, Trust
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason

BackendState = Literal["stopped", "starting", "ready", "unavailable"]
DeviceState = Literal["absent", "uninitialised", "ready"]
RunState = Literal["running", "paused", "finished", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChanged:
    """Event: the state of a backend changed.

    is_in_use  whether results now come from this backend
    detail     description of the backend, such as device and library version
    reason     the reason why the backend is unavailable, or None
    """

    backend: BackendName
    state: BackendState
    is_in_use: bool
    detail: str = ""
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChanged:
    """Event: the state of a device that can be plugged in, such as an Edge TPU.

    backend    name of the backend that runs models on the device
    state      state of the device. "uninitialised": plugged in, but the device's firmware is not yet loaded
    port_mbit  speed of the USB port in Mbit/s: 480 (USB 2) or 5000 (USB 3) and more; None if the system does not say
    reason     the reason why the device cannot be used, or None
    notes      advice for a device that can be used
    """

    backend: BackendName
    state: DeviceState
    port_mbit: int | None = None
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanged:
    """Event: a run started, paused, resumed or ended.

    reason      the reason if the run failed, or None
    notes       notes for the user
    pack_notes  notes on the results of each pack, by the pack's position; empty until the run has ended
    """

    run_id: int
    state: RunState
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()
    pack_notes: tuple[tuple[Reason, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDone:
    """Event: the results of one image were committed to the results database.

    The event is sent when all packs have given a result, or when one pack's result was replaced.
    """

    image: StoredImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTakenOver:
    """Event: results of an earlier run were taken over for many images at once, and committed to the database.

    The program recognised the images by a sample of their content. This event replaces one `ImageDone` for each image,
    unless the caller asked for single events.

    row_ids        rows of the images in the database
    result_counts  for each pack, in the order of the run: number of results by category and set of note codes
    """

    run_id: int
    row_ids: tuple[int, ...]
    result_counts: tuple[tuple[ResultCount, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Event: the progress of a run.

    total_is_final  whether `total` is final; `total` grows while folders are still being searched
    remaining_s     estimated time to the end in seconds, or None
    """

    done: int
    total: int
    total_is_final: bool
    images_per_s: float
    remaining_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Event: the speed of inference in the current run, and the load of the computer. A figure not yet known is None.

    fps_now, fps_min, fps_avg, fps_max
                                     images per second, counted from the third image of a backend on
    first_image_ms, second_image_ms  time of a backend's first and second image in milliseconds
    p50_ms, p95_ms                   median and 95th percentile of the time per image in milliseconds
    cpu_percent                      CPU load of the whole computer
    memory_mb                        memory of all processes of this program in MB
    """

    fps_now: float | None = None
    fps_min: float | None = None
    fps_avg: float | None = None
    fps_max: float | None = None
    first_image_ms: float | None = None
    second_image_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None


# The folders of the packs on each removable drive, by mount point.
PackFoldersByDrive = Mapping[Path, tuple[Path, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivesChanged:
    """Event: the removable drives that are connected now, each with the folders of its packs."""

    drives: PackFoldersByDrive = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRepaired:
    """Event: the results database was damaged and has been replaced.

    reason  message that names the damaged file's new path, and the recovered results
    """

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUpdating:
    """Event: the results database has the format of an earlier program version and is now being updated.

    reason  the message for the user
    """

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnwritable:
    """Event: results cannot be stored in the database. The event comes before the first image is screened."""

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
LineHandler = Callable[[str], None]  # receives a line of text
ProgressHandler = Callable[[int, int], None]  # receives (done, total)


# ---- requests and stored results

VerdictChoice = Literal["agree", "disagree", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictKind:
    """A kind of reader's verdict, such as Agree or Disagree. A `translation.Translator` translates the texts.

    shortcut         keyboard shortcut of the verdict in the window
    confirms_result  whether the verdict confirms the program's result (True) or contradicts the result (False); None
                     for neither
    title            the verdict's name on its button
    command_title    the name of the shortcut's command
    column_title     the heading of a count of such verdicts
    """

    choice: VerdictChoice
    shortcut: str
    confirms_result: bool | None
    title: Callable[[Any], str]
    command_title: Callable[[Any], str]
    column_title: Callable[[Any], str]


_VERDICT_VALUES: Final = (
    VerdictKind(
        choice="agree",
        shortcut="Ctrl+1",
        confirms_result=True,
        title=lambda translator: translator.text("Agree"),
        command_title=lambda translator: translator.text("My verdict: agree"),
        column_title=lambda translator: translator.text("Reader agrees"),
    ),
    VerdictKind(
        choice="disagree",
        shortcut="Ctrl+2",
        confirms_result=False,
        title=lambda translator: translator.text("Disagree"),
        command_title=lambda translator: translator.text("My verdict: disagree"),
        column_title=lambda translator: translator.text("Reader disagrees"),
    ),
    VerdictKind(
        choice="unsure",
        shortcut="Ctrl+3",
        confirms_result=None,
        title=lambda translator: translator.text("Unsure"),
        command_title=lambda translator: translator.text("My verdict: unsure"),
        column_title=lambda translator: translator.text("Reader unsure"),
    ),
)
# All kinds of verdict, in the order in which a person sees them.
VERDICT_KINDS: Final[Mapping[VerdictChoice, VerdictKind]] = {value.choice: value for value in _VERDICT_VALUES}
CONTRADICTING_VERDICT_CHOICES: Final = tuple(
    value.choice for value in _VERDICT_VALUES if value.confirms_result is False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalOverrides:
    """Requests of a person to screen images that a pack refuses. Every result changed by a request has a note.

    overrules  whether to screen images whose refusal a person can see to be wrong (`finding.can_refusal_be_overruled`)
    turns      whether to turn images that lie on their side, upside down or inverted
    """

    overrules: bool = False
    turns: bool = False

    def will_turn(self, why: Reason, correction: Correction) -> bool:
        """Return whether an image refused for this reason is to be turned upright and screened again.

        correction  the correction with which the refused image was read. An image is turned only once: the result is
                    False unless `correction` is `NO_CORRECTION`
        """
        return self.turns and can_be_fixed_by_turning(why) and correction == NO_CORRECTION

    def will_overrule(self, why: Reason, correction: Correction) -> bool:
        """Return whether an image refused for this reason is to be screened nevertheless.

        The result is False for an image that `will_turn` turns instead.

        correction  the correction with which the refused image was read
        """
        return self.overrules and can_refusal_be_overruled(why) and not self.will_turn(why, correction)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSpec:
    """One pack of a run. Two packs with equal `model_sha256` and `settings_hash` give equal results for an image.

    settings_hash     SHA-256 of everything besides the model file that decides a result (see domain/pack_setup)
    operating_points  the operating points with which the run decides, at most one for each label
    lungs_pack        the lung-field pack that ran before the pack (see `Model.lungs_pack`); "" for none
    """

    pack_name: str
    trust: Trust
    fingerprint: str
    model_sha256: str
    settings_hash: str
    operating_points: tuple[OperatingPoint, ...] = ()
    lungs_pack: str = ""

    @property
    def result_reuse_key(self) -> tuple[str, str, str]:
        """The key of the pack's results: packs with equal keys give equal results for an image."""
        return self.pack_name, self.model_sha256, self.settings_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The request of a run: one pass over images, which one or more packs screen.

    paths           absolute paths of the files and folders that the user gave
    packs           the packs, in the order of their results
    ages_confirmed  whether a person confirmed that patients without a stated age are in the packs' age range
    overrides       requests of a person to screen refused images; None for a run of version 0.2.0, which did not store
                    requests
    """

    paths: tuple[str, ...]
    packs: tuple[PackSpec, ...]
    program_version: str = ""
    ages_confirmed: bool = False
    overrides: RefusalOverrides | None = None

    @property
    def resume_key(self) -> tuple[object, ...]:
        """The key of the run's results.

        A new run with an equal key resumes the earlier run. The order of paths does not matter.
        """
        return sorted(self.paths), [pack.result_reuse_key for pack in self.packs]


class PackOfRun(NamedTuple):
    """One pack of a run. As text, `12` is the first pack of run 12, and `12.2` the second pack."""

    run_id: int
    position: int = 0

    @classmethod
    def parse(cls, text: str) -> PackOfRun:
        """Parse a text that names a pack of a run, such as `12` or `12.2`. Raises ValueError for any other text."""
        run_id, _, number = text.partition(".")
        if not (text.isascii() and run_id.isdigit() and (number or "1").isdigit() and int(number or "1")):
            raise ValueError(f"no pack of a run is called {text}")
        return cls(int(run_id), int(number or "1") - 1)

    def __str__(self) -> str:
        return f"{self.run_id}.{self.position + 1}" if self.position else str(self.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in the results database.

    state               "interrupted" for a run that did not end although no process works on the run, for example after
                        a power failure
    reason              the reason if the run failed, or None
    started_s, ended_s  seconds since 1970 (UTC); `ended_s` is None while the run is not over
    """

    run_id: int
    spec: RunSpec
    state: RunState | Literal["interrupted"]
    reason: Reason | None
    started_s: float
    ended_s: float | None


def pack_of_run(run: Run, position: int) -> PackSpec:
    """Return the pack at a position of a run, 0 for the first.

    Raises UsageProblem (history_no_pack) for a position beyond the last pack.
    """
    if not 0 <= position < len(run.spec.packs):
        raise UsageProblem(reason("history_no_pack", run=run.run_id, pack=position + 1, packs=len(run.spec.packs)))
    return run.spec.packs[position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reader's verdict on a result. The verdict is stored next to the result and never replaces the result.

    A verdict belongs to the content, the model and the score that were judged, and to no other result.

    given_s  time of the verdict, seconds since 1970 (UTC); 0 before the verdict is stored
    """

    choice: VerdictChoice
    note: str = ""
    given_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if self.choice not in VERDICT_KINDS:
            raise ValueError(f"a verdict is one of {', '.join(VERDICT_KINDS)}, not {self.choice}")

    @property
    def kind(self) -> VerdictKind:
        """The entry of `VERDICT_KINDS` for the choice of this verdict."""
        return VERDICT_KINDS[self.choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededVerdict:
    """A verdict on an earlier state of an image: the image now has other bytes, another score, or no result.

    image_key       the key of the image (`ImageRef.key`)
    content_sha256  SHA-256 of the bytes that were judged; empty if the bytes could not be read
    score           the score of the judged result (see `finding.score_for_sorting`), or None
    """

    image_key: str
    content_sha256: str
    category: Category
    score: float | None
    verdict: Verdict


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredResult:
    """The stored result of one pack of a run for one image.

    result_id                     row of the result in the database, to which a verdict refers
    row_id                        row of the image
    pack_position                 position of the pack in the run
    is_reused                     whether the result was taken over from an earlier start of the program
    is_file_recognised_by_sample  whether the file was recognised by size, times and a sample of its content, without
                                  reading the whole file
    is_read                       whether a person has read the image, with or without a verdict
    has_newer_image_of_patient    whether the run has an image of a later day of this patient; see
                                  `marked_as_having_newer_image`
    """

    result_id: int
    row_id: int
    run_id: int
    pack_position: int = 0
    outcome: Outcome
    is_reused: bool
    verdict: Verdict | None = None
    is_file_recognised_by_sample: bool = False
    is_read: bool = False
    has_newer_image_of_patient: bool = False

    @property
    def image_identity(self) -> tuple[str, int]:
        """The identity of the image in all runs: SHA-256 of the image's file, and number of the frame.

        If the SHA-256 is unknown, the key of the image (`ImageRef.key`) takes its place.
        """
        return (self.outcome.facts.content_sha256 or self.outcome.ref.key, self.outcome.ref.frame)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredImage:
    """An image of a run with its results.

    results  one result for each pack, in the order of the packs; fewer only in an interrupted run of version 0.2.0
    """

    row_id: int
    run_id: int
    results: tuple[StoredResult, ...]

    @property
    def ref(self) -> ImageRef:
        """The reference to the image: its path and header."""
        return self.results[0].outcome.ref

    @property
    def most_urgent_result(self) -> StoredResult:
        """The most urgent result, by which the image is sorted in a list.

        Of equally urgent results, the first counts.
        """
        return self.results[most_urgent_pack_position([answer.outcome for answer in self.results])]

    def marked_as_having_newer_image(self) -> StoredImage:
        """Return a copy of this object, marked as an image of an earlier day than its patient's newest image."""
        return replace(self, results=tuple(replace(answer, has_newer_image_of_patient=True) for answer in self.results))

    def result_of_model(self, model_sha256: str) -> StoredResult:
        """Return the result of the model with this SHA-256, or else the first result."""
        of_model = (one for one in self.results if getattr(one.outcome, "model_sha256", "") == model_sha256)
        return next(of_model, self.results[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """Options for taking over results that earlier runs stored for the same files.

    verifies_content    whether a file is recognised only by its whole content, not by a sample
    reports_each_image  whether each result is reported by an `ImageDone`; otherwise one `ResultsTakenOver` reports many
    """

    verifies_content: bool = False
    reports_each_image: bool = True


def origin_folder(path: str) -> str:
    """Return the part of a path that identifies the origin of images, such as a hospital's folder.

    Folder names without letters, such as dates and numbers, are removed from the end of the path.
    """
    parts = re.split(r"([\\/]+)", path.rstrip("\\/"))
    while len(parts) > 1 and not any(map(str.isalpha, parts[-1])):
        del parts[-2:]
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSample:
    """The values of a stored result from which drift is computed: class, scores, grey level and evidence.

    scores           calibrated score by label
    median_grey      median of the thumbnail, 0 (black) to 255; None if the image was not read
    evidence_inside  share of the heat map inside the lungs, 0..1; None without a lung-field pack
    """

    category: Category
    scores: Mapping[str, float]
    median_grey: float | None
    evidence_inside: float | None = None
