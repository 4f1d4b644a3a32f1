"""Removable drives, and the safe reading of a pack's files, arrays and JSON from a drive.

The drive may be hostile, or may be pulled out at any time. Drives are listed each second, because a list of
mounts or of drive letters takes only microseconds. A drive pulled out without being unmounted stays in the list. Only
reading from the drive shows that the drive is gone.

A file is never read through a link, never from anything but a regular file, and never beyond a limit. Files are always
read into memory: a model mapped from a drive would kill the process when the drive is removed. All code that interprets
a pack is wrapped by `raising_fieldray_errors`, so that any error becomes a problem of that pack alone.

Each array is one file in NumPy's .npy format, read without pickle and without trusting the header
(https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html). Allowed are version 1.0, little-endian or
single-byte values, and C order. The size in the header must match the number of bytes, so a false header allocates no
memory. NumPy would evaluate the header as Python code. This module instead requires a header that matches, character by
character, the header that NumPy writes.
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

from fieldray.domain.run import DrivesChanged, PackFoldersByDrive, Publish
from fieldray.errors import FieldrayError, PackProblem
from fieldray.packs.naming import pack_folders
from fieldray.reasons import reason

log = logging.getLogger(__name__)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_MEGABYTE: Final = 2**20
# Opening a FIFO must not block. A link must not be followed. Windows must not translate line ends.
_FLAGS: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
_DISCONNECTED_ERRNO: Final = frozenset(
    {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESTALE, errno.ESHUTDOWN}
)
# ERROR_NOT_READY, ERROR_GEN_FAILURE, ERROR_DEV_NOT_EXIST, ERROR_NO_SUCH_DEVICE, ERROR_FILE_INVALID (the volume was
# altered), ERROR_IO_DEVICE, ERROR_DEVICE_NOT_CONNECTED (winerror.h)
_DISCONNECTED_WINDOWS: Final = frozenset({21, 31, 55, 433, 1006, 1117, 1167})


def raising_fieldray_errors(
    read: Callable[Concatenate[Path, _Parameters], _Result],
) -> Callable[Concatenate[Path, _Parameters], _Result]:
    """Decorate a function `read(folder, ...)` that reads a pack, so that the function raises only FieldrayError.

    A FieldrayError is raised unchanged. OSError becomes PackProblem, and so does every other error that a malicious
    pack may cause, such as recursion, lack of memory, or a bug of this program or of a library.
    """

    @functools.wraps(read)
    def door(folder: Path, /, *arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        try:
            return read(folder, *arguments, **options)
        except FieldrayError:
            raise
        except OSError as error:
            raise pack_problem(error, folder=folder) from error
        except Exception as error:
            log.warning("a pack was refused in a way nobody thought of: %a", str(folder), exc_info=True)
            raise PackProblem(reason("pack_unreadable", detail=f"{type(error).__name__}: {error}")) from error

    return door


def read_file(folder: Path, *, name: str, limit_bytes: int) -> bytes:
    """Read a regular file in a folder, at most `limit_bytes`.

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
        raise pack_problem(error, folder=folder) from error
    if data is None or len(data) > limit_bytes:
        sizes = {"size_mb": f"{details.st_size / _MEGABYTE:.1f}", "limit_mb": f"{limit_bytes / _MEGABYTE:.3g}"}
        raise PackProblem(reason("pack_too_large", name=name, **sizes))
    return data


def pack_problem(error: OSError, *, folder: Path) -> PackProblem:
    """Return the exception for an OSError while reading a pack: `drive_gone` or `pack_unreadable`."""
    is_disconnected = error.errno in _DISCONNECTED_ERRNO or getattr(error, "winerror", None) in _DISCONNECTED_WINDOWS
    if is_disconnected or not _is_there(folder):
        return PackProblem(reason("drive_gone"))
    return PackProblem(reason("pack_unreadable", detail=error.strerror or type(error).__name__))


def _is_there(folder: Path) -> bool:
    return os.path.exists(folder)  # noqa: PTH110 - Path.exists raises what a failing drive says


numpy_file_format: Final[Any] = npy_format  # only some releases of NumPy have types for it
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER: Final = 256
_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][a-z][0-9]{1,2})', 'fortran_order': (?P<order>False|True), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,10},|[0-9]{1,10}(?:, [0-9]{1,10}){1,7})?)\), \} *\n"
)


def array_to_npy(array: NDArray[Any]) -> bytes:
    """Encode an array as the bytes of a .npy file: little-endian, C order."""
    stream = io.BytesIO()
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    numpy_file_format.write_array(stream, np.ascontiguousarray(little_endian), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def array_from_npy(data: bytes, *, dtype: str, dimensions: int) -> NDArray[Any]:
    """Read an array from the bytes of a .npy file. The result is read-only.

    dtype, dimensions  the required type and number of dimensions

    Raises ValueError for a wrong type, shape, size or header, and for values that are not finite.
    """
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
    """Parse the header of a .npy file. Returns the parts of the header, and the offset of the values in `data`.

    Raises ValueError.
    """
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
# Stricter than `json.loads`: UTF-8 only, no doubled keys, no NaN or infinity, no deep nesting, and no control or
# formatting characters, which can hide or reorder text. The types of the values are checked in `packs.manifest`.


_LONGEST_KEY: Final = 100
_LINE_BREAKS: Final = frozenset("\n\t")
_DEEPEST: Final = 31  # levels of nesting: far more than a manifest needs, far fewer than overflow the stack


def manifest_error(detail: str) -> PackProblem:
    """Return the exception for an invalid manifest of a pack."""
    return PackProblem(reason("pack_manifest", detail=detail))


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON document in UTF-8 that contains an object. Raises PackProblem("pack_manifest")."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise manifest_error(f"not valid JSON: {error}") from error
    _check_texts(value, "")
    if not isinstance(value, dict):
        raise manifest_error("the file: an object is needed")
    return value


def canonical_json(content: Mapping[str, object]) -> bytes:
    """Write canonical JSON: UTF-8, sorted keys, an indent of one space, one line feed at the end.

    Raises ValueError for NaN and infinity. Raises TypeError for values that JSON cannot express.
    """
    return (json.dumps(content, ensure_ascii=False, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def is_line_safe_to_display(text: str) -> bool:
    """Return whether a text is one line without characters that can hide, reorder or forge text.

    Not allowed are control characters (C0, C1, line breaks, tabs), formatting characters (bidirectional, zero-width,
    tags), private, surrogate and unassigned characters, and line or paragraph separators (Unicode categories C*, Zl and
    Zp).
    """
    if text.isascii():  # the general test below would agree, but takes longer
        return text.isprintable()
    return not any((kind := unicodedata.category(letter))[0] == "C" or kind in ("Zl", "Zp") for letter in text)


def is_text_safe_to_display(text: str) -> bool:
    """Return whether a text has only characters that `is_line_safe_to_display` allows, line feeds and tabs."""
    return is_line_safe_to_display("".join(letter for letter in text if letter not in _LINE_BREAKS))


def _check_texts(value: object, location: str, *, deepest: int = _DEEPEST) -> None:
    """Raise PackProblem("pack_manifest") if a text or key in a JSON value has misleading characters.

    The nesting of the value is limited as well.

    location  position of the value in the document, for messages
    deepest   number of further levels allowed
    """
    if isinstance(value, str) and not is_text_safe_to_display(value):
        raise manifest_error(f"{location}: the text holds control characters")
    if isinstance(value, list | dict) and value and not deepest:
        raise manifest_error(f"not valid JSON: lists and objects are nested more than {_DEEPEST} deep")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_texts(item, f"{location}[{index}]", deepest=deepest - 1)
    if isinstance(value, dict):
        if not all(len(name) <= _LONGEST_KEY and is_line_safe_to_display(name) for name in value):
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


def list_drives() -> PackFoldersByDrive:
    """Return the connected removable drives with their packs, ordered by mount point.

    Raises OSError if the operating system cannot list drives.
    """
    if sys.platform == "win32":
        return packs_on_drives(drives_on_windows())
    return packs_on_drives(drives_on_mac() if sys.platform == "darwin" else drives_on_linux())


def drives_with_packs() -> list[Path]:
    """Return the mount points of drives with packs; empty if the operating system cannot list drives."""
    try:
        return [drive for drive, packs in list_drives().items() if packs]
    except OSError:
        return []


def packs_on_drives(drives: Iterable[Path]) -> PackFoldersByDrive:
    """Return the folders of the packs on each drive.

    An unreadable drive has no packs. A drive that was removed is left out.
    """
    found = {}
    for drive in drives:
        try:
            found[drive] = raising_fieldray_errors(pack_folders)(drive)
        except PackProblem as problem:
            if problem.reason.code != "drive_gone":
                found[drive] = ()
    return found


def drives_on_mac(*, volumes: Path = Path("/Volumes")) -> list[Path]:
    """Return the volumes mounted under /Volumes.

    Links are left out. The start-up volume is a link.
    """
    with os.scandir(volumes) as entries:
        return sorted(volumes / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


# ---- Linux
#
# A drive is removable if it is on a USB device, or on a device marked as removable. File systems without a device of
# their own (FUSE, loop, tmpfs) count as removable at the usual mount points of media.

_MEDIA_PLACE: Final = re.compile(r"/media/[^/]+(/[^/]+)?|/run/media/[^/]+/[^/]+|/mnt/[^/]+")
_DEVICELESS: Final = frozenset({"tmpfs", "fuse", "fuseblk"})


def drives_on_linux(*, mounted: Sequence[tuple[str, ...]] | None = None, sysfs_root: Path = Path("/sys")) -> list[Path]:
    """Return the mount points of removable drives on Linux, sorted.

    mounted     device, mount point and file system of each mount; read by `psutil` by default
    sysfs_root  root of the sysfs tree
    """
    mounts = psutil.disk_partitions(all=True) if mounted is None else mounted
    found = {folder: (device, file_system) for device, folder, file_system, *_ in mounts}  # the last mount hides others
    return sorted(
        Path(folder) for folder, mount in found.items() if is_removable_drive(*mount, folder, sysfs_root=sysfs_root)
    )


def is_removable_drive(device: str, file_system: str, mount_point: str, *, sysfs_root: Path) -> bool:
    """Return whether a mount point belongs to a removable drive.

    device, file_system, mount_point
                the entry in the system's list of mounts
    sysfs_root  root of the sysfs tree
    """
    is_loop = device.startswith("/dev/loop")
    link = sysfs_root / "class" / "block" / Path(os.path.realpath(device)).name
    if device.startswith("/dev/") and not is_loop and link.exists():
        return _is_removable_device(link.resolve())
    return (file_system in _DEVICELESS or is_loop) and _MEDIA_PLACE.fullmatch(mount_point) is not None


def _is_removable_device(device: Path) -> bool:
    """Return whether a block device is on USB, or is marked as removable.

    A partition also counts as removable if its disk is marked as removable.
    """
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
# Drives marked as fixed disks are not listed. A person can still give their folder.

_REMOVABLE: Final = 2  # DRIVE_REMOVABLE, fileapi.h
_FAIL_CRITICAL_ERRORS: Final = 1  # SEM_FAILCRITICALERRORS: no dialog box for an empty card reader


def drives_on_windows(kernel: Any = None) -> list[Path]:
    """Return the root folders of removable drives on Windows.

    kernel  the library kernel32; loaded by default
    """
    system = kernel or ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    system.SetThreadErrorMode(_FAIL_CRITICAL_ERRORS, None)
    mask = system.GetLogicalDrives()  # A is the lowest bit
    roots = [letter + ":\\" for bit, letter in enumerate(string.ascii_uppercase) if mask >> bit & 1]
    return [Path(root) for root in roots if system.GetDriveTypeW(root) == _REMOVABLE]


# ---- watching the drives


class DriveWatch:
    """Watches the removable drives. `DrivesChanged` is published once after `start`, and then after every change.

    look  returns the connected drives with their packs
    """

    def __init__(self, publish: Publish, *, look: Callable[[], PackFoldersByDrive] = list_drives) -> None:
        self._publish, self._look = publish, look
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drive-watch", daemon=True)

    def start(self) -> None:
        """Start the thread that watches the drives."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching. The call waits at most 2 s, because reading from a failing drive can take long."""
        self._is_closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        seen: PackFoldersByDrive | None = None
        try:
            while not self._is_closing.is_set():
                drives = self._look()
                if drives != seen:
                    seen = drives
                    self._publish(DrivesChanged(drives=drives))
                self._is_closing.wait(_LOOK_AGAIN_S)
        except OSError:
            log.exception("drives are not watched any more")
