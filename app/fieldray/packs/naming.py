"""What pack ids, versions and file names may look like. A drive is hostile: allowed is what is listed here.

id         1 to 64 of a-z, 0-9 and the hyphen
version    x.y.z, three whole numbers of at most 6 digits, compared as numbers (https://semver.org, without suffixes)
file name  1 to 100 of A-Z a-z 0-9 . _ -, beginning with a letter or digit, not ending with a dot, not a device name
           of Windows ("NUL", "com1.tflite"), not one of the pack's own two
"""

from __future__ import annotations

import re
from typing import Final

MANIFEST_NAME: Final = "manifest.json"
SIGNATURE_NAME: Final = "manifest.sig"

_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
_VERSION: Final = re.compile(r"(?:0|[1-9][0-9]{0,5})(?:\.(?:0|[1-9][0-9]{0,5})){2}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def is_pack_id(text: str) -> bool:
    """Whether `text` is a pack id."""
    return _ID.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Whether `text` is a version."""
    return _VERSION.fullmatch(text) is not None


def version_key(version: str) -> tuple[int, ...]:
    """What a version is compared by. Raises ValueError when it is not one."""
    if not is_version(version):
        raise ValueError(f"not a version: {version!r}")
    return tuple(int(part) for part in version.split("."))


def is_file_name(text: str) -> bool:
    """Whether a pack may list a file by this name."""
    return (
        _FILE_NAME.fullmatch(text) is not None
        and not text.endswith(".")
        and _DEVICE.fullmatch(text) is None
        and text.lower() not in (MANIFEST_NAME, SIGNATURE_NAME)
    )
