"""Servers of a folder on this computer, by HTTP and by SFTP, that can be ended, started again and made to fail."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import socket
import threading
from pathlib import Path
from typing import Any, Final

import paramiko

REFUSED, CUT, ELSEWHERE, UNDATED = "refused", "cut", "elsewhere", "undated"


class FolderServer:
    """What both have in common.

    faults    by name within the folder: REFUSED, CUT (every answer ends in its middle), ELSEWHERE (a link to another
              host, of HTTP alone) or UNDATED (nothing tells when it changed, of HTTP alone)
    asked     the names of all that was asked for
    """

    protocol = ""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home
        self.port, self.faults, self.asked = 0, dict[str, str](), list[str]()
        self.start()

    @property
    def address(self) -> str:
        """Of the folder."""
        return f"{self.protocol}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Be there, at the same port as before."""
        raise NotImplementedError

    def stop(self) -> None:
        """Be gone, in the middle of whatever was asked."""
        raise NotImplementedError


class WebServer(FolderServer):
    """Python's own server of files: it knows no ranges, and when a file was changed to the second."""

    protocol = "http"

    def start(self) -> None:
        """Be there, at the same port as before."""
        made = functools.partial(_Handler, directory=str(self.folder), served=self)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), made)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Be gone."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
        with contextlib.suppress(OSError):  # who asked has heard enough
            outputfile.write(data[: len(data) // 2] if self._fault == CUT else data)

    def log_message(self, *_: object) -> None:
        pass


_KEY: Final = "a key of this computer"


class SshServer(FolderServer):
    """A server of SFTP with paramiko's own protocol, whose key the user's `known_hosts` has."""

    protocol = "sftp"

    def __init__(self, folder: Path, home: Path) -> None:
        self._key = paramiko.ECDSAKey.generate()
        super().__init__(folder, home)
        (home / ".ssh").mkdir(parents=True)
        known = f"[127.0.0.1]:{self.port} {self._key.get_name()} {self._key.get_base64()}\n"
        (home / ".ssh" / "known_hosts").write_text(known)
        (home / ".config" / "fsspec").mkdir(parents=True)
        own = '{"sftp": {"username": "reader", "password": "secret", "allow_agent": false, "look_for_keys": false}}'
        (home / ".config" / "fsspec" / "conf.json").write_text(own)

    def start(self) -> None:
        """Be there, at the same port as before."""
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
        """Be gone."""
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
            return [paramiko.SFTPAttributes.from_stat(each.stat(follow_symlinks=False), each.name) for each in found]
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
