"""The images in a zip file, a part at a time, as a child process that reads it answers."""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fieldray.domain.study import ImageRef, is_name
from fieldray.errors import InputProblem, Unreadable, Unusable
from fieldray.imaging.folders import is_system_name, parts_of
from fieldray.imaging.identify import HEAD_BYTES, IndexFound, ZipFound, identify_bytes, out_of_memory, sniff
from fieldray.imaging.limits import MAX_FRAMES, MAX_INFLATED_HEADER_BYTES
from fieldray.imaging.source import Opener, file_problem, open_file
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray.imaging.archive import Archive

_FIRST_LOOK_BYTES: Final = 2**18
# Office documents and programs are zip files too: those of their parts that are no images are not worth a line each.
_DOCUMENTS: Final = frozenset({"[Content_Types].xml", "META-INF/MANIFEST.MF", "mimetype"})
# Limits of one answer. It is short enough that the first images need not wait for the others, and small enough for a
# message, however long the names and headers are.
_ANSWER_S: Final = 0.05
_ANSWER_MEMBERS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Some members of the zip file of `ref`, from after this name (None: from the first)."""

    ref: ImageRef
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What some members hold, where to continue (None: these were the last), and names that several files have.

    refs  one for each member, which stands for all of its frames
    """

    refs: tuple[ImageRef, ...]
    after: str | None
    doubles: int = 0
    double: str = ""

    def __post_init__(self) -> None:
        for ref in self.refs:
            if not (ref.member and is_name(ref.member) and 1 <= ref.header.number_of_frames <= MAX_FRAMES):
                raise ValueError("no member is like this")


def search(question: Search, *, opener: Opener = open_file) -> Members:
    """Some members of a zip file. Raises Unreadable, Unusable for the whole zip."""
    from fieldray.imaging.archive import open_archive  # here the program asks for types alone

    ref = ImageRef(path=question.ref.path)
    try:
        with opener(ref.path) as stream:
            return _some(open_archive(stream), ref, question.after)
    except OSError as error:
        raise file_problem(error) from error
    except MemoryError as error:
        raise out_of_memory() from error


def members_of(ref: ImageRef, ask: Callable[[Search], Members]) -> Iterator[ImageRef]:
    """A reference for every member that is a file, sorted by name, while the search is under way.

    Raises what `ask` raises, and so Unreadable or Unusable for the zip as a whole.
    """
    after: str | None = None
    while True:
        part = ask(Search(ref=ref, after=after))
        for one in part.refs:
            for frame in range(one.header.number_of_frames):
                yield replace(one, path=ref.path, frame=frame)
        if part.doubles:
            yield replace(ref, problem=reason("double_members", count=part.doubles, name=part.double))
        if part.after is None:
            return
        if after is not None and part.after <= after:
            raise Unreadable(reason("decoder_crashed"))  # the list does not advance: it was made up
        after = part.after


def _some(archive: Archive, ref: ImageRef, after: str | None) -> Members:
    names = _wanted(archive)
    begin = 0 if after is None else bisect_right(names, after)
    due_s, found, looked_at = time.monotonic() + _ANSWER_S, list[ImageRef](), 0
    for name in names[begin : begin + _ANSWER_MEMBERS]:
        found += _found(archive, replace(ref, member=name))[:1]
        looked_at += 1
        if time.monotonic() > due_s:
            break
    end = begin + looked_at
    doubles = archive.directory.doubles if end >= len(names) else ()
    return Members(
        refs=tuple(found),
        after=names[end - 1] if end < len(names) else None,
        doubles=len(doubles),
        double=doubles[0] if doubles else "",
    )


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
