"""The engine on the devices of this machine: the Edge TPU where there is one, and the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fieldray.domain.events import Publish
from fieldray.domain.model import Model
from fieldray.domain.prediction import DeviceChoice, Policy
from fieldray.inference.coral import status
from fieldray.inference.coral.backend import Clock, edgetpu_kind
from fieldray.inference.coral.usb import FindDevices
from fieldray.inference.coral.watch import DeviceWatch
from fieldray.inference.cpu import cpu_kind
from fieldray.inference.engine import Engine
from fieldray.inference.runtime import RUNTIMES
from fieldray.inference.warm_process import WarmProcess
from fieldray.processes.child import Child
from fieldray.reasons import reason


def system_engine(
    publish: Publish,
    *,
    device: DeviceChoice = "auto",
    policy: Policy = "accelerator",
    clock: Clock = "std",
    libraries: Sequence[str] = (),
    find: FindDevices = status.find_usb_devices,
    edgetpu_timeout_s: float = 3.0,
    edgetpu_start_timeout_s: float = 20.0,
    started: Child | None = None,
    passed: Callable[[Model], None] = lambda _: None,
) -> Engine:
    """An engine that moves to the Edge TPU when it is plugged in, and back when it is gone.

    `libraries` and `find` as for `edgetpu.edgetpu_kind`. The Edge TPU may take `edgetpu_timeout_s` for an image, and
    `edgetpu_start_timeout_s` until it is open, which includes its firmware and its first image. `started` as for
    `cpu.cpu_kind`, `passed` as for `Engine`.
    """

    spare = WarmProcess(RUNTIMES)

    def watch(engine: Engine) -> DeviceWatch:
        return DeviceWatch(
            publish,
            plugged=lambda: engine.reconsider("edgetpu"),
            unplugged=lambda why: engine.lost("edgetpu", why),
            find=find,
            ask=lambda: status.ask_library(libraries),
            library_works=spare.prepare,
            notes=(reason("coral_max_clock"),) if clock == "max" else (),
        )

    edgetpu = edgetpu_kind(
        spare=spare,
        libraries=libraries,
        clock=clock,
        find=find,
        start_timeout_s=edgetpu_start_timeout_s,
        run_timeout_s=edgetpu_timeout_s,
        priority="raised",
    )
    return Engine(
        publish,
        device=device,
        kinds=(edgetpu, cpu_kind(priority="raised", started=started)),
        policy=policy,
        watch=watch,
        passed=passed,
    )
