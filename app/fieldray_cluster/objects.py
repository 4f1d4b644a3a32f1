"""An archive whose images are objects of a server: a bucket of S3, or folders that are reached by HTTP or SFTP.

The driver lists the objects page by page and looks at the beginning of each. A worker brings those of its piece to
files of its own, some ahead of the image that is being screened; programs that are offline read these. They stay in a
cache that the workers of a computer share, up to its limit. Only the server of the address is reached, with the
credentials of the user's own configuration.

An object is known by its address and its state (size and tag) when it was listed. Whether a failure is the object's or
the server's is found out by asking the server for something else: the one fails an image, the other is waited for.

fsspec knows more protocols. Those here name their server in the address, or by their endpoint; each keeps to it, tells
a size and a tag, and says of a folder that it cannot be listed (fsspec's FTP takes it for an empty one).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import ipaddress
import itertools
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar, cast
from urllib.parse import unquote, urlsplit

import fsspec

from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.image import ImageRef
from fieldray.errors import EnvironmentProblem, FieldrayError, InputProblem, Unreadable, UsageProblem
from fieldray.imaging.discover import Members, failed_ref, refs_in
from fieldray.imaging.identify import IndexFound, ZipFound
from fieldray.imaging.source import file_problem, is_system_name
from fieldray.offline import InternetRefused, reach, reach_server
from fieldray.persistence import storage_problem
from fieldray.reasons import reason
from fieldray.reports.outputs import is_own_report

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.:-]+://.+", re.DOTALL)
_KINDS: Final = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http", "sftp": "sftp", "ssh": "sftp"}
CACHE_BYTES: Final = 2**31
_BLOCK_BYTES: Final = 2**22
_HEAD_BYTES: Final = 2**16  # of an object, as long as only its header is wanted
_PAGE: Final = 1000
_STREAMS: Final = 8
_AHEAD: Final = 16  # objects that are here, or on their way, before their images are screened
_PATIENCE_S: Final = 300.0
_PAUSE_S: Final = 1.0
_TRIES: Final = 3
_SILENCE_S: Final = 60.0
_TAGS: Final = ("ETag", "Last-Modified", "mtime")
_OF_STATUS: Final = {401: PermissionError(), 403: PermissionError(), 404: FileNotFoundError(), 410: FileNotFoundError()}

Result = TypeVar("Result")


def is_address(text: str) -> bool:
    """Whether this is the address of objects, and no path of this computer."""
    return _ADDRESS.fullmatch(text) is not None


def address_path(address: str) -> Path:
    """How results name the object of an address: a path that no other one has."""
    protocol, _, rest = address.partition("://")
    return Path(f"{protocol}:/" + "/".join(map(_quoted, rest.split("/"))))


def address_of(path: Path) -> str:
    """The inverse."""
    protocol, *parts = path.as_posix().split("/")
    return f"{protocol}//" + "/".join("" if part == "%" else unquote(part) for part in parts)


def _quoted(part: str) -> str:
    """A part of a name, with what a path would not keep."""
    part = part.replace("%", "%25").replace("\\", "%5C").replace("\0", "%00")
    return "%" if not part else part.replace(".", "%2E") if part in (".", "..") else part


class ObjectServer:
    """The server of an address; used by several threads.

    patience_s  how long it may be gone
    most_bytes  of an object

    `is_awaited` says whether it is gone just now, and waited for.

    Raises UsageProblem (archive_no_protocol, archive_no_library, archive_password), EnvironmentProblem where its
    configuration is of no use, InternetRefused in a process that may reach nothing.
    """

    def __init__(self, address: str, *, patience_s: float = _PATIENCE_S, most_bytes: int = CACHE_BYTES) -> None:
        self.address: Final = address.rstrip("/")
        self._protocol, _, rest = self.address.partition("://")
        self._bucket, _, self._prefix = rest.partition("/")
        self._patience_s, self._most_bytes = patience_s, most_bytes
        self.is_awaited = False
        self._awaited_s, self._own = -math.inf, threading.local()
        self._kind = _KINDS.get(self._protocol, "")
        if not self._kind:
            raise UsageProblem(reason("archive_no_protocol", address=address))
        if self._kind != "s3" and "@" in self._bucket and ":" in self._bucket.rpartition("@")[0]:
            raise UsageProblem(reason("archive_password", protocol=self._protocol))
        if sys.platform == "win32":
            reach(("127.0.0.0/8",))  # an event loop talks to itself over it
        try:
            library = fsspec.get_filesystem_class(self._protocol)
            self._shared = None if self._kind == "sftp" else library(use_listings_cache=False)
            for host in self._hosts():
                reach_server(host)
        except ImportError as error:
            raise UsageProblem(reason("archive_no_library", address=address, detail=str(error))) from error
        except InternetRefused:
            raise
        except Exception as error:  # the user's configuration may say anything
            raise self._gone(error) from error

    @property
    def _files(self) -> Any:
        """What fsspec has for the address; of SFTP each thread has a connection of its own."""
        if self._shared is None and not hasattr(self._own, "files"):
            self._own.files = _connected_by_ssh(self.address)
        return self._shared or self._own.files

    def _hosts(self) -> set[str]:
        if self._kind != "s3":
            return {urlsplit(self.address).hostname or ""} - {""}
        self._files.retries = 1  # those of botocore are left, and `_insisted`
        host = urlsplit(self._files.s3.meta.endpoint_url).hostname or ""
        with contextlib.suppress(ValueError):
            return {str(ipaddress.ip_address(host))}
        return {host, f"{self._bucket}.{host}"}

    def names(self) -> Iterator[str]:
        """The addresses of all objects, a page at a time.

        Raises UsageProblem (nothing_to_screen), EnvironmentProblem (archive_not_listed, archive_server_gone).
        """
        try:
            for name in self._keys() if self._kind == "s3" else self._walked():
                if not any(map(is_system_name, name[len(self.address) :].split("/"))):
                    yield name
        except Unreadable as problem:
            if problem.reason.code == "missing":
                raise UsageProblem(reason("nothing_to_screen", path=self.address)) from problem
            raise EnvironmentProblem(reason("archive_not_listed", address=self.address)) from problem

    def _keys(self) -> Iterator[str]:
        start, top = f"{self._prefix}/" if self._prefix else "", self.address.removesuffix(self._prefix).rstrip("/")
        query: dict[str, object] = {"Bucket": self._bucket, "Prefix": start, "MaxKeys": _PAGE}
        patience_s: float | None = 0.0
        while True:
            page = self._insisted(lambda: self._files.call_s3("list_objects_v2", **query), patience_s=patience_s)
            for each in page.get("Contents", ()):
                if each["Size"] or not each["Key"].endswith("/"):  # else it stands for a folder
                    yield f"{top}/{each['Key']}"
            if start and not page.get("Contents") and patience_s is not None:  # perhaps it is one object
                self._insisted(lambda: self._files.info(self.address))
                yield self.address
            if not (token := page.get("NextContinuationToken")):
                return
            query["ContinuationToken"], patience_s = token, None

    def _walked(self) -> Iterator[str]:
        """Folder by folder; fsspec's own walk leaves out those that it cannot list."""
        top = self._insisted(lambda: self._files.info(self.address), patience_s=0.0)
        if top["type"] != "directory" and self._kind != "http":
            yield self.address
            return
        folders = [self.address]
        while folders:
            folder = folders.pop()
            found = self._entries(folder)
            if not found and folder == self.address and self._kind == "http":  # no page of links
                found = {"": False}
            yield from (f"{folder}/{name}".rstrip("/") for name, is_folder in sorted(found.items()) if not is_folder)
            folders += [f"{folder}/{name}" for name in sorted(found, reverse=True) if found[name]]

    def _entries(self, folder: str) -> dict[str, bool]:
        """The names in a folder, and whether each is a folder; of HTTP by the links of its page that lead there."""
        found = self._insisted(lambda: self._files.ls(folder, detail=True))
        names = {each["name"].rstrip("/"): each["type"] == "directory" for each in found}
        if self._kind != "http":
            return {name.rpartition("/")[2]: is_folder for name, is_folder in names.items()}
        inside = {unescape(name[len(folder) + 1 :]).removeprefix("./"): is_folder for name, is_folder in names.items()}
        return {name: inside[name] for name in inside if name not in ("", "..") and not set("/?#") & set(name)}

    def head(self, address: str, look: Callable[[BinaryIO], Result]) -> tuple[Result, str]:
        """What `look` makes of an object that it reads as far as it likes, and the state of the object.

        Raises Unreadable for this object, EnvironmentProblem (archive_server_gone, archive_no_tag).
        """

        def attempt() -> tuple[Result, str]:
            with self._opened(address, _HEAD_BYTES) as (stream, state):
                noting = _NotingStream(stream)
                result = look(cast("BinaryIO", noting))
                if noting.error:  # whatever was made of it
                    raise noting.error
            if not state:
                raise EnvironmentProblem(reason("archive_no_tag", address=address))
            return result, state

        return self._insisted(attempt)

    def copy(self, address: str, state: str, target: Path) -> int:
        """Write an object to a file, in blocks; its size in bytes. An empty `state` is that of any object.

        Raises Unreadable (missing, no_permission, unreadable, archive_object_changed, archive_object_large,
        archive_no_tag) for this object, EnvironmentProblem (archive_server_gone), StorageProblem.
        """

        def attempt() -> int:
            with self._opened(address, 0 if self._kind == "http" else _BLOCK_BYTES) as (stream, now):
                if not now:
                    raise Unreadable(reason("archive_no_tag", address=address))
                size, written = int(now.partition(" ")[0]), 0
                if size > self._most_bytes:
                    megabytes = {"size_mb": size // 2**20, "limit_mb": self._most_bytes // 2**20}
                    raise Unreadable(reason("archive_object_large", **megabytes))
                try:
                    with target.open("wb") as file:
                        while now == (state or now) and (part := stream.read(_BLOCK_BYTES)):
                            written += file.write(part)
                except OSError as error:
                    raise storage_problem(error, target) if error.errno == errno.ENOSPC else error from None
            after = now if self._kind == "s3" else self._state(self._files.info(address))  # S3 answers for one tag only
            if now != (state or now) or now != after:
                raise Unreadable(reason("archive_object_changed"))
            if written != size:
                raise OSError(f"{written} of {size} bytes")
            return written

        return self._insisted(attempt)

    @contextlib.contextmanager
    def _opened(self, address: str, block_bytes: int) -> Iterator[tuple[Any, str]]:
        """An object and its state."""
        found = None if self._kind == "s3" else self._files.info(address)
        if found and not found["size"]:
            yield io.BytesIO(), self._state(found)
            return
        options = {"block_size": block_bytes, "cache_type": "readahead", "size": found and found["size"]}
        with self._files.open(address, "rb", **options) as stream:
            yield stream, self._state(found or stream.details)

    def _state(self, found: Mapping[str, Any]) -> str:
        """Size and tag; empty where the server tells one of them not."""
        tag = next((found[name] for name in _TAGS if found.get(name)), "")
        return f"{found['size']} {tag}" if tag and found["size"] is not None else ""

    def _insisted(self, attempt: Callable[[], Result], *, patience_s: float | None = None) -> Result:
        """What an attempt gives, once the server is there."""
        until_s = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        tries = 0
        while True:
            began_s = time.monotonic()
            try:
                result = attempt()
                self.is_awaited = False
                return result
            except FieldrayError:
                raise
            except Exception as problem:
                error = self._cause(problem)
                if isinstance(error, FileNotFoundError | PermissionError):
                    raise file_problem(error) from problem
                if not self._answers():
                    self._awaited_s = time.monotonic()
                    if self._awaited_s > until_s:
                        raise self._gone(error) from problem
                    self.is_awaited = True
                elif self._awaited_s < began_s or began_s > until_s:  # for no thread was the server gone meanwhile
                    tries += 1
                    if tries == _TRIES:
                        raise Unreadable(reason("unreadable", detail=_text(error))) from problem
                time.sleep(_PAUSE_S)

    def _answers(self) -> bool:
        """Whether the server is there, whatever it says of the archive."""
        try:
            vars(self._own).pop("files", None)
            self._files.info(self.address)
        except Exception as problem:
            return isinstance(self._cause(problem), FileNotFoundError | PermissionError)
        return True

    def _cause(self, error: Exception) -> Exception:
        """What has happened; fsspec says after every failure of HTTP that nothing is there."""
        if self._kind == "http" and isinstance(error, FileNotFoundError):
            error = cast("Exception", error.__cause__ or error)
        return _OF_STATUS.get(getattr(error, "status", 0), error)

    def _gone(self, error: Exception) -> EnvironmentProblem:
        return EnvironmentProblem(reason("archive_server_gone", address=self.address, detail=_text(error)))


def _connected_by_ssh(address: str) -> Any:
    """A server of SFTP whose key the user's `known_hosts` has; fsspec alone would take any."""
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class Known(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, _client: object, hostname: str, key: Any) -> None:
            known = paramiko.HostKeys()
            with contextlib.suppress(FileNotFoundError):
                known.load(str(Path("~/.ssh/known_hosts").expanduser()))
            if not known.check(hostname, key):
                raise paramiko.SSHException(f"the key of {hostname} is not in ~/.ssh/known_hosts")

    parts = urlsplit(address)
    named = {name: value for name in ("port", "username") if (value := getattr(parts, name))}
    waits = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout"), _SILENCE_S)
    files = SFTPFileSystem(parts.hostname, host_key_policy=Known(), skip_instance_cache=True, **waits, **named)
    files.ftp.get_channel().settimeout(_SILENCE_S)
    return files


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class _NotingStream(io.RawIOBase):
    """Another stream, of which it is known whether a read has failed: parsers take that for damage."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._stream.seek(offset, whence)
        return int(self._stream.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except Exception as error:
            self.error = error
            raise OSError(_text(error)) from error
        buffer[: len(data)] = data
        return len(data)


# ---- which images there are


def list_objects(server: ObjectServer, members: Members, folder: Path) -> Iterator[tuple[ImageRef, str]]:
    """Every image of the objects, and the state of its object; a DICOMDIR names files that are listed anyway.

    folder  for a zip file, while its members are listed

    Raises as `ObjectServer.names`.
    """

    def look(address: str) -> tuple[list[ImageRef] | IndexFound | ZipFound | None, str]:
        ref = ImageRef(path=address_path(address))

        def found_in(stream: BinaryIO) -> list[ImageRef] | IndexFound | ZipFound | None:
            try:
                return refs_in(stream, ref, is_own_report)
            except InputProblem as problem:
                return [failed_ref(ref, problem)]

        try:
            return server.head(address, found_in)
        except Unreadable:  # whoever is to screen it will see
            return [ref], ""

    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="listing") as threads:
        names = server.names()
        while page := tuple(itertools.islice(names, _PAGE)):
            for address, (found, state) in zip(page, threads.map(look, page), strict=True):
                if isinstance(found, ZipFound):
                    yield from ((ref, state) for ref in _members(server, members, address, state, folder / "zip"))
                elif isinstance(found, list):
                    yield from ((ref, state) for ref in found)


def _members(server: ObjectServer, members: Members, address: str, state: str, target: Path) -> Iterator[ImageRef]:
    ref = ImageRef(path=address_path(address))
    try:
        server.copy(address, state, target)
        yield from (replace(each, path=ref.path) for each in members(replace(ref, path=target)))
    except InputProblem as problem:
        yield failed_ref(ref, problem)
    finally:
        target.unlink(missing_ok=True)


# ---- objects as files of this computer


class ObjectCache:
    """Objects that were brought here, of all workers of this computer, which have links of their own to what they use.

    Those that were not used for longest go first.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = CACHE_BYTES) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._added, self._lock = 0, threading.Lock()
        folder.mkdir(exist_ok=True)

    def bring(self, server: ObjectServer, address: str, state: str, target: Path) -> None:
        """Have the object as a file of one's own. Raises as `ObjectServer.copy`."""
        kept = self._folder / hashlib.sha256(f"{address}\n{state}".encode(errors="surrogateescape")).hexdigest()
        try:
            os.link(kept, target)
            os.utime(target)
        except OSError:
            size = server.copy(address, state, target)
            if state:
                with contextlib.suppress(OSError):  # a disk may know no links; another worker may have brought it, too
                    os.link(target, kept)
                    self._count(size)

    def _count(self, size: int) -> None:
        with self._lock:
            self._added += size
            if self._added < self._limit_bytes // 16:
                return
            self._added = 0
        with contextlib.suppress(OSError):  # another worker tidies up as well
            found = [(path.stat(), path) for path in self._folder.iterdir()]
            kept = sorted((each.st_mtime_ns, each.st_size, path) for each, path in found if each.st_nlink == 1)
            total = sum(size_bytes for _, size_bytes, _ in kept)
            for _, size_bytes, path in kept:
                if total > self._limit_bytes // 2:
                    path.unlink(missing_ok=True)
                    total -= size_bytes


class ReadAhead:
    """The objects of a piece, brought in the order of its images while these are screened."""

    def __init__(
        self, server: ObjectServer, cache: ObjectCache, refs: Sequence[ImageRef], states: Sequence[str], folder: Path
    ) -> None:
        self._server, self._cache = server, cache
        self._uses = Counter(ref.path for ref in refs if not ref.problem)
        self._lock, self._room, self._is_over = threading.Lock(), threading.Semaphore(_AHEAD), False
        self._coming: dict[Path, Future[Path]] = {path: Future() for path in self._uses}
        self._threads = ThreadPoolExecutor(_STREAMS + 1, thread_name_prefix="objects")
        of_path = {ref.path: state for ref, state in zip(refs, states, strict=True)}
        self._threads.submit(self._feed, of_path, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._room.release()
        self._threads.shutdown(cancel_futures=True)
        self._server.is_awaited = False
        for future in self._coming.values():  # whoever waits for one ends
            future.cancel()

    def _feed(self, states: dict[Path, str], folder: Path) -> None:
        """In order, so that what is waited for never waits for room that is kept by what comes later."""
        for number, (path, future) in enumerate(self._coming.items()):
            self._room.acquire()
            if self._is_over:
                return
            self._threads.submit(self._bring, path, states[path], folder / f"{number}", future)

    def _bring(self, path: Path, state: str, target: Path, future: Future[Path]) -> None:
        try:
            self._cache.bring(self._server, address_of(path), state, target)
        except Exception as error:
            target.unlink(missing_ok=True)  # what came of it
            future.set_exception(error)
        else:
            future.set_result(target)

    @contextlib.contextmanager
    def local(self, ref: ImageRef) -> Iterator[Path]:
        """The file that an image's object was brought to. Raises Unreadable, EnvironmentProblem, StorageProblem."""
        try:
            yield self._coming[ref.path].result()
        finally:
            self._used(ref.path)

    def screened(self, screen: Callable[[ImageRef], Outcome], ref: ImageRef) -> Outcome:
        """The outcome of an image by that file. Raises as `local` for all but this object, and as `screen`."""
        if ref.problem:
            return screen(ref)
        try:
            with self.local(ref) as path:
                outcome = screen(replace(ref, path=path))
        except InputProblem as problem:
            return Failed(ref=ref, stage="decode", reason=problem.reason)
        return replace(outcome, ref=replace(outcome.ref, path=ref.path))

    def _used(self, path: Path) -> None:
        with self._lock:
            self._uses[path] -= 1
            if self._uses[path]:
                return
        future = self._coming[path]
        if future.done() and not future.cancelled() and not future.exception():
            future.result().unlink(missing_ok=True)
        self._room.release()
