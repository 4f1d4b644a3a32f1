"""Attack cases for the guard: no process may open a network socket, or load code from the images' folder."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from harness.case import Group
from harness.world import World

CASES = Group("guard")
_ALLOWED: Final = {f"family-{int(family)}" for family in (socket.AF_UNIX, socket.AF_NETLINK)}


def run_probed(world: World, *arguments: object, environment: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Run the program with socket_probe.c in each process. Returns the error number of each probed call by process."""
    report = world.folder / "report"
    report.unlink(missing_ok=True)
    own = {"FIELDRAY_ATTACK_REPORT": str(report), "FIELDRAY_ATTACK_PYTHON": sys.executable}
    probe = world.loading(Path(__file__).with_name("socket_probe.c"))
    world.run(*arguments, environment={**probe, **own, **environment}).ends_with(0, 1)
    answers: dict[str, dict[str, int]] = {}
    for line in report.read_text(encoding="ascii").splitlines():
        process, what, error = line.split()
        answers.setdefault(process, {})[what] = int(error)
    return answers


def require_no_network(answers: Mapping[str, Mapping[str, int]], *, processes: int) -> None:
    """Require that at least `processes` processes were filtered, and that none got a network socket."""
    filtered = [asked for asked in answers.values() if "python-0" in asked]
    assert len(filtered) >= processes, f"only {len(filtered)} processes are under a filter"
    for asked in filtered:
        assert {"family-2", "family-10", "io_uring-0", "other-descriptor-0"} <= set(asked)
        granted = {what.removesuffix("-0") for what, error in asked.items() if error == 0}
        assert granted <= _ALLOWED, f"granted: {sorted(granted - _ALLOWED)}"


_DISPLAYS: Final = {"plain": "", "remote": "localhost:10.0", "colon": "x:", "inet": "inet/host:0"}
_EVERY: Final = "sockets of every family, io_uring, x32 and 32-bit calls, and a child Python; DISPLAY="


@CASES.table(
    {f"sockets-{name}": (f"{_EVERY}{display or 'none'}", display) for name, display in _DISPLAYS.items()},
    quick=("sockets-remote",),
)
def screen_under(world: World, display: str) -> None:
    """The socket filter is active in the program and in its workers, whatever DISPLAY says."""
    world.good_images(3)
    arguments = ("screen", world.images, *world.pack_options, "--json", "-")
    require_no_network(run_probed(world, *arguments, environment={"DISPLAY": display}), processes=3)


@CASES.case("sockets-demo", "sockets of every family in `demo --no-window`; DISPLAY=x: names no other machine")
def sockets_demo(world: World) -> None:
    arguments = ("demo", "drawn", "--no-window", "--folder", world.folder / "demo", *world.pack_options, "--json", "-")
    answers = run_probed(world, *arguments, environment={"DISPLAY": "x:"})
    assert not [asked for asked in answers.values() if "no-filter-0" in asked], "a process is under no filter"
    require_no_network(answers, processes=3)


@CASES.case("packs-commands", "sockets of every family in the other commands")
def packs_commands(world: World) -> None:
    for arguments in (("packs", "list"), ("packs", "verify", world.pack), ("doctor",)):
        require_no_network(run_probed(world, *arguments, environment={}), processes=1)


@CASES.case(
    "variables", "environment variables that load plugins, drivers or modules reach no child process", is_quick=True
)
def variables(world: World) -> None:
    world.good_images(20)
    naming = ("QT_PLUGIN_PATH", "LIBGL_DRIVERS_PATH", "GTK_MODULES", "OPENSSL_CONF", "LD_AUDIT", "OMP_TOOL_LIBRARIES")
    running = world.begin(1, environment=dict.fromkeys((*naming, "PYTHONPATH"), "."), cwd=world.images)
    for child in running.children():
        with suppress(OSError):  # the child has just ended
            found = (Path("/proc") / str(child) / "environ").read_bytes().split(b"\0")
            given = {variable.partition(b"=")[0].decode() for variable in found} & {*naming, "PYTHONPATH"}
            assert not given, f"a child has {sorted(given)}"
    running.finish().ends_with(0)
