"""Division of a training: every batch goes to one worker, and impossible divisions are errors.

A batch may be divided anywhere: the mean of the parts' gradients, and the update, equal those of the whole batch.
"""

from __future__ import annotations

import dataclasses
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray.errors import StorageProblem, UsageProblem
from fieldray_adapt.networks.architectures import resnet50
from fieldray_adapt.networks.specification import initial_weights
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_cluster.training.shard import Shard, ShardState, UpdateRule, WeightLayout
from fieldray_cluster.training.tasks import (
    DividedClassifierTraining,
    Replica,
    TrainingImagesChanged,
    TrainingPlan,
    temporary_arrays,
    write_arrays,
)
from fieldray_cluster.training.worker import WorkerResult, WorkerSpec, compute_gradients
from tiny_training import SETTINGS, network, samples, task_in, weights

pytestmark = pytest.mark.adapt
ALONE = TrainingPlan()
LAYOUT = WeightLayout.from_weights(weights())


def _mean(parts: list[Any]) -> np.ndarray:
    whole = sum(part.averaging_weight for part in parts)
    return sum(LAYOUT.to_vector(part.gradient) * np.float32(part.averaging_weight / whole) for part in parts)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    made = task_in(tmp_path_factory.mktemp("task")).open_replica()
    made.set_weights(weights())
    return made


@pytest.mark.parametrize("workers", [2, 3])
def test_the_parts_of_a_batch_give_its_gradient_however_unequal(replica: Replica, workers: int) -> None:
    plan = TrainingPlan(workers=workers, mode="sync-split")
    whole = replica.gradient(0, 1, ALONE, 0)
    parts = [replica.gradient(0, 1, plan, worker) for worker in range(workers)]
    np.testing.assert_allclose(_mean(parts), LAYOUT.to_vector(whole.gradient), atol=1e-6)
    assert sum(part.averaging_weight for part in parts) == whole.averaging_weight


def test_a_gradient_leaves_the_network_as_it_was(replica: Replica) -> None:
    replica.gradient(0, 0, ALONE, 0)
    for name, array in weights().items():
        np.testing.assert_array_equal(replica.weights()[name], array)


def test_a_shard_of_all_weights_makes_the_updates_of_the_engine() -> None:
    """Trained weights and the statistics of batch normalisation agree within 1e-5."""
    own = resnet50(height=32, width=32, labels=2, blocks=(1, 1)).with_scaled_channels(0.125)
    start = initial_weights(own, seed=1)
    stepping = open_engine(own, start, settings=SETTINGS, name="tensorflow")
    taking = open_engine(own, start, settings=SETTINGS, name="tensorflow")
    layout = WeightLayout.from_weights(stepping.weights())
    share = Shard(
        ShardState.initial(layout.to_vector(stepping.weights())),
        layout=layout,
        ranges=((0, layout.element_count),),
        rule=UpdateRule(weight_decay=SETTINGS.weight_decay),
    )
    generator = np.random.default_rng(2)
    for _ in range(3):
        images = generator.random((8, 32, 32, 1), np.float32)
        targets = np.tile(np.array([[0, 1], [1, 0]], np.float32), (4, 1))
        taking.set_weights(layout.to_weights(share.state.weights))
        gradient, loss = taking.gradient(images, targets)
        share.update(layout.to_vector(gradient), learning_rate=1e-3)
        assert stepping.step(images, targets, learning_rate=1e-3) == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(share.state.weights, layout.to_vector(stepping.weights()), atol=1e-5)


def test_a_task_is_identified_by_the_content_of_its_arrays_and_not_by_their_path(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    assert task_in(tmp_path) == task
    corrected = dataclasses.replace(samples(), targets=1 - samples().targets)
    sha256 = write_arrays(task.arrays_path, corrected)
    assert repr(dataclasses.replace(task, arrays_sha256=sha256)) != repr(task)  # the key of a replica
    with pytest.raises(TrainingImagesChanged):
        task.open_replica()
    assert [path.name for path in tmp_path.iterdir()] == [task.arrays_path.name]


def test_temporary_arrays_are_deleted_after_an_interruption(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_arrays(tmp_path / "arrays.npz", samples()):
        assert (tmp_path / "arrays.npz").exists()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_arrays_that_cannot_be_written_are_an_error_and_leave_no_file(tmp_path: Path) -> None:
    (tmp_path / "arrays.npz").mkdir()
    with pytest.raises(StorageProblem):
        write_arrays(tmp_path / "arrays.npz", samples(8))
    assert [path.name for path in tmp_path.iterdir()] == ["arrays.npz"]


def _spec(task: DividedClassifierTraining, port: int) -> WorkerSpec:
    return WorkerSpec(
        task=task,
        plan=TrainingPlan(mode="sync-join"),
        layout=LAYOUT,
        worker_index=0,
        token="a" * 32,
        servers=((("127.0.0.1", port), ((0, LAYOUT.element_count),)),),
    )


def test_a_worker_that_cannot_read_its_arrays_reports_a_problem_and_is_not_lost(tmp_path: Path) -> None:
    """The worker is not reported as lost, because a replacement could not read the file either."""
    task = task_in(tmp_path)
    write_arrays(task.arrays_path, samples(8))
    assert compute_gradients(_spec(task, 1)) == WorkerResult(arrays_problem_code="training_node_other")
    task.arrays_path.unlink()
    assert compute_gradients(_spec(task, 1)) == WorkerResult(arrays_problem_code="training_node_folder")


def test_a_worker_that_cannot_reach_its_server_is_reported_as_lost(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert compute_gradients(_spec(task_in(tmp_path), port)) == WorkerResult(was_lost=True)


def test_frozen_layers_do_not_change() -> None:
    layout = WeightLayout.from_weights(weights())
    rule = UpdateRule(weight_decay=0.1, frozen_layers=frozenset({"first"}))
    share = Shard(
        ShardState.initial(layout.to_vector(weights())), layout=layout, ranges=((0, layout.element_count),), rule=rule
    )
    share.update(np.ones(layout.element_count, np.float32), learning_rate=0.1)
    moved = {name for name, array in layout.to_weights(share.state.weights).items() if (array != weights()[name]).any()}
    assert moved == {name for name in weights() if not name.startswith("first/")}


def test_a_task_gives_equal_gradients_wherever_it_is_opened(tmp_path: Path, replica: Replica) -> None:
    other = task_in(tmp_path).open_replica()
    other.set_weights(weights())
    for step in (3, 1):
        first, second = (one.gradient(1, step, ALONE, 0) for one in (replica, other))
        assert first.loss == pytest.approx(second.loss, rel=1e-6) and first.averaging_weight == second.averaging_weight
    assert network().name == "tiny"


@given(
    mode=st.sampled_from(["sync-join", "sync-split", "async"]),
    workers=st.integers(1, 9),
    batches=st.integers(1, 40),
    size=st.integers(1, 30),
)
def test_every_sample_of_every_batch_is_taken_once(mode: Any, workers: int, batches: int, size: int) -> None:
    plan = TrainingPlan(workers=workers, mode=mode)
    taken = Counter[tuple[int, int]]()
    for worker in range(workers):
        for number in range(plan.gradients_per_epoch(batches, worker)):
            batch = plan.batch_index(batches, worker, number)
            if batch is not None:
                own = plan.sample_slice(size, worker)
                taken.update((batch, place) for place in range(own.start, own.stop))
    assert taken == Counter({(batch, place): 1 for batch in range(batches) for place in range(size)})


def test_synchronous_workers_have_equal_numbers_of_steps() -> None:
    plan = TrainingPlan(workers=3, mode="sync-join")
    assert [plan.gradients_per_epoch(7, worker) for worker in range(3)] == [3, 3, 3] and plan.updates_per_epoch(7) == 3
    assert [plan.batch_index(7, worker, 2) for worker in range(3)] == [6, None, None]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 2}, "needs a mode for several workers"),
        ({"workers": 2, "mode": "sync-join", "staleness": 3}, "Remove --staleness"),
        ({"workers": 4, "mode": "async", "staleness": 2}, "up to 3 updates late"),
    ],
)
def test_an_impossible_plan_is_an_error(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        TrainingPlan(**wrong)


@pytest.mark.parametrize(
    ("mode", "batches", "sizes", "said"),
    [
        ("sync-join", 3, (8,), "An epoch has 3 batches, too few for 4 workers"),
        ("async", 1, (8,), "An epoch has 1 batch, too few for 4 workers"),
        ("sync-split", 9, (8, 3), "A batch has 3 images"),
    ],
)
def test_more_workers_than_work_are_an_error(mode: Any, batches: int, sizes: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        TrainingPlan(workers=4, mode=mode).require_enough_batches(batches=batches, images_per_batch=sizes)
    TrainingPlan(workers=3, mode=mode).require_enough_batches(batches=3, images_per_batch=(8, 3))
