"""The stick is measured through the same doors as the CPU; its first image is really its first."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.double import DoubleStick
from faults.stick_models import stick_model
from fieldray.bench.films import Film
from fieldray.bench.subject import Subject, time_network, usable
from fieldray.domain.study import ImageRef
from fieldray.inference.edgetpu import edgetpu_kind
from tiny_models import tiny_inputs


def subject(stick: DoubleStick) -> Subject:
    kind = edgetpu_kind(libraries=(str(stick.library),), find=stick.find, budget_s=None)
    return Subject(name="stick", model=stick_model(), kind=kind)


def films() -> tuple[Film, ...]:
    return tuple(Film(ImageRef(path=Path("film.png")), image) for image in tiny_inputs())


def test_the_stick_is_measured_from_its_first_image(stick: DoubleStick) -> None:
    stick.plug()
    # the double fails at its fourth invocation: three images only run if nothing was run before them
    stick.order(invoke="fail", after=3)
    on_stick = subject(stick)
    assert len(time_network(on_stick, films(), count=3)) == 3
    assert any("Edge TPU runtime" in detail for detail in on_stick.details)


@pytest.mark.parametrize("is_plugged", [True, False])
def test_it_is_measured_only_where_it_is(stick: DoubleStick, is_plugged: bool) -> None:
    if is_plugged:
        stick.plug()
    subjects, problems = usable([subject(stick)])
    assert bool(subjects) is is_plugged
    assert [why.code for why in problems.values()] == ([] if is_plugged else ["edgetpu_not_here"])
