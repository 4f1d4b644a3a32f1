"""The packs that ship with the program, trusted by what they are: SHA-256 of their manifest.json by folder name.

A description lists the SHA-256 of every other file, so one number holds a whole pack. When a pack is added to
`models/`, `python tools/builtin_pack.py models/<id>-<version>` prints its line for the table; `pyproject.toml`
names it once more, for wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final[Mapping[str, str]] = {
    "adult-normal-abnormal-0.4.1": "86e19fd548498b33b303b2d6d8987f771ccc6c40571fad69b2681f63ed5031b5",
    "lung-fields-1.1.0": "0ec8fce785dc200cb42950f594db71617d384d8908fc13af0feb61bd741a54e6",
    "pneumonia-paediatric-1.2.1": "aca0b6dca27a7f5009f8119143302add8f1ce99cbfc641ffb652c1c6c5c62881",
    "tuberculosis-adult-0.2.1": "a49aa7bec4f51be3dd4691d1f89b98211c9823b8bf59a76810038d6318d78023",
}
# The one of them that finds the lungs for every classifier that does not require another: none is loaded without it.
LUNGS: Final = "lung-fields-1.1.0"
