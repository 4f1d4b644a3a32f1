"""Synchronous training without a server: the workers add up their gradients by `torch.distributed` (gloo).

Each worker holds all weights and makes the same update by the same mean, so they stay alike. Where one dies, the others
cannot finish the sum: the epoch begins again from the state before it. PyTorch is needed on every computer; which
engine takes the gradients does not matter.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any, Final

import numpy as np
from distributed import Client, Future, KilledWorker, get_worker

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.lungs.train import use_threads
from fieldray_cluster.node import cores_of_worker
from fieldray_cluster.training.lesson import Lesson, Pupil
from fieldray_cluster.training.plan import Plan
from fieldray_cluster.training.session import Epoch, members, places_of, require_connected
from fieldray_cluster.training.share import Layout, Share, ShareState

_PATIENCE_S: Final = 60
_TICK_S: Final = 0.2
_LIVES: Final = 3
_PUPILS: Final[dict[str, Pupil]] = {}
"""Of this process, by the lesson with the SHA-256 of its arrays: a network is made once, not for every epoch."""


def epochs(
    client: Client,
    *,
    plan: Plan,
    lesson: Lesson,
    layout: Layout,
    state: ShareState,
    first_epoch: int = 0,
    say: Callable[[str], None] = lambda _line: None,
) -> Iterator[Epoch]:
    """Train from a state on, an epoch after another; see `session.epochs`."""
    plan.require_room(batches=lesson.batches, sizes=lesson.sizes)
    lost = 0
    for number in range(first_epoch + 1, lesson.epochs + 1):
        while (found := _epoch(client, plan, lesson, state, layout=layout, number=number)) is None:
            lost += 1
            if lost > _LIVES:
                raise EnvironmentProblem(reason("training_workers_lost", times=lost))
            say(reason("training_epoch_again", epoch=number).text)
        state = found.state
        yield found


def _epoch(
    client: Client, plan: Plan, lesson: Lesson, state: ShareState, *, layout: Layout, number: int
) -> Epoch | None:
    """One epoch; None where a worker was lost. Raises UsageProblem, EnvironmentProblem."""
    places = places_of(client, plan)
    try:
        meeting = client.submit(free_address, workers=[places[0]], pure=False).result(timeout=_PATIENCE_S)
        if meeting is None:
            raise UsageProblem(reason("training_needs_torch"))
        tasks = [
            client.submit(
                reduce_epoch,
                lesson,
                plan,
                state,
                layout=layout,
                number=number,
                rank=rank,
                meeting=meeting,
                workers=[place],
                pure=False,
            )
            for rank, place in enumerate(places)
        ]
        results = _results(client, dict(zip(places, tasks, strict=True)))
    except KilledWorker:
        return None
    except (CancelledError, TimeoutError) as error:
        raise EnvironmentProblem(reason("training_cluster_lost")) from error
    if results is None:
        return None
    values, steps, notes = results[0]
    if values is None:
        raise UsageProblem(_diverged(number, steps))
    state = ShareState.split(np.frombuffer(values, np.float32), steps=steps)
    return Epoch(number=number, state=state, notes=json.loads(notes), staleness=Counter(), ended=time.time())


def _results(client: Client, tasks: Mapping[str, Future[Any]]) -> list[Any] | None:
    """What the tasks of an epoch came to, by their places; None where one was lost. Raises EnvironmentProblem.

    With one of them the sum of the others is lost too: they are not waited for.
    """
    done: dict[str, Any] = {}
    try:
        while True:
            require_connected(client)
            ended = [place for place, task in tasks.items() if place not in done and task.done()]
            done |= {place: tasks[place].result(timeout=_PATIENCE_S) for place in ended}
            if any(result is None for result in done.values()):
                return None
            if len(done) == len(tasks):
                return [done[place] for place in tasks]
            there = members(client)
            if any(place not in there for place in tasks.keys() - done.keys()):
                return None
            time.sleep(_TICK_S)
    finally:
        client.cancel(list(tasks.values()))


def epochs_alone(
    *, plan: Plan, lesson: Lesson, layout: Layout, state: ShareState, first_epoch: int = 0
) -> Iterator[Epoch]:
    """The same lesson by this process alone: what the others are compared with. Raises UsageProblem."""
    for number in range(first_epoch + 1, lesson.epochs + 1):
        found, notes = _reduced(lesson, plan, state, layout=layout, number=number, rank=0, summed=lambda vector: vector)
        if found is None:
            raise UsageProblem(_diverged(number, notes))
        state = found
        yield Epoch(number=number, state=state, notes=notes, staleness=Counter(), ended=time.time())
    _PUPILS.clear()


def free_address() -> tuple[str, int] | None:
    """A task: where the workers can meet, None without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    host = get_worker().address.partition("://")[2].rpartition(":")[0].strip("[]")
    with socket.create_server((host, 0)) as server:
        return host, int(server.getsockname()[1])


def reduce_epoch(
    lesson: Lesson,
    plan: Plan,
    state: ShareState,
    *,
    layout: Layout,
    number: int,
    rank: int,
    meeting: tuple[str, int],
) -> Any:
    """A task: one worker's part of an epoch; None where another worker was lost.

    Else the state as bytes, its steps, and the notes as JSON; None and the step where it diverged (see `_reduced`).
    """
    import torch
    from torch import distributed

    use_threads(cores_of_worker())
    try:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{meeting[0]}:{meeting[1]}",
            rank=rank,
            world_size=plan.workers,
            timeout=datetime.timedelta(seconds=_PATIENCE_S),
        )

        def summed(vector: Any) -> Any:
            tensor = torch.from_numpy(vector)
            distributed.all_reduce(tensor)
            return tensor.numpy()

        found, notes = _reduced(lesson, plan, state, layout=layout, number=number, rank=rank, summed=summed)
        if found is None:
            return None, notes, ""
        return found.joined().tobytes(), found.steps, json.dumps(notes, default=float)
    except RuntimeError:
        return None
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _reduced(
    lesson: Lesson,
    plan: Plan,
    state: ShareState,
    *,
    layout: Layout,
    number: int,
    rank: int,
    summed: Callable[[Any], Any],
) -> Any:
    """State and notes after an epoch; None and the step whose loss was no number, 0 where a weight was none."""
    pupil = _pupil(lesson)
    share = Share(state, layout=layout, runs=((0, layout.size),), rule=lesson.rule)
    notes, updates = [], plan.updates(lesson.batches)
    for step in range(updates):
        pupil.set_weights(layout.weights(share.state.values))
        sent = np.zeros(layout.size + 3, np.float32)
        if (batch := plan.batch(lesson.batches, rank, step)) is not None:
            taken = pupil.take(number - 1, batch, plan, rank)
            sent[:-3] = layout.vector(taken.gradient) * np.float32(taken.weight)
            sent[-3:] = taken.weight, taken.loss, 1
        whole = summed(sent)
        weight, loss, count = (float(value) for value in whole[-3:])
        if not math.isfinite(loss):
            return None, step + 1
        mean = whole[:-3] / np.float32(weight or 1.0)  # where nothing is known of a batch, nothing is learnt of it
        share.update(mean, rate=lesson.rate(number - 1, step / updates))
        note = {"version": step + 1, "worker": 0, "at": time.time(), "epoch": number, "loss": loss / count}
        if plan.notes_every and rank == 0 and batch is not None and batch % plan.notes_every == 0:
            note |= pupil.look(number - 1, batch)
        notes.append(note)
    if not share.state.is_finite:
        return None, 0
    return share.state, notes


def _diverged(epoch: int, step: int) -> Reason:
    if step:
        return reason("training_diverged", epoch=epoch, step=step)
    return reason("training_diverged_weights", epoch=epoch)


def _pupil(lesson: Lesson) -> Pupil:
    key = repr(lesson)
    if key not in _PUPILS:
        _PUPILS.clear()
        _PUPILS[key] = lesson.open()
    return _PUPILS[key]
