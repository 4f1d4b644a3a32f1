"""Divided training by a small cluster: equal weights as by one process, killed workers and servers, and resuming."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.training.classifier import TrainingOptions
from fieldray_adapt.training.loop import EpochFigures
from fieldray_cluster.certificates import make_certificates
from fieldray_cluster.training import session, trainer
from fieldray_cluster.training.session import TrainedEpoch, open_plan_client, train_epochs_on_cluster
from fieldray_cluster.training.shard import Shard, ShardState, WeightLayout
from fieldray_cluster.training.tasks import DividedClassifierTraining, TrainingPlan
from fieldray_cluster.training.trainer import DividedTrainer
from tiny_training import AUGMENTATION, SETTINGS, network, samples, schedule, task_in, weights
from waiting import wait_for

pytestmark = [pytest.mark.adapt, pytest.mark.cluster]
EPOCHS = 2


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDRAY_HOME", str(tmp_path_factory.mktemp("home")))
        with open_plan_client(TrainingPlan(workers=2, mode="async", server="distributed")) as made:
            yield made


@pytest.fixture
def own_client() -> Iterator[Client]:
    """A separate cluster for a test that kills processes; all processes have started."""
    plan = TrainingPlan(workers=2, mode="async")
    with open_plan_client(plan) as made:
        wait_for(lambda: len(_processes(made)) == plan.workers + plan.server_count)
        yield made


def _train(
    client: Client,
    plan: TrainingPlan,
    folder: Path,
    *,
    epochs: int = EPOCHS,
    progress: Callable[[Any], None] = lambda _row: None,
    say: Callable[[str], None] = lambda _line: None,
) -> tuple[Weights, list[EpochFigures]]:
    trainer = DividedTrainer(plan, open_cluster=lambda: contextlib.nullcontext(client), say=say)
    return trainer.train_classifier(
        network(),
        weights(),
        training=samples(),
        validation=samples(8),
        options=TrainingOptions(
            schedule=schedule(epochs=epochs),
            augmentation=AUGMENTATION,
            engine_settings=SETTINGS,
            engine_name="tensorflow",
        ),
        folder=folder,
        progress=progress,
    )


def _epochs(client: Client, plan: TrainingPlan, task: DividedClassifierTraining) -> Iterator[TrainedEpoch]:
    layout = WeightLayout.from_weights(weights())
    return train_epochs_on_cluster(
        client, plan=plan, task=task, layout=layout, state=ShardState.initial(layout.to_vector(weights()))
    )


def _train_in_one_process(folder: Path, *, joined: int = 1) -> ShardState:
    """Train the same task in one process, with the gradients of `joined` batches in each update."""
    task = task_in(folder)
    layout, replica = WeightLayout.from_weights(weights()), task.open_replica()
    share = Shard(
        ShardState.initial(layout.to_vector(weights())),
        layout=layout,
        ranges=((0, layout.element_count),),
        rule=task.update_rule,
    )
    updates = task.batch_count // joined
    for epoch in range(EPOCHS):
        for update in range(updates):
            replica.set_weights(layout.to_weights(share.state.weights))
            taken = [replica.gradient(epoch, update * joined + place, TrainingPlan(), 0) for place in range(joined)]
            whole = sum(one.averaging_weight for one in taken)
            mean = sum(layout.to_vector(one.gradient) * np.float32(one.averaging_weight / whole) for one in taken)
            share.update(mean, learning_rate=task.learning_rate(epoch, update / updates))
    return share.state


@pytest.mark.parametrize("server", ["central", "distributed"])
@pytest.mark.parametrize(("mode", "joined"), [("sync-split", 1), ("sync-join", 2)])
def test_synchronous_workers_get_the_weights_of_one_process(
    client: Client, tmp_path: Path, mode: Any, joined: int, server: Any
) -> None:
    found, history = _train(client, TrainingPlan(workers=2, mode=mode, server=server), tmp_path / "divided")
    expected = _train_in_one_process(tmp_path / "alone", joined=joined).averaged_weights
    np.testing.assert_allclose(WeightLayout.from_weights(weights()).to_vector(found), expected, atol=1e-5)
    assert [row.epoch for row in history] == [1, 2] and history[0].staleness_most is None


@pytest.mark.parametrize("takes_turns", [False, True])
def test_undivided_tensors_and_turns_keep_the_result(client: Client, tmp_path: Path, takes_turns: bool) -> None:
    plan = TrainingPlan(
        workers=2, mode="sync-split", server="distributed", splits_evenly=False, takes_turns=takes_turns
    )
    found, _ = _train(client, plan, tmp_path / "divided")
    np.testing.assert_allclose(
        WeightLayout.from_weights(weights()).to_vector(found),
        _train_in_one_process(tmp_path / "alone").averaged_weights,
        atol=1e-5,
    )


@pytest.mark.parametrize("server", ["central", "distributed"])
def test_asynchronous_workers_keep_the_bound_of_staleness(client: Client, tmp_path: Path, server: Any) -> None:
    plan = TrainingPlan(workers=2, mode="async", server=server, staleness=1, takes_turns=server == "central")
    _, history = _train(client, plan, tmp_path)
    assert all(row.staleness_most <= 1 for row in history)
    seen = list(_epochs(client, plan, task_in(tmp_path)))
    shards = 1 if server == "central" else 2
    assert [epoch.gradient_counts_by_staleness.total() for epoch in seen] == [
        6 * shards
    ] * 2  # one count for each gradient at each server
    assert max(late for epoch in seen for late in epoch.gradient_counts_by_staleness) <= 1
    assert all(np.isfinite(epoch.loss) and epoch.began_s <= epoch.ended_s for epoch in seen)


def test_a_training_resumes_after_its_last_epoch(client: Client, tmp_path: Path) -> None:
    plan = TrainingPlan(workers=2, mode="sync-split")

    def stop(_row: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(client, plan, tmp_path / "divided", progress=stop)
    seen: list[int] = []
    found, history = _train(client, plan, tmp_path / "divided", progress=lambda row: seen.append(row.epoch))
    assert seen == [2] and len(history) == 2
    np.testing.assert_allclose(
        WeightLayout.from_weights(weights()).to_vector(found),
        _train_in_one_process(tmp_path / "alone").averaged_weights,
        atol=1e-5,
    )


def _processes(client: Client) -> list[int]:
    """Return the worker processes in the order of the plan."""
    by_name = sorted(
        (str(one["name"]), address) for address, one in client.scheduler_info(n_workers=-1)["workers"].items()
    )
    found: dict[str, int] = client.run(os.getpid)
    return [found[address] for _, address in by_name]


def test_a_killed_worker_is_replaced_and_nothing_is_lost(own_client: Client, tmp_path: Path) -> None:
    said: list[str] = []

    def kill(row: Any) -> None:
        if row.epoch == 1:
            psutil.Process(_processes(own_client)[1]).send_signal(signal.SIGKILL)

    many = 12  # many epochs, so that work is left after the kill
    plan = TrainingPlan(workers=2, mode="sync-split")
    found, history = _train(own_client, plan, tmp_path, epochs=many, progress=kill, say=said.append)
    assert len(history) == many and len(said) == 1 and "Worker 2 was lost" in said[0]
    assert all(np.isfinite(array).all() for array in found.values())


def test_a_worker_killed_in_the_first_epoch_is_replaced_where_connections_are_encrypted(tmp_path: Path) -> None:
    """An encrypted connection's socket may be readable without a message, and then a read must not wait for ever."""
    make_certificates(tmp_path / "own")
    plan = TrainingPlan(workers=2, mode="sync-split", certificates=tmp_path / "own")
    said, killed = list[str](), threading.Event()
    with open_plan_client(plan) as client:
        wait_for(lambda: len(_processes(client)) == plan.workers + plan.server_count)
        victim = psutil.Process(_processes(client)[1])

        def kill() -> None:
            wait_for(
                lambda: any(one.laddr.ip == "127.0.0.1" and one.raddr for one in _weight_connections(victim, client))
            )
            victim.send_signal(signal.SIGKILL)
            killed.set()

        killer = threading.Thread(target=kill)
        killer.start()
        _, history = _train(client, plan, tmp_path / "run", epochs=3, say=said.append)
        killer.join()
    assert killed.is_set() and len(history) == 3
    assert said and all("Worker 2 was lost" in line for line in said)
    assert not (tmp_path / "run" / "arrays.npz").exists()


def _weight_connections(process: psutil.Process, client: Client) -> list[Any]:
    """Return a process's TCP connections except those of Dask: these transfer weights."""
    known = {int(client.scheduler.address.rpartition(":")[2])}
    known |= {int(address.rpartition(":")[2]) for address in client.scheduler_info(n_workers=-1)["workers"]}
    found = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return [one for one in found if not known & {one.laddr.port, one.raddr.port}]


def test_a_node_that_does_not_see_the_images_is_named(client: Client, tmp_path: Path) -> None:
    task = dataclasses.replace(task_in(tmp_path), arrays_path=tmp_path / "elsewhere" / "arrays.npz")
    with pytest.raises(UsageProblem, match=r"local/[12] cannot read"):
        list(_epochs(client, TrainingPlan(workers=2, mode="sync-split"), task))


def test_a_crashed_server_is_reported_and_logged_and_the_training_resumes(
    own_client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def kill(row: Any) -> None:
        if row.epoch == 1:
            psutil.Process(_processes(own_client)[2]).send_signal(signal.SIGKILL)

    plan = TrainingPlan(workers=2, mode="async")
    with pytest.raises(EnvironmentProblem, match="process that stores the network's weights has ended"):
        _train(own_client, plan, tmp_path, epochs=12, progress=kill)
    assert "parameter server" in caplog.text
    _, history = _train(own_client, plan, tmp_path, epochs=12)
    assert len(history) == 12
    assert "has ended: -9" in caplog.text


ALONE = TrainingPlan(mode="async")


def test_a_host_that_is_busy_with_other_work_is_named(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_PATIENCE_S", 0.3)
    others = [
        client.submit(time.sleep, 1.5, workers=[place], pure=False)
        for place in client.scheduler_info(n_workers=-1)["workers"]
    ]
    wait_for(lambda: all(client.processing().values()))
    with pytest.raises(EnvironmentProblem, match=r"on 127\.0\.0\.1 that should store the network's weights is busy"):
        list(_epochs(client, ALONE, task_in(tmp_path)))
    client.gather(others)


def test_unreachable_servers_are_named(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    monkeypatch.setattr(session, "start_parameter_server", lambda *_, **__: ("127.0.0.1", port))
    with pytest.raises(EnvironmentProblem, match=r"store the network's weights cannot be reached \(127\.0\.0\.1\)"):
        list(_epochs(client, ALONE, task_in(tmp_path)))


def test_a_process_that_is_lost_while_transfers_are_measured_is_named(
    own_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = trainer.time_round_trips

    def kill_first(*arguments: Any, **more: Any) -> list[tuple[float, float]]:
        psutil.Process(_processes(own_client)[0]).send_signal(signal.SIGKILL)
        return measured(*arguments, **more)

    monkeypatch.setattr(trainer, "open_plan_client", lambda _plan: contextlib.nullcontext(own_client))
    monkeypatch.setattr(trainer, "time_round_trips", kill_first)
    with pytest.raises(EnvironmentProblem, match=r"process on 127\.0\.0\.1 that measures the network speed"):
        trainer._transfers_s(1000, TrainingPlan(), 3)
