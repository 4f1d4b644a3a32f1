"""What happens, as the front ends hear of it: frozen, sent through one callable `publish(event)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from fieldray.domain.finding import Outcome, ResultKind
from fieldray.domain.model import BackendName
from fieldray.reasons import Reason

BackendState = Literal["stopped", "starting", "ready", "unavailable"]
DeviceState = Literal["absent", "uninitialised", "ready"]
RunState = Literal["running", "paused", "finished", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChanged:
    """A backend entered a state; `reason` says why it is unavailable. `in_use`: results now come from it."""

    backend: BackendName
    state: BackendState
    in_use: bool
    detail: str = ""
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChanged:
    """What is known now of a device that can be plugged in.

    backend          that runs models on it
    state            "uninitialised": plugged in, its firmware is loaded when it is first used
    port_mbit        speed of its port, 480 (USB 2) or 5000 (USB 3) and more; None if the system does not say
    runtime_version  of its runtime, None if unknown
    reason           why it cannot be used, None if it can
    notes            what to change, although it can be used
    """

    backend: BackendName
    state: DeviceState
    port_mbit: int | None = None
    runtime_version: int | None = None
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanged:
    """A batch started, paused, resumed or ended (`reason` if it failed); `notes` are what a person should know.

    pack    the number of the pack whose run it is, of those of a pass; the first one's tells how all of them stand
    beside  the numbers of the runs of the other packs, with the first one's alone
    """

    run_id: int
    state: RunState
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()
    pack: int = 0
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReady:
    """One image has its outcome, already committed to the store.

    is_resumed, is_sampled  as for `domain.run.StoredResult`
    pack                    as for `RunChanged`
    """

    run_id: int
    row_id: int
    outcome: Outcome
    is_resumed: bool = False
    is_sampled: bool = False
    pack: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTakenOver:
    """Many results of earlier runs were taken over at once, for files known by a sample, and committed.

    Instead of an `OutcomeReady` for each of them, where nobody asked for these.
    """

    run_id: int
    row_ids: tuple[int, ...]
    kinds: tuple[ResultKind, ...]
    pack: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a batch is. `total` grows while folders are still being searched (`total_is_final` False)."""

    done: int
    total: int
    total_is_final: bool
    images_per_s: float
    remaining_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Inference frames per second of the current run, from the third image of a backend on (None before), and load.

    cpu_percent is of the whole machine, memory_mb of all processes of this program together.
    """

    fps_now: float | None = None
    fps_min: float | None = None
    fps_avg: float | None = None
    fps_max: float | None = None
    first_ms: float | None = None
    second_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    cpu_percent: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A mounted removable file system, and the pack folders seen on it."""

    mount_point: str
    name: str
    pack_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivesChanged:
    """The drives that are there now."""

    drives: tuple[Drive, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRepaired:
    """The file of results was damaged; `reason` says where it is now and what was kept of it."""

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnwritable:
    """Results cannot be kept; `reason` says why. Told before anything is screened."""

    reason: Reason


Event = (
    BackendChanged
    | DeviceChanged
    | RunChanged
    | OutcomeReady
    | ResultsTakenOver
    | Progress
    | Speed
    | DrivesChanged
    | StoreRepaired
    | StoreUnwritable
)
Publish = Callable[[Event], None]
Say = Callable[[str], None]  # a line
Count = Callable[[int, int], None]  # how many of how many are done
