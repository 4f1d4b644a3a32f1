"""The packs that ship with the program, trusted by what they are: SHA-256 of their manifest.json by folder name.

A description lists the SHA-256 of every other file, so one number holds a whole pack. When a pack is added to
`models/`, `python tools/builtin_pack.py models/<id>-<version>` prints its line for the table; `pyproject.toml`
names it once more, for wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final[Mapping[str, str]] = {
    "adult-normal-abnormal-0.4.2": "82c2c7f2394c769dee06d1dab3c6183370c3f8162e0eb169fc3fe8b0f745b066",
    "lung-fields-1.1.0": "0ec8fce785dc200cb42950f594db71617d384d8908fc13af0feb61bd741a54e6",
    "pneumonia-paediatric-1.2.2": "0e7de863fccc05566a50aff8893267aa3cf6b715aed73a10a2292b7093723bfb",
    "tuberculosis-adult-0.2.2": "6bbcbf55797a7a1d4e67c4ec580375695d7f1fcce1b6a967bd9bac24f7e20abe",
}
# The one of them that finds the lungs for every classifier that does not require another: none is loaded without it.
LUNGS: Final = "lung-fields-1.1.0"
