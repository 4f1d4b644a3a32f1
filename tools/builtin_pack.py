"""Print the line for a shipped pack in the table of trusted packs (`BUILTIN_PACK_HASHES`), to be pasted there by hand.

Usage: python tools/builtin_pack.py models/<id>-<version>
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fieldray.errors import FieldrayError
from fieldray.packs.verified import read_pack


def builtin_table_line(folder: Path) -> str:
    """Return the line for a pack in the table `BUILTIN_PACK_HASHES`: folder name and SHA-256 of the manifest.

    Raises PackProblem if `folder` has no valid pack.
    """
    pack = read_pack(folder)
    return f'    "{folder.resolve().name}": "{pack.manifest.manifest_sha256}",'


def main(arguments: Sequence[str]) -> int:
    """Print the `BUILTIN_PACK_HASHES` line of each folder's pack. Returns 1 if a folder has no valid pack, else 0."""
    try:
        lines = [builtin_table_line(Path(argument)) for argument in arguments]
    except FieldrayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
