"""Images and the studies they belong to, before any pixel is read."""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fieldray.domain.image import UPRIGHT, Turn
from fieldray.reasons import Reason


def is_name(text: str) -> bool:
    """Whether a file, or a member of a zip file, can be called so: in bytes of the system's names, none of them 0."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


_DATE: Final = re.compile(r"([0-9]{4})[-./: ]?([0-9]{2})[-./: ]?([0-9]{2})(?![0-9])")


def day_of(dicom_date: str) -> datetime.date | None:
    """A DICOM date (PS3.5 6.2), also as old files divide it; None for a day that there is not, or before X-rays."""
    found = _DATE.match(dicom_date.strip())
    try:
        day = datetime.date(*map(int, found.groups())) if found else None
    except ValueError:
        return None
    return day if day and day.year > 1800 else None


# Words that stand in place of a Patient ID where nobody gave one, or where it was taken out: they name nobody.
_NOBODY: Final = re.compile(
    "anon(ym(ous|ized|ised|e)?)?|unk(nown)?|unidentified|none|null|nil|na|no|not|(not?)?(id|known|number|available)|"
    "patient|removed|deleted|test|temp(orary)?|emergency|невідом(о|ий|а)|немає|пацієнт|анонім|тест|нд|бн|"
    "(без)?(номера)?|[0x]*|неизвестн(о|ый|ая)|нет|пациент|аноним"
)


def known_person(patient_id: str) -> str:
    """The Patient ID without the blanks around it; empty where it names nobody, or where a letter of it is lost."""
    words = re.split(r"[\s\-_.?*/^,]+", patient_id.casefold())
    names_nobody = any(all(map(_NOBODY.fullmatch, said)) for said in (words, ["".join(words)]))
    return "" if names_nobody or "\N{REPLACEMENT CHARACTER}" in patient_id else patient_id.strip()


FileKind = Literal["dicom", "png", "jpeg", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """Facts from the header, named by their DICOM keywords; empty text or None where the file is silent.

    For PNG and JPEG only `rows` and `columns` are known. Person names are for display only and are never logged.

    view_code           what the View Code Sequence says
    patient_age_years   as stated, else by birth date and the date of the image
    contrary_age_years  another age that the file gives, by those dates or as a further value, if it is more than a
                        year from the first
    """

    modality: str = ""
    body_part_examined: str = ""
    view_position: str = ""
    view_code: str = ""
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
    contrary_age_years: float | None = None
    burned_in_annotation: str = ""
    manufacturer: str = ""
    rows: int = 0
    columns: int = 0
    bits_stored: int = 0
    number_of_frames: int = 1

    @property
    def view(self) -> str:
        """View Position, else what the code says."""
        return self.view_position or self.view_code


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
    def study(self) -> str:
        """The study this image belongs to: its Study Instance UID, else its own key (a study of one)."""
        return self.header.study_instance_uid or self.key

    @property
    def study_key(self) -> str:
        """The study of one patient: a UID is no person, and archives have given two patients the same.

        Patients are told apart by their ID, and by what else is known of them where it names nobody.
        """
        header = self.header
        person = (header.patient_name, header.patient_birth_date, header.patient_sex)
        whose = known_person(header.patient_id) or "^".join(filter(None, person))
        return f"{self.study}\n{whose}" if header.study_instance_uid and whose else self.study
