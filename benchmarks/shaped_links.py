"""Compare Šlampa's formulas with measured times of parameter servers and workers over rate-limited network links.

Each machine is a process in a network namespace with one full-duplex link (`tc tbf` at both ends) to a bridge.
Transfers are real. A gradient is a timed wait, because two cores cannot compute like eight computers. If networks are
named, gradients are computed on synthetic images. Their time is measured just before each training, at the same time on
all machines of the training. The formulas depend only on ratios. A slower link with longer gradients shows how much of
an error is the fixed time of each message. TCP uses the congestion control of this computer (CUBIC on Linux and
Windows). Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np

from benchmarks.namespaces import Namespaces, namespaces
from benchmarks.processes import CHECKOUT
from benchmarks.reports import Goal
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray_adapt.networks.architectures import NETWORKS
from fieldray_adapt.networks.specification import parameter_count
from fieldray_adapt.training.classifier import Samples
from fieldray_cluster.training.formulas import (
    PARAMETER_SERVER_KINDS,
    ClusterTrainingMode,
    TrainingMeasurements,
    estimate_training,
)
from fieldray_cluster.training.tasks import write_arrays

Notify = Callable[[str], None]
GOAL_ERROR: Final = 0.15
_HEAD_S: Final = 0.3
_SIDE: Final = 64
_BATCH_SIZE: Final = 8
_GRADIENTS: Final = 3
_UPDATES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The times to simulate: rate of a link in Mbit/s, seconds of a gradient, seconds of one transfer of all weights.

    If `learner` describes a network, gradients of this network are computed. With None, a gradient is a timed wait.
    """

    name: str
    rate_mbit: int
    gradient_s: float
    transfer_s: float
    learner: Mapping[str, Any] | None = None

    @property
    def elements(self) -> int:
        """The number of float32 values whose transfer over the link takes `transfer_s` seconds."""
        return round(self.transfer_s * self.rate_mbit * 1e6 / 32)

    def slowed_down(self, factor: int) -> Link:
        """Return a copy with an equal number of weights, in which all times are multiplied by `factor`."""
        return replace(
            self,
            rate_mbit=self.rate_mbit // factor,
            gradient_s=self.gradient_s * factor,
            transfer_s=self.transfer_s * factor,
        )


LINKS: Final = (
    Link(name="as SqueezeNet (tc/tg 0.044)", rate_mbit=200, gradient_s=0.758, transfer_s=0.033),
    Link(name="as GoogLeNet (tc/tg 0.275)", rate_mbit=200, gradient_s=0.763, transfer_s=0.21),
)
"""Two links with the published times of gradient and transfer (Šlampa 2017, table 6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase:
    """One training: the measured duration and the predicted durations, in seconds.

    Attributes
    ----------
    server
        The kind of parameter server, and whether transfers take turns.
    gradient_s, mean_s
        The time of a gradient, and the duration that is predicted from this time.
    step_s, bound_s
        The time of all work of a worker for a step without transfers, and the duration predicted from this time.
    used_s
        CPU seconds of a gradient.
    """

    link: str
    mode: str
    server: str
    workers: int
    gradient_s: float
    step_s: float
    used_s: float
    measured_s: float
    mean_s: float
    bound_s: float
    update_s: float  # one machine's time for an update of all weights; 0 without a network
    updated_s: float  # predicted duration, with the time of the updates

    def error(self, kind: str) -> float:
        """Return the relative error of the prediction `kind` ("mean_s" or "bound_s")."""
        return float(getattr(self, kind)) / self.measured_s - 1


class Machines:
    """A child process on each simulated computer. The processes end with the block of `ends`."""

    def __init__(self, computers: Namespaces, ends: contextlib.ExitStack) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        for number in range(len(computers.names)):
            words = (sys.executable, "-m", "benchmarks.shaped_machine", computers.address(number))
            process = subprocess.Popen(
                computers.command(number, words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=CHECKOUT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            self._processes.append(ends.enter_context(process))

    def send(self, machine: int, do: str, **order: Any) -> None:
        """Send the order `do` with arguments to the machine with the number `machine`, without waiting."""
        stream = cast("IO[str]", self._processes[machine].stdin)
        stream.write(json.dumps({"do": do, **order}) + "\n")
        stream.flush()

    def answer(self, machine: int) -> Any:
        """Wait for the answer of a machine to its last order. Raises RuntimeError if the machine has ended."""
        line = cast("IO[str]", self._processes[machine].stdout).readline()
        if not line:
            raise RuntimeError(f"machine {machine} has ended")
        return json.loads(line)

    def ask(self, machine: int, do: str, **order: Any) -> Any:
        """Send the order `do` to a machine, wait for the answer, and return the answer."""
        self.send(machine, do, **order)
        return self.answer(machine)


def measure_transfer_s(machines: Machines, elements: int, *, repeats: int = 9) -> float:
    """Measure the seconds of one transfer of `elements` numbers in one direction, without the latency.

    Returns the median of both directions, minus half of the time of an empty round trip.
    """
    token = secrets.token_hex(8)
    address = machines.ask(0, "echo", elements=elements, token=token)
    times = machines.ask(1, "transfer", elements=elements, token=token, address=address, repeats=repeats)
    machines.ask(0, "stop")
    empty = statistics.median(one for pair in times["nothing"] for one in pair) / 2
    return float(statistics.median(one for pair in times["weights"] for one in pair) - empty)


def measure_gradient_s(machines: Machines, link: Link, *, workers: int) -> tuple[float, float, float]:
    """Measure the times of a gradient and of a step without transfers, and the CPU time of a gradient.

    Measures on `workers` machines at once. Returns mean values in seconds. Without a network, the first two values are
    the timed wait, and the last is 0.
    """
    if not link.learner:
        return link.gradient_s, link.gradient_s, 0.0
    for worker in range(workers):
        machines.send(worker + 1, "gradients", repeats=_GRADIENTS)
    gradients, steps, used = zip(*(machines.answer(worker + 1) for worker in range(workers)), strict=True)
    return statistics.fmean(gradients), statistics.fmean(steps), statistics.fmean(used)


def measure_training_s(
    machines: Machines, link: Link, *, mode: str, server: str, workers: int, batches: int, takes_turns: bool = False
) -> float:
    """Perform a training, and return the seconds from the first fetch of weights to the last applied gradient."""
    order: dict[str, Any] = {
        "plan": {"workers": workers, "mode": mode, "server": server, "takes_turns": takes_turns},
        "elements": link.elements,
        "batches": batches,
        "token": secrets.token_hex(8),
    }
    hosts = range(1, workers + 1) if server == "distributed" else range(1)
    servers = [machines.ask(host, "serve", share=share, **order) for share, host in enumerate(hosts)]
    at = time.monotonic() + _HEAD_S
    for worker in range(workers):
        machines.send(worker + 1, "work", worker=worker, gradient_s=link.gradient_s, servers=servers, at=at, **order)
    found = [machines.answer(worker + 1) for worker in range(workers)]
    for host in hosts:
        machines.ask(host, "stop")
    if any(one["lost"] for one in found):
        raise RuntimeError(f"a worker was lost: {mode} {server} {workers}")
    return float(max(one["ended"] for one in found)) - at


def measure_cases(
    link: Link,
    *,
    numbers: Sequence[int],
    batches: int,
    modes: Sequence[ClusterTrainingMode],
    has_turns: bool,
    notify: Notify,
) -> Iterator[tuple[float, TrainingCase]]:
    """Perform a training for every mode, kind of server and number of workers on one link.

    Yields, for each training, the measured transfer time in seconds and the training's figures.
    """
    max_workers = max(numbers)
    with namespaces(max_workers + 1, rate_mbit=link.rate_mbit) as computers, contextlib.ExitStack() as ends:
        machines = Machines(computers, ends)
        for machine in range(max_workers + 1 if link.learner else 0):
            machines.ask(machine, "learn", **cast("Mapping[str, Any]", link.learner))
        measure_gradient_s(machines, link, workers=max_workers)
        measure_training_s(machines, link, mode="async", server="distributed", workers=max_workers, batches=max_workers)
        transfer_s = measure_transfer_s(machines, link.elements)
        update_s = float(machines.ask(0, "update", repeats=_UPDATES)) if link.learner else 0.0
        for mode, server in itertools.product(modes, PARAMETER_SERVER_KINDS):
            for takes_turns in (False, True) if has_turns and server == "central" else (False,):
                name = f"{server}, one at a time" if takes_turns else server
                for workers in numbers:
                    notify(f"{link.name}: {mode} {name} {workers}")
                    took_s, step_s, used_s = measure_gradient_s(machines, link, workers=workers)
                    seconds = measure_training_s(
                        machines, link, mode=mode, server=server, workers=workers, batches=batches,
                        takes_turns=takes_turns,
                    )  # fmt: skip
                    measured = TrainingMeasurements(
                        gradient_s=took_s, transfer_s=transfer_s, batch_count=batches, rounds_up_batches=True
                    )
                    span = estimate_training(measured, mode=mode, server=server, workers=workers).time_range
                    updated = estimate_training(
                        replace(measured, update_s=update_s), mode=mode, server=server, workers=workers
                    ).time_range
                    # Synchronous workers transfer simultaneously (formula 4.9), asynchronous workers at different
                    # times (4.15). With one transfer at a time, a worker waits for the transfers of others (4.6).
                    bound_s = span.best_s if mode == "async" or takes_turns else span.worst_s
                    bound_s += (batches if mode == "sync-split" else -(-batches // workers)) * (step_s - took_s)
                    yield (
                        transfer_s,
                        TrainingCase(
                            link=link.name, mode=mode, server=name, workers=workers, gradient_s=took_s, step_s=step_s,
                            used_s=used_s, update_s=update_s,
                            measured_s=seconds, mean_s=span.mean_s, updated_s=updated.mean_s, bound_s=bound_s,
                        ),
                    )  # fmt: skip


def make_computing_links(
    networks: Sequence[str], *, rate_mbit: int, width: float, batches: int, folder: Path
) -> tuple[Link, ...]:
    """Return a `Link` for each network, whose gradients are computed, and write training images to `folder`.

    Each image is bright or dark. `width` is the factor for the networks' numbers of channels.
    """
    generator = np.random.default_rng(0)
    images = generator.integers(0, 200, (_BATCH_SIZE * 2, _SIDE, _SIDE, 1), np.uint8)
    images[::2] += 50
    targets = (np.arange(len(images)) % 2).astype(np.float32)[:, None]
    names = tuple(map(str, range(len(images))))
    arrays = folder / "arrays.npz"
    sha256 = write_arrays(arrays, Samples(images=images, targets=targets, sources=names, patients=names))
    found = []
    for kind in networks:
        whole = NETWORKS[kind](height=_SIDE, width=_SIDE, labels=1)
        elements = parameter_count(whole.with_scaled_channels(width) if width != 1 else whole)
        learner = {
            "kind": kind, "side": _SIDE, "width": width, "batches": batches, "batch_size": _BATCH_SIZE,
            "arrays": str(arrays), "sha256": sha256,
        }  # fmt: skip
        transfer_s = elements * 32 / (rate_mbit * 1e6)
        found.append(Link(name=kind, rate_mbit=rate_mbit, gradient_s=0.0, transfer_s=transfer_s, learner=learner))
    return tuple(found)


def run_benchmark(
    *,
    workers: Sequence[int],
    batches: int,
    time_factor: int,
    networks: Sequence[str],
    rate_mbit: int,
    width: float,
    modes: Sequence[ClusterTrainingMode],
    has_turns: bool,
    notify: Notify,
) -> BenchmarkReport:
    """Measure trainings on every link, and compare their durations with the formulas. Returns the report.

    All times of a link are multiplied by `time_factor`.
    """
    found, transfers = list[TrainingCase](), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="fieldray-") as folder:
        links = make_computing_links(networks, rate_mbit=rate_mbit, width=width, batches=batches, folder=Path(folder))
        links = links or tuple(link.slowed_down(time_factor) for link in LINKS)
        for link in links:
            for transfer_s, case in measure_cases(
                link, numbers=workers, batches=batches, modes=modes, has_turns=has_turns, notify=notify
            ):
                transfers[link.name] = transfer_s
                found.append(case)
    marks = [_mark(found, link) for link in links]
    blocks: list[Any] = [BulletList("Goals", tuple(mark.sentence for mark in marks))]
    blocks += [_summary(found, link.name) for link in links]
    blocks += [_table(found, link.name) for link in links]
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    method = [
        f"{link.name}: {link.rate_mbit} Mbit/s both ways, {4 * link.elements / 1e6:.2f} MB of weights, tc measured "
        f"{1000 * transfers[link.name]:.1f} ms, an update of all weights {1000 * _update_s(found, link):.1f} ms, tg "
        f"{_gradients_of(found, link)}"
        for link in links
    ]
    method += [*_HOW, f"TCP congestion control: {control}.", f"Each training has {batches} batches (D)."]
    if networks:
        method.append(f"Images of {_SIDE} x {_SIDE}, {_BATCH_SIZE} in a batch. Channels: {width:g} of the published.")
    else:
        method.append(
            f"The published times are multiplied by {time_factor}, and the rates are divided by {time_factor}."
        )
    blocks.append(BulletList("How it was measured", tuple(method)))
    data = {"cases": [asdict(case) for case in found], "transfers_s": transfers}
    title = "Training with several workers: predicted and measured"
    return BenchmarkReport(file_stem="shaped-links", title=title, blocks=tuple(blocks), json_values=data)


def _update_s(found: Sequence[TrainingCase], link: Link) -> float:
    return next(one.update_s for one in found if one.link == link.name)


def _gradients_of(found: Sequence[TrainingCase], link: Link) -> str:
    if not link.learner:
        return f"a timed wait of {1000 * link.gradient_s:.0f} ms"
    parts, own = [], [one for one in found if one.link == link.name]
    for workers in sorted({one.workers for one in own}):
        times = [1000 * one.gradient_s for one in own if one.workers == workers]
        step_ms = 1000 * statistics.median(one.step_s for one in own if one.workers == workers)
        used_ms = 1000 * statistics.median(one.used_s for one in own if one.workers == workers)
        parts.append(
            f"with {workers} workers {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}), a whole "
            f"step {step_ms:.0f} ms, CPU time of a gradient {used_ms:.0f} ms"
        )
    return "; ".join(parts)


_HOW: Final = (
    "Servers and workers are those of the program. Each runs in a network namespace with one link of this rate (tc tbf "
    "at both ends). All links end at one bridge.",
    "The published mean uses only the time of a gradient. The mean with updates adds the time of updates, as `fieldray "
    "adapt estimate --t-update` does. The matching case uses the time of a worker's whole step: setting the weights, "
    "computing the gradient, and copying the gradient to one vector. If a worker only waits, the step is the wait.",
    "N is the number of workers. D/N (batches per worker) is rounded up. With sync-split, a gradient takes tg / N. "
    "Distributed servers have equal shares of the weights.",
    "A first training on all machines, during which modules are imported, is left out.",
    "Each time was measured once, from the first fetch of weights to the last gradient that a server received.",
)
_KINDS: Final = {"mean_s": "published mean", "updated_s": "mean with updates", "bound_s": "matching case"}


def _errors(found: Sequence[TrainingCase], link: str, mode: str, server: str, kind: str) -> list[float]:
    return [one.error(kind) for one in found if (one.link, one.mode, one.server) == (link, mode, server)]


def _pairs(found: Sequence[TrainingCase], link: str) -> list[tuple[str, str]]:
    """Return the pairs of mode and server of all trainings on the link `link`, each pair once."""
    return list(dict.fromkeys((one.mode, one.server) for one in found if one.link == link))


def _mark(found: Sequence[TrainingCase], link: Link) -> Goal:
    pairs = [(mode, server) for mode, server in _pairs(found, link.name) if server in PARAMETER_SERVER_KINDS]
    close = [max(map(abs, _errors(found, link.name, mode, server, "mean_s"))) <= GOAL_ERROR for mode, server in pairs]
    name = f"{link.name}: of {len(pairs)} pairs of mode and server, those whose published mean is always within 15 %"
    return Goal(name=name, measured=float(sum(close)), goal=len(pairs) - 1, unit="")


def _summary(found: Sequence[TrainingCase], link: str) -> Table:
    rows = []
    for mode, server in _pairs(found, link):
        cells = [f"{mode}, {server}"]
        for kind in _KINDS:
            errors = _errors(found, link, mode, server, kind)
            cells += [f"{100 * statistics.fmean(map(abs, errors)):.1f} %", f"{100 * max(errors, key=abs):+.1f} %"]
        rows.append(tuple(cells))
    columns = ("mode, server", *(f"{name}: {what}" for name in _KINDS.values() for what in ("mean error", "largest")))
    return Table(f"Relative errors of predicted times, {link}", columns, tuple(rows))


def _table(found: Sequence[TrainingCase], link: str) -> Table:
    rows = tuple(
        (
            f"{one.mode}, {one.server}, {one.workers}",
            f"{one.measured_s:.2f}",
            *(text for kind in _KINDS for text in (f"{getattr(one, kind):.2f}", f"{100 * one.error(kind):+.1f} %")),
        )
        for one in found
        if one.link == link
    )
    columns = ("mode, server, N", "measured s", *(text for name in _KINDS.values() for text in (f"{name} s", "error")))
    return Table(f"All trainings, {link}", columns, rows)
