"""Reading for the network that finds the lungs, and the crop for the classifier."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Picture

from fakes import FakeFinder, LungReaders, PaintedFile
from fieldray.domain.image import Box, Correction, Image, ImageDetail, ImageRef
from fieldray.domain.model import HeaderRules, InputSpec, Model, PackRequirement
from fieldray.domain.pack_setup import set_up_pack
from fieldray.domain.run import RefusalOverrides
from fieldray.errors import BackendProblem
from fieldray.imaging.preprocess import thumbnail, to_display, to_network_input, with_default_window
from fieldray.imaging.reading import ImageFile, decode_preview
from fieldray.imaging.reduction import (
    ASSUMED_LUNG_SIDE_SHARE,
    TargetSize,
    target_size,
    target_size_for_all,
    target_size_for_crop,
)
from fieldray.imaging.source import FileStamper
from fieldray.imaging.synthetic import chest_phantom
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.litert import Network
from fieldray.processes.child import encode_message
from fieldray.reasons import reason
from fieldray.workers import calls
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from fieldray.workers.image_worker import ImageWorker, handle
from phantoms import write_dicom
from tiny_lungs import tiny_lungs_model
from tiny_models import tiny_manifest, tiny_model

WHOLE = InputSpec(height=32, width=32)
LUNGS = InputSpec(height=48, width=48, fit="pad")
CROPPED = InputSpec(height=32, width=32, crop="lungs", intensity="as_displayed")


def gradient() -> Image:
    """An image of 120 x 100 pixels whose grey level is the row number."""
    return Image(pixels=np.repeat(np.arange(120, dtype=np.uint8)[:, None], 100, axis=1))


def test_a_crop_box_is_fitted_like_a_whole_image() -> None:
    image = gradient()
    box = Box(top=40.0, left=10.0, height=64.0, width=32.0)
    tensor = to_network_input(image, CROPPED, box=box)
    # two rows of the box make one of the tensor
    assert (tensor.input_to_image.row_scale, tensor.input_to_image.row_offset) == (2.0, 40.0)
    assert (tensor.input_to_image.column_scale, tensor.input_to_image.column_offset) == (1.0, 10.0)
    assert (np.diff(tensor.values[0, :, 0, 0].astype(int)) >= 0).all()


def test_a_crop_box_is_in_pixels_of_the_file_at_any_resolution() -> None:
    pixels = chest_phantom(256, 256, 3, abnormal=False)
    full = Image(pixels=pixels)
    means = pixels.reshape(128, 2, 128, 2).mean((1, 3)).astype(np.float32)
    half = Image(pixels=means, reduction_factor=2, file_rows=256, file_columns=256, window=full.window)
    box = Box(top=32.0, left=64.0, height=128.0, width=96.0)
    first, second = to_network_input(full, CROPPED, box=box), to_network_input(half, CROPPED, box=box)
    assert first.input_to_image == second.input_to_image
    # a column of the tensor is three of the file, which averages of two columns cannot give exactly
    assert np.abs(first.values.astype(int) - second.values.astype(int)).mean() < 1.5


def test_whole_images_are_read_at_the_resolution_that_each_network_needs() -> None:
    needed = target_size(CROPPED)
    assert (needed.rows, needed.columns) == pytest.approx((32 / ASSUMED_LUNG_SIDE_SHARE, 32 / ASSUMED_LUNG_SIDE_SHARE))
    both = target_size_for_all(WHOLE, LUNGS)
    assert (both.rows, both.columns, both.needs_only_longer_side) == (48.0, 48.0, False)
    assert target_size_for_all(WHOLE) == target_size(WHOLE)
    assert target_size_for_all() is None


@pytest.mark.parametrize(
    ("step", "is_approximate", "detail", "needed"),
    [
        (1, False, "needed", None),
        # 200 of 400 rows are 100 of the read ones: enough for 32 with twice as many
        (2, False, "needed", None),
        # 25 of the read rows
        (8, False, "needed", (64.0, 128.0)),
        # 50 are more than 1.5 times as many, and less than twice
        (4, True, "needed", None),
        (4, False, "needed", (64.0, 128.0)),
        (4, True, "finer", (256.0, 512.0)),
    ],
)
def test_an_image_is_read_in_more_detail_if_its_crop_needs_it(
    step: int, is_approximate: bool, detail: ImageDetail, needed: tuple[float, float] | None
) -> None:
    pixels = np.zeros((400 // step, 400 // step), np.float32 if step > 1 else np.uint8)
    image = Image(
        pixels=pixels, reduction_factor=step, has_approximate_pixels=is_approximate, file_rows=400, file_columns=400
    )
    found = target_size_for_crop(CROPPED, Box(top=0.0, left=0.0, height=200.0, width=100.0 * 2), image, detail)
    wide = target_size_for_crop(CROPPED, Box(top=0.0, left=0.0, height=200.0, width=100.0), image, detail)
    assert (found is None) == (needed is None)
    if needed and wide:
        assert (wide.rows, wide.columns) == needed


@pytest.fixture
def ref(tmp_path: Path) -> ImageRef:
    path = tmp_path / "image.png"
    Picture.fromarray((chest_phantom(400, 300, 5, abnormal=True) >> 4).astype(np.uint8)).save(path)
    return ImageRef(path=path)


class Boxed(FakeFinder):
    """Finds lungs in the middle half of every image."""

    def __init__(self) -> None:
        mask = np.zeros((16, 16))
        mask[4:12, 4:7] = mask[4:12, 9:12] = 1
        super().__init__(mask)
        self.seen: list[NDArray[np.uint8]] = []

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        self.seen.append(image)
        return super().run(image)


def model(spec: InputSpec, rules: HeaderRules | None = None) -> Model:
    manifest = tiny_manifest(
        input=spec, accepted=rules or HeaderRules(), requires=(PackRequirement(kind="lung-fields"),)
    )
    return replace(tiny_model(manifest=manifest), lungs=tiny_lungs_model())


class Files(ImageFile):
    """Records the resolution at which each file was decoded."""

    asked: ClassVar[list[TargetSize | None]] = []

    def decode_image(self, needed: TargetSize | None = None) -> Image:
        self.asked.append(needed)
        return super().decode_image(needed)


def look(ref: ImageRef, spec: InputSpec, finder: FakeFinder | None = None, **question: Any) -> AnalysisResult:
    Files.asked.clear()
    readers = LungReaders(finder, open_file=Files)
    return readers.analyse(AnalysisRequest(ref=ref, **question), model=model(spec))


def test_both_networks_get_their_input(ref: ImageRef) -> None:
    finder = Boxed()
    seen = look(ref, WHOLE, finder)
    assert seen.input_values is not None and seen.input_values.shape == (1, 32, 32, 1)
    (lungs,) = finder.seen
    assert lungs.shape == (tiny_lungs_model().manifest.input.height, tiny_lungs_model().manifest.input.width, 1)
    alone = look(ref, WHOLE)
    assert alone.lungs is None and np.array_equal(alone.input_values, seen.input_values)


def test_the_lung_crop_is_taken_from_the_full_resolution_of_a_png(ref: ImageRef) -> None:
    """A PNG is decoded whole and once; its crop comes from all its pixels, whatever the reduction for the lungs."""
    seen = look(ref, CROPPED, Boxed())
    assert (seen.facts.rows, seen.facts.columns, seen.has_approximate_pixels) == (400, 300, False)
    box = seen.lungs.crop_box(rows=400, columns=300, margin=CROPPED.crop_margin)
    whole = to_network_input(with_default_window(ImageFile(ref).decode_image()), CROPPED, box=box)
    assert np.abs(seen.input_values.astype(int) - whole.values.astype(int)).max() <= 2
    assert seen.facts.input_to_image.row_offset == whole.input_to_image.row_offset
    assert "read_twice" not in seen.facts.notes
    assert seen.input_values is not None and seen.input_values.shape == (1, 32, 32, 1)


class Coarse(PaintedFile):
    """A file that its codec reads at half resolution."""

    def decode_image(self, needed: TargetSize | None = None) -> Image:
        pixels = super().decode_image(needed).pixels.astype(np.float32)
        return Image(pixels=pixels, reduction_factor=2, has_approximate_pixels=True, file_rows=128, file_columns=128)


class FailsAtTheSecond:
    """A network that is uncertain about its first image and fails at the second."""

    run_count = 0

    def run(self, _: NDArray[np.uint8]) -> NetworkOutput:
        self.run_count += 1
        if self.run_count > 1:
            raise BackendProblem(reason("worker_died"))
        return NetworkOutput(scores=np.array([0.42], np.float32), class_maps=None, features=None, latency_ms=1.0)


def test_a_failed_second_reading_leaves_no_answer_of_the_first() -> None:
    network, of = FailsAtTheSecond(), tiny_model()
    worker = ImageWorker(open_file=Coarse, open_network=lambda _model, _file: cast("Any", network))
    worker.load(calls.load_request(of))
    (seen,) = worker.analyse_for_packs(
        [
            AnalysisRequest(
                ref=ImageRef(path=Path("bright.jpg")),
                operating_points=set_up_pack(of).points,
                classifier_location="here",
            )
        ]
    )
    assert network.run_count == 2 and "read_twice" in seen.facts.notes
    assert (seen.network_output, seen.stage, seen.problem) == (None, "inference", reason("worker_died"))


@pytest.mark.parametrize("said", [[0.42, 0.9], [0.42, None], [0.42, BackendProblem(reason("worker_died"))]])
def test_a_worker_reads_again_after_a_borderline_answer_of_a_device(said: list[float | BackendProblem | None]) -> None:
    """The worker runs the second input itself if the device is gone, and gives no answer if the device failed."""
    asked = list[calls.DeviceRunRequest]()

    def elsewhere(question: calls.DeviceRunRequest) -> calls.DeviceRunResult:
        asked.append(question)
        found = said[len(asked) - 1]
        if isinstance(found, BackendProblem):
            raise found
        return calls.DeviceRunResult(scores=None if found is None else {"opacity": found})

    network, of = FailsAtTheSecond(), tiny_model()
    open_network = lambda _model, _file: cast("Any", network)  # noqa: E731
    worker = ImageWorker(open_file=Coarse, open_network=open_network, run_elsewhere=elsewhere)
    worker.load(calls.load_request(of))
    question = AnalysisRequest(
        ref=ImageRef(path=Path("bright.jpg")), operating_points=set_up_pack(of).points, classifier_location="elsewhere"
    )
    (seen,) = worker.analyse_for_packs([question])
    assert [one.values.shape for one in asked] == [(1, 64, 64, 1)] * 2 and {one.request_number for one in asked} == {0}
    assert "read_twice" in seen.facts.notes
    assert (seen.input_values, seen.problem, seen.stage) == (None, None, "inference")
    assert network.run_count == (said[1] is None) and (seen.network_output is not None) == (said[1] is None)


@pytest.mark.parametrize("turn", [Correction(90), Correction(180), Correction(270), Correction(90, inverts_grey=True)])
def test_a_turned_file_is_read_as_the_upright_image(turn: Correction, tmp_path: Path) -> None:
    upright, lying = tmp_path / "upright.png", tmp_path / "lying.png"
    pixels = chest_phantom(400, 320, 5, abnormal=True) >> 8
    Picture.fromarray(pixels.astype(np.uint8)).save(upright)
    Picture.fromarray(turn.inverse.apply_to_grey(pixels.astype(np.uint8))).save(lying)
    right, wrong = ImageRef(path=upright), ImageRef(path=lying, correction=turn)
    eyes = Boxed(), Boxed()
    first, second = look(right, CROPPED, eyes[0], detail="full"), look(wrong, CROPPED, eyes[1])
    assert Files.asked == [None]  # a file to be turned is never reduced
    assert (second.facts.rows, second.facts.columns) == (400, 320)
    pairs = [(eyes[0].seen[0], eyes[1].seen[0]), (first.input_values, second.input_values)]
    for mine, its in (*pairs, (first.facts.thumbnail, second.facts.thumbnail)):
        assert np.abs(mine.astype(int) - its.astype(int)).max() <= 2
    assert first.facts.input_to_image == second.facts.input_to_image
    shown = [ImageFile(ref).read_for_display(None) for ref in (right, wrong)]
    assert np.abs(to_display(shown[0]).astype(int) - to_display(shown[1]).astype(int)).max() <= 1
    small = calls.READ_SHOWN_IMAGE.decode_answer(
        handle(encode_message(calls.DisplayRequest(ref=wrong, longer_side_px=100), call="shown"))
    )
    assert (small.file_rows, small.file_columns) == (400, 320)
    assert np.abs(small.pixels.astype(int) - thumbnail(shown[0], 100).astype(int)).max() <= 2
    kept = [decode_preview(found.facts.preview) for found in (first, second)]
    assert kept[1].shape == turn.inverse.apply_to_grey(kept[0]).shape  # stored unturned, like its file


def test_overruling_accepts_the_view_but_not_the_age(tmp_path: Path) -> None:
    path = tmp_path / "side.dcm"
    said = {"ViewPosition": "LL", "PatientAge": "040Y"}
    write_dicom(path, chest_phantom(200, 160, 5, abnormal=True) >> 4, changes=said)
    ref = ImageRef(path=path)
    adults = HeaderRules(views=("PA", "AP"), ages_years=(18, 120))

    def problem(rules: HeaderRules, *, overrules: bool = False) -> tuple[str | None, list[str]]:
        seen = look(ref, WHOLE, rules=rules, overrides=RefusalOverrides(overrules=overrules))
        return seen.problem and seen.problem.code, [why.code for why in seen.overruled_reasons]

    assert problem(adults) == ("view", [])
    assert problem(adults, overrules=True) == (None, ["view"])
    assert problem(replace(adults, ages_years=(1, 5)), overrules=True) == ("age", ["view"])


def test_an_image_refused_by_header_has_a_thumbnail_except_other_modalities(tmp_path: Path) -> None:
    def seen_of(**said: str) -> AnalysisResult:
        path = tmp_path / "one.dcm"
        write_dicom(path, chest_phantom(200, 160, 5, abnormal=True) >> 4, changes=said)
        return look(ImageRef(path=path), WHOLE, rules=HeaderRules(views=("PA", "AP"), ages_years=(18, 120)))

    lateral, scan = seen_of(ViewPosition="LL"), seen_of(Modality="CT")
    assert lateral.problem and (lateral.problem.code, lateral.is_refusal) == ("view", True)
    assert lateral.facts.thumbnail is not None and (lateral.facts.rows, lateral.facts.columns) == (200, 160)
    assert scan.problem and (scan.problem.code, scan.facts.thumbnail) == ("modality", None)


class Bright:
    """A classifier that gives the brightness of its input as score, without features and maps."""

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        score = np.array([image.mean() / 255], np.float32)
        return NetworkOutput(scores=score, class_maps=None, features=None, latency_ms=1.0)


def test_several_packs_get_the_same_results_as_alone_from_one_reading(ref: ImageRef) -> None:
    """The file is opened once, decoded once for each needed size, and its lungs are searched for once."""
    models = [replace(model(spec), model_sha256=f"{number}" * 64) for number, spec in enumerate((CROPPED, WHOLE))]
    finder, opened = Boxed(), list[Path]()

    def open_file(found: ImageRef, *, stamps: FileStamper | None = None) -> Files:
        opened.append(found.path)
        return Files(found, stamps=stamps)

    def open_network(of: Model, _file: NDArray[np.uint8]) -> Network:
        return cast("Network", finder if of.manifest.lung_rules else Bright())

    def look_with(*packs: Model) -> tuple[AnalysisResult, ...]:
        for noted in (Files.asked, opened, finder.seen):
            noted.clear()
        worker = ImageWorker(open_file=open_file, open_network=open_network)
        worker.load(calls.load_request(*packs))
        looks = [
            AnalysisRequest(ref=ref, finds_lungs=True, classifier_location="here", pack_number=number)
            for number in range(len(packs))
        ]
        return worker.analyse_for_packs(looks)

    alone, asked, times = [], set[TargetSize | None](), 0
    for one in models:
        alone += look_with(one)
        asked |= set(Files.asked)
        times += len(Files.asked)
    together = look_with(*models)
    assert (opened, len(finder.seen)) == ([ref.path], 1)
    assert Counter(Files.asked) == Counter(asked) and len(Files.asked) < times
    for mine, its in zip(alone, together, strict=True):
        assert mine.network_output.scores.tobytes() == its.network_output.scores.tobytes()
        assert (mine.facts.input_to_image, mine.facts.notes) == (its.facts.input_to_image, its.facts.notes)
        assert (
            mine.lungs is not None
            and its.lungs is not None
            and np.array_equal(mine.lungs.lung_shares, its.lungs.lung_shares)
        )
        assert (mine.reduction_factor, mine.classifier_run_count, mine.facts.preview) == (
            its.reduction_factor,
            its.classifier_run_count,
            its.facts.preview,
        )
    assert alone[0].network_output.scores != alone[1].network_output.scores
