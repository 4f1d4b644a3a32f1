"""A server of S3 on this computer, moto's, that can be ended, started again and made to fail."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from urllib.request import Request, urlopen

KEYS: Final = {"aws_access_key_id": "reader", "aws_secret_access_key": "secret"}
_REFUSED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Bucket:
    """The bucket `box` at `127.0.0.1:PORT`, for who signs with the key of `reader`.

    faults   by key: `refused`, `cut` (every answer ends in its middle) or `slow` (its bytes come one by one)
    asked    the keys of all requests
    """

    def __init__(self) -> None:
        import boto3
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self.port, self.faults, self.asked = 0, dict[str, str](), list[str]()
        self.start()
        self.url = f"http://127.0.0.1:{self.port}"
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST")).close()  # what an earlier one held
        self.client: Any = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEYS)
        self.client.create_bucket(Bucket="box")

    def start(self) -> None:
        """Be there, at the same port as before."""
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

        self._server = make_server("127.0.0.1", self.port, self, threaded=True, request_handler=Handler)
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Be gone; what it holds stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kill(self) -> None:
        """Be gone in the middle of all that is being answered."""
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.stop()

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object("box", key, data)

    @property
    def environment(self) -> dict[str, str]:
        """Where it is and with which keys, as variables of the environment."""
        own = {"AWS_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1", "AWS_ENDPOINT_URL": self.url}
        return own | {name.upper(): value for name, value in KEYS.items()}

    def configure(self, home: Path) -> None:
        """Write the same down in the files of a user."""
        (home / ".aws").mkdir(parents=True)
        own = {"region": "us-east-1", "max_attempts": "1", "endpoint_url": self.url}
        for name, values in (("config", own), ("credentials", KEYS)):
            lines = (f"{key} = {value}\n" for key, value in values.items())
            (home / ".aws" / name).write_text("[default]\n" + "".join(lines))

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer as moto does, or as the fault of the key wants it."""
        key = unquote(environment["PATH_INFO"]).removeprefix("/box").removeprefix("/")
        self.asked.append(key)
        fault, is_head = self.faults.get(key), environment["REQUEST_METHOD"] == "HEAD"
        is_reader = f"Credential={KEYS['aws_access_key_id']}/" in environment.get("HTTP_AUTHORIZATION", "")
        if fault == "refused" or (not is_reader and environment["PATH_INFO"].startswith("/box")):
            start_response("403 Forbidden", [("Content-Type", "text/xml"), ("Content-Length", str(len(_REFUSED)))])
            return [b"" if is_head else _REFUSED]
        answer = self._application(environment, start_response)
        if not fault or is_head:
            return answer
        data = b"".join(answer)
        return [data[: len(data) // 2]] if fault == "cut" else _slowly(data)


def _slowly(data: bytes) -> Iterable[bytes]:
    for place in range(len(data)):
        time.sleep(0.02)
        yield data[place : place + 1]
