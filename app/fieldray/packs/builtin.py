"""The packs that ship with the program, trusted by what they are: SHA-256 of their manifest.json by folder name.

A description lists the SHA-256 of every other file, so one number holds a whole pack. When a pack is added to
`models/`, `python tools/builtin_pack.py models/<id>-<version>` prints its line for the table; `pyproject.toml`
names it once more, for wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final[Mapping[str, str]] = {
    "adult-normal-abnormal-0.4.2": "c5c62f2827d84bd1e29d557207e1ff7c066c2c67c75dfce18d19e2ea0546a3f0",
    "lung-fields-1.1.0": "0ec8fce785dc200cb42950f594db71617d384d8908fc13af0feb61bd741a54e6",
    "pneumonia-paediatric-1.2.2": "c217938fcd41d8a1c18bea1c03131d00817c5c0776ab8865b1f17f42905cca49",
    "tuberculosis-adult-0.2.2": "3733eae0c20cd1873cbb9f0943e398b69828f60efd92689e23652828c4e775c4",
}
# The one of them that finds the lungs for every classifier that does not require another: none is loaded without it.
LUNGS: Final = "lung-fields-1.1.0"
