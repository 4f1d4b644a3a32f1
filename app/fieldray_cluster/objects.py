"""An archive whose images are objects of a server: a bucket of S3, or any address that fsspec knows.

The driver lists the objects page by page and looks at the beginning of each. A worker brings those of its piece to
files of its own, some ahead of the image that is being screened; programs that are offline read these. They stay in a
cache that the workers of a computer share, up to its limit. Only the server of the address is reached, with the
credentials of the user's own configuration.

An object is known by its address and its state (size and tag) when it was listed. Whether a failure is the object's or
the server's is found out by asking the server for something else: the one fails an image, the other is waited for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import ipaddress
import itertools
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar, cast
from urllib.parse import unquote, urlsplit

import fsspec

from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.study import ImageRef
from fieldray.errors import EnvironmentProblem, FieldrayError, InputProblem, Unreadable, UsageProblem
from fieldray.imaging.discover import Members, failed_ref, refs_in
from fieldray.imaging.identify import IndexFound, ZipFound
from fieldray.imaging.source import file_problem, is_system_name
from fieldray.offline import reach, reach_server
from fieldray.persistence import storage_problem
from fieldray.reasons import reason
from fieldray.reports.outputs import is_own_report

_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]+)://(?!.*::)(.+)", re.DOTALL)
CACHE_BYTES: Final = 2**31
_BLOCK_BYTES: Final = 2**22
_HEAD_BYTES: Final = 2**16  # of an object, as long as only its header is wanted
_PAGE: Final = 1000
_STREAMS: Final = 8
_AHEAD: Final = 16  # objects that are here, or on their way, before their images are screened
_PATIENCE_S: Final = 300.0
_PAUSE_S: Final = 1.0
_TRIES: Final = 3
_TAGS: Final = ("ETag", "etag", "mtime", "LastModified", "last_modified", "modified", "created")

Result = TypeVar("Result")


def is_address(text: str) -> bool:
    """Whether this is the address of objects, and no path of this computer."""
    return _ADDRESS.fullmatch(text) is not None


def place_of(address: str) -> Path:
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

    Raises UsageProblem (archive_no_protocol) where fsspec has nothing for the address, EnvironmentProblem where its
    configuration is of no use, InternetRefused in a process that may reach nothing.
    """

    def __init__(self, address: str, *, patience_s: float = _PATIENCE_S, most_bytes: int = CACHE_BYTES) -> None:
        self.address: Final = address.rstrip("/")
        protocol, _, rest = self.address.partition("://")
        self._bucket, _, self._prefix = rest.partition("/")
        self._patience_s, self._most_bytes = patience_s, most_bytes
        self.is_awaited = False
        if sys.platform == "win32":
            reach(("127.0.0.0/8",))  # an event loop talks to itself over it
        try:
            self._files: Any = fsspec.filesystem(protocol, use_listings_cache=False)
            self._is_s3 = "s3" in self._files.protocol
            hosts = self._hosts()
        except (ImportError, ValueError) as error:
            raise UsageProblem(reason("archive_no_protocol", address=address, detail=str(error))) from error
        except Exception as error:  # the user's configuration may say anything
            raise self._gone(error) from error
        for host in hosts:
            reach_server(host)

    def _hosts(self) -> set[str]:
        if not self._is_s3:
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
            for name in self._keys() if self._is_s3 else self._walked():
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
        self._insisted(lambda: self._files.info(self.address), patience_s=0.0)
        try:
            for folder, _, names in self._files.walk(self.address, on_error="raise"):
                for name in sorted(names):
                    yield str(self._files.unstrip_protocol(f"{folder.rstrip('/')}/{name}" if name else folder))
        except Exception as error:
            raise self._gone(error) from error

    def head(self, address: str, look: Callable[[BinaryIO], Result]) -> tuple[Result, str]:
        """What `look` makes of an object that it reads as far as it likes, and the state of the object.

        Raises Unreadable for this object, EnvironmentProblem (archive_server_gone).
        """

        def attempt() -> tuple[Result, str]:
            with self._opened(address, _HEAD_BYTES) as stream:
                noting = _NotingStream(stream)
                result = look(cast("BinaryIO", noting))
                if noting.error:  # whatever was made of it
                    raise noting.error
                return result, self._state(address, stream)

        return self._insisted(attempt)

    def copy(self, address: str, state: str, target: Path) -> int:
        """Write an object to a file, in blocks; its size in bytes. An empty `state` is that of any object.

        Raises Unreadable (missing, no_permission, unreadable, archive_object_changed, archive_object_large) for this
        object, EnvironmentProblem (archive_server_gone), StorageProblem.
        """

        def attempt() -> int:
            with self._opened(address, _BLOCK_BYTES) as stream:
                now = self._state(address, stream)
                if state and now != state:
                    raise Unreadable(reason("archive_object_changed"))
                size, written = now.partition(" ")[0], 0
                if size.isdigit() and int(size) > self._most_bytes:
                    megabytes = {"size_mb": int(size) // 2**20, "limit_mb": self._most_bytes // 2**20}
                    raise Unreadable(reason("archive_object_large", **megabytes))
                try:
                    with target.open("wb") as file:
                        while part := stream.read(_BLOCK_BYTES):
                            written += file.write(part)
                except OSError as error:
                    raise storage_problem(error, target) if error.errno == errno.ENOSPC else error from None
            if size.isdigit() and written != int(size):
                raise OSError(f"{written} of {size} bytes")
            return written

        return self._insisted(attempt)

    def _opened(self, address: str, block_bytes: int) -> Any:
        return self._files.open(address, "rb", block_size=block_bytes, cache_type="readahead")

    def _state(self, address: str, stream: Any) -> str:
        found = getattr(stream, "details", None) or self._files.info(address)
        return f"{found.get('size')} {next((found[name] for name in _TAGS if found.get(name)), '')}"

    def _insisted(self, attempt: Callable[[], Result], *, patience_s: float | None = None) -> Result:
        """What an attempt gives, once the server is there."""
        until_s = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        tries = 0
        while True:
            try:
                result = attempt()
                self.is_awaited = False
                return result
            except FieldrayError:
                raise
            except Exception as error:
                if isinstance(error, FileNotFoundError | PermissionError):
                    raise file_problem(error) from error
                if self._answers():
                    tries += 1
                    if tries == _TRIES:
                        raise Unreadable(reason("unreadable", detail=_text(error))) from error
                elif time.monotonic() > until_s:
                    raise self._gone(error) from error
                else:
                    self.is_awaited = True
                    time.sleep(_PAUSE_S)

    def _answers(self) -> bool:
        """Whether the server is there, whatever it says of the archive."""
        try:
            self._files.info(self.address)
        except Exception as error:
            return isinstance(error, FileNotFoundError | PermissionError)
        return True

    def _gone(self, error: Exception) -> EnvironmentProblem:
        return EnvironmentProblem(reason("archive_server_gone", address=self.address, detail=_text(error)))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class _NotingStream(io.RawIOBase):
    """Another stream, of which it is known whether a read has failed: parsers take that for damage."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

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
        ref = ImageRef(path=place_of(address))

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
    ref = ImageRef(path=place_of(address))
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
        of_place = {ref.path: state for ref, state in zip(refs, states, strict=True)}
        self._threads.submit(self._feed, of_place, folder)

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
