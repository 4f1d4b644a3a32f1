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

ID: Final = r"[a-z0-9-]{1,64}"
VERSION: Final = r"(?:0|[1-9][0-9]{0,5})(?:\.(?:0|[1-9][0-9]{0,5})){2}"
FILE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def is_version(text: str) -> bool:
    """Whether `text` is a version."""
    return re.fullmatch(VERSION, text) is not None


def version_key(version: str) -> tuple[int, ...]:
    """What a version is compared by. Raises ValueError when it is not one."""
    if not is_version(version):
        raise ValueError(f"not a version: {version!r}")
    return tuple(int(part) for part in version.split("."))


def is_file_name(text: str) -> bool:
    """Whether a pack may list a file by this name."""
    return (
        re.fullmatch(FILE_NAME, text) is not None
        and not text.endswith(".")
        and _DEVICE.fullmatch(text) is None
        and text.lower() not in (MANIFEST_NAME, SIGNATURE_NAME)
    )
