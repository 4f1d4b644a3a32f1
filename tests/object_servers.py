"""Servers on this computer that can be stopped, restarted and made to fail: S3, or a folder by HTTP or SFTP."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from urllib.request import Request, urlopen

import paramiko

REFUSED, CUT, SLOW, ELSEWHERE, UNDATED = "refused", "cut", "slow", "elsewhere", "undated"
KEYS: Final = {"aws_access_key_id": "reader", "aws_secret_access_key": "secret"}
_REFUSED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Server:
    """The common part of all servers.

    Attributes
    ----------
    home
        The home of the user who may read the objects.
    faults
        Faults by name: REFUSED, CUT (every answer ends in its middle), SLOW (single bytes; S3 only), ELSEWHERE (a link
        to another host; HTTP only) or UNDATED (no time of change; HTTP only).
    asked
        The names of all requested objects.
    """

    protocol = ""

    def __init__(self, home: Path) -> None:
        self.home, self.port, self.faults, self.asked = home, 0, dict[str, str](), list[str]()
        self.start()

    @property
    def address(self) -> str:
        """The address of the objects."""
        return f"{self.protocol}://127.0.0.1:{self.port}"

    def put(self, name: str, data: bytes) -> None:
        """Make or replace a file."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Delete a file."""
        raise NotImplementedError

    def start(self) -> None:
        """Start at the port of the first start."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop. The objects stay."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, server: socketserver.BaseServer) -> None:
        """Serve in a thread of its own."""
        self._server, self.port = server, server.server_address[1]
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        self._thread.start()


class Bucket(Server):
    """The bucket `box` at `127.0.0.1:PORT`, for requests signed with the key of
    `reader`, whose configuration has both.
    """

    protocol, address = "s3", "s3://box"

    def __init__(self, home: Path) -> None:
        import boto3
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self.answers_for = dict[str, str]()  # the name of the object to answer with, by the requested name
        super().__init__(home)
        self.url = f"http://127.0.0.1:{self.port}"
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST")).close()  # delete the objects of an earlier server
        with contextlib.closing(boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEYS)) as client:
            client.create_bucket(Bucket="box")
        self._configure()

    def start(self) -> None:
        """Start at the port of the first start."""
        from moto.moto_server.werkzeug_app import MotoRequestHandler
        from werkzeug.serving import make_server

        connections = self._connections = set[socket.socket]()

        class Handler(MotoRequestHandler):
            def setup(self) -> None:
                connections.add(self.request)
                super().setup()

            def finish(self) -> None:
                connections.discard(self.request)
                super().finish()

        self._serve(make_server("127.0.0.1", self.port, self, threaded=True, request_handler=Handler))

    def kill(self) -> None:
        """Stop in the middle of all answers."""
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.stop()

    def put(self, name: str, data: bytes) -> None:
        self._backend.put_object("box", name, data)

    def delete(self, name: str) -> None:
        self._backend.delete_object("box", name)

    @property
    def _backend(self) -> Any:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with address and keys."""
        own = {"AWS_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1", "AWS_ENDPOINT_URL": self.url}
        return own | {name.upper(): value for name, value in KEYS.items()}

    def _configure(self) -> None:
        """Write address and keys to a user's configuration files."""
        (self.home / ".aws").mkdir(parents=True)
        own = {"region": "us-east-1", "max_attempts": "1", "endpoint_url": self.url}
        for name, values in (("config", own), ("credentials", KEYS)):
            lines = (f"{key} = {value}\n" for key, value in values.items())
            (self.home / ".aws" / name).write_text("[default]\n" + "".join(lines))

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer by moto, or with the fault that `faults` has for the object."""
        key = unquote(environment["PATH_INFO"]).removeprefix("/box").removeprefix("/")
        self.asked.append(key)
        fault, is_head = self.faults.get(key), environment["REQUEST_METHOD"] == "HEAD"
        is_reader = f"Credential={KEYS['aws_access_key_id']}/" in environment.get("HTTP_AUTHORIZATION", "")
        if fault == REFUSED or (not is_reader and environment["PATH_INFO"].startswith("/box")):
            start_response("403 Forbidden", [("Content-Type", "text/xml"), ("Content-Length", str(len(_REFUSED)))])
            return [b"" if is_head else _REFUSED]
        if other := self.answers_for.get(key):
            environment = environment | dict.fromkeys(("PATH_INFO", "RAW_URI", "REQUEST_URI"), f"/box/{other}")
        answer = self._application(environment, start_response)
        if not fault or is_head:
            return answer
        data = b"".join(answer)
        return [data[: len(data) // 2]] if fault == CUT else _slowly(data)


def _slowly(data: bytes) -> Iterable[bytes]:
    for place in range(len(data)):
        time.sleep(0.02)
        yield data[place : place + 1]


class FolderServer(Server):
    """A server of the folder `served` next to the user's home."""

    def __init__(self, home: Path) -> None:
        self.folder, self._second = home.parent / "served", 0
        self.folder.mkdir()
        super().__init__(home)

    def put(self, name: str, data: bytes) -> None:
        path, self._second = self.folder / name, self._second + 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (self._second, self._second))  # times have whole seconds, so a replaced file gets another second

    def delete(self, name: str) -> None:
        (self.folder / name).unlink()


class WebServer(FolderServer):
    """Python's own file server, which has no ranges, and times of change in whole seconds."""

    protocol = "http"

    def start(self) -> None:
        """Start at the port of the first start."""
        made = functools.partial(_Handler, directory=str(self.folder), served=self)
        self._serve(http.server.ThreadingHTTPServer(("127.0.0.1", self.port), made))


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, served: WebServer, **options: Any) -> None:
        self._served, self._fault = served, ""
        super().__init__(*arguments, **options)

    def send_head(self) -> Any:
        name = self.path.strip("/")
        self._served.asked.append(name)
        self._fault = self._served.faults.get(name, "")
        if self._fault == REFUSED:
            self.send_error(403)
            return None
        if self._fault == ELSEWHERE:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.2:{self._served.port}/{name}")
            self.end_headers()
            return None
        return super().send_head()

    def send_header(self, keyword: str, value: str) -> None:
        if not (self._fault == UNDATED and keyword == "Last-Modified"):
            super().send_header(keyword, value)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        with contextlib.suppress(OSError):  # the client may close the connection early
            outputfile.write(data[: len(data) // 2] if self._fault == CUT else data)

    def log_message(self, *_: object) -> None:
        pass


_KEY: Final = "a key of this computer"


class SshServer(FolderServer):
    """A server of SFTP with paramiko's own protocol. Its key is in the user's `known_hosts`."""

    protocol = "sftp"

    def __init__(self, home: Path) -> None:
        self._key = paramiko.ECDSAKey.generate()
        super().__init__(home)
        (home / ".ssh").mkdir(parents=True)
        known = f"[127.0.0.1]:{self.port} {self._key.get_name()} {self._key.get_base64()}\n"
        (home / ".ssh" / "known_hosts").write_text(known)
        (home / ".config" / "fsspec").mkdir(parents=True)
        own = '{"sftp": {"username": "reader", "password": "secret", "allow_agent": false, "look_for_keys": false}}'
        (home / ".config" / "fsspec" / "conf.json").write_text(own)

    def start(self) -> None:
        """Start at the port of the first start."""
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        self._transports: list[paramiko.Transport] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
                transport = paramiko.Transport(connection)
                self._transports.append(transport)
                transport.add_server_key(self._key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files, self)
                transport.start_server(event=threading.Event(), server=_Door())
            except (OSError, paramiko.SSHException):
                if self._listening.fileno() < 0:
                    return

    def stop(self) -> None:
        """Stop."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for transport in self._transports:
            transport.close()
            transport.join()


class _Door(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if (username, password) == ("reader", "secret") else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Files(paramiko.SFTPServerInterface):
    def __init__(self, server: Any, served: SshServer) -> None:
        self._served = served

    def _path(self, path: str) -> Path:
        name = path.strip("/")
        self._served.asked.append(name)
        if self._served.faults.get(name) == REFUSED:
            raise PermissionError(13, name)
        return self._served.folder / name

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat(self._path(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    lstat = stat

    def list_folder(self, path: str) -> Any:
        try:
            found = os.scandir(self._path(path))
            return [
                paramiko.SFTPAttributes.from_stat(each.stat(follow_symlinks=False), os.fsencode(each.name))
                for each in found
            ]
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def open(self, path: str, flags: int, attr: Any) -> Any:
        try:
            data = self._path(path).read_bytes()
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        handle = paramiko.SFTPHandle(flags)
        whole = len(data) // 2 if self._served.faults.get(path.strip("/")) == CUT else len(data)
        handle.read = lambda offset, length: data[offset : min(offset + length, whole)] or paramiko.SFTP_EOF
        handle.stat = lambda: self.stat(path)
        return handle
