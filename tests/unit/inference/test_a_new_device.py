"""A device that only this test file adds to the program.

The device "abacus" computes the tiny network's formula in this process, and can be out of order. Devices that appear
and disappear are tested in test_engine.py and tests/faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_fakes import Behaviour, FakeBackend

from fieldray.backends import BACKENDS, BackendEntry, device_choices
from fieldray.bench.benchmark_case import accelerator_cases, cases_on_all_backends, find_usable_cases
from fieldray.cli import run
from fieldray.errors import UsageProblem
from fieldray.inference.backend import BackendKind, BackendOptions
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from harness.record import json_lines
from program import write_images
from tiny_models import tiny_model

MODEL = tiny_model()
NOT_HERE = reason("start_failed", detail="there is no abacus")


ENTRY = BackendEntry(
    name="abacus", title="Abacus", file_roles=("abacus", "litert"), backend_kind_function_path=f"{__name__}:kind"
)


PROBLEMS: list[Reason] = []


def kind(_: BackendOptions) -> BackendKind:
    return BackendKind(
        entry=ENTRY,
        open=lambda: FakeBackend(Behaviour()),
        probe=lambda model: next(iter(PROBLEMS), None),
        permanent_problem_codes=frozenset({NOT_HERE.code}),
        absent_device_codes=frozenset({NOT_HERE.code}),
    )


@pytest.fixture(autouse=True)
def abacus() -> Iterator[None]:
    with BACKENDS.add_temporarily(ENTRY):
        yield
    PROBLEMS.clear()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", 4)
    return tmp_path / "images"


def test_the_screen_command_runs_images_on_the_device(
    images: Path, pack_options: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["screen", str(images), *pack_options, "--json", "-"]) == 0
    lines = json_lines(capfd.readouterr().out)
    assert [line["backend"] for line in lines] == ["abacus"] * 4


def test_a_broken_chosen_device_ends_the_run_with_its_reason(
    images: Path, pack_options: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    PROBLEMS.append(NOT_HERE)
    assert run(["screen", str(images), *pack_options, "--device", "abacus", "--json", "-"]) != 0
    printed = capfd.readouterr()
    assert not printed.out and NOT_HERE.text in printed.err


def test_help_and_settings_name_the_device(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["screen", "--help"]) == 0
    assert "{auto,abacus,edgetpu,cpu}" in capfd.readouterr().out
    assert Settings({"device": "abacus"})["device"] == "abacus"
    assert BACKENDS.title("abacus") == "Abacus"
    with pytest.raises(UsageProblem, match="auto, abacus, edgetpu, cpu"):
        Settings({"device": "slide rule"})


def test_a_pack_without_a_file_for_the_device_does_not_run_on_it() -> None:
    bare = BackendEntry(name="oracle", title="Oracle", file_roles=("oracle",), backend_kind_function_path="")
    why = BackendKind(entry=bare, open=lambda: FakeBackend(Behaviour())).unavailable_reason(MODEL)
    assert why == reason("no_model_file", device="Oracle")


def test_a_device_name_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="abacus"), BACKENDS.add_temporarily(ENTRY):
        pass
    assert list(device_choices()) == ["auto", "abacus", "edgetpu", "cpu"]


def test_the_device_is_benchmarked_like_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    names = [case.name for case in cases_on_all_backends(MODEL, threads=1)]
    assert names == [f"{MODEL.pack_name} on {device}" for device in ("cpu", "edgetpu", "abacus")]
    names = [case.name for case in accelerator_cases(MODEL, max_clock=True)]
    assert names == ["abacus", "edgetpu", "edgetpu, highest clock"]  # an abacus has no clock setting
    cases, _ = find_usable_cases(cases_on_all_backends(MODEL, threads=1))
    assert "abacus" in {case.kind.name for case in cases}
    assert run(["bench", "device", "--power-w", "slide rule=2"]) == 2
    assert "give abacus or edgetpu or cpu=NUMBER" in capfd.readouterr().err
