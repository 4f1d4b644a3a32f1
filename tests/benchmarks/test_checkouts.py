"""Two checkouts side by side: the order of runs, the ratios, the decisions, and one real run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.checkouts import Comparison, checkouts_report, compare_checkouts
from benchmarks.command_line import run
from benchmarks.processes import CHECKOUT
from benchmarks.screening import Screening, ScreeningFailed, fill, screen_once
from fieldray.commands.console import Console
from program import write_images
from tiny_packs import fingerprint, write_tiny_pack

RUN = Screening(
    images=10,
    first_s=1.0,
    steady_s=4.0,
    total_s=6.0,
    cpu_s=2.0,
    pss_mb=0.0,
    rss_mb=0.0,
    processes=0,
    outcomes={"a.dcm": ("screened", "below"), "b.dcm": ("screened", "above")},
)


def sides(asked: list[str], *, slower: float = 1.0) -> tuple[Callable[[Path], Screening], Callable[[Path], Screening]]:
    def old(_: Path) -> Screening:
        asked.append("old")
        return RUN

    def new(_: Path) -> Screening:
        asked.append("new")
        return replace(RUN, steady_s=RUN.steady_s * slower, cpu_s=(RUN.cpu_s or 0) * slower)

    return old, new


def verdicts(found: Comparison) -> dict[str, bool | None]:
    marks = checkouts_report(found, images="10 images").data["marks"]
    return {mark["name"]: mark["is_met"] for mark in marks}


def test_the_order_alternates_after_a_warm_up(tmp_path: Path) -> None:
    asked: list[str] = []
    found = compare_checkouts(*sides(asked), tmp_path, repeats=3, notify=lambda _: None)
    assert asked == ["old", "new", "old", "new", "new", "old", "old", "new"]
    assert len(found.old) == len(found.new) == len(found.loads) == 3


@pytest.mark.parametrize(("slower", "is_met"), [(1.0, True), (1.029, True), (1.04, False), (0.5, True)])
def test_three_percent(tmp_path: Path, slower: float, is_met: bool) -> None:
    found = compare_checkouts(*sides([], slower=slower), tmp_path, repeats=2, notify=lambda _: None)
    assert found.ratios("CPU time per image, s") == pytest.approx([slower, slower])
    assert verdicts(found) == {
        "first result to last, s, new / old": is_met,
        "CPU time per image, s, new / old": is_met,
        "Files decided differently": True,
    }


def test_ratios_are_taken_within_a_round() -> None:
    """The machine became half as fast in the second round: both programs did."""
    slow = replace(RUN, steady_s=8.0)
    assert Comparison(old=[RUN, slow], new=[RUN, slow], loads=[0, 0]).ratios("first result to last, s") == [1, 1]


def test_files_decided_differently_are_named() -> None:
    changed = replace(RUN, outcomes={"a.dcm": ("screened", "unsure")})
    found = Comparison(old=[RUN], new=[changed], loads=[0.1])
    report = checkouts_report(found, images="2 images")
    assert set(report.data["differing"]) == {"a.dcm", "b.dcm"}
    assert verdicts(found)["Files decided differently"] is False
    said = json.dumps([getattr(block, "sentences", ()) for block in report.blocks])
    assert "a.dcm: screened below became screened unsure." in said
    assert "b.dcm: screened above became no result." in said


def test_where_the_system_does_not_count_cpu_time() -> None:
    blind = replace(RUN, cpu_s=None)
    found = Comparison(old=[blind], new=[blind], loads=[0.0])
    assert verdicts(found)["CPU time per image, s, new / old"] is None


def test_the_program_of_a_checkout_really_runs(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "packs")
    write_images(tmp_path / "images", 2, side=64)
    folder = fill(tmp_path / "many", sorted((tmp_path / "images").iterdir()), 5)
    rules = ["--pack", str(pack), "--trust", fingerprint(pack)]
    found = screen_once(folder, rules, checkout=CHECKOUT, is_watched=True)
    assert found.images == len(found.outcomes) == 5
    assert {status for status, _ in found.outcomes.values()} == {"screened"}
    assert 0 < found.first_s <= found.total_s and found.steady_s <= found.total_s
    assert found.pss_mb > 0 and found.processes > 1


def test_a_program_that_ends_says_why(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(ScreeningFailed, match="ended with"):
        screen_once(tmp_path / "images", ["--pack", str(tmp_path / "none")])


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare-checkouts", "nowhere", "."],
        ["screening", "--counts", "many"],
        ["screening", "--counts", "0"],
        ["pipeline", "--kinds", "papyrus"],
        [],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert run(arguments, console=Console(io.StringIO(), io.StringIO())) == 2


def test_screening_as_a_developer_types_it(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "packs")
    write_images(tmp_path / "images", 2, side=64)
    out = io.StringIO()
    rules = ["--", "--pack", str(pack), "--trust", fingerprint(pack)]
    arguments = ["screening", str(tmp_path / "images"), "--counts", "3", "--starts", "1", *rules]
    error = io.StringIO()
    assert run(arguments, console=Console(out, error)) == 0, error.getvalue()
    assert "Start to first result" in out.getvalue()
