"""An image: its pixels and display window, its file, and the facts from its DICOM header."""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.reasons import Reason

WindowFunction = Literal["LINEAR", "LINEAR_EXACT", "SIGMOID"]
# The plane in which a pixel spacing is measured. "detector": the detector's plane, where anatomy appears magnified.
# "calibrated": the patient. "unstated": the file does not say. "": the file has no spacing.
SpacingPlane = Literal["", "detector", "calibrated", "unstated"]
Coordinate = TypeVar("Coordinate", float, NDArray[np.float64])  # a row or a column, or an array of them


# The resolution at which a file is read. "needed": enough for the network's input. "fine" (for a part of the image) and
# "finer" (for the whole image): more pixels, to settle a borderline result. "full": all pixels.
ImageDetail = Literal["needed", "fine", "finer", "full"]


@dataclass(frozen=True, slots=True)
class Window:
    """Window centre and width in the units of `Image.pixels` (DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3)."""

    center: float
    width: float
    function: WindowFunction = "LINEAR"

    def __post_init__(self) -> None:
        if not self.width > 0 or not np.isfinite(self.center + self.width):
            raise ValueError(f"window width must be above 0 and finite, not {self.width}")


@dataclass(frozen=True, slots=True)
class Correction:
    """The correction of an image that is rotated or inverted. The correction comes before any other processing.

    rotation_degrees  rotation anticlockwise: 0, 90, 180 or 270
    inverts_grey      whether black and white are swapped
    """

    rotation_degrees: int = 0
    inverts_grey: bool = False

    def __post_init__(self) -> None:
        if self.rotation_degrees not in (0, 90, 180, 270):
            raise ValueError(f"an image is turned by quarters, not by {self.rotation_degrees} degrees")

    @property
    def inverse(self) -> Correction:
        """The correction that undoes this correction."""
        return Correction(-self.rotation_degrees % 360, self.inverts_grey)

    def rotate(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a rotated copy of an array (rows, columns), such as an image's mask.

        The array's values stay as they are.
        """
        return np.rot90(values, self.rotation_degrees // 90).copy()

    def apply_to_grey(self, grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return grey levels (rows, columns) uint8 rotated, and with black and white swapped if `inverts_grey`."""
        levels: NDArray[np.uint8] = self.rotate(grey) if self.rotation_degrees else grey
        return ~levels if self.inverts_grey else levels


NO_CORRECTION: Final = Correction()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Image:
    """One upright grey image, read-only.

    pixels                   (rows, columns) uint8 or uint16 after the Modality LUT, or float32 averages if
                             `reduction_factor` is above 1. 0 is air (black), whatever the photometric interpretation
                             was. The modality value is `pixels * value_scale + value_offset`
    window                   the file's VOI window in the units of `pixels`; None if the file has no window
    voi_lut                  the file's VOI LUT as display values 0..65535, indexed by pixel value; or None
    padding_value            pixel value that marks "no data" (DICOM Pixel Padding Value); or None
    spacing_mm               (row, column) distance in mm between the centres of adjacent elements of `pixels`; or None
    spacing_plane            the plane in which `spacing_mm` is measured
    view                     View Position
    reduction_factor         how many pixels of the file, down and across, each element of `pixels` stands for; elements
                             of the last row and column stand for the remainder. Above 1 if the file was read at a
                             reduced resolution on purpose
    has_approximate_pixels   whether a codec reduced the resolution. The elements of `pixels` then differ a little from
                             averages of the file's pixels
    file_rows, file_columns  numbers of rows and columns of the image in its file; 0 if equal to those of `pixels`
    notes                    codes of assumptions and repairs made while reading, for the log and the viewer
    """

    pixels: NDArray[Any]
    window: Window | None = None
    voi_lut: NDArray[np.uint16] | None = None
    padding_value: int | None = None
    value_scale: float = 1.0
    value_offset: float = 0.0
    spacing_mm: tuple[float, float] | None = None
    spacing_plane: SpacingPlane = ""
    view: str = ""
    reduction_factor: int = 1
    has_approximate_pixels: bool = False
    file_rows: int = 0
    file_columns: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.ndim != 2 or self.pixels.size == 0:
            raise ValueError(f"pixels must be (rows, columns), not {self.pixels.shape}")
        if self.reduction_factor < 1:
            raise ValueError(f"a pixel stands for 1 or more, not {self.reduction_factor}")
        if self.pixels.dtype not in (
            (np.uint8, np.uint16, np.float32) if self.reduction_factor > 1 else (np.uint8, np.uint16)
        ):
            raise TypeError(f"pixels must be uint8 or uint16, not {self.pixels.dtype}")
        self.pixels.flags.writeable = False

    @property
    def size(self) -> tuple[int, int]:
        """The size of the image in its file: (rows, columns) in pixels."""
        rows, columns = self.pixels.shape
        return self.file_rows or rows, self.file_columns or columns

    @property
    def reduced_size(self) -> tuple[float, float]:
        """The size of the image in elements of `pixels`: (rows, columns).

        The numbers are fractions if the image fills the last row or column only in part. A `reduction_factor` above 1
        can cause this.
        """
        rows, columns = self.size
        return rows / self.reduction_factor, columns / self.reduction_factor

    def corrected(self, turn: Correction) -> Image:
        """Return the image rotated by a correction. Black and white are swapped if `turn.inverts_grey` is set.

        At a reduced resolution, the last row or column may stand for fewer pixels of the file than other rows or
        columns. After a rotation, this row or column may be the first.
        """
        image = replace(self, pixels=turn.rotate(self.pixels)) if turn.rotation_degrees else self
        if turn.rotation_degrees % 180:
            spacing = self.spacing_mm and (self.spacing_mm[1], self.spacing_mm[0])
            image = replace(image, spacing_mm=spacing, file_rows=self.file_columns, file_columns=self.file_rows)
        return image._with_grey_swapped() if turn.inverts_grey else image

    def _with_grey_swapped(self) -> Image:
        """Return the image with black and white swapped, also in the window and VOI LUT.

        Modality values do not change.
        """
        most = (2**8 if self.pixels.dtype == np.uint8 else 2**16) - 1
        if self.voi_lut is not None:
            most = len(self.voi_lut) - 1
        window = self.window
        if window is not None:
            shift = 1 if window.function == "LINEAR" else 0  # its real centre is half a value lower
            window = replace(window, center=most - window.center + shift)
        return replace(
            self,
            pixels=self.pixels.dtype.type(most) - self.pixels,
            window=window,
            voi_lut=None if self.voi_lut is None else (~self.voi_lut[::-1]).copy(),
            padding_value=None if self.padding_value is None else most - self.padding_value,
            value_scale=-self.value_scale,
            value_offset=self.value_offset + most * self.value_scale,
        )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ShownImage:
    """An image as displayed by default, at the size for a report.

    pixels                   (h, w) uint8 grey levels, read-only
    file_rows, file_columns  numbers of rows and columns of the image in its file
    """

    pixels: NDArray[np.uint8]
    file_rows: int
    file_columns: int

    def __post_init__(self) -> None:
        if self.pixels.ndim != 2 or self.pixels.size == 0 or self.pixels.dtype != np.uint8:
            raise ValueError(f"an image to show is (h, w) uint8, not {self.pixels.shape} {self.pixels.dtype}")
        self.pixels.flags.writeable = False


@dataclass(frozen=True, slots=True)
class CoordinateMap:
    """The map from positions in a network's input, or in a grid of cells, to positions in the image.

    For rows and for columns: image position = input position * scale + offset. In the input and in the image, position
    0 is the outer edge of the first pixel. The centre of input row `row` is therefore at image row `(row + 0.5) *
    row_scale + row_offset`.
    """

    row_scale: float
    row_offset: float
    column_scale: float
    column_offset: float

    @property
    def min_scale(self) -> float:
        """The smaller of two numbers: image rows for each row of the input, and image columns for each column."""
        return min(self.row_scale, self.column_scale)

    def to_image(self, row: Coordinate, column: Coordinate) -> tuple[Coordinate, Coordinate]:
        """Map a position in the network's input to the image; 0 is the outer edge of the first row or column."""
        return row * self.row_scale + self.row_offset, column * self.column_scale + self.column_offset

    def to_input(self, row: Coordinate, column: Coordinate) -> tuple[Coordinate, Coordinate]:
        """Map a position in the image to the network's input; 0 is the outer edge of the first row or column."""
        return (row - self.row_offset) / self.row_scale, (column - self.column_offset) / self.column_scale

    def for_cells(self, cells: tuple[int, int], *, input_size: tuple[int, int]) -> CoordinateMap:
        """Return the map from cells of a network's output to the image. `self` maps the network's input to the image.

        The grid covers the whole input.

        cells       rows and columns of the output grid
        input_size  rows and columns of the input
        """
        down, across = input_size[0] / cells[0], input_size[1] / cells[1]
        return CoordinateMap(self.row_scale * down, self.row_offset, self.column_scale * across, self.column_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangular region of an image, in pixels of the image's file. 0 is the outer edge of the first pixel.

    top, left      the upper left corner
    height, width  height and width
    """

    top: float
    left: float
    height: float
    width: float

    def __post_init__(self) -> None:
        if not (self.height > 0 and self.width > 0):
            raise ValueError(f"a box has an area, not {self.height} x {self.width}")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class NetworkInput:
    """The input of a network, made from an image as the pack's `InputSpec` describes.

    values          (1, height, width, channels) uint8
    input_to_image  maps pixels of the input to the image
    """

    values: NDArray[np.uint8]
    input_to_image: CoordinateMap

    def __post_init__(self) -> None:
        if self.values.ndim != 4 or self.values.shape[0] != 1 or self.values.dtype != np.uint8:
            raise ValueError(f"a tensor is (1, h, w, c) uint8, not {self.values.shape} {self.values.dtype}")
        self.values.flags.writeable = False


# ---- images and the studies they belong to, before any pixel is read


def can_be_file_name(text: str) -> bool:
    """Return whether a text can be the name of a file or zip member.

    The operating system must be able to encode the text, and the text must have no zero byte.
    """
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


_DATE: Final = re.compile(r"([0-9]{4})[-./: ]?([0-9]{2})[-./: ]?([0-9]{2})(?![0-9])")


def parse_dicom_date(dicom_date: str) -> datetime.date | None:
    """Parse a DICOM date (PS3.5 6.2), including old forms with dots.

    Returns None for an invalid day, or for a day before X-rays were known.
    """
    found = _DATE.match(dicom_date.strip())
    try:
        day = datetime.date(*map(int, found.groups())) if found else None
    except ValueError:
        return None
    return day if day and day.year > 1800 else None


# Words entered in place of a missing or removed Patient ID. They identify nobody.
_NOBODY: Final = re.compile(
    "anon(ym(ous|ized|ised|e)?)?|unk(nown)?|unidentified|none|null|nil|na|no|not|(not?)?(id|known|number|available)|"
    "patient|removed|deleted|test|temp(orary)?|emergency|невідом(о|ий|а)|немає|пацієнт|анонім|тест|нд|бн|"
    "(без)?(номера)?|[0x]*|неизвестн(о|ый|ая)|нет|пациент|аноним"
)


def patient_id_if_usable(patient_id: str) -> str:
    """Return a Patient ID without surrounding blanks; empty if the Patient ID identifies nobody.

    A word such as "unknown" identifies nobody. An ID with letters that could not be decoded identifies nobody either.
    """
    words = re.split(r"[\s\-_.?*/^,]+", patient_id.casefold())
    names_nobody = any(all(map(_NOBODY.fullmatch, said)) for said in (words, ["".join(words)]))
    return "" if names_nobody or "\N{REPLACEMENT CHARACTER}" in patient_id else patient_id.strip()


FileKind = Literal["dicom", "png", "jpeg", "unknown"]


# Header fields that neither decide a result nor identify the patient. A stored result stays valid even if an earlier
# version of the program read another value there. New fields that are only displayed belong here.
DISPLAY_ONLY_HEADER_FIELDS: Final = frozenset(
    {"accession_number", "manufacturer", "study_description", "study_id", "study_time"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """Facts from the header of an image file, named by their DICOM keywords.

    If the file does not state a fact, the field is an empty text or None. Files in the formats PNG and JPEG state only
    `rows` and `columns`. Person names are for display only and are never logged.

    view_code            the view named by the View Code Sequence
    patient_orientation  the directions of rows and of columns in the patient
    image_type           all values of Image Type in one text
    derivation           Derivation Description
    patient_age_years    the stated age, else computed from birth date and date of the image
    contrary_age_years   another age in the file that differs from `patient_age_years` by more than a year; or None
    """

    modality: str = ""
    body_part_examined: str = ""
    view_position: str = ""
    view_code: str = ""
    patient_orientation: str = ""
    image_laterality: str = ""
    presentation_intent_type: str = ""
    image_type: str = ""
    derivation: str = ""
    photometric_interpretation: str = ""
    transfer_syntax_uid: str = ""
    sop_class_uid: str = ""
    sop_instance_uid: str = ""
    series_instance_uid: str = ""
    study_instance_uid: str = ""
    study_date: str = ""
    study_time: str = ""
    study_id: str = ""
    accession_number: str = ""
    study_description: str = ""
    patient_name: str = ""
    patient_id: str = ""
    patient_sex: str = ""
    patient_birth_date: str = ""
    patient_age_years: float | None = None
    contrary_age_years: float | None = None
    burned_in_annotation: str = ""
    manufacturer: str = ""
    rows: int = 0
    columns: int = 0
    bits_stored: int = 0
    number_of_frames: int = 1

    @property
    def values_except_display_only(self) -> tuple[object, ...]:
        """The header values that decide a result, and the header values that identify the patient."""
        return tuple(getattr(self, one.name) for one in fields(self) if one.name not in DISPLAY_ONLY_HEADER_FIELDS)

    @property
    def view(self) -> str:
        """The view: View Position, or else the view named by the View Code Sequence."""
        return self.view_position or self.view_code


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """The reference to one image: a file, perhaps a member of a zip file, perhaps one frame of several.

    problem             the reason why the image cannot be decoded, if the search for images found a reason. The image
                        then still gets an outcome
    problem_is_refusal  whether the outcome of an image with a problem is *not suitable*, rather than *failed*
    correction          rotation and inversion that a person asked for, applied whenever the image is read
    """

    path: Path
    zip_member: str | None = None
    frame: int = 0
    kind: FileKind = "unknown"
    header: ImageHeader = field(default_factory=ImageHeader)
    problem: Reason | None = None
    problem_is_refusal: bool = False
    correction: Correction = NO_CORRECTION

    def __post_init__(self) -> None:
        if self.frame < 0:
            raise ValueError(f"frame must be 0 or more, not {self.frame}")

    @property
    def key(self) -> str:
        """A text that identifies the image within a run: `path`, `path!member`, `...#frame`.

        The text is equal in later runs.
        """
        member = f"!{self.zip_member}" if self.zip_member is not None else ""
        frame = f"#{self.frame}" if self.header.number_of_frames > 1 else ""
        return f"{self.path}{member}{frame}"

    @property
    def study_or_image_key(self) -> str:
        """The key of the image's study: the Study Instance UID, or else the key of the image."""
        return self.header.study_instance_uid or self.key

    @property
    def patient_study_key(self) -> str:
        """The key of the image's study and patient.

        Some archives gave one Study Instance UID to two patients, so the key contains the patient. The patient is known
        by Patient ID, or else by name, birth date and sex.
        """
        header = self.header
        person = (header.patient_name, header.patient_birth_date, header.patient_sex)
        known_as = patient_id_if_usable(header.patient_id) or "^".join(filter(None, person))
        study = self.study_or_image_key
        return f"{study}\n{known_as}" if header.study_instance_uid and known_as else study
