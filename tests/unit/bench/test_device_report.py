"""The report on devices: figures per watt and dollar, and what was not measured."""

from __future__ import annotations

from bench_cases import Record

from fieldray.bench.benchmark_case import Points, Report, Table
from fieldray.bench.device import FILE, NETWORK, Costs, Measurement, device_report
from fieldray.reasons import reason


def report() -> Report:
    case = Record("tiny on edgetpu").case("edgetpu")
    # later images: 8 and 12 ms, mean 10 ms = 100 a second
    measured = [
        Measurement(case=case, scope=NETWORK, repetitions=[[30, 20, 8, 12]]),
        Measurement(case=case, scope=FILE, repetitions=[[300, 60, 40, 40]]),
    ]
    costs = Costs(power_w={"edgetpu": 2.0}, price_usd={"edgetpu": 80.0})
    return device_report(measured, costs=costs, problems={"cpu": reason("no_runtime")}, images="2 images")


def table(title: str) -> Table:
    return next(block for block in report().blocks if isinstance(block, Table) and title in block.title)


def test_times() -> None:
    network, file = table("Milliseconds").rows
    # stdev of 8 and 12: sqrt(4 + 4) = 2.83
    assert network[:5] == ("tiny on edgetpu, network alone", "30.00", "20.00", "10.00", "2.83")
    assert network[-2:] == ("3.00", "2")
    assert file[0] == "tiny on edgetpu, file to scores"


def test_rates_for_each_watt_and_dollar() -> None:
    network, _ = table("Images per second").rows
    # 1000 / 12, 1000 / 10, 1000 / 8; 100 / 2 W; 100 / 80 USD
    assert network[1:] == ("83.33", "100.00", "125.00", "50", "1.25")


def test_what_could_not_be_measured_is_said() -> None:
    (points,) = (block for block in report().blocks if isinstance(block, Points))
    assert any("cpu" in sentence and "runtime" in sentence for sentence in points.sentences)
