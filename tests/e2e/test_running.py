"""Two programs on one home and one folder, one of which is stopped: no image is lost, repeated or another one's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fieldray.store.results import ResultQuery
from harness.record import json_lines
from program import start, write_images

COUNT = 250  # of each program's lines no more than the 64 KiB of a pipe are written before they are read here


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it still writes. (`communicate` does not know what `readline` has taken from the pipe already.)"""
    rest = process.stdout.read(), process.stderr.read()
    process.wait(60)
    return rest


def runs(home: Path) -> dict[int, tuple[str, int]]:
    """State and number of images, by run."""
    with ResultQuery(home / "results.sqlite") as decoder:
        return {run.run_id: (run.state, sum(decoder.counts(run.run_id).values())) for run in decoder.runs()}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.usefixtures("interruptible")
def test_the_end_of_one_is_not_the_end_of_the_other(tmp_path: Path, home: Path, pack_options: list[str]) -> None:
    names = {path.name for path in write_images(tmp_path / "images", COUNT)}
    arguments = ("screen", tmp_path / "images", *pack_options, "--json", "-")
    with start(*arguments) as first:
        first.stdout.readline()
        with start(*arguments) as second:
            begun = second.stdout.readline()
            first.send_signal(signal.SIGINT)
            end(first)
            rest, words = end(second)
    assert (first.returncode, second.returncode) == (130, 0), words
    lines = json_lines(begun + rest)
    assert Counter(Path(line["path"]).name for line in lines) == Counter(names)
    states = runs(home)
    assert states[2] == ("finished", COUNT)
    assert states[1][0] == "cancelled"
    assert states[1][1] < COUNT
    assert f"process {first.pid}" in words
