"""Scenarios with real mounts, run by test_drives.py in a mount namespace of their own; answers in JSON.

plug   mount a drive with a pack, then unmount it
yank   kill the file system's process (ntfs-3g) under a drive, as a drive that is pulled out
Exit code 77: the system does not permit this.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from fieldray.domain.run import Drive, DrivesChanged, Event
from fieldray.errors import PackProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.reading import DriveWatch
from fieldray.packs.signing import fingerprint_of
from packs_factory import MODEL_BYTES, key, make_pack

NOT_PERMITTED = 77
MOUNT_POINT = Path("/mnt/drive")
_WAIT_S = 10.0


class Events:
    """What a watch of the real system publishes, from its start on; drives of the machine itself are left out."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._watch = DriveWatch(self._queue.put)
        self._watch.start()

    def next(self) -> tuple[Drive, ...]:
        event = self._queue.get(timeout=_WAIT_S)
        assert isinstance(event, DrivesChanged)
        return tuple(drive for drive in event.drives if Path(drive.mount_point) == MOUNT_POINT)

    def close(self) -> None:
        self._watch.close()


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(NOT_PERMITTED)


def _places(drives: tuple[Drive, ...]) -> list[str]:
    return [drive.mount_point for drive in drives]


def plug(folder: Path) -> dict[str, object]:
    (folder / "drive").mkdir()
    _mount("-t", "tmpfs", "none", str(folder / "drive"))
    make_pack(folder / "drive" / "fieldray")
    events = Events()
    seen = [events.next()]
    for command in (["mount", "--move", str(folder / "drive"), str(MOUNT_POINT)], ["umount", str(MOUNT_POINT)]):
        subprocess.run(command, check=True)
        seen.append(events.next())
    events.close()
    folders = [place for drive in seen[1] for place in drive.pack_folders]
    return {"drives": [_places(drives) for drives in seen], "pack_folders": folders}


def yank(folder: Path) -> dict[str, object]:
    if not (shutil.which("ntfs-3g") and shutil.which("mkntfs") and Path("/dev/fuse").exists()):
        sys.stderr.write("ntfs-3g is not here")
        sys.exit(NOT_PERMITTED)
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(8 * 2**20)
    subprocess.run(["mkntfs", "-F", "-q", str(image)], check=True, capture_output=True)
    process = subprocess.Popen(
        ["ntfs-3g", "-o", "no_detach", str(image), str(MOUNT_POINT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return _yanked(folder, process)
    finally:
        process.kill()
        process.wait()


def _yanked(folder: Path, process: subprocess.Popen[bytes]) -> dict[str, object]:
    deadline = time.monotonic() + _WAIT_S
    while not MOUNT_POINT.is_mount():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(NOT_PERMITTED)
        time.sleep(0.02)
    pack = make_pack(MOUNT_POINT / "fieldray")
    library = PackLibrary(folder)
    library.keys.trust(fingerprint_of(key().public_key().public_bytes_raw()))
    model = library.load(pack)
    events = Events()
    there = events.next()
    process.kill()
    process.wait()
    answer: dict[str, object] = {
        "before": model.pack_name,
        "load": _code(lambda: library.load(pack)),
        "candidates": _code(lambda: library.candidates(MOUNT_POINT)),
        "model_is_whole": model.files["litert"] == MODEL_BYTES,
        "drives": [_places(there), _places(events.next())],
    }
    events.close()
    return answer


def _code(action: Callable[[], object]) -> str:
    try:
        action()
    except PackProblem as problem:
        return problem.reason.code
    return "nothing was refused"


if __name__ == "__main__":
    _mount("-t", "tmpfs", "none", "/mnt")  # hides the machine's own /mnt, in this namespace only
    MOUNT_POINT.mkdir()
    result = {"plug": plug, "yank": yank}[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write(json.dumps(result))
