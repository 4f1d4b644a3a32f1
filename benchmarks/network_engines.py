"""The child process of the comparison of inference engines: runs one engine with one network, on some cores."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.processes.child import ChildFunction, make_message_handler
from fieldray_adapt.networks.specification import Specification

# A function from a batch of images (n, rows, columns, channels) uint8 to the compared output (n, m).
Infer = Callable[[NDArray[np.uint8]], NDArray[Any]]
WARM_UP_S: Final = 0.3
_MIN_CALLS: Final = 5


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OpenRequest:
    """The message that opens an engine: number of threads, batch size, and network.

    The network is a specification with weights, or a file.

    Attributes
    ----------
    images
        Number of images in a batch.
    outputs
        Roles of the outputs. The output with the first role is compared.
    file_output
        Index of the output to compare in a .tflite file.
    """

    engine: str
    threads: int
    images: int
    specification: Specification
    outputs: tuple[str, ...]
    weights: Mapping[str, NDArray[np.float32]]
    file: NDArray[np.uint8] | None
    file_output: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RunRequest:
    """The message that asks an engine to run images (n, rows, columns, channels) uint8 for `seconds` seconds."""

    images: NDArray[np.uint8]
    seconds: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RunResponse:
    """An engine's answer: the milliseconds of each call, and the compared output (n, m) of n images."""

    batch_ms: tuple[float, ...]
    output: NDArray[np.float32]


OPEN: Final = ChildFunction("open", OpenRequest, str)  # returns name and version of the engine
RUN: Final = ChildFunction("run", RunRequest, RunResponse)


class NetworkService:
    """Runs one engine in a child process, by messages: one `open`, then any number of `run`."""

    def __init__(self) -> None:
        self._infer: Infer | None = None
        self._images = 1

    def open(self, opening: OpenRequest) -> str:
        """Open the engine that the message describes. Returns name and version of the engine."""
        restrict_to_cores(opening.threads)
        self._images = opening.images
        detail, self._infer = ENGINES[opening.engine](opening)
        return detail

    def run(self, calls: RunRequest) -> RunResponse:
        """Run the images of the message in batches, and return times and outputs."""
        assert self._infer is not None
        batches = _batches(calls.images, self._images)
        output = np.concatenate([self._infer(batch).reshape(len(batch), -1) for batch in batches])
        times_ms = call_times_ms(self._infer, batches, seconds=calls.seconds)
        return RunResponse(batch_ms=tuple(times_ms), output=output.astype(np.float32))


def restrict_to_cores(threads: int) -> None:
    """Restrict this process to the first `threads` of its cores, if the operating system allows this."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def call_times_ms(infer: Infer, batches: Sequence[NDArray[np.uint8]], *, seconds: float) -> list[float]:
    """Call `infer` on the batches in turn for `seconds` seconds, at least five times, after a warm-up.

    Returns the milliseconds of each call.
    """
    source = itertools.cycle(batches)
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < WARM_UP_S:
        infer(next(source))
    found: list[float] = []
    began_s = time.perf_counter()
    while len(found) < _MIN_CALLS or time.perf_counter() - began_s < seconds:
        batch, before_s = next(source), time.perf_counter()
        infer(batch)
        found.append((time.perf_counter() - before_s) * 1000)
    return found


def _batches(images: NDArray[np.uint8], size: int) -> list[NDArray[np.uint8]]:
    """Divide images into batches of `size` images. The last batch is filled up with the first images."""
    count = -(-len(images) // size) * size
    whole = np.concatenate([images] * (count // len(images) + 1))[:count]
    return [whole[start : start + size] for start in range(0, count, size)]


def _torch(*, is_compiled: bool) -> Callable[[OpenRequest], tuple[str, Infer]]:
    def make(opening: OpenRequest) -> tuple[str, Infer]:
        import torch

        from benchmarks.torch_network import TorchNetwork

        torch.set_num_threads(opening.threads)
        network: Any = TorchNetwork(opening.specification, opening.weights, outputs=opening.outputs).eval()
        if is_compiled:
            from torch._inductor import config

            config.freezing, config.compile_threads = True, 1
            network = torch.compile(network)

        def infer(images: NDArray[np.uint8]) -> NDArray[Any]:
            with torch.inference_mode():
                values = network(torch.from_numpy(_planes(images)))[0]
            return np.asarray((values.permute(0, 2, 3, 1) if values.ndim == 4 else values).numpy())

        return f"torch {torch.__version__}", infer

    return make


def _real(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return images.astype(np.float32) / np.float32(255)


def _planes(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(_real(images).transpose(0, 3, 1, 2))


def _tensorflow(kind: str) -> Callable[[OpenRequest], tuple[str, Infer]]:
    def make(opening: OpenRequest) -> tuple[str, Infer]:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow

        from fieldray_adapt.training.keras_engine import build_network, set_weights

        tensorflow.config.threading.set_intra_op_parallelism_threads(opening.threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
        model = build_network(opening.specification, outputs=opening.outputs)
        set_weights(model, opening.weights)

        def call(images: Any) -> Any:
            return model(images, training=False)

        run = call if kind == "eager" else tensorflow.function(call, jit_compile=kind == "xla")

        def infer(images: NDArray[np.uint8]) -> NDArray[Any]:
            values = run(tensorflow.constant(_real(images)))
            return np.asarray(values[0] if len(opening.outputs) > 1 else values)

        return f"tensorflow {tensorflow.__version__}", infer

    return make


def _onnx(opening: OpenRequest) -> tuple[str, Infer]:
    import onnxruntime

    from benchmarks.onnx_network import onnx_file

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = opening.threads, 1
    options.log_severity_level = 3
    file = onnx_file(opening.specification, opening.weights, outputs=opening.outputs, images=opening.images)
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    source, target = session.get_inputs()[0].name, session.get_outputs()[0].name

    def infer(images: NDArray[np.uint8]) -> NDArray[Any]:
        values = np.asarray(session.run([target], {source: _planes(images)})[0])
        return values.transpose(0, 2, 3, 1) if values.ndim == 4 else values

    return f"onnxruntime {onnxruntime.__version__}", infer


def _openvino(opening: OpenRequest) -> tuple[str, Infer]:
    import openvino

    from benchmarks.onnx_network import onnx_file

    core = openvino.Core()
    file = onnx_file(opening.specification, opening.weights, outputs=opening.outputs, images=opening.images)
    options = {
        "INFERENCE_NUM_THREADS": str(opening.threads),
        "NUM_STREAMS": "1",
        "INFERENCE_PRECISION_HINT": "f32",  # otherwise OpenVINO may compute in bfloat16
    }
    request = core.compile_model(core.read_model(file), "CPU", options).create_infer_request()

    def infer(images: NDArray[np.uint8]) -> NDArray[Any]:
        request.infer([_planes(images)], share_inputs=True)
        values = np.array(request.get_output_tensor(0).data)
        return values.transpose(0, 2, 3, 1) if values.ndim == 4 else values

    return f"openvino {openvino.__version__.partition('-')[0]}", infer


def _litert(opening: OpenRequest) -> tuple[str, Infer]:
    """Open a network file in LiteRT. Returns name and version, and the function that runs a batch.

    A batch is one call if the file's input can be resized, else one call for each image.
    """
    from fieldray.inference.litert import load_runtime

    assert opening.file is not None
    runtime, file = load_runtime(), opening.file.tobytes()
    interpreter = runtime.interpreter(model_content=file, num_threads=opening.threads)
    source = interpreter.get_input_details()[0]
    at_once = 1
    if opening.images > 1:
        with contextlib.suppress(RuntimeError, ValueError):
            interpreter.resize_tensor_input(source["index"], (opening.images, *source["shape"][1:]))
            interpreter.allocate_tensors()
            at_once = opening.images
    if at_once != opening.images:
        interpreter = runtime.interpreter(model_content=file, num_threads=opening.threads)
    interpreter.allocate_tensors()
    target = interpreter.get_output_details()[opening.file_output]
    scale, zero = target["quantization"]

    def one(images: NDArray[np.uint8]) -> NDArray[Any]:
        interpreter.set_tensor(source["index"], images if source["dtype"] == np.uint8 else _real(images))
        interpreter.invoke()
        values = np.asarray(interpreter.get_tensor(target["index"]))
        return (values.astype(np.float32) - zero) * np.float32(scale) if scale else values

    def infer(images: NDArray[np.uint8]) -> NDArray[Any]:
        return np.concatenate([one(images[at : at + at_once]) for at in range(0, len(images), at_once)])

    note = "" if at_once == opening.images else ", one image after another"
    return f"{runtime.name} {runtime.version}{note}", infer


ENGINES: Final[Mapping[str, Callable[[OpenRequest], tuple[str, Infer]]]] = {
    "tensorflow-eager": _tensorflow("eager"),
    "tensorflow-graph": _tensorflow("graph"),
    "tensorflow-xla": _tensorflow("xla"),
    "torch-eager": _torch(is_compiled=False),
    "torch-inductor": _torch(is_compiled=True),
    "onnx": _onnx,
    "openvino": _openvino,
    "litert": _litert,
}
"""Functions that open an engine, by name of the engine. Each returns its name and version, and an `Infer` function."""

_service: Final = NetworkService()
handle: Final = make_message_handler((OPEN, _service.open), (RUN, _service.run))
