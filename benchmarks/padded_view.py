"""Padding without a copy: where a plane lies within a buffer that has its border already (Buniatyan, fig. 3.2).

Whoever computes the plane writes it into the buffer's inside, and the next convolution reads the whole buffer. For
`padding` p and a plane of `columns` c the rows are c + 2p apart, and the plane begins at p rows and p columns. The
source gives it for p = 1: offset c + 3, rows c + 2 apart. Borders may differ from side to side here, as they do in
TensorFlow's padding of even sides.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedView:
    """A plane of `rows` x `columns` within a buffer; all in elements.

    Raises ValueError for a plane without elements or a border below 0.
    """

    rows: int
    columns: int
    top: int
    bottom: int
    left: int
    right: int

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1 or min(self.top, self.bottom, self.left, self.right) < 0:
            raise ValueError(f"no plane with a border: {self}")

    @property
    def row_stride(self) -> int:
        """From an element to the one below it."""
        return self.columns + self.left + self.right

    @property
    def offset(self) -> int:
        """From the buffer's first element to the plane's."""
        return self.top * self.row_stride + self.left

    @property
    def buffer_rows(self) -> int:
        """Rows of the buffer."""
        return self.rows + self.top + self.bottom

    @property
    def plane_stride(self) -> int:
        """From a plane to the next one: the size of a buffer."""
        return self.buffer_rows * self.row_stride
