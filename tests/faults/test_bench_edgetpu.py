"""The Edge TPU is measured through the same doors as the CPU; its first image is really its first."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.double import DoubleEdgeTpu
from faults.edgetpu_models import edgetpu_model
from fieldray.bench.benchmark_case import BenchmarkCase, LoadedImage, time_network, usable
from fieldray.domain.study import ImageRef
from fieldray.inference.coral.backend import edgetpu_kind
from tiny_models import tiny_inputs


def case(edgetpu: DoubleEdgeTpu) -> BenchmarkCase:
    kind = edgetpu_kind(libraries=(str(edgetpu.library),), find=edgetpu.find)
    return BenchmarkCase(name="edgetpu", model=edgetpu_model(), kind=kind)


def images() -> tuple[LoadedImage, ...]:
    return tuple(LoadedImage(ImageRef(path=Path("image.png")), image) for image in tiny_inputs())


def test_the_edgetpu_is_measured_from_its_first_image(edgetpu: DoubleEdgeTpu) -> None:
    edgetpu.plug()
    # the double fails at its fourth invocation: three images only run if nothing was run before them
    edgetpu.order(invoke="fail", after=3)
    on_edgetpu = case(edgetpu)
    assert len(time_network(on_edgetpu, images(), count=3)) == 3
    assert any("Edge TPU runtime" in detail for detail in on_edgetpu.details)


@pytest.mark.parametrize("is_plugged", [True, False])
def test_it_is_measured_only_where_it_is(edgetpu: DoubleEdgeTpu, is_plugged: bool) -> None:
    if is_plugged:
        edgetpu.plug()
    cases, problems = usable([case(edgetpu)])
    assert bool(cases) is is_plugged
    assert [why.code for why in problems.values()] == ([] if is_plugged else ["edgetpu_not_here"])
