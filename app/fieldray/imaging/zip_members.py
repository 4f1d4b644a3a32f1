"""The images in a zip file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, Final
from zipfile import ZipFile

from fieldray.domain.study import ImageRef
from fieldray.errors import InputProblem, Unusable
from fieldray.imaging.archive import open_archive, read_member
from fieldray.imaging.identify import IndexFound, ZipFound, identify_bytes
from fieldray.imaging.limits import MAX_INFLATED_HEADER_BYTES
from fieldray.reasons import reason

_FIRST_LOOK_BYTES: Final = 2**18
# Office documents and programs are zip files too; their parts are not worth a line each.
_DOCUMENTS: Final = frozenset({"[Content_Types].xml", "META-INF/MANIFEST.MF", "mimetype"})


def members(stream: BinaryIO, ref: ImageRef) -> Iterator[ImageRef]:
    """A reference for every member that is a file, sorted by name. Raises Unreadable, Unusable for the whole zip."""
    with open_archive(stream) as archive:
        names = sorted({member.filename for member in archive.infolist() if not member.is_dir()})
        wanted = [name for name in names if not _is_left_behind(name)]
        if not wanted or _DOCUMENTS & set(names):
            raise Unusable(reason("not_an_image"))
        for name in wanted:
            yield from _member(archive, replace(ref, member=name))


def _member(archive: ZipFile, ref: ImageRef) -> list[ImageRef]:
    assert ref.member is not None
    try:
        found = _found(archive, ref, ref.member)
    except InputProblem as error:
        return [replace(ref, problem=error.reason, problem_is_refusal=isinstance(error, Unusable))]
    if isinstance(found, ZipFound):
        return [replace(ref, problem=reason("nested_zip"), problem_is_refusal=True)]
    return [] if isinstance(found, IndexFound) else found


def _found(archive: ZipFile, ref: ImageRef, name: str) -> list[ImageRef] | IndexFound | ZipFound:
    """By the member's first bytes; more of it is unpacked only where its header goes on for longer."""
    head = read_member(archive, name, limit=_FIRST_LOOK_BYTES)
    try:
        return identify_bytes(head, ref)
    except InputProblem:
        if len(head) < _FIRST_LOOK_BYTES:
            raise
    return identify_bytes(read_member(archive, name, limit=MAX_INFLATED_HEADER_BYTES), ref)


def _is_left_behind(name: str) -> bool:
    """Hidden files and what a Mac adds to a zip file."""
    return any(part.startswith((".", "__MACOSX")) and part not in (".", "..") for part in name.split("/"))
