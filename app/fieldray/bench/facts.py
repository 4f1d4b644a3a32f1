"""All that is known of a computer, as values; what to make of it is in `advice`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fieldray.bench.machine import MachineFacts, machine_facts
from fieldray.bench.software import SoftwareFacts, software_facts
from fieldray.bench.storage_check import StorageFacts, check_storage
from fieldray.bench.trial import TrialFacts, try_screening
from fieldray.domain.model import Model
from fieldray.inference.coral import status
from fieldray.inference.coral.status import CoralStatus
from fieldray.packs.library import PackLibrary


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One look at a computer."""

    machine: MachineFacts
    software: SoftwareFacts
    places: StorageFacts
    edgetpu: CoralStatus
    trial: TrialFacts


def look(home: Path, library: PackLibrary, *, drives: Iterable[Path], load: Callable[[], Model]) -> HostFacts:
    """Look at everything and screen one image with the pack that `load` gives; takes a few seconds."""
    return HostFacts(
        machine=machine_facts(),
        software=software_facts(),
        places=check_storage(home, library, drives=drives),
        edgetpu=status.look(),
        trial=try_screening(load),
    )
