"""The benchmark of reading images at reduced and at full resolution: compared scores and decisions, and the report."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.command_line import run
from benchmarks.decisions import (
    DecisionComparison,
    DecisionPair,
    SingleImageScreener,
    compare,
    decision_report,
    make_pair,
)
from benchmarks.image_files import IMAGE_KINDS
from fakes import FakeEngine, FakeReaders
from fieldray.commands.console import Console
from fieldray.domain.finding import ImageFacts
from fieldray.domain.image import CoordinateMap
from fieldray.domain.model import Model
from fieldray.domain.pack_setup import set_up_pack
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from outcomes import refused, screened
from program import write_images
from tiny_models import tiny_model


class Darker(FakeReaders):
    """A fake worker: every image is uniform grey, at full resolution 10 levels darker, where "bad" images fail."""

    def __init__(self, grey: int) -> None:
        super().__init__()
        self._grey = grey
        self.kinds: list[str] = []

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        ref, is_full = question.ref, question.detail == "full"
        spec = model.manifest.input
        if is_full and "bad" in ref.path.name:
            return AnalysisResult(problem=reason("truncated"))
        self.kinds.append(ref.path.suffix)
        values = np.full((1, spec.height, spec.width, 1), self._grey - 10 * is_full, np.uint8)
        return AnalysisResult(input_values=values, facts=ImageFacts(input_to_image=CoordinateMap(1, 0, 1, 0)))


def program(grey: int) -> SingleImageScreener:
    return SingleImageScreener(setup=set_up_pack(tiny_model()), workers=Darker(grey), engine=FakeEngine())


def pair(reduced: str, in_full: str, *, is_screened: tuple[bool, bool] = (True, True)) -> DecisionPair:
    return DecisionPair("RLE", "abnormal", (0.5, 0.52), (reduced, in_full), is_screened)  # type: ignore[arg-type]


def test_small_images_are_enlarged_and_written_in_turn(tmp_path: Path) -> None:
    write_images(tmp_path, 3, side=64)
    run_by = program(200)
    compared = compare(tmp_path, run_by, max_images=2, cores=1, notify=lambda _: None)
    first, second = list(IMAGE_KINDS.values())[:2]
    assert compared.images == {first.name: 1, second.name: 1}
    assert isinstance(run_by.workers, Darker) and run_by.workers.kinds == [".dcm"] * 4
    assert compared.differences == pytest.approx([10 / 255] * 2)


def test_large_images_stay_as_they_are_and_bad_ones_are_counted(tmp_path: Path) -> None:
    image = np.tile(np.arange(1024, dtype=np.uint16).astype(np.uint8), (1024, 1))
    for name in ("bad.png", "good.png"):
        Image.fromarray(image).save(tmp_path / name, compress_level=1)
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:2000])
    compared = compare(tmp_path, program(100), max_images=9, cores=1, notify=lambda _: None)
    assert compared.images == {"as it is": 1}
    assert compared.unreadable_images == {"truncated": 1, "source": 1}


def test_the_benchmark_makes_the_decisions_of_screening_for_each_label() -> None:
    above = screened(score=1.0, decision="above")
    above = replace(above, facts=ImageFacts(notes=("read_twice",)))
    found = make_pair("RLE", "opacity", above, screened(score=0.0, decision="below"))
    assert found.decisions == ("above", "below") and found.is_close and not found.is_equal
    compared = DecisionComparison(pairs=[found])
    assert compared.opposite_decisions == 1 and compared.equal_share == 0


def test_an_image_that_is_refused_has_no_score() -> None:
    found = make_pair("RLE", "opacity", screened(score=1.0), refused())
    assert found.is_screened == (True, False) and not found.is_equal and math.isnan(found.scores[1])
    both = make_pair("RLE", "opacity", refused(), refused())
    assert both.is_equal
    assert DecisionComparison(pairs=[found, both]).differences.tolist() == [0.0]


@pytest.mark.parametrize(
    ("made", "is_equal"),
    [
        (pair("above", "above"), True),
        (pair("above", "unsure"), False),
        (pair("above", "below", is_screened=(False, False)), False),
        (pair("above", "above", is_screened=(True, False)), False),
    ],
)
def test_pairs_are_equal_if_decisions_and_screened_states_are_equal(made: DecisionPair, is_equal: bool) -> None:
    assert made.is_equal is is_equal


def test_the_report() -> None:
    pairs = [pair("above", "above")] * 199 + [pair("unsure", "below")]
    compared = DecisionComparison(pairs=pairs)
    compared.images["RLE"] = 200
    report = decision_report(compared, pack="tiny-1.0.0", images="images")
    met = {mark["name"]: mark["is_met"] for mark in report.json_values["marks"]}
    # 200 images, differences of 0.02, 199 of 200 equal, no jump
    assert met == {
        "Images compared": False,
        "Mean difference of scores": False,
        "Share of equal decisions": True,
        "Changes between above and below": True,
    }
    json.dumps(report.json_values)


def test_bench_decisions_works_from_the_command_line(tmp_path: Path, pack_options: list[str]) -> None:
    write_images(tmp_path / "images", 2, side=64)
    out = io.StringIO()
    assert run(["decisions", str(tmp_path / "images"), *pack_options], console=Console(out, io.StringIO())) == 0
    assert "Share of equal decisions: 1, at least 0.995: met" in out.getvalue()
