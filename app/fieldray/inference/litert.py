"""One network in a TensorFlow Lite interpreter, which is loaded only in child processes.

Arithmetic of quantised tensors: real = scale * (integer - zero_point), TensorFlow Lite quantisation specification. The
network's real input is value / 255 in every pack, so that one rule serves float and quantised files. The unsigned model
files of the dissertation are an exception: their input is the values 0..255.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import InputSpec, Manifest, OutputRoles
from fieldray.errors import BackendProblem
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.operators import require_stateless_network
from fieldray.processes.child import Child
from fieldray.processes.serving import memory_limit_mb
from fieldray.reasons import reason

# ---- LiteRT, the TensorFlow Lite runtime, and the process in which it runs models.

RUNTIME_PACKAGE: Final = "ai_edge_litert"
# Function that a child process calls to run models.
NETWORK_SERVICE: Final = "fieldray.inference.service:handle"

# Maximum memory of the process.
#
# Measured on 64-bit Linux with LiteRT 2.3.0 as the peak of the address space (VmPeak in /proc/PID/status) after `open`
# and one `run`. Every number of threads that the program tries on four cores was measured; these are the maxima:
#
#     the packs that ship (3 and 5 MB)                       560 MB
#     ResNet50 of full width in float32, 224 x 224 (89 MB)  1139 MB
#
# The peak is 560 MB plus less than seven times the file, because up to six copies of the weights exist at one time. A
# file of 256 MB, the largest file of a pack, needs 2.3 GB. The process for the Edge TPU has a single network, so that a
# third of the memory is left for libedgetpu, its threads and its copy of the file.
MEMORY_LIMIT_MB: Final = 2560


def model_process() -> Child:
    """Return a child process that runs one network. The process is not started yet."""
    return Child(NETWORK_SERVICE, memory_limit_mb=MEMORY_LIMIT_MB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An imported TensorFlow Lite runtime, with its class `Interpreter` and its function `load_delegate`."""

    name: str
    version: str
    interpreter: Callable[..., Any]
    load_delegate: Callable[..., Any]


def load_runtime(name: str = RUNTIME_PACKAGE) -> Runtime:
    """Import the TensorFlow Lite runtime. Raises BackendProblem("no_runtime") if it is not installed."""
    try:
        package = importlib.import_module(name)
        module = importlib.import_module(f"{name}.interpreter")
    except (ImportError, OSError) as error:
        raise BackendProblem(reason("no_runtime")) from error
    return Runtime(
        name=name,
        version=str(getattr(package, "__version__", "?")),
        interpreter=module.Interpreter,
        load_delegate=module.load_delegate,
    )


_TYPES: Final = (np.uint8, np.int8, np.float32)
_UNKNOWN_OPERATOR: Final = re.compile(r"unresolved custom op: ([\w-]+)")
# Maximum number of values of one output. The values of every image are sent to the program and stored with the result.
# Maps of 256 x 256 for 64 labels fit.
_MAX_VALUES: Final = 2**22
_NO_XNNPACK: Final = "failed to create XNNPACK runtime"

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """The interface that a network file must have.

    input        the input, as the manifest states it
    outputs      the indices of the outputs, by their role
    label_count  number of labels. For two labels, a network may give a single score: the score of the second label. The
                 first label then gets 1 - score
    is_bare      True for files of the dissertation: the input is 0..255 without scaling, and a score of one byte is a
                 share of 255, whatever quantisation the file states
    """

    input: InputSpec
    outputs: OutputRoles
    label_count: int
    is_bare: bool = False

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> NetworkSpec:
        """Return the interface that the network files of a pack must have, from the pack's manifest."""
        return cls(
            input=manifest.input,
            outputs=manifest.outputs,
            label_count=len(manifest.labels),
            is_bare=manifest.is_bare,
        )


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    index: int
    shape: tuple[int, ...]
    dtype: type[Any]
    scale: float
    zero_point: int

    @classmethod
    def of(cls, details: dict[str, Any]) -> _TensorInfo:
        shape = tuple(int(side) for side in details["shape"])
        scale, zero_point = details["quantization"]
        return cls(int(details["index"]), shape, details["dtype"], float(scale), int(zero_point))

    def dequantise(self, integers: Array) -> NDArray[np.float32]:
        """Return the real values of quantised integers. A tensor without quantisation is only converted to float32."""
        if not self.scale:
            return integers.astype(np.float32)
        widened = integers.astype(np.int32) - self.zero_point
        return (widened * self.scale).astype(np.float32)

    def dequantised_mean(self, integers: Array, axis: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the real mean over `axis`. The integers are averaged before the conversion, so the mean is exact."""
        if not self.scale:
            return np.asarray(integers.mean(axis=axis, dtype=np.float64))
        mean = integers.sum(axis=axis, dtype=np.int64) / np.prod([integers.shape[side] for side in axis])
        return np.asarray(self.scale * (mean - self.zero_point), np.float64)


class Network:
    """A network file, loaded into an interpreter with a fixed number of threads. Not thread-safe.

    The constructor raises BackendProblem("bad_model") if the file cannot run or does not match `spec`.
    """

    def __init__(
        self,
        file: bytes,
        spec: NetworkSpec,
        *,
        runtime: Runtime,
        threads: int,
        delegate: object | None = None,
        failure: str = "inference",
    ) -> None:
        self._interpreter = _interpreter(file, runtime, threads, delegate, wanted=spec.input)
        self._failure = failure
        self._spec = spec
        (self._input,) = _inputs(self._interpreter)
        self._outputs = [_TensorInfo.of(details) for details in self._interpreter.get_output_details()]
        _check_outputs(self._outputs, spec)
        self._table = _input_table(self._input, is_bare=spec.is_bare)

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        """Run the network on one image (height, width, channels) uint8. Raises BackendProblem."""
        self._interpreter.set_tensor(self._input.index, _held(image, self._table)[None])
        began = time.perf_counter()
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            detail = str(error).split("Node number")[0]  # the rest names operators
            raise _problem(detail, self._failure) from error
        latency_ms = (time.perf_counter() - began) * 1000
        scores, maps, roles = self._scores(), None, self._spec.outputs
        if roles.class_maps is not None:
            info, values = self._output(roles.class_maps)
            maps = np.ascontiguousarray(info.dequantise(values[0]).transpose(2, 0, 1))
            scores = _activate(info.dequantised_mean(values[0], axis=(0, 1)), roles.activation).astype(np.float32)
        features, masks = self._real(roles.features), self._real(roles.mask)
        shares = list[Array]() if masks is None else [*np.ascontiguousarray(np.clip(masks, 0, 1).transpose(2, 0, 1))]
        return NetworkOutput(
            scores=scores,
            class_maps=maps,
            features=None if features is None else features.reshape(-1),
            mask=shares[0] if shares else None,
            region_shares=shares[1] if len(shares) > 1 else None,
            latency_ms=latency_ms,
        )

    def _scores(self) -> NDArray[np.float32]:
        position = self._spec.outputs.scores
        if position is None:
            return np.zeros(0, np.float32)
        info, values = self._output(position)
        is_byte = self._spec.is_bare and info.dtype is np.uint8
        real = values.astype(np.float32) / np.float32(255) if is_byte else info.dequantise(values)
        scores = real.reshape(-1).clip(0, 1)
        return np.append(1 - scores, scores) if len(scores) < self._spec.label_count else scores

    def _real(self, position: int | None) -> NDArray[np.float32] | None:
        """Return the real values of an output; None if the pack has no output with this role."""
        if position is None:
            return None
        info, values = self._output(position)
        return info.dequantise(values[0])

    def _output(self, position: int) -> tuple[_TensorInfo, Array]:
        info = self._outputs[position]
        return info, self._interpreter.get_tensor(info.index)  # a copy, never a view


def _interpreter(file: bytes, runtime: Runtime, threads: int, delegate: object | None, *, wanted: InputSpec) -> Any:
    """Make an interpreter.

    Memory is allocated only if the file's input is the `wanted` input, because a file may claim 30,000 pixels a side.
    """
    try:
        interpreter = runtime.interpreter(model_content=file, num_threads=threads)
        _check_input(_inputs(interpreter), wanted)
        require_stateless_network(interpreter)
        if delegate:  # a delegate replaces operators of the file, so the check comes before
            interpreter = runtime.interpreter(
                model_content=file, num_threads=threads, experimental_delegates=[delegate]
            )
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        unknown = _UNKNOWN_OPERATOR.search(str(error))
        detail = f"it is made for another device (the operator {unknown[1]} is not known)" if unknown else str(error)
        raise _problem(detail, "bad_model") from error
    return interpreter


def _inputs(interpreter: Any) -> list[_TensorInfo]:
    return [_TensorInfo.of(details) for details in interpreter.get_input_details()]


def _problem(detail: str, code: str) -> BackendProblem:
    """Return the exception for an error message of the runtime.

    If memory runs out, the message is empty or comes only from XNNPACK. The exception then names the memory limit.
    """
    if (not detail or detail.startswith(_NO_XNNPACK)) and (problem := memory_problem()):
        return problem
    return BackendProblem(reason(code, detail=detail))


def memory_problem() -> BackendProblem | None:
    """Return the exception for a model that exceeds this process's memory limit; None without a limit."""
    limit_mb = memory_limit_mb()
    return BackendProblem(reason("model_memory", limit_mb=limit_mb)) if limit_mb else None


def _check_input(inputs: list[_TensorInfo], wanted: InputSpec) -> None:
    shape = (1, wanted.height, wanted.width, wanted.channels)
    if [info.shape for info in inputs] != [shape]:
        _bad(f"its input is {[info.shape for info in inputs]}, the pack says {shape}")
    if inputs[0].dtype not in _TYPES:
        _bad(f"its input is {inputs[0].dtype.__name__}")


def _check_outputs(outputs: list[_TensorInfo], spec: NetworkSpec) -> None:
    roles, labels = spec.outputs, spec.label_count
    positions = {
        "scores": roles.scores,
        "class maps": roles.class_maps,
        "features": roles.features,
        "mask": roles.mask,
    }
    for role, position in positions.items():
        if position is None:
            continue
        if not 0 <= position < len(outputs):
            _bad(f"it has no output {position} for {role}")
        info = outputs[position]
        size = int(np.prod(info.shape))
        is_right = {
            "scores": size == labels or (size == 1 and labels == 2),
            "class maps": len(info.shape) == 4 and info.shape[3] == labels,
            "features": size == info.shape[-1],
            "mask": len(info.shape) == 4 and info.shape[3] in (1, 2),
        }[role]
        if size > _MAX_VALUES:
            _bad(f"its output for {role} has {size} values, at most {_MAX_VALUES} are taken")
        if info.dtype not in _TYPES or info.shape[:1] != (1,) or not is_right:
            _bad(f"its output for {role} is {info.dtype.__name__} {info.shape}, the pack has {labels} labels")


def _bad(detail: str) -> None:
    raise BackendProblem(reason("bad_model", detail=detail))


def _input_table(info: _TensorInfo, *, is_bare: bool) -> Array:
    """Return the table (256,) of the input tensor's values: one entry for each value 0..255 of an image."""
    values = np.arange(256)
    real = values if is_bare else values / 255
    held: Array
    if info.dtype is np.float32:
        held = real
    elif info.scale and not (is_bare and info.dtype is np.uint8):
        limits = np.iinfo(info.dtype)
        held = np.clip(np.round(real / info.scale) + info.zero_point, limits.min, limits.max)
    else:  # integers without quantisation, or a file of the dissertation for bytes: the values stay unscaled
        held = values if info.dtype is np.uint8 else values - 128
    return np.asarray(held, info.dtype)


def _held(image: NDArray[np.uint8], table: Array) -> Array:
    """Replace each value of the image by its entry in `table`.

    For table entries of one byte, Python's `bytes.translate` is used.
    """
    if table.itemsize > 1:
        return table.take(image)
    return np.frombuffer(image.tobytes().translate(table.tobytes()), table.dtype).reshape(image.shape)


def _activate(logits: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    if activation == "softmax":
        shifted = np.exp(logits - logits.max())
        return np.asarray(shifted / shifted.sum())
    return sigmoid(logits)
