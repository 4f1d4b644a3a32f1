"""A server of S3 on this computer, moto's, that can be ended, started again and made to fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from urllib.request import Request, urlopen

KEYS: Final = {"aws_access_key_id": "reader", "aws_secret_access_key": "secret"}
_REFUSED: Final = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class ObjectServer:
    """The bucket `box` at `127.0.0.1:PORT`.

    faults   by key: `refused`, `cut` (every answer ends in its middle) or `slow` (its bytes come one by one)
    asked    the methods and keys of all requests
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self.port, self.faults, self.asked = 0, dict[str, str](), list[tuple[str, str]]()
        self.start()
        urlopen(Request(f"{self.url}/moto-api/reset", method="POST")).close()  # what an earlier one held
        import boto3

        self.client: Any = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEYS)
        self.client.create_bucket(Bucket="box")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Be there, at the same port as before."""
        from moto.moto_server.werkzeug_app import MotoRequestHandler
        from werkzeug.serving import make_server

        self._server = make_server("127.0.0.1", self.port, self, threaded=True, request_handler=MotoRequestHandler)
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Be gone; what it holds stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        self.client.put_object(Bucket="box", Key=key, Body=data)

    def put_empty(self, keys: Iterable[str]) -> None:
        """Make many objects at once."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        for key in keys:
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object("box", key, b"")

    def fill(self, folder: Path, prefix: str) -> None:
        """An object for each file under a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def configure(self, home: Path) -> None:
        """Write down where it is and with which keys, as a user does."""
        (home / ".aws").mkdir(parents=True)
        (home / ".aws" / "config").write_text(
            f"[default]\nregion = us-east-1\nmax_attempts = 1\nendpoint_url = {self.url}\n"
        )
        keys = "".join(f"{name} = {value}\n" for name, value in KEYS.items())
        (home / ".aws" / "credentials").write_text(f"[default]\n{keys}")

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer as moto does, or as the fault of the key wants it."""
        method, key = environment["REQUEST_METHOD"], unquote(environment["PATH_INFO"]).removeprefix("/box/")
        self.asked.append((method, key))
        fault = self.faults.get(key) if method in ("GET", "HEAD") else None
        if fault == "refused":
            start_response("403 Forbidden", [("Content-Type", "text/xml"), ("Content-Length", str(len(_REFUSED)))])
            return [b"" if method == "HEAD" else _REFUSED]
        answer = self._application(environment, start_response)
        if method == "GET" and fault:
            data = b"".join(answer)
            return [data[: len(data) // 2]] if fault == "cut" else _slowly(data)
        return answer


def _slowly(data: bytes) -> Iterable[bytes]:
    for start in range(0, len(data), len(data) // 10 + 1):
        time.sleep(0.05)
        yield data[start : start + len(data) // 10 + 1]
