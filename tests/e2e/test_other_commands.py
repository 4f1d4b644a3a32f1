from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from fieldray.imaging.synthetic import DEMO_IMAGE_SETS, demo_files
from fieldray.packs.library import PackLibrary
from fieldray.paths import VERSION
from fieldray.pipeline.constancy import ConstancyRecord, ConstancyRecords, pack_key
from harness.record import Record as Ended
from program import Fieldray, write_images
from tiny_packs import fingerprint, write_tiny_pack


def test_a_pack_is_listed_verified_trusted_installed_and_used(
    tmp_path: Path, fieldray: Fieldray, run_ok: Fieldray, pack: Path
) -> None:
    drive = tmp_path / "drive"
    shutil.copytree(pack, drive / "fieldray" / pack.name)
    fieldray("packs", "list", drive).ends_with(0).prints("tiny-1.0.0", "key not trusted")
    fieldray("packs", "verify", drive).ends_with(0).prints(fingerprint(pack))
    fieldray("packs", "install", drive).ends_with(3).complains("--trust")
    run_ok("packs", "install", drive, "--trust", fingerprint(pack).upper().replace("-", ":")).prints("Installed:")
    fieldray("packs", "trust").prints(fingerprint(pack))
    shutil.rmtree(drive)
    fieldray("packs", "list").prints("installed")
    demo = run_ok("demo", "drawn", "--pack", "tiny", "--no-window", "--folder", tmp_path / "images", "--json", "-")
    assert {line["status"] for line in demo.lines} == {"screened"}


def test_only_a_pack_that_ran_blocks_older_versions_of_it(tmp_path: Path, fieldray: Fieldray, home: Path) -> None:
    write_images(tmp_path / "images", 1)

    def screen(pack: Path) -> Ended:
        return fieldray("screen", tmp_path / "images", "--pack", pack, "--trust", fingerprint(pack), "--json", "-")

    def seen() -> object:
        return json.loads((home / "pack_trust.json").read_bytes())["seen"]

    screen(write_tiny_pack(tmp_path / "garbage", version="999999.0.0", cpu_file=b"TFL3 of nothing" * 100)).ends_with(3)
    assert seen() == {}
    newer, older = (write_tiny_pack(tmp_path / version, version=version) for version in ("2.0.0", "1.0.0"))
    screen(newer).ends_with(0)
    assert seen() == {fingerprint(newer): {"tiny": "2.0.0"}}
    screen(older).ends_with(3).complains("older than version 2.0.0")


def test_trust_can_be_given_and_taken_back(fieldray: Fieldray, pack: Path) -> None:
    signer = fingerprint(pack)
    assert signer in fieldray("packs", "trust", signer).out
    assert "No key is trusted" in fieldray("packs", "trust", signer, "--forget").out
    fieldray("packs", "trust", "not a fingerprint").ends_with(2)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "least"), [("children", {"abnormal", "unsure", "normal"}), ("adults", {"abnormal"})])
def test_the_demonstration_prints_every_result_with_the_published_label(
    home: Path, run_ok: Fieldray, part: str, least: set[str]
) -> None:
    lines = run_ok("demo", part, "--no-window", "--json", "-").lines
    kinds = {"above": "abnormal", "below": "normal", "unsure": "unsure", None: "refused"}
    seen = {Path(str(line["path"])).name: kinds[line["decision"]] for line in lines}  # type: ignore[index]
    assert set(seen) == {path.name for path in (home / "demo" / part).iterdir()}
    assert least | {"refused"} <= set(seen.values())
    assert {seen[name] for name in seen if name.startswith("refused")} == {"refused"}
    notes = {note["code"] for line in lines for note in line["notes"]}  # type: ignore[attr-defined]
    assert ("age_confirmed" if part == "children" else "age_not_stated") in notes
    again = run_ok("demo", part, "--no-window", "--json", "-").lines
    assert {line["path"]: line["score"] for line in again} == {line["path"]: line["score"] for line in lines}


def test_the_demo_replaces_only_its_own_images(tmp_path: Path, fieldray: Fieldray) -> None:
    (tmp_path / "published-normal-1.jpg").write_bytes(b"somebody's")
    fieldray("demo", "--no-window", "--folder", tmp_path).ends_with(2).complains("is not an earlier output")
    assert (tmp_path / "published-normal-1.jpg").read_bytes() == b"somebody's"


@pytest.mark.slow
def test_the_demo_of_another_version_is_replaced_and_nothing_else_in_its_folder(home: Path, fieldray: Fieldray) -> None:
    folder = home / "demo" / "adults"
    folder.mkdir(parents=True)
    shown = next(name for name, _ in demo_files(DEMO_IMAGE_SETS[1]))
    (folder / shown).write_bytes(b"an image of an earlier version")
    (folder / "somebody-s.txt").write_bytes(b"somebody's")
    fieldray("demo", "adults", "--no-window").ends_with(0, 1)
    assert (folder / shown).read_bytes() == dict(demo_files(DEMO_IMAGE_SETS[1]))[shown]
    assert (folder / "somebody-s.txt").read_bytes() == b"somebody's"


def test_screening_without_a_chosen_or_default_pack_is_refused(tmp_path: Path, fieldray: Fieldray, pack: Path) -> None:
    write_images(tmp_path / "images", 1)
    done = fieldray("screen", tmp_path / "images").ends_with(3).complains("No pack was chosen.")
    done.complains("For patients aged 1 to 5 years.", "For patients aged 18 to 95 years.")
    fieldray("packs", "install", pack, "--trust", fingerprint(pack)).ends_with(0)
    fieldray("packs", "default", "tiny", "--operating-point", "best").ends_with(2)
    fieldray("packs", "default", "nobody").ends_with(3)
    assert "Default pack: tiny" in fieldray("packs", "default", "tiny").out
    lines = fieldray("screen", tmp_path / "images", "--json", "-").lines
    assert [line["pack"] for line in lines] == ["tiny-1.0.0"]
    assert "There is no default pack" in fieldray("packs", "default", "--none").out
    fieldray("screen", tmp_path / "images").ends_with(3)


def test_a_missing_folder_is_reported_as_missing(fieldray: Fieldray) -> None:
    done = fieldray("/nowhere/folder").ends_with(2)
    assert done.err == "fieldray: The folder or file /nowhere/folder does not exist.\n"


@pytest.mark.parametrize("option", ["--pack", "--pack=tiny", "-v"])
def test_an_option_without_a_command_names_the_command(fieldray: Fieldray, tmp_path: Path, option: str) -> None:
    done = fieldray(tmp_path, option, "tiny").ends_with(2)
    done.complains(f"The option {option.partition('=')[0]} needs a command", "fieldray screen")


def test_the_constancy_test_of_a_pack_is_performed_and_recorded(
    fieldray: Fieldray, home: Path, pack_options: list[str]
) -> None:
    fieldray("constancy", *pack_options).ends_with(0).prints("comes without expected results")
    fieldray("constancy", *pack_options).ends_with(0).prints("passed", "0.000")
    kept = json.loads((home / "constancy.json").read_bytes())
    assert len(kept["records"]) == 2
    for answer in next(iter(kept["answers"].values())).values():  # as if another network had given the reference
        answer["scores"] = {label: 1 - score for label, score in answer["scores"].items()}
    (home / "constancy.json").write_text(json.dumps(kept))
    fieldray("constancy", *pack_options).ends_with(1).prints("failed", "expected")
    fieldray("constancy", *pack_options, "--status").ends_with(1).prints("Do not rely on this pack")


def test_a_pack_whose_constancy_cannot_be_checked_is_named(fieldray: Fieldray, home: Path) -> None:
    packs, records = PackLibrary(home), ConstancyRecords(home)
    for found in packs.builtin():
        if found.can_screen:  # like the first check of a user's own pack on two devices
            for device, is_first in (("cpu", True), ("edgetpu", False)):
                whose = pack_key(packs.load(found.folder))
                values = {"at_s": time.time(), "program": VERSION, "images": 3, "different": 0, "largest": 0.0}
                records.add(ConstancyRecord(subject=whose, device=device, is_first=is_first, **values), {})
    fieldray("constancy", "--status").ends_with(0)
    (broken := home / "packs" / "ours-1.0.0").mkdir(parents=True)
    (broken / "manifest.json").write_text("{")
    fieldray("constancy", "--status").ends_with(1).prints("Constancy test (ours-1.0.0): not run. ")
