"""Images written by `--maps` and `fieldray compare`: sizes, positions, meanings, and no foreign file replaced."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fieldray.domain.comparison import DENSER_COLOUR, FRAME_SIDE
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import CoordinateMap, ImageHeader, ImageRef
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.reasons import reason
from fieldray.reports.images import (
    MapFileNames,
    overlay_input_spec,
    pair_comparison_as_json,
    pair_overlay,
    require_writable_pair_files,
    write_class_map,
    write_comparison,
    write_lung_mask,
    write_overlay,
)
from fieldray.reports.outputs import is_own_report
from fieldray.workers.pool import WorkerPool
from lungs import COLUMNS, ROWS, lungs
from outcomes import failed, read_facts, screened
from pairs import chest, pair_comparison
from tiny_models import tiny_manifest


def image(**changes: Any) -> ScreenedOutcome:
    """An outcome of an image of 800 x 400 with lungs and a class map of 2 x 4 cells over all of it; tensor 64 x 64."""
    facts = replace(
        read_facts(), rows=ROWS, columns=COLUMNS, input_to_image=CoordinateMap(ROWS / 64, 0.0, COLUMNS / 64, 0.0)
    )
    maps = np.full((1, 2, 4), -4.0, np.float32)
    maps[0, 1, 0] = 6.0
    return replace(screened(), **{"facts": facts, "class_maps": maps, "lungs": lungs(), **changes})


def test_the_mask_has_one_bit_per_pixel_of_the_image(tmp_path: Path) -> None:
    assert write_lung_mask(tmp_path / "a.png", image(), inputs=())
    with Image.open(tmp_path / "a.png.lungs.png") as found:
        assert (found.mode, found.size) == ("1", (COLUMNS, ROWS))
        mask = np.asarray(found)
    assert np.array_equal(mask, lungs().mask_at_image_size(rows=ROWS, columns=COLUMNS))


def test_without_found_lungs_no_mask_is_written(tmp_path: Path) -> None:
    for outcome in (image(lungs=None), failed()):
        assert not write_lung_mask(tmp_path / "a.png", outcome, inputs=())
    assert list(tmp_path.iterdir()) == []


def test_the_class_map_states_its_position_and_scale(tmp_path: Path) -> None:
    write_class_map(tmp_path / "a.png", image(), tiny_manifest(), inputs=())
    found = np.load(tmp_path / "a.png.map.npy", allow_pickle=False)
    assert (found.dtype, found.shape, found[1, 0]) == (np.float32, (2, 4), 6.0)
    about = json.loads((tmp_path / "a.png.map.json").read_text())
    assert about["box"] == {"left": 0.0, "top": 0.0, "width": 400.0, "height": 800.0}
    # the threshold of 0.5 is a logit of 0; a strength of 1 is 6 above it
    assert about["scale"] == {"unit": "logit", "none": 0.0, "strongest": 6.0}
    assert (about["label"], about["threshold"], about["rows"], about["columns"]) == ("opacity", 0.5, 2, 4)
    assert (about["image_rows"], about["image_columns"]) == (ROWS, COLUMNS)


def test_the_class_map_of_a_crop_has_the_box_of_the_crop(tmp_path: Path) -> None:
    facts = replace(image().facts, input_to_image=CoordinateMap(5.0, 200.0, 4.0, 50.0))
    write_class_map(tmp_path / "a.png", image(facts=facts), tiny_manifest(), inputs=())
    about = json.loads((tmp_path / "a.png.map.json").read_text())
    assert about["box"] == {"left": 50.0, "top": 200.0, "width": 256.0, "height": 320.0}


def overlay(tmp_path: Path, outcome: ScreenedOutcome) -> np.ndarray:
    spec = overlay_input_spec(ROWS, COLUMNS)
    assert (spec.height, spec.width) == (ROWS, COLUMNS)
    grey = np.full((spec.height, spec.width), 100, np.uint8)
    write_overlay(tmp_path / "a.png", outcome, tiny_manifest(), grey=grey, inputs=())
    with Image.open(tmp_path / "a.png.overlay.png") as found:
        assert found.mode == "RGB"
        return np.asarray(found).astype(int)


def test_the_overlay_is_coloured_where_the_evidence_is_and_outlined(tmp_path: Path) -> None:
    painted = overlay(tmp_path, image())
    hot, cold, line = painted[600, 50], painted[300, 220], painted[200:210, 40:160]
    assert hot[0] > hot[2] + 40
    assert (cold == 100).all()
    assert (line[:, :, 2] > 200).any()  # the upper end of a lung


def test_the_overlay_of_a_crop_is_coloured_inside_the_crop_alone(tmp_path: Path) -> None:
    everywhere = np.full((1, 2, 4), 6.0, np.float32)
    facts = replace(image().facts, input_to_image=CoordinateMap(5.0, 200.0, 4.0, 50.0))  # rows 200-520, columns 50-306
    painted = overlay(tmp_path, image(facts=facts, class_maps=everywhere, lungs=None))
    is_coloured = painted.max(2) - painted.min(2) > 10
    rows, columns = np.flatnonzero(is_coloured.any(1)), np.flatnonzero(is_coloured.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (200, 519, 50, 305)


def test_the_overlay_of_a_large_image_is_reduced() -> None:
    assert (overlay_input_spec(4892, 4020).height, overlay_input_spec(4892, 4020).width) == (1024, 841)
    assert (overlay_input_spec(64, 100).height, overlay_input_spec(64, 100).width) == (64, 100)


def test_maps_in_a_zip_are_not_screened(tmp_path: Path) -> None:
    write_lung_mask(tmp_path / "a.png", image(), inputs=())
    write_class_map(tmp_path / "a.png", image(), tiny_manifest(), inputs=())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in tmp_path.glob("a.png.*"):
            archive.write(path, path.name)
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024) as workers:
        for members in (None, workers.zip_members):
            (ref,) = discover([tmp_path / "a.zip"], list_members=members, is_own_report=is_own_report)
            assert ref.zip_member == "a.png.lungs.png" and ref.problem and ref.problem.code == "own_image"


def test_maps_replace_earlier_maps_and_no_other_file(tmp_path: Path) -> None:
    for _ in range(2):
        write_lung_mask(tmp_path / "a.png", image(), inputs=())
        write_class_map(tmp_path / "a.png", image(), tiny_manifest(), inputs=())
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(written) == ["a.png.lungs.png", "a.png.map.json", "a.png.map.npy"]
    assert all(is_own_report(data[: 2**15]) for data in written.values())
    np.save(tmp_path / "b.png.map.npy", np.zeros((2, 4), np.float32))
    Image.new("1", (4, 4)).save(tmp_path / "b.png.lungs.png")
    for write in (
        lambda: write_class_map(tmp_path / "b.png", image(), tiny_manifest(), inputs=()),
        lambda: write_lung_mask(tmp_path / "b.png", image(), inputs=()),
    ):
        with pytest.raises(UsageProblem) as problem:
            write()
        assert problem.value.reason.code == "output_not_ours"


def test_an_input_file_is_not_replaced_even_if_it_is_an_earlier_map(tmp_path: Path) -> None:
    write_lung_mask(tmp_path / "a.png", image(), inputs=())
    with pytest.raises(UsageProblem) as problem:
        write_lung_mask(tmp_path / "a.png", image(), inputs=(tmp_path / "a.png.lungs.png",))
    assert problem.value.reason.code == "output_is_input"


# ---- names


def test_maps_keep_the_folders_of_the_images_and_make_folders_of_zips(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    names, out = MapFileNames(Path("out"), [tmp_path / "in"]), Path("out")
    assert names.path_without_suffix(ImageRef(path=tmp_path / "in" / "a.png")) == out / "a.png"
    assert names.path_without_suffix(ImageRef(path=tmp_path / "in" / "deep" / "a.png")) == out / "deep" / "a.png"
    assert (
        names.path_without_suffix(ImageRef(path=tmp_path / "in" / "b.zip", zip_member="x/a.png"))
        == out / "b.zip" / "x" / "a.png"
    )
    frames = ImageHeader(number_of_frames=2)
    assert (
        names.path_without_suffix(ImageRef(path=tmp_path / "in" / "c.dcm", frame=1, header=frames)) == out / "c.dcm#1"
    )


def test_images_of_one_name_in_several_folders_get_separate_maps(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    names = MapFileNames(Path("out"), [tmp_path / "one", tmp_path / "two"])
    found = [names.path_without_suffix(ImageRef(path=tmp_path / folder / "a.png")) for folder in ("one", "two")]
    assert found == [Path("out/one/a.png"), Path("out/two/a.png")]


def test_maps_of_a_single_file_are_at_the_top(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    names = MapFileNames(Path("out"), [tmp_path / "a.png"])
    assert names.path_without_suffix(ImageRef(path=tmp_path / "a.png")) == Path("out/a.png")


@pytest.mark.parametrize(
    ("member", "name"),
    [
        ("../../evil.png", "evil.png"),
        ("/etc/evil.png", "etc/evil.png"),
        ("C:\\evil.png", "C_/evil.png"),
        ("a:b?.png", "a_b_.png"),
        ("nul.png", "_nul.png"),
        ("trailing. /x.png", "trailing/x.png"),
        ("\x00\x1b[2J.png", "__[2J.png"),
        ("-rf/--help.png", "_-rf/_--help.png"),
        ("..", ""),
    ],
)
def test_no_name_in_a_zip_file_leaves_the_folder(tmp_path: Path, member: str, name: str) -> None:
    names = MapFileNames(tmp_path / "out", [tmp_path / "b.zip"])
    stem = names.path_without_suffix(ImageRef(path=tmp_path / "b.zip", zip_member=member))
    assert stem == tmp_path / "out" / "b.zip" / name


@pytest.mark.skipif(os.name != "posix", reason="links are made by anybody there")
def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for folder in (out / "inside", elsewhere):
        folder.mkdir(parents=True)
    for name, target in (("away", elsewhere), ("back", out / "inside"), ("up", tmp_path)):
        (out / name).symlink_to(target)
    (tmp_path / "named").symlink_to(out)  # the folder itself may be a link, because a person named it
    names = MapFileNames(tmp_path / "named", [tmp_path / "in"])
    for member in ("away/a.png", "away/deep/a.png", "up/a.png"):
        with pytest.raises(StorageProblem) as problem:
            names.path_without_suffix(ImageRef(path=tmp_path / "in" / member))
        assert problem.value.reason.code == "not_plain"
    assert (
        names.path_without_suffix(ImageRef(path=tmp_path / "in" / "back" / "a.png"))
        == tmp_path / "named" / "back" / "a.png"
    )
    assert (
        names.path_without_suffix(ImageRef(path=tmp_path / "in" / "new" / "a.png"))
        == tmp_path / "named" / "new" / "a.png"
    )


def test_equal_output_names_get_a_number(tmp_path: Path) -> None:
    names = MapFileNames(Path("out"), [tmp_path / "b.zip"])
    stems = [
        names.path_without_suffix(ImageRef(path=tmp_path / "b.zip", zip_member=member))
        for member in ("a:.png", "a?.png", "A_.PNG")
    ]
    assert [stem.name for stem in stems] == ["a_.png", "a_.png~2", "A_.PNG~3"]


@pytest.mark.skipif(sys.platform == "win32", reason="a path of POSIX")
def test_a_name_as_long_as_a_system_allows_leaves_room_for_the_suffix(tmp_path: Path) -> None:
    names = MapFileNames(tmp_path, [tmp_path])
    for letter in ("x", "ї"):  # of one byte and of two
        stem = names.path_without_suffix(ImageRef(path=tmp_path / (letter * 251 + ".png")))
        write_lung_mask(stem, image(), inputs=())
        assert len(stem.name.encode()) == 200


# ---- a comparison

COMPARED = pair_comparison(shift=(3.0, 3.0), regions=1)
REFUSED = pair_comparison(why=reason("compare_unlike"))


def test_a_comparison_writes_three_files_and_a_refused_one_none(tmp_path: Path) -> None:
    written = write_comparison(tmp_path, COMPARED, inputs=())
    assert {path.name for path in written} == {"warped_prior.png", "overlay.png", "displacement.npy"}
    assert np.load(tmp_path / "displacement.npy")[7, 9].tolist() == [3.0, 3.0]
    (tmp_path / "notes.txt").write_text("mine")
    assert write_comparison(tmp_path, REFUSED, inputs=()) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_foreign_file_is_not_replaced_by_a_comparison(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "overlay.png")
    with pytest.raises(UsageProblem):
        require_writable_pair_files(tmp_path, inputs=())
    with pytest.raises(UsageProblem):
        write_comparison(tmp_path, REFUSED, inputs=())
    assert (tmp_path / "overlay.png").exists()


def test_the_comparison_overlay_has_regions_and_a_label() -> None:
    assert COMPARED.aligned_pair is not None
    picture = pair_overlay(chest(), COMPARED.aligned_pair)
    assert picture.size[0] == FRAME_SIDE
    assert picture.size[1] > FRAME_SIDE
    assert picture.getpixel((178, 130)) == DENSER_COLOUR  # two pixels left of the box
    below = np.asarray(picture)[FRAME_SIDE:]
    assert below.any() and not below[-2:].any() and not below[:, -4:].any()  # no text is cut off


def test_the_comparison_json_has_boxes_areas_and_strengths() -> None:
    facts = json.loads(pair_comparison_as_json(COMPARED))
    assert facts["regions"] == [
        {"box": {"left": 180, "top": 120, "width": 40, "height": 40}, "area": 1600, "strength": 5.0}
    ]
    # 3 rows and 3 columns everywhere: 4.243
    assert (facts["displacement_median_px"], facts["displacement_p95_px"]) == (4.243, 4.243)
    assert facts["notice"].startswith("Research use only.")
