"""The benchmark of inference engines: ratios of engines with equal outputs, and an engine that is not installed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.networks import Engine, EngineFigures, median_speed_up

ROOT = Path(__file__).parents[2]


def measured(key: str, *batch_ms: float, difference: float | None = 0.0, kind: str = "float32") -> EngineFigures:
    engine = Engine(key=key, title=key, package="numpy", kind=kind)
    return EngineFigures(engine=engine, case="a", threads=1, images=2, batch_ms=list(batch_ms), difference=difference)


def test_ratios_are_taken_within_a_round_and_only_of_equal_outputs() -> None:
    # 20/10, 40/10 and 90/30: the median is 3.
    assert median_speed_up(measured("a", 10, 10, 30), measured("b", 20, 40, 90)) == 3
    assert median_speed_up(measured("a", 10, difference=0.01), measured("b", 20)) is None
    assert median_speed_up(measured("a", 10, difference=0.01, kind="int8"), measured("b", 20)) == 2
    assert median_speed_up(measured("a"), measured("b", 20)) is None
    assert measured("a", 10, 30, 20).image_ms == (10, 5, 15)


def test_only_the_extra_engines_requires_the_other_engines() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in ("onnxruntime", "openvino"):
        assert [extra for extra, needs in extras.items() if any(need.startswith(name) for need in needs)] == ["engines"]
