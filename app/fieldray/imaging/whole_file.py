"""A file, or a member of a zip file, read as a whole: its bytes, its state, and its SHA-256."""

from __future__ import annotations

import hashlib
import io

from fieldray.domain.image import ImageRef
from fieldray.imaging.identify import check_file_size
from fieldray.imaging.source import FileStamper, FileState, Opener, file_problem, file_state_of, open_file


def read_bytes(ref: ImageRef, *, opener: Opener = open_file) -> bytes:
    """Read a whole file or zip member into memory. Raises Unreadable, as `read_bytes_and_state` does."""
    return read_bytes_and_state(ref, opener=opener)[0]


def read_bytes_and_state(ref: ImageRef, *, opener: Opener = open_file) -> tuple[bytes, FileState | None]:
    """Read a whole file or zip member. Returns the bytes and the `FileState`.

    The state is None for a zip member, and for a file that changed during reading. Raises Unreadable with the reason:
    missing, no_permission, drive_error, unreadable, empty, file_too_large, encrypted, damaged.
    """
    try:
        with opener(ref.path) as stream:
            if ref.zip_member is not None:
                from fieldray.imaging.archive import open_archive

                return open_archive(stream).read(ref.zip_member), None
            state = file_state_of(stream)
            size = stream.seek(0, io.SEEK_END)
            check_file_size(size)
            stream.seek(0)
            data = stream.read(size)
            return data, state if state and state == file_state_of(stream) and len(data) == state.size_bytes else None
    except OSError as error:
        raise file_problem(error) from error


def hash_file(ref: ImageRef, *, stamper: FileStamper | None = None, opener: Opener = open_file) -> tuple[str, bytes]:
    """Return the SHA-256 (hex) of a file or zip member, and the file's stamp.

    The stamp is empty if `stamper` is None, or if no stamp can identify the file's state. Raises Unreadable, also for a
    file that is larger than any readable image: hashing the file might take hours and could not be cancelled.
    """
    if ref.zip_member is not None:
        return hashlib.sha256(read_bytes(ref, opener=opener)).hexdigest(), b""
    try:
        with opener(ref.path) as stream:
            state, stamp = file_state_of(stream), b""
            check_file_size(stream.seek(0, io.SEEK_END))
            stream.seek(0)
            found = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  # has readinto
            if stamper and state and stamper.is_last_change_old_enough(state) and ref.header.number_of_frames == 1:
                stamp = stamper.stamp_of_stream(ref.path, stream)
            return found, stamp if file_state_of(stream) == state else b""
    except OSError as error:
        raise file_problem(error) from error
