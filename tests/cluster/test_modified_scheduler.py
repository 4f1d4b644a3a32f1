"""A scheduler whose program somebody changed: what it tells is not believed, and ends no driver without a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archives import cluster_of_nodes
from cluster.test_archive import Begun, begun, request_made
from fieldray.errors import EnvironmentProblem
from fieldray_cluster.connection import describe, open_client

__all__ = ["begun", "request_made"]
SOMEWHERE = "tcp://127.0.0.1:1"


def lies() -> dict[str, Callable[..., Any]]:
    """What is done to a scheduler, by what it is called. Only functions inside a function travel to it."""

    def answering(name: str, answer: Any) -> Callable[..., None]:
        def change(dask_scheduler: Any) -> None:
            async def lie(*_: object, **__: object) -> Any:
                return answer

            dask_scheduler.handlers[name] = lie

        return change

    def exchanged(dask_scheduler: Any) -> None:
        """The answer about the first piece is given for every other one."""
        honest, first = dask_scheduler.handlers["gather"], {}

        async def lie(keys: Any = (), **options: Any) -> Any:
            found = await honest(keys=keys, **options)
            found["data"] = {key: first.setdefault("data", found["data"][key]) for key in keys}
            return found

        dask_scheduler.handlers["gather"] = lie

    def sending(message: dict[str, Any]) -> Callable[..., None]:
        """News besides those that are true."""

        def change(dask_scheduler: Any) -> None:
            honest = dask_scheduler.report

            def lie(message: Any, **options: Any) -> None:
                for comm in dask_scheduler.client_comms.values():
                    comm.send({**message, "key": message.get("key", "x")})
                honest(message, **options)

            dask_scheduler.report = lie

        return change

    return {
        "workers are a list": answering("identity", {"workers": [1, 2]}),
        "a worker is a number": answering("identity", {"workers": {SOMEWHERE: 7}}),
        "a worker has no name": answering("identity", {"workers": {SOMEWHERE: {}}}),
        "sizes are none": answering("nbytes", None),
        "a size is text": answering("nbytes", {"x": "many"}),
        "answers are none": answering("gather", None),
        "an answer of something else": answering("gather", {"status": "OK", "data": {"x": b"PAR1"}}),
        "answers are exchanged": exchanged,
        "reports are text": answering("broadcast", "all"),
        "a report of somebody else": answering("broadcast", {SOMEWHERE: {"status": "OK", "result": b"x"}}),
        "unknown news": sending({"op": "of-tomorrow"}),
        "news too early": sending({"op": "key-in-memory", "workers": [7], "type": b"x"}),
        "news of a loss": sending({"op": "lost-data"}),
        "news of a failure": sending({"op": "task-erred", "exception": b"x", "traceback": b"y"}),
    }


LIES = lies()


@pytest.mark.cluster
@pytest.mark.parametrize("lie", LIES)
def test_what_it_tells_ends_no_driver_without_a_sentence(lie: str, begun: Begun) -> None:
    """Either all images have results in the end, or a person is told that something is wrong with the cluster."""
    begun.write_list(12)
    with cluster_of_nodes(begun.place, "ward/1") as (_, _, connection):
        with open_client(connection) as client:
            client.wait_for_workers(1)
            client.run_on_scheduler(LIES[lie])
        try:
            begun.run(connection=connection)
        except EnvironmentProblem as problem:
            assert problem.reason.code in ("cluster_node_problem", "cluster_no_answer", "cluster_lost")
            assert len(begun.run()) == 12  # nothing that it told is kept


def test_a_scheduler_that_lists_nonsense_is_named(tmp_path: Path) -> None:
    with cluster_of_nodes(tmp_path, "ward/1") as (_, _, connection), open_client(connection) as client:
        client.wait_for_workers(1)
        client.run_on_scheduler(LIES["a worker has no name"])
        with pytest.raises(EnvironmentProblem, match="answered something else") as problem:
            describe(client)
        assert problem.value.reason.code == "cluster_node_problem"
