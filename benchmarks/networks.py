"""Engines on the networks of the packs: PZNet's claim (three to four times as fast as the frameworks), on this CPU.

Each engine lives in a process of its own, kept on as many cores as it has threads. All of them get the same images;
what they give is compared first, and an engine that gives something else is in no ratio. Rounds alternate between the
engines, so that whatever else the machine does falls on all of them; a figure is the median of a round's calls, and
then the median of the rounds with the lowest and the highest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.network_cases import NetworkCase
from benchmarks.network_engines import timed_ms
from benchmarks.processes import toolchain_command
from fieldray.errors import FieldrayError
from fieldray.inference.worker import cpu_kind
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message

_SERVICE: Final = "benchmarks.network_engines:handle"
_TIMEOUT_S: Final = 600.0
# A float32 engine that differs by more computes something else.
TOLERANCE: Final = 1e-4

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: `package` is what it needs, `kind` "float32", "int8" or "program"."""

    key: str
    title: str
    package: str
    kind: str = "float32"


FRAMEWORK: Final = "torch-eager"
ENGINES: Final = (
    Engine(key="tensorflow-eager", title="TensorFlow, eager", package="tensorflow"),
    Engine(key="torch-eager", title="PyTorch, eager", package="torch"),
    Engine(key="tensorflow-graph", title="TensorFlow, tf.function", package="tensorflow"),
    Engine(key="tensorflow-xla", title="TensorFlow, XLA", package="tensorflow"),
    Engine(key="torch-inductor", title="PyTorch, TorchInductor", package="torch"),
    Engine(key="onnx", title="ONNX Runtime", package="onnxruntime"),
    Engine(key="openvino", title="OpenVINO", package="openvino"),
    Engine(key="litert", title="LiteRT float32", package="ai_edge_litert"),
    Engine(key="litert-int8", title="LiteRT int8", package="ai_edge_litert", kind="int8"),
    Engine(key="program", title="the program (int8)", package="ai_edge_litert", kind="program"),
)


@dataclass(eq=False, slots=True, kw_only=True)
class Measured:
    """An engine on one network with so many threads and images a batch; figures by round."""

    engine: Engine
    case: str
    threads: int
    images: int
    detail: str = ""
    problem: str = ""
    batch_ms: list[float] = field(default_factory=list)
    difference: float | None = None

    @property
    def image_ms(self) -> tuple[float, float, float]:
        """Milliseconds per image: median, lowest and highest of the rounds."""
        one = [time_ms / self.images for time_ms in self.batch_ms]
        return statistics.median(one), min(one), max(one)

    @property
    def is_equal(self) -> bool:
        """Whether it gives what the others give; int8 rounds, so that only float32 can fail."""
        return self.engine.kind != "float32" or (self.difference is not None and self.difference <= TOLERANCE)

    @property
    def counts(self) -> bool:
        """Whether it is in ratios."""
        return bool(self.batch_ms) and not self.problem and self.is_equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long is measured: rounds, seconds of a round's calls, and how much warming up goes before."""

    rounds: int
    seconds: float
    warm_up_s: float = 0.3


def measure(
    cases: Sequence[NetworkCase],
    *,
    threads: Sequence[int],
    batches: Sequence[int],
    effort: Effort,
    notify: Notify,
    engines: Sequence[Engine] = ENGINES,
) -> tuple[Measured, ...]:
    """Measure every engine on every network; one that cannot run says why in `problem`."""
    found: list[Measured] = []
    for case in cases:
        for count in threads:
            for images in batches:
                place = f"{case.name}, threads {count}, batch {images}"
                found += _race(case, engines, threads=count, images=images, effort=effort, place=place, notify=notify)
    return tuple(found)


def times_as_fast(one: Measured, other: Measured) -> float | None:
    """The median of the rounds' ratios; None where either is in no ratio."""
    if not (one.counts and other.counts):
        return None
    return statistics.median(theirs / ours for ours, theirs in zip(one.batch_ms, other.batch_ms, strict=True))


def _race(
    case: NetworkCase,
    engines: Sequence[Engine],
    *,
    threads: int,
    images: int,
    effort: Effort,
    place: str,
    notify: Notify,
) -> list[Measured]:
    found = [Measured(engine=engine, case=case.name, threads=threads, images=images) for engine in engines]
    outputs: dict[str, NDArray[np.float32]] = {}
    with contextlib.ExitStack() as stack:
        runners: dict[str, _Run] = {}
        for one in found:
            notify(f"{place}: opening {one.engine.title}")
            with _problems(one):
                run = stack.enter_context(_opened(case, one))
                runners[one.engine.key] = run
                # The first calls compile: they belong to no round.
                outputs[one.engine.key], _ = run(0.0, effort.warm_up_s)
        for number in range(effort.rounds):
            for one in found:
                notify(f"{place}: round {number + 1} of {effort.rounds}, {one.engine.title}")
                if one.engine.key in runners and not one.problem:
                    with _problems(one):
                        _, times_ms = runners[one.engine.key](effort.seconds, effort.warm_up_s)
                        one.batch_ms.append(statistics.median(times_ms))
    _compare(found, outputs)
    return found


def _compare(found: Sequence[Measured], outputs: Mapping[str, NDArray[np.float32]]) -> None:
    """The largest difference from the first float32 engine that ran."""
    known = [one for one in found if one.engine.key in outputs and one.engine.kind == "float32"]
    for one in found:
        if known and one.engine.key in outputs and outputs[one.engine.key].size:
            one.difference = float(np.abs(outputs[one.engine.key] - outputs[known[0].engine.key]).max())


_Run = Callable[[float, float], tuple[NDArray[np.float32], list[float]]]


@contextlib.contextmanager
def _problems(one: Measured) -> Iterator[None]:
    try:
        yield
    except ChildDied as error:
        one.problem = (error.last_stderr.strip().splitlines() or [str(error)])[-1]
    except (ChildTimeout, FieldrayError, OSError) as error:
        one.problem = str(error)


@contextlib.contextmanager
def _opened(case: NetworkCase, one: Measured) -> Iterator[_Run]:
    """What runs the engine for so many seconds after so many of warming up. Raises as `_problems` expects."""
    if not importlib.util.find_spec(one.engine.package):
        raise FileNotFoundError(f"not installed ({one.engine.package})")
    if one.engine.kind == "program":
        with _program(case, one) as run:
            yield run
        return
    child = Child(_SERVICE, command=toolchain_command)
    try:
        child.start()
        one.detail = child.call(_opening(case, one), timeout_s=_TIMEOUT_S).body["detail"]
        images = case.images

        def run(seconds: float, warm_up_s: float) -> tuple[NDArray[np.float32], list[float]]:
            body = {"ask": "run", "seconds": seconds, "warm_up_s": warm_up_s}
            answer = child.call(Message(body, {"images": images}), timeout_s=_TIMEOUT_S)
            return answer.arrays["output"][: len(images)], answer.body["batch_ms"]

        yield run
    finally:
        child.close()


def _opening(case: NetworkCase, one: Measured) -> Message:
    is_file, is_int8 = one.engine.key.startswith("litert"), one.engine.kind == "int8"
    file = case.int8_file if is_int8 else case.float_file
    body = {
        "ask": "open",
        "engine": "litert" if is_file else one.engine.key,
        "threads": one.threads,
        "images": one.images,
        "specification": case.specification.to_json(),
        "outputs": list(case.outputs),
        "file_output": case.int8_output if is_int8 else case.float_output,
    }
    arrays = {"file": np.frombuffer(file, np.uint8)} if is_file else dict(case.weights)
    return Message(body, arrays)


@contextlib.contextmanager
def _program(case: NetworkCase, one: Measured) -> Iterator[_Run]:
    """The program's own backend: its child process, pipes and post-processing, with its own choice of threads."""
    backend = cpu_kind(threads=one.threads).open()
    try:
        backend.start(case.model)
        one.detail = backend.detail

        def run_batch(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            """The answers travel back; their scores are those of another set of weights and are not compared."""
            for image in images:
                backend.run(image)
            return np.zeros(0, np.float32)

        whole = np.concatenate([case.images] * (one.images // len(case.images) + 1))
        batches = [whole[: one.images]]

        def run(seconds: float, warm_up_s: float) -> tuple[NDArray[np.float32], list[float]]:
            return np.zeros(0, np.float32), timed_ms(run_batch, batches, seconds=seconds, warm_up_s=warm_up_s)

        yield run
    finally:
        backend.close()
