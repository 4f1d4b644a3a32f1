"""Inspecting this computer for real: software, storage, and one image screened."""

from __future__ import annotations

from pathlib import Path

from bench_cases import Record

from fake_compilers import edgetpu_model
from fieldray.bench import device
from fieldray.bench.benchmark_case import Table
from fieldray.bench.host import check_storage, software_facts, try_screening
from fieldray.domain.model import Model
from fieldray.errors import PackProblem
from fieldray.packs.library import PackLibrary
from fieldray.reasons import reason
from tiny_models import tiny_model
from tiny_packs import write_tiny_pack


def test_software_that_is_there() -> None:
    software = software_facts()
    assert software.missing == ()
    assert software.versions["numpy"]


def test_places(home: Path, tmp_path: Path) -> None:
    write_tiny_pack(tmp_path / "drive" / "fieldray")
    places = check_storage(home, PackLibrary(home, builtin_root=tmp_path), drives=[tmp_path / "drive"])
    assert places.problem is None and places.free_mb > 0
    (pack,) = places.packs
    assert (pack.name, pack.origin) == ("tiny-1.0.0", "drive")
    assert pack.problem and pack.problem.code == "pack_unknown_key"


def test_damaged_records_of_trust_are_told(home: Path, tmp_path: Path) -> None:
    (home / "pack_trust.json").write_text("{")
    places = check_storage(home, PackLibrary(home, builtin_root=tmp_path), drives=[])
    assert places.trust_problem and places.trust_problem.code == "trust_damaged"


def test_one_image_is_screened() -> None:
    trial = try_screening(tiny_model)
    assert (trial.problem, trial.backend, trial.pack_name) == (None, "cpu", "tiny-1.0.0")
    assert (trial.has_edgetpu_file, try_screening(edgetpu_model).has_edgetpu_file) == (False, True)
    assert trial.seconds > 0


def test_without_a_pack_the_trial_says_so() -> None:
    def load() -> Model:
        raise PackProblem(reason("no_pack"))

    assert try_screening(load).problem == reason("no_pack")


def test_ways_to_run() -> None:
    names = [case.name for case in device.host_variants(tiny_model(), cores=5, float_file=b"x", max_clock=True)]
    assert names == [
        device.BASELINE,
        "cpu, 2 threads",
        "cpu, 4 threads",
        "cpu, 1 thread, floating point",
        "edgetpu",
        "edgetpu, highest clock",
    ]


def test_ways_are_compared_with_the_first() -> None:
    slow, fast = (device.Measurement(case=Record(name).case(), scope=device.MESSAGES) for name in ("slow", "fast"))
    slow.repetitions.extend([[9, 9, 4], [9, 9, 8]])
    fast.repetitions.extend([[9, 9, 2], [9, 9, 4]])
    assert device.times_as_fast(fast, [slow, fast]) == 2
    table, _ = device.variant_blocks([slow, fast], problems={}, images="2 images")
    assert isinstance(table, Table)
    # mean of 2 and 4 ms: 333.3 a second
    assert table.rows[1][:4] == ("fast", "333.3", "3.00", "2.00")
    assert [one["times_as_fast"] for one in device.variant_data([slow, fast])] == [1, 2]
