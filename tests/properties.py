"""Strategies of the property tests. The profile (tests/conftest.py) draws equal examples every time."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fieldray.domain.image import Image, Window
from fieldray.domain.model import Calibration, InputSpec, OperatingPoint
from outcomes import operating_point

SHARES = st.floats(0.0, 1.0)
CALIBRATIONS = st.builds(
    Calibration, st.floats(0.0, 1e6, exclude_min=True), st.floats(-1e6, 1e6)
)  # slopes of calibrations in the measurable range and far beyond
WINDOWS = st.builds(
    Window,
    st.floats(-70_000, 140_000, width=32),
    st.floats(1.0, 140_000, width=32),
    st.sampled_from(["LINEAR", "LINEAR_EXACT", "SIGMOID"]),
)


@st.composite
def points(draw: st.DrawFn) -> OperatingPoint:
    """Draw an operating point. Its uncertain zone may be empty."""
    low, threshold, high = sorted(draw(st.lists(SHARES, min_size=3, max_size=3)))
    return operating_point(unsure_low=low, threshold=threshold, unsure_high=high)


@st.composite
def images(draw: st.DrawFn, *, longest: int = 48, **facts: Any) -> Image:
    """Draw a grey image of any small shape, with 8 or 16 bits."""
    kind = draw(st.sampled_from([np.uint8, np.uint16]))
    shape = draw(st.tuples(st.integers(1, longest), st.integers(1, longest)))
    return Image(pixels=draw(hnp.arrays(kind, shape)), **facts)


def specs(**chosen: st.SearchStrategy[Any]) -> st.SearchStrategy[InputSpec]:
    """Return a strategy for small network inputs."""
    return st.builds(
        InputSpec,
        height=st.integers(8, 40),
        width=st.integers(8, 40),
        **{
            "channels": st.sampled_from([1, 3]),
            "intensity": st.sampled_from(["as_displayed", "percentile"]),
            "fit": st.sampled_from(["stretch", "pad", "crop"]),
            "margin": st.floats(0.0, 0.2),
            **chosen,
        },
    )
