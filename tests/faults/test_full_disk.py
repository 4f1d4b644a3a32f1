from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.machine import UNSHARE, can_mount
from program import command, write_images
from tiny_packs import fingerprint, write_tiny_pack

pytestmark = pytest.mark.skipif(
    not can_mount(), reason="needs Linux and the right to mount in a name space of one's own"
)
ELEVEN = """
for size in 40 90 130 160 190 230 280 340 420 520 640; do
    mount -t tmpfs -o size=${size}k tmpfs "$PLACE"
    mkdir "$PLACE/home" "$PLACE/out"
    "$@" > /dev/null 2> "$LINES/$size.words"; echo $? > "$LINES/$size.code"
    mount -o remount,size=50m "$PLACE"
    "$PYTHON" -c "$ASK" > "$LINES/$size.states"
    umount "$PLACE"
done
"""
ENDED = ("failed", "interrupted", "finished")  # the second where not even the end could be written
ASK = """
import os, sqlite3
from pathlib import Path
from fieldray.store.results import ResultQuery
store = Path(os.environ["FIELDRAY_HOME"], "results.sqlite")
if store.exists():
    with ResultQuery(store) as query:
        print(*(run.state for run in query.runs()))
    print(*sqlite3.connect(store).execute("PRAGMA integrity_check").fetchone())
print(*(place.name for place in store.parent.iterdir() if place.suffix == ".new"))
print(*(place.name for place in (store.parent.parent / "out").iterdir() if place.suffix == ".new"))
"""


def on_disks(script: str, command: list[str], folder: Path, **environment: object) -> dict[str, dict[str, str]]:
    """What a script that mounts disks on $PLACE and runs a command there wrote to $LINES/WHICH.WHAT, by what it is."""
    lines = folder / "lines"
    lines.mkdir()
    own = {"PLACE": folder / "place", "LINES": lines, "PYTHON": sys.executable, **environment}
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script, "sh", *command],
        env={**os.environ, **{name: str(value) for name, value in own.items()}},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = {}
    for path in lines.iterdir():
        found.setdefault(path.suffix[1:], {})[path.stem] = path.read_text()
    return found


def test_a_disk_that_fills_up_at_eleven_moments_is_told_as_such_and_no_run_is_left_running(tmp_path: Path) -> None:
    """From before the first byte over the store, the results and the lines to the exports."""
    write_images(tmp_path / "images", 20)
    pack = write_tiny_pack(tmp_path / "packs")
    place = tmp_path / "place"
    place.mkdir()
    screen = command("screen", tmp_path / "images", "--pack", pack, "--trust", fingerprint(pack))
    screen += ["--json", str(place / "out" / "lines"), "--out", str(place / "out")]
    found = on_disks(ELEVEN, screen, tmp_path, FIELDRAY_HOME=place / "home", ASK=ASK)
    assert list(found["code"].values()) == ["1\n"] * 11
    for size, words in found["words"].items():
        assert words.count("The disk is full") >= 1, (size, words)
        assert not any(word in words for word in ("unexpected", "Traceback", "Cannot write")), (size, words)
    states = {size: text.split() for size, text in found["states"].items()}
    assert {size: found for size, found in states.items() if not set(found) <= {*ENDED, "ok"}} == {}
    assert any(found[:1] in (["failed"], ["interrupted"]) for found in states.values())
