"""The engine on the devices of this machine: the stick where there is one, and the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fieldray.child import Child
from fieldray.domain.events import Publish
from fieldray.domain.model import Model
from fieldray.domain.prediction import DeviceChoice, Policy
from fieldray.inference import coral
from fieldray.inference.coral_usb import FindSticks
from fieldray.inference.cpu import cpu_kind
from fieldray.inference.edgetpu import Clock, edgetpu_kind
from fieldray.inference.engine import Engine
from fieldray.inference.runtime import RUNTIMES
from fieldray.inference.spare import Spare
from fieldray.inference.stick_watch import StickWatch
from fieldray.reasons import reason


def system_engine(
    publish: Publish,
    *,
    device: DeviceChoice = "auto",
    policy: Policy = "accelerator",
    clock: Clock = "std",
    libraries: Sequence[str] = (),
    find: FindSticks = coral.find_usb_sticks,
    stick_timeout_s: float = 3.0,
    stick_start_timeout_s: float = 20.0,
    started: Child | None = None,
    passed: Callable[[Model], None] = lambda _: None,
) -> Engine:
    """An engine that moves to the stick when it is plugged in, and back when it is gone.

    `libraries` and `find` as for `edgetpu.edgetpu_kind`. The stick may take `stick_timeout_s` for an image, and
    `stick_start_timeout_s` until it is open, which includes its firmware and its first image. `started` as for
    `cpu.cpu_kind`, `passed` as for `Engine`.
    """

    spare = Spare(RUNTIMES)

    def watch(engine: Engine) -> StickWatch:
        return StickWatch(
            publish,
            plugged=lambda: engine.reconsider("edgetpu"),
            unplugged=lambda why: engine.lost("edgetpu", why),
            find=find,
            ask=lambda: coral.ask_library(libraries),
            library_works=spare.prepare,
            notes=(reason("coral_max_clock"),) if clock == "max" else (),
        )

    stick = edgetpu_kind(
        spare=spare,
        libraries=libraries,
        clock=clock,
        find=find,
        start_timeout_s=stick_start_timeout_s,
        run_timeout_s=stick_timeout_s,
        priority="raised",
    )
    return Engine(
        publish,
        device=device,
        kinds=(stick, cpu_kind(priority="raised", started=started)),
        policy=policy,
        watch=watch,
        passed=passed,
    )
