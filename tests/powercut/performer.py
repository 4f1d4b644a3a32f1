"""The process that performs acts, with the library watched_disk.c loaded (see stage.py).

    python performer.py PLACE ORDERS

Each line of its input names an act. A forked process performs the act, and a line of output says how it ended. The
fork saves importing the program for every act.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fieldray.log_file import configure_logging
from fieldray.reports import dicom_structured, pdf_pages  # noqa: F401 - what an act would import
from harness.machine import Forked
from powercut.acts import ACTS
from powercut.place import Place


def main() -> None:
    """Perform acts until the input ends."""
    place = Place(Path(sys.argv[1]))
    with Path(sys.argv[2]).open("r+b") as page:
        orders = mmap.mmap(page.fileno(), 0)
    for line in sys.stdin:
        order = json.loads(line)
        process = Forked(partial(perform, order["act"], place, orders))
        no_end = {"problem": None, "crash": f"no end within {order['limit_s']} s, or one without words"}
        said = process.result(time.monotonic() + order["limit_s"]) or no_end
        orders[0] = 0
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def perform(name: str, place: Place, orders: mmap.mmap) -> dict[str, object]:
    """Perform an act with a watched disk. Returns how it ended."""
    orders[0] = 1
    with configure_logging(place.home):
        said = ACTS[name].performed(place, place.log_path)
    orders[0] = 0
    return said


if __name__ == "__main__":
    main()
