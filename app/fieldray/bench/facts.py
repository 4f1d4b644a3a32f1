"""All that is known of a computer, as values; what to make of it is in `advice`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fieldray.bench.machine import MachineFacts, look_at_machine
from fieldray.bench.places import PlaceFacts, look_at_places
from fieldray.bench.software import SoftwareFacts, look_at_software
from fieldray.bench.trial import TrialFacts, try_screening
from fieldray.domain.model import Model
from fieldray.inference import coral
from fieldray.inference.coral import CoralStatus
from fieldray.packs.library import PackLibrary


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One look at a computer."""

    machine: MachineFacts
    software: SoftwareFacts
    places: PlaceFacts
    stick: CoralStatus
    trial: TrialFacts


def look(home: Path, library: PackLibrary, *, drives: Iterable[Path], load: Callable[[], Model]) -> HostFacts:
    """Look at everything and screen one film with the pack that `load` gives; takes a few seconds."""
    return HostFacts(
        machine=look_at_machine(),
        software=look_at_software(),
        places=look_at_places(home, library, drives=drives),
        stick=coral.look(),
        trial=try_screening(load),
    )
