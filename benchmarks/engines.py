"""Engines for one int8 file, side by side: how many images per second each gives in each arrangement.

The child's side. Every engine gets the same images, bytes in and scores out, for the same time, in a process of its
own; `workers` networks run side by side, each with so many `threads`.

open  body: engine, workers, threads, rows, columns, channels, labels, outputs, seconds; array model
      -> body: detail
run   array images (n, rows, columns, channels) uint8 -> body: images_per_s, latency_ms (median of one after another);
      array scores (n, m): the output that holds scores, in 0..1, of each image
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.inference.runtime import load_runtime
from fieldray.processes.wire import Message

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
    """Images a second of all together."""

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
    """OpenVINO: one compiled model with so many streams, a request for each."""
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
