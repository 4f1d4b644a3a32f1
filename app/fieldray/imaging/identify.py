"""What one stream holds: images, an index of files, or a zip file."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO

from fieldray.domain.study import FileKind, ImageHeader, ImageRef
from fieldray.errors import FieldrayError, ReaderProblem, Unreadable, Unusable, shortage
from fieldray.imaging.sniff import HEAD_BYTES, jpeg_size, png_size, sniff
from fieldray.reasons import reason

log = logging.getLogger(__name__)

DicomIdentifier = Callable[[BinaryIO, ImageRef], list[ImageRef] | tuple[tuple[str, ...], ...]]
# Where a JPEG states its size: after its metadata, which may hold a thumbnail and a colour profile.
_JPEG_HEAD_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class IndexFound:
    """A DICOMDIR: the files that it refers to, as the components of their names."""

    references: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ZipFound:
    """A zip file."""


def identify(stream: BinaryIO, ref: ImageRef) -> list[ImageRef] | IndexFound | ZipFound:
    """What is in the seekable `stream`; references are made from `ref`, one for every frame.

    Raises OSError; Unreadable or Unusable for a file that holds no image, whatever its parser raises.
    """
    try:
        return _identified(stream, ref)
    except (FieldrayError, OSError):
        raise
    except MemoryError as error:
        raise out_of_memory() from error
    except Exception as error:
        log.exception("identifying a file")
        raise Unreadable(reason("internal", detail=type(error).__name__)) from error


def out_of_memory() -> Unreadable:
    """What a MemoryError over one file becomes: that file's reason, never the end of a run."""
    return Unreadable(reason("damaged", detail="there is not enough memory to read it"))


def _identified(stream: BinaryIO, ref: ImageRef) -> list[ImageRef] | IndexFound | ZipFound:
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    if not head:
        raise Unreadable(reason("empty"))
    content = sniff(head)
    if content == "executable":
        raise Unreadable(reason("executable"))
    if content == "zip":
        return ZipFound()
    if content == "png":
        return [_raster(ref, "png", png_size(head))]
    if content == "jpeg":
        stream.seek(0)
        return [_raster(ref, "jpeg", jpeg_size(stream.read(_JPEG_HEAD_BYTES)))]
    if content == "unknown":
        raise Unusable(reason("not_an_image"))
    found = _dicom_identifier()(stream, ref)
    return found if isinstance(found, list) else IndexFound(found)


def _dicom_identifier() -> DicomIdentifier:
    """Loaded only where there is DICOM: pydicom takes a third of a second. Raises ReaderProblem.

    What this process is refused while it loads is no fault of the file that it is loaded for.
    """
    try:
        from fieldray.imaging.dicom_identify import identify_dicom
    except Exception as error:
        problem = shortage(error)
        raise (ReaderProblem(problem.reason) if problem else error) from error
    return identify_dicom


def identify_bytes(head: bytes, ref: ImageRef) -> list[ImageRef] | IndexFound | ZipFound:
    """The same for the first bytes of something that is not seekable."""
    return identify(io.BytesIO(head), ref)


def identify_again(data: bytes, ref: ImageRef) -> ImageRef:
    """`ref` with the kind and the header of `data`, the bytes to be screened; discovery may have seen other bytes.

    Of `ref.header` only the number of frames is used. If that differs, or if an index or a zip file has taken the place
    of the image, the file no longer holds the images that were listed. Raises Unreadable (`changed` for that) and
    Unusable.
    """
    found = identify_bytes(data, ImageRef(path=ref.path, member=ref.member))
    if not isinstance(found, list) or len(found) != ref.header.number_of_frames:
        raise Unreadable(reason("changed"))
    (again,) = (one for one in found if one.frame == ref.frame)
    if again.problem:
        raise Unusable(again.problem)
    return again


def _raster(ref: ImageRef, kind: FileKind, size: tuple[int, int] | None) -> ImageRef:
    rows, columns = size or (0, 0)
    return replace(ref, kind=kind, header=ImageHeader(rows=rows, columns=columns))
