"""One network file, run in the LiteRT interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from fieldray.domain.model import OutputRoles
from fieldray.errors import BackendProblem
from fieldray.inference.litert import RUNTIME_PACKAGE, Network, NetworkSpec, Runtime, load_runtime
from fieldray.packs.verified import LEGACY_MANIFEST as LEGACY
from raised import raises
from tiny_models import (
    BLOCK,
    LEGACY_SIDE,
    SIDE,
    changed_model,
    legacy_model_bytes,
    legacy_scores,
    tiny_gains,
    tiny_inputs,
    tiny_manifest,
    tiny_model_bytes,
    tiny_scores,
    with_custom_operator,
)

ROLES = OutputRoles(scores=0, class_maps=1, features=2)
LSB = {"uint8": 1 / 255, "int8": 1 / 255, "float32": 1e-5}  # of the features
# A map's step is at most 8/255 logits: its rounding moves a mean by at most 4/127/2 + 4 * LSB logits,
# and a score by a quarter of that
SCORE_TOLERANCE = {"uint8": 0.008, "int8": 0.008, "float32": 1e-5}


@pytest.fixture
def runtime() -> Runtime:
    return load_runtime()


def spec(*, labels: int = 1, roles: OutputRoles = ROLES, **input_changes: Any) -> NetworkSpec:
    return NetworkSpec(input=replace(tiny_manifest().input, **input_changes), outputs=roles, label_count=labels)


def network(runtime: Runtime, file: bytes, wanted: NetworkSpec | None = None) -> Network:
    return Network(file, wanted or spec(), runtime=runtime, threads=1)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
@pytest.mark.parametrize("labels", [1, 3])
def test_scores_maps_and_features_are_those_of_the_formula(runtime: Runtime, dtype: Any, labels: int) -> None:
    loaded = network(runtime, tiny_model_bytes(dtype, labels=labels), spec(labels=labels))
    cells = SIDE // BLOCK
    for image, expected in zip(tiny_inputs(), tiny_scores(tiny_inputs(), labels=labels), strict=True):
        answer = loaded.run(image)
        blocks = image.reshape(cells, BLOCK, cells, BLOCK).mean(axis=(1, 3)) / 255
        maps = tiny_gains(labels)[:, None, None] * (2 * blocks - 1)
        pooled = [np.maximum(values, 0).mean() for values in (blocks, 1 - blocks, 2 * blocks - 1, 1 - 2 * blocks)]
        assert answer.scores.dtype == np.float32
        assert answer.scores == pytest.approx(expected, abs=SCORE_TOLERANCE[dtype])
        assert answer.class_maps is not None and answer.class_maps.dtype == np.float32
        assert answer.class_maps == pytest.approx(maps, abs=8 * LSB[dtype] + 4 / 127 * (dtype != "float32"))
        assert answer.features is not None and answer.features.dtype == np.float32
        assert answer.features == pytest.approx(np.array(pooled), abs=1.5 * LSB[dtype])
        assert answer.latency_ms > 0


def test_a_score_from_the_map_is_finer_than_the_scores_output(runtime: Runtime) -> None:
    file = tiny_model_bytes("uint8")
    ramp = tiny_inputs()[3]
    from_map = network(runtime, file).run(ramp).scores[0]
    from_output = network(runtime, file, spec(roles=OutputRoles(scores=0))).run(ramp).scores[0]
    assert from_output * 256 == round(from_output * 256)
    assert from_map * 256 != pytest.approx(round(from_map * 256), abs=1e-3)
    answer = network(runtime, file).run(tiny_inputs()[4])
    assert answer.class_maps is not None  # its mean is the logit
    assert 1 / (1 + np.exp(-answer.class_maps.mean())) == pytest.approx(answer.scores[0], abs=1e-5)


def test_softmax_is_over_the_labels(runtime: Runtime) -> None:
    roles = replace(ROLES, activation="softmax")
    answer = network(runtime, tiny_model_bytes("float32", labels=2), spec(labels=2, roles=roles)).run(tiny_inputs()[0])
    # brightness 20/255: logits +-4 * (2 * 20/255 - 1) = -3.3725 and 3.3725; e^-3.3725 / (e^-3.3725 + e^3.3725)
    assert answer.scores == pytest.approx([0.0011757, 0.9988243], abs=1e-5)


def test_a_single_output_for_two_labels_is_the_score_of_the_second(runtime: Runtime) -> None:
    wanted = spec(labels=2, roles=OutputRoles(scores=0))
    answer = network(runtime, tiny_model_bytes("float32"), wanted).run(tiny_inputs()[0])
    score = tiny_scores(tiny_inputs()[:1])[0, 0]
    assert answer.scores == pytest.approx([1 - score, score], abs=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("level", [0, 90, 120, 135, 170, 255])
def test_the_dissertations_files_get_grey_levels_and_give_abnormal_first(
    runtime: Runtime, dtype: Any, level: int
) -> None:
    file, image = legacy_model_bytes(dtype), np.full((LEGACY_SIDE, LEGACY_SIDE, 1), level, np.uint8)
    manifest = LEGACY
    wanted = NetworkSpec(input=manifest.input, outputs=manifest.outputs, label_count=2, is_bare=manifest.is_bare)
    scores = network(runtime, file, wanted).run(image).scores
    assert [label.code for label in manifest.labels] == ["abnormal", "normal"]
    assert scores == pytest.approx(legacy_scores(image), abs=0.03 if dtype == "uint8" else 1e-5)
    if dtype == "uint8":  # a byte is a fraction of 255, as in the demonstration, whatever the file's own scale
        assert scores * 255 == pytest.approx(np.round(scores * 255), abs=1e-4)


def test_bytes_are_passed_unchanged_whatever_the_files_scale(runtime: Runtime) -> None:
    def scaled(model: Any) -> None:
        graph = model.subgraphs[0]
        graph.tensors[graph.inputs[0]].quantization.scale = [0.9]  # as of a representative set that ends at 230

    wanted = NetworkSpec(input=LEGACY.input, outputs=LEGACY.outputs, label_count=2, is_bare=True)
    seen: list[int] = []

    class Watched:
        """An interpreter that records its inputs."""

        def __init__(self, **options: Any) -> None:
            self._inside = runtime.interpreter(**options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inside, name)

        def set_tensor(self, index: int, values: Any) -> None:
            seen.extend(np.unique(values).tolist())
            self._inside.set_tensor(index, values)

    watched = replace(runtime, interpreter=Watched)
    file = changed_model(scaled, legacy_model_bytes("uint8"))
    network(watched, file, wanted).run(np.full((LEGACY_SIDE, LEGACY_SIDE, 1), 200, np.uint8))
    assert seen == [200]


def test_an_answer_is_not_changed_by_the_next_image(runtime: Runtime) -> None:
    loaded = network(runtime, tiny_model_bytes("float32"))
    first = loaded.run(tiny_inputs()[0])
    before = first.class_maps.copy(), first.features.copy()
    loaded.run(tiny_inputs()[2])
    assert (first.class_maps == before[0]).all() and (first.features == before[1]).all()


@pytest.mark.parametrize(
    ("file", "wanted", "says"),
    [
        (tiny_model_bytes, spec(height=128), "its input is"),
        (tiny_model_bytes, spec(labels=2), "class maps"),
        (tiny_model_bytes, spec(labels=3, roles=OutputRoles(scores=0)), "scores"),
        (tiny_model_bytes, spec(roles=OutputRoles(scores=0, features=7)), "no output 7"),
        (tiny_model_bytes, spec(roles=OutputRoles(class_maps=0)), "class maps"),
        (tiny_model_bytes, spec(roles=OutputRoles(scores=0, features=1)), "features"),
        # before memory is allocated: 900 MB for the image, as much for the image as int8, and more
        (partial(tiny_model_bytes, side=30_000), spec(), "its input is [(1, 30000, 30000, 1)]"),
        # each image would transfer gigabytes: 17 maps of 512 x 512 cells are just above the limit of 2**22
        (
            partial(tiny_model_bytes, side=2048, labels=17),
            spec(height=2048, width=2048, labels=17),
            "its output for class maps has",
        ),
        *((partial(with_custom_operator, name), spec(), "") for name in (b"Exec", b"FlexMatMul", b"Exec; rm")),
        (partial(with_custom_operator, b"edgetpu-custom-op"), spec(), "made for another device"),
    ],
)
def test_a_file_that_contradicts_its_manifest_is_refused(
    runtime: Runtime, file: Callable[[], bytes], wanted: NetworkSpec, says: str
) -> None:
    with raises(BackendProblem, "bad_model", says=says):
        network(runtime, file(), wanted)


def test_a_runtime_states_its_name_and_version(runtime: Runtime) -> None:
    assert runtime.name == RUNTIME_PACKAGE
    assert runtime.version[0].isdigit()


def test_a_missing_runtime_has_a_reason() -> None:
    with raises(BackendProblem, "no_runtime"):
        load_runtime("antigravity_runtime")
