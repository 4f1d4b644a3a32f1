"""The program started a second time, while the first one has the Edge TPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.world import Clinic, copy_chests
from waiting import Events

IMAGES = 150


@pytest.fixture
def clinic(library: Path, tmp_path: Path) -> Iterator[Clinic]:
    """A model drive, a few images and an Edge TPU."""
    made = Clinic(tmp_path, library, images=IMAGES, seed=1, make=copy_chests)
    yield made
    made.close()


def test_it_screens_on_the_cpu_and_says_why(clinic: Clinic) -> None:
    said = Events()
    clinic.edgetpu.plug()
    with clinic.session(said) as session:
        session.use_pack(clinic.load_pack())
        said.serves("edgetpu")
        # enough images that the Edge TPU is asked for, and found taken, before the last one is done
        second = clinic.second_instance(count=IMAGES).ends_with(0).complains("Another window of this program")
    assert [line["status"] for line in second.lines] == ["screened"] * IMAGES
    assert {line["backend"] for line in second.lines} == {"cpu"}


def test_the_next_start_has_the_edgetpu_again(clinic: Clinic) -> None:
    clinic.edgetpu.plug()
    assert {line["backend"] for line in clinic.second_instance("--device", "edgetpu").lines} == {"edgetpu"}
