"""`fieldray store` from the command line: backup, restoring after damage, and deleting previews."""

from __future__ import annotations

from pathlib import Path

from program import Fieldray, python, write_images


def test_results_are_checked_copied_and_put_back_after_damage(
    fieldray: Fieldray, screen: Fieldray, home: Path, tmp_path: Path
) -> None:
    write_images(tmp_path / "images", 3)
    screen().ends_with(0)
    copied = fieldray("store", "backup", tmp_path / "backup")
    assert copied.out.splitlines() == [
        f"Written: {tmp_path / 'backup' / name}" for name in ("results.sqlite", "results.pictures.sqlite")
    ]
    assert "already exists" in fieldray("store", "backup", tmp_path / "backup").err
    (home / "results.sqlite").write_bytes(b"no results" * 9000)
    fieldray("store", "check").ends_with(1).complains("screen any folder")
    fieldray("store", "restore", tmp_path / "backup").ends_with(2).complains("--yes")
    restored = fieldray("store", "restore", tmp_path / "backup", "--yes").ends_with(0)
    restored.prints(str(home / "results.damaged-1.sqlite"))
    assert fieldray("store", "check").ends_with(0).out.startswith("The results database is not damaged. Results: 3.")


def test_deleted_previews_leave_results_that_are_reused(fieldray: Fieldray, screen: Fieldray, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 3)
    screen().ends_with(0)
    fieldray("store", "drop-pictures").ends_with(2)
    assert "of 3 images were deleted" in fieldray("store", "drop-pictures", "--yes").out
    assert "Previews: 0." in fieldray("store", "check").out
    fieldray("store", "compact").ends_with(0)
    again = screen("--verify", "--json", "-").complains("3 results were reused")
    assert {line["taken_over_by"] for line in again.lines} == {"content"}


def test_store_commands_without_a_database_say_that_there_are_no_results(fieldray: Fieldray, tmp_path: Path) -> None:
    for command in (["check"], ["compact"], ["backup", str(tmp_path / "backup")], ["drop-pictures", "--yes"]):
        fieldray("store", *command).ends_with(2).complains("There are no results in")
    assert not (tmp_path / "backup").exists()


KILLED = """
import os, sys
from fieldray.store import maintenance
maintenance.replace_durably = lambda beside, target: os._exit(9)
from fieldray.__main__ import main
sys.exit(main(["store", "backup", sys.argv[1]]))
"""


def test_the_next_backup_deletes_the_files_of_a_killed_one(
    fieldray: Fieldray, screen: Fieldray, tmp_path: Path
) -> None:
    write_images(tmp_path / "images", 1)
    screen().ends_with(0)
    assert python(KILLED, tmp_path / "backup").returncode == 9
    assert any(file.name.endswith(".new") for file in (tmp_path / "backup").iterdir())
    fieldray("store", "backup", tmp_path / "backup").ends_with(0)
    left = {file.name for file in (tmp_path / "backup").iterdir()}
    assert left == {"results.sqlite", "results.pictures.sqlite"}
