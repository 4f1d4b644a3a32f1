"""Names of files, members, fields and packs that forge lines, steer the terminal or are in no encoding."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from fieldray.imaging.synthetic import chest_phantom
from hostile import ALL, BREAKS, FORGED_LINE, REORDERS, STEERS, forbidden_in
from phantoms import write_dicom
from program import Fieldray, lines_of, write_images

pytestmark = pytest.mark.skipif(os.name != "posix", reason="other systems do not allow such names")
RESULT = re.compile(r"(normal|ABNORMAL|not sure|not assessed|refused|failed) +[-\d]")


def assert_plain(*texts: str) -> None:
    """No text has anything in it that a terminal would not show as a letter, but line ends."""
    for text in texts:
        assert forbidden_in(text.replace("\n", "")) == set()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An image under every hostile name, twice more as members of a zip, one with a hostile field, and one at ease."""
    folder = tmp_path / "images"
    (image,) = write_images(folder, 1)
    for name in ALL:
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image.read_bytes())
    (folder / "wide.png                    normal         0.010  0.500  b.png").write_bytes(image.read_bytes())
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name in (REORDERS, STEERS):
            archive.writestr(f"{name}.png", image.read_bytes())
    changes = {"Modality": "normal 0.01\x1b[1A", "PatientName": f"DOE^{STEERS}", "SOPInstanceUID": f"1.2{STEERS}"}
    write_dicom(folder / "field.dcm", chest_phantom(160, 128, 3, abnormal=False), changes=changes)
    return folder


IMAGES = 1 + len(ALL) + 1 + 2 + 1


def test_every_printed_line_is_the_programs_own(images: Path, fieldray: Fieldray, pack_options: list[str]) -> None:
    done = fieldray("screen", images, *pack_options)
    assert done.returncode == 0, done.stderr
    assert_plain(done.stdout, done.stderr)
    results = [line for line in done.stdout.split("\n") if RESULT.match(line)]
    assert len(results) == IMAGES
    assert not any("0.010  0.500" in line for line in results if "\\x20" not in line and "\\n" not in line)
    assert done.stderr == ""


def test_a_line_of_json_is_one_line_and_gives_the_name_back(
    images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    done = fieldray("screen", images, *pack_options, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert_plain(done.stdout, done.stderr)
    assert len(done.stdout.splitlines()) == IMAGES
    assert {line["path"] for line in lines_of(done.stdout)} >= {f"{images}/{name}.png" for name in ALL}


C: dict[str, str] = {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": ""}


@pytest.mark.parametrize("environment", [C, C | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["C", "ascii"])
def test_the_language_c_prints_every_name(
    images: Path, fieldray: Fieldray, pack_options: list[str], environment: dict[str, str]
) -> None:
    shutil.copy(images / "image-000.png", images / "знімок.png")
    (images / "images.zip").unlink()
    done = fieldray("screen", images, *pack_options, environment=environment)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.split("\n") if RESULT.match(line)]) == IMAGES - 2 + 1
    # where the system's encoding is ASCII, the name's bytes are shown: the first letter is D0 B7 in UTF-8
    assert "images/знімок.png" in done.stdout or "images/\\udcd0\\udcb7" in done.stdout
    assert_plain(done.stdout, done.stderr)
    assert done.stderr == ""


@pytest.mark.parametrize("name", [FORGED_LINE, STEERS, REORDERS, BREAKS])
def test_what_is_wrong_with_the_arguments_is_told_in_one_line(tmp_path: Path, fieldray: Fieldray, name: str) -> None:
    option = "--" + name.replace(" ", "")  # with a blank in it, it is a path
    for arguments in (["screen", tmp_path, option], ["screen", tmp_path, "--jobs", name], ["packs", name]):
        done = fieldray(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert_plain(done.stderr)
        assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1
        assert not any(map(RESULT.match, done.stderr.splitlines()))


def test_packs_are_listed_on_lines_of_their_own(tmp_path: Path, fieldray: Fieldray, pack: Path) -> None:
    drive = tmp_path / f"{STEERS}{REORDERS}\ntiny-1.0.0   builtin    built-in    x"
    shutil.copytree(pack, drive / "fieldray" / pack.name)
    broken = drive / "fieldray" / "broken\nother-1.0.0   builtin    built-in"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    for arguments in (["packs", "list", drive], ["packs", "verify", drive / "fieldray" / pack.name]):
        done = fieldray(*arguments)
        assert done.returncode == 0, done.stderr
        assert_plain(done.stdout, done.stderr)
        assert not [line for line in done.stdout.split("\n") if "built-in" in line and "\\n" not in line]
    done = fieldray("screen", tmp_path / FORGED_LINE, "--pack", drive / "fieldray" / pack.name)
    assert_plain(done.stdout, done.stderr)
    assert not any(map(RESULT.match, done.stderr.splitlines()))
