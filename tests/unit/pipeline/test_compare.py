"""A comparison from files to its result: reading, lungs, matching of headers, and a child that may die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeFinder, FakeReaders, LungReaders, PaintedFile
from fieldray.domain.image import CoordinateMap, Image, ImageHeader, ImageRef
from fieldray.domain.model import Model
from fieldray.errors import Cancelled, Unreadable, UsageProblem
from fieldray.imaging.reduction import TargetSize
from fieldray.imaging.synthetic import lung_mask
from fieldray.pipeline.compare import PairComparer, find_single_image, lungs_in_frame, make_comparison_process
from fieldray.processes.child import Child
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from lungs import lungs
from pairs import chest
from tiny_lungs import tiny_lungs_model

MASK = lung_mask(512, 512, 1).reshape(16, 32, 16, 32).mean(axis=(1, 3)) / 255


class ChestFile(PaintedFile):
    def decode_image(self, needed: TargetSize | None = None) -> Image:
        name = self._ref.path.name
        if "broken" in name:
            raise Unreadable(reason("truncated"))
        side = 200 if "small" in name else 512
        return Image(pixels=chest().pixels[:side, :side].copy())


class ChestReaders(LungReaders):
    """Every file is the drawn chest, except for what its name states."""

    def __init__(self, finder: FakeFinder) -> None:
        super().__init__(finder, open_file=ChestFile)

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        assert model
        name = question.ref.path.name
        header = ImageHeader(patient_id=Path(name).stem.partition("-")[0])
        return super().analyse(replace(question, ref=replace(question.ref, header=header)), model=model)


def named(name: str) -> ImageRef:
    return ImageRef(path=Path("/images") / name)


def comparer(**changes: Any) -> PairComparer:
    return PairComparer(**{"workers": ChestReaders(FakeFinder(MASK)), "finder": tiny_lungs_model(), **changes})


@pytest.fixture
def plain() -> Iterator[PairComparer]:
    with comparer() as one:
        yield one


def test_two_images_of_one_patient_are_comparable_repeatedly(plain: PairComparer) -> None:
    pair = plain.compare(named("a-1.png"), named("a-2.png"))
    assert pair.comparison.is_comparable
    assert not pair.is_unreadable
    assert pair.comparison.duration_s > 0
    # The mask of 16 x 16 cells lies in the frame where it was drawn
    drawn = lung_mask(512, 512, 1) > 127
    assert (pair.prior.framed_image.lungs & drawn).sum() / drawn.sum() > 0.85
    assert plain.compare(named("a-1.png"), named("a-1.png")).comparison.is_comparable


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a.png", "b.png"), ("compare_other_patients", "both", False)),
        (("a-small.png", "a.png"), ("compare_small", "prior", False)),
        (("a.png", "a-broken.png"), ("truncated", "current", True)),
    ],
)
def test_incomparable_images_are_refused_with_a_reason(
    plain: PairComparer, names: tuple[str, str], expected: tuple[str, str, bool]
) -> None:
    pair = plain.compare(*map(named, names))
    problem = pair.comparison.problem
    assert (problem.reason.code, problem.image, pair.is_unreadable) == expected


def test_a_file_with_a_problem_from_discovery_is_not_read(plain: PairComparer) -> None:
    text = replace(named("a.txt"), problem=reason("not_an_image"), problem_is_refusal=True)
    pair = plain.compare(text, named("a.png"))
    assert (pair.comparison.problem.reason.code, pair.is_unreadable) == ("not_an_image", False)


@pytest.mark.parametrize(
    ("scores", "code"), [({"frontal_chest": 0.01}, "not_frontal_chest"), ({"inverted": 0.9}, "inverted")]
)
def test_lung_checks_refuse_as_in_screening(scores: dict[str, float], code: str) -> None:
    with comparer(workers=ChestReaders(FakeFinder(MASK, **scores))) as one:
        problem = one.compare(named("a-1.png"), named("a-2.png")).comparison.problem
    assert (problem.reason.code, problem.image) == (code, "prior")


def test_a_child_that_dies_fails_only_its_pair() -> None:
    broken = Child("fieldray.comparison.nothing_there:handle")
    with comparer(child=lambda: broken) as one:
        problem = one.compare(named("a-1.png"), named("a-2.png")).comparison.problem
    assert problem.reason.code == "compare_stopped"


def test_a_cancelled_comparison_ends_and_the_next_one_runs() -> None:
    child = make_comparison_process()
    asked = threading.Event()

    class SlowReaders(ChestReaders):
        def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
            if "wait" in question.ref.path.name:
                asked.set()
                cancelled.wait(30)
            return super().analyse(question, model=model)

    cancelled = threading.Event()
    with comparer(child=lambda: child, workers=SlowReaders(FakeFinder(MASK))) as one:

        def cancel() -> None:
            asked.wait(30)
            one.cancel()
            cancelled.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(Cancelled):
            one.compare(named("a-wait.png"), named("a.png"))
        thread.join()
        assert one.compare(named("a-1.png"), named("a-2.png")).comparison.is_comparable
    assert not child.is_running


def test_lungs_are_mapped_from_the_image_to_the_frame() -> None:
    # An image of 800 x 400 pixels: 1.5625 each in the frame, which begins 200 pixels left of the image
    mask = lungs_in_frame(lungs(), CoordinateMap(1.5625, 0.0, 1.5625, -200.0))
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    # Cells 10 to 30 of 20 rows: 200 to 600 of the image, 128 to 384 of the frame; columns 50 to 330: 160 to 339
    assert (rows[0], rows[-1] + 1) == pytest.approx((128, 384), abs=2)
    assert (columns[0], columns[-1] + 1) == pytest.approx((160, 339), abs=2)


def test_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="contains 0 images"):
        find_single_image(tmp_path, workers=FakeReaders())


def test_a_cancelled_comparison_reads_no_image() -> None:
    class NoReaders(ChestReaders):
        def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
            raise AssertionError("an image was read")

    with comparer(child=make_comparison_process, workers=NoReaders(FakeFinder(MASK))) as one, pytest.raises(Cancelled):
        one.compare(named("a-1.png"), named("a-2.png"), is_wanted=lambda: False)
