"""Inference engines on one int8 file: they alternate, each in a process of its own.

The child's side gets the same images, bytes in and scores out, for the same time; `workers` networks run side by
side, each with `threads` threads.

open  body: engine, workers, threads, seconds; array model -> body: detail
run   array images (n, rows, columns, channels) uint8 -> body: images_per_s, latency_ms (median, one image at a time);
      array scores (n, m): the output that holds scores, in 0..1, of each image
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.processes import child_command
from fieldray.bench.benchmark_case import LoadedImage
from fieldray.errors import FieldrayError
from fieldray.inference.litert import load_runtime
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message

_SERVICE: Final = "benchmarks.engines:handle"
_RACE_TIMEOUT_S: Final = 120.0
_RACE_S: Final = 1.0

Notify = Callable[[str], None]


@dataclass(eq=False, slots=True, kw_only=True)
class Entry:
    """An engine with `workers` networks side by side, each with `threads` threads; figures by round."""

    engine: str
    workers: int
    threads: int
    detail: str = ""
    problem: str = ""
    images_per_s: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    scores: NDArray[np.float32] | None = None

    @property
    def name(self) -> str:
        """The name in tables."""
        title = {"litert": "LiteRT", "openvino": "OpenVINO"}[self.engine]
        return f"{title}, {self.workers} x {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def rate(self) -> float:
        """Images per second, median."""
        return statistics.median(self.images_per_s)

    @property
    def latency(self) -> float:
        """Milliseconds per image, one at a time, median."""
        return statistics.median(self.latency_ms)

    @property
    def is_lean(self) -> bool:
        """Whether it is one network with one thread."""
        return self.workers == self.threads == 1


def entries(*, cores: int) -> list[Entry]:
    """Each engine lean, with one thread per core, and with one network per core."""
    thread_configurations = dict.fromkeys([(1, 1), (1, cores), (cores, 1)])
    pairs = itertools.product(("litert", "openvino"), thread_configurations)
    return [Entry(engine=engine, workers=workers, threads=threads) for engine, (workers, threads) in pairs]


def race(
    model: bytes, inputs: Sequence[LoadedImage], *, cores: int, repeats: int, notify: Notify, seconds: float = _RACE_S
) -> tuple[Entry, ...]:
    """Measure all of them, alternating; an engine that cannot run says why in `problem`."""
    images = np.stack([image.values for image in inputs])
    found = entries(cores=cores)
    for number in range(repeats):
        notify(f"engines, round {number + 1} of {repeats}")
        for entry in found:
            entry.problem = entry.problem or unavailable_reason(entry.engine)
            if not entry.problem:
                _race(entry, model, images, seconds)
    return tuple(found)


def fastest(measured: Sequence[Entry], engine: str = "") -> Entry | None:
    """The entry with the highest rate, of one engine or of all."""
    ran = [one for one in measured if one.images_per_s and engine in ("", one.engine)]
    return max(ran, key=lambda one: one.rate, default=None)


def largest_difference(measured: Sequence[Entry]) -> float:
    """Between the scores of any two entries, in quantisation steps of the output."""
    known = [one.scores for one in measured if one.scores is not None]
    return max((float(np.abs(one - known[0]).max()) for one in known), default=0.0)


def _race(entry: Entry, model: bytes, images: NDArray[np.uint8], seconds: float) -> None:
    child = Child(_SERVICE, command=child_command)
    body = {"ask": "open", "engine": entry.engine, "workers": entry.workers, "threads": entry.threads}
    try:
        child.start()
        opening = Message({**body, "seconds": seconds}, {"model": np.frombuffer(model, np.uint8)})
        entry.detail = child.call(opening, timeout_s=_RACE_TIMEOUT_S).body["detail"]
        answer = child.call(Message({"ask": "run"}, {"images": images}), timeout_s=_RACE_TIMEOUT_S)
        entry.images_per_s.append(answer.body["images_per_s"])
        entry.latency_ms.append(answer.body["latency_ms"])
        entry.scores = answer.arrays["scores"]
    except (ChildDied, ChildTimeout, FieldrayError, OSError) as error:
        entry.problem = str(error)
    finally:
        child.close()


Infer = Callable[[NDArray[np.uint8]], NDArray[Any]]


class EngineService:
    """One engine, opened once."""

    def __init__(self) -> None:
        self._networks: Sequence[Infer] = ()
        self._seconds = 1.0

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        body = message.body
        if body["ask"] == "open":
            make = {"litert": litert, "openvino": openvino}[body["engine"]]
            detail, self._networks = make(
                message.arrays["model"].tobytes(), workers=body["workers"], threads=body["threads"]
            )
            self._seconds = body["seconds"]
            return Message({"detail": detail})
        images = message.arrays["images"]
        scores = np.stack([self._networks[0](image[None]) for image in images]).reshape(len(images), -1)
        times_s = [_seconds(self._networks[0], image) for image in itertools.islice(itertools.cycle(images), 100)]
        body = {"images_per_s": _rate(self._networks, images, self._seconds)}
        return Message({**body, "latency_ms": 1000 * statistics.median(times_s)}, {"scores": scores.astype(np.float32)})


def unavailable_reason(engine: str) -> str:
    """Why an engine cannot be measured here; empty if it can."""
    package = {"litert": "ai_edge_litert", "openvino": "openvino"}[engine]
    return "" if importlib.util.find_spec(package) else f"not installed ({package})"


def _seconds(network: Infer, image: NDArray[np.uint8]) -> float:
    began_s = time.perf_counter()
    network(image[None])
    return time.perf_counter() - began_s


def _rate(networks: Sequence[Infer], images: NDArray[np.uint8], seconds: float) -> float:
    """Images per second of all networks together."""

    def runs(network: Infer) -> int:
        count = 0
        for image in itertools.cycle(images):
            if time.perf_counter() - began_s >= seconds:
                break
            network(image[None])
            count += 1
        return count

    with ThreadPoolExecutor(len(networks)) as pool:
        began_s = time.perf_counter()
        total = sum(pool.map(runs, networks))
        return total / (time.perf_counter() - began_s)


def litert(model: bytes, *, workers: int, threads: int) -> tuple[str, list[Infer]]:
    """LiteRT with XNNPACK: interpreters side by side."""
    runtime = load_runtime()
    return f"{runtime.name} {runtime.version}", [_litert(runtime, model, threads) for _ in range(workers)]


def _litert(runtime: Any, model: bytes, threads: int) -> Infer:
    interpreter = runtime.interpreter(model_content=model, num_threads=threads)
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    outputs = interpreter.get_output_details()
    target = min(outputs, key=lambda details: int(np.prod(details["shape"])))

    def infer(image: NDArray[np.uint8]) -> NDArray[Any]:
        interpreter.set_tensor(source, image)
        interpreter.invoke()
        return np.asarray(interpreter.get_tensor(target["index"]))

    return infer


def openvino(model: bytes, *, workers: int, threads: int) -> tuple[str, list[Infer]]:
    """OpenVINO: one compiled model with one stream and one request per network."""
    import tempfile
    from pathlib import Path

    import openvino as engine

    core = engine.Core()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(model)
        network = core.read_model(path)
    options = {"NUM_STREAMS": str(workers), "INFERENCE_NUM_THREADS": str(workers * threads)}
    compiled = core.compile_model(network, "CPU", options)
    index = min(range(len(compiled.outputs)), key=lambda at: int(np.prod(compiled.outputs[at].shape)))
    return f"OpenVINO {engine.__version__}", [_request(compiled, index) for _ in range(workers)]


def _request(compiled: Any, index: int) -> Infer:
    request = compiled.create_infer_request()

    def infer(image: NDArray[np.uint8]) -> NDArray[Any]:
        request.infer([image], share_inputs=True)
        return np.array(request.get_output_tensor(index).data)

    return infer


handle = EngineService().handle
