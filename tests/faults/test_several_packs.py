"""Two packs in one pass while the Edge TPU, which runs the first one, is pulled out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from faults.world import Clinic
from fieldray.domain.finding import Screened
from fieldray.domain.run import BackendChanged, Event, OutcomeReady
from fieldray.store.results import ResultQuery
from waiting import wait_for


@pytest.mark.timeout(200)
def test_the_device_is_pulled_out_in_mid_run_and_no_image_of_either_pack_is_lost(library: Path, tmp_path: Path) -> None:
    clinic = Clinic(tmp_path, library, images=40, seed=11)
    clinic.edgetpu.plug()
    events: list[Event] = []

    def publish(event: Event) -> None:
        events.append(event)
        if isinstance(event, OutcomeReady) and event.pack == 1 and len(ready(1)) == 10:
            clinic.edgetpu.unplug()

    def ready(pack: int) -> list[OutcomeReady]:
        return [event for event in events if isinstance(event, OutcomeReady) and event.pack == pack]

    def serves(backend: str) -> bool:
        return any(isinstance(event, BackendChanged) and event.backend == backend and event.in_use for event in events)

    first = clinic.load_pack()
    second = replace(first, manifest=replace(first.manifest, pack_id="second"))
    try:
        with clinic.session(publish) as session:
            session.use_pack(first, beside=[second])
            wait_for(lambda: serves("edgetpu"))
            batch = session.start([path.parent for path in clinic.images[:1]])
            assert batch.join(100)
            database = session.database
    finally:
        clinic.edgetpu.close()
    assert batch.state == "finished"
    backends: list[Counter[str]] = []
    with ResultQuery(database) as query:
        for run_id in batch.run_ids:
            results = list(query.rows(run_id))
            assert Counter(found.outcome.ref.path for found in results) == Counter(clinic.images)
            assert all(isinstance(found.outcome, Screened) for found in results)
            backends.append(Counter(found.outcome.backend for found in results))
    assert backends[0]["edgetpu"] >= 10 and backends[0]["cpu"] > 0
    assert backends[1] == {"cpu": 40}
