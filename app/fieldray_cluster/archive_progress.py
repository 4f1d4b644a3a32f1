"""How far an archive is: how many images have results, who screened them, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fieldray.domain.finding import Outcome
from fieldray.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgress:
    """How many images a node has screened, and how many it screens per second."""

    name: str
    done: int
    images_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveProgress:
    """How far an archive is; `resumed` images had results before this start."""

    done: int
    total: int
    resumed: int
    images_per_s: float
    remaining_s: float | None
    nodes: tuple[NodeProgress, ...] = ()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Reporting:
    """Whom an archive tells what.

    Attributes
    ----------
    save
        Receives the outcomes of every piece once, and whether they are from an earlier start.
    progress
        Receives how far it is, often.
    note
        Receives the name of a node and what there is to say of it.
    """

    save: Callable[[Sequence[Outcome], bool], None]
    progress: Callable[[ArchiveProgress], None] = lambda _progress: None
    note: Callable[[str, Reason], None] = lambda _name, _why: None


@dataclass(eq=False, slots=True)
class Tally:
    """What was done since `begin`, and what each node has done since it was first given work.

    Attributes
    ----------
    resumed
        Images that had results before.
    done
        Images screened since.
    """

    resumed: int = 0
    done: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _nodes_done: dict[str, int] = field(default_factory=dict)
    _nodes_began_s: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Screening begins now."""
        self._began_s = time.monotonic()

    def begin_node(self, node: str) -> None:
        """A node is given work; all but the first time are nothing new."""
        self._nodes_began_s.setdefault(node, time.monotonic())

    def add(self, node: str, count: int) -> None:
        """A node has screened so many images."""
        self._nodes_done[node] = self._nodes_done.get(node, 0) + count

    def progress(self, total: int) -> ArchiveProgress:
        """How far it is, of so many images."""
        now_s = time.monotonic()
        rate = self.done / max(now_s - self._began_s, 1e-3)
        done = self.resumed + self.done
        nodes = (
            NodeProgress(name=name, done=count, images_per_s=count / max(now_s - self._nodes_began_s[name], 1e-3))
            for name, count in sorted(self._nodes_done.items())
        )
        return ArchiveProgress(
            done=done,
            total=total,
            resumed=self.resumed,
            images_per_s=rate,
            remaining_s=(total - done) / rate if rate else None,
            nodes=tuple(nodes),
        )
