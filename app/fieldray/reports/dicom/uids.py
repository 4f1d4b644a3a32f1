"""UIDs: which of an image's own can be used, and those of the objects that are made.

An object's UID is made from what it says (PS3.5 B.2, a UUID under 2.25): the same result exported twice is the same
object for an archive, and anything that changes, such as a verdict, makes another one.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import Final

from fieldray.domain.study import ImageRef

_PATTERN: Final = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))+")
_MOST_LETTERS: Final = 64
# Fieldray as the writer of a file (PS3.10 7.1); a UUID that was drawn once.
IMPLEMENTATION: Final = "2.25.156473418905120768331905466712349075822"
# Storage classes of images of several frames that X-rays are found in (PS3.4 B.5): only in these may a frame be named.
_OF_FRAMES: Final = frozenset(
    f"1.2.840.10008.5.1.4.1.1.{ending}"
    for ending in ("7.1", "7.2", "7.3", "7.4", "12.1", "12.1.1", "12.2", "12.2.1", "13.1.1", "13.1.2", "13.1.3", "20")
)


def is_valid(uid: str) -> bool:
    """Whether a text is a UID (PS3.5 9.1)."""
    return len(uid) <= _MOST_LETTERS and _PATTERN.fullmatch(uid) is not None


def made_uid(*parts: object) -> str:
    """The UID of what these parts say."""
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=5).int}"


def has_study(ref: ImageRef) -> bool:
    """Whether the image is of a study that an archive may know."""
    return ref.kind == "dicom" and is_valid(ref.header.study_instance_uid)


def can_be_referenced(ref: ImageRef) -> bool:
    """Whether an object can refer to the image itself."""
    header = ref.header
    uids = (header.sop_class_uid, header.sop_instance_uid, header.series_instance_uid)
    return has_study(ref) and all(map(is_valid, uids))


def names_frames(ref: ImageRef) -> bool:
    """Whether a reference to the image may name its frame. Several frames in a class of single ones do happen."""
    return ref.header.number_of_frames > 1 and ref.header.sop_class_uid in _OF_FRAMES


def study_uid(ref: ImageRef, content_sha256: str) -> str:
    """The study's own UID, else one for this content alone."""
    return ref.header.study_instance_uid if has_study(ref) else made_uid("study", content_sha256 or ref.key)
