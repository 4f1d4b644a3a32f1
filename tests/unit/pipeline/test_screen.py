from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from fakes import FakeEngine, FakeReaders, LungReaders, PaintedFile, hash_of, never
from fieldray.domain.finding import Outcome
from fieldray.domain.image import Image, ImageHeader, ImageRef
from fieldray.domain.model import Calibration, Model, OutOfDistributionCheck, Prediction
from fieldray.domain.pack_setup import set_up_pack
from fieldray.errors import BackendProblem, Cancelled, EnvironmentProblem, Unreadable, WorkerProblem
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.source import FileStamper
from fieldray.pipeline.screen import screen_image, screen_with_packs
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from raised import raises
from tiny_models import tiny_manifest, tiny_model


def screen(name: str = "bright.png", *, engine: FakeEngine | None = None, **changes: Any) -> Outcome:
    """Screen an image of this name. `changes` are manifest values, or `ref` and other arguments of `screen_image`."""
    ref = changes.pop("ref", None) or ImageRef(path=Path("/images") / name)
    options = {key: changes.pop(key) for key in ("observe", "is_cancelled", "workers") if key in changes}
    model = tiny_model(manifest=tiny_manifest(**changes))
    options = {"workers": FakeReaders(), "engine": engine or FakeEngine(), **options}
    return screen_image(ref, setup=set_up_pack(model), **options)


def test_an_image_is_read_run_and_decided() -> None:
    seen: list[Prediction] = []
    outcome = screen("bright.png", observe=seen.append)
    (finding,) = outcome.findings
    assert (finding.label, finding.score, finding.decision) == ("opacity", 1.0, "above")
    assert (finding.point.name, outcome.category) == ("screening", "abnormal")
    assert outcome.facts.content_sha256 == hash_of(outcome.ref)
    assert (outcome.backend, outcome.inference_ms, len(seen)) == ("cpu", 2.0, 1)
    dark = screen("dark.png")
    assert (dark.findings[0].score, dark.category) == (0.0, "normal")


def test_the_score_is_calibrated_before_it_is_decided() -> None:
    # the logit of a score of 0 is limited to log(1e-7 / (1 - 1e-7)) = -16.118; plus an intercept of 17: sigmoid(0.882)
    outcome = screen("dark.png", calibration={"opacity": Calibration(slope=1.0, intercept=17.0)})
    assert outcome.findings[0].score == pytest.approx(0.7073, abs=1e-3)
    assert outcome.category == "abnormal"


def test_without_an_operating_point_no_decision_is_made() -> None:
    outcome = screen("bright.png", operating_points=())
    assert (outcome.findings[0].score, outcome.category) == (1.0, "not_assessed")


def test_the_header_alone_can_refuse() -> None:
    ref = ImageRef(path=Path("/images/bright.dcm"), kind="dicom", header=ImageHeader(modality="CT"))
    outcome = screen(ref=ref)
    assert (outcome.status, outcome.reason) == ("refused", reason("modality", modality="CT"))


@pytest.mark.parametrize("is_refusal", [True, False])
def test_a_problem_found_by_discovery_becomes_an_outcome(is_refusal: bool) -> None:
    ref = ImageRef(path=Path("/images/x"), problem=reason("empty"), problem_is_refusal=is_refusal)
    outcome = screen(ref=ref)
    assert outcome.status == ("refused" if is_refusal else "failed")
    assert is_refusal or outcome.stage == "discover"


def test_a_problem_found_by_reading_becomes_an_outcome_with_known_facts() -> None:
    refused, failed = screen("blank.png"), screen("cut.png")
    assert (refused.status, refused.reason.code, refused.facts.rows) == ("refused", "blank", 64)
    assert (failed.stage, failed.reason.code, failed.facts.rows) == ("decode", "truncated", 64)


def gate(limit: float) -> OutOfDistributionCheck:
    """A check with this limit; the distance of features (f, f, f, f) is sqrt(mean((f * 1)^2)) = f."""
    return OutOfDistributionCheck(mean=np.zeros(4, np.float32), projection=np.eye(4, dtype=np.float32), limit=limit)


class Reduced:
    """A file that its codec reads at half resolution, with `oversampling` times the needed detail; counts the reads.

    With `is_cut`, the second read finds the file damaged.
    """

    def __init__(self, *, is_approximate: bool = True, oversampling: float = 1.0, is_cut: bool = False) -> None:
        self._is_approximate, self._is_cut = is_approximate, is_cut
        self._side = round(64 * oversampling)
        self.reads = 0

    def __call__(self, ref: ImageRef, *, stamps: FileStamper | None = None) -> PaintedFile:
        class File(PaintedFile):
            def decode_image(_, needed: TargetSize | None = None) -> Image:  # noqa: N805
                return self._read()

        return File(ref, stamps=stamps)

    def _read(self) -> Image:
        self.reads += 1
        if self._is_cut and self.reads == 2:
            raise Unreadable(reason("truncated"))
        side, full = self._side, 2 * self._side
        pixels = np.tile(np.linspace(0, 255, side, dtype=np.float32), (side, 1))
        return Image(
            pixels=pixels,
            reduction_factor=2,
            has_approximate_pixels=self._is_approximate,
            file_rows=full,
            file_columns=full,
        )


def look(file: Reduced, *greys: int, features: float = 0.0, **changes: Any) -> Outcome:
    """Screen a file whose readings get these scores, in steps of 1/255, one for each reading."""
    engine = FakeEngine(features=features, scores=[grey / 255 for grey in greys])
    return screen("x.jpg", workers=LungReaders(None, open_file=file), engine=engine, **changes)


# below 0.4 is below, from 0.6 on above; a grey of 255 is a score of 1
@pytest.mark.parametrize(
    ("grey", "is_close"), [(80, False), (95, True), (112, True), (127, False), (150, True), (170, False)]
)
def test_a_borderline_score_is_decided_at_full_resolution(grey: int, is_close: bool) -> None:
    file = Reduced()
    outcome = look(file, grey, 255)
    assert file.reads == (2 if is_close else 1)
    assert outcome.findings[0].score == pytest.approx(1.0 if is_close else grey / 255)
    assert ("read_twice" in outcome.facts.notes) == is_close


WIDE_BAND = {"operating_points": (replace(tiny_manifest().operating_points[0], unsure_low=0.4, unsure_high=0.9),)}
GATED = {"ood_gate": gate(2.0)}


@pytest.mark.parametrize(
    ("grey", "reading", "features", "changes", "category", "is_read_again"),
    [
        # an image read with more detail only if it is closer: 235 is 0.27 in log-odds above the limit
        (235, {}, 0.0, WIDE_BAND, "abnormal", True),
        (235, {"oversampling": 1.4}, 0.0, WIDE_BAND, "abnormal", True),
        (235, {"oversampling": 1.5}, 0.0, WIDE_BAND, "abnormal", False),
        # never for an exact reading, nor without an operating point
        (150, {"is_approximate": False}, 0.0, {}, "unsure", False),
        (150, {}, 0.0, {"operating_points": ()}, "not_assessed", False),
        # near the out-of-distribution limit; a clear refusal is not read again for its score
        (255, {}, 1.9, GATED, "abnormal", False),
        (255, {}, 1.98, GATED, "abnormal", True),
        (255, {}, 2.02, GATED, "refused", True),
        (255, {}, 2.1, GATED, "refused", False),
        (150, {}, 3.0, GATED, "refused", False),
    ],
)
def test_only_results_that_could_change_are_read_again(
    *, grey: int, reading: dict[str, Any], features: float, changes: dict[str, Any], category: str, is_read_again: bool
) -> None:
    file = Reduced(**reading)
    assert look(file, grey, 255, features=features, **changes).category == category
    assert file.reads == (2 if is_read_again else 1)


def test_damage_found_only_by_the_second_reading_fails_the_image() -> None:
    outcome = look(Reduced(is_cut=True), 150)
    assert (outcome.stage, outcome.reason.code) == ("decode", "truncated")


class Noted(FakeReaders):
    """Gives images of one grey level, with these notes."""

    def __init__(self, grey: int, *notes: str) -> None:
        super().__init__()
        self._grey, self._notes = grey, notes

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        seen = super().analyse(question, model=model)
        values = np.full_like(seen.input_values, self._grey)
        return replace(seen, input_values=values, facts=replace(seen.facts, notes=self._notes))


@pytest.mark.parametrize("code", ["lower_part_dark", "little_detail"])
@pytest.mark.parametrize(("grey", "category"), [(20, "unsure"), (255, "abnormal")])
def test_an_image_with_missing_part_or_detail_is_never_normal(grey: int, category: str, code: str) -> None:
    outcome = screen(workers=Noted(grey, code))
    assert (outcome.category, [note.code for note in outcome.notes]) == (category, [code])
    assert screen(workers=Noted(20)).category == "normal"


@pytest.mark.parametrize(
    ("name", "error", "stage", "code"),
    [
        ("bug.png", None, "decode", "internal"),
        ("unloaded.png", None, "inference", "worker_died"),
        ("bright.png", ZeroDivisionError(), "inference", "internal"),
        ("bright.png", BackendProblem(reason("worker_died")), "inference", "worker_died"),
    ],
)
def test_a_fault_in_one_stage_fails_one_image(name: str, error: Exception | None, stage: str, code: str) -> None:
    def answer(_: object) -> None:
        if error:
            raise error

    outcome = screen(name, engine=FakeEngine(answer=answer))
    assert (outcome.stage, outcome.reason.code) == (stage, code)


def test_a_missing_device_is_raised_and_does_not_fail_the_image() -> None:
    engine = FakeEngine()
    engine.problem = reason("self_test", detail="0.5")
    with pytest.raises(BackendProblem) as problem:
        screen(engine=engine)
    assert problem.value.reason == reason("self_test", detail="0.5")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerProblem(reason("readers_not_started", detail="no memory")), "readers_not_started"),
        (MemoryError(), "system_short"),
        (OSError(errno.EMFILE, "Too many open files"), "system_short"),
        (RuntimeError("can't start new thread"), "system_short"),
    ],
)
def test_a_shortage_of_the_system_is_raised_and_does_not_fail_the_image(error: Exception, code: str) -> None:
    class NoReaders:
        def analyse_for_models(self, *_: object, **__: object) -> NoReturn:
            raise error

    with raises(EnvironmentProblem, code):
        screen(workers=NoReaders())


@pytest.mark.parametrize(("name", "answer"), [("bright.png", never), ("bug.png", None)])
def test_a_cancelled_image_gets_no_outcome(name: str, answer: Any) -> None:
    asked = iter((False,))  # cancelled after a worker was asked
    with pytest.raises(Cancelled):
        screen(name, engine=FakeEngine(answer=answer), is_cancelled=lambda: next(asked, True))


def test_a_cancelled_image_is_not_read_again() -> None:
    """The cancel also counts while a worker reads, after a device was found for the image."""
    file = Reduced()
    with pytest.raises(Cancelled):
        look(file, 95, 255, is_cancelled=lambda: bool(file.reads))
    assert file.reads == 1


def test_each_pack_of_a_run_decides_and_refuses_by_its_own_rules() -> None:
    def of(ages: tuple[int, int], threshold: float) -> Model:
        point = replace(
            tiny_manifest().operating_points[0], threshold=threshold, unsure_low=0.05, unsure_high=threshold
        )
        rules = replace(tiny_manifest().accepted, ages_years=ages)
        # the logit of 1 is limited to 16.118: sigmoid(16.118 - 15.271) = 0.7
        calibration = {"opacity": Calibration(intercept=-15.271)}
        return tiny_model(manifest=tiny_manifest(accepted=rules, operating_points=(point,), calibration=calibration))

    models = [of((18, 95), 0.6), of((15, 95), 0.99), of((1, 5), 0.6)]
    setups = list(map(set_up_pack, models))
    header = ImageHeader(patient_age_years=40.0)
    readers, engine = FakeReaders(), FakeEngine()
    adults, strict, children = screen_with_packs(
        ImageRef(path=Path("bright.dcm"), kind="dicom", header=header), setups, workers=readers, engine=engine
    )
    assert (adults.category, strict.category, children.category) == ("abnormal", "unsure", "refused")
    assert children.reason.code == "age"
    assert [found.findings[0].point.threshold for found in (adults, strict)] == [0.6, 0.99]
    assert readers.looked == [3]
    child = replace(header, patient_age_years=3.0)
    ref = ImageRef(path=Path("dark.dcm"), kind="dicom", header=child)
    assert [found.status for found in screen_with_packs(ref, setups, workers=readers, engine=engine)] == [
        "refused",
        "refused",
        "screened",
    ]


def test_a_failed_image_fails_for_every_pack_and_a_lost_pack_ends_the_run() -> None:
    setups, engine = [set_up_pack(tiny_model()) for _ in range(2)], FakeEngine()
    screen = partial(screen_with_packs, setups=setups, workers=FakeReaders(), engine=engine)
    found = screen(ImageRef(path=Path("bug.png")))
    assert [outcome.reason.code for outcome in found] == ["internal", "internal"]
    engine.problems[setups[1].model] = reason("no_runtime")
    with pytest.raises(BackendProblem):
        screen(ImageRef(path=Path("bright.png")))
