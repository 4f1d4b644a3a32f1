from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from program import command, lines_of, write_films
from tiny_packs import fingerprint, write_tiny_pack

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
_IS_POSSIBLE = (
    sys.platform == "linux"
    and shutil.which("unshare") is not None
    and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
)
SCRIPT = """
mount -t tmpfs -o size=700k tmpfs "$FIELDRAY_HOME"
"$@" > "$LINES/first"; echo $? > "$LINES/first-code"
mount -o remount,size=50m "$FIELDRAY_HOME"
"$@" > "$LINES/second"; echo $? > "$LINES/second-code"
"""


@pytest.mark.skipif(not _IS_POSSIBLE, reason="needs Linux and the right to mount in a name space of one's own")
def test_a_run_on_a_full_disk_fails_in_order_and_goes_on_when_there_is_room(tmp_path: Path, home: Path) -> None:
    films = {path.name for path in write_films(tmp_path / "films", 60)}
    pack = write_tiny_pack(tmp_path / "packs")
    lines = tmp_path / "lines"
    lines.mkdir()
    screen = command("screen", tmp_path / "films", "--pack", pack, "--trust", fingerprint(pack), "--json", "-")
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", SCRIPT, "sh", *screen],
        env={**os.environ, "FIELDRAY_HOME": str(home), "LINES": str(lines)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("The disk is full") == 1
    first, second = lines_of((lines / "first").read_text()), lines_of((lines / "second").read_text())
    assert (lines / "first-code").read_text() == "1\n"
    assert 0 < len(first) < 60
    assert (lines / "second-code").read_text() == "0\n"
    assert {Path(line["path"]).name for line in second} == films
    assert len(second) == 60
    assert f"{len(first)} taken over" in done.stderr
