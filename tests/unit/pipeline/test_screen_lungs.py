"""One image whose lungs are found first: refusals, notes, the crop, and where the evidence lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fakes import FakeEngine, FakeFinder, FakeReaders, LungReaders, PaintedFile
from fieldray.domain.finding import Outcome, ScreenedOutcome, reason_of
from fieldray.domain.image import Correction, Image, ImageHeader, ImageRef
from fieldray.domain.model import InputSpec, Model, OutOfDistributionCheck, PackRequirement, Prediction
from fieldray.domain.pack_setup import set_up_pack
from fieldray.domain.run import RefusalOverrides
from fieldray.errors import BackendProblem
from fieldray.imaging.reduction import TargetSize
from fieldray.inference.backend import NetworkOutput
from fieldray.packs.verified import LEGACY_MANIFEST as LEGACY
from fieldray.pipeline.screen import screen_image
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from raised import raises
from tiny_lungs import tiny_lungs_model
from tiny_models import tiny_manifest, tiny_model

# In 64 x 64 pixels: two lungs, each 8 of 16 rows and 5 of 16 columns of the mask.
MASK = np.zeros((16, 16))
MASK[4:12, 2:7] = MASK[4:12, 9:14] = 1


def model(**changes: Any) -> Model:
    return replace(tiny_model(manifest=tiny_manifest(**changes)), lungs=tiny_lungs_model())


def screen(
    finder: FakeFinder | None, *, name: str = "bright.png", engine: FakeEngine | None = None, of: Model | None = None,
    workers: FakeReaders | None = None, header: ImageHeader | None = None, overrides: RefusalOverrides | None = None,
    **changes: Any,
) -> Outcome:  # fmt: skip
    """Screen with a pack that needs lung fields. `changes` are manifest values; `of` replaces the whole model."""
    return screen_image(
        ImageRef(path=Path("/images") / name, header=header or ImageHeader()),
        setup=set_up_pack(of or model(**changes), overrides=overrides or RefusalOverrides()),
        workers=workers or LungReaders(finder),
        engine=engine or FakeEngine(),
    )


def screen_overruled(
    finder: FakeFinder | None, *, overrules: bool = False, turns: bool = False, **options: Any
) -> Outcome:
    """Screen as a person asks who overrules the refusal or has the image turned."""
    return screen(finder, overrides=RefusalOverrides(overrules=overrules, turns=turns), **options)


def test_the_lung_fields_are_part_of_the_result() -> None:
    outcome = screen(FakeFinder(MASK))
    # 40 of 256 cells each; the patient's left is on the right
    assert (outcome.lungs.left_lung_area_share, outcome.lungs.right_lung_area_share) == pytest.approx(
        (0.15625, 0.15625)
    )
    assert (outcome.lungs.has_lungs, outcome.notes, outcome.lungs.latency_ms) == (True, (), 0.5)
    assert (outcome.lungs.cells_to_image.row_scale, outcome.lungs.cells_to_image.column_scale) == (4.0, 4.0)


# Refusals of the lung checks, by their scores.
REFUSED = [
    ({"frontal_chest": 0.01}, "not_frontal_chest"),
    ({"rotated_90": 0.9}, "rotated"),
    ({"rotated_180": 0.9}, "upside_down"),
    ({"inverted": 0.9}, "inverted"),
]


@pytest.mark.parametrize(("scores", "code"), REFUSED)
def test_an_unusable_chest_image_is_refused_without_running_the_network(scores: dict[str, float], code: str) -> None:
    ran: list[object] = []
    outcome = screen(FakeFinder(MASK, **scores), engine=FakeEngine(answer=ran.append))
    assert (outcome.status, outcome.reason.code, ran) == ("refused", code, [])
    assert outcome.lungs is not None


def test_an_out_of_distribution_chest_is_screened_with_a_note() -> None:
    gate = OutOfDistributionCheck(mean=np.zeros(4, np.float32), projection=np.eye(4, dtype=np.float32), limit=2.0)
    far = FakeEngine(features=2.1)
    outcome = screen(FakeFinder(MASK), engine=far, ood_gate=gate)
    assert [note.code for note in outcome.notes] == ["unlike_measured"]
    assert outcome.extra_figures["gate_distance"] == pytest.approx(2.1)
    alone = replace(model(ood_gate=gate), lungs=None)
    refused = screen(None, of=alone, engine=far)
    assert (refused.status, refused.reason.code) == ("refused", "unlike_training")


class Mapped(FakeEngine):
    """Gives a class map of 4 x 4 cells over the image."""

    def __init__(self, class_map: np.ndarray) -> None:
        super().__init__()
        self._map = class_map[None].astype(np.float32)

    def _prediction(self, values: Any) -> Prediction:
        return replace(super()._prediction(values), class_maps=self._map)


def test_the_share_of_evidence_inside_the_lungs_is_weighed_by_area() -> None:
    cells = np.full((4, 4), -5.0)
    cells[1, 0], cells[3, 3] = 1.0, 3.0  # 2 of 4 columns of the first cell are lung, none of the second
    outcome = screen(FakeFinder(MASK), engine=Mapped(cells), metrics={"evidence_inside": {"limit": 0.5}})
    # 1 * 0.5 / (1 + 3)
    assert outcome.lungs.evidence_inside == pytest.approx(0.125)
    assert [(note.code, note.parameters) for note in outcome.notes] == [("evidence_outside", (("percent", "12"),))]


def test_a_result_that_is_not_flagged_gets_no_warning_about_evidence() -> None:
    cells = np.full((4, 4), -5.0)
    cells[3, 3] = 3.0
    limit = {"evidence_inside": {"limit": 0.6}}
    outcome = screen(FakeFinder(MASK), name="dark.png", engine=Mapped(cells), metrics=limit)
    assert (outcome.lungs.evidence_inside, outcome.notes) == (0.0, ())


def test_an_error_while_finding_lungs_fails_the_image_with_a_reason() -> None:
    outcome = screen(FakeFinder(MASK, problem=reason("worker_died")))
    assert (outcome.stage, outcome.reason.code) == ("inference", "lungs_failed")
    assert "stopped unexpectedly" in outcome.reason.text


def test_a_lost_lung_field_pack_ends_the_run_and_is_named() -> None:
    finder = FakeFinder(MASK)
    finder.unloadable = reason("self_test", detail="0.5")
    with raises(BackendProblem, "lungs_unavailable", says="test-lungs-1.0.0"):
        screen(finder)


# ---- unseen lungs, second readings and corrections


def test_an_image_with_an_unseen_lung_is_screened_and_read_first() -> None:
    white = np.where(np.arange(16) > 8, 0, MASK)
    outcome = screen(FakeFinder(white), name="dark.png")
    assert (outcome.status, outcome.category) == ("screened", "read_first")
    assert [found.decision for found in outcome.findings] == ["below"]
    assert [note.code for note in outcome.notes] == ["left_lung_not_found"]
    assert reason_of(outcome) == outcome.notes[0]


class TwoOutputs(FakeEngine):
    """Gives the two outputs of a bare model of the dissertation."""

    def _prediction(self, values: Any) -> Prediction:
        return replace(super()._prediction(values), scores={"abnormal": 0.2, "normal": 0.8})


def test_an_image_of_a_bare_model_keeps_one_of_its_two_classes() -> None:
    white = np.where(np.arange(16) > 8, 0, MASK)
    bare = replace(tiny_manifest(), is_bare=True, labels=LEGACY.labels, operating_points=())
    made = replace(tiny_model(manifest=bare), lungs=tiny_lungs_model())
    outcome = screen(FakeFinder(white), name="dark.png", engine=TwoOutputs(), of=made)
    assert (outcome.status, outcome.category) == ("screened", "normal")
    assert [note.code for note in outcome.notes] == ["left_lung_not_found", "unsigned_operating_point_unknown"]
    assert reason_of(outcome) == outcome.notes[0]


class Coarse(PaintedFile):
    """A file that its codec reads at half resolution."""

    def decode_image(self, needed: TargetSize | None = None) -> Image:
        pixels = super().decode_image(needed).pixels.astype(np.float32)
        return Image(pixels=pixels, reduction_factor=2, has_approximate_pixels=True, file_rows=128, file_columns=128)


class FinderThatMovesDown(FakeFinder):
    """Finds the lungs four cells lower each time."""

    asked = 0

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        found, self.asked = super().run(image), self.asked + 1
        return replace(found, mask=np.roll(found.mask, 4 * (self.asked - 1), axis=0))


def test_a_second_reading_finds_the_lungs_again() -> None:
    finder = FinderThatMovesDown(MASK)
    close = FakeEngine(scores=[112 / 255, 1.0])  # the first is close to the operating point
    outcome = screen(None, workers=LungReaders(finder, open_file=Coarse), engine=close)
    assert (outcome.status, finder.asked) == ("screened", 2) and "read_twice" in outcome.facts.notes
    assert np.flatnonzero(outcome.lungs.mask.any(axis=1)).tolist() == list(range(8, 16))


class Swapped(LungReaders):
    """The file has another content each time it is opened."""

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        seen = super().analyse(question, model=model)
        return replace(seen, facts=replace(seen.facts, content_sha256=f"{len(self.turns)}" * 64))


def test_a_file_that_changed_before_it_is_turned_fails() -> None:
    readers = Swapped(ScriptedChecks(*3 * ({"rotated_90": 0.9},), {}))
    outcome = screen_overruled(None, workers=readers, turns=True)
    assert (outcome.status, outcome.reason.code, len(readers.turns)) == ("failed", "changed", 2)
    assert outcome.facts.content_sha256 == "1" * 64


def codes(outcome: Outcome) -> list[str]:
    return [note.code for note in outcome.notes] if isinstance(outcome, ScreenedOutcome) else [outcome.reason.code]


@pytest.mark.parametrize(("scores", "code"), REFUSED)
def test_an_overruled_lung_refusal_is_screened_uncropped_with_notes(scores: dict[str, float], code: str) -> None:
    cropped = model(input=InputSpec(height=64, width=64, crop="lungs"), requires=(PackRequirement(kind="lung-fields"),))
    outcome = screen_overruled(FakeFinder(MASK, mirrored=0.9, **scores), of=cropped, overrules=True)
    # neither notes nor the crop of a mask that is not trusted
    assert codes(outcome) == ["screened_anyway", code]
    assert outcome.facts.input_to_image.to_image(64, 64) == (outcome.facts.rows, outcome.facts.columns)
    assert outcome.lungs.evidence_inside is None
    assert codes(screen_overruled(FakeFinder(MASK), overrules=True)) == []


def test_an_overruled_out_of_distribution_refusal_is_screened_with_notes() -> None:
    gate = OutOfDistributionCheck(mean=np.zeros(4, np.float32), projection=np.eye(4, dtype=np.float32), limit=2.0)
    alone = replace(model(ood_gate=gate), lungs=None)
    far = FakeEngine(features=2.1)
    assert codes(screen_overruled(None, engine=far, of=alone, overrules=True)) == ["screened_anyway", "unlike_training"]
    both = screen_overruled(FakeFinder(MASK, frontal_chest=0.01), engine=far, of=model(ood_gate=gate), overrules=True)
    assert codes(both) == ["screened_anyway", "not_frontal_chest", "unlike_measured"]


def test_a_wrong_header_can_be_overruled_except_age_and_modality() -> None:
    wrong = ImageHeader(modality="DX", view_position="LL", body_part_examined="HAND", patient_age_years=40.0)
    assert codes(screen_overruled(FakeFinder(MASK), header=wrong)) == ["body_part"]
    overruled = screen_overruled(FakeFinder(MASK), header=wrong, overrules=True)
    assert codes(overruled) == ["screened_anyway", "body_part", "view"]
    children = model(accepted=replace(tiny_manifest().accepted, ages_years=(1, 5)))
    assert codes(screen_overruled(FakeFinder(MASK), header=wrong, of=children, overrules=True)) == ["age"]
    tomogram = replace(wrong, modality="CT")
    assert codes(screen_overruled(FakeFinder(MASK), header=tomogram, overrules=True)) == ["modality"]


class ScriptedChecks(FakeFinder):
    """Gives the test's scores for each reading, and for the two halves of a refused image."""

    def __init__(self, *said: dict[str, float]) -> None:
        super().__init__(MASK)
        self._said, self._usual = iter(said), self._checks

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        self._checks = {**self._usual, **next(self._said)}
        return super().run(image)


@pytest.mark.parametrize(
    ("scores", "turn", "notes"),
    [
        ({"rotated_90": 0.9}, Correction(90), ["turned_back"]),
        ({"rotated_180": 0.9}, Correction(180), ["turned_round"]),
        ({"inverted": 0.9}, Correction(inverts_grey=True), ["grey_swapped_back"]),
        ({"rotated_270": 0.9, "inverted": 0.9}, Correction(270, True), ["turned_clockwise", "grey_swapped_back"]),
    ],
)
def test_a_wrongly_turned_image_is_corrected_and_its_lungs_found_again(
    scores: dict[str, float], turn: Correction, notes: list[str]
) -> None:
    readers = LungReaders(ScriptedChecks(*3 * (scores,), {"mirrored": 0.9}))
    outcome = screen_overruled(None, workers=readers, turns=True)
    assert codes(outcome) == [*notes, "perhaps_mirrored"]
    assert (outcome.ref.correction, readers.turns, outcome.lungs.refusal) == (turn, [Correction(), turn], None)


def test_an_image_refused_after_turning_stays_refused_unturned() -> None:
    turned, nothing = 3 * ({"rotated_90": 0.9},), 3 * ({"frontal_chest": 0.01},)
    outcome = screen_overruled(ScriptedChecks(*turned, *nothing), turns=True)
    assert (outcome.status, outcome.reason.code, outcome.ref.correction) == ("refused", "rotated", Correction())
    assert outcome.lungs.rotation_degrees == 90
    again = screen_overruled(ScriptedChecks(*turned, *nothing), turns=True, overrules=True)
    assert codes(again) == ["turned_back", "screened_anyway", "not_frontal_chest"]
    assert again.ref.correction == Correction(90)
    assert codes(screen_overruled(ScriptedChecks(*nothing), turns=True)) == ["not_frontal_chest"]


NO_CHEST = {"frontal_chest": 0.01}


@pytest.mark.parametrize("of_whole", [NO_CHEST, {"rotated_90": 0.9}, {"inverted": 0.9}])
@pytest.mark.parametrize(("of_halves", "unseen"), [(({},), "left"), ((NO_CHEST, {}), "right")])
def test_a_chest_recognised_in_one_half_is_screened_and_read_first(
    of_whole: dict[str, float], of_halves: tuple[dict[str, float], ...], unseen: str
) -> None:
    """The left half and its mirror image look like a chest; the other half shows no lung."""
    outcome = screen(ScriptedChecks(of_whole, *of_halves))
    assert (outcome.status, outcome.lungs.unseen_lungs) == ("screened", (unseen,))
    assert codes(outcome) == [f"{unseen}_lung_not_found"]
    assert (outcome.lungs.left_lung_area_share if unseen == "left" else outcome.lungs.right_lung_area_share) == 0
