"""Listing of folders and opening of image files. Each OSError of the file system becomes a reason for a person."""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import os
import re
import stat
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

from fieldray.errors import Unreadable
from fieldray.paths import DATABASE_NAME
from fieldray.reasons import reason

Opener = Callable[[Path], BinaryIO]


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file for reading. On Windows the path may be longer than 260 characters.

    Raises OSError at once for anything but an ordinary file, such as a named pipe.
    """
    name = str(path)
    if sys.platform == "win32" and len(name) > 240 and not name.startswith("\\\\"):
        name = "\\\\?\\" + os.path.abspath(name)  # noqa: PTH100 - pathlib resolves links, which this must not
    # the built-in `open`, because a path object would remove the prefix
    return open(name, "rb", opener=_open_at_once)


def _open_at_once(name: str, flags: int) -> int:
    number = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no ordinary file")
    return number


class FileState(NamedTuple):
    """Facts about a file that usually change when the content of the file changes.

    size_bytes            size of the file in bytes
    modified_ns           time of the last change of the content, ns since 1970
    status_changed_ns     time of the last change of content or metadata (ctime), which programs cannot set; on Windows,
                          the time of creation
    device_number, inode  identify the file in the system (st_dev, st_ino)
    """

    size_bytes: int
    modified_ns: int
    status_changed_ns: int
    device_number: int = 0
    inode: int = 0


def file_state_of(file: BinaryIO | Path) -> FileState | None:
    """Return the `FileState` of an open file or a path: size, times and inode. Raises OSError.

    Returns None for a stream that is not a file of the file system, such as one in memory.
    """
    try:
        status = file.stat() if isinstance(file, Path) else os.fstat(file.fileno())
    except io.UnsupportedOperation:
        return None
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)


def file_problem(error: OSError) -> Unreadable:
    """Return the exception that tells a person why a file could not be opened or read, given the OSError."""
    if isinstance(error, FileNotFoundError):
        return Unreadable(reason("missing"))
    if isinstance(error, PermissionError):
        return Unreadable(reason("no_permission"))
    if error.errno == errno.EIO:
        return Unreadable(reason("drive_error"))
    return Unreadable(reason("unreadable", detail=error.strerror or type(error).__name__))


# ---- Stamps: they show whether a file has changed since it was read, without reading all of it.
#
# A stamp is a keyed hash of a file's size, of the times of its last changes, and of a part of its content: its
# beginning, its end, and blocks between them at positions that follow from the key, the path and the size. Without the
# key nobody can predict the positions or make a stamp. A file that is no larger than these parts is hashed as a whole.
#
# The clock of a FAT drive counts in steps of two seconds, so two contents can have one time. A file that was changed
# shortly before it was read gets no stamp. It is read as a whole the next time, and then gets a stamp.

_HEAD_BYTES: Final = 4096  # the header of an ordinary file
_BLOCK_BYTES: Final = 1024
_BLOCKS: Final = 4  # between the beginning and the end
_WHOLE_BYTES: Final = _HEAD_BYTES + (_BLOCKS + 1) * _BLOCK_BYTES
_MAX_SMALL_FILE_BYTES: Final = 2**16
_STAMP_BYTES: Final = 16
_MARGIN_S: Final = 10.0  # two seconds for coarse clocks, the rest for a server's clock that differs

ReadPart = Callable[[int, int], bytes]


class FileStamper:
    """Makes stamps of files with one secret key.

    A stamp identifies the state of a file without hashing the whole content.

    Several threads may use the object.

    now_s  returns the time, seconds since 1970
    """

    def __init__(self, key: bytes, *, now_s: Callable[[], float] = time.time) -> None:
        self.key: Final = key
        self._now_s = now_s

    def stamp_of_data(self, path: Path, data: bytes, state: FileState | None) -> bytes:
        """Return the stamp of a file that was read whole; empty if no stamp can identify the file's state.

        state  state of the file during reading. The stamp is empty if the state is None, and for a file that was
               changed only seconds ago (`is_last_change_old_enough`)
        """
        if state is None or not self.is_last_change_old_enough(state):
            return b""
        return self._stamp(path, state, lambda offset, length: data[offset : offset + length])

    def stamp_of_stream(self, path: Path, stream: BinaryIO) -> bytes:
        """Return the stamp of the present state of an open file. Raises OSError.

        The stamp is empty for a stream that is not a file of the file system, such as a stream in memory.
        """
        state = file_state_of(stream)
        return self._stamp(path, state, _part_of(stream, state.size_bytes)) if state else b""

    def is_last_change_old_enough(self, state: FileState) -> bool:
        """Return whether the file's last change is so long ago that a further change would alter its time stamps."""
        return max(state.modified_ns, state.status_changed_ns) / 1e9 + _MARGIN_S < self._now_s()

    def _stamp(self, path: Path, state: FileState, read: ReadPart) -> bytes:
        stamp = hashlib.blake2b(struct.pack("<3q", *state[:3]), key=self.key, digest_size=_STAMP_BYTES)
        for offset, length in self._parts(os.fsencode(path), state.size_bytes):
            stamp.update(read(offset, length))
        return stamp.digest()

    def _parts(self, name: bytes, size: int) -> Iterator[tuple[int, int]]:
        """Yield start and length, in bytes, of the parts of a file that are hashed."""
        if size <= _WHOLE_BYTES:
            yield 0, size
            return
        yield 0, _HEAD_BYTES
        drawn = hashlib.blake2b(struct.pack("<q", size) + name, key=self.key, digest_size=8 * _BLOCKS)
        for number in struct.unpack(f"<{_BLOCKS}Q", drawn.digest()):
            yield _HEAD_BYTES + number % (size - _HEAD_BYTES - 2 * _BLOCK_BYTES + 1), _BLOCK_BYTES
        yield size - _BLOCK_BYTES, _BLOCK_BYTES


def _part_of(stream: BinaryIO, size: int) -> ReadPart:
    """Return a function that reads parts of an open file. A small file is read whole at once, which is faster."""
    if size <= _MAX_SMALL_FILE_BYTES:
        data = _read(stream, 0, size)
        return lambda offset, length: data[offset : offset + length]
    return lambda offset, length: _read(stream, offset, length)


def _read(stream: BinaryIO, offset: int, length: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(stream.fileno(), length, offset)
    stream.seek(offset)  # Windows
    return stream.read(length)


_SYSTEM_NAMES: Final = frozenset(
    {"thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "autorun.inf", "__macosx"}
    | {"system volume information", "temporary items", "appledb", "appledesktop", "@database", "@tmp", "@transcode"}
)
# The results database, with the suffixes of SQLite's additional files. Opening these files would release SQLite's locks
# (see `store.database.is_open_here`).
_OWN_DATABASES: Final = (DATABASE_NAME, DATABASE_NAME.replace(".", ".pictures."))
# Folders of deleted images, or of further copies of images: names on Windows, FAT and macOS, on network disks
# (Synology, QNAP, Asustor, Buffalo, NETGEAR, TrueNAS), and with Samba, NetApp, Nextcloud, Syncthing, Linux.
_BINS: Final = re.compile(
    r"\$recycle\.bin|recycler|recycled|found\.[0-9]{3}|lost\+found|\.trash(es|-[0-9]+)?|network trash folder|trashbox"
    r"|[#@.]recycle(d| bin)?|(network )?recycle bin( [0-9]+)?|files_(trashbin|versions)|\.stversions|backups\.backupdb"
    r"|@eadir|syno(photo|file|video)[_:].*|.*@syno(eastream|resource)|\.?@__thumb|\.thumb(nail)?s"
    r"|[#@~.]snapshots?|@recently-snapshot|@sharesnap(shot)?|@gmt-[0-9.-]+|\.zfs"
)
# Hidden files of macOS in each folder, which are never images.
_OF_MACOS: Final = re.compile(r"\._.*|\.ds_store|\.fseventsd|\.spotlight-v100")


def is_system_name(name: str) -> bool:
    """Return whether a search for images skips a file or folder with this name.

    Skipped are names of the system, names that begin with a dot, and names of recycle bins and of the results database.
    """
    return is_hidden(name) or name.lower() in _SYSTEM_NAMES or is_recycle_bin(name) or name.startswith(_OWN_DATABASES)


def is_hidden(name: str) -> bool:
    """Return whether a name begins with a dot."""
    return name.startswith(".") and name not in (".", "..")


def is_recycle_bin(name: str) -> bool:
    """Return whether a name is the name of a recycle bin, or of a system folder of thumbnails or snapshots."""
    return _BINS.fullmatch(name.lower()) is not None


def path_components(name: str) -> tuple[str, ...]:
    """Split the name of a file in a zip file or a DICOMDIR at slashes and backslashes, without empty parts and "."."""
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def folder_entry_key(name: str, *, is_folder: bool) -> str:
    """Return a key for an entry of a folder. A file and a folder with the same name have different keys."""
    return name + "/" if is_folder else name


def _may_be_image(left_out: str) -> bool:
    return is_hidden(left_out) and not is_recycle_bin(left_out) and not _OF_MACOS.fullmatch(left_out.lower())


class Folder:
    """A folder during a search for images, with the entries that were not visited yet.

    Entries of the system, such as hidden files and recycle bins, are skipped.

    names         keys (`folder_entry_key`) of all entries that are not skipped, visited or not
    recycle_bins  names of skipped entries that contain deleted images, thumbnails or snapshots
    hidden        number of other skipped hidden entries, which may be images
    """

    def __init__(self, path: Path, entries: Sequence[tuple[str, bool]] = ()) -> None:
        """Make a folder object from a listing. Raises OSError.

        entries  name of each entry, and whether the entry is a folder
        """
        self.path = path
        kept = [entry for entry in entries if not is_system_name(entry[0])]
        left_out = [name for name, _ in entries if is_system_name(name)] if len(kept) < len(entries) else []
        self.names = frozenset(folder_entry_key(name, is_folder=is_folder) for name, is_folder in kept)
        self.recycle_bins = list(filter(is_recycle_bin, left_out))
        self.hidden = sum(map(_may_be_image, left_out))
        self._left = sorted(kept, reverse=True)
        status = os.stat(path)  # noqa: PTH116 - as in `is_gone_or_replaced`
        self._device, self._number = status.st_dev, status.st_ino

    @functools.cached_property
    def real_path(self) -> str:
        """The path of the folder with links resolved."""
        return os.path.realpath(self.path)

    def is_cyclic(self, parents: Sequence[Folder]) -> bool:
        """Return whether the folder is the same as one of the folders above it.

        Windows junctions can make a folder its own parent, and Python does not recognise junctions as links.

        parents  the folders above, from the top
        """
        known = (self._device, self._number)
        return any(known == (above._device, above._number) and self.real_path == above.real_path for above in parents)

    @classmethod
    def from_path(cls, path: Path) -> Self:
        """List the entries of a folder. Raises OSError, also for a link to a folder."""
        with os.scandir(path) as entries:
            return cls(path, [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries])

    def next_entry(self) -> tuple[Path, bool] | None:
        """Return the next entry in the order of names; None after the last entry.

        An entry is (path, whether it is a folder).
        """
        if not self._left:
            return None
        name, is_folder = self._left.pop()
        return self.path / name, is_folder

    def remaining_entries(self) -> Iterator[tuple[Path, bool]]:
        """Return an iterator over the entries of the folder that were not visited yet."""
        return iter(self.next_entry, None)

    def is_gone_or_replaced(self) -> bool:
        """Return whether the folder can no longer be listed, or its path now leads to another drive.

        After a drive was unplugged, an empty mount point may be left, which lies on another drive.
        """
        try:
            with os.scandir(self.path) as entries:
                next(entries, None)
            return os.stat(self.path).st_dev != self._device  # noqa: PTH116 - no path is normalised here
        except OSError:
            return True


# ---- the files that a DICOMDIR names


_MAX_COMPONENTS: Final = 32  # parts of a name; the standard allows 8 (PS3.10 8.5)
_STEM: Final = "/"  # marks a stem among names, because no name begins with a slash
_ENDING: Final = re.compile(r"(?<=.)(\.[a-z][a-z0-9]{0,4})?(;[0-9]+)?$")  # an extension, and a version


def find_file_any_case(folder: Path, components: Sequence[str], names: CaseInsensitiveNames) -> Path | None:
    """Return the path of a file that a DICOMDIR lists, even if upper and lower case differ (PS3.10 8.2).

    Returns None for a path with "..", with forbidden characters, with too many parts, or without any part. Some discs
    use another path separator, or have files with an extension that the DICOMDIR leaves out.

    folder      the folder of the DICOMDIR
    components  the parts of the path in the DICOMDIR
    names       finds the entries of folders in any letter case
    """
    path, parts = folder, path_components("/".join(components))
    if len(parts) > _MAX_COMPONENTS:
        return None
    for name in parts:
        if name == ".." or set(name) & set(':\0<>|"'):
            return None
        path = names.find(path, name)
    is_elsewhere = components[:1] and components[0].startswith("/") and not os.path.lexists(path)
    return path if parts and not is_elsewhere else None


class CaseInsensitiveNames:
    """Finds files in any letter case of their names. Each folder is listed only once.

    The returned names are those in the listing of the folder. Otherwise a file could have two names on a system that
    ignores case.
    """

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, str]] = {}

    def find(self, folder: Path, name: str) -> Path:
        """Return the path of the entry with this name, in any letter case; without such an entry, `folder / name`.

        An entry with another extension, or with a version number after its name, is found only if it is the only entry
        with this stem.
        """
        names, stem = self._names(folder), _stem(name)
        return folder / (names.get(name) or names.get(name.casefold()) or names.get(_STEM + stem) or name)

    def _names(self, folder: Path) -> dict[str, str]:
        if folder not in self._listed:
            try:
                names = os.listdir(folder)  # noqa: PTH208 - names alone, not paths
            except OSError:  # not cached, because a DICOMDIR can name any number of missing folders
                return {}
            stems = [(_STEM + _stem(name), name) for name in names if not is_system_name(name)]
            often = Counter(stem for stem, _ in stems)
            self._listed[folder] = {stem: name for stem, name in stems if often[stem] == 1}
            self._listed[folder] |= {name.casefold(): name for name in reversed(names)}
            self._listed[folder] |= {name: name for name in names}
        return self._listed[folder]


def _stem(name: str) -> str:
    return _ENDING.sub("", name.casefold())
