"""Measure the speed of inference engines on the networks of shipped packs.

PZNet's authors claim to be three to four times as fast as other engines. Each engine is a process with as many cores as
threads. All engines get equal images, and their outputs are compared first. An engine with other outputs gets no speed
ratio. In each round, all engines are measured, so that other load of the computer affects all equally. A figure is the
median of the calls in a round, then the median of the rounds, with the lowest and the highest value.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.network_cases import NetworkCase, classifier_case, lung_case
from benchmarks.network_engines import OPEN, RUN, WARM_UP_S, OpenRequest, RunRequest, call_times_ms
from benchmarks.processes import toolchain_command
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.errors import FieldrayError
from fieldray.inference.worker import cpu_kind
from fieldray.processes.child import Child, ChildDied, ChildTimeout

MODELS: Final = Path(__file__).resolve().parent.parent / "models"
_SERVICE: Final = "benchmarks.network_engines:handle"
_TIMEOUT_S: Final = 600.0
# The largest allowed difference between the outputs of two float32 engines.
TOLERANCE: Final = 1e-4

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An inference engine: the Python package `package` that it needs, and its `kind`.

    The kind is "float32", "int8", or "program" for this program with all of its processes.
    """

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
class EngineFigures:
    """The figures of an engine on one network, for one number of threads and one batch size.

    `batch_ms` has the median milliseconds of a batch in each round.
    """

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
        """Milliseconds per image: median, lowest and highest value of the rounds."""
        one = [time_ms / self.images for time_ms in self.batch_ms]
        return statistics.median(one), min(one), max(one)

    @property
    def is_equal(self) -> bool:
        """Whether the engine's outputs equal the outputs of the first engine.

        Only float32 engines are compared, because int8 engines round differently.
        """
        return self.engine.kind != "float32" or (self.difference is not None and self.difference <= TOLERANCE)

    @property
    def is_comparable(self) -> bool:
        """Whether the engine may be compared in speed: it was measured without a problem, and its outputs are right."""
        return bool(self.batch_ms) and not self.problem and self.is_equal


def run_benchmark(
    *, threads: Sequence[int], batches: Sequence[int], rounds: int, seconds: float, notify: Notify
) -> BenchmarkReport:
    """Measure every engine on every network, and return the report.

    Each combination of `threads` and `batches` (images in a batch) is measured in `rounds` rounds of `seconds` seconds.
    For an engine that cannot run, the report gives the problem.
    """
    cases = [classifier_case(_pack("adult-normal-abnormal")), lung_case(_pack("lung-fields"))]
    measured: list[EngineFigures] = []
    for case, count, images in itertools.product(cases, threads, batches):
        found = [EngineFigures(engine=engine, case=case.name, threads=count, images=images) for engine in ENGINES]
        _race(case, found, rounds=rounds, seconds=seconds, notify=notify)
        measured += found
    return _report(measured, rounds=rounds, seconds=seconds)


def _pack(name: str) -> Path:
    return sorted(MODELS.glob(f"{name}-*"))[-1]


def median_speed_up(engine: EngineFigures, baseline: EngineFigures) -> float | None:
    """Return how many times as fast as `baseline` the engine `engine` is: the median ratio of the rounds.

    None if one of the engines may not be compared.
    """
    if not (engine.is_comparable and baseline.is_comparable):
        return None
    return statistics.median(theirs / ours for ours, theirs in zip(engine.batch_ms, baseline.batch_ms, strict=True))


def _race(case: NetworkCase, found: Sequence[EngineFigures], *, rounds: int, seconds: float, notify: Notify) -> None:
    """Run all engines on a network in several rounds, and store times and differences in `found`."""
    place = f"{case.name}, threads {found[0].threads}, batch {found[0].images}"
    outputs: dict[str, NDArray[np.float32]] = {}
    with contextlib.ExitStack() as stack:
        runners: dict[str, _Run] = {}
        for one in found:
            notify(f"{place}: opening {one.engine.title}")
            with _problems(one):
                runners[one.engine.key] = run = stack.enter_context(_opened(case, one))
                outputs[one.engine.key], _ = run(0.0)  # the first calls compile the network, and are not measured
        for number in range(rounds):
            for one in found:
                notify(f"{place}: round {number + 1} of {rounds}, {one.engine.title}")
                if one.engine.key in runners and not one.problem:
                    with _problems(one):
                        one.batch_ms.append(statistics.median(runners[one.engine.key](seconds)[1]))
    _compare(found, outputs)


def _compare(found: Sequence[EngineFigures], outputs: Mapping[str, NDArray[np.float32]]) -> None:
    """Store for each engine the largest difference between its output and the first float32 engine's output."""
    known = [one for one in found if one.engine.key in outputs and one.engine.kind == "float32"]
    for one in found:
        if known and one.engine.key in outputs and outputs[one.engine.key].size:
            one.difference = float(np.abs(outputs[one.engine.key] - outputs[known[0].engine.key]).max())


_Run = Callable[[float], tuple[NDArray[np.float32], Sequence[float]]]


@contextlib.contextmanager
def _problems(one: EngineFigures) -> Iterator[None]:
    try:
        yield
    except ChildDied as error:
        one.problem = (error.last_stderr.strip().splitlines() or [str(error)])[-1]
    except (ChildTimeout, FieldrayError, OSError) as error:
        one.problem = str(error)


@contextlib.contextmanager
def _opened(case: NetworkCase, one: EngineFigures) -> Iterator[_Run]:
    """Open an engine, and yield a function that runs the engine for some seconds, after a warm-up.

    Raises the exceptions that `_problems` handles.
    """
    if not importlib.util.find_spec(one.engine.package):
        raise FileNotFoundError(f"not installed ({one.engine.package})")
    if one.engine.kind == "program":
        with _program(case, one) as run:
            yield run
        return
    child = Child(_SERVICE, command=toolchain_command)
    try:
        child.start()
        one.detail = OPEN.ask(child, _opening(case, one), timeout_s=_TIMEOUT_S)

        def run(seconds: float) -> tuple[NDArray[np.float32], Sequence[float]]:
            answer = RUN.ask(child, RunRequest(images=case.images, seconds=seconds), timeout_s=_TIMEOUT_S)
            return answer.output[: len(case.images)], answer.batch_ms

        yield run
    finally:
        child.close()


def _opening(case: NetworkCase, one: EngineFigures) -> OpenRequest:
    is_file, is_int8 = one.engine.key.startswith("litert"), one.engine.kind == "int8"
    return OpenRequest(
        engine="litert" if is_file else one.engine.key,
        threads=one.threads,
        images=one.images,
        specification=case.specification,
        outputs=case.outputs,
        weights={} if is_file else case.weights,
        file=np.frombuffer(case.int8_file if is_int8 else case.float_file, np.uint8) if is_file else None,
        file_output=case.int8_output if is_int8 else case.float_output,
    )


@contextlib.contextmanager
def _program(case: NetworkCase, one: EngineFigures) -> Iterator[_Run]:
    """Open this program's own backend, with child process, pipes and post-processing.

    Yields a function that runs the backend for some seconds, after a warm-up.
    """
    backend = cpu_kind(threads=one.threads).open()
    try:
        backend.start(case.model)
        one.detail = backend.detail

        def run_batch(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            """Run each image of a batch. Returns an empty array, because the scores belong to other weights."""
            for image in images:
                backend.run(image)
            return np.zeros(0, np.float32)

        whole = np.concatenate([case.images] * (one.images // len(case.images) + 1))
        images, no_output = [whole[: one.images]], np.zeros(0, np.float32)
        yield lambda seconds: (no_output, call_times_ms(run_batch, images, seconds=seconds))
    finally:
        backend.close()


# ---- the report: equal outputs first, then times


def _report(measured: Sequence[EngineFigures], *, rounds: int, seconds: float) -> BenchmarkReport:
    groups: dict[Key, list[EngineFigures]] = {}
    for one in measured:
        groups.setdefault((one.case, one.threads, one.images), []).append(one)
    times = (_times(key, rows) for key, rows in groups.items())
    return BenchmarkReport(
        file_stem="networks",
        title="Fieldray: engines on the networks of the packs",
        blocks=(_equality(measured), *times, BulletList("Engines", tuple(_details(measured, rounds, seconds)))),
        json_values={
            "measured": [{**asdict(one), "engine": one.engine.key} for one in measured],
            "rounds": rounds,
            "seconds": seconds,
        },
    )


Key = tuple[str, int, int]


def _ratio(rows: Sequence[EngineFigures], one: EngineFigures, other: str) -> str:
    ratio = next((median_speed_up(one, base) for base in rows if base.engine.key == other), None)
    return "-" if ratio is None else f"{ratio:.2f} x"


def _equality(measured: Sequence[EngineFigures]) -> Table:
    cases = list(dict.fromkeys(one.case for one in measured))
    rows = []
    for engine in ENGINES:
        cells = []
        for case in cases:
            of_case = [one for one in measured if one.engine == engine and one.case == case]
            differences = [one.difference for one in of_case if one.difference is not None]
            if not differences:
                cells.append("-")
            else:
                is_other = any(not one.is_equal for one in of_case if one.difference is not None)
                cells.append(f"{max(differences):.1e}" + (" NOT EQUAL" if is_other else ""))
        rows.append((engine.title, *cells))
    title = f"Largest difference of an output (0 to 1) from the first engine; float32 is equal up to {TOLERANCE:g}"
    return Table(title, ("engine", *cases), tuple(rows))


def _times(key: Key, rows: Sequence[EngineFigures]) -> Table:
    cells = []
    for one in rows:
        figures = ["-"] * 5
        if one.batch_ms and not one.problem:
            median, low, high = one.image_ms
            figures = [f"{median:.2f}", f"{low:.2f}-{high:.2f}", f"{1000 / median:.1f}"]
            figures += [_ratio(rows, one, other) for other in (FRAMEWORK, "litert")]
        cells.append((one.engine.title, *figures))
    columns = ("engine", "ms/image", "lowest-highest", "images/s", "against eager PyTorch", "against LiteRT float32")
    case, threads, images = key
    title = f"{case}, {threads} thread{'s' if threads > 1 else ''}, batch of {images}"
    return Table(title, columns, tuple(cells))


def _details(measured: Sequence[EngineFigures], rounds: int, seconds: float) -> Iterator[str]:
    yield (
        f"{rounds} rounds. In a round, each engine warms up for {WARM_UP_S:g} s and is measured for {seconds:g} s, in "
        "a separate process with one core for each thread."
    )
    yield "The figures of the program include pipes and post-processing. The program runs the int8 file of the pack."
    for engine in ENGINES:
        of_engine = [one for one in measured if one.engine == engine]
        notes = dict.fromkeys(one.detail for one in of_engine if one.detail)
        problems = dict.fromkeys(f"not measured: {one.problem}" for one in of_engine if one.problem)
        yield f"{engine.title}: {'; '.join((*notes, *problems)) or 'no details'}"
