from __future__ import annotations

import numpy as np
import pytest

from fieldray.imaging.reduction import LARGEST_REDUCTION, block_means, block_sums


@pytest.mark.parametrize(("kind", "low", "high"), [("u1", 0, 255), ("u2", 0, 4095), ("u2", 0, 65535), ("i2", -999, 99)])
@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_sums_are_exact_also_at_the_edges(kind: str, low: int, high: int, step: int) -> None:
    values = np.random.default_rng(1).integers(low, high, (53, 40), endpoint=True).astype(kind)
    sums = block_sums(values, step)
    for row, column in ((0, 0), (sums.shape[0] - 1, 0), (0, sums.shape[1] - 1), (sums.shape[0] - 1, sums.shape[1] - 1)):
        block = values[row * step : (row + 1) * step, column * step : (column + 1) * step]
        assert sums[row, column] == block.astype(int).sum()
    assert sums.sum() == values.astype(int).sum()


def test_the_largest_blocks_do_not_overflow() -> None:
    values = np.full((130, 129), 65535, np.uint16)
    assert np.unique(block_means(values, LARGEST_REDUCTION)).tolist() == [65535]
