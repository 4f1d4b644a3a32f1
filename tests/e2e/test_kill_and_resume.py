from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import psutil
import pytest

from fieldray.domain.finding import Outcome
from fieldray.store.results import ResultQuery
from program import Fieldray, command, lines_of, start, told_until_killed, wait_for_end, write_images
from waiting import wait_for

COUNT = 60


def stored(home: Path) -> dict[str, Outcome]:
    """The outcomes of the one run there is, by file name."""
    with ResultQuery(home / "results.sqlite") as decoder:
        (run,) = decoder.runs()
        return {result.outcome.ref.path.name: result.outcome for result in decoder.rows(run.run_id)}


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_and_resumed_no_image_is_lost_or_repeated(
    tmp_path: Path, home: Path, fieldray: Fieldray, pack_options: list[str], seed: int
) -> None:
    names = {path.name for path in write_images(tmp_path / "images", COUNT)}
    arguments = ("screen", tmp_path / "images", *pack_options, "--json", "-")
    chance = random.Random(seed)
    kept: dict[str, Outcome] = {}
    for _ in range(3):
        told = told_until_killed(start(*arguments), lines=len(kept) + chance.randint(1, 12))
        rows = stored(home)
        assert {Path(line["path"]).name for line in lines_of("".join(told))} <= set(rows)  # told is committed
        assert set(kept) <= set(rows)
        kept = rows
    assert 3 <= len(kept) < COUNT
    done = fieldray(*arguments)
    assert done.returncode == 0, done.stderr
    assert Counter(Path(line["path"]).name for line in lines_of(done.stdout)) == Counter(names)
    assert f"{len(kept)} from an earlier run" in done.stderr
    assert set(stored(home)) == names


def test_what_a_killed_run_left_beside_its_lines_goes_with_the_next_one(
    tmp_path: Path, home: Path, pack_options: list[str]
) -> None:
    folder, lines = write_images(tmp_path / "images", 150)[0].parent, tmp_path / "out" / "lines.jsonl"
    lines.parent.mkdir()
    arguments = command("screen", folder, *pack_options, "--json", lines, "--jobs", "1")
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: any(path.stat().st_size for path in lines.parent.iterdir()))
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    wait_for_end(children)
    assert [path.suffix for path in lines.parent.iterdir()] == [".new"]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    assert [path.name for path in lines.parent.iterdir()] == ["lines.jsonl"]
