"""Reading of zip files.

Members are listed without unpacking, and are read only into memory, after every size was checked.

Python's `zipfile` unpacks as many bytes as the caller requests. A hostile member of a kilobyte may unpack to gigabytes,
so the program never requests more bytes than the stated size of the member. Members that are neither stored nor
deflated are refused, because `zipfile` unpacks such a member as a whole. Hardly any zip file has such members. A
member's name is a label and never a path: nothing is written, so hostile names can do no harm.

A child process searches some members at a time for images (`search_members`). The parent process requests further
searches until all members are searched (`image_refs_in_zip`).
"""

from __future__ import annotations

import functools
import io
import re
import struct
import time
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from fieldray.domain.image import ImageRef, can_be_file_name
from fieldray.errors import InputProblem, Unreadable, UnsuitableImage
from fieldray.imaging.identify import (
    FILE_HEAD_BYTES,
    IsOwnReport,
    check_file_size,
    identify_unless_own_report,
    out_of_memory_problem,
    ref_with_problem,
    sniff,
)
from fieldray.imaging.limits import MAX_FRAMES, MAX_INFLATED_HEADER_BYTES, MAX_ZIP_MEMBERS, DicomdirFound, ZipFound
from fieldray.imaging.source import Opener, file_problem, file_state_of, is_system_name, open_file, path_components
from fieldray.reasons import reason

if TYPE_CHECKING:
    import zipfile

_MAX_DIRECTORY_BYTES: Final = 16 * 2**20
_END_RECORD: Final = b"PK\x05\x06"
_END_RECORD_64: Final = b"PK\x06\x06"
_END_SEARCH_BYTES: Final = 65535 + 22 + 20 + 56
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_LOCAL_MARK: Final = b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8  # APPNOTE 4.4.5
_IS_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_IS_PATCH: Final = 0x20
_IS_UTF_8: Final = 0x800  # the name is UTF-8 (APPNOTE 4.4.4)
_WORD: Final = re.compile(r"[^\W\d_]+")
_CYRILLIC: Final = re.compile("[А-ЯЁІЇЄҐЎа-яёіїєґўIi]+")
_STRANGE: Final = re.compile("[^\0-\x7fА-ЯЁІЇЄҐЎа-яёіїєґў№«»’–—\xa0]")
_USUAL: Final = re.compile("[оаеиінтсрвл]", re.IGNORECASE)
# Maximum ratio of unpacked to packed bytes. Only a member of at most `_RATIO_COUNTS_FROM_BYTES`, such as a small image
# that is mostly black, may exceed the ratio.
_MAX_RATIO: Final = 300
_RATIO_COUNTS_FROM_BYTES: Final = 64 * 2**20
_PART: Final = 2**20  # bytes unpacked at once


@dataclass(frozen=True, eq=False, slots=True)
class ZipDirectory:
    """The table of contents of a zip file, without folders.

    entries_by_name  entries by normalised name: parts joined by "/", without empty parts and "."
    names            the sorted names
    duplicate_names  names shared by several files with different contents; `entries_by_name` has the last of these
                     files, as zip tools do
    """

    entries_by_name: Mapping[str, zipfile.ZipInfo]
    names: tuple[str, ...]
    duplicate_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ZipArchive:
    """An open zip file. Two objects are equal if both opened the same file and the file did not change in between.

    file_state  state of the file, by which objects are compared
    """

    stream: BinaryIO = field(compare=False)
    file_state: object

    @property
    def directory(self) -> ZipDirectory:
        """The table of contents of the zip file. This process caches only the table of the last zip file.

        Raises the exceptions of `open_archive`.
        """
        return _directory(self)

    def read(self, name: str, *, limit_bytes: int | None = None) -> bytes:
        """Read the member with a normalised name (see `ZipDirectory`).

        limit_bytes  number of bytes after which reading stops; None for the whole member. The checksum is verified only
                     without a limit

        Raises OSError. Raises Unreadable: `missing`, `encrypted`, `empty`, `file_too_large`, `unsupported_compression`,
        `damaged`.
        """
        import zipfile  # imported only where a zip file is read

        member = self.directory.entries_by_name.get("/".join(path_components(name)))
        if member is None:
            raise Unreadable(reason("missing"))
        _check_member(member)
        try:
            _seek_packed_bytes(self.stream, member)
            wanted = member.file_size if limit_bytes is None else min(limit_bytes, member.file_size)
            unpacked, data = zipfile.ZipExtFile(self.stream, "r", member), io.BytesIO()
            while part := unpacked.read(min(_PART, wanted - data.tell())):
                data.write(part)
            if data.tell() < wanted:
                raise EOFError("it is cut short")
            return data.getvalue()
        except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, OverflowError, ValueError) as error:
            raise Unreadable(reason("damaged", detail="the file cannot be unpacked")) from error


def open_archive(stream: BinaryIO) -> ZipArchive:
    """Open the zip file in a stream.

    Raises OSError. Raises Unreadable: `damaged`, `too_large`, `too_many_members`.
    """
    archive = ZipArchive(stream, file_state_of(stream) or object())
    _directory(archive)
    return archive


@functools.lru_cache(maxsize=1)
def _directory(opened: ZipArchive) -> ZipDirectory:
    import zipfile  # imported only where a zip file is read

    _check_directory(opened.stream)
    try:
        with zipfile.ZipFile(opened.stream) as archive:
            listed = [(name, entry) for entry in archive.infolist() if (name := _name_of(entry))]
    except (OSError, MemoryError):
        raise
    except Exception as error:  # zipfile raises whatever the damaged bytes lead it to
        raise Unreadable(reason("damaged", detail="the zip file cannot be unpacked")) from error
    if len(listed) > MAX_ZIP_MEMBERS:
        raise Unreadable(reason("too_many_members", count=len(listed), limit=MAX_ZIP_MEMBERS))
    by_name = dict(listed)
    contents = {(name, entry.CRC, entry.file_size) for name, entry in listed}
    counted = Counter(name for name, _, _ in contents)
    duplicates = sorted(name for name, number in counted.items() if number > 1)
    return ZipDirectory(by_name, tuple(sorted(by_name)), tuple(duplicates))


def _name_of(entry: zipfile.ZipInfo) -> str:
    """Return the normalised name of a member; empty for a folder.

    A member with content counts as a file, even if its name ends with a slash.
    """
    is_folder = not entry.file_size and entry.filename.endswith(("/", "\\"))
    return "" if is_folder else "/".join(path_components(_decoded_name(entry)))


def _decoded_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of a zip member, decoded as Cyrillic if the name is Cyrillic.

    `zipfile` decodes names as cp437. Windows writes Cyrillic names in cp866 or cp1251. The decoding with more of the
    most frequent Cyrillic letters is chosen.
    """
    if entry.flag_bits & _IS_UTF_8 or entry.filename.isascii():
        return entry.filename
    written = (entry.filename.encode("cp437").decode(page, "replace") for page in ("cp866", "cp1251"))
    return max(filter(_is_cyrillic, written), key=lambda name: len(_USUAL.findall(name)), default=entry.filename)


def _is_cyrillic(name: str) -> bool:
    """Return whether a decoded name looks like Cyrillic words.

    Every letter outside ASCII must be Cyrillic. A word with Cyrillic letters must have no Latin letters, except I and
    i, which some writers use for І and і.
    """
    words = [word for word in _WORD.findall(name) if not word.isascii()]
    return not _STRANGE.search(name) and all(map(_CYRILLIC.fullmatch, words)) and max(map(len, words), default=0) > 1


def _check_member(member: zipfile.ZipInfo) -> None:
    """Raise Unreadable for a zip member that must not be unpacked.

    A member is refused if it is encrypted, empty, far larger than its packed bytes, or packed by a method other than
    deflate.
    """
    if member.flag_bits & _IS_ENCRYPTED:
        raise Unreadable(reason("encrypted"))
    check_file_size(member.file_size)
    is_large = member.file_size > _RATIO_COUNTS_FROM_BYTES
    if is_large and member.file_size > _MAX_RATIO * max(1, member.compress_size):
        raise Unreadable(reason("file_too_large", size_mb=member.file_size // 2**20))
    if member.compress_type not in (_STORED, _DEFLATED) or member.flag_bits & _IS_PATCH:
        patched = " with patches" if member.flag_bits & _IS_PATCH else ""
        raise Unreadable(reason("unsupported_compression", name=f"zip method {member.compress_type}{patched}"))


def _check_directory(stream: BinaryIO) -> None:
    """Raise Unreadable if the stated size of the central directory is too large (APPNOTE 4.3.14 and 4.3.16).

    `zipfile` would load the whole central directory into memory.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END_SEARCH_BYTES))
    tail = stream.read(_END_SEARCH_BYTES)
    stream.seek(0)
    stated = [struct.unpack_from("<I", tail + bytes(20), at + 12)[0] for at in _positions(tail, _END_RECORD)]
    stated = [0 if length == 0xFFFFFFFF else length for length in stated]
    stated += [struct.unpack_from("<Q", tail + bytes(60), at + 40)[0] for at in _positions(tail, _END_RECORD_64)]
    if max(stated, default=0) > _MAX_DIRECTORY_BYTES:
        raise Unreadable(reason("too_large", detail="too many files in one zip file"))


def _positions(data: bytes, mark: bytes) -> Iterator[int]:
    position = data.find(mark)
    while position >= 0:
        yield position
        position = data.find(mark, position + 1)


# ---- unpacking


def _seek_packed_bytes(stream: BinaryIO, member: zipfile.ZipInfo) -> None:
    """Move a stream to the first byte of a member's data.

    Raises OSError. Raises struct.error or ValueError for an invalid local header.
    """
    if member.header_offset < 0:
        raise ValueError("no member begins before the file")
    stream.seek(member.header_offset)
    mark, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    if mark != _LOCAL_MARK:
        raise ValueError("no member begins there")
    stream.seek(name_bytes + extra_bytes, io.SEEK_CUR)


_FIRST_LOOK_BYTES: Final = 2**18
# Members of office documents and programs, which are zip files too. Members that are not images give no reference.
_DOCUMENTS: Final = frozenset({"[Content_Types].xml", "META-INF/MANIFEST.MF", "mimetype"})
# Limits of one answer: a short time, so that the first images do not wait for the others, and few members, so that the
# answer fits a message however long names and headers are.
_ANSWER_S: Final = 0.05
_ANSWER_MEMBERS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSearch:
    """A request to search some members of a zip file for images.

    ref           the zip file
    after_member  name of a member; the search begins with the member that follows. None begins with the first member
    """

    ref: ImageRef
    after_member: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMembers:
    """The images found in some members of a zip file.

    refs                             one reference for each member, which stands for all frames of the member
    last_member                      name of the last searched member, after which the search is to continue; None at
                                     the end
    duplicate_count, duplicate_name  number of names that several members share, and one of these names
    """

    refs: tuple[ImageRef, ...]
    last_member: str | None
    duplicate_count: int = 0
    duplicate_name: str = ""

    def __post_init__(self) -> None:
        for ref in self.refs:
            if not (
                ref.zip_member and can_be_file_name(ref.zip_member) and 1 <= ref.header.number_of_frames <= MAX_FRAMES
            ):
                raise ValueError("no member is like this")


def search_members(
    request: MemberSearch, *, opener: Opener = open_file, is_own_report: IsOwnReport = lambda _head: False
) -> FoundMembers:
    """Identify the images in some members of a zip file.

    request        the zip file, and the member after which the search begins
    opener         opens the path of the zip file
    is_own_report  returns whether the first bytes of a member are those of a report of this program. Such a member is
                   left out

    Raises Unreadable or UnsuitableImage if the whole zip file cannot be used.
    """
    ref = ImageRef(path=request.ref.path)
    try:
        with opener(ref.path) as stream:
            return _next_members(open_archive(stream), ref, request.after_member, is_own_report)
    except OSError as error:
        raise file_problem(error) from error
    except MemoryError as error:
        raise out_of_memory_problem() from error


def image_refs_in_zip(ref: ImageRef, search: Callable[[MemberSearch], FoundMembers]) -> Iterator[ImageRef]:
    """Yield a reference for every frame of every image in a zip file, sorted by member name.

    The first references come before the whole zip file is searched.

    search  answers a `MemberSearch` as `search_members` does, in this process or in a child process

    Raises the exceptions of `search`: Unreadable or UnsuitableImage if the whole zip file cannot be used.
    """
    after: str | None = None
    while True:
        part = search(MemberSearch(ref=ref, after_member=after))
        for one in part.refs:
            for frame in range(one.header.number_of_frames):
                yield replace(one, path=ref.path, frame=frame)
        if part.duplicate_count:
            yield replace(ref, problem=reason("double_members", count=part.duplicate_count, file=part.duplicate_name))
        if part.last_member is None:
            return
        if after is not None and part.last_member <= after:
            raise Unreadable(reason("decoder_crashed"))  # no further member was searched, so the answer is wrong
        after = part.last_member


def _next_members(archive: ZipArchive, ref: ImageRef, after: str | None, is_own_report: IsOwnReport) -> FoundMembers:
    names = _candidate_members(archive)
    begin = 0 if after is None else bisect_right(names, after)
    due_s, found, looked_at = time.monotonic() + _ANSWER_S, list[ImageRef](), 0
    for name in names[begin : begin + _ANSWER_MEMBERS]:
        found += _images_in(archive, replace(ref, zip_member=name), is_own_report)[:1]
        looked_at += 1
        if time.monotonic() > due_s:
            break
    end = begin + looked_at
    duplicates = archive.directory.duplicate_names if end >= len(names) else ()
    return FoundMembers(
        refs=tuple(found),
        last_member=names[end - 1] if end < len(names) else None,
        duplicate_count=len(duplicates),
        duplicate_name=duplicates[0] if duplicates else "",
    )


@functools.lru_cache(maxsize=1)
def _candidate_members(archive: ZipArchive) -> Sequence[str]:
    """Return the names of members that may be images.

    Raises OSError. Raises UnsuitableImage if no member may be an image.
    """
    names = [name for name in archive.directory.names if not any(map(is_system_name, path_components(name)))]
    archive.stream.seek(0)
    is_program = not archive.stream.read(4).startswith(b"PK")  # a self-extracting program
    if is_program or any(name in archive.directory.entries_by_name for name in _DOCUMENTS):
        names = [name for name in names if _may_be_image(archive, name)]
    if not names:
        raise UnsuitableImage(reason("not_an_image"))
    return names


def _may_be_image(archive: ZipArchive, name: str) -> bool:
    try:
        return sniff(archive.read(name, limit_bytes=FILE_HEAD_BYTES)) in ("dicom", "png", "jpeg")
    except Unreadable:
        return False


def _images_in(archive: ZipArchive, ref: ImageRef, is_own_report: IsOwnReport) -> list[ImageRef]:
    try:
        found = _identified(archive, ref, is_own_report)
    except InputProblem as error:
        return [ref_with_problem(ref, error)]
    if isinstance(found, ZipFound):
        return [replace(ref, problem=reason("nested_zip"), problem_is_refusal=True)]
    return found if isinstance(found, list) else []


def _identified(
    archive: ZipArchive, ref: ImageRef, is_own_report: IsOwnReport
) -> list[ImageRef] | DicomdirFound | ZipFound | None:
    """Identify a zip member by its first bytes. More bytes are unpacked only if the member's header is longer."""
    assert ref.zip_member is not None
    try:
        head = archive.read(ref.zip_member, limit_bytes=_FIRST_LOOK_BYTES)
        try:
            return identify_unless_own_report(io.BytesIO(head), ref, is_own_report)
        except InputProblem as error:
            if len(head) < _FIRST_LOOK_BYTES or isinstance(error, UnsuitableImage):
                raise
        whole = archive.read(ref.zip_member, limit_bytes=MAX_INFLATED_HEADER_BYTES)
        return identify_unless_own_report(io.BytesIO(whole), ref, is_own_report)
    except MemoryError as error:
        raise out_of_memory_problem() from error
