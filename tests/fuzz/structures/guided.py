"""Where a process begins that is led by what code its inputs reach: `guided.py TARGET SEED SECONDS CORPUS FOLDER`.

Atheris watches the code of the program, pydicom and zipfile, keeps what reaches more of it in CORPUS, and changes that
further: by libFuzzer's own means, by damage of `mutations.py`, or by taking a new structure of the target. It tells
what `child.py` tells; which input it is at stands in the file `at` of its folder: number, length, bytes.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import time
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WATCHED = ["fieldray", "pydicom", "zipfile"]

with atheris.instrument_imports(include=WATCHED):
    from fuzz.mutations import MUTATIONS
    from fuzz.structures.reading import LONGEST_S, Reader, Watch, limit_memory, send
    from fuzz.structures.targets import TARGETS

LARGEST = 2**16
_SLOWER = 5  # than code that nobody watches
_SEND_EVERY_S = 1.0


def main(name: str, seed: str, seconds: str, corpus: str, place: str) -> None:
    """Read inputs for so long. Never returns."""
    sys.stdout = os.fdopen(os.dup(1), "w")  # what libFuzzer says there is for nobody to understand as JSON
    os.dup2(2, 1)
    folder, target = Path(place), TARGETS[name]
    with atheris.instrument_imports(include=WATCHED):  # some is imported when a reader is made, or first reads
        reader = Reader(target, folder, longest_s=_SLOWER * LONGEST_S)
        with reader:
            reader.warm()
    with (folder / "at").open("wb") as at, reader:
        os.pwrite(at.fileno(), bytes(16), 0)
        limit_memory(2 * target.most_mb + 512)
        watch, sent_s, number, until_s = Watch(reader), time.monotonic(), 0, time.monotonic() + float(seconds)

        def read(data: bytes) -> None:
            nonlocal sent_s, number
            number += 1
            os.pwrite(at.fileno(), struct.pack("<qq", number, len(data)) + data, 0)
            for finding in watch.read(data, number=number):
                send(finding)
            if time.monotonic() - sent_s > _SEND_EVERY_S:
                send(watch.take_tally())
                sent_s = time.monotonic()
            if sent_s > until_s:
                os._exit(0)  # libFuzzer would have every library clean up, and Arrow then waits for ever

        def changed(data: bytes, largest: int, chance_seed: int) -> bytes:
            chance = random.Random(chance_seed)
            way = chance.random()
            if way < 0.1:
                return target.make(chance)[:largest]
            if way < 0.4 and data:
                return chance.choice(tuple(MUTATIONS.values()))(bytearray(data), chance)[:largest]
            return bytes(atheris.Mutate(data, largest))

        options = {
            "seed": seed,
            "max_len": LARGEST,
            "rss_limit_mb": 0,
            "timeout": 300,  # Atheris ends any input that takes a second where this is 0
            "artifact_prefix": f"{folder}/",
        }
        options |= dict.fromkeys(("handle_segv", "handle_abrt", "handle_bus", "handle_ill", "handle_fpe"), 0)
        flags = [f"-{key}={value}" for key, value in options.items()]
        atheris.Setup([sys.argv[0], *flags, corpus], read, custom_mutator=changed)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
