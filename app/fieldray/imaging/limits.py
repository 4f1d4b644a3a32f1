"""Limits for the sizes that a file states. The limits are checked before memory is allocated.

The module also defines the results of identifying a file that is no image: a DICOMDIR, or a zip file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_PIXELS: Final = 400_000_000
MAX_FRAMES: Final = 300
MAX_FILE_BYTES: Final = 2**30
MAX_HEADER_BYTES: Final = 64 * 2**20
# For a deflated data set or a member of a zip file, as long as only its header is wanted.
MAX_INFLATED_HEADER_BYTES: Final = 8 * 2**20
MAX_DICOMDIR_RECORDS: Final = 20_000
# As many as a zip file without extensions can list.
MAX_ZIP_MEMBERS: Final = 65_535
VALUE_REPRESENTATIONS: Final = frozenset(
    b"AE AS AT CS DA DS DT FD FL IS LO LT OB OD OF OL OV OW PN SH SL SQ SS ST SV TM UC UI UL UN UR US UT UV".split()
)


@dataclass(frozen=True, slots=True)
class DicomdirFound:
    """Result of identifying a file: the file is a DICOMDIR, an index of other files.

    listed_paths  the listed files, each as the components of its path
    """

    listed_paths: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ZipFound:
    """Result of identifying a file: the file is a zip file."""
