"""`fieldray bench` and `fieldray doctor` on the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fieldray.cli import run
from shipped_packs import ADULTS
from tiny_packs import fingerprint


def typed(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


def test_device(pack_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    effort = ("--images", 3, "--repeats", 1, "--power-w", "cpu=15", "--price-usd", "cpu=500")
    assert typed("bench", "device", *pack_options, *effort, "--out", out) == 0
    data = json.loads((out / "bench-device.json").read_text(encoding="utf-8"))
    assert [one["scope"] for one in data["measurements"]] == ["network alone", "file to scores"]
    for one in data["measurements"]:
        assert [len(times_ms) for times_ms in one["times_ms"]] == [3]
        assert one["fps_per_w"] == pytest.approx(one["fps_avg"] / 15)
    said = capsys.readouterr().out
    assert "tiny-1.0.0 on cpu, network alone" in said and re.search(
        r"^This will take about \d+:\d\d\.$", said, re.MULTILINE
    )
    assert "edgetpu" in json.dumps(data["not_measured"])


def test_a_pack_that_ships_can_be_tried_and_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pack's crop to the lungs, which are not found here, does not prevent it."""
    assert typed("doctor", "--pack", ADULTS.name, "--out", tmp_path) == 0
    assert "This computer can screen." in capsys.readouterr().out
    assert json.loads((tmp_path / "doctor.json").read_text(encoding="utf-8"))["can_screen"] is True
    assert typed("bench", "device", "--pack", ADULTS.name, "--images", 3, "--repeats", 1) == 0


def test_doctor_fails_without_a_pack_and_says_what_to_do(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("doctor", "--pack", pack) == 1
    said = capsys.readouterr().out
    assert "cannot screen yet" in said and fingerprint(pack) in said


def test_doctor_makes_its_other_checks_where_the_home_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIELDRAY_HOME", home := str(tmp_path / "file" / "home"))
    assert typed("doctor", "--pack", ADULTS.name) == 1
    said = capsys.readouterr().out
    assert f"cannot keep its files in {home}" in said and f"read and processed by {ADULTS.name}" in said
    assert os.environ["FIELDRAY_HOME"] == home


@pytest.mark.parametrize(
    "arguments",
    [
        ("device", "--images", "2"),
        ("device", "--repeats", "0"),
        ("device", "--power-w", "gpu=3"),
        ("device", "--power-w", "cpu=0"),
        ("device", "--price-usd", "cpu=many"),
        ("load", "--images", "many"),
        (),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert typed("bench", *arguments) == 2


def test_a_folder_without_images(pack_options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("bench", "device", tmp_path / "none", *pack_options) == 2
    (tmp_path / "empty").mkdir()
    assert typed("bench", "device", tmp_path / "empty", *pack_options) == 2
    assert "nothing can be measured" in capsys.readouterr().err
