"""A small part of the fuzz run, and a test that equal seeds give equal damage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.mutations import MUTATIONS, mutated
from fuzz.run_fuzz import cases, sources
from harness.runner import program_command, try_case

WHOLE = bytes(range(256)) * 8


@pytest.mark.parametrize("kind", MUTATIONS)
def test_damage_is_the_same_for_the_same_seed_only(kind: str) -> None:
    assert (MUTATIONS[kind].__doc__ or "").strip()
    made = [mutated(WHOLE, kind, seed=1, number=number) for number in range(50)]
    assert made == [mutated(WHOLE, kind, seed=1, number=number) for number in range(50)]
    assert made != [mutated(WHOLE, kind, seed=2, number=number) for number in range(50)]
    assert sum(each != WHOLE for each in made) > 40
    assert mutated(b"x", kind, seed=1, number=1) is not None  # every kind of damage must work on a file of one byte


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_every_damaged_file_has_one_outcome(tmp_path: Path) -> None:
    originals = sources(tmp_path, None, seed=1)
    for case in cases(originals, files=360, seed=1):
        if case.name in ("header/0", "geometry/0"):
            result = try_case(case, program_command())
            assert result.verdict == "ok", result.why
            assert sum(result.counts.get(status, 0) for status in ("screened", "refused", "failed")) >= 30
