"""Tests of the structure fuzzing: inputs that once revealed faults, a few new inputs, and faults that it must find.

Then the kept inputs, their selection, and a short coverage-guided run.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra cluster")
if sys.platform != "linux":
    pytest.skip("needs /proc", allow_module_level=True)

from fieldray.packs.naming import version_key
from fuzz.corpus import CASES
from fuzz.run_guided import GUIDED, KEPT, LARGEST, inputs_of, needed
from fuzz.structures.reading import LONGEST_S, Finding, Reader, Tally, read_all, smallest
from fuzz.structures.running import run_guided, run_target
from fuzz.structures.target import ACCEPTED, Target, holds
from fuzz.structures.targets import TARGETS

FEW = {"dicomdir": 40, "zip": 60, "pack": 30, "chunks": 20, "kept-files": 100}
"""Of most others there are 150."""


@pytest.mark.parametrize("what", CASES)
def test_inputs_that_once_revealed_faults_have_a_permitted_outcome(what: str, tmp_path: Path) -> None:
    case = CASES[what]
    with Reader(TARGETS[case.target], tmp_path) as reader:
        assert reader.read(case.data()) in case.outcomes


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_generated_structures_give_no_findings(name: str, tmp_path: Path) -> None:
    count = FEW.get(name, 150)
    with Reader(TARGETS[name], tmp_path) as reader:
        *findings, tally = read_all(reader, range(count), seed=3, part=count + 1)
    assert findings == []
    assert tally.inputs == count == tally.outcomes.total()
    assert 0 < tally.outcomes[ACCEPTED] < count


# ---- the run itself: faults that it must find


def _faulty(fault: bytes, _folder: Path) -> None:
    """A part of a program with one fault of each kind that fuzzing has to find."""
    if b"key" in fault:
        raise KeyError
    if b"time" in fault:
        while True:
            time.thread_time()
    if b"promise" in fault:
        holds(False, "a promise")
    if b"error" in fault:
        raise ZeroDivisionError


def _target(*faults: bytes) -> Target:
    def make(chance: random.Random) -> bytes:
        return b"some " + chance.choice(faults) + b" more"

    return Target(name="faulty", reads="nothing", make=make, read=_faulty, share=1, refuses=(KeyError,))


def test_errors_promises_and_time_are_found_and_refusals_are_not(tmp_path: Path) -> None:
    with Reader(_target(b"key", b"error", b"promise", b"fine"), tmp_path, longest_s=0.1) as reader:
        news = list(read_all(reader, range(40), seed=1))
        kinds = {each.kind: each.data for each in news if isinstance(each, Finding)}
        assert reader.problem(b"time") == "TookTooLong in outside of the program"
    assert kinds == {
        "ZeroDivisionError in outside of the program": b"error",
        "Unforeseen: a promise": b"promise",
    }
    (tally,) = [each for each in news if isinstance(each, Tally)]
    assert tally.outcomes["KeyError"] and tally.outcomes[ACCEPTED] and tally.outcomes["FOUND"]
    assert tally.outcomes.total() == tally.inputs == 40


def test_the_input_of_a_finding_is_reduced() -> None:
    assert smallest(b"x" * 500 + b"fault" + b"y" * 500, lambda data: b"fault" in data) == b"fault"
    assert smallest(b"abcdef", lambda data: len(data) == 6 and data[2:3] == b"c") == b"\0\0c\0\0\0"


def test_a_run_counts_its_inputs_and_outcomes() -> None:
    tally, findings = run_target("npy", inputs=300, seed=1)
    assert (tally.inputs, tally.outcomes.total(), findings) == (300, 300, [])
    assert 0 < tally.longest_s[0] < LONGEST_S


# ---- coverage-guided fuzzing


@pytest.mark.parametrize("name", GUIDED)
def test_the_kept_inputs_give_no_findings(name: str, tmp_path: Path) -> None:
    inputs = inputs_of(name)
    assert len(inputs) >= 5
    assert max(map(len, inputs)) <= LARGEST
    with Reader(TARGETS[name], tmp_path) as reader:
        assert all(reader.read(data) for data in inputs)


def test_the_kept_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in KEPT.iterdir()) < 2**20
    assert {path.name for path in KEPT.iterdir()} == {f"{name}.zip" for name in GUIDED}


def _read_version(data: bytes, _folder: Path) -> None:
    if data == b"found":
        raise ZeroDivisionError
    version_key(data.decode("latin-1"))


def test_of_inputs_that_reach_the_same_the_smallest_is_needed() -> None:
    target = Target(
        name="versions", reads="", make=lambda _: b"1.2.3", read=_read_version, share=1, refuses=(ValueError,)
    )
    pool = [b"100.2.3", b"1.2.3", b"none at all", b"none", b"found", b"1.2." + b"9" * LARGEST]
    assert list(needed(target, pool)) == [b"none", b"1.2.3"]


def test_a_guided_run_reaches_new_code(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="needs the extra robustness")
    tally, findings, (reached, inputs) = run_guided("npy", seconds=3, seed=1, corpus=tmp_path)
    assert findings == []
    assert 0 < tally.outcomes["ValueError"] <= tally.inputs == tally.outcomes.total()
    assert reached > inputs >= 2
    assert len(list(tmp_path.iterdir())) >= 2
