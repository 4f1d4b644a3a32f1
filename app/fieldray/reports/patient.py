"""Who a report is about: the person by name where somebody asked for that, else a pseudonym.

A pseudonym is the same for a patient in all reports that this installation writes, and says nothing to anybody who
does not have its key. Without a patient ID, studies cannot be brought together: each gets a pseudonym of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fieldray.persistence import only_writer, require_plain, storage_problem, write_atomically
from fieldray.plain_text import visible
from fieldray.reasons import Reason, reason

if TYPE_CHECKING:
    from fieldray.domain.study import ImageHeader, ImageRef
    from fieldray.reports.exporter import StoredRun

_UID: Final = re.compile("[0-9][0-9.]{0,63}")
_BETWEEN: Final = re.compile(r"[/\\!]")
_SHORT: Final = 2  # letters of a part of a path that say nothing
_KEY_NAME: Final = "pseudonym.key"
_KEY_BYTES: Final = 32
_LETTERS: Final = 10  # 50 bits: among a million patients two share a pseudonym in one of two thousand installations


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What a report says about a patient, empty where nothing is known or may be said.

    name        as in DICOM, its parts divided by ^
    number      the patient ID
    birth_date  YYYYMMDD; never with a pseudonym
    sex         M, F or O
    """

    name: str
    number: str
    birth_date: str
    sex: str
    age_years: float | None
    is_named: bool


def patient_of(ref: ImageRef, stored: StoredRun) -> Patient:
    """The patient of an image, as this run's reports may call them."""
    header, is_named = ref.header, stored.options.names_people
    alias = "" if is_named else pseudonym(header, ref.study_key, key=stored.pseudonym_key)
    return Patient(
        name=visible(header.patient_name) if is_named else alias,
        number=visible(header.patient_id) if is_named else alias,
        birth_date=header.patient_birth_date if is_named else "",
        sex=header.patient_sex,
        age_years=header.patient_age_years,
        is_named=is_named,
    )


def pseudonym(header: ImageHeader, study: str, *, key: bytes) -> str:
    """`FR-` and ten letters or digits (HMAC-SHA256, RFC 2104)."""
    who = f"patient\0{header.patient_id}" if header.patient_id else f"study\0{study}"
    return f"FR-{_letters(who, key)}"


def image_alias(image: str, *, key: bytes) -> str:
    """`FI-` and ten letters or digits, the same in all exports of this installation: what brings them together.

    image  its key (`ImageRef.key`), or a path that was screened: names of files and folders often are those of people
    """
    return f"FI-{_letters(f'image{chr(0)}{image}', key)}"


def own_uid(uid: str) -> str:
    """A UID as it may leave the house without names: empty where it is none (PS3.5 9.1)."""
    return uid if _UID.fullmatch(uid) else ""


def unnamed(why: Reason, path: str, *, alias: str) -> Reason:
    """The reason with `alias` in place of every value that holds a part of the path of what it is about."""
    parts = {part.casefold() for part in _BETWEEN.split(path) if len(part) > _SHORT}
    values = {
        name: alias if any(part in value.casefold() for part in parts) else value for name, value in why.parameters
    }
    return reason(why.code, **values)


def _letters(who: str, key: bytes) -> str:
    digest = hmac.new(key, who.encode("utf-8", "backslashreplace"), hashlib.sha256).digest()
    return base64.b32encode(digest).decode()[:_LETTERS]


def pseudonym_key(folder: Path) -> bytes:
    """The key of this installation, made when it is first asked for; one alone. Raises StorageProblem."""
    path = folder / _KEY_NAME
    try:
        if key := _read_key(path):
            return key
        with only_writer(path):
            key = _read_key(path) or secrets.token_bytes(_KEY_BYTES)
            write_atomically(path, key)
    except OSError as error:
        raise storage_problem(error, path) from error
    return key


def _read_key(path: Path) -> bytes:
    """Empty where there is none. Raises OSError, StorageProblem (not_plain)."""
    require_plain(path)
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return b""
    return key if len(key) == _KEY_BYTES else b""
