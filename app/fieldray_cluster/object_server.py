"""List and download objects (image files) on a server: an S3 bucket, or folders on an HTTP or SFTP server.

An object is requested by its exact name: `a.png?versionId=1`, `a.png/` and `a.png` are three objects. An object is
identified by its name and its state (size and tag) at the time of listing. Only the server of the address is contacted,
with the credentials of the user's configuration.

After a failed request, the program sends another, simple request. If the server answers, the object is at fault, and
its image fails. If the server does not answer, the program waits for the server.

The library fsspec supports more protocols. This module supports only protocols that name the server in the address or
endpoint, contact no other server, give size and tag, and report a folder that cannot be listed. FTP is not supported,
because fsspec returns an empty list for an FTP folder that cannot be listed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import ipaddress
import math
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote, urljoin, urlsplit

import fsspec
from fsspec.asyn import sync

from fieldray.errors import EnvironmentProblem, FieldrayError, Unreadable, UsageProblem
from fieldray.imaging.source import file_problem, is_system_name
from fieldray.offline import InternetRefused, allow_networks, allow_server
from fieldray.persistence import storage_problem
from fieldray.reasons import reason

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.:-]+://.+", re.DOTALL)
_WEB: Final = ("http", "https")
MAX_OBJECT_BYTES: Final = 2**31
"""The largest size, in bytes, of an object that the program downloads."""
_BLOCK_BYTES: Final = 2**22
_PAGE: Final = 1000
_PATIENCE_S: Final = 300.0
_PAUSE_S: Final = 1.0
_TRIES: Final = 3
_SILENCE_S: Final = 60.0
_OF_STATUS: Final = {401: PermissionError(), 403: PermissionError(), 404: FileNotFoundError(), 410: FileNotFoundError()}

Result = TypeVar("Result")
ObjectAddressAndState = tuple[str, str]
"""An object in a server's list: address, and state (size and tag) as one text.

The state is "" if the server's list has no states.
"""


# ---- addresses


def is_object_address(text: str) -> bool:
    """Return whether a text is an address on a server, such as s3://BUCKET/FOLDER, and not a path on this computer."""
    return _ADDRESS.fullmatch(text) is not None


def address_to_path(address: str) -> Path:
    """Return the path by which results name an object on a server. `path_to_address` returns the address again.

    Different addresses have different paths. Percent codes in HTTP addresses, such as %20, become characters.
    """
    protocol, _, rest = address.partition("://")
    host, *names = rest.split("/")
    if protocol in _WEB:
        names = list(map(_plain, names))
    return Path(f"{protocol}:/" + "/".join(map(_as_part, (host, *names))))


def path_to_address(path: Path) -> str:
    """Return the address of an object on a server, from the path by which results name the object.

    `address_to_path` makes this path. Special characters in HTTP addresses become percent codes, such as %20.
    """
    protocol, *parts = path.as_posix().split("/")
    host, *names = ("" if part == "%" else unquote(part) for part in parts)
    if protocol.removesuffix(":") in _WEB:
        names = list(map(_quoted, names))
    return f"{protocol}//" + "/".join((host, *names))


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


def _plain(name: str) -> str:
    return unquote(name, errors="surrogateescape")


def _as_part(name: str) -> str:
    """Replace characters in a name by percent codes, so that the name is exactly one part of a path."""
    for each in "%\\/\0":
        name = name.replace(each, f"%{ord(each):02X}")
    return "%" if not name else name.replace(".", "%2E") if name in (".", "..") else name


# ---- the server


class ObjectServer:
    """A connection to the server of an address, such as an S3 bucket. Several threads may use one instance.

    The attribute `is_unreachable` is True while the program waits for the server.

    Parameters
    ----------
    address
        The address of a bucket or a folder, such as s3://BUCKET/FOLDER.
    patience_s
        Seconds to wait for a server that does not answer, before an exception is raised.
    max_bytes
        The largest size, in bytes, of an object that is downloaded.

    Raises UsageProblem (archive_no_protocol, archive_no_library, archive_password), EnvironmentProblem for an invalid
    configuration, InternetRefused in a process that may not use the network.
    """

    def __init__(self, address: str, *, patience_s: float = _PATIENCE_S, max_bytes: int = MAX_OBJECT_BYTES) -> None:
        protocol, _, rest = address.partition("://")
        self.address: Final = path_to_address(address_to_path(address.rstrip("/")))
        self._patience_s, self._max_bytes = patience_s, max_bytes
        self.is_unreachable = False
        self._awaited_s = -math.inf
        if not (kind := _KINDS.get(protocol)):
            raise UsageProblem(reason("archive_no_protocol", address=address))
        if kind is not _Bucket and ":" in rest.partition("/")[0].rpartition("@")[0]:
            raise UsageProblem(reason("archive_password", protocol=protocol))
        if sys.platform == "win32":
            allow_networks(("127.0.0.0/8",))  # an event loop on Windows uses a local connection to itself
        try:
            self._client = kind(self.address)
            for host in self._client.hosts():
                allow_server(host)
        except ImportError as error:
            raise UsageProblem(reason("archive_no_library", address=address, detail=str(error))) from error
        except InternetRefused:
            raise
        except Exception as error:  # an invalid configuration may raise anything
            raise self._gone(error) from error

    def iterate_objects(self) -> Iterator[ObjectAddressAndState]:
        """Yield all objects at the address. The server's list is read page by page.

        Raises UsageProblem (nothing_to_screen) if the address does not exist, EnvironmentProblem (archive_not_listed,
        archive_server_gone).
        """
        left, patience_s = [""], 0.0
        own = len(address_to_path(self.address).parts)
        try:
            while left:
                page = functools.partial(self._client.page, left.pop())
                found, further = self._insisted(page, patience_s=patience_s)
                for address, state in found:
                    if not any(map(is_system_name, address_to_path(address).parts[own:])):
                        yield address, state
                left += reversed(further)
                patience_s = self._patience_s
        except Unreadable as problem:
            if problem.reason.code == "missing":
                raise UsageProblem(reason("nothing_to_screen", path=self.address)) from problem
            raise EnvironmentProblem(reason("archive_not_listed", address=self.address)) from problem

    def read_beginning(self, address: str, state: str, max_bytes: int) -> tuple[bytes, str]:
        """Read up to `max_bytes` bytes from the start of an object. Returns the bytes, and the object's current state.

        The state is size and tag. The object must have the state `state`; "" to accept any state. Raises Unreadable for
        this object (missing, no_permission, unreadable, archive_object_changed, archive_no_tag), EnvironmentProblem
        (archive_server_gone).
        """

        def attempt() -> tuple[bytes, str]:
            with self._opened(address, state, max_bytes) as (stream, now):
                data, wanted = bytearray(), min(max_bytes, _size_of(now))
                while len(data) < wanted and (part := stream.read(wanted - len(data))):
                    data += part
            if len(data) != wanted:
                raise OSError(f"{len(data)} of {wanted} bytes")
            return bytes(data), now

        return self._insisted(attempt)

    def download(self, address: str, state: str, target: Path) -> int:
        """Download an object to the file `target`. Returns the size of the object in bytes.

        The object must have the state (size and tag) `state`; "" to accept any state. Raises Unreadable for this object
        (missing, no_permission, unreadable, archive_object_changed, archive_object_large, archive_no_tag),
        EnvironmentProblem (archive_server_gone), StorageProblem.
        """

        def attempt() -> int:
            with self._opened(address, state, None) as (stream, now):
                size, written = _size_of(now), 0
                if size > self._max_bytes:
                    megabytes = {"size_mb": size // 2**20, "limit_mb": self._max_bytes // 2**20}
                    raise Unreadable(reason("archive_object_large", **megabytes))
                try:
                    with target.open("wb") as file:
                        while part := stream.read(_BLOCK_BYTES):
                            written += file.write(part)
                except OSError as error:
                    raise storage_problem(error, target) if error.errno == errno.ENOSPC else error from None
            if not self._client.answers_at_once and self._client.state(address) != now:
                raise Unreadable(reason("archive_object_changed"))
            if written != size:
                raise OSError(f"{written} of {size} bytes")
            return written

        return self._insisted(attempt)

    @contextlib.contextmanager
    def _opened(self, address: str, state: str, max_bytes: int | None) -> Iterator[tuple[Any, str]]:
        """Open an object during the block, and yield the stream and the object's state (size and tag).

        The stream has only the first `max_bytes` bytes; None for all. Raises Unreadable if the state is not `state`;
        "" accepts any state.
        """
        if state and not _size_of(state) and self._client.answers_at_once:  # an empty object has no byte range
            max_bytes = None
        with self._client.opened(address, max_bytes) as (stream, now):
            if not now:
                raise Unreadable(reason("archive_no_tag", address=address))
            if now != (state or now):
                raise Unreadable(reason("archive_object_changed"))
            yield stream, now

    def _insisted(self, attempt: Callable[[], Result], *, patience_s: float | None = None) -> Result:
        """Call `attempt` until it succeeds, and return the result. Waits while the server does not answer.

        `patience_s` is the longest wait in seconds; None for the server's default. Raises Unreadable if the attempt
        fails although the server answers, EnvironmentProblem (archive_server_gone) after the longest wait.
        """
        until_s = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        tries = 0
        while True:
            began_s = time.monotonic()
            try:
                result = attempt()
                self.is_unreachable = False
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
                    self.is_unreachable = True
                elif self._awaited_s < began_s or began_s > until_s:  # in between, the server was reachable
                    tries += 1
                    if tries == _TRIES:
                        raise Unreadable(reason("unreadable", detail=_text(error))) from problem
                time.sleep(_PAUSE_S)

    def _answers(self) -> bool:
        """Return whether the server answers a simple request, even with an error such as "not found"."""
        try:
            self._client.ask_anything()
        except Exception as problem:
            return isinstance(self._cause(problem), FileNotFoundError | PermissionError)
        return True

    def _cause(self, error: Exception) -> Exception:
        """Return the exception that caused a failed request. fsspec reports all HTTP errors as missing files."""
        if isinstance(self._client, _Web) and isinstance(error, FileNotFoundError):
            error = cast("Exception", error.__cause__ or error)
        return _OF_STATUS.get(getattr(error, "status", 0), error)

    def _gone(self, error: Exception) -> EnvironmentProblem:
        return EnvironmentProblem(reason("archive_server_gone", address=self.address, detail=_text(error)))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _state(size: int | None, tag: object) -> str:
    """Return the state of an object: size and tag as one text; "" if the server gives no size or no tag."""
    return f"{size} {tag}" if tag and size is not None else ""


def _size_of(state: str) -> int:
    return int(state.partition(" ")[0])


# ---- the requests of each protocol
# The three classes have these members. A method sends one or two requests, and raises its library's exceptions:
#     answers_at_once    True if a download never mixes two states of an object, and if lists contain the states
#     hosts              return the names of the hosts to contact
#     page               return the objects of the page at a position ("" for the first), and positions of further pages
#     opened             open an object, or only its first bytes; yield the stream and the object's state
#     state              return the state of an object
#     ask_anything       send a request that shows whether the server is reachable


class _Bucket:
    """Sends the requests to an S3 bucket. Every request names the bucket and the exact key of an object."""

    answers_at_once = True

    def __init__(self, address: str) -> None:
        protocol, _, rest = address.partition("://")
        self._bucket, _, self._prefix = rest.partition("/")
        self._address, self._top = address, f"{protocol}://{self._bucket}"
        self._files: Any = fsspec.get_filesystem_class("s3")(use_listings_cache=False)
        self._files.retries = 1  # botocore and `_insisted` retry as well

    def _ask(self, request: str, **query: object) -> dict[str, Any]:
        found: dict[str, Any] = self._files.call_s3(request, Bucket=self._bucket, **query)
        return found

    def _key(self, address: str) -> str:
        return address[len(self._top) + 1 :]

    def hosts(self) -> set[str]:
        host = urlsplit(self._files.s3.meta.endpoint_url).hostname or ""
        with contextlib.suppress(ValueError):
            return {str(ipaddress.ip_address(host))}
        return {host, f"{self._bucket}.{host}"}

    def page(self, position: str) -> tuple[list[ObjectAddressAndState], list[str]]:
        start = f"{self._prefix}/" if self._prefix else ""
        mark = {"ContinuationToken": position} if position else {}
        page = self._ask("list_objects_v2", Prefix=start, MaxKeys=_PAGE, **mark)
        listed = page.get("Contents", ())
        if start and not listed and not position:  # the address may be a single object
            return [(self._address, self.state(self._address))], []
        found = [
            (f"{self._top}/{each['Key']}", _state(each["Size"], each.get("ETag")))
            for each in listed
            if each["Size"] or not each["Key"].endswith("/")  # an empty object with this name stands for a folder
        ]
        return found, list(filter(None, [page.get("NextContinuationToken")]))

    @contextlib.contextmanager
    def opened(self, address: str, max_bytes: int | None) -> Iterator[tuple[Any, str]]:
        part = {} if max_bytes is None else {"Range": f"bytes=0-{max_bytes - 1}"}
        answer = self._ask("get_object", Key=self._key(address), **part)
        body, loop = answer["Body"], self._files.loop
        size = answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"]

        async def close() -> None:
            body.close()

        class Body:
            def read(self, size: int) -> bytes:
                return bytes(sync(loop, body.read, size))

        try:
            yield Body(), _state(int(size), answer.get("ETag"))
        finally:
            sync(loop, close)

    def state(self, address: str) -> str:
        found = self._ask("head_object", Key=self._key(address))
        return _state(found["ContentLength"], found.get("ETag"))

    def ask_anything(self) -> None:
        self._ask("list_objects_v2", Prefix=self._prefix, MaxKeys=1)


class _Web:
    """Sends the requests to an HTTP server whose pages list the files of a folder. Every name is requested exactly."""

    answers_at_once = False

    def __init__(self, address: str) -> None:
        self._address = address
        library = fsspec.get_filesystem_class(address.partition(":")[0])
        self._files: Any = library(use_listings_cache=False, encoded=True)

    def hosts(self) -> set[str]:
        return {urlsplit(self._address).hostname or ""} - {""}

    def page(self, position: str) -> tuple[list[ObjectAddressAndState], list[str]]:
        """List a folder of an HTTP server. A page that is not HTML, or a top page without links, is an object."""
        links = sync(self._files.loop, self._links, position or self._address)
        folder = f"{(position or self._address).rstrip('/')}/"
        host, path = urlsplit(folder)[1:3]
        names = list[str]()
        for found in (urlsplit(urljoin(folder, link)) for link in links or ()):
            whole = "/".join(map(_quoted, map(_plain, found.path.split("/"))))
            name = whole.removeprefix(path)
            is_inside = found.netloc == host and whole.startswith(path) and not found.query
            if is_inside and "/" not in name[:-1] and _plain(name.rstrip("/")) not in ("", ".", ".."):
                names.append(name)
        names = sorted(set(names))
        if links is None or not (names or position):
            return [(position or self._address, "")], []
        files = [(folder + name, "") for name in names if not name.endswith("/")]
        return files, [folder + name for name in names if name.endswith("/")]

    async def _links(self, address: str) -> list[str] | None:
        """Return the links of an HTML page as written there; None if the address is an object and no page."""
        session = await self._files.set_session()
        async with session.get(self._files.encode_url(address), **self._files.kwargs) as answer:
            answer.raise_for_status()
            if answer.content_type not in ("text/html", "application/xhtml+xml"):
                return None
            page = _Page()
            page.feed((await answer.read()).decode(answer.get_encoding(), "replace"))
            return page.links

    @contextlib.contextmanager
    def opened(self, address: str, max_bytes: int | None) -> Iterator[tuple[Any, str]]:
        found = self._files.info(address)
        if not found["size"]:  # fsspec would request the size again
            yield io.BytesIO(), self._state_of(found)
            return
        options = {"block_size": max_bytes or 0, "cache_type": "none", "size": found["size"]}
        with self._files.open(address, "rb", **options) as stream:
            yield stream, self._state_of(found)

    def state(self, address: str) -> str:
        return self._state_of(self._files.info(address))

    def ask_anything(self) -> None:
        self._files.info(self._address)

    def _state_of(self, entry: Mapping[str, Any]) -> str:
        return _state(entry["size"], entry.get("ETag") or entry.get("Last-Modified"))


class _Page(HTMLParser):
    """Parses an HTML page and collects the links of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value.strip() for name, value in attrs if name == "href" and value]


class _Ssh:
    """Sends the requests to an SFTP server. Paths are sent unchanged. Each thread has a separate connection."""

    answers_at_once = False

    def __init__(self, address: str) -> None:
        self._address, self._own = address, threading.local()
        fsspec.get_filesystem_class("sftp")  # raises ImportError

    @property
    def _files(self) -> Any:
        if not hasattr(self._own, "files"):
            self._own.connection = _connected_by_ssh(self._address)
            self._own.files = self._own.connection.ftp
        return self._own.files

    def _path(self, address: str) -> bytes:
        return os.fsencode("/" + address.partition("://")[2].partition("/")[2])

    def hosts(self) -> set[str]:
        return {urlsplit(self._address).hostname or ""} - {""}

    def page(self, position: str) -> tuple[list[ObjectAddressAndState], list[str]]:
        folder = position or self._address
        if not position and not stat.S_ISDIR(self._files.stat(self._path(folder)).st_mode):
            return [(folder, "")], []
        found = sorted((name, stat.S_ISDIR(mode)) for name, mode in _names_in(self._files, self._path(folder)))
        files, folders = ([f"{folder}/{name}" for name, is_one in found if is_one == kind] for kind in (False, True))
        return [(address, "") for address in files], folders

    @contextlib.contextmanager
    def opened(self, address: str, max_bytes: int | None) -> Iterator[tuple[Any, str]]:
        state = self.state(address)
        with self._files.open(self._path(address), "rb", bufsize=min(max_bytes or _BLOCK_BYTES, _BLOCK_BYTES)) as file:
            yield file, state

    def state(self, address: str) -> str:
        found = self._files.stat(self._path(address))
        return _state(found.st_size, None if found.st_mtime is None else str(found.st_mtime))

    def ask_anything(self) -> None:
        vars(self._own).clear()
        self._files.stat(self._path(self._address))


def _names_in(files: Any, folder: bytes) -> Iterator[tuple[str, int]]:
    """Yield name and mode of each entry of an SFTP folder, including names that are not UTF-8.

    The listing of the library paramiko stops at a name that is not UTF-8.
    """
    from paramiko.sftp import CMD_CLOSE, CMD_OPENDIR, CMD_READDIR
    from paramiko.sftp_attr import SFTPAttributes

    handle = files._request(CMD_OPENDIR, folder)[1].get_binary()
    with contextlib.suppress(EOFError):
        while True:
            found = files._request(CMD_READDIR, handle)[1]
            for _ in range(found.get_int()):
                name, _long_name = os.fsdecode(found.get_binary()), found.get_binary()
                facts = SFTPAttributes._from_msg(found)
                if name not in (".", ".."):
                    yield name, facts.st_mode or 0
    files._request(CMD_CLOSE, handle)


def _connected_by_ssh(address: str) -> Any:
    """Connect to an SFTP server whose key is in the user's file `known_hosts`.

    The library fsspec would accept any key.
    """
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


_KINDS: Final[Mapping[str, type[_Bucket | _Web | _Ssh]]] = {
    **dict.fromkeys(("s3", "s3a"), _Bucket),
    **dict.fromkeys(_WEB, _Web),
    **dict.fromkeys(("sftp", "ssh"), _Ssh),
}
