"""A session with an Edge TPU: a second instance of the program, unplugging in a run of two packs, a short fault run.

`make faults` is the long fault run, which also checks times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from faults.fault_run import FaultRun, SilentFrontEnd, faults
from faults.world import Clinic
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.run import Event, ImageDone
from fieldray.store.results import ResultQuery
from waiting import Events

IMAGES = 150


@pytest.fixture
def clinic(library: Path, tmp_path: Path) -> Iterator[Clinic]:
    """A model drive, a few images and an Edge TPU that is plugged in."""
    made = Clinic(tmp_path, library, images=IMAGES, seed=1)
    made.edgetpu.plug()
    yield made
    made.close()


def test_a_second_instance_screens_on_the_cpu_and_says_why(clinic: Clinic) -> None:
    said = Events()
    with clinic.session(said) as session:
        session.use_packs(clinic.load_pack())
        said.serves("edgetpu")
        # enough images that the second instance finds the Edge TPU taken before its last image
        second = clinic.second_instance(count=IMAGES).ends_with(0).complains("Another window of this program")
    assert [line["status"] for line in second.lines] == ["screened"] * IMAGES
    assert {line["backend"] for line in second.lines} == {"cpu"}


def test_the_edgetpu_is_free_for_the_next_session(clinic: Clinic) -> None:
    assert {line["backend"] for line in clinic.second_instance("--device", "edgetpu").lines} == {"edgetpu"}


@pytest.mark.timeout(200)
def test_unplugging_the_edgetpu_during_a_run_of_two_packs_loses_no_image(clinic: Clinic) -> None:
    said = Events()
    done = Counter[str]()

    def publish(event: Event) -> None:
        said(event)
        if isinstance(event, ImageDone):
            done["images"] += 1
            if done["images"] == 10:
                clinic.edgetpu.unplug()

    first = clinic.load_pack()
    second = replace(first, manifest=replace(first.manifest, pack_id="second"))
    with clinic.session(publish) as session:
        session.use_packs(first, second)
        said.serves("edgetpu")
        batch = session.start([clinic.images[0].parent])
        assert batch.join(100)
        database = session.database
    assert batch.state == "finished"
    backends: list[Counter[str]] = []
    with ResultQuery(database) as query:
        for position in (0, 1):
            results = list(query.results(batch.run_id, pack_position=position))
            assert Counter(found.outcome.ref.path for found in results) == Counter(clinic.images)
            assert all(isinstance(found.outcome, ScreenedOutcome) for found in results)
            backends.append(Counter(found.outcome.backend for found in results))
    assert backends[0]["edgetpu"] >= 10 and backends[0]["cpu"] > 0
    assert backends[1] == {"cpu": IMAGES}


@pytest.mark.timeout(400)
def test_a_short_fault_run_finds_no_faults(library: Path, tmp_path: Path) -> None:
    run = FaultRun(tmp_path, library, events=12, images=40, seed=7, is_short=True)
    figures = run.go(SilentFrontEnd(run))
    assert faults(figures) == []
    assert figures["events"] == 12
    assert figures["images_by_backend"]["cpu"] > 0
    assert figures["images_by_backend"]["edgetpu"] > 0


@pytest.mark.timeout(200)
def test_a_short_fault_run_with_the_window_finds_no_faults(library: Path, tmp_path: Path, qapp: object) -> None:
    from faults.window import go_with_window

    run = FaultRun(tmp_path, library, events=2, images=12, seed=3, is_short=True)
    figures = go_with_window(run)
    assert (figures["events"], figures["images_lost"], figures["images_done_twice"]) == (2, 0, 0)
    assert figures["left_behind"] == []
