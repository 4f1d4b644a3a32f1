"""Identification of a file on a server (such as an object in an S3 bucket) by its first bytes.

In this module the file is called an object. A process with network access fetches the bytes, but never parses them.
This module runs in a process without network access. If the header is longer than the fetched bytes, more bytes are
requested until the header is complete.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fieldray.domain.image import ImageRef
from fieldray.errors import InputProblem
from fieldray.imaging.identify import IsOwnReport, identify_unless_own_report
from fieldray.imaging.limits import MAX_FRAMES, DicomdirFound, ZipFound


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ServerFileHead:
    """The first bytes of an object: a file on a server.

    ref         reference to the object, from which references to its images are made
    data        (n,) uint8, the first bytes
    size_bytes  size of the whole object
    """

    ref: ImageRef
    data: NDArray[np.uint8]
    size_bytes: Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ServerFileContent:
    """The content of an object (a file on a server). The constructor raises ValueError for impossible values.

    kind  kind of the content; `longer` if more bytes are needed to identify the object
    ref   one reference that stands for all frames of the images; None for content other than images
    """

    kind: Literal["images", "zip", "index", "own_report", "longer"]
    ref: ImageRef | None = None

    def __post_init__(self) -> None:
        if (self.kind == "images") != (self.ref is not None):
            raise ValueError("images have a reference, and nothing else has one")
        if self.ref and not 1 <= self.ref.header.number_of_frames <= MAX_FRAMES:
            raise ValueError("no image has so many frames")

    def refs(self, ref: ImageRef) -> list[ImageRef]:
        """Return a reference for each frame of the images. The path in each reference is that of `ref`."""
        found = self.ref
        frames = range(found.header.number_of_frames) if found else ()
        return [replace(found, path=ref.path, zip_member=None, frame=frame) for frame in frames if found]


IdentifyServerFile = Callable[[ServerFileHead], ServerFileContent]


def identify_server_file(
    request: ServerFileHead, *, is_own_report: IsOwnReport = lambda _head: False
) -> ServerFileContent:
    """Identify an object by its first bytes.

    is_own_report  returns whether the first bytes are those of a report of this program

    Raises Unreadable for a damaged object, UnsuitableImage for an object without an image.
    """
    stream = _HeadStream(request.data.tobytes(), request.size_bytes)
    try:
        found = identify_unless_own_report(stream, request.ref, is_own_report)
    except InputProblem:
        if stream.needed_more_bytes:
            return ServerFileContent(kind="longer")
        raise
    if stream.needed_more_bytes:
        return ServerFileContent(kind="longer")
    if isinstance(found, list):
        return ServerFileContent(kind="images", ref=found[0])
    kinds = {DicomdirFound: "index", ZipFound: "zip", type(None): "own_report"}
    return ServerFileContent(kind=kinds[type(found)])  # type: ignore[arg-type]


class _HeadStream(io.BytesIO):
    """The beginning of a longer stream.

    needed_more_bytes  whether a reader requested bytes beyond the beginning
    """

    def __init__(self, data: bytes, size_bytes: int) -> None:
        super().__init__(data)
        self._here, self._size = len(data), size_bytes
        self.needed_more_bytes = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            return super().seek(self._size + offset)
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        until = self._size if size is None or size < 0 else min(self.tell() + size, self._size)
        self.needed_more_bytes |= until > self._here
        return super().read(size)
