"""The file of pictures: whatever happens to this file, no result is lost and no run ends."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stores
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import Correction
from fieldray.errors import StorageProblem
from fieldray.reasons import reason
from fieldray.store.database import companion_files, damage_mark_path
from fieldray.store.maintenance import delete_damaged_pictures
from fieldray.store.pictures import delete_pictures, delete_pictures_except, pictures_path
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.work_list import HistoryQuery
from outcomes import image_ref, read_facts, screened
from stores import SPEC, change, rows_of, save_run

CONTENTS = "0123456789abcdef"


def image(content: str, *, preview: bytes = b"JPEG of a patient " * 400) -> ScreenedOutcome:
    """An image whose content hash consists of `content`, with pictures."""
    return stores.image(f"{content}.dcm", content, preview=preview + content.encode())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with 16 results and their pictures."""
    place = tmp_path / "home" / "results.sqlite"
    with ResultStore(place) as store:
        save_run(store, *map(image, CONTENTS), is_over=True)
    return place


def shown(path: Path) -> str:
    """The contents whose thumbnail and preview can both be read."""
    with HistoryQuery(path) as query:
        thumbnails = {
            result.outcome.facts.content_sha256[0]
            for result in query.results(1)
            if result.outcome.facts.thumbnail is not None
        }
        previews = {content for content in CONTENTS if query.preview(content * 64, frame=0)}
    assert thumbnails == previews
    return "".join(sorted(previews))


def results(path: Path) -> int:
    with ResultQuery(path) as query:
        return len(list(query.results(1)))


def test_the_picture_file_can_be_deleted_and_the_next_run_makes_a_new_one(path: Path) -> None:
    assert shown(path) == CONTENTS
    pictures_path(path).unlink()
    assert (results(path), shown(path)) == (16, "")
    with ResultStore(path) as store:
        save_run(store, image("3"))
    assert shown(path) == "3"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows holds open files fast")
def test_the_picture_file_can_be_deleted_during_a_run(store: ResultStore, path: Path) -> None:
    run_id = store.open_run(SPEC)
    store.save_image(run_id, image("0"), spec=SPEC)
    pictures_path(path).unlink()
    for content in "12":
        store.save_image(run_id, image(content), spec=SPEC)
    assert store.category_counts(run_id) == {"abnormal": 3}
    store.close()
    assert shown(path) == ""


def test_the_log_of_a_deleted_picture_file_is_not_applied_to_a_new_one(path: Path, tmp_path: Path) -> None:
    delete_pictures_except(path, ())
    with ResultStore(path) as store:
        save_run(store, image("0"))
        copy = tmp_path / "copy"
        shutil.copytree(path.parent, copy)
    pictures = pictures_path(copy / path.name)
    assert companion_files(pictures)[0].stat().st_size > 0
    pictures.unlink()
    with ResultStore(copy / path.name) as store:
        save_run(store, image("5"))
    assert shown(copy / path.name) == "5"
    assert rows_of(pictures, "PRAGMA integrity_check") == [("ok",)]


def damage(path: Path) -> None:
    """Write nonsense over the last third, which holds pictures."""
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(size * 2 // 3)
        stream.write(b"\xa5" * (size // 3))


def test_a_damaged_picture_file_is_replaced_and_no_result_is_lost(path: Path) -> None:
    damage(pictures_path(path))
    assert results(path) == 16
    assert damage_mark_path(pictures_path(path)).exists()
    with ResultStore(path) as store:  # until the file is replaced, no picture is stored
        save_run(store, image("0"))
    assert delete_damaged_pictures(path) == reason("pictures_renewed", path=pictures_path(path))
    assert on_disk(path) == b"" and delete_damaged_pictures(path) is None
    with ResultStore(path) as store:
        save_run(store, image("0"))
    assert shown(path) == "0"
    assert results(path) == 16


@pytest.mark.parametrize(
    "order",
    [
        "CREATE TRIGGER t AFTER INSERT ON pictures BEGIN DELETE FROM pictures; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE pictures",
        "PRAGMA user_version = 99",
    ],
)
def test_a_foreign_picture_file_is_not_used_and_ends_no_run(path: Path, order: str) -> None:
    change(pictures_path(path), order)
    with ResultStore(path) as store:
        run_id = save_run(store, image("0"))
        assert store.result(1).outcome.facts.thumbnail is None
        assert store.category_counts(run_id) == {"abnormal": 1}


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_a_link_instead_of_the_picture_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "image.png"
    victim.write_bytes(b"an X-ray")
    pictures_path(path).unlink()
    pictures_path(path).symlink_to(victim)
    with ResultStore(path) as store:
        save_run(store, image("0"))
    assert victim.read_bytes() == b"an X-ray"
    with pytest.raises(StorageProblem):
        delete_pictures_except(path, ())


# ---- deletion


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob("*pictures*"))


def keys(contents: str) -> list[tuple[bytes, int]]:
    return [(bytes.fromhex(content * 64), 0) for content in contents]


@pytest.mark.parametrize("needed", ["", "0", "f", "5a", CONTENTS])
def test_deleted_pictures_leave_no_bytes_and_needed_ones_stay(store: ResultStore, path: Path, needed: str) -> None:
    """Also while another program has the file open."""
    store.result(1)
    assert delete_pictures_except(path, keys(needed)) == (16 - len(needed), True)
    left = on_disk(path)
    assert [content for content in CONTENTS if b"patient " + content.encode() in left] == list(needed)
    assert shown(path) == needed


def test_unknown_picture_keys_are_ignored(path: Path) -> None:
    wanted = sorted([*keys("37"), (b"\x33" * 31, 0), (b"\x33" * 32, 7), (b"\xff" * 33, 0)])
    assert delete_pictures_except(path, wanted) == (14, True)
    assert shown(path) == "37"


def test_an_unreadable_picture_file_is_deleted_as_a_whole(path: Path) -> None:
    damage(pictures_path(path))
    assert delete_pictures_except(path, keys("0")) == (0, True)
    assert on_disk(path) == b""
    assert results(path) == 16


def test_a_leftover_log_of_the_picture_file_is_deleted(path: Path) -> None:
    delete_pictures(path)
    companion_files(pictures_path(path))[0].write_bytes(b"patient")
    assert delete_pictures_except(path, ()) == (0, True)
    assert on_disk(path) == b""


def test_pictures_are_stored_unturned_and_shown_turned_like_the_result(tmp_path: Path) -> None:
    """Pictures belong to the content, of which one result may be turned and another not."""
    facts = replace(read_facts(), preview=b"JPEG as the file lies")
    assert facts.thumbnail is not None
    turned = screened(image_ref(correction=Correction(90)))
    lying = replace(turned, ref=image_ref(), facts=replace(facts, thumbnail=np.rot90(facts.thumbnail, -1)))
    for name, order in (("first", (turned, lying)), ("last", (lying, turned))):
        with ResultStore(tmp_path / name / "results.sqlite") as store:
            for outcome in order:
                row_id = store.save_image(store.open_run(SPEC, as_new_run=True), outcome, spec=SPEC).row_id
                found = store.result(row_id).outcome.facts.thumbnail
                assert found is not None and outcome.facts.thumbnail is not None
                assert np.array_equal(found, outcome.facts.thumbnail)
