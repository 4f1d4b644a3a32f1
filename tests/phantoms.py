"""Synthetic images as files of every kind, and files with every known fault.

There is no encoder for JPEG XL, and that for High-Throughput JPEG 2000 needs a further package
(`benchmarks.image_files`). These two syntaxes are tested with real files if the data folder exists.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import dcmwrite
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)

from benchmarks.image_files import save_dicom, set_compressed_frame, set_pixels
from fieldray.imaging.synthetic import chest_phantom, dicom_dataset
from long_headers import dicom_file

LOSSLESS: Mapping[str, UID] = {
    "implicit-little": ImplicitVRLittleEndian,
    "explicit-little": ExplicitVRLittleEndian,
    "explicit-big": ExplicitVRBigEndian,
    "deflated": DeflatedExplicitVRLittleEndian,
    "rle": RLELossless,
    "jpeg-lossless": JPEGLossless,
    "jpeg-lossless-sv1": JPEGLosslessSV1,
    "jpegls-lossless": JPEGLSLossless,
    "jpeg2000-lossless": JPEG2000Lossless,
    "htj2k-lossless": HTJ2KLossless,
}
LOSSY: Mapping[str, UID] = {
    "jpeg-baseline": JPEGBaseline8Bit,
    "jpeg-extended-12": JPEGExtended12Bit,
    "jpegls-near": JPEGLSNearLossless,
    "jpeg2000-lossy": JPEG2000,
}

Pixels = NDArray[np.uint16]
_A_REPORT = "1.2.840.10008.5.1.4.1.1.88.11"


def scaled(pixels: Pixels, bits: int) -> NDArray[Any]:
    """Return a 12-bit image with `bits` bits, as uint8 or uint16."""
    wide = pixels.astype(np.uint32)
    shifted = wide >> (12 - bits) if bits < 12 else wide << (bits - 12)
    return shifted.astype(np.uint8 if bits <= 8 else np.uint16)


def saved(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return a picture as the bytes of a file that Pillow writes."""
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def zipped(members: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip file of these members. Names may occur twice."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue()


def write_dicom(
    path: Path,
    pixels: Pixels,
    *,
    transfer_syntax: UID = ExplicitVRLittleEndian,
    photometric: str = "MONOCHROME2",
    bits: int = 12,
    signed: bool = False,
    number: int = 1,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a 12-bit image (0 is air) as DICOM. `changes` sets elements by keyword, or deletes them with None.

    Every file shows the picture: MONOCHROME1 is stored inverted, and a signed image with an intercept. RGB and YBR_FULL
    hold grey, PALETTE COLOR a grey ramp, all three in 8 bits.
    """
    dataset = dicom_dataset(pixels, study_number=number)
    if photometric in ("RGB", "YBR_FULL", "PALETTE COLOR"):
        _as_colour(dataset, scaled(pixels, 8), photometric)
    else:
        _as_grey(dataset, scaled(pixels, bits), photometric, bits, signed=signed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom warns of values that are wrong on purpose
        for keyword, value in (changes or {}).items():
            if value is None:
                delattr(dataset, keyword)
            else:
                setattr(dataset, keyword, value)
        _save(dataset, path, transfer_syntax)
    return path


def write_index(path: Path, references: Sequence[Sequence[str]]) -> Path:
    """Write a DICOMDIR that refers to these files, each given by the parts of its name."""
    index = Dataset()
    index.file_meta = FileMetaDataset()
    index.file_meta.MediaStorageSOPClassUID = UID("1.2.840.10008.1.3.10")
    index.file_meta.MediaStorageSOPInstanceUID = UID("2.25.1")
    index.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    records = [Dataset() for _ in references]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for record, components in zip(records, references, strict=True):
            record.DirectoryRecordType = "IMAGE"
            record.ReferencedFileID = list(components)
        index.DirectoryRecordSequence = records
        index.save_as(path, enforce_file_format=True)
    return path


def _as_grey(dataset: Dataset, values: NDArray[Any], photometric: str, bits: int, *, signed: bool) -> None:
    top = 2**bits - 1
    stored: NDArray[Any] = top - values.astype(np.int32) if photometric == "MONOCHROME1" else values.astype(np.int32)
    if signed:
        stored = stored - 2 ** (bits - 1)
        dataset.RescaleSlope, dataset.RescaleIntercept = 1, 2 ** (bits - 1)
    dataset.PhotometricInterpretation = photometric
    dataset.PresentationLUTShape = "INVERSE" if photometric == "MONOCHROME1" else "IDENTITY"
    dataset.BitsAllocated = 8 if bits <= 8 else 16
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = bits, bits - 1, int(signed)
    dataset.WindowCenter, dataset.WindowWidth = 2 ** (bits - 1), 2**bits
    set_pixels(dataset, stored.astype(f"<{'i' if signed else 'u'}{dataset.BitsAllocated // 8}"))


def _as_colour(dataset: Dataset, values: NDArray[np.uint8], photometric: str) -> None:
    dataset.PhotometricInterpretation = photometric
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    for keyword in ("WindowCenter", "WindowWidth", "PresentationLUTShape"):
        delattr(dataset, keyword)
    if photometric == "PALETTE COLOR":
        for colour in ("Red", "Green", "Blue"):
            setattr(dataset, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
            ramp = (np.arange(256) * 257).astype("<u2").tobytes()
            setattr(dataset, f"{colour}PaletteColorLookupTableData", ramp)
        set_pixels(dataset, values)
        return
    dataset.SamplesPerPixel, dataset.PlanarConfiguration = 3, 0
    chroma = np.full_like(values, 128) if photometric == "YBR_FULL" else values
    set_pixels(dataset, np.stack([values, chroma, chroma], axis=2))


def _save(dataset: Dataset, path: Path, transfer_syntax: UID) -> None:
    if transfer_syntax == JPEGExtended12Bit:
        stored = np.frombuffer(dataset.PixelData, "<u2").reshape(dataset.Rows, dataset.Columns)
        set_compressed_frame(dataset, imagecodecs.jpeg8_encode(stored, level=98, bitspersample=12))
    save_dicom(dataset, path, transfer_syntax)


# ---- collections


def write_collection(folder: Path, *, rows: int = 160, columns: int = 128) -> list[Path]:
    """Write one image in every transfer syntax, bit depth and photometric interpretation, and as PNG and JPEG.

    All show one picture (`chest_phantom(rows, columns, 7, abnormal=False)`), each in a study of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image = chest_phantom(rows, columns, 7, abnormal=False)
    written: list[Path] = []

    def dicom(name: str, **options: Any) -> None:
        written.append(write_dicom(folder / f"{name}.dcm", image, number=100 + len(written), **options))

    for name, syntax in LOSSLESS.items():
        dicom(name, transfer_syntax=syntax)
    for name, syntax in LOSSY.items():
        dicom(name, transfer_syntax=syntax, bits=8 if syntax == JPEGBaseline8Bit else 12)
    for bits in (8, 10, 12, 14, 15, 16):
        dicom(f"unsigned-{bits}", bits=bits)
        dicom(f"signed-{bits}", bits=bits, signed=True)
        dicom(f"monochrome1-{bits}", bits=bits, photometric="MONOCHROME1")
    for photometric in ("RGB", "YBR_FULL", "PALETTE COLOR"):
        dicom(photometric.lower().replace(" ", "-"), photometric=photometric)
    dicom("rle-monochrome1-signed", transfer_syntax=RLELossless, photometric="MONOCHROME1", signed=True)
    dicom("jpeg2000-monochrome1", transfer_syntax=JPEG2000Lossless, photometric="MONOCHROME1")
    written += _write_bare(folder, image)
    written += _write_rasters(folder, image)
    return written


def _write_bare(folder: Path, image: Pixels) -> list[Path]:
    """Write data sets without preamble, with and without file meta information."""
    whole = write_dicom(folder / "whole.dcm", image, number=98).read_bytes()
    (folder / "whole.dcm").unlink()
    without_preamble = folder / "no-preamble"
    without_preamble.write_bytes(whole[132:])
    dataset = dicom_dataset(image, study_number=99)
    paths = [without_preamble]
    for name, implicit, little in (("implicit", True, True), ("explicit", False, True), ("big", False, False)):
        path = folder / f"no-meta-{name}"
        bare = Dataset(dataset)
        bare.file_meta = FileMetaDataset()
        if not little:
            bare.PixelData = image.astype(">u2").tobytes()
        dcmwrite(path, bare, implicit_vr=implicit, little_endian=little)
        paths.append(path)
    return paths


def _write_rasters(folder: Path, image: Pixels) -> list[Path]:
    grey = scaled(image, 8)
    picture = Image.fromarray(grey)
    alpha = Image.new("L", picture.size, 255)
    upright = Image.Exif()
    upright[0x0112] = 6  # this orientation means: turn the stored picture by 90 degrees clockwise
    kinds: list[tuple[str, Image.Image, dict[str, Any]]] = [
        ("grey-8.png", picture, {}),
        ("grey-16.png", Image.fromarray(scaled(image, 16)), {}),
        ("palette.png", picture.convert("P"), {}),
        ("rgb.png", picture.convert("RGB"), {}),
        ("grey-alpha.png", Image.merge("LA", (picture, alpha)), {}),
        ("rgb-alpha.png", Image.merge("RGBA", (picture, picture, picture, alpha)), {}),
        ("grey.jpg", picture, {"quality": 95}),
        ("rgb.jpg", picture.convert("RGB"), {"quality": 95}),
        ("progressive.jpeg", picture, {"quality": 95, "progressive": True}),
        ("turned.jpg", picture.transpose(Image.Transpose.ROTATE_90), {"quality": 95, "exif": upright}),
    ]
    for name, picture, options in kinds:
        picture.save(folder / name, **options)
    return [folder / name for name, _, _ in kinds]


def write_bad_inputs(folder: Path) -> dict[str, tuple[str, str]]:
    """Write files with one fault each. Returns the expected status and reason by file name.

    A file without read permission is not among them, because root can read every file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image = chest_phantom(160, 128, 7, abnormal=False)
    good = write_dicom(folder / "good.dcm", image).read_bytes()
    (folder / "good.dcm").unlink()
    expected: dict[str, tuple[str, str]] = {}

    def bad(name: str, data: bytes, status: str, code: str) -> None:
        (folder / name).write_bytes(data)
        expected[name] = (status, code)

    _bad_dicom(bad, good)
    _bad_rasters(bad, scaled(image, 8))
    _bad_zips(bad, good)
    bad("empty.dcm", b"", "failed", "empty")
    bad("text.dcm", b"Dear colleague, please find the image attached.\n" * 20, "refused", "not_an_image")
    bad("program.dcm", b"MZ" + good[2:], "failed", "executable")
    bad("library", b"\x7fELF" + bytes(200), "refused", "not_an_image")
    bad("знімок " + "довга назва " * 6 + ".dcm", good[:2000], "failed", "truncated")
    for name, changes, code in (
        ("computed-tomography.dcm", {"Modality": "CT"}, "modality"),
        ("hand.dcm", {"BodyPartExamined": "HAND"}, "body_part"),
        ("side-view.dcm", {"ViewPosition": "LL"}, "view"),
        ("many-frames.dcm", {"NumberOfFrames": 1_000_000}, "too_many_frames"),
        ("report.dcm", {"PixelData": None, "Rows": None, "SOPClassUID": UID(_A_REPORT)}, "no_pixel_data"),
    ):
        write_dicom(folder / name, image, changes=changes)
        expected[name] = ("refused", code)
    write_dicom(folder / "tiny.dcm", image[:40, :40])
    write_dicom(folder / "strip.dcm", np.tile(image, (4, 1)))
    write_dicom(folder / "blank.dcm", np.full((160, 128), 1000, np.uint16))
    expected |= {f"{name}.dcm": ("refused", code) for name, code in (("tiny", "too_small"), ("strip", "aspect"))}
    expected["blank.dcm"] = ("refused", "blank")
    return expected


def _bad_dicom(bad: Any, good: bytes) -> None:
    pixels_at = good.index(b"\xe0\x7f\x10\x00OW")
    bad("cut-in-pixels.dcm", good[: pixels_at + 5000], "failed", "truncated")
    bad("cut-in-header.dcm", good[: pixels_at - 5], "failed", "truncated")
    bad("cut-between-elements.dcm", good[:pixels_at], "failed", "truncated")
    bad("zeros.dcm", bytes(len(good)), "failed", "truncated")
    twice = bytearray(good + good[pixels_at + 12 :])
    struct.pack_into("<I", twice, pixels_at + 8, 2 * (len(good) - pixels_at - 12))
    bad("one-frame-stated.dcm", bytes(twice), "failed", "more_images")
    lying = good[: pixels_at + 8] + struct.pack("<I", 0xFFFFFFF0) + good[pixels_at + 12 :]
    bad("length-lies.dcm", lying, "failed", "truncated")
    rows_at = good.index(b"\x28\x00\x10\x00US\x02\x00") + 8
    columns_at = good.index(b"\x28\x00\x11\x00US\x02\x00") + 8
    vast = bytearray(good)
    vast[rows_at : rows_at + 2] = vast[columns_at : columns_at + 2] = b"\xff\xff"
    bad("vast.dcm", bytes(vast), "failed", "too_large")
    vast[rows_at : rows_at + 2] = b"\0\0"
    bad("no-rows.dcm", bytes(vast), "failed", "damaged")
    bad("deflate-garbage.dcm", dicom_file(b"\xff" * 500, syntax=b"1.2.840.10008.1.2.1.99"), "failed", "damaged")


def _bad_rasters(bad: Any, grey: NDArray[np.uint8]) -> None:
    picture = Image.fromarray(grey)
    png, jpeg = saved(picture), saved(picture, "JPEG")
    bad("cut.png", png[: len(png) // 2], "failed", "truncated")
    bad("cut.jpg", jpeg[: len(jpeg) // 2], "failed", "truncated")
    bad("head-only.jpg", jpeg[:3], "failed", "truncated")
    damaged = bytearray(png)
    damaged[60:90] = bytes(30)
    bad("damaged.png", bytes(damaged), "failed", "damaged")
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = png[:8] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[33:]
    bad("bomb.png", bomb, "failed", "too_large")
    red = Image.merge("RGB", (picture, Image.new("L", picture.size), Image.new("L", picture.size)))
    bad("red.png", saved(red), "refused", "colour")
    bad("cmyk.jpg", saved(picture.convert("CMYK"), "JPEG"), "refused", "colour")


def _bad_zips(bad: Any, good: bytes) -> None:
    def packed(members: Mapping[str, bytes]) -> bytes:
        return zipped(members.items())

    bad("encrypted.zip", _flagged_encrypted(packed({"image.dcm": good})), "failed", "encrypted")
    bad("bomb.zip", packed({"image.dcm": good + bytes(100 * 2**20)}), "failed", "file_too_large")
    bad("nested.zip", packed({"inner.zip": packed({"image.dcm": good})}), "refused", "nested_zip")
    bad("cut.zip", packed({"image.dcm": good})[:-30], "failed", "damaged")
    bad("empty.zip", packed({}), "refused", "not_an_image")
    bad(
        "letter.docx", packed({"[Content_Types].xml": b"<x/>", "word/document.xml": b"<x/>"}), "refused", "not_an_image"
    )


def _flagged_encrypted(data: bytes) -> bytes:
    """Return a zip file with its members marked as encrypted, in the local header and in the listing."""
    marked = bytearray(data)
    marked[6] |= 1
    marked[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(marked)
