from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from fieldray.domain.finding import Outcome
from fieldray.store.results import ResultQuery
from program import Fieldray, lines_of, lines_until_killed, start, write_images

COUNT = 60


def stored(home: Path) -> dict[str, Outcome]:
    """The outcomes of the one run there is, by file name."""
    with ResultQuery(home / "results.sqlite") as decoder:
        (run,) = decoder.runs()
        return {result.outcome.ref.path.name: result.outcome for result in decoder.rows(run.run_id)}


def test_killed_at_random_and_resumed_no_image_is_lost_or_repeated(
    tmp_path: Path, home: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    names = {path.name for path in write_images(tmp_path / "images", COUNT)}
    arguments = ("screen", tmp_path / "images", *pack_options, "--json", "-")
    chance = random.Random(1)
    kept: dict[str, Outcome] = {}
    for _ in range(3):
        lines = lines_until_killed(start(*arguments), lines=len(kept) + chance.randint(1, 12))
        rows = stored(home)
        assert {Path(line["path"]).name for line in lines_of("".join(lines))} <= set(rows)  # told is committed
        assert set(kept) <= set(rows)
        kept = rows
    assert 3 <= len(kept) < COUNT
    done = fieldray(*arguments)
    assert done.returncode == 0, done.stderr
    assert Counter(Path(line["path"]).name for line in lines_of(done.stdout)) == Counter(names)
    assert f"{len(kept)} from an earlier run" in done.stderr
    assert set(stored(home)) == names
