"""Pruning of real networks: counting zeros, training, a task over images, and a small study."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from drawn_data import draw_digits
from fieldray.errors import UsageProblem
from fieldray_adapt.data.augmentation import Augmentation
from fieldray_adapt.files import json_bytes
from fieldray_adapt.networks.architectures import mobilenet, resnet50, vgg16_dense
from fieldray_adapt.networks.specification import (
    Layer,
    Specification,
    Weights,
    initial_weights,
    keep_channels,
    parameter_count,
)
from fieldray_adapt.prune.conversion import Conversion
from fieldray_adapt.prune.iterations import PruningRunFolder
from fieldray_adapt.prune.laws import ConstantLaw
from fieldray_adapt.prune.loop import prune
from fieldray_adapt.prune.plan import PruneRecipe, StopRules
from fieldray_adapt.prune.recipe import StudyRecipe
from fieldray_adapt.prune.selection import measure_zero_shares
from fieldray_adapt.prune.study import PruningStudy
from fieldray_adapt.prune.tasks import ImagePruningTask, restore_output_scale
from fieldray_adapt.training.classifier import Schedule, TrainingOptions
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.keras_engine import build_network, set_weights
from fieldray_adapt.training.loop import Effort, LabelledImages, measure_accuracy, train_on_arrays
from fieldray_adapt.training.profile import Network
from tiny_recipe import bright_or_dark, read_recipe

pytestmark = pytest.mark.adapt
SETTINGS = EngineSettings(weight_decay=0.0, loss="categorical", threads=1)


def _two_layers() -> tuple[Specification, Weights]:
    """Return a network with channels x, -x and x - 0.5 before a rectifier, then a dense layer."""
    network = Specification(
        name="two",
        height=2,
        width=2,
        input_channels=1,
        layers=(
            Layer(name="first", kind="conv", inputs=("image",), channels="first", activation="relu"),
            Layer(name="flat", kind="flatten", inputs=("first",)),
            Layer(name="logits", kind="dense", inputs=("flat",), channels="labels"),
            Layer(name="scores", kind="activation", inputs=("logits",), activation="softmax"),
        ),
        channels={"first": 3, "labels": 2},
        outputs={"logits": "logits", "scores": "scores"},
    )
    weights = initial_weights(network, seed=0)
    weights["first/kernel"] = np.array([[[[1.0, -1.0, 1.0]]]], np.float32)
    weights["first/bias"] = np.array([0.0, 0.0, -0.5], np.float32)
    return network, weights


def test_zeros_are_counted_over_positions_and_images() -> None:
    network, weights = _two_layers()
    images = np.array([[0.2, 0.7, 0.9, 0.4], [0.1, 0.3, 0.6, 0.0]], np.float32).reshape(2, 2, 2, 1)
    shares = measure_zero_shares(network, weights, batches=[images[:1], images[1:]])
    # x is zero at 1 of 8 places, -x everywhere, x - 0.5 is above zero at 0.7, 0.9 and 0.6
    assert shares["first"] == pytest.approx([1 / 8, 1.0, 5 / 8])
    assert set(shares) == {"first"}
    with pytest.raises(ValueError, match="no images"):
        measure_zero_shares(network, weights, batches=[])


def _bright_or_dark(count: int) -> LabelledImages:
    generator = np.random.default_rng(0)
    classes = np.arange(count) % 2
    images = generator.random((count, 2, 2, 1), np.float32) * 0.4 + 0.6 * classes[:, None, None, None]
    return LabelledImages(images.astype(np.float32), np.eye(2, dtype=np.float32)[classes])


def test_training_learns_and_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    network, weights = _two_layers()
    data, effort = _bright_or_dark(64), Effort(batch_size=16, epochs=20.0, learning_rate=0.05)
    before, loss_before = measure_accuracy(network, weights, data=data, settings=SETTINGS)
    first, again = (
        train_on_arrays(
            network, weights, data=data, effort=effort, seed=1, settings=SETTINGS, folder=tmp_path / str(number)
        )
        for number in range(2)
    )
    after, loss_after = measure_accuracy(network, first, data=data, settings=SETTINGS)
    assert after == 1.0 and loss_after < loss_before / 2 and before < 1.0
    assert all(np.array_equal(first[key], again[key]) for key in first)


RECIPE = """
name = "small"
kind = "pruning-study"
run = "run"
results = "results.json"
seed = 1
training_threads = 1
representative = 20
data = { file = "shared/data/mnist.npz", validation = 40 }
original = { width = 0.125, training = { batch_size = 16, epochs = 1, learning_rate = 1e-3 } }

[[runs]]
name = "constant"
batch_size = { start = 16 }
epochs = { start = 0.5 }
learning_rate = { start = 1e-3 }
cut_off = { start = 0.0 }
minimum_channels = { start = 4 }
stop = { iterations = 1 }
calibration = 20

[[runs]]
name = "further"
continues = "constant"
batch_sizes = [8, 16]
batch_size = { start = 16, batch = 1.0 }
epochs = { start = 0.5 }
learning_rate = { start = 1e-3 }
cut_off = { start = 0.0 }
minimum_channels = { start = 2 }
stop = { iterations = 1 }
teacher = "constant"

[[baselines]]
kind = "random"
share = 0.5
training = { batch_size = 16, epochs = 0.5, learning_rate = 1e-3 }

[scratch]
runs = ["further"]
seeds = 2
epochs = [0.25, 1]
training = { batch_size = 16, epochs = 0.5, learning_rate = 1e-3 }
"""


def _recipe(folder: Path, text: str = RECIPE) -> StudyRecipe:
    """Read a recipe for a study of drawn digits, and draw them."""
    draw_digits(folder, training=120, test=30)
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    found: StudyRecipe = read_recipe(folder / "recipe.toml", StudyRecipe)
    return found


def _by_size(
    networks: Mapping[str, Network],
    *,
    files: Mapping[str, bytes],
    images: NDArray[np.uint8],
    settings: EngineSettings,
    rounds: int,
) -> dict[str, dict[str, float]]:
    assert rounds == 7 and set(files) == set(networks) and len(images) and settings.threads == 1
    return {name: {"int8": parameter_count(network) * 1e-6} for name, (network, _) in networks.items()}


def _by_name(network: Network, *, folder: Path, on_start: Callable[[], None], **_: object) -> Conversion:
    """Fake tester: accuracy depends on size. Like the real one, it does not repeat finished work."""
    if not folder.exists():
        folder.mkdir(parents=True)
        on_start()
    return Conversion(b"", 1 - parameter_count(network[0]) * 1e-9, 0.5)


@pytest.mark.timeout(600)
def test_a_small_study_ends_in_a_table(tmp_path: Path) -> None:
    study = PruningStudy(_recipe(tmp_path), timer=_by_size, tester=_by_name)
    found = study.run()
    results = json.loads((tmp_path / "results.json").read_text())
    assert json.loads(json_bytes(found)) == results
    assert results["original"]["speed_up"] == {"int8": 1.0}
    first, second = (results["runs"][name]["iterations"][-1] for name in ("constant", "further"))
    assert results["original"]["parameters"] > first["parameters"] > second["parameters"]
    assert second["speed_up"]["int8"] == pytest.approx(second["times_fewer_parameters"])
    assert second["removed_share"] == 1 - second["parameters"] / results["original"]["parameters"]
    assert second["batch_size_proposed"] in (8, 16)
    assert set(results["baselines"]) == {"random-0.5"}
    assert results["baselines"]["random-0.5"]["channels"]["block1_conv1"] == 4
    again = second["test_accuracy_from_random_weights"]
    assert len(again) == 2 and all(0 <= share <= 1 for share in again)
    assert "test_accuracy_from_random_weights" not in first
    by_epochs = second["test_accuracy_from_random_weights_by_epochs"]
    assert {name: len(found) for name, found in by_epochs.items()} == {"0.25": 2, "1": 2}
    assert second["test_accuracy_int8"] == 0.5 and second["test_accuracy"] > first["test_accuracy"]
    report = (tmp_path / "report.html").read_text()
    assert "0.25 epochs" in report
    assert f"{np.median(again):.4f} ({min(again):.4f} to {max(again):.4f})" in report
    study = PruningStudy(_recipe(tmp_path), timer=_by_size, tester=_by_name)
    assert study.run().runs == found.runs  # finished runs are not trained again
    assert report.count("<svg") == 1 and f"{second['parameters']:,}" in report and "random-0.5" in report


def test_a_run_cannot_begin_at_a_size_that_another_run_never_reached(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, RECIPE.replace("teacher =", "after_iteration = 5\nteacher ="))
    with pytest.raises(UsageProblem, match="The run constant has no iteration 5"):
        PruningStudy(recipe).run_pruning(recipe.pruning_run("further"))


def test_a_finished_study_is_only_timed_again(tmp_path: Path) -> None:
    text, said = RECIPE.split("[[runs]]", maxsplit=1)[0] + "runs = []\n", list[str]()
    first = PruningStudy(_recipe(tmp_path, text), timer=_by_size, tester=_by_name, say=said.append).run()
    assert "training the original" in said and "converting and testing original" in said
    said.clear()
    assert PruningStudy(_recipe(tmp_path, text), timer=_by_size, tester=_by_name, say=said.append).report() == first
    assert said == ["timing every network"]
    said.clear()
    other = _recipe(tmp_path, text.replace("seed = 1", "seed = 17", 1))
    PruningStudy(other, timer=_by_size, tester=_by_name, say=said.append).report()
    assert "training the original" in said  # another seed gives another network


@pytest.mark.parametrize(
    ("said", "instead", "words"),
    [
        ('runs = ["further"]', 'runs = ["none"]', "scratch must name runs of this study"),
        ('continues = "constant"', 'continues = "none"', "further"),
    ],
)
def test_a_run_that_the_study_does_not_have_is_refused(tmp_path: Path, said: str, instead: str, words: str) -> None:
    with pytest.raises(UsageProblem, match=words):
        _recipe(tmp_path, RECIPE.replace(said, instead))


@pytest.mark.parametrize("name", ["vgg16-mnist", "vgg16-mnist-quick"])
def test_the_shipped_study_recipes_are_valid(name: str) -> None:
    recipe = read_recipe(Path(__file__).parents[2] / "models" / "recipes" / f"{name}.toml", StudyRecipe)
    assert parameter_count(replace(recipe.original, width=1.0).specification()) == 14_718_666  # as in the dissertation
    laws = {run.name: type(run.cut_off).__name__ for run in recipe.runs}
    assert {laws.pop(run, "ConstantLaw") for run in ("accurate", "longer")} == {"ConstantLaw"}
    assert not any(run.teacher for run in recipe.runs)
    assert laws == {
        "context": "ContextDependentLaw",
        "linear": "LinearLaw",
        "multiplicative": "MultiplicativeLaw",
        "constant": "ConstantLaw",
        "smallest": "ConstantLaw",
    }
    assert "random" in {row.kind for row in recipe.baselines}


def test_a_cut_network_gets_its_signal_back() -> None:
    network = vgg16_dense(height=8, width=8, labels=2, dense_units=64).with_scaled_channels(0.25)
    weights = initial_weights(network, seed=3)
    images = np.random.default_rng(4).random((20, 8, 8, 1), np.float32)
    keep = {name: np.arange(count // 4) for name, count in network.channels.items() if name != "labels"}
    smaller, sliced = keep_channels(network, weights, keep=keep)
    restored = restore_output_scale((network, weights), (smaller, sliced), keep=keep, images=images)

    def mean_of_last(specification: Specification, own: Weights, chosen: slice | NDArray[np.int64]) -> float:
        model = build_network(specification, outputs=["fc2"])
        set_weights(model, own)
        return float(np.asarray(model.predict_on_batch(images))[:, chosen].mean())

    wanted = mean_of_last(network, weights, keep["fc2"])
    # with a quarter of the inputs at each of fifteen layers the signal almost vanishes, and is restored
    assert mean_of_last(smaller, sliced, slice(None)) < wanted / 100
    assert mean_of_last(smaller, restored, slice(None)) == pytest.approx(wanted, rel=1e-3)
    assert restored["logits/kernel"] is sliced["logits/kernel"]


def test_layers_that_normalise_are_left_as_they_are() -> None:
    network = mobilenet(height=32, width=32, labels=1).with_scaled_channels(0.125)
    weights = initial_weights(network, seed=0)
    keep = {"conv1": np.arange(4)}
    cut = keep_channels(network, weights, keep=keep)
    images = np.zeros((2, 32, 32, 1), np.float32)
    assert restore_output_scale((network, weights), cut, keep=keep, images=images) == cut[1]


def _task(folder: Path) -> ImagePruningTask:
    """Return a pruning task. The label of the last validation image is unknown."""
    validation = bright_or_dark(12)
    targets = validation.targets.copy()
    targets[-1] = np.nan
    return ImagePruningTask(
        training=bright_or_dark(24),
        validation=replace(validation, targets=targets),
        options=TrainingOptions(
            schedule=Schedule(epochs=3, batch_size=8, images_per_epoch=16, average_epochs=0.5),
            augmentation=Augmentation(),
            engine_settings=EngineSettings(threads=1),
        ),
        folder=folder,
        calibration_image_count=8,
    )


def _network() -> tuple[Specification, Weights]:
    network = resnet50(height=32, width=32, labels=1, blocks=(1, 1)).with_scaled_channels(0.125)
    return network, initial_weights(network, seed=0)


def test_a_residual_network_is_pruned_on_images(tmp_path: Path) -> None:
    plan = PruneRecipe(
        batch_size=ConstantLaw(start=8),
        epochs=ConstantLaw(start=1.5),
        learning_rate=ConstantLaw(start=1e-3),
        cut_off=ConstantLaw(start=0.0),
        minimum_channels=ConstantLaw(start=4),
        stop=StopRules(iterations=1),
        multiple=4,
    )
    folder = PruningRunFolder(tmp_path, fingerprint="")
    assert prune(_task(tmp_path), plan, folder=folder, original=_network) == "iterations"
    first, second = folder.iterations()
    assert second.parameters < first.parameters and second.multiply_adds < first.multiply_adds
    assert 0 <= second.quality <= 1 and second.loss > 0
    smaller, _ = folder.network_after_iteration(1)
    assert all(count % 4 == 0 for name, count in smaller.channels.items() if name != "labels")
    # one and a half epochs of 16 images are two of 12
    assert (tmp_path / "retraining-1" / "checkpoint.npz").is_file()


def test_retraining_averages_the_networks_of_groups_as_the_training_did(tmp_path: Path) -> None:
    both = bright_or_dark(24)
    both = replace(both, sources=("here",) * 12 + ("there",) * 12)
    task, effort = _task(tmp_path), Effort(batch_size=8, epochs=0.5, learning_rate=1e-3)
    grouped, plain = (replace(task.options.schedule, groups=groups) for groups in ((("here",), ("there",)), ()))
    task = replace(task, training=both, options=replace(task.options, schedule=grouped))
    network, weights = _network()
    trained = task.retrain(network, weights, effort=effort, seed=1)
    single = replace(task.options, schedule=plain)
    alone = [
        replace(task, training=both.select_sources([name]), options=single, folder=tmp_path / name).retrain(
            network, weights, effort=effort, seed=1
        )
        for name in ("here", "there")
    ]
    kernel = "class_maps/kernel"
    assert not np.array_equal(alone[0][kernel], alone[1][kernel])
    np.testing.assert_allclose(trained[kernel], (alone[0][kernel] + alone[1][kernel]) / 2, atol=1e-6)


def test_networks_with_different_seeds_are_averaged(tmp_path: Path) -> None:
    task, effort = _task(tmp_path), Effort(batch_size=8, epochs=0.5, learning_rate=1e-3)
    twice = replace(task.options, schedule=replace(task.options.schedule, networks=2))
    network, weights = _network()
    trained = replace(task, options=twice).retrain(network, weights, effort=effort, seed=4)
    alone = [
        replace(task, folder=tmp_path / str(seed)).retrain(network, weights, effort=effort, seed=seed)
        for seed in (4, 5)
    ]
    kernel = "class_maps/kernel"
    assert not np.array_equal(alone[0][kernel], alone[1][kernel])
    np.testing.assert_allclose(trained[kernel], (alone[0][kernel] + alone[1][kernel]) / 2, atol=1e-6)


def test_quality_is_the_auc_where_the_label_is_known(tmp_path: Path) -> None:
    network, weights = _network()
    weights["class_maps/kernel"][:] = 0
    weights["class_maps/bias"][:] = 0
    # equal logits of 0 for all: AUC one half, cross-entropy log 2
    assert _task(tmp_path).measure_quality_and_loss(network, weights) == (0.5, pytest.approx(np.log(2)))
