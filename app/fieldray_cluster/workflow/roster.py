"""Who may be given a run's tasks: workers that were asked, and fit, and whose node has not failed since.

A worker that joins later is asked as those of the start are. At the start one that does not fit is a problem that ends
the run, so that a person knows; later its node is set aside with a sentence, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from distributed import Client

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_cluster.connection import NotPlain, node_of, receives, said_by, workers_of
from fieldray_cluster.node import all_versions
from fieldray_cluster.workflow.perform import Node, look
from fieldray_cluster.workflow.recipe import Effort

_CLOCKS_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5

receives(Node)

Workers = Mapping[str, Mapping[str, Any]]


class ConnectionLost(EnvironmentProblem):
    """The cluster's scheduler is gone; what was under way there is not known."""

    def __init__(self) -> None:
        super().__init__(reason("workflow_connection_lost"))


class NodesUnfit(EnvironmentProblem):
    """No node is left that could be given work."""


class Roster:
    """The workers of one client, looked at again and again.

    Parameters
    ----------
    run
        The run's folder, which every worker has to see.
    say
        Gets a line for a clock that is wrong, and for a node that is set aside.
    ask
        What workers are asked.

    Raises UsageProblem with the node's name (workflow_node_version, workflow_node_folder), ConnectionLost.
    """

    def __init__(
        self, client: Client, *, run: Path, say: Callable[[str], None], ask: Callable[[Path], Node] = look
    ) -> None:
        self._client, self._run, self._say, self._ask = client, run, say, ask
        self._fit: dict[str, Mapping[str, Any]] = {}
        self._nodes_aside: dict[str, str] = {}
        self._looked_s = 0.0
        self._look(is_first=True)

    @property
    def workers(self) -> Workers:
        """Those that may be given work, as their scheduler describes them, by address."""
        return self._fit

    def look(self) -> None:
        """See who came and who went, if the last look is some time ago. Raises NodesUnfit, ConnectionLost."""
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._look(is_first=False)

    def set_aside(self, worker: str, problem: str) -> None:
        """Give a worker's node nothing any more, `problem` says why.

        Raises NodesUnfit where none is left, ConnectionLost.
        """
        self._put_aside(worker, problem)
        self._look(is_first=False)

    def _put_aside(self, worker: str, problem: str) -> None:
        node = node_of(worker)
        if node not in self._nodes_aside:
            self._nodes_aside[node] = problem
            self._say(reason("workflow_node_aside", node=node, detail=problem.rstrip(".")).text)
        self._fit = {address: one for address, one in self._fit.items() if node_of(str(one["name"])) != node}

    def _look(self, *, is_first: bool) -> None:
        with _losses():
            present = workers_of(self._client)
            new = {
                address: one
                for address, one in present.items()
                if address not in self._fit and node_of(str(one["name"])) not in self._nodes_aside
            }
            began = time.time()
            # One that is an error has just gone, and is asked again when it is back.
            answers = said_by(new, self._client, self._ask, self._run) if new else {}
            late = time.time() - began
        self._looked_s = time.monotonic()
        self._fit = {address: one for address, one in present.items() if address in self._fit}
        for address, node in answers.items():
            if isinstance(node, Node):
                self._admit(address, new[address], node, began=began, late=late, is_first=is_first)
        if present and self._nodes_aside and not self._fit:
            node, problem = next(iter(self._nodes_aside.items()))
            raise NodesUnfit(reason("workflow_no_node", node=node, detail=problem.rstrip(".")))

    def _admit(
        self, address: str, worker: Mapping[str, Any], node: Node, *, began: float, late: float, is_first: bool
    ) -> None:
        name = str(worker["name"])
        if why := _misfit(node, name, self._run):
            if is_first:
                raise UsageProblem(why)
            self._put_aside(name, why.text)
            return
        apart_s = max(began - node.clock, node.clock - began - late, 0.0)
        if apart_s > _CLOCKS_S:
            self._say(reason("workflow_node_clock", node=name, seconds=round(apart_s)).text)
        self._fit[address] = worker


def require_resources(client: Client, efforts: Mapping[str, Effort]) -> None:
    """Require for each experiment a worker that has what it asks for. Raises UsageProblem (workflow_no_resource)."""
    workers = workers_of(client).values()
    for name, effort in efforts.items():
        for resource, amount in effort.resources.items():
            if not any(worker["resources"].get(resource, 0.0) >= amount for worker in workers):
                raise UsageProblem(
                    reason("workflow_no_resource", experiment=name, resource=resource, amount=f"{amount:g}")
                )


def _misfit(node: Node, name: str, run: Path) -> Reason | None:
    if node.version != all_versions():
        return reason("workflow_node_version", node=name, theirs=node.version, ours=all_versions())
    return None if node.sees_folder else reason("workflow_node_folder", node=name, path=run)


@contextmanager
def _losses() -> Iterator[None]:
    """What Dask raises when the scheduler is gone."""
    try:
        yield
    except (CancelledError, TimeoutError, OSError, NotPlain) as error:
        raise ConnectionLost from error
