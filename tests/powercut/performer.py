"""The process in which acts are performed: it has the watched disk loaded (see stage.py).

    python performer.py PLACE ORDERS

Each line of its input names an act; a process forked for it performs it, and a line of output says how it ended. What
an act needs is imported once.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fieldray.errors import FieldrayError
from fieldray.log_file import configure_logging
from fieldray.reports import dicom_structured, pdf_pages  # noqa: F401 - what an act would import
from powercut.acts import ACTS
from powercut.place import Place, emitter


def main() -> None:
    """Serve until the input ends."""
    place = Place(Path(sys.argv[1]))
    with Path(sys.argv[2]).open("r+b") as page:
        orders = mmap.mmap(page.fileno(), 0)
    for line in sys.stdin:
        order = json.loads(line)
        ours, theirs = os.pipe()
        process = os.fork()
        if not process:
            os.close(ours)
            os.write(theirs, json.dumps(perform(order["act"], place, orders)).encode())
            os._exit(0)
        os.close(theirs)
        said = ended(ours, process, order["limit_s"])
        orders[0] = 0
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


def perform(act: str, place: Place, orders: mmap.mmap) -> dict[str, object]:
    """Perform it with the disk watched; how it ended."""
    problem, crash = None, ""
    orders[0] = 1
    try:
        with configure_logging(place.home):
            perform_act = ACTS[act].perform
            assert perform_act
            perform_act(place, emitter(place.log_path))
    except FieldrayError as error:
        problem = error.reason.code, error.reason.text
    except BaseException:
        crash = traceback.format_exc()
    orders[0] = 0
    return {"problem": problem, "crash": crash}


def ended(pipe: int, process: int, limit_s: float) -> str:
    """What the process says of its end; one that has none is killed."""
    said = b""
    while True:
        if not select.select([pipe], [], [], limit_s)[0]:
            os.kill(process, signal.SIGKILL)
            said = json.dumps({"problem": None, "crash": f"no end after {limit_s} s"}).encode()
            break
        if not (part := os.read(pipe, 2**16)):
            break
        said += part
    os.close(pipe)
    _, status = os.waitpid(process, 0)
    return said.decode() or json.dumps({"problem": None, "crash": f"ended with {status}"})


if __name__ == "__main__":
    main()
