from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from program import command, write_images
from tiny_packs import fingerprint, write_tiny_pack

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")  # mounting needs a namespace of its own
CAN_MOUNT = shutil.which("unshare") and not subprocess.run([*UNSHARE, "true"], check=False).returncode
pytestmark = pytest.mark.skipif(not CAN_MOUNT, reason="needs Linux and the right to mount in a name space of one's own")
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
ENDED = ("failed", "interrupted", "finished")  # the second if not even the end of the run could be written
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


def test_a_disk_that_fills_up_at_any_moment_is_reported_as_full_and_no_run_is_left_running(tmp_path: Path) -> None:
    """The disk fills up at eleven moments: before the first write, in the database, the JSON lines and the exports."""
    images, place, lines = (tmp_path / name for name in ("images", "place", "lines"))
    write_images(images, 20)
    pack = write_tiny_pack(tmp_path / "packs")
    place.mkdir()
    lines.mkdir()
    screen = command("screen", images, "--pack", pack, "--trust", fingerprint(pack))
    screen += ["--json", str(place / "out" / "lines"), "--out", str(place / "out")]
    own = {"PLACE": place, "LINES": lines, "PYTHON": sys.executable, "FIELDRAY_HOME": place / "home", "ASK": ASK}
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", ELEVEN, "sh", *screen],
        env={**os.environ, **{name: str(value) for name, value in own.items()}},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in lines.iterdir()}
    assert [text for name, text in found.items() if name.endswith(".code")] == ["1\n"] * 11
    words = {name: text for name, text in found.items() if name.endswith(".words")}
    assert [name for name, text in words.items() if "The disk is full" not in text] == []
    wrong = ("unexpected", "Traceback", "Cannot write")
    assert {name: text for name, text in words.items() if any(word in text for word in wrong)} == {}
    states = {name: text.split() for name, text in found.items() if name.endswith(".states")}
    assert {name: said for name, said in states.items() if not set(said) <= {*ENDED, "ok"}} == {}
    assert any(said[:1] in (["failed"], ["interrupted"]) for said in states.values())
