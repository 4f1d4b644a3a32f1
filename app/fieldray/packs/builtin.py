"""The packs that ship with the program, trusted by what they are: SHA-256 of their manifest.json by folder name.

A description lists the SHA-256 of every other file, so one number holds a whole pack. When a pack is added to
`models/`, `python tools/builtin_pack.py models/<id>-<version>` prints its line for the table; `pyproject.toml`
names it once more, for wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final[Mapping[str, str]] = {
    "adult-normal-abnormal-0.4.0": "38f62eaa7cf6d8a087a95008cefe44fbd57865cc972c6d525cb0ac7375e4dd37",
    "lung-fields-1.1.0": "0ec8fce785dc200cb42950f594db71617d384d8908fc13af0feb61bd741a54e6",
    "pneumonia-paediatric-1.2.0": "7d4943606c092575d3926ed0bafdc9f7bd873aa6dc906cc92a1cc725fbb74406",
    "tuberculosis-adult-0.2.0": "4dc9a3920797678d303572215e8441ab79cf69b96b93995b6d3436177740d8c4",
}
# The one of them that finds the lungs for every classifier that does not require another: none is loaded without it.
LUNGS: Final = "lung-fields-1.1.0"
