"""The corpus that is kept, how it is chosen, and a short run that is led by the code it reaches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra cluster")
if sys.platform != "linux":
    pytest.skip("needs /proc", allow_module_level=True)

from fieldray.packs.naming import version_key
from fuzz.kept_inputs import KEPT, LARGEST, inputs_of, needed
from fuzz.run_guided import GUIDED
from fuzz.structures.reading import Reader
from fuzz.structures.running import run_guided
from fuzz.structures.target import Target
from fuzz.structures.targets import TARGETS


@pytest.mark.parametrize("name", GUIDED)
def test_what_is_kept_is_read_or_refused(name: str, tmp_path: Path) -> None:
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


def test_a_run_is_led_to_code_that_it_had_not_reached(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="needs the extra robustness")
    tally, findings, (reached, inputs) = run_guided("npy", seconds=3, seed=1, corpus=tmp_path)
    assert findings == []
    assert 0 < tally.outcomes["ValueError"] <= tally.inputs == tally.outcomes.total()
    assert reached > inputs >= 2
    assert len(list(tmp_path.iterdir())) >= 2
