"""Removable drives, and reading a pack from one that may be hostile or may be pulled out: its files, arrays and JSON.

The drives are looked at each second: a list of mounts or of letters costs microseconds, and a drive that was pulled out
without being unmounted stays in the list of mounts, so that only reading it tells.

A file is never read through a link, never from anything but a regular file, never more than a limit, and always into
memory: a model mapped from a drive would kill the process when the drive goes. Everything that makes sense of what
was read stands behind `guarded`: whatever a pack does to it is a problem of that one pack.

Arrays are one a file, in NumPy's .npy format, read without pickle and without trusting the header.
Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Only version 1.0, little-endian or
single-byte values, C order; the header's size must be what the bytes hold, so nothing is allocated on its word.
NumPy would evaluate the header as Python; here it must be, character by character, one that NumPy writes.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import io
import json
import logging
import math
import os
import re
import stat
import string
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
import psutil
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from fieldray.domain.run import Drives, DrivesChanged, Publish
from fieldray.errors import FieldrayError, PackProblem
from fieldray.packs.naming import pack_folders
from fieldray.reasons import reason

log = logging.getLogger(__name__)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_MEGABYTE: Final = 2**20
# A FIFO must not block the opening; a link must not be followed; Windows must not translate line ends.
_FLAGS: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
_DISCONNECTED_ERRNO: Final = frozenset(
    {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESTALE, errno.ESHUTDOWN}
)
# ERROR_NOT_READY, ERROR_GEN_FAILURE, ERROR_DEV_NOT_EXIST, ERROR_NO_SUCH_DEVICE, ERROR_FILE_INVALID (the volume was
# altered), ERROR_IO_DEVICE, ERROR_DEVICE_NOT_CONNECTED (winerror.h)
_DISCONNECTED_WINDOWS: Final = frozenset({21, 31, 55, 433, 1006, 1117, 1167})


def guarded(
    read: Callable[Concatenate[Path, _Parameters], _Result],
) -> Callable[Concatenate[Path, _Parameters], _Result]:
    """Decorate a function `read(folder, ...)` that reads a pack, so that it raises only problems with a reason.

    A PackProblem passes, and so does a StorageProblem of the program's own records. System errors become a PackProblem,
    and so does every error that a malicious pack may cause: recursion, size, memory, a bug of this program or a
    library.
    """

    @functools.wraps(read)
    def door(folder: Path, /, *arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        try:
            return read(folder, *arguments, **options)
        except FieldrayError:
            raise
        except OSError as error:
            raise problem_of(error, folder=folder) from error
        except Exception as error:
            log.warning("a pack was refused in a way nobody thought of: %a", str(folder), exc_info=True)
            raise PackProblem(reason("pack_unreadable", detail=f"{type(error).__name__}: {error}")) from error

    return door


def read_file(folder: Path, *, name: str, limit_bytes: int) -> bytes:
    """Read a regular file in `folder`, at most `limit_bytes`.

    Raises PackProblem: pack_incomplete (missing), pack_bad_name (a link or not a regular file), pack_too_large,
    drive_gone, pack_unreadable.
    """
    path = folder / name
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise PackProblem(reason("pack_bad_name", name=name))
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            details = os.fstat(file.fileno())
            if not stat.S_ISREG(details.st_mode):
                raise PackProblem(reason("pack_bad_name", name=name))
            data = file.read(limit_bytes + 1) if details.st_size <= limit_bytes else None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _is_there(folder):
            raise PackProblem(reason("pack_incomplete", name=name)) from error
        raise problem_of(error, folder=folder) from error
    if data is None or len(data) > limit_bytes:
        sizes = {"size_mb": f"{details.st_size / _MEGABYTE:.1f}", "limit_mb": f"{limit_bytes / _MEGABYTE:.3g}"}
        raise PackProblem(reason("pack_too_large", name=name, **sizes))
    return data


def problem_of(error: OSError, *, folder: Path) -> PackProblem:
    """The problem to show for an error while reading a pack: `drive_gone` or `pack_unreadable`."""
    is_disconnected = error.errno in _DISCONNECTED_ERRNO or getattr(error, "winerror", None) in _DISCONNECTED_WINDOWS
    if is_disconnected or not _is_there(folder):
        return PackProblem(reason("drive_gone"))
    return PackProblem(reason("pack_unreadable", detail=error.strerror or type(error).__name__))


def _is_there(folder: Path) -> bool:
    return os.path.exists(folder)  # noqa: PTH110 - Path.exists raises what a failing drive says


npy: Final[Any] = npy_format  # typed in some releases of NumPy only
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER: Final = 256
_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][a-z][0-9]{1,2})', 'fortran_order': (?P<order>False|True), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,10},|[0-9]{1,10}(?:, [0-9]{1,10}){1,7})?)\), \} *\n"
)


def pack_array(array: NDArray[Any]) -> bytes:
    """Write an array as the bytes of a .npy file, little-endian, C order."""
    stream = io.BytesIO()
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    npy.write_array(stream, np.ascontiguousarray(little_endian), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def unpack_array(data: bytes, *, dtype: str, dimensions: int) -> NDArray[Any]:
    """Read the read-only array in `data`, of this dtype and number of dimensions. Raises ValueError."""
    wanted = np.dtype(dtype).newbyteorder("<")
    header, start = _read_header(data)
    shape = tuple(int(side) for side in header["shape"].split(b",") if side)
    is_right = header["dtype"] == wanted.str.encode() and header["order"] == b"False"
    if not is_right or len(shape) != dimensions or 0 in shape:
        raise ValueError(f"expected {dtype} with {dimensions} dimensions, found {header[0].decode().strip()}")
    if len(data) - start != math.prod(shape) * wanted.itemsize:
        raise ValueError(f"{shape} does not fit {len(data) - start} bytes")
    array = np.frombuffer(data, dtype=wanted, offset=start).reshape(shape)
    if wanted.kind == "f" and not np.isfinite(array).all():
        raise ValueError("not all values are finite")
    return array


def _read_header(data: bytes) -> tuple[re.Match[bytes], int]:
    """Parse a .npy header. Returns its parts, and the offset of the values. Raises ValueError."""
    start = len(_MAGIC) + 2
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ValueError("not an array file of version 1.0")
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    header = _HEADER.fullmatch(data, start, end) if end - start <= _LONGEST_HEADER else None
    if header is None or len(data) < end:
        raise ValueError("the array's header is not one that NumPy writes")
    return header, end


# ---- JSON
#
# Stricter than `json.loads`: UTF-8 only, no doubled keys, no NaN or infinity, no deep nesting, no control or formatting
# characters in texts (they can hide or reorder what a person reads). What the values must be is `packs.manifest`'s.


_LONGEST_KEY: Final = 100
_LINE_BREAKS: Final = frozenset("\n\t")
_DEEPEST: Final = 31  # far more than any description needs, far less than any stack bears


def manifest_error(detail: str) -> PackProblem:
    """Return the error for an invalid manifest."""
    return PackProblem(reason("pack_manifest", detail=detail))


def read_document(data: bytes) -> dict[str, Any]:
    """The object that a JSON document in UTF-8 holds. Raises PackProblem("pack_manifest")."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise manifest_error(f"not valid JSON: {error}") from error
    _check_texts(value, "")
    if not isinstance(value, dict):
        raise manifest_error("the file: an object is needed")
    return value


def write_document(content: Mapping[str, object]) -> bytes:
    """Canonical JSON: UTF-8, sorted keys, one space of indent, one line feed at the end.

    Raises ValueError for NaN and infinity, TypeError for what JSON cannot hold.
    """
    return (json.dumps(content, ensure_ascii=False, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def is_line(text: str) -> bool:
    """Whether a text is one line without characters that can hide, reorder or forge what a person reads.

    No control (C0, C1, line breaks, tabs), formatting (bidirectional, zero-width, tags), private, surrogate or
    unassigned characters, no line or paragraph separator (Unicode categories C*, Zl and Zp).
    """
    if text.isascii():  # says the same of it, in a fraction of the time
        return text.isprintable()
    return not any((kind := unicodedata.category(letter))[0] == "C" or kind in ("Zl", "Zp") for letter in text)


def is_plain(text: str) -> bool:
    """Whether a text, apart from line feeds and tabs, passes `is_line`."""
    return is_line("".join(letter for letter in text if letter not in _LINE_BREAKS))


def _check_texts(value: object, location: str, *, deepest: int = _DEEPEST) -> None:
    """Check that no text or key contains misleading characters, and that the nesting is limited."""
    if isinstance(value, str) and not is_plain(value):
        raise manifest_error(f"{location}: the text holds control characters")
    if isinstance(value, list | dict) and value and not deepest:
        raise manifest_error(f"not valid JSON: lists and objects are nested more than {_DEEPEST} deep")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_texts(item, f"{location}[{index}]", deepest=deepest - 1)
    if isinstance(value, dict):
        if not all(len(name) <= _LONGEST_KEY and is_line(name) for name in value):
            raise manifest_error(f"{location or 'the file'}: a key is too long or holds control characters")
        for name, member in value.items():
            _check_texts(member, f"{location}.{name}" if location else name, deepest=deepest - 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return members


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


_LOOK_AGAIN_S: Final = 1.0
_CLOSE_S: Final = 2.0


def list_drives() -> Drives:
    """Return the connected removable drives, ordered by mount point, without unreadable ones.

    Raises OSError if the system does not list drives.
    """
    if sys.platform == "win32":
        return look_at(drives_on_windows())
    return look_at(drives_on_mac() if sys.platform == "darwin" else drives_on_linux())


def drives_with_packs() -> list[Path]:
    """The mount points of drives with packs. Empty where the system does not list drives."""
    try:
        return [drive for drive, packs in list_drives().items() if packs]
    except OSError:
        return []


def look_at(drives: Iterable[Path]) -> Drives:
    """Return the packs on each drive: empty for an unreadable drive; a disconnected drive is left out."""
    found = {}
    for drive in drives:
        try:
            found[drive] = guarded(pack_folders)(drive)
        except PackProblem as problem:
            if problem.reason.code != "drive_gone":
                found[drive] = ()
    return found


def drives_on_mac(*, volumes: Path = Path("/Volumes")) -> list[Path]:
    """Return the volumes mounted under /Volumes, without the start-up volume, which is a link."""
    with os.scandir(volumes) as entries:
        return sorted(volumes / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


# ---- Linux
#
# Removable is what sits on a USB device or a device that calls itself removable, and, at the places where desktops and
# people mount media, also what has no device of its own (FUSE, loop, tmpfs).

_MEDIA_PLACE: Final = re.compile(r"/media/[^/]+(/[^/]+)?|/run/media/[^/]+/[^/]+|/mnt/[^/]+")
_DEVICELESS: Final = frozenset({"tmpfs", "fuse", "fuseblk"})


def drives_on_linux(*, mounted: Sequence[tuple[str, ...]] | None = None, system: Path = Path("/sys")) -> list[Path]:
    """Return the removable drives among the mounted file systems, by a sysfs tree.

    mounted  device, mount point and file system of each; read by `psutil` by default
    """
    mounts = psutil.disk_partitions(all=True) if mounted is None else mounted
    found = {folder: (device, file_system) for device, folder, file_system, *_ in mounts}  # the topmost one stays
    return sorted(Path(folder) for folder, mount in found.items() if is_removable(*mount, folder, system=system))


def is_removable(device: str, file_system: str, mount_point: str, *, system: Path) -> bool:
    """Whether a mount point belongs to a removable drive. `system` is the sysfs tree."""
    is_loop = device.startswith("/dev/loop")
    link = system / "class" / "block" / Path(os.path.realpath(device)).name
    if device.startswith("/dev/") and not is_loop and link.exists():
        return _is_removable_device(link.resolve())
    return (file_system in _DEVICELESS or is_loop) and _MEDIA_PLACE.fullmatch(mount_point) is not None


def _is_removable_device(device: Path) -> bool:
    """Whether a block device is on USB, or it or (for a partition) its disk says that it is removable."""
    if any(re.fullmatch(r"usb[0-9]+", part) for part in device.parts):
        return True
    return any(_says_one(folder / "removable") for folder in (device, device.parent))


def _says_one(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() == "1"
    except (OSError, ValueError):
        return False


# ---- Windows
#
# Drives that call themselves fixed disks are not seen; their folder can be given by hand.

_REMOVABLE: Final = 2  # DRIVE_REMOVABLE, fileapi.h
_FAIL_CRITICAL_ERRORS: Final = 1  # SEM_FAILCRITICALERRORS: an empty card reader asks no questions on the screen


def drives_on_windows(kernel: Any = None) -> list[Path]:
    """Return the removable drives by kernel32."""
    system = kernel or ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    system.SetThreadErrorMode(_FAIL_CRITICAL_ERRORS, None)
    mask = system.GetLogicalDrives()  # A is the lowest bit
    roots = [letter + ":\\" for bit, letter in enumerate(string.ascii_uppercase) if mask >> bit & 1]
    return [Path(root) for root in roots if system.GetDriveTypeW(root) == _REMOVABLE]


# ---- the watch


class DriveWatch:
    """Publishes `DrivesChanged` from a thread of its own: once after `start`, then after every change.

    look  returns the drives present, with their packs
    """

    def __init__(self, publish: Publish, *, look: Callable[[], Drives] = list_drives) -> None:
        self._publish, self._look = publish, look
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drive-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Waits at most 2 s, since reading a failing drive can take long."""
        self._is_closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        seen: Drives | None = None
        try:
            while not self._is_closing.is_set():
                drives = self._look()
                if drives != seen:
                    seen = drives
                    self._publish(DrivesChanged(drives=drives))
                self._is_closing.wait(_LOOK_AGAIN_S)
        except OSError:
            log.exception("drives are not watched any more")
