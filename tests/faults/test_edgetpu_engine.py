"""An engine with the fake Edge TPU: it switches between Edge TPU and CPU, and no image is lost, doubled or mixed up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_fakes import grey, grey_score
from numpy.typing import NDArray

from fake_compilers import edgetpu_model, fake_compile, fake_compiler
from faults.double import DoubleEdgeTpu
from fieldray.bench.benchmark_case import BenchmarkCase, LoadedImage
from fieldray.bench.device import NETWORK_ONLY_SCOPE, time_case
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model, Prediction
from fieldray.errors import BackendProblem
from fieldray.inference.backend import prediction_of
from fieldray.inference.coral import edgetpu_kind
from fieldray.inference.engine import Engine
from fieldray.packs.naming import LEGACY_CPU_FILE_NAME, LEGACY_EDGETPU_FILE_NAME
from fieldray.packs.verified import load_legacy
from fieldray.workers.pool import WorkerPool
from fieldray.workers.readiness import ModelReadiness
from fieldray_adapt.recipe_actions import compile_pack
from tiny_models import (
    LEGACY_SIDE,
    TinyType,
    legacy_model_bytes,
    legacy_scores,
    tiny_inputs,
    tiny_model,
    tiny_model_bytes,
)
from tiny_packs import write_tiny_pack
from waiting import WAIT_S, Events

Ask = Callable[[Iterable[NDArray[np.uint8]]], "list[Future[Prediction]]"]


@contextmanager
def opened(
    edgetpu: DoubleEdgeTpu, model: Model | None = None, *, serves: str = "", **options: Any
) -> Iterator[tuple[Engine, Events, Ask]]:
    """Open an engine with a model, and wait until it is ready. Yields it, its events, and a function to run inputs."""
    said, model = Events(), model or edgetpu_model()
    kinds = [edgetpu.kind(said, run_timeout_s=1.0, start_timeout_s=5.0)]
    with (
        WorkerPool(1, timeout_s=20, memory_limit_mb=1024) as workers,
        Engine(said, cpu=partial(ModelReadiness, workers), kinds=kinds, **options) as engine,
        ThreadPoolExecutor(4) as threads,
    ):
        engine.open(model)
        if serves:
            said.serves(serves)

        def run(values: NDArray[np.uint8]) -> Prediction:
            """Run an input as for a worker: by a device, else in this process."""
            if found := engine.run(values, model=model):
                return found
            answer = workers.run(values[0], model=model, is_cancelled=lambda: False)
            return prediction_of(answer, model, backend="cpu", image_number_on_backend=1)

        yield engine, said, lambda inputs: [threads.submit(run, values) for values in inputs]


def answers(ask: Ask, count: int) -> list[Prediction]:
    return [future.result(WAIT_S) for future in ask(map(grey, range(count)))]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_the_edgetpu_gives_the_scores_of_the_cpu(edgetpu: DoubleEdgeTpu, dtype: TinyType) -> None:
    with opened(edgetpu, edgetpu_model(dtype), serves="cpu") as (_, said, ask):
        on_cpu = answers(ask, 40)
        edgetpu.plug()
        ready = said.serves("edgetpu")
        on_edgetpu = answers(ask, 40)
    assert {prediction.backend for prediction in on_cpu} == {"cpu"}
    assert {prediction.backend for prediction in on_edgetpu} == {"edgetpu"}
    assert "Edge TPU runtime 14" in ready.detail
    for first, second in zip(on_cpu, on_edgetpu, strict=True):
        assert abs(first.scores["opacity"] - second.scores["opacity"]) <= 1 / 255
        assert first.class_maps is not None and second.class_maps is not None
        assert (first.class_maps == second.class_maps).all()


def test_the_dissertations_two_files_agree_within_quantisation(edgetpu: DoubleEdgeTpu, tmp_path: Path) -> None:
    (tmp_path / LEGACY_CPU_FILE_NAME).write_bytes(legacy_model_bytes("float32"))
    (tmp_path / LEGACY_EDGETPU_FILE_NAME).write_bytes(fake_compile(legacy_model_bytes("uint8")))
    model = load_legacy(tmp_path)
    levels = [np.full((1, LEGACY_SIDE, LEGACY_SIDE, 1), level, np.uint8) for level in range(0, 256, 15)]

    def scores(ask: Ask, backend: str) -> list[dict[str, float]]:
        found = [future.result(WAIT_S) for future in ask(levels)]
        assert {prediction.backend for prediction in found} == {backend}
        return [dict(prediction.scores) for prediction in found]

    with opened(edgetpu, model, serves="cpu") as (_, said, ask):
        on_cpu = scores(ask, "cpu")
        edgetpu.plug()
        said.serves("edgetpu")
        on_edgetpu = scores(ask, "edgetpu")
    for values, first, second in zip(levels, on_cpu, on_edgetpu, strict=True):
        assert list(first.values()) == pytest.approx(legacy_scores(values), abs=1e-4)
        assert second == pytest.approx(first, abs=0.03)
        assert (first["abnormal"] > first["normal"]) == (second["abnormal"] > second["normal"]) == (values.max() > 127)


@pytest.mark.parametrize(
    ("orders", "codes"),
    [
        ({"pull": "abort"}, {"coral_unplugged"}),
        ({"pull": "fail"}, {"coral_run_failed", "coral_unplugged"}),
        ({"pull": "hang"}, {"coral_unplugged"}),
    ],
)
def test_unplugging_in_the_middle_of_a_batch_moves_its_images_to_the_cpu(
    edgetpu: DoubleEdgeTpu, orders: dict[str, str], codes: set[str]
) -> None:
    edgetpu.plug()
    edgetpu.order(invoke_ms=5, **orders)
    with opened(edgetpu, serves="edgetpu") as (_, said, ask):
        futures = ask(map(grey, range(200)))
        futures[30].result(WAIT_S)
        heard = len(said.heard)
        edgetpu.unplug()
        done = [future.result(WAIT_S) for future in futures]
        assert said.wait_for("edgetpu", "unavailable", after=heard).reason.code in codes  # either is right
    expected = [grey_score(number) for number in range(200)]
    assert [prediction.scores["opacity"] for prediction in done] == pytest.approx(expected, abs=0.008)
    assert {prediction.backend for prediction in done[:30]} == {"edgetpu"}
    assert done[-1].backend == "cpu"


@pytest.mark.parametrize(
    ("orders", "code"),
    [
        ({"open": "fail"}, "coral_open_failed"),
        ({"open": "abort"}, "coral_stopped"),
        ({"abi": "stale"}, "coral_wrong_abi"),
        ({"runtime": 12}, "coral_runtime_old"),
        ({"edgetpu": "held"}, "coral_open_failed"),
        ({"edgetpu": "absent"}, "coral_not_listed"),
        ({"invoke": "fail"}, "coral_run_failed"),
        ({"invoke": "hang"}, "coral_no_answer"),
    ],
)
def test_an_edgetpu_that_cannot_be_used_has_a_reason_and_the_cpu_goes_on(
    edgetpu: DoubleEdgeTpu, orders: dict[str, Any], code: str
) -> None:
    edgetpu.plug()
    edgetpu.order(**orders)
    with opened(edgetpu) as (_, said, ask):
        assert said.wait_for("edgetpu", "unavailable").reason.code == code
        assert {prediction.backend for prediction in answers(ask, 20)} == {"cpu"}


def test_a_pack_compiled_where_an_edgetpu_is_connected_is_tried_on_it(edgetpu: DoubleEdgeTpu, tmp_path: Path) -> None:
    edgetpu.plug()
    pack, mine, said = write_tiny_pack(tmp_path / "shipped"), tmp_path / "mine", list[str]()

    def compile_to(made: bytes) -> Path:
        kinds = (edgetpu_kind(libraries=(str(edgetpu.library),), find_devices=edgetpu.find),)
        compiler, key = fake_compiler(tmp_path, fake_compile(made)), tmp_path / "signing.pem"
        return compile_pack(pack, signing_key=key, output_folder=mine, say=said.append, compiler=compiler, kinds=kinds)

    with pytest.raises(BackendProblem, match="cannot be run on this computer"):
        compile_to(tiny_model_bytes(labels=2))
    edgetpu.order(invoke="fail")
    with pytest.raises(BackendProblem, match="reported an error"):
        compile_to(tiny_model_bytes())
    assert not mine.exists()
    edgetpu.heal()
    assert compile_to(tiny_model_bytes()) == mine / "tiny-1.0.0"
    assert said[-1] == "Edge TPU: gives the scores of the 5 golden vectors."


def test_a_compiled_file_in_the_cpu_role_is_refused_in_plain_words(edgetpu: DoubleEdgeTpu) -> None:
    compiled = replace(tiny_model(), files={"litert": edgetpu_model().files["edgetpu"]})
    refused = pytest.raises(BackendProblem, match="made for another device")
    with opened(edgetpu, compiled, device="cpu") as (engine, _, _), refused:
        engine.next_device(compiled)


def test_the_benchmark_times_the_edgetpu_from_its_first_image(edgetpu: DoubleEdgeTpu) -> None:
    edgetpu.plug()
    # the double fails at its fourth call: three images succeed only if there was no call before them
    edgetpu.order(invoke="fail", after=3)
    on_edgetpu = BenchmarkCase(name="edgetpu", model=edgetpu_model(), kind=edgetpu.kind())
    images = [LoadedImage(ImageRef(path=Path("image.png")), image) for image in tiny_inputs()]
    assert len(time_case(on_edgetpu, images, NETWORK_ONLY_SCOPE, image_count=3)) == 3
    assert any("Edge TPU runtime" in detail for detail in on_edgetpu.backend_descriptions)
