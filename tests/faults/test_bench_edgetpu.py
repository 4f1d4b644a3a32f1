"""The Edge TPU is measured through the same doors as the CPU; its first image is really its first."""

from __future__ import annotations

from pathlib import Path

from faults.double import DoubleEdgeTpu
from faults.edgetpu_models import edgetpu_model
from fieldray.bench.benchmark_case import BenchmarkCase, LoadedImage
from fieldray.bench.device import NETWORK, time_case
from fieldray.domain.image import ImageRef
from fieldray.inference.coral import edgetpu_kind
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
    assert len(time_case(on_edgetpu, images(), NETWORK, count=3)) == 3
    assert any("Edge TPU runtime" in detail for detail in on_edgetpu.details)
