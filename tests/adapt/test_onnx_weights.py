"""Starting from an ONNX file: the network answers as the file does, whatever order its shortcuts are in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.keras_engine import build_network, set_weights
from fieldray_adapt.networks import onnx_weights, resnet50
from fieldray_adapt.recipe import NetworkChoice, Recipe, read_recipe
from fieldray_adapt.specification import Layer, Specification, initial_weights, weight_shapes
from fieldray_adapt.steps import specification_of, starting_weights

SCALE, OFFSETS = 255.0, (-104.0, -117.0, -123.0)
NETWORK = resnet50(height=32, width=32, labels=1, blocks=(1, 1, 1, 1)).scaled(0.125)
IMAGES = np.random.default_rng(5).integers(0, 256, (6, 32, 32, 1), np.uint8)


def _pads(layer: Layer) -> list[int]:
    """Top, left, bottom, right, for an even side."""
    before, after = (layer.kernel - layer.stride) // 2, (layer.kernel - layer.stride + 1) // 2
    return [max(before, 0)] * 2 + [max(after, 0)] * 2


def write_onnx(path: Path, specification: Specification, *, apart: bool = False) -> Any:
    """A colour network like `specification`, its shortcuts after what they are added to; its value of the features.

    apart    with a normalisation that is not folded in
    """
    from onnx import TensorProto, helper, numpy_helper, save

    generator, shapes = np.random.default_rng(3), weight_shapes(specification)
    nodes, constants = [], []
    for layer in specification.layers:
        if layer.name in ("class_maps", "logits", "scores"):
            continue
        result = layer.name if layer.activation == "none" else f"{layer.name}_sum"
        inputs = list(layer.inputs)
        sides = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": _pads(layer)}
        if layer.kind == "conv":
            height, width, channels, count = shapes[f"{layer.name}/kernel"]
            channels = 3 if layer.name == "conv1" else channels
            kernel = generator.standard_normal((count, channels, height, width)) / np.sqrt(channels * height * width)
            if layer.name == "conv1":  # reads only inside the image: around it is black to one and grey to the other
                kernel[:, :, [0, 1, 4, 5, 6]] = kernel[:, :, :, [0, 1, 4, 5, 6]] = 0
            for part, array in (("kernel", kernel), ("bias", generator.standard_normal(count))):
                constants.append(numpy_helper.from_array(array.astype(np.float32), f"{layer.name}_{part}"))
                inputs.append(f"{layer.name}_{part}")
            node = helper.make_node("Conv", inputs, [result], **sides)
        elif layer.kind == "max_pool":
            node = helper.make_node("MaxPool", inputs, [result], **sides)
        else:
            node = helper.make_node({"add": "Add", "average_all": "GlobalAveragePool"}[layer.kind], inputs, [result])
        nodes.append(node)
        if layer.activation == "relu":
            nodes.append(helper.make_node("Relu", [result], [layer.name]))
    if apart:
        constants.append(numpy_helper.from_array(np.ones(specification.channels["conv5"], np.float32), "ones"))
        nodes.append(helper.make_node("BatchNormalization", [nodes[-1].input[0], *["ones"] * 4], ["apart"]))
    shortcuts = [node for node in nodes if node.output[0].endswith("_0")]
    for node in shortcuts:
        nodes.remove(node)
        nodes.insert(next(at for at, other in enumerate(nodes) if node.output[0] in other.input), node)
    size = [len(IMAGES), 3, specification.height, specification.width]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    save(model, path)
    return model


@pytest.mark.adapt
def test_the_network_of_an_onnx_file_goes_on_as_it_was(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    model = write_onnx(tmp_path / "network.onnx", NETWORK)
    colours = IMAGES.astype(np.float32).transpose(0, 3, 1, 2) + np.array(OFFSETS, np.float32)[None, :, None, None]
    (expected,) = ReferenceEvaluator(model).run(["features"], {"image": colours})
    found = onnx_weights(tmp_path / "network.onnx", NETWORK, images=IMAGES, scale=SCALE, offsets=OFFSETS)
    features = build_network(NETWORK, outputs=["features"])
    set_weights(features, {**initial_weights(NETWORK, seed=0), **found})
    values = np.asarray(features.predict_on_batch(IMAGES.astype(np.float32) / 255))
    assert values == pytest.approx(expected[:, :, 0, 0], rel=0.02, abs=0.02 * float(np.abs(expected).max()))


@pytest.mark.adapt
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    def read(name: str, specification: Specification = NETWORK) -> None:
        onnx_weights(tmp_path / name, specification, images=IMAGES, scale=SCALE, offsets=OFFSETS)

    write_onnx(tmp_path / "apart.onnx", NETWORK, apart=True)
    write_onnx(tmp_path / "other.onnx", NETWORK)
    (tmp_path / "text.onnx").write_text("no network")
    with pytest.raises(UsageProblem, match=r"apart\.onnx"):
        read("apart.onnx")
    with pytest.raises(UsageProblem, match="No layer of the weights in"):
        read("other.onnx", resnet50(height=32, width=32, labels=1).scaled(0.125))
    with pytest.raises(UsageProblem, match="No layer of the weights in conv1"):
        read("other.onnx", NETWORK.with_channels({"conv1": 16}))
    with pytest.raises(UsageProblem, match=r"text\.onnx"):
        read("text.onnx")
    with pytest.raises(UsageProblem, match=r"absent\.onnx"):
        read("absent.onnx")


def _recipe(**network: object) -> Recipe:
    recipe = read_recipe(Path(__file__).parents[2] / "models" / "recipes" / "adult-normal-abnormal-quick.toml")
    return replace(recipe, network=NetworkChoice(width=0.125, blocks=(1, 1, 1, 1), **network))  # type: ignore[arg-type]


def test_a_recipe_may_name_counts_of_its_own() -> None:
    assert specification_of(_recipe(channels={"conv1": 64})).channels["conv1"] == 64
    for wrong, words in (
        ({"conv9": 8}, "names no hidden channel set: conv9"),
        ({"labels": 2}, "labels"),
        ({"conv1": 0}, "1 or more"),
    ):
        with pytest.raises(UsageProblem, match=words):
            specification_of(_recipe(channels=wrong))


@pytest.mark.adapt
def test_a_recipe_starts_from_an_onnx_file_and_keeps_its_own_head(tmp_path: Path) -> None:
    recipe = _recipe(weights=str(tmp_path / "network.onnx"), weights_offsets=OFFSETS)
    specification = specification_of(recipe)
    write_onnx(tmp_path / "network.onnx", specification)
    weights = starting_weights(recipe, specification, images=IMAGES)
    fresh = initial_weights(specification, seed=recipe.training.seed)
    assert not np.array_equal(weights["conv1/kernel"], fresh["conv1/kernel"])
    np.testing.assert_array_equal(weights["class_maps/kernel"], fresh["class_maps/kernel"])
