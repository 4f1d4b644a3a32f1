from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archives import archive_request
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.errors import UsageProblem
from fieldray.settings import Settings
from fieldray.store.results import ResultStore
from fieldray.store.rows import ref_text
from fieldray_cluster.archive_folder import ArchiveFolder, ImageList, is_merged, make_image_list
from fieldray_cluster.worker_registry import ArchivePiece
from outcomes import run_spec, screened


def test_a_range_is_halved_without_a_gap() -> None:
    assert ArchivePiece(3, 8).halves() == (
        ArchivePiece(3, 5, worker_death_count=1),
        ArchivePiece(5, 8, worker_death_count=1),
    )


def test_remaining_pieces_are_those_without_a_file_of_results(tmp_path: Path) -> None:
    with ArchiveFolder(tmp_path / "out") as folder:
        assert list(folder.remaining_pieces(7, images_per_piece=3)) == [
            ArchivePiece(0, 3),
            ArchivePiece(3, 6),
            ArchivePiece(6, 7),
        ]
        folder.write_results(ArchivePiece(2, 4), b"")
        folder.write_results(ArchivePiece(3, 6), b"")  # overlaps another file, so it is not used
        folder.write_results(ArchivePiece(6, 9), b"")  # past the end of the list
        (folder.path / "chunks" / ".17-new").touch()
        assert folder.finished_pieces(7) == (ArchivePiece(2, 4),)
        assert list(folder.remaining_pieces(7, images_per_piece=3)) == [ArchivePiece(0, 2), ArchivePiece(4, 7)]
        folder.delete_results(ArchivePiece(2, 4))
        assert list(folder.remaining_pieces(2, images_per_piece=9)) == [ArchivePiece(0, 2)]


def test_any_range_of_the_list_can_be_read_whatever_the_file_names(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(2500)] + [os.fsdecode(b"odd \xff name"), "Знімок"]
    refs = [ImageRef(path=tmp_path / name, header=ImageHeader(patient_name="Ґ")) for name in names]
    counts: list[int] = []
    with ArchiveFolder(tmp_path / "out") as folder:
        assert not folder.has_image_list
        folder.write_image_list(((ref, "") for ref in refs), progress=counts.append)
        assert folder.has_image_list and counts == [1024, 2048, 2502]
        with folder.open_image_list() as images:
            assert len(images) == 2502
            for piece in (
                ArchivePiece(0, 1),
                ArchivePiece(1000, 1100),
                ArchivePiece(1023, 2049),
                ArchivePiece(2400, 2502),
            ):
                part = refs[piece.start : piece.stop]
                assert images.ref_texts(piece) == tuple(map(ref_text, part))
                assert images.image_files(piece) == tuple(ref.path for ref in part)


def test_a_list_that_was_cut_short_is_named(tmp_path: Path) -> None:
    with ArchiveFolder(tmp_path / "out") as folder:
        (folder.path / "list.parquet").write_bytes(b"PAR1")
        with pytest.raises(UsageProblem, match="is damaged"):
            folder.open_image_list()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("{archive}/a.png", None),
        ("{archive}/deep/a.zip", None),
        ("{disc}/IMAGES/1", None),  # as for a DICOMDIR that was given as a file
        ("/etc/passwd", "is damaged"),
        ("{archive}/../secret.png", "is damaged"),
        ("{archive}-other/a.png", "is damaged"),
    ],
)
def test_a_list_with_files_outside_its_paths_is_damaged(tmp_path: Path, path: str, problem: str | None) -> None:
    archive, disc = tmp_path / "archive", tmp_path / "disc"
    for folder in (archive, disc):
        folder.mkdir()
    (disc / "DICOMDIR").touch()
    refs = [ImageRef(path=archive / "b.png"), ImageRef(path=Path(path.format(archive=archive, disc=disc)))]
    with ArchiveFolder(tmp_path / "out") as folder:
        folder.store_request(archive_request(archive, disc / "DICOMDIR"))
        folder.write_image_list(((ref, "") for ref in refs), progress=lambda _count: None)
        if problem is None:
            with folder.open_image_list() as images:
                assert len(images) == 2
            return
        with pytest.raises(UsageProblem, match=problem):
            folder.open_image_list()


def test_a_list_whose_images_are_not_those_of_its_files_is_damaged(tmp_path: Path) -> None:
    """A node gets the file of a row and reports its image, so both must fit."""
    with ArchiveFolder(tmp_path / "out") as folder:
        folder.write_image_list([(ImageRef(path=tmp_path / "a.png"), "")], progress=lambda _count: None)
        table = pq.read_table(folder.path / "list.parquet")
        other = table.set_column(0, "path", pa.array([os.fsencode(tmp_path / "secret")], pa.binary()))
        pq.write_table(other, folder.path / "list.parquet")
        with pytest.raises(UsageProblem, match="is damaged"):
            folder.open_image_list()
        with ImageList(folder.path / "list.parquet") as images, pytest.raises(UsageProblem, match="is damaged"):
            images.ref_texts(ArchivePiece(0, 1))


@pytest.mark.parametrize("rows", [[0, 1, 2, 2], [0, 1], [1, 0, 2]])
def test_a_list_with_other_rows_than_were_written_is_damaged(tmp_path: Path, rows: list[int]) -> None:
    """One row is doubled, one is cut off, or two are swapped."""
    with ArchiveFolder(tmp_path / "out") as folder:
        folder.store_request(archive_request(tmp_path))
        refs = [ImageRef(path=tmp_path / f"{number}.png") for number in range(3)]
        folder.write_image_list(((ref, "") for ref in refs), progress=lambda _count: None)
        path = folder.path / "list.parquet"
        pq.write_table(pq.read_table(path).take(rows), path)
        for use in (lambda: folder.has_image_list, folder.open_image_list):
            with pytest.raises(UsageProblem, match=r"list\.parquet is damaged"):
                use()


def test_a_list_that_a_power_cut_left_without_its_digest_is_made_again(tmp_path: Path) -> None:
    request = archive_request(tmp_path)
    with ArchiveFolder(tmp_path / "out") as folder:
        folder.store_request(request)
        before = (folder.path / "archive.json").read_bytes()
        folder.write_image_list([(ImageRef(path=tmp_path / "a.png"), "")], progress=lambda _count: None)
        (folder.path / "archive.json").write_bytes(before)
        assert not folder.has_image_list
        folder.write_results(ArchivePiece(0, 1), b"")
        with pytest.raises(UsageProblem, match=r"Restore the file archive\.json"):
            make_image_list(folder, [str(tmp_path)], Settings(), progress=lambda _count: None)


def test_the_output_folder_is_private_and_used_by_one_process(tmp_path: Path) -> None:
    with ArchiveFolder(tmp_path / "out") as folder:
        assert not folder.path.stat().st_mode & 0o077
        with pytest.raises(UsageProblem, match=rf"Another program \(process {os.getpid()}\) is working on"):
            ArchiveFolder(tmp_path / "out")


def test_other_settings_or_another_version_need_another_output_folder(tmp_path: Path) -> None:
    request = archive_request("/scans")
    with ArchiveFolder(tmp_path / "out") as folder:
        folder.store_request(replace(request, paths=("/scnas",)))
        folder.write_image_list((), progress=lambda _count: None)  # no image was found, so they may be corrected
        folder.store_request(request)
        folder.write_image_list([(ImageRef(path=Path("/scans/a.png")), "")], progress=lambda _count: None)
        folder.store_request(request)
        for other in (
            replace(request, settings=(("device", "cpu"), ("keep_previews", False))),
            replace(request, program_version="0.0.1"),
        ):
            with pytest.raises(UsageProblem, match="begun with other paths"):
                folder.store_request(other)


def test_a_run_of_other_paths_is_not_taken_for_that_of_the_archive(tmp_path: Path) -> None:
    database, spec = tmp_path / "results.sqlite", run_spec()
    assert not is_merged(database, 1, spec)
    with ResultStore(database) as store:
        store.save_image(store.open_run(spec), screened(), spec=spec)
        store.set_run_state(1, "finished")
    assert is_merged(database, 1, spec)
    assert not is_merged(database, 1, replace(spec, paths=("/elsewhere",)))
    assert not is_merged(database, 2, spec)
