"""Where a process begins that reads broken structures: `child.py TARGET SEED FIRST LAST FOLDER`.

It writes a line of JSON for every part of its inputs and for every finding. Which input it is at stands in the file
`at` of its folder, so that whoever started it knows what ended it.
"""

from __future__ import annotations

import base64
import json
import mmap
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fuzz.structures.reading import Finding, Reader, Tally, limit_memory, read_all
from fuzz.structures.targets import TARGETS

_WARM = 20


def main(name: str, seed: str, first: str, last: str, place: str) -> None:
    """Read the inputs from FIRST to LAST."""
    folder = Path(place)
    target = TARGETS[name]
    (folder / "at").write_bytes(bytes(8))
    with (folder / "at").open("r+b") as stream, mmap.mmap(stream.fileno(), 8) as at, Reader(target, folder) as reader:

        def begin(number: int) -> None:
            at[:] = struct.pack("<q", number)

        for number in range(_WARM):  # what is imported and kept is no growth
            reader.problem(reader.made(number, seed=0))
        limit_memory(2 * target.most_mb + 128)
        for news in read_all(reader, range(int(first), int(last)), seed=int(seed), begin=begin):
            sys.stdout.write(json.dumps(_told(news)) + "\n")
            sys.stdout.flush()


def _told(news: Tally | Finding) -> dict[str, object]:
    facts = {name: getattr(news, name) for name in news.__dataclass_fields__}
    if isinstance(news, Finding):
        facts["data"] = base64.b64encode(news.data).decode("ascii")
    return facts


if __name__ == "__main__":
    main(*sys.argv[1:])
