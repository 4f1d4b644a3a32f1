"""What a killed export left in a person's folder goes with the next export; nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fieldray.persistence import process_number, unfinished
from fieldray.pipeline.half_done import noted

EXPORT = """
import sys, time
from pathlib import Path
from fieldray.persistence import unfinished
from fieldray.pipeline.half_done import noted
folder = Path(sys.argv[1])
with noted(folder, home=Path(sys.argv[2])):
    half = unfinished(folder / "fieldray-run-1-sc")
    half.mkdir()
    (half / "00001.dcm").write_bytes(b"a patient")
    unfinished(folder / "fieldray-run-1.csv").write_bytes(b"a patient")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_export_left_goes_with_the_next_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    folder, home = tmp_path / "reports", tmp_path / "home"
    folder.mkdir()
    of_others = [folder / ".77-0123456789abcdef01234567.new", folder / ".new", folder / "mine.new"]
    for path in of_others:
        path.write_bytes(b"mine")
    command = [sys.executable, "-c", EXPORT, folder, home]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as export:
        assert export.stdout is not None
        assert export.stdout.readline() == b"ready\n"
        left = set(folder.iterdir()) - set(of_others)
        assert len(left) == 2
        with noted(folder, home=home):
            assert set(folder.iterdir()) == {*of_others, *left}
        export.kill()
    with noted(tmp_path, home=home):
        assert sorted(folder.iterdir()) == sorted(of_others)
    assert list((home / "exports").iterdir()) == []


def test_what_lies_on_a_drive_that_is_away_is_removed_when_it_is_back(tmp_path: Path) -> None:
    drive, home = tmp_path / "drive", tmp_path / "home"
    (home / "exports").mkdir(parents=True)
    note = home / "exports" / "77-0123456789abcdef.json"
    note.write_text(f'{{"folder": "{drive}"}}', "ascii")
    with noted(tmp_path, home=home):
        pass
    assert note.exists()
    drive.mkdir()
    (drive / ".77-0123456789abcdef01234567.new").write_bytes(b"a patient")
    (drive / ".77-fedcba987654321001234567.new").write_bytes(b"of another computer")
    with noted(tmp_path, home=home):
        pass
    assert not note.exists()
    assert [path.name for path in drive.iterdir()] == [".77-fedcba987654321001234567.new"]


def test_notes_that_say_nothing_remove_nothing(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    for name, text in (
        ("x-y.json", '{"folder": "."}'),
        ("7-*.json", "{"),
        ("8-ab.json", "[]"),
        ("9-a.json", '{"a":1}'),
    ):
        (tmp_path / "exports" / name).write_text(text, "ascii")
    (tmp_path / ".7-aa.new").write_bytes(b"mine")
    with noted(tmp_path, home=tmp_path):
        half = unfinished(tmp_path / "a.csv")
        assert process_number() in half.name
    assert (tmp_path / ".7-aa.new").exists()
    assert list((tmp_path / "exports").iterdir()) == []


def test_an_export_goes_on_where_no_note_can_be_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_bytes(b"no folder")
    with noted(tmp_path, home=home):
        assert home.read_bytes() == b"no folder"
