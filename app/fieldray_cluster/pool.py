"""The workers of a cluster that may be given work, and who is to blame where one of them ended.

Dask carries the messages and knows which workers live. Who gets what is decided by whoever has the work: an archive
gives one piece to one worker, a workflow lets Dask choose among those that fit, a training has a worker for each part.
All of them admit workers, set them aside, and lose them in the same way.

A worker that joins is asked what it is. At the start one that does not fit is a problem that ends the run, so that a
person knows; later it is set aside with a sentence, and the others go on. A node that cannot work at all is set aside
by its name, whatever of it joins again.

An image that ends every process must not stop an archive, and a computer whose processes end one after another (no
memory is left, say) must not take one image after another down with it. An image is blamed where processes of two
computers ended over it, or where its computer has screened another image since; a computer where its processes ended
many times in a row.

Every result that a later start may take over (tasks of workflows, trials of sweeps, archives) is known by a key that
has all that decides it, the program's version with the rest. Files count by what is in them, not by where they are: a
label that was corrected is another input.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from distributed import Client, Future, KilledWorker, wait

from fieldray.errors import EnvironmentProblem
from fieldray.paths import VERSION
from fieldray.reasons import reason
from fieldray_adapt.files import digest
from fieldray_cluster.connection import NotPlain, is_connected, node_of, workers_of

LOST: Final = (OSError, TimeoutError, CancelledError, KilledWorker)
"""What Dask raises where the other side is gone."""
CONNECTIONS: Final = 5
"""How often a lost scheduler is looked for before the work is given up."""
DEATHS_OF_ONE: Final = 3
"""How often a process has to end over one image before the image may be blamed."""
Why = TypeVar("Why")
"""Why a worker is given no work: a reason, or a sentence that came from it."""
_FAULTS_OF_NODE: Final = 6  # for each of its workers: all of them end together where the computer is switched off
_LOOK_EVERY_S: Final = 0.5
_WAIT_S: Final = 0.2


class ConnectionLost(EnvironmentProblem):
    """The cluster's scheduler is gone; what was under way there is not known."""

    def __init__(self) -> None:
        super().__init__(reason("workflow_connection_lost"))


class NodesUnfit(EnvironmentProblem):
    """No node is left that could be given work."""


@contextlib.contextmanager
def noticing_loss() -> Iterator[None]:
    """Around what is asked of a cluster. Raises ConnectionLost where it is gone, or sends what is not read."""
    try:
        yield
    except (*LOST, NotPlain) as error:
        raise ConnectionLost from error


def wait_for_any(client: Client, futures: Sequence[Future[Any]], timeout_s: float = _WAIT_S) -> None:
    """Wait until one is done, or that time is over. Raises ConnectionLost."""
    if not futures:
        time.sleep(min(max(timeout_s, 0.0), _WAIT_S))
        return
    with client.as_current(), contextlib.suppress(OSError, CancelledError):  # a future that was cancelled is done, too
        wait(futures, timeout=max(timeout_s, 0.0), return_when="FIRST_COMPLETED")
    if not is_connected(client):
        raise ConnectionLost


# ---- who may be given work


class WorkerRegistry(Generic[Why]):
    """The workers of one client, looked at again and again.

    Parameters
    ----------
    ask
        What these workers (names by address) say of themselves, by address.
    misfit
        Why one with this name and answer may be given no work, None if it may. Raises LookupError where it has just
        gone, and is to be asked again.
    note
        Receives a node that is set aside, and why.
    refused
        The problem that ends a start with a worker that does not fit: by its name, and why.
    none_left
        The problem where nobody is left: by the name of a worker, and why it was set aside.
    nodes_aside
        Nodes that are given nothing, by name; kept by who looks from one client to the next.
    """

    def __init__(
        self,
        client: Client,
        *,
        ask: Callable[[Mapping[str, str]], Mapping[str, object]],
        misfit: Callable[[str, object], Why | None],
        note: Callable[[str, Why], None],
        refused: Callable[[str, Why], Exception],
        none_left: Callable[[str, Why], Exception],
        nodes_aside: dict[str, Why] | None = None,
    ) -> None:
        self._client, self._ask, self._misfit, self._note = client, ask, misfit, note
        self._refused, self._none_left = refused, none_left
        self._nodes_aside: dict[str, Why] = {} if nodes_aside is None else nodes_aside
        self.workers: dict[str, Mapping[str, Any]] = {}
        """Those that may be given work, as their scheduler describes them, by address."""
        self._aside: dict[str, Why] = {}
        self._noted: set[tuple[str, str]] = set()
        self._looked_s = 0.0
        self.look(is_first=True)

    def node(self, address: str) -> str:
        """The name of a worker's node."""
        return node_of(str(self.workers[address]["name"]))

    def look(self, *, is_first: bool = False, at_once: bool = False) -> list[str]:
        """See who came, if the last look is some time ago; the addresses of those that are gone.

        Raises ConnectionLost, what `refused` and `none_left` make, EnvironmentProblem.
        """
        if not is_connected(self._client):
            raise ConnectionLost
        if not (is_first or at_once) and time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return []
        with noticing_loss():
            present = workers_of(self._client)
            self._looked_s = time.monotonic()
            known = {*self.workers, *self._aside}
            new = {address: str(one["name"]) for address, one in present.items() if address not in known}
            answers = self._ask(new) if new else {}
        for address, answer in answers.items():
            self._admit(address, present[address], answer, is_first=is_first)
        gone = [address for address in (*self.workers, *self._aside) if address not in present]
        for address in gone:
            self.workers.pop(address, None)
            self._aside.pop(address, None)
        if self._aside and not self.workers:
            address, why = next(iter(self._aside.items()))
            raise self._none_left(str(present[address]["name"]), why)
        return gone

    def set_aside(self, address: str, why: Why) -> None:
        """Give a worker nothing any more; what joins in its place is asked again."""
        if worker := self.workers.pop(address, None):
            self._aside[address] = why
            self._tell(node_of(str(worker["name"])), why)

    def set_node_aside(self, node: str, why: Why) -> None:
        """Give a node nothing any more, whatever of it joins again."""
        for address in [address for address in self.workers if self.node(address) == node]:
            self._aside[address] = why
            del self.workers[address]
        if self._nodes_aside.setdefault(node, why) is why:
            self._tell(node, why)

    def is_node_aside(self, node: str) -> bool:
        """Whether a node is given nothing any more."""
        return node in self._nodes_aside

    def _admit(self, address: str, worker: Mapping[str, Any], answer: object, *, is_first: bool) -> None:
        name = str(worker["name"])
        if why := self._nodes_aside.get(node_of(name)):
            self._aside[address] = why
            return
        try:
            why = self._misfit(name, answer)
        except LookupError:
            return
        if why and is_first:
            raise self._refused(name, why)
        self.workers[address] = worker
        if why:
            self.set_aside(address, why)

    def _tell(self, node: str, why: Why) -> None:
        if (node, repr(why)) not in self._noted:
            self._noted.add((node, repr(why)))
            self._note(node, why)


# ---- who is to blame


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A range of a list, `stop` not included, and how often a worker died while it had it.

    nodes   where that was, and how many images each of these nodes had screened when it was first so
    """

    start: int
    stop: int
    deaths: int = 0
    nodes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"an empty range: {self.start} to {self.stop}")

    @property
    def size(self) -> int:
        """How many images."""
        return self.stop - self.start

    def halves(self) -> tuple[Piece, Piece]:
        """Two ranges in its place, each with a death on its account: one of them is the culprit."""
        middle = (self.start + self.stop) // 2
        return Piece(self.start, middle, 1, self.nodes), Piece(middle, self.stop, 1, self.nodes)


class FaultCounts:
    """What each node has done, and how often in a row its processes ended or failed, by its name."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._in_a_row: dict[str, int] = {}
        self._most_workers: dict[str, int] = {}

    def works(self, node: str, *, workers: int) -> None:
        """So many processes of a node are there."""
        self._most_workers[node] = max(self._most_workers.get(node, 0), workers)

    def has_done(self, node: str, images: int) -> None:
        """A node has screened images."""
        self._done[node] = self._done.get(node, 0) + images
        self._in_a_row.pop(node, None)

    def failed(self, piece: Piece, node: str) -> Piece:
        """A process of a node ended over a piece: the piece with that on its account."""
        self._in_a_row[node] = self._in_a_row.get(node, 0) + 1
        account = dict(piece.nodes)
        account.setdefault(node, self._done.get(node, 0))
        return Piece(piece.start, piece.stop, piece.deaths + 1, tuple(sorted(account.items())))

    def times(self, node: str) -> int:
        """How often in a row its processes ended or failed."""
        return self._in_a_row.get(node, 0)

    def is_node_to_blame(self, node: str) -> bool:
        """Whether a node should get no more work."""
        return self.times(node) >= _FAULTS_OF_NODE * self._most_workers.get(node, 1)

    def is_image_to_blame(self, piece: Piece, nodes: Collection[str], *, is_last: bool) -> bool:
        """Whether a piece of one image is at fault.

        nodes     those that can work now
        is_last   whether nothing else is left, by which its node could show that it works
        """
        if piece.deaths < DEATHS_OF_ONE:
            return False
        has_worked_since = any(self._done.get(node, 0) > before for node, before in piece.nodes)
        # Where there is one node alone, nothing can be learnt from another: that it has worked at all has to do.
        is_alone = set(nodes) <= {node for node, _ in piece.nodes}
        has_worked = any(self._done.get(node, 0) for node, _ in piece.nodes)
        return len(piece.nodes) > 1 or has_worked_since or (is_alone and (has_worked or is_last))


# ---- what is known of earlier starts


def result_key(*parts: object, version: str = VERSION) -> str:
    """The digest of what decides a result (see `digest`), and of the program's version."""
    return digest(version, *parts)


def state_of(path: Path) -> tuple[str, ...]:
    """What a file or folder is like: the content of a file; names, sizes and times of change of a folder's files.

    Raises FileNotFoundError, OSError.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        facts = ((file, file.stat()) for file in found)
        return (
            "folder",
            *(f"{file.relative_to(path).as_posix()} {one.st_size} {one.st_mtime_ns}" for file, one in facts),
        )
    with path.open("rb") as stream:
        return ("file", hashlib.file_digest(stream, "sha256").hexdigest())
