"""Specifications of networks: published sizes, and removing channels without changing outputs.

Also training that starts from a shipped pack: the recovered network gives the pack's scores.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_pack
from fieldray_adapt.data.dataset import label_targets
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.networks.architectures import (
    NETWORKS,
    channels_from_pack,
    googlenet,
    mobilenet,
    resnet34,
    resnet50,
    squeezenet,
    vgg16,
    vgg16_dense,
    weights_from_pack,
)
from fieldray_adapt.networks.specification import (
    INPUT_NAME,
    Layer,
    Specification,
    initial_weights,
    keep_channels,
    layer_shapes,
    load_network,
    multiply_add_count,
    parameter_count,
    save_network,
    weight_axes,
    weight_shapes,
)
from fieldray_adapt.recipes.classifier import NetworkChoice
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.training.engine_interface import BATCH_NORM_STATISTIC_SUFFIXES
from fieldray_adapt.training.keras_engine import build_network, set_weights
from fieldray_adapt.training.steps import recipe_specification, starting_weights
from shipped_packs import CHILDREN_BEFORE, MODELS
from tiny_recipe import RECIPE, adapted, draw, read_recipe

A, B = (Layer(name=name, kind="conv", inputs=(INPUT_NAME,), channels=name) for name in "ab")


def _specification(layers: tuple[Layer, ...], *, output: str) -> Specification:
    """Return a specification with an input of 8 x 8 pixels. Every channel set has four channels."""
    channels = {layer.channels: 4 for layer in layers if layer.channels}
    outputs = {"logits": output, "scores": output}
    return Specification(
        name="wrong", height=8, width=8, input_channels=1, layers=layers, channels=channels, outputs=outputs
    )


def test_resnet50_has_the_published_size() -> None:
    # Keras's ResNet50 without top: 23,587,712 weights with three input channels and conv biases. Without the biases
    # (26,560 - each convolution's outputs once), with one input channel (-2 * 7*7*64) and a head of 2048 * 1 + 1.
    network = resnet50(height=224, width=224, labels=1)
    biases = sum(count for count in (64, *[64, 64, 256] * 3, 256, *[128, 128, 512] * 4, 512))
    biases += sum(count for count in (*[256, 256, 1024] * 6, 1024, *[512, 512, 2048] * 3, 2048))
    assert parameter_count(network) == 23_587_712 - biases - 2 * 7 * 7 * 64 + 2049
    assert layer_shapes(network)["class_maps"] == (7, 7, 1)
    assert 3.5e9 < multiply_add_count(network) < 3.9e9


def test_vgg16_for_small_images_ends_in_one_cell() -> None:
    network = vgg16_dense()
    assert layer_shapes(network)["block5_pool"] == (1, 1, 512)
    # 13 convolutions 14,714,688 (published, three channels) less 2 * 9 * 64 for one channel; dense 512-4096-4096-10
    assert parameter_count(network) == 14_714_688 - 1152 + 513 * 4096 + 4097 * 4096 + 4097 * 10


def test_vgg16_with_one_dense_layer_has_the_dissertations_weights() -> None:
    network = vgg16_dense(dense_layers=0)
    weighted = [layer.kind for layer in network.layers if layer.has_weights]
    assert weighted == ["conv"] * 13 + ["dense"]
    assert parameter_count(network) == 14_714_688 - 1152 + 513 * 10 == 14_718_666
    # five channels in each layer: 9 * 5 + 5, twelve times 9 * 5 * 5 + 5, and 5 * 10 + 10
    narrow = network.with_channels(dict.fromkeys(set(network.channels) - {"labels"}, 5))
    assert parameter_count(narrow) == 50 + 12 * 230 + 60 == 2870
    assert 3050 * 4826 == 14_719_300  # the dissertation's compression, to four digits


@pytest.mark.parametrize(
    ("kind", "published", "maps"),
    [
        ("vgg16", 138_357_544, 7),  # Simonyan and Zisserman 2015, configuration D: 138 million
        ("squeezenet", 1_248_424, 14),  # Iandola et al. 2016: 1.25 million, 4.8 MB
        ("googlenet", 6_998_552, 7),  # Szegedy et al. 2015 without auxiliary heads, as Caffe's file has it
        ("resnet34", 21_797_672, 7),  # He et al. 2016, as torchvision has it
    ],
)
def test_learnt_parameters_are_as_published(kind: str, published: int, maps: int) -> None:
    whole = NETWORKS[kind](height=224, width=224, labels=1000, input_channels=3)
    sizes = {
        key: math.prod(shape)
        for key, shape in weight_shapes(whole).items()
        if not key.endswith(BATCH_NORM_STATISTIC_SUFFIXES)
    }
    assert sum(sizes.values()) == published
    assert layer_shapes(whole)["class_maps"] == (maps, maps, 1000)
    # With one grey channel and one label, the first and the last layer have fewer parameters.
    grey = NETWORKS[kind](height=224, width=224, labels=1)
    first, features = next(iter(sizes)), weight_shapes(whole)["class_maps/kernel"][2]
    assert parameter_count(whole) - parameter_count(grey) == sizes[first] * 2 // 3 + 999 * (features + 1)


def test_joined_outputs_have_their_channel_sets_one_after_another() -> None:
    network = squeezenet(height=64, width=64, labels=2).with_channels({"fire2_expand1x1": 5, "fire2_expand3x3": 7})
    assert layer_shapes(network)["fire2"] == (16, 16, 12)
    assert weight_axes(network)["fire3_squeeze/kernel"][2].channel_sets == ("fire2_expand1x1", "fire2_expand3x3")
    weights = initial_weights(network, seed=0)
    smaller, sliced = keep_channels(network, weights, keep={"fire2_expand3x3": np.array([1, 6])})
    assert smaller.channels["fire2_expand3x3"] == 2
    kept = weights["fire3_squeeze/kernel"][:, :, [0, 1, 2, 3, 4, 5 + 1, 5 + 6]]
    assert np.array_equal(sliced["fire3_squeeze/kernel"], kept)
    with pytest.raises(ValueError, match="joins the input"):
        _specification((A, Layer(name="both", kind="concat", inputs=("a", INPUT_NAME))), output="both")


def test_residual_sums_share_one_channel_set() -> None:
    network = resnet50(height=64, width=64, labels=2).with_scaled_channels(0.25)
    assert network.channels["conv2"] == 64 and network.channels["labels"] == 2
    with pytest.raises(ValueError, match="adds the channel sets"):
        _specification((A, B, Layer(name="sum", kind="add", inputs=("a", "b"))), output="sum")


@pytest.mark.parametrize(
    "network",
    [
        resnet50(height=32, width=48, labels=3),
        vgg16_dense(dense_units=8).with_scaled_channels(0.125),
        googlenet(height=32, width=48, labels=3).with_scaled_channels(0.125),
    ],
)
def test_a_network_survives_its_files(tmp_path: Path, network: Specification) -> None:
    weights, files = initial_weights(network, seed=1), (tmp_path / "run" / "a.npz", tmp_path / "run" / "a.json")
    save_network(*files, network, weights)
    specification, back = load_network(*files)
    assert specification == network and back.keys() == weights.keys()
    assert all(np.array_equal(back[key], weights[key]) for key in weights)
    assert sorted((tmp_path / "run").iterdir()) == sorted(files)


@pytest.mark.parametrize("indices", [[], [0, 0], [3], [-1]])
def test_channels_to_keep_must_exist(indices: list[int]) -> None:
    network = resnet50(height=32, width=32, labels=3).with_scaled_channels(0.125)
    weights = initial_weights(network, seed=0)
    with pytest.raises(ValueError, match="channels to keep"):
        keep_channels(network, weights, keep={"labels": np.array(indices, int)})


@pytest.mark.adapt
@pytest.mark.parametrize(
    "network",
    [
        resnet50(height=40, width=56, labels=2, blocks=(1, 2)).with_scaled_channels(0.125),
        mobilenet(height=48, width=48, labels=2).with_scaled_channels(0.25),
        vgg16_dense(height=40, width=33, dense_units=24, labels=3).with_scaled_channels(0.125),
        vgg16_dense(height=40, width=33, dense_layers=0, labels=3).with_scaled_channels(0.125),
        resnet34(height=40, width=56, labels=2, blocks=(1, 2)).with_scaled_channels(0.125),
        vgg16(height=40, width=33, labels=3).with_scaled_channels(0.125),
        squeezenet(height=48, width=40, labels=2).with_scaled_channels(0.25),
        googlenet(height=48, width=40, labels=2).with_scaled_channels(0.25),
    ],
    ids=lambda network: f"{network.name}-{len(network.layers)}",
)
def test_removing_dead_channels_changes_nothing(network: Specification) -> None:
    """Without a channel that is always zero the network gives the same outputs."""
    from fieldray_adapt.training.keras_engine import build_network, get_weights, set_weights

    weights, generator = initial_weights(network, seed=3), np.random.default_rng(4)
    keep = {name: np.arange(count)[::2] for name, count in network.channels.items() if name != "labels"}
    for key, axes in weight_axes(network).items():
        if key.endswith(("/gamma", "/beta")):
            weights[key] = generator.uniform(0.5, 1.0, weights[key].shape).astype(np.float32)
        if axes[-1].joined_channel_set_names in keep and not key.endswith(("/mean", "/variance")):
            weights[key][..., 1::2] = 0
    smaller, sliced = keep_channels(network, weights, keep=keep)
    images = generator.uniform(0, 1, (2, network.height, network.width, 1)).astype(np.float32)
    outputs = []
    for specification, values in ((network, weights), (smaller, sliced)):
        model = build_network(specification, outputs=["logits", "scores"])
        set_weights(model, values)
        assert all(np.array_equal(values[key], array) for key, array in get_weights(model).items())
        outputs.append([np.asarray(tensor) for tensor in model(images)])
    assert parameter_count(smaller) < 0.4 * parameter_count(network)
    assert np.std(outputs[0][0]) > 1e-7
    for whole, cut in zip(*outputs, strict=True):
        # a new head has small weights and small logits, so the tolerance is relative to the largest logit
        np.testing.assert_allclose(cut, whole, rtol=1e-3, atol=1e-3 * np.abs(whole).max())


@pytest.mark.adapt
def test_the_map_is_the_evidence_and_labels_can_be_dropped() -> None:
    from fieldray_adapt.training.keras_engine import build_network, set_weights

    network = resnet50(height=64, width=64, labels=3, blocks=(1, 1)).with_scaled_channels(0.25)
    weights, images = initial_weights(network, seed=1), np.random.default_rng(0).random((2, 64, 64, 1), np.float32)
    model = build_network(network, outputs=["class_maps", "logits", "scores", "features"])
    set_weights(model, weights)
    maps, logits, scores, features = (np.asarray(tensor) for tensor in model(images))
    np.testing.assert_allclose(maps.mean((1, 2)), logits, atol=1e-5)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores, atol=1e-5)
    assert features.shape == (2, 128)

    one, sliced = keep_channels(network, weights, keep={"labels": np.array([2])})
    model = build_network(one, outputs=["logits"])
    set_weights(model, sliced)
    np.testing.assert_allclose(np.asarray(model(images))[:, 0], logits[:, 2], atol=1e-5)


@pytest.mark.parametrize("kind", sorted(NETWORKS))
def test_a_recipe_can_name_each_kind_of_network(kind: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("blocks = [1]", f'kind = "{kind}"'))
    asked = recipe_specification(read_recipe(tmp_path / "recipe.toml"))
    assert asked == NETWORKS[kind](height=32, width=32, labels=1).with_scaled_channels(0.125)


@pytest.mark.adapt
def test_a_recipe_with_joined_outputs_becomes_integers(tmp_path: Path) -> None:
    for first, name in ((0, "clean"), (48, "confounded")):
        draw(tmp_path, name, images=48, first=first)
    text, recipe = RECIPE.replace("blocks = [1]", 'kind = "squeezenet"'), tmp_path / "recipe.toml"
    text = text[: text.index("[prune]")] + text[text.index("[evaluation]") :]
    recipe.write_text(text.replace("images_per_epoch = 128", "images_per_epoch = 32"))
    adapted("quantise", recipe)
    history = json.loads((tmp_path / "run" / "train" / "history.json").read_text())
    assert len(history) == 4 and history[-1]["loss"] < history[0]["loss"]


WHOLE = resnet50(height=256, width=256, labels=1, last_stride=1)


@pytest.mark.adapt
def test_a_network_recovered_from_a_pack_gives_the_scores_of_the_pack() -> None:
    network = WHOLE.with_channels(channels_from_pack(CHILDREN_BEFORE, WHOLE))
    golden = read_pack(CHILDREN_BEFORE).model.golden
    scores = build_network(network, outputs=["scores"])
    set_weights(scores, weights_from_pack(CHILDREN_BEFORE, network))
    # The remaining difference is the rounding between layers in the pack's int8 network.
    differences = np.abs(np.asarray(scores.predict_on_batch(golden.inputs.astype(np.float32) / 255)) - golden.scores)
    assert differences.mean() < 0.03 and differences.max() < 0.1


@pytest.mark.adapt
def test_a_width_below_1_keeps_the_pack_channels_with_the_largest_weights() -> None:
    recipe = read_recipe(MODELS / "recipes" / "pneumonia-paediatric-quick.toml")
    choice = NetworkChoice(kind="resnet50", weights=str(CHILDREN_BEFORE), last_stride=1)
    whole = replace(recipe, network=choice)
    known, kept = (recipe_specification(one) for one in (whole, replace(whole, network=replace(choice, width=0.5))))
    expected = {name: -(-count // 2) for name, count in known.channels.items() if name != known.label_channel_set}
    assert {**kept.channels, known.label_channel_set: 1} == {**expected, known.label_channel_set: 1}
    before = starting_weights(whole, known)["conv1/kernel"]
    after = starting_weights(replace(whole, network=replace(choice, width=0.5)), kept)["conv1/kernel"]
    sizes = np.abs(before).mean((0, 1, 2))
    largest = np.sort(np.argsort(-sizes, kind="stable")[: after.shape[-1]])
    np.testing.assert_array_equal(after, before[..., largest])
    with pytest.raises(UsageProblem, match="must be at most 1 for a network that starts from a pack"):
        recipe_specification(replace(whole, network=replace(choice, width=1.5)))


@pytest.mark.adapt
@pytest.mark.parametrize(
    "network",
    [
        mobilenet(height=160, width=160, labels=1),
        WHOLE,
        squeezenet(height=160, width=160, labels=1),  # no layer has normalisation, because a pack's network has none
    ],
)
def test_a_pack_of_another_network_is_refused(network) -> None:
    with pytest.raises(UsageProblem, match="No layer of the weights in"):
        weights_from_pack(CHILDREN_BEFORE, network)


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        ({"conv9": 8}, "names no hidden channel set: conv9"),
        ({"labels": 2}, "labels"),
        ({"conv1": 0}, "1 or more"),
    ],
)
def test_a_recipe_may_name_counts_of_its_own(channels: dict[str, int], words: str) -> None:
    recipe = read_recipe(MODELS / "recipes" / "pneumonia-paediatric-quick.toml")
    own = replace(recipe, network=replace(recipe.network, channels={"conv1": 64}))
    assert recipe_specification(own).channels["conv1"] == 64
    with pytest.raises(UsageProblem, match=words):
        recipe_specification(replace(recipe, network=replace(recipe.network, channels=channels)))


def _rule(**changes: object) -> LabelRule:
    meaning = {"en": "Label", "uk": "Мітка"}
    return LabelRule(**{"code": "label", "meaning": meaning, "auxiliary": True, **changes})  # type: ignore[arg-type]


def test_auxiliary_labels_may_use_view_sex_and_age() -> None:
    row = Row(
        path=Path("a.png"),
        source="a",
        classes=frozenset({"x"}),
        patient="1",
        origin="a",
        view="AP",
        sex="",
        age_years=50.0,
    )
    older = replace(row, age_years=50.5, view="PA", sex="M")
    unknown = replace(row, age_years=None)
    labels = [
        _rule(column="view", positive=("AP",), negative=("PA",)),
        _rule(column="sex", positive=("F",), negative=("M",)),
        _rule(column="age", above_years=50.0),
        _rule(positive=("x",)),
    ]
    found = label_targets([row, older, unknown], labels)
    expected = [[1, np.nan, 0, 1], [0, 0, 1, 1], [1, np.nan, np.nan, 1]]
    assert np.array_equal(found, np.array(expected, np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"column": "sex"}, "positive is needed"),
        ({"column": "age"}, "above_years"),
        ({"positive": ("x",), "above_years": 50.0}, "above_years"),
        ({"positive": ("x",), "weight": 0.0}, "weight must be above 0"),
        ({"column": "sex", "positive": ("F",), "auxiliary": False}, "unless the label is auxiliary"),
    ],
)
def test_a_label_that_makes_no_sense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _rule(**changes)
