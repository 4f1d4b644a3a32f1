from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fieldray.persistence import is_accessible_to_other_users
from fieldray.store.results import ResultQuery
from program import Fieldray, start, wait_for_end, write_images
from waiting import wait_for


def next_lines(process: subprocess.Popen[str], count: int) -> dict[str, Any]:
    """Wait for the next lines of `--json`. Returns them by file name."""
    lines = [json.loads(process.stdout.readline()) for _ in range(count)]
    return {Path(line["path"]).name: line for line in lines}


def ended(process: subprocess.Popen[str], end: Callable[[], None]) -> tuple[int, str]:
    """End the program by `end`, and wait for its end. Returns the exit code and the text for a person."""
    children = psutil.Process(process.pid).children(recursive=True)
    end()
    out, said = process.communicate(timeout=60)
    wait_for_end(children)
    return process.returncode, out + said


def kept(home: Path) -> tuple[str, list[str]]:
    """Return the state of the only run, and the names of its images."""
    with ResultQuery(home / "results.sqlite") as query:
        (run,) = query.runs()
        return run.state, sorted(result.outcome.ref.path.name for result in query.results(run.run_id))


def test_watched_images_are_screened_once_even_after_a_kill(
    tmp_path: Path, home: Path, pack_options: list[str]
) -> None:
    inbox, other = tmp_path / "inbox", write_images(tmp_path / "other", 6)
    arguments = ("screen", write_images(inbox, 3)[0].parent, *pack_options, "--watch", "--json", "-")
    process = start(*arguments)
    assert set(next_lines(process, 3)) == {"image-000.png", "image-001.png", "image-002.png"}
    other[3].rename(inbox / "image-003.png")
    assert set(next_lines(process, 1)) == {"image-003.png"}
    ended(process, process.kill)

    (inbox / "image-003.png").rename(inbox / "renamed.png")
    other[4].rename(inbox / "image-004.png")
    whole = other[5].read_bytes()
    (inbox / "image-005.png").write_bytes(whole[: len(whole) // 2])
    process = start(*arguments)
    lines = next_lines(process, 5)
    assert {name: bool(line["taken_over_by"]) for name, line in lines.items()} == {
        "image-000.png": True, "image-001.png": True, "image-002.png": True, "renamed.png": True, "image-004.png": False
    }  # fmt: skip
    (inbox / "image-005.png").write_bytes(whole)
    assert next_lines(process, 1)["image-005.png"]["status"] == "screened"
    code, said = ended(process, lambda: process.send_signal(signal.SIGINT))
    assert code == 130
    assert f"Watching {inbox}. Ctrl-C stops." in said
    # The last image may be done before the search of its file is.
    assert re.search(
        r"Watching the folder has stopped\. New results: 2\. Files that are not screened yet: [01]\.", said
    )

    names = [f"image-{number:03}.png" for number in (0, 1, 2, 4, 5)] + ["renamed.png"]
    assert kept(home) == ("cancelled", names)


def test_an_image_that_is_moved_while_it_is_watched_is_not_taken_for_lost(
    tmp_path: Path, home: Path, pack_options: list[str]
) -> None:
    inbox = write_images(tmp_path / "inbox", 2)[0].parent
    process = start("screen", inbox, *pack_options, "--watch", "--json", "-")
    next_lines(process, 2)
    for before, after in (("image-000", "moved"), ("moved", "again")):
        (inbox / f"{before}.png").rename(inbox / f"{after}.png")
        assert next_lines(process, 1)[f"{after}.png"]["taken_over_by"] == "content"
    code, said = ended(process, lambda: process.send_signal(signal.SIGINT))
    assert (code, "missing" in said, "2 images in" in said) == (130, False, True)
    assert kept(home) == ("cancelled", ["again.png", "image-001.png"])


def test_json_lines_are_written_at_once_even_inside_the_watched_folder(tmp_path: Path, pack_options: list[str]) -> None:
    inbox = write_images(tmp_path / "inbox", 2)[0].parent
    lines = inbox / "lines.jsonl"
    process = start("screen", inbox, *pack_options, "--watch", "--json", lines)
    wait_for(lambda: lines.exists() and lines.read_text(encoding="ascii").count("\n") == 2)
    _, said = ended(process, lambda: process.send_signal(signal.SIGINT))
    assert lines.read_text(encoding="ascii").count("\n") == 2 and "failed 0" in said
    assert not is_accessible_to_other_users(lines)


def test_a_path_that_cannot_be_watched_is_reported_before_screening(
    tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    (image,) = write_images(tmp_path / "images", 1)
    fieldray("screen", image, *pack_options, "--watch").ends_with(2).complains("Only a folder can be watched")
    maps = ("--maps", tmp_path / "maps")
    fieldray("screen", image.parent, *pack_options, "--watch", *maps).ends_with(2).complains("--maps")
