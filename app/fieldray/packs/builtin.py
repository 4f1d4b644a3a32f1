"""The packs that ship with the program, trusted by what they are: SHA-256 of their manifest.json by folder name.

A description lists the SHA-256 of every other file, so one number holds a whole pack. When a pack is added to
`models/`, `python tools/builtin_pack.py models/<id>-<version>` prints its line for the table.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fieldray.errors import FieldrayError
from fieldray.packs.sealed import read_files, read_sealed

TABLE: Final[Mapping[str, str]] = {
    "adult-normal-abnormal-0.1.0": "26822bc22a08c591027b5ca048e8ef739ff0aa822d40bbc4c84e5f440df378f4",
    "pneumonia-paediatric-1.1.0": "ffe4521ca3ab3e326bdee4b36ec93c4a15ca052f2a36fb5652e0c80a64b68572",
}


def table_line(folder: Path) -> str:
    """The line of `TABLE` for a pack that is whole. Raises PackProblem."""
    pack = read_files(folder, read_sealed(folder))
    pack.model("builtin")
    return f'    "{folder.resolve().name}": "{pack.sealed.manifest_sha256}",'


def main(arguments: Sequence[str]) -> int:
    """Print the table's line of each folder named; 1 when one of them is not a valid pack."""
    try:
        lines = [table_line(Path(argument)) for argument in arguments]
    except FieldrayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
