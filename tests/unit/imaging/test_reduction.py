"""Reading at a lower resolution: the network gets the same input as from the full image, and refusals are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import JPEG2000, JPEG2000Lossless, JPEGBaseline8Bit

from benchmarks.image_files import set_compressed_frame
from fieldray.domain.image import Image, ImageRef
from fieldray.domain.model import InputSpec
from fieldray.errors import InputProblem
from fieldray.imaging.preprocess import thumbnail, to_network_input
from fieldray.imaging.quality import check_pixels
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.reduction import (
    LARGEST_REDUCTION,
    TargetSize,
    block_means,
    block_sums,
    largest_reduction,
    target_size,
)
from fieldray.imaging.synthetic import chest_phantom
from fieldray.workers.calls import AnalysisRequest
from fieldray.workers.pool import WorkerPool
from phantoms import LOSSLESS, LOSSY, saved, scaled, write_collection, write_dicom
from raised import raises

# As displayed: the drawn letter covers about one pixel in a hundred, so a percentile could include it or not.
SPEC = InputSpec(height=64, width=64, margin=0.04, intensity="as_displayed")
NEEDED = target_size(SPEC)
# 69.6 pixels are needed; a step of 5 leaves more than twice as many: 720 // 139.1
IMAGE = chest_phantom(823, 720, 7, abnormal=True)
WAVELETS = LOSSLESS["jpeg2000-lossless"]


def _both(path: Path) -> tuple[Image, Image]:
    """The image read in full, and at the resolution that is needed."""
    data, ref = path.read_bytes(), ImageRef(path=path)
    return decode_image_bytes(data, ref), decode_image_bytes(data, ref, needed_size=NEEDED)


def _difference(full: Image, reduced: Image) -> float:
    """The mean difference of the two tensors, in grey levels of 255."""
    tensors = [to_network_input(image, SPEC) for image in (full, reduced)]
    for name in ("row_scale", "row_offset", "column_scale", "column_offset"):
        first, second = (getattr(tensor.input_to_image, name) for tensor in tensors)
        assert first == pytest.approx(second)
    return float(np.abs(tensors[0].values.astype(int) - tensors[1].values).mean())


# ---- the step


def test_the_step_leaves_twice_the_needed_size() -> None:
    need = TargetSize(250, 250)
    assert largest_reduction(3000, 2500, need) == 5
    assert largest_reduction(3000, 2499, need) == 4
    assert largest_reduction(3000, 2500, need, steps=(1, 2, 4, 8)) == 4
    assert largest_reduction(3000, 2500, need, oversampling=1.25, steps=(1, 2, 4, 8)) == 8
    assert largest_reduction(100, 2500, need) == 1
    assert largest_reduction(1, 1, need) == 1
    assert largest_reduction(400_000, 400_000, TargetSize(1, 1)) == LARGEST_REDUCTION


def test_rows_and_columns_have_their_own_needed_size() -> None:
    # 3000 / (2 x 300) = 5 down, 2500 / (2 x 125) = 10 across
    assert largest_reduction(3000, 2500, TargetSize(300, 125)) == 5
    assert largest_reduction(3000, 2500, TargetSize(300, 125).rotated_by_90) == 4
    assert largest_reduction(3000, 2500, TargetSize(300, 125, needs_only_longer_side=True)) == 10


def test_the_needed_size_includes_the_margin_that_is_cut_off() -> None:
    need = target_size(InputSpec(height=160, width=100, margin=0.1, fit="pad"))
    assert (need.rows, need.columns, need.needs_only_longer_side) == (pytest.approx(200), pytest.approx(125), True)


@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (64, 48), (40, 100)])
def test_every_fit_gives_the_same_tensor(fit: str, height: int, width: int, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE)
    data, ref = path.read_bytes(), ImageRef(path=path)
    spec = InputSpec(**{"height": height, "width": width, "margin": 0.04, "fit": fit})
    full, reduced = decode_image_bytes(data, ref), decode_image_bytes(data, ref, needed_size=target_size(spec))
    assert reduced.reduction_factor > 1
    tensors = [to_network_input(image, spec).values.astype(int) for image in (full, reduced)]
    assert np.abs(tensors[0] - tensors[1]).mean() <= 0.05


# ---- blocks


@pytest.mark.parametrize(("kind", "low", "high"), [("u1", 0, 255), ("u2", 0, 4095), ("u2", 0, 65535), ("i2", -999, 99)])
@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_sums_are_exact_also_at_the_edges(kind: str, low: int, high: int, step: int) -> None:
    values = np.random.default_rng(1).integers(low, high, (53, 40), endpoint=True).astype(kind)
    sums = block_sums(values, step)
    for row, column in ((0, 0), (sums.shape[0] - 1, 0), (0, sums.shape[1] - 1), (sums.shape[0] - 1, sums.shape[1] - 1)):
        block = values[row * step : (row + 1) * step, column * step : (column + 1) * step]
        assert sums[row, column] == block.astype(int).sum()
    assert sums.sum() == values.astype(int).sum()


def test_the_largest_blocks_do_not_overflow() -> None:
    values = np.full((130, 129), 65535, np.uint16)
    assert np.unique(block_means(values, LARGEST_REDUCTION)).tolist() == [65535]


# ---- every kind of file


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_collection(tmp_path_factory.mktemp("collection"), rows=416, columns=360)


def test_every_kind_gives_the_same_tensor_reduced(collection: list[Path]) -> None:
    for path in collection:
        full, reduced = _both(path)
        # 360 // 139.1 = 2; the stream of htj2k has the container's 16 bits, so that it is read in full
        is_wavelets = "jpeg2000" in path.name
        assert reduced.reduction_factor == (4 if is_wavelets else 2), path.name
        assert (reduced.file_rows, reduced.file_columns) == full.pixels.shape
        assert reduced.view == full.view
        assert reduced.notes == full.notes
        if full.spacing_mm:
            assert reduced.spacing_mm == tuple(side * reduced.reduction_factor for side in full.spacing_mm)
        # the low pass of wavelets and of the smaller cosine transform differs from an average
        is_near = is_wavelets or ("jp" in path.suffix and "rgb" not in path.name) or "baseline" in path.name
        assert (full.has_approximate_pixels, reduced.has_approximate_pixels) == (False, is_near), path.name
        assert _difference(full, reduced) <= (1.5 if is_near else 0.05), path.name
        assert np.abs(thumbnail(full).astype(int) - thumbnail(reduced)).mean() <= 2, path.name


# ---- table: how a file is written, how far it is reduced, and the allowed difference of the tensor


def _dicom(path: Path, pixels: np.ndarray[Any, Any] = IMAGE, **options: Any) -> Path:
    return write_dicom(path, pixels, **options)


def _of_size(path: Path, *, columns: int) -> Path:
    image = chest_phantom(800 + columns % 8, columns, 7, abnormal=True)
    return write_dicom(path, image, transfer_syntax=WAVELETS)


def _wavelet_file(path: Path, pixels: np.ndarray[Any, Any], **options: Any) -> Path:
    """An image compressed by Pillow, which can use tiles and fewer resolutions."""
    write_dicom(path, IMAGE)
    dataset = dcmread(path)
    dataset.Rows, dataset.Columns = pixels.shape
    # Pillow takes 16-bit values
    dataset.BitsStored, dataset.HighBit, dataset.WindowCenter, dataset.WindowWidth = 16, 15, 32768, 65536
    set_compressed_frame(dataset, saved(Picture.fromarray(pixels), "JPEG2000", no_jp2=True, **options))
    dataset.file_meta.TransferSyntaxUID = JPEG2000Lossless
    dataset.save_as(path)
    return path


def _with_overlay(path: Path) -> Path:
    """A file with an overlay in the bits above the stored ones."""
    pixels = IMAGE.copy()
    pixels[::3] |= 0x8000
    return write_dicom(path, IMAGE, changes={"PixelData": pixels.tobytes()})


def _with_other_precision(path: Path) -> Path:
    """A file whose header states 14 bits, and its JPEG 2000 stream 12."""
    dataset = dcmread(write_dicom(path, IMAGE, transfer_syntax=WAVELETS))
    dataset.BitsStored, dataset.HighBit = 14, 13
    dataset.save_as(path)
    return path


def _turned(path: Path, *, suffix: str, **options: Any) -> Path:
    """A PNG or JPEG whose Exif asks for a turn by 90 degrees."""
    exif, path = Picture.Exif(), path.with_suffix(suffix)
    exif[0x0112] = 6
    Picture.fromarray(scaled(IMAGE, 8)).save(path, exif=exif, **options)
    return path


GREY_16 = scaled(IMAGE, 16)
WRITTEN: Mapping[str, tuple[Callable[[Path], Path], int, float]] = {
    "bits above the stored ones": (_with_overlay, 5, 0.0),
    # 720 / 8 is not below 1.25 x 69.6
    **{f"wavelets, {side} columns": (partial(_of_size, columns=side), 8, 1.5) for side in range(720, 726)},
    # a stream with one resolution has no lower one: it is decoded whole, and averaged over blocks
    "wavelets, 1 level": (partial(_wavelet_file, pixels=GREY_16, num_resolutions=1), 5, 0.01),
    "wavelets, 2 levels": (partial(_wavelet_file, pixels=GREY_16, num_resolutions=2), 2, 1.5),
    "wavelets, 6 levels": (partial(_wavelet_file, pixels=GREY_16, num_resolutions=6), 8, 1.5),
    # streams whose lower resolution would be wrong are decoded in full
    "wavelets in tiles": (partial(_wavelet_file, pixels=GREY_16, tile_size=(200, 150)), 5, 0.01),
    "wavelets of another precision": (_with_other_precision, 5, 0.01),
    "wavelets, signed": (partial(_dicom, transfer_syntax=WAVELETS, signed=True), 5, 0.01),
    "wavelets, padded": (partial(_dicom, transfer_syntax=WAVELETS, changes={"PixelPaddingValue": 0}), 5, 0.01),
    "wavelets, colour": (partial(_dicom, transfer_syntax=WAVELETS, photometric="RGB"), 5, 0.01),
    "cosines, colour": (
        partial(
            _dicom,
            transfer_syntax=JPEGBaseline8Bit,
            photometric="RGB",
            changes={"PhotometricInterpretation": "RGB"},
        ),
        5,
        0.01,
    ),
    # the cosine transform only halves: 720 // 4 leaves more than 139.1, 720 // 8 does not
    "JPEG, turned": (partial(_turned, suffix=".jpg", quality=95), 4, 1.0),
    "PNG, turned": (partial(_turned, suffix=".png"), 5, 0.01),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_reduced_image_gives_nearly_the_same_tensor(name: str, tmp_path: Path) -> None:
    write, step, difference = WRITTEN[name]
    full, reduced = _both(write(tmp_path / "image.dcm"))
    assert (full.reduction_factor, reduced.reduction_factor) == (1, step)
    assert (reduced.file_rows, reduced.file_columns) == full.pixels.shape
    assert reduced.pixels.shape == tuple(-(-side // step) for side in full.pixels.shape)
    assert _difference(full, reduced) <= difference


@pytest.mark.parametrize(
    "changes",
    [
        {"RescaleSlope": -2.5, "RescaleIntercept": 100, "WindowCenter": -4000, "WindowWidth": 9000},
        {"VOILUTFunction": "SIGMOID", "WindowCenter": 1500, "WindowWidth": 900},
        {"PresentationLUTShape": "INVERSE"},
        {"PixelPaddingValue": 0},
        {"PixelPaddingValue": 0, "PixelPaddingRangeLimit": 300},
        {"WindowCenter": None, "WindowWidth": None, "PixelPaddingValue": 5000},
    ],
)
def test_grey_attributes_apply_to_reduced_images(changes: Mapping[str, Any], tmp_path: Path) -> None:
    for name in ("explicit-little", "explicit-big", "rle", "jpegls-lossless"):
        full, reduced = _both(
            write_dicom(tmp_path / "image.dcm", IMAGE, changes=changes, transfer_syntax=LOSSLESS[name])
        )
        assert (full.reduction_factor, reduced.reduction_factor) == (1, 5)
        assert (reduced.padding_value, reduced.value_scale) == (full.padding_value, full.value_scale)
        assert reduced.window == full.window
        # without a window the percentiles of slightly different blocks are used
        assert _difference(full, reduced) <= (0.01 if full.window else 1.0)


def test_nonlinear_tables_are_applied_before_averaging(tmp_path: Path) -> None:
    table = Dataset()
    table.LUTDescriptor = [4096, 0, 12]
    table.LUTData = (4095 * (np.arange(4096) / 4095) ** 3).astype("<u2").tolist()
    table["LUTDescriptor"].VR = table["LUTData"].VR = "US"
    for keyword in ("ModalityLUTSequence", "VOILUTSequence"):
        full, reduced = _both(write_dicom(tmp_path / "image.dcm", IMAGE, changes={keyword: [table]}))
        assert reduced.reduction_factor == 5
        assert _difference(full, reduced) <= 0.01
    # each pixel goes through the table and is then averaged, which differs from the table of the average
    modality = write_dicom(tmp_path / "image.dcm", IMAGE, changes={"ModalityLUTSequence": [table]})
    expected = np.array(table.LUTData)[IMAGE[:820]].reshape(164, 5, 144, 5).mean((1, 3))
    np.testing.assert_allclose(_both(modality)[1].pixels[:164], expected, rtol=1e-5)


def test_frames_are_reduced_one_by_one(tmp_path: Path) -> None:
    images = np.stack([IMAGE, IMAGE[::-1]])
    changes = {"NumberOfFrames": 2, "PixelData": images.astype("<u2").tobytes()}
    path = write_dicom(tmp_path / "frames.dcm", IMAGE, changes=changes)
    second = decode_image_bytes(path.read_bytes(), ImageRef(path=path, frame=1), needed_size=NEEDED)
    np.testing.assert_allclose(second.pixels, block_means(images[1], 5))


def test_colour_is_refused_at_every_resolution(tmp_path: Path) -> None:
    tinted = np.stack([scaled(IMAGE, 8)] * 3, axis=2)
    tinted[::25, ::25, 0] //= 2  # one pixel in 625, which an average would hide
    for suffix in (".png", ".jpg"):
        path = tmp_path / f"image{suffix}"
        Picture.fromarray(tinted).save(path, **({"quality": 100, "subsampling": 0} if suffix == ".jpg" else {}))
        for needed in (None, NEEDED):
            with raises(InputProblem, "colour"):
                decode_image_bytes(path.read_bytes(), ImageRef(path=path), needed_size=needed)


def test_refusals_are_the_same_at_lower_resolution(tmp_path: Path) -> None:
    grey = np.full((800, 700), 1000, np.uint16)
    strip = np.tile(IMAGE, (3, 1))
    for pixels, code in ((grey, "blank"), (strip, "aspect"), (IMAGE, None)):
        for name in ("explicit-little", "jpeg2000-lossless", "rle"):
            images = _both(write_dicom(tmp_path / "image.dcm", pixels, transfer_syntax=LOSSLESS[name]))
            found = [problem.code if (problem := check_pixels(image)) else None for image in images]
            assert found == [code, code], name


# ---- JPEG 2000


def test_a_stream_with_the_containers_precision_is_reduced(tmp_path: Path) -> None:
    path = _wavelet_file(tmp_path / "image.dcm", IMAGE)
    # Bits above the stored ones cannot be separated at a lower resolution; a lossy stream has nothing in them.
    for syntax, bits, step in ((WAVELETS, 12, 5), (JPEG2000, 12, 8), (JPEG2000, 10, 5)):
        dataset = dcmread(path)
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.BitsStored, dataset.HighBit, dataset.WindowCenter, dataset.WindowWidth = bits, bits - 1, 2048, 4096
        dataset.save_as(path)
        full, reduced = _both(path)
        assert reduced.reduction_factor == step
        assert (reduced.window, reduced.notes) == (full.window, full.notes)
        assert _difference(full, reduced) <= 1.5


def test_a_window_for_a_single_pixel_is_judged_by_the_full_image(tmp_path: Path) -> None:
    image = np.minimum(IMAGE, 2000)
    image[400, 400] = 4000  # the window shows only this pixel
    changes = {"WindowCenter": 3900, "WindowWidth": 400}
    full, reduced = _both(write_dicom(tmp_path / "image.dcm", image, transfer_syntax=WAVELETS, changes=changes))
    assert full.notes == ("presentation_ignored",)
    assert reduced.notes == full.notes
    assert reduced.window == full.window


def _outcome(data: bytes, *, needed: TargetSize | None) -> str:
    try:
        image = decode_image_bytes(data, ImageRef(path=Path("image.dcm")), needed_size=needed)
    except InputProblem as error:
        return error.reason.code
    return "read" if image.file_rows else "?"


@pytest.mark.parametrize(
    "name",
    [
        *("jpeg2000-lossless", "jpeg2000-lossy", "htj2k-lossless", "jpeg-baseline", "rle", "jpegls-lossless"),
        "jpeg-lossless-sv1",
    ],
)
def test_damage_is_never_hidden_by_reading_less(name: str, tmp_path: Path) -> None:
    syntax = {**LOSSLESS, **LOSSY}[name]
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax, bits=8 if name == "jpeg-baseline" else 12)
    data = path.read_bytes()
    random = np.random.default_rng(4)
    for share in (0.3, 0.7, 0.95):
        cut = data[: int(len(data) * share)]
        assert _outcome(cut, needed=NEEDED) == _outcome(cut, needed=None) == "truncated"
    for _ in range(12):
        changed = bytearray(data)
        at = random.integers(len(data) - 30_000 if len(data) > 60_000 else len(data) // 2, len(data) - 100)
        changed[at : at + 40] = bytes(random.integers(0, 256, 40).tolist())
        reduced = _outcome(bytes(changed), needed=NEEDED)
        # a part that is not read may be damaged; a part that is read must give the error of the full reading
        assert reduced in ("read", _outcome(bytes(changed), needed=None))


# ---- the smallest, the largest


@pytest.mark.parametrize("name", ["explicit-little", "explicit-big", "deflated", "rle", "jpeg-lossless-sv1"])
def test_one_pixel_and_long_lines_are_read_whole(name: str, tmp_path: Path) -> None:
    for rows, columns in ((1, 1), (1, 300), (40, 30_000)):
        image = (np.arange(rows * columns).reshape(rows, columns) % 4096).astype(np.uint16)
        full, reduced = _both(write_dicom(tmp_path / "image.dcm", image, transfer_syntax=LOSSLESS[name]))
        assert (reduced.reduction_factor, reduced.pixels.shape) == (1, (rows, columns))
        np.testing.assert_array_equal(full.pixels, reduced.pixels)


def test_one_pixel_of_wavelets_or_cosines_is_read_whole(tmp_path: Path) -> None:
    pixel = np.full((1, 1), 40000, np.uint16)
    full, reduced = _both(_wavelet_file(tmp_path / "image.dcm", pixel, num_resolutions=1))
    assert full.pixels.tolist() == reduced.pixels.tolist() == [[40000]]
    syntax = LOSSY["jpeg-baseline"]
    full, reduced = _both(write_dicom(tmp_path / "image.dcm", pixel // 16, transfer_syntax=syntax, bits=8))
    assert full.pixels.tolist() == reduced.pixels.tolist() == [[2500 >> 4]]


def test_a_long_image_of_thirty_thousand_rows_is_reduced(tmp_path: Path) -> None:
    image = np.tile(IMAGE[:100, :400], (300, 1))
    jpeg = saved(Picture.fromarray(scaled(image, 8)), "JPEG")
    image = decode_image_bytes(jpeg, ImageRef(path=tmp_path / "image.jpg"), needed_size=NEEDED)
    assert (image.reduction_factor, image.pixels.shape, image.file_rows) == (2, (15_000, 200), 30_000)


def test_a_worker_reports_whether_an_image_was_reduced(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=WAVELETS)
    with WorkerPool(1, timeout_s=60, memory_limit_mb=2048) as pool:
        looks = [
            AnalysisRequest(ref=ImageRef(path=path), whole_image_input_spec=SPEC, detail=detail)
            for detail in ("needed", "finer", "full")
        ]
        reads = [pool.analyse(look, model=None) for look in looks]
    assert [read.has_approximate_pixels for read in reads] == [True, True, False]
