"""Images and the studies they belong to, before any pixel is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fieldray.domain.image import UPRIGHT, Turn
from fieldray.reasons import Reason


def is_name(text: str) -> bool:
    """Whether a file, or a member of a zip file, can be called so: in bytes of the system's names, none of them 0."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


FileKind = Literal["dicom", "png", "jpeg", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """Facts from the header, named by their DICOM keywords; empty text or None where the file is silent.

    For PNG and JPEG only `rows` and `columns` are known. Person names are for display only and are never logged.
    """

    modality: str = ""
    body_part_examined: str = ""
    view_position: str = ""
    image_laterality: str = ""
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
    manufacturer: str = ""
    rows: int = 0
    columns: int = 0
    bits_stored: int = 0
    number_of_frames: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """Where one image is: a file, perhaps a member of a zip, perhaps one frame of several.

    `problem` is set when discovery already knows that there is nothing to decode; such a reference still
    becomes exactly one outcome. `problem_is_refusal` says which: refused or failed.
    `turn` is how a person had an image turned that lies wrong: whoever reads it gets it upright.
    """

    path: Path
    member: str | None = None
    frame: int = 0
    kind: FileKind = "unknown"
    header: ImageHeader = field(default_factory=ImageHeader)
    problem: Reason | None = None
    problem_is_refusal: bool = False
    turn: Turn = UPRIGHT

    def __post_init__(self) -> None:
        if self.frame < 0:
            raise ValueError(f"frame must be 0 or more, not {self.frame}")

    @property
    def key(self) -> str:
        """Stable text that tells this image from every other of one run: `path`, `path!member`, `...#frame`."""
        member = f"!{self.member}" if self.member is not None else ""
        frame = f"#{self.frame}" if self.header.number_of_frames > 1 else ""
        return f"{self.path}{member}{frame}"

    @property
    def study_key(self) -> str:
        """The study this image belongs to: its Study Instance UID, else its own key (a study of one)."""
        return self.header.study_instance_uid or self.key
