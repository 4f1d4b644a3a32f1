"""A small part of the fuzz run, in the ordinary suite, and that it damages the same files every time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.mutations import MUTATIONS, mutated
from fuzz.run_fuzz import KINDS, fuzz, sources
from harness.runner import program_command

WHOLE = bytes(range(256)) * 8


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_the_same_for_the_same_seed_only(kind: str) -> None:
    assert (MUTATIONS[kind].__doc__ or "").strip()
    made = [mutated(WHOLE, kind, seed=1, number=number) for number in range(50)]
    assert made == [mutated(WHOLE, kind, seed=1, number=number) for number in range(50)]
    assert made != [mutated(WHOLE, kind, seed=2, number=number) for number in range(50)]
    assert sum(each != WHOLE for each in made) > 40
    assert mutated(b"x", kind, seed=1, number=1) is not None  # a file of one byte can be damaged, too


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_every_damaged_file_has_one_outcome(tmp_path: Path) -> None:
    originals = sources(tmp_path, None, seed=1)
    for figures in fuzz(["header", "geometry"], originals, program_command(), files=60, seed=1):
        assert figures.why == []
        assert figures.outcomes.total() >= 30
