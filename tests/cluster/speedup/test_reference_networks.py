"""The four networks by specification, counted against what was published."""

from __future__ import annotations

import math

import pytest

from fieldray_cluster.speedup.formulas import Measured, Mode, estimated
from fieldray_cluster.speedup.placement import (
    REFERENCE_NETWORKS,
    ReferenceNetwork,
    googlenet,
    placed_whole,
    resnet34,
    shapes,
    squeezenet,
    vgg16e,
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # keras.applications.VGG19 and torchvision's vgg19: 143,667,240
        ("vgg-16e", 143_667_240),
        # Caffe's BVLC GoogLeNet as deployed (6,998,552), and as trained with both auxiliary heads (13,378,280)
        ("googlenet", 6_998_552),
        ("googlenet-auxiliary", 13_378_280),
        # torchvision's squeezenet1_0: 1,248,424
        ("squeezenet", 1_248_424),
        # torchvision's resnet34: 21,797,672
        ("resnet-34", 21_797_672),
    ],
)
def test_parameters_are_as_published(name: str, parameters: int) -> None:
    network = REFERENCE_NETWORKS[name]()
    assert network.parameters == parameters == sum(network.sizes)
    assert len({tensor.name for tensor in network.tensors}) == len(network.tensors)


def test_inception_modules_are_as_published() -> None:
    """Table 1 of Szegedy et al. 2015 in K = 1024 parameters. Its 4c and 5a do not follow from its channels."""
    published = {"3a": 159, "3b": 380, "4a": 364, "4b": 437, "4c": 463, "4d": 580, "4e": 840, "5a": 1072, "5b": 1388}
    tensors = googlenet().tensors
    for name, count in published.items():
        found = sum(tensor.size for tensor in tensors if tensor.name.startswith(f"inception{name}_"))
        assert found / 1024 == pytest.approx(count, rel=0.02 if name not in ("4c", "5a") else 0.08), name


def test_sides_are_as_published() -> None:
    assert shapes(googlenet(has_auxiliary_heads=True).layers)["auxiliary4a_pool"] == (4, 4, 512)
    assert shapes(googlenet().layers)["pool5"] == (1, 1, 1024)
    assert shapes(vgg16e().layers)["pool5"] == (7, 7, 512)
    assert shapes(resnet34().layers)["conv5_3"] == (7, 7, 512)
    assert shapes(squeezenet().layers)["pool_all"] == (1, 1, 1000)


@pytest.mark.parametrize("name", REFERENCE_NETWORKS)
def test_every_tensor_is_placed_once(name: str) -> None:
    network = REFERENCE_NETWORKS[name]()
    placement = placed_whole(network.sizes, servers=8)
    placed = sorted(piece.tensor for held in placement.servers for piece in held)
    assert placed == list(range(len(network.tensors)))


@pytest.mark.parametrize(
    ("network", "times", "mode", "expected"),
    [
        (squeezenet(classes=257), (0.758, 0.033), "sync-join", 7.08),
        (googlenet(classes=257), (0.763, 0.210), "sync-join", 4.70),
        (resnet34(classes=257), (0.821, 0.811), "sync-join", 2.36),
        (googlenet(classes=257), (0.763, 0.210), "sync-split", 1.21),
    ],
)
def test_whole_tensors_on_8_servers_slow_training_as_worked_out_before(
    network: ReferenceNetwork, times: tuple[float, float], mode: Mode, expected: float
) -> None:
    """Nearer to what was measured (6.5, 4 and 2.1) than equal shards, which give 7.43, 5.40 and 2.93."""
    measured = Measured(gradient_s=times[0], transfer_s=times[1], batches=128, tensors=network.sizes)
    one = estimated(measured, mode=mode, server="distributed", workers=8)
    assert round(one.speed_up, 2) == expected
    assert one.printed_speed_up > one.speed_up or mode == "sync-split"


@pytest.mark.adapt
@pytest.mark.parametrize("network", [squeezenet(classes=10), resnet34(classes=10), googlenet(classes=10)])
def test_keras_makes_the_same_tensors(network: ReferenceNetwork) -> None:
    from keras import Input, Model, layers

    values = {"image": Input((224, 224, 3))}
    for layer in network.layers:
        tensors = [values[name] for name in layer.inputs]
        window = {"strides": layer.stride, "padding": "same" if layer.is_padded else "valid"}
        if layer.kind == "conv":
            value = layers.Conv2D(layer.outputs, layer.kernel, use_bias=not layer.is_normalised, **window)(tensors[0])
            values[layer.name] = layers.BatchNormalization()(value) if layer.is_normalised else value
        elif layer.kind == "dense":
            values[layer.name] = layers.Dense(layer.outputs)(layers.Flatten()(tensors[0]))
        elif layer.kind in ("max_pool", "average_pool"):
            pool = layers.MaxPooling2D if layer.kind == "max_pool" else layers.AveragePooling2D
            values[layer.name] = pool(layer.kernel, **window)(tensors[0])
        else:
            values[layer.name] = (layers.Add() if layer.kind == "add" else layers.Concatenate())(tensors)
    model = Model(values["image"], values[network.layers[-1].name])
    made = sorted(math.prod(weight.shape) for weight in model.trainable_weights)
    assert made == sorted(network.sizes)
