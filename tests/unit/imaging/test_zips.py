"""ZIP files that are large, faulty or hostile: one row per member, nothing written, and little memory used."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest
from PIL import Image as Picture

from fieldray.domain.image import ImageRef
from fieldray.errors import Unreadable
from fieldray.imaging.archive import MemberSearch, open_archive, search_members
from fieldray.imaging.discover import discover
from fieldray.imaging.limits import MAX_ZIP_MEMBERS
from fieldray.imaging.source import open_file
from fieldray.imaging.synthetic import chest_phantom
from fieldray.imaging.whole_file import hash_file, read_bytes
from fieldray.workers.pool import PoolClosed, WorkerPool
from phantoms import saved, write_dicom, zipped
from raised import raises
from strange_services import reader_command

IMAGE = chest_phantom(64, 64, 7, abnormal=False)
METHODS = {"stored": 0, "deflate": 8}  # APPNOTE 4.4.5
_BOMB_BYTES = 64 * 2**20
_FEW_BYTES = 16 * 2**20


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_dicom(tmp_path_factory.mktemp("image") / "image.dcm", IMAGE).read_bytes()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """A pool whose child and helper processes have started before a test looks for leftover processes."""
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024) as pool:
        with pytest.raises(Unreadable):
            pool.hash_file(ImageRef(path=Path("nowhere.zip"), zip_member="nothing"))
        yield pool


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory, image: bytes) -> bytes:
    """A ZIP file of one image with 64 MB of zeros after it."""
    data = image + bytes(_BOMB_BYTES)
    return _zip(tmp_path_factory.mktemp("bombs") / "bomb", [("image.dcm", data)]).read_bytes()


def _zip(path: Path, members: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.write_bytes(zipped(members, method))
    return path


def _codes(refs: Iterator[ImageRef]) -> list[tuple[str | None, str | None]]:
    return [(ref.zip_member, ref.problem.code if ref.problem else None) for ref in refs]


def _stating(path: Path, bomb: bytes, size_bytes: int) -> Path:
    """A ZIP file of one member with another size in its listing."""
    data = bytearray(bomb)
    struct.pack_into("<I", data, data.rindex(b"PK\x01\x02") + 24, size_bytes)
    path.write_bytes(data)
    return path


# ---- unpacking


@pytest.mark.parametrize("method", METHODS)
def test_members_are_unpacked_unchanged(method: str, tmp_path: Path, image: bytes) -> None:
    long = bytes(range(256)) * 10_000
    path = _zip(tmp_path / "z.zip", [("a", image), ("b", long), ("c", b"x")], METHODS[method])
    with path.open("rb") as stream:
        archive = open_archive(stream)
        assert [archive.read(name) for name in "abc"] == [image, long, b"x"]
        assert archive.read("b", limit_bytes=100_000) == long[:100_000]


@pytest.mark.parametrize("stated_bytes", [9_000, 2**20])
def test_a_zip_bomb_with_a_false_size_takes_little_memory(stated_bytes: int, tmp_path: Path, bomb: bytes) -> None:
    path = _stating(tmp_path / "bomb.zip", bomb, stated_bytes)
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        (found,) = discover([path])
        for read in (read_bytes, hash_file):
            with raises(Unreadable, "damaged"):
                read(ImageRef(path=path, zip_member="image.dcm"))
        assert tracemalloc.get_traced_memory()[1] < _FEW_BYTES
    finally:
        tracemalloc.stop()
    assert found.zip_member == "image.dcm"


@pytest.mark.parametrize("method", METHODS)
def test_a_cut_or_changed_member_is_damaged(method: str, tmp_path: Path, image: bytes) -> None:
    path = _zip(tmp_path / "z.zip", [("image.dcm", image)], METHODS[method])
    whole = path.read_bytes()
    middle = whole.index(b"PK\x01\x02") // 2
    for harmed in (
        whole[:middle] + bytes(byte ^ 0x55 for byte in whole[middle : middle + 40]) + whole[middle + 40 :],
        b"XX" + whole[2:],
    ):
        path.write_bytes(harmed)
        with raises(Unreadable, "damaged"):
            read_bytes(ImageRef(path=path, zip_member="image.dcm"))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_unsupported_compression_method_is_reported(method: int, tmp_path: Path, image: bytes) -> None:
    path = _zip(tmp_path / "z.zip", [("image.dcm", image)], method)
    assert _codes(discover([path])) == [("image.dcm", "unsupported_compression")]


@pytest.mark.parametrize(("method", "code"), [(97, "unsupported_compression"), (8, "damaged")])
def test_a_listing_that_zipfile_refuses_has_a_reason(method: int, code: str, tmp_path: Path, image: bytes) -> None:
    path = _zip(tmp_path / "z.zip", [("image.dcm", image)])
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    if method == 8:  # a future version: zipfile raises NotImplementedError
        struct.pack_into("<H", data, at + 6, 900)
    struct.pack_into("<H", data, at + 10, method)
    path.write_bytes(data)
    assert [found for _, found in _codes(discover([path]))] == [code]


def test_running_out_of_memory_fails_the_file_not_the_run(tmp_path: Path, image: bytes) -> None:
    class _Full(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise MemoryError

    good = write_dicom(tmp_path / "b.dcm", IMAGE)
    (tmp_path / "a.dcm").write_bytes(image)

    def opener(path: Path) -> BinaryIO:
        return open_file(path) if path == good else _Full()

    found = [(ref.path.name, ref.problem.code if ref.problem else None) for ref in discover([tmp_path], opener=opener)]
    assert found == [("a.dcm", "damaged"), ("b.dcm", None)]


# ---- many members


def test_the_listing_is_read_once_however_many_members_are_read(tmp_path: Path) -> None:
    """The end of the file, with the listing, is not searched again."""
    count = 2_000
    path = _zip(tmp_path / "z.zip", [(f"{number:05}", b"%d" % number) for number in range(count)], zipfile.ZIP_STORED)
    read_bytes_in_all = 0

    class _Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal read_bytes_in_all
            data = super().read(size) or b""
            read_bytes_in_all += len(data)
            return data

    for number in range(count):
        ref = ImageRef(path=path, zip_member=f"{number:05}")
        assert read_bytes(ref, opener=lambda place: _Counted(str(place))) == b"%d" % number
    assert read_bytes_in_all < 2 * path.stat().st_size + 2**18


def test_a_zip_that_was_replaced_is_listed_again(tmp_path: Path) -> None:
    path = tmp_path / "z.zip"
    for content in (b"first", b"second and longer"):
        _zip(path, [("a", content)])
        assert read_bytes(ImageRef(path=path, zip_member="a")) == content


def test_a_zip_with_too_many_members_is_refused(tmp_path: Path) -> None:
    path = _zip(tmp_path / "z.zip", [("a", b"x")])
    data = path.read_bytes()
    listing_at, end_at = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    listing = data[listing_at:end_at] * (MAX_ZIP_MEMBERS + 1)
    end = data[end_at : end_at + 12] + struct.pack("<I", len(listing)) + data[end_at + 16 :]
    path.write_bytes(data[:listing_at] + listing + end)
    (found,) = discover([path])
    assert found.problem.code == "too_many_members"
    assert "65536" in found.problem.text
    assert "Unpack the zip file" in found.problem.text


def test_members_are_returned_in_parts(tmp_path: Path, image: bytes) -> None:
    path = _zip(tmp_path / "z.zip", [(f"{number:03}", image) for number in range(100)])
    part = search_members(MemberSearch(ref=ImageRef(path=path)))
    assert part.refs[0].zip_member == "000"
    assert len(part.refs) <= 32
    assert part.last_member == part.refs[-1].zip_member


def test_other_image_and_archive_formats_are_refused(tmp_path: Path) -> None:
    grey = Picture.fromarray(IMAGE.astype("uint8"))
    contents = {kind: saved(grey, kind) for kind in ("TIFF", "BMP", "GIF", "JPEG2000", "WEBP")}
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("image.dcm"))
    contents |= {"gz": gzip.compress(b"DICM"), "tar": tar.getvalue(), "xz": lzma.compress(b"DICM"), "txt": b"BMX is a"}
    expected = [(name, "other_image" if name.isupper() or "2" in name else "packed_otherwise") for name in contents]
    expected = sorted([*expected[:-1], ("txt", "not_an_image")])
    assert _codes(discover([_zip(tmp_path / "z.zip", list(contents.items()))])) == expected
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        (ref,) = discover([tmp_path / name])
        assert ref.problem_is_refusal and ref.problem and (name, ref.problem.code) in expected


def test_more_is_unpacked_only_for_members_with_a_header(tmp_path: Path) -> None:
    """A member that is no image by its first bytes, and too large in the listing, is not read further."""
    path = _zip(tmp_path / "z.zip", [("a", b"no image" * 2**15)], zipfile.ZIP_STORED)
    data = path.read_bytes()
    _stating(path, data, 2**20)
    assert _codes(discover([path])) == [("a", "not_an_image")]


def test_an_overlong_listing_is_refused(tmp_path: Path) -> None:
    path = _zip(tmp_path / "z.zip", [("a", b"x")])
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x05\x06") + 12, 2**25)
    path.write_bytes(data)
    assert _codes(discover([path])) == [(None, "too_large")]


def test_a_long_header_in_a_member_is_read_to_its_end(tmp_path: Path, image: bytes) -> None:
    pixels_at = image.index(b"\xe0\x7f\x10\x00OW")
    private = b"\x29\x10\x10\x00LO\x08\x00FIELDRAY" + b"\x29\x10\x10\x10OB\0\0" + (400_000).to_bytes(4, "little")
    long = image[:pixels_at] + private + bytes(400_000) + image[pixels_at:]
    (ref,) = discover([_zip(tmp_path / "z.zip", [("long.dcm", long)])])
    assert (ref.problem, ref.header.rows, ref.header.modality) == (None, 64, "DX")


# ---- names and kinds of members


def test_member_names_outside_the_folder_write_nothing(tmp_path: Path, image: bytes) -> None:
    names = ["../../escape.dcm", "/etc/absolute.dcm", "C:\\windows.dcm", "a/../../b.dcm", "con\nnew line.dcm", "nul"]
    path = _zip(tmp_path / "z.zip", [(name, image) for name in names])
    shown = ["../../escape.dcm", "etc/absolute.dcm", "C:/windows.dcm", *names[3:]]
    assert sorted(_codes(discover([path]))) == sorted((name, None) for name in shown)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["z.zip"]


@pytest.mark.parametrize("stroke", ["/", "\\"])
def test_system_files_are_skipped_in_a_zip_as_in_a_folder(stroke: str, tmp_path: Path, image: bytes) -> None:
    """Compares a folder, a ZIP file of it, and one with backslashes as PowerShell 5 writes it."""
    system = ["Thumbs.db", "ehthumbs.db", "AUTORUN.INF", "a/desktop.ini", "__MACOSX/a/._1.dcm", "a/.DS_Store"]
    system += ["._1.dcm", ".git/config", "$RECYCLE.BIN/3.dcm"]
    images = ["1.dcm", "a/2.dcm", "a/x.png"]
    members = [(name, image) for name in (*images, *system)]
    for name, data in members:
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    packed = [*((name.replace("/", stroke), data) for name, data in members), (f"a{stroke}", b""), (f"b{stroke}", b"")]
    found = list(discover([_zip(tmp_path / "z.zip", packed)]))
    in_folder = [ref.path.relative_to(tmp_path / "folder").as_posix() for ref in discover([tmp_path / "folder"])]
    assert [ref.zip_member for ref in found] == in_folder == images
    assert not any(ref.problem for ref in found)
    assert read_bytes(found[1]) == read_bytes(ImageRef(path=found[1].path, zip_member="a\\2.dcm")) == image


def test_one_file_in_several_spellings_is_listed_once(tmp_path: Path, image: bytes) -> None:
    names = ["a/1.dcm", "./a/1.dcm", "a//1.dcm", "a\\1.dcm", "/a/1.dcm", "x.png/"]
    path = _zip(tmp_path / "z.zip", [(name, image) for name in names])
    assert _codes(discover([path])) == [("a/1.dcm", None), ("x.png", None)]
    path = _zip(tmp_path / "z.zip", [("a/1.dcm", image), ("a\\1.dcm", image + b"\0\0")])
    assert _codes(discover([path])) == [("a/1.dcm", None), (None, "double_members")]


@pytest.mark.parametrize("name", ["META-INF/MANIFEST.MF", "mimetype", "[Content_Types].xml"])
def test_images_in_a_zip_that_resembles_a_document_are_found(name: str, tmp_path: Path, image: bytes) -> None:
    others = [(name, b"x"), ("word/document.xml", b"<x/>"), ("a/nested.zip", b"PK\x03\x04")]
    path = _zip(tmp_path / "z.zip", [*others, *((f"images/{number:02}.dcm", image) for number in range(40))])
    assert _codes(discover([path])) == [(f"images/{number:02}.dcm", None) for number in range(40)]
    assert _codes(discover([_zip(tmp_path / "letter.docx", others)])) == [(None, "not_an_image")]


@pytest.mark.parametrize(
    ("name", "page"),
    [
        *(
            (name, page)
            for name in ("Приклад/снимок 1", "ОГК_пряма", "ФЛГ", "где", "Снимок №2", "тест")
            for page in (866, 1251)
        ),
        *((name, 866) for name in ("Iваненко Iван", "есть")),
        ("Іваненко-Ґалаґан", 1251),
        *((name, 437) for name in ("café", "Müller", "Photo à Paris", "ångström", "½ dose")),
    ],
)
def test_a_member_name_in_a_code_page_is_decoded(name: str, page: int, tmp_path: Path, image: bytes) -> None:
    raw = f"{name}.dcm".encode(f"cp{page}")
    data = zipped([("x" * len(raw), image)], zipfile.ZIP_DEFLATED).replace(b"x" * len(raw), raw)
    (tmp_path / "z.zip").write_bytes(data)
    (ref,) = discover([tmp_path / "z.zip"])
    assert (ref.zip_member, read_bytes(ref)) == (f"{name}.dcm", image)


@pytest.mark.parametrize("head", [b"MZ", b"\x7fELF", b"\xca\xfe\xba\xbe"])
def test_a_program_file_is_searched_only_if_it_ends_with_a_zip(head: bytes, tmp_path: Path, image: bytes) -> None:
    packed = zipped([("a.dcm", image), ("readme.txt", b"x")], zipfile.ZIP_DEFLATED)
    path, program = tmp_path / "setup.exe", head + bytes(5000)
    path.write_bytes(program + packed)
    assert _codes(discover([path])) == [("a.dcm", None)]
    (ref,) = discover([path])
    assert read_bytes(ref) == image
    end = packed.rindex(b"PK\5\6")
    others = [b"", b"PK\5\6" + bytes(40), packed + b"x", packed[:end] + packed[end:].replace(b"PK\5\6", b"PK\5\7")]
    others += [zipped([("readme.txt", b"x")], zipfile.ZIP_DEFLATED), packed[end:], packed[end : end + 20]]
    for other in others:  # libraries that read ZIP files contain the end mark, too
        path.write_bytes(program + other)
        assert _codes(discover([path])) == [(None, "not_an_image")]


def test_a_link_in_a_zip_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "image.dcm"
    write_dicom(target, IMAGE)
    link = zipfile.ZipInfo("link.dcm")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr(link, str(target))
    assert _codes(discover([tmp_path / "z.zip"])) == [("link.dcm", "not_an_image")]


def test_different_members_with_one_name_are_reported(tmp_path: Path, image: bytes) -> None:
    path = tmp_path / "z.zip"
    _zip(path, [("a.dcm", image), ("b.dcm", image), ("a.dcm", image[:-2])])
    assert Counter(_codes(discover([path]))) == Counter([("a.dcm", None), ("b.dcm", None), (None, "double_members")])
    assert read_bytes(ImageRef(path=path, zip_member="a.dcm")) == image[:-2]
    _zip(path, [("a.dcm", image), ("a.dcm", image)])
    assert _codes(discover([path])) == [("a.dcm", None)]  # with the same bytes nothing is lost


# ---- in a child process


def test_a_child_lists_the_same_members(tmp_path: Path, image: bytes, pool: WorkerPool) -> None:
    members = [(f"{number:03}.dcm", image) for number in range(70)] + [("notes.txt", b"hi"), ("знімок.dcm", image)]
    path = _zip(tmp_path / "z.zip", members)
    ref = ImageRef(path=path)
    assert list(discover([path], list_members=pool.zip_members)) == list(discover([path]))
    found = ImageRef(path=path, zip_member="000.dcm")
    assert pool.hash_file(found) == hash_file(found)
    assert len(list(pool.zip_members(ref))) == len(members)


def test_a_child_reports_a_damaged_zip(tmp_path: Path, pool: WorkerPool) -> None:
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04" + bytes(100))
    _zip(tmp_path / "letter.docx", [("[Content_Types].xml", b"<x/>")])
    found = list(discover([tmp_path], list_members=pool.zip_members))
    assert [ref.problem.code for ref in found if ref.problem] == ["damaged", "not_an_image"]
    with raises(Unreadable, "missing"):
        list(pool.zip_members(ImageRef(path=tmp_path / "gone.zip")))


def test_a_child_that_crashes_over_a_zip_costs_that_zip_only(tmp_path: Path, image: bytes) -> None:
    _zip(tmp_path / "crash.zip", [("image.dcm", image)])
    _zip(tmp_path / "good.zip", [("image.dcm", image)])
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024, command=reader_command) as pool:
        # The child leaves a mark next to the ZIP file, so the folder itself is not searched.
        zips = [tmp_path / "crash.zip", tmp_path / "good.zip"]
        found = [(ref.path.name, *_codes(iter([ref]))[0]) for ref in discover(zips, list_members=pool.zip_members)]
    assert found == [("crash.zip", None, "decoder_crashed"), ("good.zip", "image.dcm", None)]


def test_a_pool_that_is_closed_ends_the_search(tmp_path: Path, image: bytes) -> None:
    path = _zip(tmp_path / "z.zip", [(f"{number:03}", image) for number in range(100)])
    pool = WorkerPool(1, timeout_s=60, memory_limit_mb=1024)
    search = discover([path], list_members=pool.zip_members)
    assert next(search).zip_member == "000"
    pool.close()
    with pytest.raises(PoolClosed):
        list(search)
