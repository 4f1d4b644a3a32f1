"""The images in a zip file, a part at a time: the child's side; the program's is `answers.references`."""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from fieldray.domain.study import ImageRef
from fieldray.errors import InputProblem, Unreadable, Unusable
from fieldray.imaging.archive import Archive, open_archive
from fieldray.imaging.folders import is_system_name, parts_of
from fieldray.imaging.identify import HEAD_BYTES, IndexFound, ZipFound, identify_bytes, out_of_memory, sniff
from fieldray.imaging.limits import MAX_INFLATED_HEADER_BYTES
from fieldray.imaging.source import Opener, file_problem, open_file
from fieldray.processes.wire import Message
from fieldray.reasons import reason

_FIRST_LOOK_BYTES: Final = 2**18
# Office documents and programs are zip files too: those of their parts that are no images are not worth a line each.
_DOCUMENTS: Final = frozenset({"[Content_Types].xml", "META-INF/MANIFEST.MF", "mimetype"})
# Limits of one answer. It is short enough that the first images need not wait for the others, and small enough for a
# message, however long the names and headers are.
_ANSWER_S: Final = 0.05
_ANSWER_MEMBERS: Final = 32


def answer(message: Message, *, opener: Opener = open_file) -> Message:
    """Some members of the zip "path", from after the name "after" (None: from the first), and where to continue.

    Raises Unreadable, Unusable for the whole zip.
    """
    ref, after = ImageRef(path=Path(message.body["path"])), message.body["after"]
    try:
        with opener(ref.path) as stream:
            return Message(_some(open_archive(stream), ref, after))
    except OSError as error:
        raise file_problem(error) from error
    except MemoryError as error:
        raise out_of_memory() from error


def _some(archive: Archive, ref: ImageRef, after: str | None) -> dict[str, Any]:
    names = _wanted(archive)
    begin = 0 if after is None else bisect_right(names, after)
    due_s, entries, looked_at = time.monotonic() + _ANSWER_S, [], 0
    for name in names[begin : begin + _ANSWER_MEMBERS]:
        entries += _entry(_found(archive, replace(ref, member=name)))
        looked_at += 1
        if time.monotonic() > due_s:
            break
    end = begin + looked_at
    doubles = archive.directory.doubles if end >= len(names) else ()
    return {
        "members": entries,
        "after": names[end - 1] if end < len(names) else None,
        "doubles": len(doubles),
        "double": doubles[0] if doubles else "",
    }


@functools.lru_cache(maxsize=1)
def _wanted(archive: Archive) -> Sequence[str]:
    """The names of members that may be images. Raises OSError; Unusable if there are none."""
    names = [name for name in archive.directory.names if not any(map(is_system_name, parts_of(name)))]
    if any(name in archive.directory.by_name for name in _DOCUMENTS):
        names = [name for name in names if _may_be_image(archive, name)]
    if not names:
        raise Unusable(reason("not_an_image"))
    return names


def _may_be_image(archive: Archive, name: str) -> bool:
    try:
        return sniff(archive.read(name, limit=HEAD_BYTES)) in ("dicom", "png", "jpeg")
    except Unreadable:
        return False


def _entry(refs: Sequence[ImageRef]) -> list[dict[str, Any]]:
    """The images of one member, which differ only in the frame."""
    if not refs:
        return []
    ref = refs[0]
    return [
        {
            "member": ref.member,
            "frames": len(refs),
            "kind": ref.kind,
            "header": asdict(ref.header),
            "problem": [ref.problem.code, [list(pair) for pair in ref.problem.parameters]] if ref.problem else None,
            "problem_is_refusal": ref.problem_is_refusal,
        }
    ]


def _found(archive: Archive, ref: ImageRef) -> list[ImageRef]:
    try:
        found = _identified(archive, ref)
    except InputProblem as error:
        return [replace(ref, problem=error.reason, problem_is_refusal=isinstance(error, Unusable))]
    if isinstance(found, ZipFound):
        return [replace(ref, problem=reason("nested_zip"), problem_is_refusal=True)]
    return [] if isinstance(found, IndexFound) else found


def _identified(archive: Archive, ref: ImageRef) -> list[ImageRef] | IndexFound | ZipFound:
    """Identify a member by its first bytes; more is unpacked only if its header is longer."""
    assert ref.member is not None
    try:
        head = archive.read(ref.member, limit=_FIRST_LOOK_BYTES)
        try:
            return identify_bytes(head, ref)
        except InputProblem as error:
            if len(head) < _FIRST_LOOK_BYTES or error.reason.code == "not_an_image":
                raise
        return identify_bytes(archive.read(ref.member, limit=MAX_INFLATED_HEADER_BYTES), ref)
    except MemoryError as error:
        raise out_of_memory() from error
