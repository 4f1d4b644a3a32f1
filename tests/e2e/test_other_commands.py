from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fieldray.imaging.synthetic import PARTS, files
from fieldray.packs.library import PackLibrary
from fieldray.paths import VERSION
from fieldray.pipeline.constancy import ConstancyRecords, Record, subject
from program import Fieldray, lines_of, write_images
from tiny_packs import fingerprint, write_tiny_pack


def test_a_pack_is_listed_verified_trusted_installed_and_used(
    tmp_path: Path, fieldray: Fieldray, well: Fieldray, pack: Path
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
    demo = well("demo", "drawn", "--pack", "tiny", "--no-window", "--folder", tmp_path / "images", "--json", "-")
    assert {line["status"] for line in lines_of(demo.stdout)} == {"screened"}


def test_a_pack_that_cannot_be_run_shuts_none_out_and_one_that_ran_does(
    tmp_path: Path, fieldray: Fieldray, home: Path
) -> None:
    write_images(tmp_path / "images", 1)

    def screen(pack: Path) -> subprocess.CompletedProcess[str]:
        return fieldray("screen", tmp_path / "images", "--pack", pack, "--trust", fingerprint(pack), "--json", "-")

    def seen() -> object:
        return json.loads((home / "pack_trust.json").read_bytes())["seen"]

    garbage = write_tiny_pack(tmp_path / "garbage", version="999999.0.0", cpu_file=b"TFL3 of nothing" * 100)
    done = screen(garbage)
    assert (done.returncode, seen()) == (3, {}), done.stderr
    newer, older = (write_tiny_pack(tmp_path / version, version=version) for version in ("2.0.0", "1.0.0"))
    done = screen(newer)
    assert (done.returncode, seen()) == (0, {fingerprint(newer): {"tiny": "2.0.0"}}), done.stderr
    done = screen(older)
    assert (done.returncode, "older than version 2.0.0" in done.stderr) == (3, True)


def test_trust_can_be_given_and_taken_back(fieldray: Fieldray, pack: Path) -> None:
    signer = fingerprint(pack)
    assert signer in fieldray("packs", "trust", signer).stdout
    assert "No key is trusted" in fieldray("packs", "trust", signer, "--forget").stdout
    wrong = fieldray("packs", "trust", "not a fingerprint")
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (2, False)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "least"), [("children", {"abnormal", "unsure", "normal"}), ("adults", {"abnormal"})])
def test_the_demonstration_shows_every_answer_beside_the_published_label(
    home: Path, well: Fieldray, part: str, least: set[str]
) -> None:
    lines = lines_of(well("demo", part, "--no-window", "--json", "-").stdout)
    kinds = {"above": "abnormal", "below": "normal", "unsure": "unsure", None: "refused"}
    seen = {Path(str(line["path"])).name: kinds[line["decision"]] for line in lines}  # type: ignore[index]
    assert set(seen) == {path.name for path in (home / "demo" / part).iterdir()}
    assert least | {"refused"} <= set(seen.values())
    assert {seen[name] for name in seen if name.startswith("refused")} == {"refused"}
    notes = {note["code"] for line in lines for note in line["notes"]}  # type: ignore[attr-defined]
    assert ("age_confirmed" if part == "children" else "age_not_stated") in notes
    again = lines_of(well("demo", part, "--no-window", "--json", "-").stdout)
    assert {line["path"]: line["score"] for line in again} == {line["path"]: line["score"] for line in lines}


def test_the_demo_writes_over_no_image_but_its_own(tmp_path: Path, fieldray: Fieldray) -> None:
    (tmp_path / "published-normal-1.jpg").write_bytes(b"somebody's")
    done = fieldray("demo", "--no-window", "--folder", tmp_path)
    assert (done.returncode, "is not an earlier output" in done.stderr) == (2, True)
    assert (tmp_path / "published-normal-1.jpg").read_bytes() == b"somebody's"


@pytest.mark.slow
def test_the_demo_of_another_version_is_replaced_and_nothing_else_in_its_folder(home: Path, fieldray: Fieldray) -> None:
    folder = home / "demo" / "adults"
    folder.mkdir(parents=True)
    shown = next(name for name, _ in files(PARTS[1]))
    (folder / shown).write_bytes(b"an image of an earlier version")
    (folder / "somebody-s.txt").write_bytes(b"somebody's")
    done = fieldray("demo", "adults", "--no-window")
    assert done.returncode in (0, 1), done.stderr
    assert (folder / shown).read_bytes() == dict(files(PARTS[1]))[shown]
    assert (folder / "somebody-s.txt").read_bytes() == b"somebody's"


def test_nobody_is_screened_with_a_pack_that_nobody_chose(tmp_path: Path, fieldray: Fieldray, pack: Path) -> None:
    write_images(tmp_path / "images", 1)
    done = fieldray("screen", tmp_path / "images")
    assert done.returncode == 3
    assert "Whose images are these?" in done.stderr
    assert "For patients aged 1 to 5 years." in done.stderr and "For patients aged 18 to 95 years." in done.stderr
    assert fieldray("packs", "install", pack, "--trust", fingerprint(pack)).returncode == 0
    assert fieldray("packs", "default", "tiny", "--operating-point", "best").returncode == 2
    assert fieldray("packs", "default", "nobody").returncode == 3
    assert "Default pack: tiny" in fieldray("packs", "default", "tiny").stdout
    lines = lines_of(fieldray("screen", tmp_path / "images", "--json", "-").stdout)
    assert [line["pack"] for line in lines] == ["tiny-1.0.0"]
    assert "There is no default pack" in fieldray("packs", "default", "--none").stdout
    assert fieldray("screen", tmp_path / "images").returncode == 3


def test_a_folder_that_does_not_exist_is_called_so(fieldray: Fieldray) -> None:
    done = fieldray("/nowhere/folder")
    assert (done.returncode, done.stderr) == (2, "fieldray: The folder or file /nowhere/folder does not exist.\n")


@pytest.mark.parametrize("option", ["--pack", "--pack=tiny", "-v"])
def test_an_option_without_a_command_names_the_command(fieldray: Fieldray, tmp_path: Path, option: str) -> None:
    done = fieldray(tmp_path, option, "tiny")
    assert done.returncode == 2
    assert f"takes no {option.partition('=')[0]}." in done.stderr and "fieldray screen" in done.stderr


def test_the_constancy_of_a_pack_is_checked_and_kept(fieldray: Fieldray, home: Path, pack_options: list[str]) -> None:
    first = fieldray("constancy", *pack_options)
    assert (first.returncode, "comes without expected answers" in first.stdout) == (0, True), first.stderr
    second = fieldray("constancy", *pack_options)
    assert (second.returncode, "passed" in second.stdout, "0.000" in second.stdout) == (0, True, True), second.stderr
    kept = json.loads((home / "constancy.json").read_bytes())
    assert len(kept["records"]) == 2
    for answer in next(iter(kept["answers"].values())).values():  # as if another network had answered on the first day
        answer["scores"] = {label: 1 - score for label, score in answer["scores"].items()}
    (home / "constancy.json").write_text(json.dumps(kept))
    third = fieldray("constancy", *pack_options)
    assert (third.returncode, "failed" in third.stdout, "expected" in third.stdout) == (1, True, True), third.stderr
    status = fieldray("constancy", *pack_options, "--status")
    assert (status.returncode, "Do not rely on this pack" in status.stdout) == (1, True)


def test_a_pack_whose_constancy_cannot_be_checked_is_named(fieldray: Fieldray, home: Path) -> None:
    packs, records = PackLibrary(home), ConstancyRecords(home)
    for found in packs.builtin():
        if found.can_screen:  # as a pack of one's own that runs on two devices is checked for the first time
            for device, is_first in (("cpu", True), ("edgetpu", False)):
                whose = subject(packs.load(found.folder))
                values = {"at_s": time.time(), "program": VERSION, "images": 3, "different": 0, "largest": 0.0}
                records.add(Record(subject=whose, device=device, is_first=is_first, **values), {})
    assert fieldray("constancy", "--status").returncode == 0
    (broken := home / "packs" / "ours-1.0.0").mkdir(parents=True)
    (broken / "manifest.json").write_text("{")
    status = fieldray("constancy", "--status")
    assert (status.returncode, "ours-1.0.0: not checked. " in status.stdout) == (1, True)
