"""Fake services for tests of the window, which opens them as real ones: session, library, audit, drives, priors."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audits import audit_report
from fieldray.audit.report import AuditReport
from fieldray.bench.load import StoredLoadCell, StoredLoadStudy
from fieldray.bench.machine import LOAD_LEVELS
from fieldray.desktop.background import Services
from fieldray.domain.comparison import (
    PairComparison,
)
from fieldray.domain.finding import FailedOutcome, Finding, ImageFacts, Outcome, RefusedOutcome, ScreenedOutcome, decide
from fieldray.domain.image import CoordinateMap, Image, ImageHeader, ImageRef
from fieldray.domain.model import Estimate, HeaderRules, InputSpec, Label, Manifest, Model, OutputRoles
from fieldray.domain.prior_image import PriorImage, StoredPriorImages
from fieldray.domain.run import (
    BackendChanged,
    ImageDone,
    PackOfRun,
    ProgressHandler,
    Publish,
    RefusalOverrides,
    RunChanged,
    RunSpec,
    StoredImage,
    StoredResult,
    Verdict,
)
from fieldray.errors import Cancelled, FieldrayError
from fieldray.imaging.preprocess import thumbnail
from fieldray.imaging.quality import are_empty_folders
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.naming import PackCandidate
from fieldray.packs.site_choices import RememberedPacks, with_local_points
from fieldray.paths import data_folder
from fieldray.pipeline.auditing import AuditRequest
from fieldray.pipeline.compare import PriorFinder, system_comparer_factory
from fieldray.pipeline.constancy import ConstancyRecords
from fieldray.pipeline.history import History
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ReportOptions
from fieldray.settings import Settings
from fieldray.store.results import ResultStore
from outcomes import operating_point, run_spec
from pairs import pair_comparison

SIDE = 224
CELLS = 14
MEANING = {"en": "lung opacity", "uk": "затемнення легень"}
FINGERPRINT = "-".join(f"{number:04x}" for number in range(0xA100, 0xA110))
POINT = operating_point(
    threshold=0.41,
    unsure_low=0.34,
    unsure_high=0.5,
    sensitivity=Estimate(0.951, 0.93, 0.967),
    specificity=Estimate(0.744, 0.71, 0.775),
    titles={"en": "screening", "uk": "скринінг"},
    measured_on={"en": "synthetic images", "uk": "намальованих знімках"},
)


def manifest(**changes: object) -> Manifest:
    """The manifest of a pack with one label and two operating points."""
    values = {
        "pack_id": "made-up",
        "version": "1.2.0",
        "names": {"en": "Made-up lungs", "uk": "Вигадані легені"},
        "descriptions": {
            "en": "Flags images with a made-up opacity. For showing the window only.",
            "uk": "Позначає знімки з вигаданим затемненням. Лише для показу вікна.",
        },
        "intended_use": {
            "en": "Frontal chest X-rays drawn by code. It shows how the window looks and works.",
            "uk": "Прямі рентгенограми грудної клітки, намальовані програмою. Показує вигляд і роботу вікна.",
        },
        "limits": {
            "en": "It knows nothing about people. Lateral images, children and bedside images were never tried.",
            "uk": "Нічого не знає про людей. Бічні знімки, діти та знімки біля ліжка не перевірялися.",
        },
        "input": InputSpec(height=SIDE, width=SIDE),
        "labels": (Label(code="opacity", scheme="fieldray", meaning=MEANING),),
        "outputs": OutputRoles(scores=0, class_maps=1),
        "operating_points": (POINT, replace(POINT, name="careful", threshold=0.25, unsure_low=0.2, unsure_high=0.3)),
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def model(trust: str = "signed", **changes: object) -> Model:
    """A model in memory that cannot be run."""
    return Model(
        manifest=manifest(**changes),
        trust=trust,  # type: ignore[arg-type]
        fingerprint="" if trust == "legacy" else FINGERPRINT,
        model_sha256="0123456789abcdef" * 4,
        files={"litert": b"model"},
    )


def image_ref(number: int, **changes: object) -> ImageRef:
    """A DICOM image of a made-up person."""
    header = ImageHeader(
        modality="DX",
        body_part_examined="CHEST",
        view_position="PA",
        patient_name=f"DOE^PERSON {number:03}",
        patient_id=f"PX-{1000 + number}",
        patient_sex="FM"[number % 2],
        patient_age_years=20.0 + number % 60,
        study_date=f"202603{1 + number % 28:02}",
        study_description="Chest PA",
        study_instance_uid=f"1.2.3.{number // 2}",
        rows=600,
        columns=512,
    )
    return replace(ImageRef(path=Path(f"/images/image-{number:05}.dcm"), kind="dicom", header=header), **changes)


@lru_cache
def image_image(number: int) -> Image:
    """The pixels of a made-up image."""
    return Image(pixels=chest_phantom(600, 512, number, abnormal=number % 3 == 0), spacing_mm=(0.6, 0.6), view="PA")


def screened(number: int, score: float, *, with_thumbnail: bool = False) -> ScreenedOutcome:
    """An image with a score; where the score is high, its class map has one warm cell."""
    rows, columns = np.mgrid[0:CELLS, 0:CELLS]
    spot = np.exp(-((rows - 8) ** 2 + (columns - 4) ** 2) / 5)
    logits = (spot * 14 * score - 3.0).astype(np.float32)
    facts = ImageFacts(
        content_sha256=f"{number:064x}",
        rows=600,
        columns=512,
        thumbnail=thumbnail(image_image(number)) if with_thumbnail else None,
        input_to_image=CoordinateMap(600 / SIDE, 0.0, 512 / SIDE, 0.0),
        decode_ms=143.0,
    )
    return ScreenedOutcome(
        ref=image_ref(number),
        facts=facts,
        findings=(Finding(label="opacity", score=score, point=POINT, decision=decide(score, POINT)),),
        class_maps=logits[None],
        pack_name="made-up-1.2.0",
        model_sha256="0123456789abcdef" * 4,
        backend="cpu",
        inference_ms=8.4,
    )


def refused(number: int, why: Reason | None = None) -> RefusedOutcome:
    """An image that is not a usable frontal chest X-ray."""
    return RefusedOutcome(ref=image_ref(number), reason=why or reason("view", view="LL"))


def failed(number: int, why: Reason | None = None) -> FailedOutcome:
    """An image that could not be read."""
    why = why or reason("truncated")
    ref = ImageRef(path=Path(f"/images/scan-{number:05}.png"), kind="png", problem=why)
    return FailedOutcome(ref=ref, stage="decode", reason=why)


def candidate(folder: str = "/media/Edge TPU/fieldray/made-up-1.2.0", **changes: object) -> PackCandidate:
    """A pack as a listing shows it."""
    values = {
        "folder": Path(folder),
        "origin": "builtin",
        "trust": "builtin",
        "pack_id": "made-up",
        "version": "1.2.0",
        "names": {"en": "Made-up lungs", "uk": "Вигадані легені"},
        "fingerprint": FINGERPRINT,
    }
    return PackCandidate(**{**values, **changes})  # type: ignore[arg-type]


SPEC = run_spec(
    pack_name="made-up-1.2.0", fingerprint=FINGERPRINT, model_sha256="0123456789abcdef" * 4, operating_points=(POINT,)
)
AGES = {"children": (1, 5), "adults": (18, 95), "tuberculosis": (15, 95)}


def described(pack_id: str, **changes: object) -> dict[str, object]:
    """Manifest values of a pack for patients of certain ages."""
    names, accepted = {"en": pack_id.capitalize()}, HeaderRules(ages_years=AGES[pack_id])
    return {"pack_id": pack_id, "version": "1.0.0", "accepted": accepted, "names": names, **changes}


def save(
    store: ResultStore,
    run_id: int,
    outcomes: Sequence[Outcome],
    publish: Publish,
    *others: Sequence[Outcome],
    spec: RunSpec = SPEC,
) -> None:
    """Save the answers of one or several packs for these images, and publish an `ImageDone` event for each image."""
    for answers in zip(outcomes, *others, strict=True):
        publish(ImageDone(image=store.save_image(run_id, *answers, spec=spec)))


def done(row_id: int, outcome: Outcome, *, run_id: int = 1) -> ImageDone:
    """The event that an image is done, with one answer."""
    answer = StoredResult(result_id=row_id, row_id=row_id, run_id=run_id, outcome=outcome, is_reused=False)
    return ImageDone(image=StoredImage(row_id=row_id, run_id=run_id, results=(answer,)))


@dataclass(eq=False)
class FakeBatch:
    """Records the calls and publishes the new state; the test publishes all that follows."""

    publish: Publish
    run_id: int = 1
    calls: list[str] = field(default_factory=list)

    def pause(self) -> None:
        self.calls.append("pause")
        self.publish(RunChanged(run_id=self.run_id, state="paused"))

    def resume(self) -> None:
        self.calls.append("resume")
        self.publish(RunChanged(run_id=self.run_id, state="running"))

    def cancel(self) -> None:
        self.calls.append("cancel")
        self.publish(RunChanged(run_id=self.run_id, state="cancelled"))

    def join(self, timeout_s: float | None = None) -> bool:
        self.calls.append("join")
        return True


@dataclass(eq=False)
class FakeSession:
    """Saves `outcomes` as soon as it is started, then runs until the test finishes it."""

    publish: Publish
    database: Path
    outcomes: list[Outcome] = field(default_factory=list)
    batches: list[FakeBatch] = field(default_factory=list)
    started_with: list[tuple[tuple[Path, ...], str | None, bool]] = field(default_factory=list)
    ages_confirmed: list[bool] = field(default_factory=list)
    watched: list[bool] = field(default_factory=list)
    packs: list[Model | None] = field(default_factory=list)
    other_packs: list[tuple[Model, ...]] = field(default_factory=list)
    of_others: dict[str, list[Outcome]] = field(default_factory=dict)  # by pack: outcomes of packs after the first
    reconsidered: list[str] = field(default_factory=list)
    verdicts: dict[int, Verdict | None] = field(default_factory=dict)
    verdicts_by_content: dict[str, Verdict | None] = field(default_factory=dict)
    begun: list[ImageRef] = field(default_factory=list)
    read: list[ImageRef] = field(default_factory=list)
    start_problem: FieldrayError | None = None
    may_read: threading.Event = field(default_factory=threading.Event)
    device_choices: int = 0
    replaced: set[str] = field(default_factory=set)
    previews: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    judged: list[Outcome] = field(default_factory=list)
    verdict_problem: FieldrayError | None = None
    keeps_refused: bool = False  # a refused verdict is stored all the same
    image: Image | None = None  # the pixels of every image; if None, each image has its own
    overrides: list[tuple[int, RefusalOverrides]] = field(default_factory=list)
    again: Outcome | FieldrayError | None = None
    may_screen: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False
    may_judge: threading.Event = field(default_factory=threading.Event)
    stored: dict[int, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.may_judge.set()
        self.may_read.set()
        self.may_screen.set()

    def use_packs(self, model: Model, *others: Model) -> None:
        self.packs.append(model)
        self.other_packs.append(others)
        self.publish(BackendChanged(backend="cpu", state="ready", is_in_use=True, detail="2 x 1"))

    def choose_devices(self) -> None:
        self.device_choices += 1

    def retry_backend(self, name: str) -> None:
        self.reconsidered.append(name)

    def start(
        self,
        paths: Sequence[Path],
        *,
        operating_point: str | None = None,
        as_new_run: bool = False,
        ages_confirmed: bool = False,
        watches_folders: bool = False,
    ) -> FakeBatch:
        if self.start_problem is not None:
            raise self.start_problem
        self.ages_confirmed.append(ages_confirmed)
        self.watched.append(watches_folders)
        with ResultStore(self.database) as store:
            (own,), others = SPEC.packs, self.other_packs[-1]
            packs = (replace(own, pack_name=one.pack_name, model_sha256=one.model_sha256) for one in others)
            spec = replace(SPEC, packs=(own, *packs))
            batch = FakeBatch(self.publish, run_id=store.open_run(spec, as_new_run=True))
            self.publish(RunChanged(run_id=batch.run_id, state="running"))
            self.batches.append(batch)  # tests wait for these two: what they publish then comes after "running"
            self.started_with.append((tuple(paths), operating_point, as_new_run))
            said = (self.of_others[one.pack_name] for one in others)
            save(store, batch.run_id, self.outcomes, self.publish, *said, spec=spec)
            for row_id, verdict in self.stored.items():
                store.set_verdict(row_id, verdict, judged=store.result(row_id).outcome)
        return batch

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        self.begun.append(ref)
        self.may_read.wait(10)
        self.read.append(ref)
        if ref.problem is not None:
            raise FieldrayError(ref.problem)
        if content_sha256 in self.replaced:
            raise FieldrayError(reason("changed"))
        return self.image or image_image(int(ref.path.stem.rpartition("-")[2]) % 10)

    def read_preview(self, content_sha256: str, *, frame: int) -> NDArray[np.uint8]:
        kept = self.previews.get(content_sha256)
        if kept is None:
            raise FieldrayError(reason("preview_missing"))
        if not kept.size:
            raise FieldrayError(reason("preview_damaged"))
        return kept

    def screen_again(self, row_id: int, *, judged: Outcome, overrides: RefusalOverrides) -> Outcome:
        self.overrides.append((row_id, overrides))
        self.may_screen.wait(10)
        if isinstance(self.again, FieldrayError):
            raise self.again
        assert self.again is not None
        if isinstance(self.again, RefusedOutcome) and overrides != RefusalOverrides():  # a refusal is not stored
            return self.again
        with ResultStore(self.database) as store:
            image = store.replace_result(row_id, self.again, run=store.run(self.batches[-1].run_id))
        self.publish(ImageDone(image=image))
        return self.again

    def set_verdict(
        self, row_id: int, verdict: Verdict | None, *, judged: Outcome, replaceable: Collection[Verdict | None]
    ) -> Verdict | None:
        self.may_judge.wait(10)
        if self.verdict_problem is not None and not self.keeps_refused:
            raise self.verdict_problem
        self.judged.append(judged)
        with ResultStore(self.database) as store:
            self.verdicts[row_id] = store.set_verdict(row_id, verdict, judged=judged, replaceable=replaceable)
        self.verdicts_by_content[judged.facts.content_sha256] = self.verdicts[row_id]
        if self.verdict_problem is not None:
            raise self.verdict_problem
        return self.verdicts[row_id]

    def set_read_state(self, row_id: int, *, judged: Outcome, is_read: bool) -> None:
        with ResultStore(self.database) as store:
            store.set_read_state(row_id, judged=judged, is_read=is_read)

    def close(self) -> None:
        self.is_closed = True


@dataclass(eq=False)
class FakeLibrary:
    """Packs by folder; those of `on_drives` are listed while their drive is connected."""

    always: list[PackCandidate] = field(default_factory=lambda: [candidate("/program/models/made-up-1.2.0")])
    on_drives: dict[Path, list[PackCandidate]] = field(default_factory=dict)
    models: dict[Path, Model] = field(default_factory=dict)
    problems: dict[Path, FieldrayError] = field(default_factory=dict)
    further: dict[Path, FieldrayError] = field(default_factory=dict)  # set once the first question was answered
    trusted: list[str] = field(default_factory=list)
    installed: list[Path] = field(default_factory=list)
    lost: Reason | None = None

    def available(self, drives: Sequence[Path] = ()) -> tuple[PackCandidate, ...]:
        found = [entry for drive in drives for entry in self.on_drives.get(drive, [])]
        return (*found, *self.always)

    def load(self, folder: Path, *, allow_older: bool = False, allow_legacy: bool = False, signer: str = "") -> Model:
        allowed = {"pack_older": allow_older, "pack_legacy": allow_legacy, "pack_namesake_shipped": bool(signer)}
        for problem in filter(None, (self.problems.get(folder), self.further.get(folder))):
            if getattr(problem, "fingerprint", "") not in self.trusted and not allowed.get(problem.reason.code):
                raise problem
        return self.models.get(folder) or model("builtin")

    def trust(self, fingerprint: str) -> None:
        self.trusted.append(fingerprint)
        for drive, found in self.on_drives.items():
            was_asked = [entry.trust == "unknown_key" and entry.fingerprint == fingerprint for entry in found]
            self.on_drives[drive] = [
                replace(entry, trust="trusted", problem=None) if is_it else entry
                for entry, is_it in zip(found, was_asked, strict=True)
            ]

    def warnings(self, model: Model) -> tuple[Reason, ...]:
        return (self.lost,) if self.lost else ()

    def __post_init__(self) -> None:
        self.trust_store = self

    def read_card(self, folder: Path) -> str:
        return f"# Card of {folder.name}"

    def install(self, folder: Path, *, allow_older: bool = False) -> Path:
        self.installed.append(folder)
        return folder


@dataclass(eq=False)
class FakeAudit:
    """Audits of made-up cases: rows 1 and 2 always disagree. If `problem` is set, it is raised instead."""

    problem: FieldrayError | None = None
    requests: list[tuple[PackOfRun, AuditRequest, Model | None]] = field(default_factory=list)
    taken: list[tuple[str, str]] = field(default_factory=list)
    saved: list[tuple[Path, str]] = field(default_factory=list)
    text: str = "made-up"

    def audit(self, pack_in_run: PackOfRun, request: AuditRequest, *, model: Model | None) -> AuditReport:
        self.requests.append((pack_in_run, request, model))
        if self.problem is not None:
            raise self.problem
        return audit_report(self.text, scores={1: 0.1, 2: 0.9}, points=(POINT,))

    def adopt_proposal(self, report: AuditReport, *, name: str, person: str, model: Model) -> Model:
        self.taken.append((name, person))
        point = replace(POINT, name=f"local:{name}", titles={"en": f"Local: {name}"}, label=POINT.label)
        return with_local_points(model, (point,))

    def save_report(self, folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
        self.saved.append((folder, language))
        return (folder / "audit.pdf", folder / "audit.json")


@dataclass(eq=False)
class FakeDrives:
    """A watch for drives whose changes the test publishes."""

    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass(eq=False)
class FakePriors:
    """Priors of the store; a comparison waits for `may_compare` and gives what the test set or ends by `cancel`."""

    database: Path = Path()
    files: dict[Path, Outcome] = field(default_factory=dict)
    answer: PairComparison | FieldrayError = field(default_factory=pair_comparison)
    compared: list[tuple[ImageRef, ImageRef]] = field(default_factory=list)
    may_compare: threading.Event = field(default_factory=threading.Event)
    cancelled: int = 0
    is_closed: bool = False
    problem: FieldrayError | None = None

    def __post_init__(self) -> None:
        self.may_compare.set()

    def stored_priors(self, current: Outcome, *, run_id: int | None) -> StoredPriorImages:
        if self.problem is not None:
            raise self.problem
        return PriorFinder(self.database, system_comparer_factory(Settings())).stored_priors(current, run_id=run_id)

    def screen_file(self, path: Path, current: Outcome) -> Outcome:
        if path not in self.files:
            raise FieldrayError(reason("not_an_image"))
        return self.files[path]

    def compare(
        self, prior: PriorImage, current: Outcome, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> PairComparison:
        before = self.cancelled
        self.compared.append((prior.outcome.ref, current.ref))
        self.may_compare.wait(10)
        if self.cancelled != before:
            raise Cancelled
        if isinstance(self.answer, FieldrayError):
            raise self.answer
        return self.answer

    def cancel(self) -> None:
        self.cancelled += 1
        self.may_compare.set()

    def close(self) -> None:
        self.cancel()
        self.is_closed = True


def load_study(*, is_disturbed: bool = False) -> StoredLoadStudy:
    """A load study with 10 ms per image without load, 11 ms at 40 %, 12 ms at 60 % and 14 ms at 100 %."""
    cells = (
        StoredLoadCell(
            case="cpu, 1 thread",
            backend="cpu",
            pack="made-up-1.2.0",
            level=level,
            increase=mean_ms / 10 - 1,
            mean_ms=mean_ms,
            fps_min=50.0,
            fps_avg=1000 / mean_ms,
            fps_max=110.0,
        )
        for level, mean_ms in zip(LOAD_LEVELS, (10.0, 11.0, 12.0, 14.0), strict=True)
    )
    made = datetime.datetime(2026, 3, 4, 5, 6, tzinfo=datetime.UTC)
    return StoredLoadStudy(made=made, is_disturbed=is_disturbed, cells=tuple(cells))


class FakeRooms:
    """All fake services together; the window calls `open`."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.of_others: dict[str, list[Outcome]] = {}
        self.library = FakeLibrary()
        self.remembered_packs = RememberedPacks(data_folder())
        self.lacks_ages = False
        self.drives = FakeDrives()
        self.audit = FakeAudit()
        self.history: History | None = None  # if None, the history of the database
        self.priors = FakePriors()
        self.stored: dict[int, Verdict] = {}
        self.exported: list[tuple[int, Path, tuple[str, ...], ReportOptions]] = []
        self.while_exporting: Callable[[ProgressHandler], None] = lambda progress: progress(0, 1)
        self.load_study: StoredLoadStudy | None = None
        self.measured: list[tuple[Path, str]] = []
        self.while_measuring: Callable[[ProgressHandler], None] = lambda progress: progress(1, 12)
        self.open_problem: FieldrayError | None = None
        self.may_open = threading.Event()
        self.may_open.set()
        self.session: FakeSession | None = None
        self.publish: Publish | None = None
        self.database, self.opened = Path(), 0
        self.checks: list[Reason] = []
        self.may_check = threading.Event()
        self.may_check.set()

    def offer(self, *pack_ids: str, **changes: dict[str, object]) -> None:
        """Make only these packs available; `changes` are further manifest values by pack."""
        self.library.always = []
        for pack_id in pack_ids:
            folder, about = f"/program/models/{pack_id}-1.0.0", described(pack_id, **changes.get(pack_id, {}))
            of = manifest(**about)
            found = candidate(folder, pack_id=pack_id, version="1.0.0", names=of.names, manifest=of)
            self.library.always.append(found)
            self.library.models[found.folder] = model("builtin", **about)

    def open(self, settings: Settings, publish: Publish) -> Services:
        self.opened += 1
        self.may_open.wait(30)
        if self.open_problem is not None:
            raise self.open_problem
        self.publish, self.priors.database = publish, self.database
        self.session = FakeSession(
            publish, self.database, outcomes=self.outcomes, stored=self.stored, of_others=self.of_others
        )
        self.session.export = self._export
        return Services(
            session=self.session,
            library=self.library,
            remembered_packs=self.remembered_packs,
            are_empty_folders=are_empty_folders,
            may_lack_patient_ages=lambda paths: self.lacks_ages,
            drives=self.drives,
            auditor=self.audit,
            history=self.history or History(self.database),
            priors=self.priors,
            constancy=ConstancyRecords(self.database.parent),
            run_constancy_test=self._check_constancy,
            read_computer_load_study=lambda: self.load_study,
            run_computer_load_study=self._measure_load,
        )

    def _measure_load(self, folder: Path, signer: str, progress: ProgressHandler) -> StoredLoadStudy:
        self.measured.append((folder, signer))
        self.while_measuring(progress)
        self.load_study = load_study()
        return self.load_study

    def _check_constancy(self) -> tuple[Reason, ...]:
        self.may_check.wait(10)
        return tuple(self.checks)

    def _export(
        self,
        run_id: int,
        folder: Path,
        formats: Sequence[str],
        *,
        options: ReportOptions,
        progress: ProgressHandler,
        **_: object,
    ) -> tuple[Path, ...]:
        self.while_exporting(progress)
        self.exported.append((run_id, folder, tuple(formats), options))
        return (folder / "a.csv", folder / "a.json")
