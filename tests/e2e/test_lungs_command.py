"""Screening with a lung-field pack from the command line: refused images, results, maps, and a missing pack."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fieldray.domain.model import InputSpec, OutOfDistributionCheck, PackRequirement
from program import Fieldray
from tiny_lungs import write_tiny_lungs
from tiny_packs import fingerprint, write_tiny_pack

LUNGS = PackRequirement(kind="lung-fields", id="test-lungs", minimum_version="1.0.0")  # not the shipped pack
SIDE = 256
Screened = Callable[..., list[dict[str, Any]]]


def chest(*, grey: int = 170) -> np.ndarray:
    """Return a grey image with a bright edge and two dark fields, which the tiny network takes for lungs."""
    image = np.full((SIDE, SIDE), grey, np.uint8)
    image[192:, ::4] += 30  # else the lower part would be empty
    image[:8] = 255
    image[64:192, 32:112] = image[64:192, 144:224] = 20
    return image


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    """Return a classifier pack whose inputs are cropped to the lungs, and a lung-field pack."""
    folder = tmp_path / "drive" / "fieldray"
    write_tiny_lungs(folder)
    spec = InputSpec(height=64, width=64, crop="lungs", crop_margin=0.1)
    return write_tiny_pack(folder, requires=(LUNGS,), input=spec)


@pytest.fixture
def pack_options(packs: Path) -> list[str]:
    return ["--pack", str(packs), "--trust", fingerprint(packs)]


@pytest.fixture
def screened(screen: Fieldray) -> Screened:
    """A function that screens the images and returns the lines of output. It requires exit code 0."""

    def run(*more: object) -> list[dict[str, Any]]:
        return screen(*more, "--json", "-").ends_with(0).lines

    return run


def test_lungs_are_found_used_for_cropping_and_printed(tmp_path: Path, screened: Screened) -> None:
    save(tmp_path / "images" / "chest.png", chest())
    (line,) = screened()
    assert line["status"] == "screened"
    lungs = line["lungs"]
    # 128 rows of 80 columns, of 256 x 256: 0.15625 each
    assert (lungs["left_share"], lungs["right_share"]) == pytest.approx((0.156, 0.156), abs=0.03)
    assert (lungs["found"], lungs["cut_off"], lungs["rotation_degrees"]) == (True, [], 0)
    assert set(lungs) >= {"found", "left_share", "right_share", "cut_off", "rotation_degrees", "evidence_inside"}
    assert line["notes"] == []


def test_an_image_in_which_the_pack_finds_no_chest_is_refused(
    tmp_path: Path, screen: Fieldray, screened: Screened
) -> None:
    bright = np.full((SIDE, SIDE), 255, np.uint8)
    bright[:, :16] = 0
    save(tmp_path / "images" / "bright.png", bright)
    (line,) = screened()
    assert (line["status"], line["reason_code"]) == ("refused", "inverted")
    assert line["lungs"]["is_inverted"] is True
    assert "can be corrected and then screened. (--turn)" in screen().out


def test_a_refused_image_is_screened_only_with_the_option_for_it(
    tmp_path: Path, fieldray: Fieldray, screened: Screened
) -> None:
    """The tiny network finds no chest in the negative of an inverted image, so that image stays refused."""
    save(tmp_path / "images" / "negative.png", 255 - chest(grey=5))

    def result(*more: str | Path) -> tuple[object, list[str], object]:
        (line,) = screened(*more)
        return line["reason_code"], [note["code"] for note in line["notes"]], line["taken_over_by"] is not None

    anyway = ["screened_anyway", "inverted"]
    assert result("--anyway") == (None, anyway, False)
    shown = fieldray("history", "show", "1").out
    assert "but a user chose to screen the image" in shown and "The image is inverted" in shown
    assert result() == ("inverted", [], False)
    assert result("--turn") == ("inverted", [], False)
    both = ["grey_swapped_back", "screened_anyway", "not_frontal_chest"]
    assert result("--turn", "--anyway", "--out", tmp_path / "out") == (None, both, False)
    (table,) = (tmp_path / "out").glob("*.csv")
    assert f'"{" ".join(both)}"' in table.read_text(encoding="utf-8-sig")
    assert result("--anyway") == (None, anyway, True)
    assert result() == ("inverted", [], True)


def test_maps_keep_the_folders_of_their_images(tmp_path: Path, screen: Fieldray) -> None:
    image = save(tmp_path / "images" / "chest.png", chest())
    save(tmp_path / "images" / "deep" / "chest.png", chest(grey=180))
    with zipfile.ZipFile(tmp_path / "images" / "more.zip", "w") as archive:
        archive.write(image, "in/chest.png")
    maps = tmp_path / "maps"
    for _ in range(2):  # the second time nothing is screened and everything is written again
        screen("--maps", maps).ends_with(0).prints(f"Written: {maps} (maps of 3 images)")
    names = ["chest.png", "deep/chest.png", "more.zip/in/chest.png"]
    written = sorted(str(path.relative_to(maps).as_posix()) for path in maps.rglob("*.*") if path.is_file())
    suffixes = ("lungs.png", "map.json", "map.npy", "overlay.png")
    assert written == sorted(f"{name}.{suffix}" for name in names for suffix in suffixes)
    with Image.open(maps / "chest.png.lungs.png") as mask:
        assert (mask.mode, mask.size) == ("1", (SIDE, SIDE))
        inside = np.asarray(mask)
    truth = chest() < 100
    assert 2 * (inside & truth).sum() / (inside.sum() + truth.sum()) > 0.9
    about = json.loads((maps / "chest.png.map.json").read_text())
    # rows 64 to 192 and columns 32 to 224 with a tenth more on each side
    assert about["box"]["top"] == pytest.approx(64 - 12.8, abs=8)  # half of a cell
    assert about["box"]["width"] == pytest.approx(192 * 1.2, abs=16)  # on each side
    assert np.load(maps / "chest.png.map.npy").shape == (about["rows"], about["columns"])


def test_maps_in_the_folder_of_images_are_not_screened(tmp_path: Path, screen: Fieldray) -> None:
    folder = save(tmp_path / "images" / "chest.png", chest()).parent
    screen("--maps", folder).ends_with(0)
    done = screen("--fresh").ends_with(0)
    done.prints("2 result files of this program were found among the images and left out.", "3 images in")
    assert done.out.index("not suitable 2") < done.out.index("result files")  # the remark does not come before the list


def test_an_unwritable_folder_for_maps_is_reported_before_screening(
    tmp_path: Path, home: Path, screen: Fieldray
) -> None:
    save(tmp_path / "images" / "chest.png", chest())
    (tmp_path / "file").touch()
    screen("--maps", tmp_path / "file" / "maps").ends_with(2).complains("Cannot write to")
    done = screen("--maps", home / "maps").ends_with(2).complains("program's own folder")
    assert "image in" not in done.out


def test_images_unlike_those_the_pack_was_measured_on_are_screened_with_a_note(
    tmp_path: Path, run_ok: Fieldray
) -> None:
    folder = tmp_path / "drive" / "fieldray"
    write_tiny_lungs(folder)
    far = OutOfDistributionCheck(mean=np.full(4, 50.0, np.float32), projection=np.eye(4, dtype=np.float32), limit=1.0)
    with_lungs = write_tiny_pack(folder, requires=(LUNGS,), ood_gate=far)
    save(tmp_path / "images" / "chest.png", chest())
    save(tmp_path / "images" / "other.png", chest(grey=180))
    trust = ["--trust", fingerprint(with_lungs)]
    done = run_ok("screen", tmp_path / "images", "--pack", with_lungs, *trust, "--json", "-")
    for line in done.lines:
        assert line["status"] == "screened"
        assert "unlike_measured" in [note["code"] for note in line["notes"]]
    done.complains("2 images are unlike the images that the pack was measured on.")


def test_each_image_has_its_own_lungs_when_many_are_screened_at_once(tmp_path: Path, screened: Screened) -> None:
    """The right lung grows from image to image, so that mixed-up lungs would show."""
    for number in range(12):
        pixels = chest()
        pixels[64:192, 32:112] = 170
        pixels[64 : 112 + 8 * number, 32:112] = 20
        save(tmp_path / "images" / f"{number:02}.png", pixels)
    lines = sorted(screened("--jobs", "4"), key=lambda line: str(line["path"]))
    # 80 columns by 48 rows and 8 more each time, of 256 x 256 pixels; the edges of a lung are soft
    expected = [80 * (48 + 8 * number) / 256**2 for number in range(12)]
    assert [line["lungs"]["right_share"] for line in lines] == pytest.approx(expected, abs=0.03)
    assert [line["lungs"]["right_share"] for line in lines] == sorted(line["lungs"]["right_share"] for line in lines)
