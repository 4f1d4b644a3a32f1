"""Whether an image is to blame for a process that ended over it, or the computer that the process was on.

An image that ends every process must not stop an archive, and a computer whose processes end one after another (no
memory is left, say) must not take one image after another down with it. An image is blamed where processes of two
computers ended over it, or where its computer has screened another image since; a computer where its processes ended
many times in a row.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fieldray_cluster.archive_folder import Piece

DEATHS_OF_ONE: Final = 3
"""How often a process has to end over one image before the image may be blamed."""
_FAULTS_OF_NODE: Final = 6  # for each of its workers: all of them end together where the computer is switched off


class Suspects:
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
