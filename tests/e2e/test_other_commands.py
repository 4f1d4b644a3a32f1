from __future__ import annotations

import shutil
from pathlib import Path

from fieldray.reports.content import NOTICE
from program import Fieldray, lines_of
from tiny_packs import fingerprint, write_tiny_pack


def test_a_pack_is_listed_verified_trusted_installed_and_used(
    tmp_path: Path, home: Path, fieldray: Fieldray, pack: Path
) -> None:
    drive = tmp_path / "drive"
    shutil.copytree(pack, drive / "fieldray" / pack.name)
    listed = fieldray("packs", "list", drive)
    assert (listed.returncode, "tiny-1.0.0" in listed.stdout, "key not trusted" in listed.stdout) == (0, True, True)
    verified = fieldray("packs", "verify", drive)
    assert (verified.returncode, fingerprint(pack) in verified.stdout) == (0, True), verified.stderr
    refused = fieldray("packs", "install", drive)
    assert (refused.returncode, "--trust" in refused.stderr) == (3, True)
    installed = fieldray("packs", "install", drive, "--trust", fingerprint(pack).upper().replace("-", ":"))
    assert (installed.returncode, "Installed:" in installed.stdout) == (0, True), installed.stderr
    assert fingerprint(pack) in fieldray("packs", "trust").stdout
    shutil.rmtree(drive)
    assert "installed" in fieldray("packs", "list").stdout
    demo = fieldray("demo", "--pack", "tiny", "--no-window", "--folder", tmp_path / "films", "--json", "-")
    assert demo.returncode == 0, demo.stderr
    assert {line["status"] for line in lines_of(demo.stdout)} == {"screened"}


def test_trust_can_be_given_and_taken_back(fieldray: Fieldray, pack: Path) -> None:
    key = fingerprint(pack)
    assert key in fieldray("packs", "trust", key).stdout
    assert fieldray("packs", "trust", key, "--forget").stdout == ""
    wrong = fieldray("packs", "trust", "not a fingerprint")
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (2, False)


def test_a_pack_that_was_changed_is_told_so(tmp_path: Path, fieldray: Fieldray) -> None:
    changed = write_tiny_pack(tmp_path)
    network = next(changed.glob("*.tflite"))
    data = bytearray(network.read_bytes())
    data[len(data) // 2] ^= 1
    network.write_bytes(data)
    for arguments in (["verify", changed], ["install", changed, "--trust", fingerprint(changed)]):
        done = fieldray("packs", *arguments)
        assert (done.returncode, "Nothing was loaded" in done.stderr) == (3, True), done.stderr


def test_the_demo_makes_screens_and_prints(home: Path, fieldray: Fieldray, pack_options: list[str]) -> None:
    done = fieldray(
        "demo", *pack_options, environment=dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"), "")
    )
    assert done.returncode == 0, done.stderr
    made = sorted((home / "demo").iterdir())
    assert len(made) >= 10
    for path in made:
        assert path.name in done.stdout
    assert done.stdout.rstrip().endswith(NOTICE)
