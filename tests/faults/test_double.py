"""The test double itself: a runtime loads it, and it is right, and it is wrong in the ways it is told to be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, load_delegate

from faults.double import SOURCE, DoubleEdgeTpu
from faults.fake_compile import fake_compile
from fieldray.inference.coral.compiled import CompiledFile, read_compiled
from tiny_models import TinyType, tiny_inputs, tiny_model_bytes


def opened(file: bytes, edgetpu: DoubleEdgeTpu | None = None) -> Interpreter:
    delegates = [load_delegate(str(edgetpu.library), {"device": "usb"})] if edgetpu else None
    network = Interpreter(model_content=file, experimental_delegates=delegates, num_threads=1)
    network.allocate_tensors()
    return network


def outputs(network: Interpreter, image: np.ndarray) -> list[np.ndarray]:
    details = network.get_input_details()[0]
    shift = 128 if details["dtype"] is np.int8 else 0
    network.set_tensor(details["index"], (image[None].astype(np.int16) - shift).astype(details["dtype"]))
    network.invoke()
    return [network.get_tensor(output["index"]).astype(int) for output in network.get_output_details()]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_it_gives_the_same_outputs_as_the_cpu(edgetpu: DoubleEdgeTpu, dtype: TinyType) -> None:
    edgetpu.plug()
    file = tiny_model_bytes(dtype)
    on_cpu, on_edgetpu = opened(file), opened(fake_compile(file), edgetpu)
    for image in tiny_inputs():
        for expected, got in zip(outputs(on_cpu, image), outputs(on_edgetpu, image), strict=True):
            assert np.abs(expected - got).max() == 0


def test_it_can_be_opened_once_at_a_time(edgetpu: DoubleEdgeTpu) -> None:
    edgetpu.plug()
    delegate = load_delegate(str(edgetpu.library))
    with pytest.raises(ValueError, match="Failed to load delegate"):
        load_delegate(str(edgetpu.library))
    del delegate
    load_delegate(str(edgetpu.library))


def test_it_cannot_be_opened_when_it_is_absent_or_held(edgetpu: DoubleEdgeTpu) -> None:
    for state in ("absent", "held"):
        edgetpu.order(edgetpu=state)
        with pytest.raises(ValueError, match="Failed to load delegate"):
            load_delegate(str(edgetpu.library))


def test_an_invocation_fails_after_as_many_images_as_ordered(edgetpu: DoubleEdgeTpu) -> None:
    edgetpu.plug()
    edgetpu.order(invoke="fail", after=1)
    network = opened(fake_compile(tiny_model_bytes()), edgetpu)
    outputs(network, tiny_inputs()[0])
    with pytest.raises(RuntimeError, match="USB transfer error"):
        network.invoke()


def test_it_refuses_a_file_for_a_newer_runtime(edgetpu: DoubleEdgeTpu) -> None:
    edgetpu.plug()
    edgetpu.order(runtime=13)
    with pytest.raises(RuntimeError, match=r"requires runtime version \(14\)"):
        opened(fake_compile(tiny_model_bytes(), oldest_runtime=14), edgetpu)


def run_in_child(edgetpu: DoubleEdgeTpu, tmp_path: Path) -> int:
    """Exit code of a process that opens the Edge TPU and runs one image."""
    compiled = tmp_path / "compiled.tflite"
    compiled.write_bytes(fake_compile(tiny_model_bytes()))
    program = (
        "import sys; from ai_edge_litert.interpreter import Interpreter, load_delegate\n"
        "network = Interpreter(sys.argv[2], experimental_delegates=[load_delegate(sys.argv[1])])\n"
        "network.allocate_tensors(); network.invoke()"
    )
    command = [sys.executable, "-c", program, str(edgetpu.library), str(compiled)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.parametrize(
    ("orders", "signal"), [({"invoke": "abort"}, 6), ({"open": "abort"}, 6), ({"abi": "stale"}, 11)]
)
def test_it_ends_the_process_as_the_real_one_does(
    edgetpu: DoubleEdgeTpu, tmp_path: Path, orders: dict[str, str], signal: int
) -> None:
    edgetpu.plug()
    edgetpu.order(**orders)
    assert run_in_child(edgetpu, tmp_path) == -signal


def test_it_builds_for_windows(tmp_path: Path) -> None:
    cross_compiler = shutil.which("x86_64-w64-mingw32-gcc")
    if not cross_compiler:
        pytest.skip("no cross compiler for Windows here")
    made = tmp_path / "edgetpu.dll"
    command = [cross_compiler, "-std=c11", "-O1", "-Wall", "-shared", "-o", str(made), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    assert made.read_bytes()[:2] == b"MZ"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_compiled_file_says_what_it_is(dtype: TinyType) -> None:
    file = tiny_model_bytes(dtype)
    assert read_compiled(fake_compile(file, oldest_runtime=13)) == CompiledFile(1, 0, 13)
    plain = read_compiled(file)
    assert plain.on_edgetpu == 0
    assert plain.on_cpu > 4
    assert plain.oldest_runtime is None


@pytest.mark.parametrize("keep", [0, 3, 8, 40, 200, 1000])
def test_a_file_cut_short_is_said_to_be_damaged(keep: int) -> None:
    with pytest.raises(ValueError, match="TensorFlow Lite"):
        read_compiled(fake_compile(tiny_model_bytes())[:keep])


def test_a_float_file_cannot_be_compiled() -> None:
    with pytest.raises(ValueError, match="not 8-bit"):
        fake_compile(tiny_model_bytes("float32"))
