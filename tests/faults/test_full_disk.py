from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray.store.results import ResultStore
from harness.machine import UNSHARE, can_mount
from outcomes import image_ref, run_spec, screened
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


DELETING = """
mkdir "$PLACE"
for room in 0 12 60 300 1200; do
    mount -t tmpfs -o size=$((ROOM + room + 500))k tmpfs "$PLACE"
    cp "$FIELDRAY_STORE" "$PLACE/results.sqlite"
    dd if=/dev/zero of="$PLACE/filler" bs=1k count=$(($(df --output=avail -k "$PLACE" | tail -1) - room)) status=none
    "$@" > "$LINES/$room.words" 2>&1; echo $? > "$LINES/$room.code"
    rm "$PLACE/filler"
    "$PYTHON" -c "$LEFT" > "$LINES/$room.left"
    umount "$PLACE"
done
"""
LEFT = """
import os, sqlite3
connection = sqlite3.connect(os.path.join(os.environ["FIELDRAY_HOME"], "results.sqlite"))
runs, results = (connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ("runs", "results"))
print(runs, results, *connection.execute("PRAGMA integrity_check").fetchone())
"""


def test_runs_are_deleted_on_a_full_disk_wholly_or_not_at_all(tmp_path: Path) -> None:
    place, store = tmp_path / "place", tmp_path / "store" / "results.sqlite"
    spec = run_spec()
    with ResultStore(store) as opened:
        run_id = opened.open_run(spec)
        for number in range(60):
            seen = screened(image_ref(f"{number}.dcm"))
            facts = replace(seen.facts, thumbnail=np.full((90, 90), number, np.uint8))
            opened.save(run_id, replace(seen, facts=facts), spec=spec)
        opened.finish(run_id)
    delete = command("history", "delete", "1", "--yes")
    own = {"FIELDRAY_HOME": place, "FIELDRAY_STORE": store, "ROOM": store.stat().st_size // 1024, "LEFT": LEFT}
    found = on_disks(DELETING, delete, tmp_path, **own)
    codes = {room: code.strip() for room, code in found["code"].items()}
    assert len(codes) == 5
    assert (codes["0"], codes["1200"]) == ("1", "0")
    for room, code in codes.items():
        words, left = found["words"][room], found["left"][room]
        assert left == ("0 0 ok\n" if code == "0" else "1 60 ok\n"), (room, words)
        assert (f"The disk is full: {place}" in words) == (code == "1"), (room, words)
        assert "Traceback" not in words
