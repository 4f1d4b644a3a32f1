"""Forecast which operators of a network run on the Edge TPU, and compile networks with `edgetpu_compiler`.

The compiler exists for x86-64 Linux only. A pack without a compiled file works on the CPU.

For an int8 file, the placement is a forecast by documented rules (coral.ai, "TensorFlow models on the Edge TPU",
supported operations). The compiler makes one subgraph for the Edge TPU. All operators after this subgraph run on the
CPU. Memory on the chip is forecast from the size of the weights. Time is forecast by a formula that was fitted to
Coral's published models. For a compiled file, the memory is exact and read from the file.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ai_edge_litert import schema_py_generated as schema

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.inference.coral import EDGETPU_OPERATOR_NAME, parse_edgetpu_options
from fieldray.reasons import reason
from fieldray_adapt.files import write_atomically
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.steps import read_converted_file

MIB: Final = 2**20
_BUDGET_BYTES: Final = int(6.5 * MIB)
"""Bytes of the chip's 8 MiB that are available for weights: the lower end of the observed 6.5 to 6.9 MiB."""
_OVERHEAD: Final = 1.17
"""Size of compiled weights divided by the size of raw weights: the upper end of the observed 1.04 to 1.17."""

_MAPPED: Final = (
    "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D EXPAND_DIMS FULLY_CONNECTED L2_NORMALIZATION LOGISTIC "
    "UNIDIRECTIONAL_SEQUENCE_LSTM MAXIMUM MAX_POOL_2D MEAN MINIMUM MUL PACK PAD PRELU QUANTIZE REDUCE_MAX REDUCE_MIN "
    "RELU RELU6 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR RSQRT SLICE SOFTMAX SPACE_TO_DEPTH SPLIT "
    "SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TRANSPOSE TRANSPOSE_CONV"
)
_MAPPED_NAMES: Final = frozenset(_MAPPED.split())
_NO_FUSED_ACTIVATION: Final = frozenset({"AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION"})
_LARGEST_SOFTMAX: Final = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator of a network file.

    `cpu_reason` is the reason, in words, why the operator runs on the CPU; "" if the operator runs on the Edge TPU.
    """

    name: str
    cpu_reason: str = ""
    multiply_adds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The division of a network file's operators between the Edge TPU and the CPU.

    Attributes
    ----------
    compiled
        Whether the values were read from a compiled file. False for a forecast.
    subgraphs
        Number of subgraphs on the Edge TPU; 0 or 1 in a forecast.
    weight_bytes
        Size of the weights and biases of the operators on the Edge TPU; 0 for a compiled file.
    cached_bytes, streamed_bytes
        Size of the weights kept on the chip, and size of the weights sent over USB for every image.
    estimate_ms
        Estimated milliseconds per image on USB 3; None without operators on the Edge TPU, and for a compiled file.
    min_runtime
        Lowest version of the Edge TPU runtime that can run the compiled file; None for a forecast.
    """

    compiled: bool
    operators: tuple[Operator, ...]
    subgraphs: int
    weight_bytes: int
    cached_bytes: int
    streamed_bytes: int
    estimate_ms: float | None
    min_runtime: int | None = None

    @property
    def edgetpu_operator_count(self) -> int:
        """Number of operators on the Edge TPU. In a compiled file, each subgraph counts as one operator."""
        return sum(not row.cpu_reason for row in self.operators)

    @property
    def cpu_operator_counts(self) -> Mapping[str, int]:
        """Number of operators on the CPU, by name and reason in the form "NAME: reason"."""
        return Counter(f"{row.name}: {row.cpu_reason}" for row in self.operators if row.cpu_reason)


def estimate_inference_ms(*, streamed_bytes: int, multiply_adds: int) -> float:
    """Return the estimated milliseconds per image on an Edge TPU at USB 3.

    The formula is 2.17 + 2.26 per streamed MiB + 0.77 per billion multiply-adds. For 9 of 11 models that Coral has
    published, the formula is right within 9 %. For DenseNet and Inception-ResNet, the error is much larger.
    """
    return 2.17 + 2.26 * streamed_bytes / MIB + 0.77 * multiply_adds / 1e9


def read_placement(data: bytes) -> Placement:
    """Return which operators of a TensorFlow Lite file run on the Edge TPU.

    The placement is exact for a compiled file, and a forecast for other files. Raises UsageProblem (not_a_tflite) for
    bytes that are no TensorFlow Lite file.
    """
    try:
        if data[4:8] != b"TFL3":
            raise ValueError("no TFL3 mark")
        model = schema.ModelT.InitFromPackedBuf(data, 0)
        file = _File(model)
        return file.compiled() if any(map(file.is_custom, file.graph.operators)) else file.forecast()
    except (ValueError, TypeError, IndexError, AttributeError, KeyError, OverflowError) as problem:
        raise UsageProblem(reason("not_a_tflite", detail=problem)) from problem
    except Exception as problem:  # flatbuffers and struct raise their own kinds on damaged bytes
        raise UsageProblem(reason("not_a_tflite", detail=type(problem).__name__)) from problem


class _File:
    """The first graph of a TensorFlow Lite file, which is read with the file schema of LiteRT."""

    def __init__(self, model: Any) -> None:
        self._model, self.graph = model, model.subgraphs[0]
        self._names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
        self._types = {value: name for name, value in vars(schema.TensorType).items() if isinstance(value, int)}

    def forecast(self) -> Placement:
        """Return a forecast of the placement, by the rules of the compiler.

        Data cannot return from the CPU to the Edge TPU. So an operator runs on the Edge TPU if the rules allow the
        operator, and if no input was computed on the CPU from results of the Edge TPU.
        """
        operators: list[Operator] = []
        origin: dict[int, str] = {}
        weights: dict[int, int] = {}
        for row in self.graph.operators:
            sources = {origin[index] for index in row.inputs if index in origin}
            why = self._cpu_reason(row)
            if not why and "after" in sources:
                why = "comes after an operator that stays on the CPU"
            here = "tpu" if not why else "after" if sources & {"tpu", "after"} else "before"
            origin.update(dict.fromkeys((int(index) for index in row.outputs), here))
            if not why:
                weights.update(self._constants(row))
            operators.append(
                Operator(name=self._name(row), cpu_reason=why, multiply_adds=0 if why else self._multiply_adds(row))
            )
        return _forecast(tuple(operators), weight_bytes=sum(weights.values()))

    def compiled(self) -> Placement:
        """Return the exact placement of a compiled file, from the operators that the compiler made."""
        packages = [
            parse_edgetpu_options(bytes(row.customOptions)) for row in self.graph.operators if self.is_custom(row)
        ]
        operators = (
            Operator(name=self._name(row), cpu_reason="" if self.is_custom(row) else "left on the CPU by the compiler")
            for row in self.graph.operators
        )
        return Placement(
            compiled=True,
            operators=tuple(operators),
            subgraphs=len(packages),
            weight_bytes=0,
            cached_bytes=sum(cached for _, cached, _ in packages),
            streamed_bytes=sum(streamed for *_, streamed in packages),
            estimate_ms=None,
            min_runtime=max(oldest for oldest, *_ in packages),
        )

    def is_custom(self, row: Any) -> bool:
        """Return whether an operator was made by edgetpu_compiler."""
        return bool(self._model.operatorCodes[row.opcodeIndex].customCode == EDGETPU_OPERATOR_NAME)

    def _name(self, row: Any) -> str:
        code = self._model.operatorCodes[row.opcodeIndex]
        name = self._names.get(max(code.builtinCode, code.deprecatedBuiltinCode), "UNKNOWN")
        return bytes(code.customCode or b"CUSTOM").decode(errors="replace") if name == "CUSTOM" else name

    def _cpu_reason(self, row: Any) -> str:
        name = self._name(row)
        if name not in _MAPPED_NAMES:
            return "not an operator of the Edge TPU"
        tensors = [self.graph.tensors[index] for index in (*row.inputs, *row.outputs) if index >= 0]
        reasons = (self._unavailable_reason(tensor) for tensor in tensors if not self._data(tensor))
        return next(filter(None, reasons), "") or _limit(name, row, _shape(tensors[0]))

    def _unavailable_reason(self, tensor: Any) -> str:
        kind, shape = self._types.get(tensor.type, "unknown"), _shape(tensor)
        if kind not in ("INT8", "UINT8"):
            return f"works on {kind.lower()} values, not on 8-bit ones"
        if tensor.shapeSignature is not None and any(int(side) < 0 for side in tensor.shapeSignature):
            return "its size is not fixed"
        return "has more than three dimensions above 1" if any(side > 1 for side in shape[:-3]) else ""

    def _data(self, tensor: Any) -> int:
        data = self._model.buffers[tensor.buffer].data
        return 0 if data is None else len(data)

    def _constants(self, row: Any) -> dict[int, int]:
        """Return the sizes in bytes of an operator's constants, by the index of the buffer that has the constant."""
        tensors = [self.graph.tensors[index] for index in row.inputs if index >= 0]
        return {int(tensor.buffer): self._data(tensor) for tensor in tensors if self._data(tensor)}

    def _multiply_adds(self, row: Any) -> int:
        name = self._name(row)
        if name not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"):
            return 0
        weights, out = _shape(self.graph.tensors[row.inputs[1]]), _shape(self.graph.tensors[row.outputs[0]])
        if name == "FULLY_CONNECTED":
            return math.prod(weights)
        per_position = weights[1] * weights[2] * (1 if name == "DEPTHWISE_CONV_2D" else weights[3])
        return math.prod(out[1:]) * per_position


def _limit(name: str, row: Any, shape: list[int]) -> str:
    """Return the rule, in words, that keeps an operator with the name `name` off the Edge TPU; "" if no rule does.

    `row` is the operator, `shape` the shape of the operator's first input.
    """
    options, sides = row.builtinOptions, [side for side in shape if side > 1]
    limits: dict[str, tuple[bool, str]] = {
        "CONCATENATION": (len(row.inputs) != 2, "joins more than two inputs"),
        "MEAN": (bool(shape) and shape[-1] % 4 > 0, "averages channels whose number is not a multiple of 4"),
        "SOFTMAX": (
            len(sides) > 1 or max(sides, default=1) > _LARGEST_SOFTMAX,
            "softmax over more than one dimension, or too large",
        ),
    }
    if name in _NO_FUSED_ACTIVATION and getattr(options, "fusedActivationFunction", False):
        return "has an activation fused into it"
    if name.endswith("CONV_2D") and options.dilationWFactor != options.dilationHFactor:
        return "its dilation differs in x and y"
    is_broken, why = limits.get(name, (False, ""))
    return why if is_broken else ""


def _forecast(operators: tuple[Operator, ...], *, weight_bytes: int) -> Placement:
    on_chip = round(weight_bytes * _OVERHEAD)
    cached, work = min(on_chip, _BUDGET_BYTES), sum(row.multiply_adds for row in operators)
    is_mapped = any(not row.cpu_reason for row in operators)
    return Placement(
        compiled=False,
        operators=operators,
        subgraphs=int(is_mapped),
        weight_bytes=weight_bytes,
        cached_bytes=cached,
        streamed_bytes=on_chip - cached,
        estimate_ms=estimate_inference_ms(streamed_bytes=on_chip - cached, multiply_adds=work) if is_mapped else None,
    )


def _shape(tensor: Any) -> list[int]:
    return [] if tensor.shape is None else [int(side) for side in tensor.shape]


def describe_placement(placement: Placement) -> str:
    """Return a placement as lines of text for a person."""
    kind = "Compiled for the Edge TPU (exact)" if placement.compiled else "Forecast for the Edge TPU (not compiled)"
    lines = [
        f"{kind}: {placement.edgetpu_operator_count} of {len(placement.operators)} operators mapped, "
        f"{placement.subgraphs} subgraph(s)",
        f"Weights kept on the chip {placement.cached_bytes / MIB:.2f} MiB, "
        f"sent over USB for every image {placement.streamed_bytes / MIB:.2f} MiB",
    ]
    lines += [f"  on the CPU: {count} x {why}" for why, count in placement.cpu_operator_counts.items()]
    if placement.estimate_ms is not None:
        lines.append(f"About {placement.estimate_ms:.1f} ms per image on USB 3: an estimate, not measured")
    if placement.min_runtime is not None:
        lines.append(f"Needs the Edge TPU runtime version {placement.min_runtime} or later")
    return "\n".join(lines)


COMPILER_PROGRAM: Final = "edgetpu_compiler"
_MIN_RUNTIME: Final = 13
"""The version of the Edge TPU runtime for which files are compiled: the lowest version that clinics use."""
_TIMEOUT_S: Final = 600


def find_compiler() -> Path:
    """Return the path of the program edgetpu_compiler. Raises EnvironmentProblem (no_compiler) if not installed."""
    found = shutil.which(COMPILER_PROGRAM)
    if found is None:
        raise EnvironmentProblem(reason("no_compiler"))
    return Path(found)


def compile_for_edgetpu(data: bytes, *, compiler: Path) -> tuple[bytes, Placement]:
    """Compile the int8 file of a network for the Edge TPU. Returns the compiled file, and where its operators run.

    Raises EnvironmentProblem (no_compiler, compiler_failed). Raises UsageProblem (compiled_partly) if operators stay on
    the CPU or the file has several subgraphs, because the network would be slow.
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-") as folder:
        source = Path(folder) / "model.tflite"
        source.write_bytes(data)
        command = [str(compiler), "--min_runtime_version", str(_MIN_RUNTIME), "--show_operations"]
        text = _run([*command, "--out_dir", folder, str(source)])
        made = source.with_name("model_edgetpu.tflite")
        if not made.is_file():
            raise EnvironmentProblem(reason("compiler_failed", detail=_last_line(text)))
        compiled = made.read_bytes()
    found = read_placement(compiled)
    mapped, subgraphs = (found.edgetpu_operator_count, found.subgraphs) if found.compiled else (0, 0)
    if mapped < len(found.operators) or subgraphs != 1:
        raise UsageProblem(reason("compiled_partly", subgraphs=subgraphs, operators=len(found.operators) - mapped))
    return compiled, found


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError as problem:
        raise EnvironmentProblem(reason("no_compiler")) from problem
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EnvironmentProblem(reason("compiler_failed", detail=problem)) from problem
    if done.returncode:
        raise EnvironmentProblem(reason("compiler_failed", detail=_last_line(done.stderr or done.stdout)))
    return done.stdout + done.stderr


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def placement_step(run: Run) -> StepFacts:
    """Forecast which operators of the int8 file run on the Edge TPU. Writes placement.json and placement.txt."""
    placement = read_placement(read_converted_file(run, "int8").data)
    run.write_step_json(
        "placement", "placement.json", asdict(placement) | {"left_on_cpu": dict(placement.cpu_operator_counts)}
    )
    write_atomically(run.step_folder("placement") / "placement.txt", (describe_placement(placement) + "\n").encode())
    return {
        "operators": len(placement.operators),
        "mapped": placement.edgetpu_operator_count,
        "subgraphs": placement.subgraphs,
        "cached_mib": round(placement.cached_bytes / MIB, 2),
        "streamed_mib": round(placement.streamed_bytes / MIB, 2),
        "estimate_ms": None if placement.estimate_ms is None else round(placement.estimate_ms, 1),
    }


PLACEMENT_STEP: Final = Step(name="placement", perform=placement_step, recipe_keys=())
