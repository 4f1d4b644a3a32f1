"""The report on devices: figures per watt and dollar, and devices that could not be measured."""

from __future__ import annotations

from pathlib import Path

from bench_cases import Record

from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.bench.device import (
    FILE_TO_SCORES_SCOPE,
    NETWORK_ONLY_SCOPE,
    BackendCosts,
    EnergyMeter,
    Measurement,
    device_report,
)
from fieldray.domain.model import BackendName
from fieldray.reasons import reason


def report() -> BenchmarkReport:
    case = Record("tiny on edgetpu").case("edgetpu")
    # later images: 8 and 12 ms, mean 10 ms = 100 a second
    measured = [
        Measurement(case=case, scope=NETWORK_ONLY_SCOPE, times_ms_by_repetition=[[30, 20, 8, 12]]),
        Measurement(case=case, scope=FILE_TO_SCORES_SCOPE, times_ms_by_repetition=[[300, 60, 40, 40]]),
    ]
    costs = BackendCosts(power_w_by_backend={"edgetpu": 2.0}, price_usd_by_backend={"edgetpu": 80.0})
    return device_report(measured, costs=costs, problems={"cpu": reason("no_runtime")}, image_phrase="2 images")


def table(title: str) -> Table:
    return next(block for block in report().blocks if isinstance(block, Table) and title in block.title)


def test_times_and_what_could_not_be_measured() -> None:
    network, file = table("Milliseconds").rows
    # stdev of 8 and 12: sqrt(4 + 4) = 2.83
    assert network[:5] == ("tiny on edgetpu, network alone", "30.00", "20.00", "10.00", "2.83")
    assert network[-2:] == ("3.00", "2")
    assert file[0] == "tiny on edgetpu, file to scores"
    (points,) = (block for block in report().blocks if isinstance(block, BulletList))
    assert any("cpu" in sentence and "runtime" in sentence for sentence in points.sentences)


def test_rates_for_each_watt_and_dollar() -> None:
    network, _ = table("Images per second").rows
    # 1000 / 12, 1000 / 10, 1000 / 8; 100 / 2 W; 100 / 80 USD
    assert network[1:] == ("83.33", "100.00", "125.00", "1.00", "2 (typed in)", "50", "1.25")


def test_cases_are_compared_with_the_first_case() -> None:
    slow, fast = (Measurement(case=Record(name).case()) for name in ("slow", "fast"))
    slow.times_ms_by_repetition.extend([[9, 9, 4], [9, 9, 8]])
    fast.times_ms_by_repetition.extend([[9, 9, 2], [9, 9, 4]])
    found = device_report(
        [slow, fast], problems={}, image_phrase="2 images", more_sentences=("The port was not changed.",)
    )
    assert [one["times_as_fast"] for one in found.json_values["measurements"]] == [1, 2]
    assert found.blocks[1].rows[1][4] == "2.00"
    assert found.blocks[2].sentences[-1] == "The port was not changed."


def counters(tree: Path, zone: str, name: str, energy_uj: int) -> Path:
    (tree / zone).mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", 1000000)):
        (tree / zone / file).write_text(f"{text}\n")
    return tree / zone / "energy_uj"


def test_energy_sums_the_cpu_packages_and_handles_counter_overflow(tmp_path: Path) -> None:
    first, second = (counters(tmp_path, f"intel-rapl:{n}", f"package-{n}", 900000) for n in (0, 1))
    inner = [counters(tmp_path, *zone, 0) for zone in (("intel-rapl:0:0", "core"), ("intel-rapl:2", "psys"))]
    meter, energy = EnergyMeter(tmp_path), list[tuple[float, float]]()
    with meter.measure_energy(energy):
        for counter in inner:
            counter.write_text("500000")
        first.write_text("950000")  # 0.05 J
        second.write_text("100000")  # 0.1 J to the end of its range, and 0.1 J more
    ((joules, seconds),) = energy
    assert meter.problem is None and seconds > 0 and abs(joules - 0.25) < 1e-9


def test_measured_power_takes_precedence_over_stated_power() -> None:
    costs = BackendCosts(power_w_by_backend={"cpu": 2.0, "edgetpu": 2.0})
    rows = {}
    backends: tuple[BackendName, ...] = ("cpu", "edgetpu")
    for name in backends:
        case = Record(name).case(name)
        one = Measurement(
            case=case,
            scope=NETWORK_ONLY_SCOPE,
            times_ms_by_repetition=[[30, 20, 8, 12]],
            joules_and_seconds=[(3.0, 0.5), (7.0, 1.5)],
        )
        rows[name] = device_report([one], costs=costs, problems={}, image_phrase="2 images").json_values[
            "measurements"
        ][0]
    found = {name: (row["power_w"], row["power_is"], row["fps_per_w"]) for name, row in rows.items()}
    assert found == {"cpu": (5.0, "measured", 20.0), "edgetpu": (2.0, "typed in", 50.0)}  # 10 J in 2 s


def test_a_reason_is_given_where_energy_is_not_measured(tmp_path: Path) -> None:
    energy: list[tuple[float, float]] = []
    meter = EnergyMeter(tmp_path)
    with meter.measure_energy(energy):
        pass
    assert meter.problem == reason("energy_not_counted") and not energy
    counter = counters(tmp_path, "intel-rapl:0", "package-0", 1)

    class Closed(type(counter)):  # root could read it whatever the permissions say
        def read_text(self, *_: object, **__: object) -> str:
            if self.name == "energy_uj":
                raise PermissionError
            return super().read_text()

    assert EnergyMeter(Closed(tmp_path)).problem == reason("energy_denied", path=counter)
