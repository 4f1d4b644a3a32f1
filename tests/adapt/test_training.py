"""Sampling, augmentation, starting weights, resuming a killed training, and targets of a teacher network."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldray.domain.model import InputSpec
from fieldray.errors import UsageProblem
from fieldray_adapt.data.augmentation import Augmentation, augment
from fieldray_adapt.networks.architectures import resnet50, squeezenet, vgg16_dense
from fieldray_adapt.networks.specification import (
    Specification,
    Weights,
    channel_set_by_layer,
    initial_weights,
    layer_shapes,
    parameter_count,
    save_weights,
)
from fieldray_adapt.recipes.classifier import ClassifierRecipe, ClassifierTraining, NetworkChoice, PackTexts
from fieldray_adapt.recipes.shared import LabelRule, Source
from fieldray_adapt.run import Run
from fieldray_adapt.training import steps
from fieldray_adapt.training.classifier import (
    Samples,
    Schedule,
    TrainingOptions,
    draw_balanced_indices,
    train,
    train_and_average_networks,
)
from fieldray_adapt.training.engine_interface import Batch, EngineSettings
from fieldray_adapt.training.loop import (
    CHECKPOINT_FILE_NAME,
    Effort,
    EpochFigures,
    LabelledImages,
    distillation_targets,
    train_on_arrays,
)
from fieldray_adapt.training.steps import recipe_specification, starting_weights, train_recipe
from fieldray_adapt.training.teacher import efficientnet_lite0, read_teacher_weights, with_teacher_targets
from tiny_recipe import Killed, bright_or_dark

ENGINE = "torch" if importlib.util.find_spec("torch") else "tensorflow"
NETWORK = resnet50(height=32, width=32, labels=1, blocks=(1,)).with_scaled_channels(0.125)


def test_classes_are_drawn_equally_within_each_source() -> None:
    sources = ["a"] * 90 + ["b"] * 20
    classes = ["0"] * 80 + ["1"] * 10 + ["0"] * 5 + ["1"] * 15
    drawn = draw_balanced_indices(sources, classes, count=400, shares={"a": 3.0}, generator=np.random.default_rng(0))
    found = Counter((sources[i], classes[i]) for i in drawn)
    # shares 3 : 1 of 400, halved between the classes
    assert found == {("a", "0"): 150, ("a", "1"): 150, ("b", "0"): 50, ("b", "1"): 50}
    # 150 draws from 80 images: each once or twice
    assert set(Counter(i for i in drawn if i < 80).values()) == {1, 2}


def test_no_augmentation_changes_nothing_and_all_of_it_stays_an_image() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 30), np.uint8)
    assert np.array_equal(augment(image, Augmentation(), generator=np.random.default_rng(1)), image)
    strong = Augmentation(
        shift=0.1, scale=0.2, rotation_degrees=15, flip=0.5, gamma=0.5, contrast=0.5, brightness=0.1,
        stretch=0.2, shading=0.2, blur_pixels=2, noise=0.1, coarsen=1, cutout=0.5,
    )  # fmt: skip
    for seed in range(20):
        changed = augment(image, strong, generator=np.random.default_rng(seed))
        assert changed.shape == image.shape and changed.dtype == np.uint8 and not np.array_equal(changed, image)


def test_a_mirror_image_is_exact() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(6, 8)
    mirrored = augment(image, Augmentation(flip=1.0), generator=np.random.default_rng(0))
    np.testing.assert_array_equal(mirrored, image[:, ::-1])


SCHEDULE = Schedule(epochs=4, batch_size=16, learning_rate=3e-3, average_epochs=0.5, seed=5)


def _train(
    folder, *, network: Specification = NETWORK, stop_after: int = 99, seen: list[int] | None = None, **changed: object
):
    def progress(row) -> None:
        if seen is not None:
            seen.append(row.epoch)
        if row.epoch == stop_after:
            raise Killed

    given = {
        "weights": initial_weights(network, seed=1),
        "training": bright_or_dark(64),
        "validation": bright_or_dark(20),
        "schedule": SCHEDULE,
        "augmentation": Augmentation(shift=0.05, gamma=0.2),
        "engine_settings": EngineSettings(threads=1),
        "engine_name": ENGINE,
        "starting_weights_share": 0.0,
        **changed,
    }
    options = TrainingOptions(**{field.name: given.pop(field.name) for field in fields(TrainingOptions)})
    return train(network, **given, options=options, folder=folder, progress=progress)


@pytest.mark.adapt
def test_final_weights_contain_the_recipe_s_share_of_starting_weights(tmp_path) -> None:
    start = initial_weights(NETWORK, seed=5)
    images = bright_or_dark(24)
    options = TrainingOptions(
        schedule=SCHEDULE,
        augmentation=Augmentation(),
        engine_settings=EngineSettings(),
        engine_name=ENGINE,
        starting_weights_share=0.4,
    )
    mean, _ = train_and_average_networks(
        NETWORK, start, training=images, validation=images, options=options, folder=tmp_path / "mean",
        progress=lambda _: lambda _: None,
    )  # fmt: skip
    trained, _ = train(
        NETWORK, dict(start), training=images, validation=images, options=options, folder=tmp_path / "alone"
    )
    kernel = "class_maps/kernel"
    assert not np.array_equal(trained[kernel], start[kernel])
    np.testing.assert_allclose(mean[kernel], 0.4 * start[kernel] + 0.6 * trained[kernel], atol=1e-6)


def _recipe_from(weights: Path, labels: int, *, start_share: float) -> ClassifierRecipe:
    return ClassifierRecipe(
        pack=PackTexts(id="made"),
        input=InputSpec(height=32, width=32),
        network=NetworkChoice(kind="resnet50", blocks=(1,), weights=str(weights)),
        labels=tuple(LabelRule(code=f"label-{number}") for number in range(labels)),
        data=(Source(path=weights.parent, layout="folders"),),
        training=ClassifierTraining(start_share=start_share, seed=7),
    )


def test_the_head_of_starting_weights_is_copied_where_it_becomes_part_of_the_network(tmp_path: Path) -> None:
    path, key = tmp_path / "weights.npz", "class_maps/kernel"
    plain, averaged = (_recipe_from(path, 1, start_share=share) for share in (0.0, 0.4))
    network = recipe_specification(plain)
    found = initial_weights(network, seed=3)
    save_weights(path, found)
    own = initial_weights(network, seed=7)
    np.testing.assert_array_equal(starting_weights(plain, network)[key], own[key])
    np.testing.assert_array_equal(starting_weights(averaged, network)[key], found[key])
    two_labels = _recipe_from(path, 2, start_share=0.4)
    with pytest.raises(UsageProblem, match="needs starting weights of a network with as many labels"):
        starting_weights(two_labels, recipe_specification(two_labels))


@pytest.mark.adapt
def test_a_training_learns_the_teacher_first_and_then_the_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int, list[float]]] = []

    def note(_network: object, weights: Weights, **given: Any) -> tuple[Weights, list[EpochFigures]]:
        trained.append((given["folder"].name, given["options"].schedule.epochs, given["training"].targets[:, 0]))
        return {**weights, "class_maps/bias": weights["class_maps/bias"] + 1}, []

    recipe = _recipe_from(tmp_path / "weights.npz", 1, start_share=0.0)
    settings = replace(recipe.training, teacher=tmp_path / "lite0.npz", teacher_epochs=2, epochs=5)
    recipe = replace(recipe, run=tmp_path, training=settings)
    save_weights(tmp_path / "weights.npz", initial_weights(recipe_specification(recipe), seed=3))
    samples = bright_or_dark(8, source=recipe.data[0].name)
    scores = replace(samples, targets=np.full_like(samples.targets, 0.25))
    monkeypatch.setattr(
        steps, "with_teacher_targets", lambda *_, teacher_share, **__: scores if teacher_share == 1 else None
    )
    monkeypatch.setattr(steps, "train", note)
    run = Run(recipe=recipe, progress=lambda *_: None)
    weights, _ = train_recipe(run, training=samples, validation=samples, folder=tmp_path / "train")
    assert [(name, epochs) for name, epochs, _ in trained] == [("teacher", 2), ("train", 5)]
    assert (trained[0][2] == 0.25).all() and (trained[1][2] == samples.targets[:, 0]).all()
    start = starting_weights(recipe, recipe_specification(recipe))["class_maps/bias"]
    np.testing.assert_allclose(weights["class_maps/bias"], start + 2)


def test_a_killed_training_resumes_to_the_same_result(tmp_path) -> None:
    whole, history = _train(tmp_path / "whole")
    assert history[-1].auc == (1.0,) and len(history) == 4
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stop_after=2)
    resumed, again = _train(tmp_path / "killed")
    assert [row.loss for row in again] == pytest.approx([row.loss for row in history], rel=5e-3)
    # Rounding depends on memory alignment and Adam enlarges it, so the tolerance is relative to the change of weights.
    start = initial_weights(NETWORK, seed=1)
    moved, apart = (sum(float(((whole[key] - other[key]) ** 2).sum()) for key in whole) for other in (start, resumed))
    assert apart < 0.01 * moved


def _one_image_other(samples: Samples) -> Samples:
    images = samples.images.copy()
    images[7, 0, 0, 0] ^= 1
    return replace(samples, images=images)


def _one_label_other(samples: Samples) -> Samples:
    targets = samples.targets.copy()
    targets[7] = np.nan
    return replace(samples, targets=targets)


class _Idle:
    """A fake engine that learns nothing."""

    def __init__(self, specification: Specification, weights: Weights, **_: object) -> None:
        self._weights = dict(weights)

    def step(self, images: Batch, targets: Batch, **_: object) -> float:
        return 1.0

    def logits(self, images: Batch) -> Batch:
        return np.zeros((len(images), 1), np.float32)

    def weights(self) -> Weights:
        return self._weights

    def set_weights(self, weights: Weights) -> None:
        self._weights = dict(weights)

    def optimiser_state(self) -> dict[str, np.ndarray]:
        return {}

    def set_optimiser_state(self, state: dict[str, np.ndarray]) -> None:
        assert state == {}


def test_a_training_that_differs_in_anything_does_not_resume_another(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray_adapt.training.classifier.open_engine", _Idle)
    samples = bright_or_dark(64)
    changes: dict[str, dict[str, object]] = {
        "seed": {"schedule": replace(SCHEDULE, seed=6)},
        "rate": {"schedule": replace(SCHEDULE, learning_rate=1e-3)},
        "an image replaced": {"training": _one_image_other(samples)},
        "a label": {"training": _one_label_other(samples)},
        "a patient added": {"training": bright_or_dark(66)},
        "split": {"validation": bright_or_dark(22)},
        "augmentation": {"augmentation": Augmentation(shift=0.05, gamma=0.3)},
        "weights": {"weights": initial_weights(NETWORK, seed=2)},
        "weight decay": {"engine_settings": EngineSettings(threads=1, weight_decay=0.01)},
    }
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stop_after=1)
    for name, changed in changes.items():
        folder, seen = tmp_path / name, list[int]()
        folder.mkdir()
        shutil.copy(tmp_path / "killed" / CHECKPOINT_FILE_NAME, folder)
        with pytest.raises(Killed):
            _train(folder, stop_after=1, seen=seen, **changed)
        assert seen == [1], name  # from the first epoch on
    seen = []
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stop_after=2, seen=seen)
    assert seen == [2]


@pytest.mark.adapt
def test_a_loss_that_is_not_finite_ends_the_training_with_an_error(tmp_path) -> None:
    with pytest.raises(UsageProblem, match="Lower learning_rate"):
        _train(tmp_path, schedule=replace(SCHEDULE, learning_rate=1e30))
    assert not (tmp_path / CHECKPOINT_FILE_NAME).exists()


@pytest.mark.adapt
def test_a_dropout_draws_by_the_seed(tmp_path) -> None:
    dropping = squeezenet(height=32, width=32, labels=1).with_scaled_channels(0.125)
    short = Schedule(epochs=1, batch_size=8, learning_rate=1e-2, warm_up_epochs=0, seed=5)
    data = {"training": bright_or_dark(16), "validation": bright_or_dark(4), "augmentation": Augmentation()}
    first, again = (_train(tmp_path / name, network=dropping, schedule=short, **data)[0] for name in ("first", "again"))
    assert all(np.allclose(array, again[key], atol=1e-5) for key, array in first.items())


CATEGORICAL = EngineSettings(weight_decay=0.0, loss="categorical", threads=1)
DENSE = vgg16_dense(height=8, width=8, labels=2, dense_units=16, dropout=0.0).with_scaled_channels(0.125)
EFFORT = Effort(batch_size=8, epochs=2.0, learning_rate=1e-3)
DATA = LabelledImages(
    np.random.default_rng(2).random((16, 8, 8, 1), np.float32), np.eye(2, dtype=np.float32)[[0, 1] * 8]
)


@pytest.mark.adapt
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    weights, args = initial_weights(DENSE, seed=0), {"effort": EFFORT, "seed": 5, "settings": CATEGORICAL}
    whole = train_on_arrays(DENSE, weights, data=DATA, folder=tmp_path / "whole", **args)  # type: ignore[arg-type]

    def die(row: EpochFigures) -> None:
        if row.epoch == 3:
            raise Killed

    done = list[int]()
    with pytest.raises(Killed):
        train_on_arrays(DENSE, weights, data=DATA, folder=tmp_path, progress=die, **args)  # type: ignore[arg-type]
    resumed = train_on_arrays(
        DENSE, weights, data=DATA, folder=tmp_path, progress=lambda row: done.append(row.epoch), **args
    )  # type: ignore[arg-type]
    # two epochs of 16 images in batches of 8 are four steps, so four parts, of which three were done
    assert done == [4]
    assert all(np.array_equal(whole[key], resumed[key]) for key in whole)
    assert (tmp_path / CHECKPOINT_FILE_NAME).exists()  # deleted once the result is saved
    done.clear()
    other = LabelledImages(1 - DATA.images, DATA.targets)
    train_on_arrays(DENSE, weights, data=other, folder=tmp_path, progress=lambda row: done.append(row.epoch), **args)  # type: ignore[arg-type]
    assert done == [1, 2, 3, 4]  # a training with other data does not resume from it


@pytest.mark.adapt
def test_a_teacher_gives_part_of_the_targets() -> None:
    weights = initial_weights(DENSE, seed=0)
    weights = {key: array if "logits" not in key else np.zeros_like(array) for key, array in weights.items()}
    weights["logits/bias"] = np.array([np.log(9.0), 0.0], np.float32)
    # Logits (log 9, 0) at temperature 1 are 0.9 and 0.1; at temperature 2 they are 3 and 1 parts of 4.
    for temperature, sure in ((1.0, 0.9), (2.0, 0.75)):
        found = distillation_targets(DATA, DENSE, weights, share=0.5, temperature=temperature, settings=CATEGORICAL)
        assert found.targets[0] == pytest.approx([0.5 + 0.5 * sure, 0.5 * (1 - sure)], abs=1e-6)
        assert found.images is DATA.images
    alone = distillation_targets(
        DATA, DENSE, weights, share=0.0, temperature=2.0, settings=replace(CATEGORICAL, threads=1)
    )
    assert np.array_equal(alone.targets, DATA.targets)


_PARTS = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
# The suffix of the layer's name: a block with a residual sum is named by the sum.
_STEPS = {
    "_expand_conv": (("_expand",), "_bn0"),
    "_depthwise_conv": (("_depthwise",), "_bn1"),
    "_project_conv": (("", "_project"), "_bn2"),
}


def _in_the_layout_of_the_file(weights: Weights) -> dict[str, np.ndarray]:
    """Return the weights as in PyTorch: kernels (out, in, rows, columns), and normalisations with their own names."""
    found = {}

    def take(layer: str, kernel: str, norm: str) -> None:
        array = weights[f"{layer}/kernel"]
        found[f"{kernel}.weight"] = array.transpose((2, 3, 0, 1) if "depthwise" in layer else (3, 2, 0, 1))
        found.update({f"{norm}.{name}": weights[f"{layer}/{part}"] for name, part in _PARTS.items()})

    take("stem", "_conv_stem", "_bn0")
    take("head", "_conv_head", "_bn1")
    for block in range(16):
        for step, (endings, norm) in _STEPS.items():
            for layer in (f"block{block}{ending}" for ending in endings):
                if f"{layer}/kernel" in weights:
                    take(layer, f"_blocks.{block}.{step}", f"_blocks.{block}.{norm}")
    return found


@pytest.fixture(scope="module")
def weights() -> Weights:
    return initial_weights(efficientnet_lite0(), seed=1)


@pytest.fixture(scope="module")
def file(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "lite0.npz"
    np.savez(path, **_in_the_layout_of_the_file(weights))
    return path


def test_the_network_is_that_of_the_paper() -> None:
    """EfficientNet-Lite0 has 4,652,008 weights, 1,281,000 of them the classifier's; each of 49 layers keeps 2 more."""
    specification = efficientnet_lite0()
    sets = channel_set_by_layer(specification)
    kept = sum(2 * specification.channels[sets[layer.name]] for layer in specification.layers if layer.batch_norm)
    assert parameter_count(specification) - kept == 4_652_008 - 1_281_000
    assert layer_shapes(specification)["head"] == (7, 7, 1280)


def test_the_weights_are_read_from_the_layout_of_the_file(weights: Weights, file: Path) -> None:
    found = read_teacher_weights(file)
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], array) for name, array in weights.items())


def test_a_file_without_the_teacher_s_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(UsageProblem, match=r"other.npz does not contain the weights of an EfficientNet-Lite0"):
        read_teacher_weights(path)
    with pytest.raises(UsageProblem) as problem:
        read_teacher_weights(tmp_path / "none.npz")
    assert problem.value.reason.code == "data_unreadable"


def test_a_label_that_other_patients_contradict_counts_for_less(file: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    truth = np.arange(40) % 2 == 0
    images = generator.integers(0, 90, (40, 32, 32, 1), np.uint8)
    images[truth, 8:24, 8:24] += 150
    targets = truth[:, None].astype(np.float32)
    targets[[0, 1]] = 1 - targets[[0, 1]]  # wrong
    targets[2] = np.nan
    samples = Samples(images=images, targets=targets, sources=("a",) * 40, patients=tuple(f"p{n}" for n in range(40)))
    rows: list[tuple[str, int, int]] = []
    cache = tmp_path / "seen.npz"
    found = with_teacher_targets(
        samples, file, teacher_share=0.5, cache=cache, progress=lambda *row: rows.append(row)
    ).targets[:, 0]
    assert np.isnan(found[2])
    right = np.array([0, 1, *range(3, 40)])
    doubt = np.abs(found[right] - targets[right, 0])
    assert doubt[:2].min() > 2 * doubt[2:].max()
    assert ((found[right] > 0.5) == (targets[right, 0] > 0.5)).all()
    assert rows[-1] == ("teacher", 40, 40)
    scores = with_teacher_targets(samples, file, teacher_share=1.0, cache=cache, progress=lambda *_: None).targets[:, 0]
    np.testing.assert_allclose((scores + targets[:, 0]) / 2, found, atol=1e-6)
    again = with_teacher_targets(
        samples, file, teacher_share=0.5, cache=cache, progress=lambda *row: pytest.fail(str(row))
    ).targets[:, 0]
    assert np.array_equal(again, found, equal_nan=True)
