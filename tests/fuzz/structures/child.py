"""The process that reads the generated inputs of a target: `child.py TARGET SEED FIRST LAST FOLDER`.

It writes a line of JSON for every 500 inputs and for every finding. The file `at` in its folder has the number of the
current input, so that the parent process knows which input ended it.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fuzz.structures.reading import Reader, limit_memory, read_all, send
from fuzz.structures.targets import TARGETS


def main(name: str, seed: str, first: str, last: str, place: str) -> None:
    """Read the inputs from FIRST to LAST."""
    folder = Path(place)
    target = TARGETS[name]
    (folder / "at").write_bytes(bytes(8))
    with (folder / "at").open("r+b") as stream, mmap.mmap(stream.fileno(), 8) as at, Reader(target, folder) as reader:

        def begin(number: int) -> None:
            at[:] = struct.pack("<q", number)

        reader.warm()
        limit_memory(2 * target.most_mb + 128)
        for news in read_all(reader, range(int(first), int(last)), seed=int(seed), begin=begin):
            send(news)


if __name__ == "__main__":
    main(*sys.argv[1:])
