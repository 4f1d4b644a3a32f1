"""The process of coverage-guided fuzzing: `guided.py TARGET SEED SECONDS CORPUS FOLDER`.

Atheris measures which code of the program, pydicom and zipfile an input reaches, and adds inputs that reach more to
CORPUS. It mutates them by libFuzzer's own means, by `mutations.py`, or by a newly generated structure. The output is
that of `child.py`. The file `at` in FOLDER has the current input: number, length, bytes.
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
_SLOWER = 5  # than code that is not traced
_SEND_EVERY_S = 1.0


def main(name: str, seed: str, seconds: str, corpus: str, place: str) -> None:
    """Read inputs for `seconds`. Never returns."""
    sys.stdout = os.fdopen(os.dup(1), "w")  # libFuzzer's own output must not mix with the lines of JSON
    os.dup2(2, 1)
    folder, target = Path(place), TARGETS[name]
    with atheris.instrument_imports(include=WATCHED):  # also what a reader imports
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
                os._exit(0)  # an ordinary exit runs the clean-up of every library, and that of Arrow never ends

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
