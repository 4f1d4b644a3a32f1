"""The order of device measurements: fresh processes, images one after another, repetitions interleaved."""

from __future__ import annotations

from typing import Any, cast

import pytest
from bench_cases import IMAGES, ReadersOfNames, Record

from fieldray.bench.benchmark_case import find_usable_cases, read_images, time_images
from fieldray.bench.device import (
    FILE_TO_SCORES_SCOPE,
    NETWORK_ONLY_SCOPE,
    MeasurementOptions,
    MeasurementSize,
    measure_cases,
    time_case,
)
from fieldray.errors import UsageProblem
from fieldray.reasons import reason


def test_the_first_time_is_of_the_first_image_of_a_fresh_backend() -> None:
    record = Record("one")
    assert time_case(record.case(), IMAGES, NETWORK_ONLY_SCOPE, image_count=4) == [5, 2, 1, 1]
    assert record.events == ["one: start", "one: 10", "one: 20", "one: 30", "one: 10", "one: close"]


def test_repetitions_are_interleaved_and_each_is_fresh() -> None:
    events: list[str] = []
    first, second = Record("a", events=events), Record("b", events=events)
    cases = {first.case(): IMAGES, second.case(): IMAGES}
    notes: list[str] = []
    options = MeasurementOptions(open_workers=cast("Any", ReadersOfNames))
    measured = measure_cases(
        cases, MeasurementSize(repetition_count=2, image_count=3), notify=notes.append, options=options
    )
    starts = [event for event in events if "start" in event]
    assert starts == [f"{name}: start" for name in "aabbbbaa"]  # not always b after a
    assert [(one.case.name, one.scope) for one in measured] == [
        ("a", NETWORK_ONLY_SCOPE),
        ("a", FILE_TO_SCORES_SCOPE),
        ("b", NETWORK_ONLY_SCOPE),
        ("b", FILE_TO_SCORES_SCOPE),
    ]
    assert measured[0].times_ms_by_repetition == [[5, 2, 1], [5, 2, 1]]
    assert notes == ["repetition 1 of 2", "repetition 2 of 2"]


def test_from_file_each_image_is_read_before_it_is_run() -> None:
    events: list[str] = []
    record = Record("a", events=events)
    options = MeasurementOptions(open_workers=cast("Any", lambda: ReadersOfNames(events)))
    (_, from_file) = measure_cases(
        {record.case(): IMAGES}, MeasurementSize(repetition_count=1, image_count=3), notify=str, options=options
    )
    assert events[events.index("read 10") - 1 :] == [
        *("a: start", "read 10", "a: 10", "read 20", "a: 20", "read 30", "a: 30"),
        *("a: close", "readers closed"),
    ]
    assert from_file.summary.images == 1


def test_a_fast_network_runs_longer_than_its_count() -> None:
    with Record("fast").case().open_backend() as backend:
        assert len(time_images(backend, IMAGES, image_count=3, min_duration_s=0.05)) > 3


def test_a_backend_that_cannot_be_opened_is_reported_with_the_reason() -> None:
    well = Record("well").case()
    ill = Record("ill", unavailable_reason=reason("no_model_file", device="Edge TPU")).case("edgetpu")
    cases, problems = find_usable_cases([well, ill])
    assert cases == (well,)
    assert problems == {"ill": reason("no_model_file", device="Edge TPU")}
    assert well.backend_descriptions == {"scripted"}


def test_images_that_cannot_be_read_are_left_out() -> None:
    from pathlib import Path

    from fieldray.domain.image import ImageRef
    from tiny_models import tiny_manifest

    refs = [ImageRef(path=Path(name)) for name in ("broken.png", "7.png")]
    pool = cast("Any", ReadersOfNames())
    (image,) = read_images(refs, tiny_manifest().input, pool)
    assert image.network_input.mean() == 7
    with pytest.raises(UsageProblem, match="nothing can be measured"):
        read_images(refs[:1], tiny_manifest().input, pool)
