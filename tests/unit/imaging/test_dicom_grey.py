"""Modality LUT, VOI LUT, windows, polarity, padding and odd bit layouts, through whole files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom import dcmread, dcmwrite
from pydicom.dataset import Dataset
from pydicom.uid import UID, ExplicitVRBigEndian, ExplicitVRLittleEndian, JPEGLosslessSV1, RLELossless

from benchmarks.image_files import set_compressed_frame, set_pixels
from fieldray.domain.image import Image, ImageRef, Window
from fieldray.imaging.preprocess import to_display
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.synthetic import chest_phantom
from phantoms import write_dicom

# every 12-bit value once
RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)
IMAGE = chest_phantom(160, 128, 7, abnormal=False)


def _read(tmp_path: Path, pixels: NDArray[np.uint16] = RAMP, **options: Any) -> Image:
    path = write_dicom(tmp_path / "image.dcm", pixels, **options)
    return decode_image_bytes(path.read_bytes(), ImageRef(path=path))


def _table(entries: NDArray[Any], *, first: int = 0, bits: int = 16) -> list[Dataset]:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(entries) % 65536, first % 65536, bits])
    item.add_new("LUTData", "OW", entries.astype("<u2").tobytes())
    return [item]


# ---- rescale and Modality LUT


def test_rescale_values_are_stored_and_applied_to_the_window(tmp_path: Path) -> None:
    # value = stored / 2 - 100; a window of 400 about 300 (LINEAR: 99.5 to 498.5) is 399 to 1197 in stored values
    changes = {"RescaleSlope": 0.5, "RescaleIntercept": -100, "WindowCenter": 300, "WindowWidth": 400}
    image = _read(tmp_path, changes=changes)
    assert (image.value_scale, image.value_offset) == (0.5, -100)
    assert image.window == Window(center=799.0, width=798.0, function="LINEAR_EXACT")
    shown = to_display(image).reshape(-1)
    assert shown[[400, 799, 1198]].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        *(({"PhotometricInterpretation": value}, ("photometric_unknown",)) for value in ("", None, "MONOCHROME3")),
        *(({"BitsStored": bits, "HighBit": 11}, ("bits_stored_ignored",)) for bits in (0, 17, 99)),
        *(({"BitsStored": bits}, ()) for bits in (12, 16)),
        ({"PhotometricInterpretation": "monochrome2"}, ()),
    ],
)
def test_impossible_grey_attributes_are_ignored_with_a_note(
    changes: dict[str, Any], notes: tuple[str, ...], tmp_path: Path
) -> None:
    for syntax in (ExplicitVRLittleEndian, JPEGLosslessSV1, RLELossless):
        data = write_dicom(tmp_path / "image.dcm", IMAGE, transfer_syntax=syntax).read_bytes()
        dataset = dcmread(BytesIO(data))
        for keyword, value in changes.items():
            setattr(dataset, keyword, value)
        dataset.save_as(tmp_path / "image.dcm")
        image = decode_image_bytes((tmp_path / "image.dcm").read_bytes(), ImageRef(path=tmp_path))
        np.testing.assert_array_equal(image.pixels, IMAGE)
        assert image.notes == notes


def test_a_negative_slope_turns_the_picture(tmp_path: Path) -> None:
    changes = {"RescaleSlope": -1, "RescaleIntercept": 4095}
    image = _read(tmp_path, changes=changes)
    np.testing.assert_array_equal(image.pixels, 4095 - RAMP)
    assert (image.value_scale, image.value_offset) == (1, 0)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_a_modality_table_is_applied(photometric: str, tmp_path: Path) -> None:
    # halves the values, and uses its last entry for values beyond: 10 bits out
    entries = np.arange(2046) // 2
    changes = {"ModalityLUTSequence": _table(entries, bits=10), "WindowCenter": None, "WindowWidth": None}
    image = _read(tmp_path, photometric=photometric, changes=changes)
    stored = 4095 - RAMP if photometric == "MONOCHROME1" else RAMP
    values = np.minimum(stored // 2, 1022)
    # MONOCHROME1 is inverted from the table's highest entry, so that air is 0
    np.testing.assert_array_equal(image.pixels, 1022 - values if photometric == "MONOCHROME1" else values)


# ---- VOI


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_voi_table_is_applied(photometric: str, as_bytes: bool, tmp_path: Path) -> None:
    # entry n is for modality value 100 + n and shows (n / 1000) squared in 8 bits
    entries = np.rint(255 * (np.arange(1001) / 1000) ** 2).astype(int)
    sequence = _table(entries, first=100, bits=8)
    if not as_bytes:
        sequence[0]["LUTData"].VR = "US"
        sequence[0]["LUTData"].value = entries.tolist()
    shown = to_display(_read(tmp_path, photometric=photometric, changes={"VOILUTSequence": sequence})).reshape(-1)
    values = 4095 - np.arange(4096) if photometric == "MONOCHROME1" else np.arange(4096)
    expected = entries[np.clip(values - 100, 0, 1000)]
    np.testing.assert_array_equal(shown, 255 - expected if photometric == "MONOCHROME1" else expected)


@pytest.mark.parametrize("count", [256, 255])
def test_eight_bit_table_entries_packed_in_bytes(count: int, tmp_path: Path) -> None:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [count, 1920, 8])
    item.add_new("LUTData", "OW", bytes(range(255, -1, -1)))  # an odd number of entries is followed by one more byte
    shown = to_display(_read(tmp_path, changes={"VOILUTSequence": [item]})).reshape(-1)
    assert shown[[1920, 2020, 2175, 4000]].tolist() == [255, 155, 256 - count, 256 - count]


@pytest.mark.parametrize("descriptor", [[0, 0, 16], [4096, 0, 99], [1, 0, 16]])
def test_a_damaged_table_is_ignored(descriptor: list[int], tmp_path: Path) -> None:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", descriptor)
    item.add_new("LUTData", "OW", b"\1\2")
    image = _read(tmp_path, changes={"VOILUTSequence": [item]})
    assert image.voi_lut is None
    assert image.window is not None


def test_a_table_that_uses_fewer_bits_than_it_says(tmp_path: Path) -> None:
    # 16 bits stated, 12 used: white is 4095
    shown = to_display(_read(tmp_path, changes={"VOILUTSequence": _table(np.arange(4096), bits=16)})).reshape(-1)
    assert shown[[0, 2048, 4095]].tolist() == [0, 128, 255]


def test_the_first_of_several_windows_counts(tmp_path: Path) -> None:
    changes = {"WindowCenter": [1000, 3000], "WindowWidth": [401, 5], "VOILUTFunction": "LINEAR_EXACT"}
    assert _read(tmp_path, changes=changes).window == Window(1000, 401, "LINEAR_EXACT")


def test_a_sigmoid_window(tmp_path: Path) -> None:
    changes = {"WindowCenter": 2000, "WindowWidth": 1000, "VOILUTFunction": "SIGMOID"}
    shown = to_display(_read(tmp_path, changes=changes)).reshape(-1)
    # 255 / (1 + exp(-4 (2250 - 2000) / 1000)) = 255 * 0.731
    assert shown[[2000, 2250]].tolist() == [128, 186]


@pytest.mark.parametrize("changes", [{"WindowWidth": 0}, {"WindowWidth": -5}, {"WindowCenter": 60_000}])
def test_a_window_without_visible_values_is_ignored(changes: dict[str, Any], tmp_path: Path) -> None:
    image = _read(tmp_path, changes={"WindowCenter": 2000, "WindowWidth": 100, **changes})
    assert (image.window, image.notes) == (None, ("presentation_ignored",))
    assert to_display(image).std() > 50


GOOD = Window(2047.5, 4095, "LINEAR_EXACT")
RAW = {"RescaleSlope": 1, "RescaleIntercept": 0, "WindowCenter": 2048, "WindowWidth": 4096}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"VOILUTSequence": _table(np.linspace(0, 65535, 256), first=50_000)}, GOOD),  # outside the values
        ({"VOILUTSequence": _table(np.full(4096, 700), bits=12)}, GOOD),  # of one grey
        ({"VOILUTSequence": _table(np.arange(1))}, GOOD),
        ({"VOILUTSequence": _table(np.where(np.arange(4096) < 2000, 0, 4095), bits=12)}, GOOD),  # a step
        ({"WindowCenter": [60_000, 2048], "WindowWidth": [100, 4096]}, GOOD),
        ({"WindowCenter": 2048, "WindowWidth": 1}, None),
        ({"WindowCenter": 2048, "WindowWidth": 1e7}, None),
        ({"WindowCenter": 1500, "WindowWidth": 200}, None),  # black and white, and little between
        ({"WindowCenter": 1, "WindowWidth": 2}, None),  # shows only the black corner
    ],
)
def test_a_window_or_voi_table_without_contrast_gives_way_to_the_next(
    changes: dict[str, Any], window: Window | None, tmp_path: Path
) -> None:
    pixels = IMAGE.clip(100)
    pixels[:4, :4] = 0
    image = _read(tmp_path, pixels, changes=RAW | changes)
    assert (image.window, image.voi_lut) == (window, None)
    assert image.notes == ("presentation_ignored",)


def test_a_good_presentation_is_used_without_a_note(tmp_path: Path) -> None:
    table = {"VOILUTSequence": _table(np.arange(4096), bits=12)}
    for changes in ({}, {"WindowCenter": 1500, "WindowWidth": 600}, table):
        image = _read(tmp_path, IMAGE, changes=RAW | changes)
        assert image.notes == () and (image.window or image.voi_lut is not None)


def test_an_image_of_one_grey_keeps_its_window(tmp_path: Path) -> None:
    assert _read(tmp_path, np.full((64, 64), 1000, np.uint16), changes=RAW).window == GOOD


@pytest.mark.parametrize(("slope", "center", "width"), [(1 / 4095, 0.5, 1.0), (1e-4, 0.2048, 0.4095), (1e-3, 2.0, 4.0)])
def test_a_narrow_window_over_fractional_values_is_kept(
    slope: float, center: float, width: float, tmp_path: Path
) -> None:
    changes = {"RescaleSlope": f"{slope:.8g}", "RescaleIntercept": 0, "WindowCenter": center, "WindowWidth": width}
    window = _read(tmp_path, IMAGE, changes=changes).window
    assert window.center == pytest.approx(center / slope, rel=1e-5)
    assert window.width == pytest.approx(width / slope, rel=1e-5)


def test_decimal_commas_are_read_and_noted(tmp_path: Path) -> None:
    places = {"RescaleSlope": "+11111", "RescaleIntercept": "+22222", "WindowCenter": "+33333", "WindowWidth": "+44444"}
    data = write_dicom(tmp_path / "image.dcm", IMAGE, changes=places).read_bytes()
    for place, written in zip(places.values(), (b"0,5000", b"-10,00", b"1014,0", b"2048,0"), strict=True):
        data = data.replace(place.encode(), written)
    image = decode_image_bytes(data, ImageRef(path=tmp_path))
    assert (image.value_scale, image.value_offset) == (0.5, -10)
    assert image.window == Window((1013.5 + 10) / 0.5, 2047 / 0.5, "LINEAR_EXACT")
    assert image.notes == ("decimal_comma",)


@pytest.mark.parametrize("written", [(b"1.014,00", b"2.048,00"), (b"1,014.00", b"2,048.00")])
def test_of_point_and_comma_the_first_is_the_thousands_separator(written: tuple[bytes, bytes], tmp_path: Path) -> None:
    places = {"WindowCenter": "+3333333", "WindowWidth": "+4444444"}
    data = write_dicom(tmp_path / "image.dcm", IMAGE, changes=places).read_bytes()
    for place, value in zip(places.values(), written, strict=True):
        data = data.replace(place.encode(), value)
    usual = _read(tmp_path, IMAGE, changes={"WindowCenter": "1014", "WindowWidth": "2048"})
    assert decode_image_bytes(data, ImageRef(path=tmp_path)).window == usual.window


@pytest.mark.parametrize("slope", ["0", "1e400", "-inf", "NaN", "one"])
def test_an_invalid_rescale_slope_is_ignored_with_a_note(slope: str, tmp_path: Path) -> None:
    data = write_dicom(tmp_path / "image.dcm", IMAGE, changes=RAW | {"RescaleSlope": "+12345"}).read_bytes()
    image = decode_image_bytes(data.replace(b"+12345", slope.ljust(6).encode()), ImageRef(path=tmp_path))
    np.testing.assert_array_equal(image.pixels, IMAGE)
    assert image.notes == ("rescale_ignored",)


def test_a_modality_table_of_one_grey_is_ignored_with_a_note(tmp_path: Path) -> None:
    for entries in (np.full(4096, 9), np.arange(1)):
        image = _read(tmp_path, IMAGE, changes=RAW | {"ModalityLUTSequence": _table(entries)})
        np.testing.assert_array_equal(image.pixels, IMAGE)
        assert image.notes == ("rescale_ignored",)


# ---- polarity


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_monochrome1_shows_the_same_picture_under_a_window(function: str, tmp_path: Path) -> None:
    # the window of the negative: values are 4095 - value, so its centre is 4095 - c (LINEAR: + 1, for its half value)
    shift = 1 if function == "LINEAR" else 0
    usual = {"WindowCenter": 1500, "WindowWidth": 1000, "VOILUTFunction": function}
    turned = {**usual, "WindowCenter": 4095 - 1500 + shift}
    positive = to_display(_read(tmp_path, changes=usual)).astype(int)
    negative = to_display(_read(tmp_path, photometric="MONOCHROME1", changes=turned)).astype(int)
    assert np.abs(positive - negative).max() <= 1


# ---- padding


def test_padding_becomes_black_whatever_its_value(tmp_path: Path) -> None:
    framed = IMAGE.copy()
    framed[:20] = 4000
    for photometric, value in (("MONOCHROME2", 4000), ("MONOCHROME1", 95)):
        image = _read(tmp_path, framed, photometric=photometric, changes={"PixelPaddingValue": value})
        assert image.padding_value == 0
        assert image.pixels[:20].max() == 0
        assert to_display(image)[:20].max() == 0
        np.testing.assert_array_equal(image.pixels[20:], IMAGE[20:])


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, JPEGLosslessSV1, RLELossless])
@pytest.mark.parametrize(("signed", "value"), [(False, 65535), (False, 4096), (True, -32768), (True, -4096)])
def test_padding_above_the_stored_bits_is_black(syntax: UID, signed: bool, value: int, tmp_path: Path) -> None:
    kind = np.int16 if signed else np.uint16
    framed = IMAGE.astype(kind) - (2048 if signed else 0)
    framed[:, :20] = framed[:, -20:] = value
    dataset = dcmread(write_dicom(tmp_path / "plain.dcm", IMAGE, signed=signed))
    set_pixels(dataset, framed)
    dataset.BitsStored, dataset.HighBit, dataset.PixelPaddingValue = 12, 11, value
    dataset["PixelPaddingValue"].VR = "SS" if signed else "US"
    if syntax == JPEGLosslessSV1:
        set_compressed_frame(dataset, imagecodecs.jpeg8_encode(framed.view(np.uint16), lossless=True, bitspersample=16))
    elif syntax == RLELossless:
        dataset.compress(RLELossless)
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(tmp_path / "padded.dcm")
    image = decode_image_bytes((tmp_path / "padded.dcm").read_bytes(), ImageRef(path=tmp_path))
    shown, plain = to_display(image), to_display(_read(tmp_path, IMAGE, signed=signed))
    assert shown[:, :20].max() == shown[:, -20:].max() == 0
    np.testing.assert_array_equal(shown[:, 20:-20], plain[:, 20:-20])


def test_a_range_of_padding(tmp_path: Path) -> None:
    changes = {"PixelPaddingValue": 4095, "PixelPaddingRangeLimit": 4000}
    pixels = _read(tmp_path, changes=changes).pixels.reshape(-1)
    assert pixels[3999] == 3999
    assert pixels[4000:].max() == 0


def test_padding_of_a_signed_image_written_as_unsigned(tmp_path: Path) -> None:
    # -2048 as 16 unsigned bits is 63488; it is the darkest value of this image
    image = _read(tmp_path, signed=True, changes={"PixelPaddingValue": -2048})
    assert image.padding_value == 0
    np.testing.assert_array_equal(image.pixels, RAMP)


# ---- unusual bit layouts


@pytest.mark.parametrize("stored", [8, 10, 11])
def test_image_values_beyond_the_stated_bits_are_kept(stored: int, tmp_path: Path) -> None:
    image = _read(tmp_path, IMAGE, changes={"BitsStored": stored, "HighBit": stored - 1})
    np.testing.assert_array_equal(image.pixels, IMAGE)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_wide_integers_are_scaled_to_16_bits(photometric: str, tmp_path: Path) -> None:
    wide = RAMP.astype("<u4") * 1_000_000
    changes = {"PixelData": wide.tobytes(), "BitsAllocated": 32, "BitsStored": 32, "HighBit": 31}
    image = _read(tmp_path, changes={**changes, "PhotometricInterpretation": photometric})
    values = image.pixels * image.value_scale + image.value_offset
    # 16 bits for a span of 4.1e9: off by half a step of 62,500 at most
    assert np.abs(values - wide).max() <= 31_250
    assert (image.pixels[0, 0] == 0) == (photometric == "MONOCHROME2")
    assert "scaled_to_16_bits" in image.notes


def test_wide_integers_of_a_small_range_keep_their_values(tmp_path: Path) -> None:
    changes = {"PixelData": RAMP.astype("<u4").tobytes(), "BitsAllocated": 32, "BitsStored": 32, "HighBit": 31}
    image, plain = _read(tmp_path, changes=changes), _read(tmp_path)
    np.testing.assert_array_equal(image.pixels, RAMP)
    assert (image.window, image.value_scale) == (plain.window, plain.value_scale)


@pytest.mark.parametrize("least", [100, -3000, 70_000])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("is_table", [False, True])
def test_padding_and_tables_apply_to_unscaled_wide_values(
    least: int, padding: bool, is_table: bool, tmp_path: Path
) -> None:
    wide = RAMP.astype("<i4") + least
    none = least - 20_000
    wide[:, :5] = none if padding else wide[:, 5:6]
    changes = {"PixelData": wide.tobytes(), "BitsAllocated": 32, "BitsStored": 32, "HighBit": 31}
    changes |= {"PixelRepresentation": 1, "WindowCenter": least + 2048, "WindowWidth": 4096}
    changes |= {"PixelPaddingValue": none} if padding and -32768 <= none <= 32767 else {}
    squares = np.arange(4096) ** 2 // 256
    if is_table and least < 65536:
        changes |= {"ModalityLUTSequence": _table(squares, first=least), "WindowCenter": 32768, "WindowWidth": 65536}
        expected = squares[RAMP] / 256
    else:
        expected = RAMP / 16
    shown = to_display(_read(tmp_path, changes=changes))
    assert np.abs(shown[:, 5:].astype(int) - expected[:, 5:]).max() < 2
    if padding and least < 50_000:
        assert shown[:, :5].max() == 0


def test_colour_is_shown_as_stored_however_dark_it_is(tmp_path: Path) -> None:
    image = _read(tmp_path, IMAGE // 25, bits=8, photometric="RGB")
    assert (image.window, image.notes) == (Window(127.5, 255, "LINEAR_EXACT"), ("grey_from_colour",))


@pytest.mark.parametrize(("bits", "order"), [(8, "<"), (16, "<"), (16, ">")])
def test_a_palette_is_applied_to_indices_of_any_depth(bits: int, order: str, tmp_path: Path) -> None:
    entries = np.rint((np.arange(4096) / 4095) ** 2 * (2**bits - 1)).astype(order + "u2")
    dataset, path = dcmread(write_dicom(tmp_path / "plain.dcm", IMAGE)), tmp_path / "palette.dcm"
    dataset.PhotometricInterpretation = "PALETTE COLOR"
    for colour in ("Red", "Green", "Blue"):
        dataset.add_new(f"{colour}PaletteColorLookupTableDescriptor", "US", [4096, 0, bits])
        setattr(dataset, f"{colour}PaletteColorLookupTableData", entries.tobytes())
    set_pixels(dataset, IMAGE.astype(order + "u2"))
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian if order == "<" else ExplicitVRBigEndian
    dcmwrite(path, dataset, implicit_vr=False, little_endian=order == "<", force_encoding=True)
    np.testing.assert_array_equal(decode_image_bytes(path.read_bytes(), ImageRef(path=path)).pixels, entries[IMAGE])


def test_grey_attributes_that_old_files_leave_out_have_defaults(tmp_path: Path) -> None:
    missing = ("SamplesPerPixel", "BitsStored", "HighBit", "PixelRepresentation", "PhotometricInterpretation")
    bare = dict.fromkeys((*missing, "PresentationLUTShape"))
    for changes in (bare, {"PhotometricInterpretation": "MONOCHROME"}):
        np.testing.assert_array_equal(_read(tmp_path, changes=changes).pixels, RAMP)
    turned = _read(tmp_path, changes={"PresentationLUTShape": "INVERSE"})
    np.testing.assert_array_equal(turned.pixels, 4095 - RAMP)


@pytest.mark.parametrize(
    ("pixel", "imager", "calibration", "expected"),
    [
        (None, None, None, (None, "")),
        (None, [0.1], None, (None, "")),
        (None, [0, 0.2], None, (None, "")),
        (None, [0.2, 0.1], None, ((0.2, 0.2), "detector")),
        ([0.2, 0.1], [0.2, 0.1], None, ((0.2, 0.2), "detector")),
        ([0.18, 0.09], [0.2, 0.1], None, ((0.18, 0.18), "calibrated")),
        ([0.2, 0.1], [0.2, 0.1], "FIDUCIAL", ((0.2, 0.2), "calibrated")),
        ([0.2, 0.1], None, "GEOMETRY", ((0.2, 0.2), "calibrated")),
        ([0.2, 0.1], None, None, ((0.2, 0.2), "unstated")),
        ([0, 0.1], [0.3, 0.3], None, ((0.3, 0.3), "detector")),
    ],
)
def test_a_pixel_spacing_names_its_plane(
    pixel: list[float] | None,
    imager: list[float] | None,
    calibration: str | None,
    expected: tuple[tuple[float, float] | None, str],
    tmp_path: Path,
) -> None:
    added = {"PixelSpacing": pixel, "PixelSpacingCalibrationType": calibration}
    changes = {"ImagerPixelSpacing": imager, **{keyword: value for keyword, value in added.items() if value}}
    image = _read(tmp_path, changes=changes)
    assert (image.spacing_mm, image.spacing_plane) == expected
