"""Reading reduced against reading in full: what is compared, and what the report makes of it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from benchmarks.command_line import run
from benchmarks.decisions import Compared, Pair, compare, decision_report, evaluate_both
from benchmarks.image_files import KINDS
from fieldray.commands.console import Console
from fieldray.domain.finding import ReadFacts
from fieldray.domain.image import Detail, PixelMap, Tensor
from fieldray.domain.model import InputSpec
from fieldray.domain.study import ImageRef
from fieldray.imaging.answers import ReadResult
from fieldray.inference.backend import Answer
from fieldray.reasons import reason
from program import write_images
from tiny_models import tiny_model
from tiny_packs import fingerprint, write_tiny_pack


class Brightness:
    """Its score is the input's mean grey, 255 as 1."""

    pid, capacity, detail, is_alive = None, 1, "", True

    def run(self, images: Sequence[NDArray[np.uint8]]) -> list[Answer]:
        scores = [np.array([image.mean() / 255], np.float32) for image in images]
        return [Answer(scores=score, class_maps=None, features=None, latency_ms=1.0) for score in scores]


class Darker:
    """Reads every image as even grey, in full 10 levels darker; what is called "bad" only reduced."""

    def __init__(self, grey: int) -> None:
        self._grey = grey
        self.kinds: list[str] = []

    def read(self, ref: ImageRef, spec: InputSpec, *, detail: Detail = "needed") -> ReadResult:
        if detail == "full" and "bad" in ref.path.name:
            return ReadResult(tensor=None, facts=ReadFacts(), problem=reason("truncated"))
        self.kinds.append(ref.path.suffix)
        values = np.full((1, spec.height, spec.width, 1), self._grey - 10 * (detail == "full"), np.uint8)
        return ReadResult(tensor=Tensor(values=values, pixel_map=PixelMap(1, 0, 1, 0)), facts=ReadFacts())


def pair(reduced: str, in_full: str, *, passes: tuple[bool, bool] = (True, True)) -> Pair:
    return Pair("RLE", "abnormal", (0.5, 0.52), (reduced, in_full), passes)  # type: ignore[arg-type]


def test_small_images_are_enlarged_and_written_in_turn(tmp_path: Path) -> None:
    write_images(tmp_path, 3, side=64)
    decoders = Darker(200)
    compared = compare(
        tmp_path, tiny_model(), decoders, Brightness(), most=2, cores=1, notify=lambda _: None
    )  # fmt: skip
    first, second = list(KINDS.values())[:2]
    assert compared.images == {first.name: 1, second.name: 1} == compared.changed
    assert decoders.kinds == [".dcm"] * 4
    assert compared.differences == pytest.approx([10 / 255] * 2)


def test_large_images_stay_as_they_are_and_bad_ones_are_counted(tmp_path: Path) -> None:
    image = np.tile(np.arange(1024, dtype=np.uint16).astype(np.uint8), (1024, 1))
    for name in ("bad.png", "good.png"):
        Image.fromarray(image).save(tmp_path / name, compress_level=1)
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:2000])
    compared = compare(
        tmp_path, tiny_model(), Darker(100), Brightness(), most=9, cores=1, notify=lambda _: None
    )  # fmt: skip
    assert compared.images == {"as it is": 1}
    assert compared.unread == {"truncated": 1, "source": 1}


def test_a_decision_of_each_label() -> None:
    """The tiny model's point is read from its manifest: well above and well below it whatever it is."""
    values = [np.full((64, 64, 1), grey, np.uint8) for grey in (255, 0)]
    (found,) = evaluate_both("RLE", values, tiny_model(), Brightness())
    assert found.decisions == ("above", "below") and not found.is_equal
    compared = Compared(pairs=[found])
    assert compared.jumps == 1 and compared.equal_share == 0


def test_a_close_call_counts_as_it_is_made_in_screening() -> None:
    # below 0.4 is below, from 0.6 on above; a grey of 255 is a score of 1
    for greys, expected in (
        ((150, 170, 160), (True, ("above", "above"))),
        ((150, 170), (False, ("unsure", "above"))),
        ((130, 170, 160), (False, ("unsure", "above"))),
    ):
        values = [np.full((64, 64, 1), grey, np.uint8) for grey in greys]
        (found,) = evaluate_both("JPEG", values, tiny_model(), Brightness())
        assert (found.is_close, found.decisions) == expected


@pytest.mark.parametrize(
    ("made", "is_equal"),
    [
        (pair("above", "above"), True),
        (pair("above", "unsure"), False),
        (pair("above", "below", passes=(False, False)), True),
        (pair("above", "above", passes=(True, False)), False),
    ],
)
def test_equal_is_what_a_person_sees_as_equal(made: Pair, is_equal: bool) -> None:
    assert made.is_equal is is_equal


def test_the_report() -> None:
    pairs = [pair("above", "above")] * 199 + [pair("unsure", "below")]
    compared = Compared(pairs=pairs)
    compared.images["RLE"], compared.changed["RLE"] = 200, 150
    report = decision_report(compared, pack="tiny-1.0.0", images="images")
    met = {mark["name"]: mark["is_met"] for mark in report.data["marks"]}
    # 200 images, differences of 0.02, 199 of 200 equal, no jump
    assert met == {
        "Images compared": False,
        "Mean difference of scores": False,
        "Share of equal decisions": True,
        "Jumps between above and below": True,
    }
    json.dumps(report.data)


def test_as_a_person_types_it(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "packs")
    write_images(tmp_path / "images", 2, side=64)
    out = io.StringIO()
    arguments = ["decisions", tmp_path / "images", "--pack", pack, "--trust", fingerprint(pack)]
    assert run([str(argument) for argument in arguments], console=Console(out, io.StringIO())) == 0
    assert "Share of equal decisions: 1, at least 0.995: met" in out.getvalue()


def test_nothing_to_compare(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "packs")
    (tmp_path / "empty").mkdir()
    arguments = ["decisions", tmp_path / "empty", "--pack", pack, "--trust", fingerprint(pack)]
    assert run([str(argument) for argument in arguments], console=Console(io.StringIO(), io.StringIO())) == 2
