"""Weights and gradients between a worker and a parameter server: numbers as they lie in memory, over one connection.

A message is a header (JSON, after its length) and the numbers that it announces. They are sent from the array they are
in and received into the array that is used: nothing is pickled, nothing is copied on the way. Connections are made
between the cluster's own processes, encrypted where the cluster is (see `certificates`), and begin with the session's
token, which only those know who got it through Dask.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
_LENGTH: Final = struct.Struct("!I")
_LARGEST_HEADER: Final = 2**22
_NOTHING: Final = np.zeros(0, np.float32)
_HELLO_S: Final = 20.0
_LARGEST_HELLO: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What came in: facts and numbers."""

    header: Mapping[str, Any]
    values: Vector = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The two contexts of `ssl` of a process of the cluster; None where connections are not encrypted."""

    connecting: Any = None
    listening: Any = None


PLAIN: Final = Encryption()
"""No encryption, as where the cluster has no certificates."""


class Channel:
    """One connection. Raises ConnectionError where the other side is gone, ValueError for what is no message."""

    def __init__(self, connection: socket.socket, *, largest: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._largest = connection, largest

    def fileno(self) -> int:
        """The descriptor, to wait for the beginning of a message."""
        return self._connection.fileno()

    def send(self, header: Mapping[str, Any], values: Vector = _NOTHING) -> None:
        """Send a message; `values` in one piece, float32."""
        facts = msgspec.json.encode({**header, "values": len(values)})
        self._connection.sendall(_LENGTH.pack(len(facts)) + facts)
        if len(values):
            self._connection.sendall(np.ascontiguousarray(values, np.float32).data.cast("B"))

    def receive(self, *, largest_header: int = _LARGEST_HEADER) -> Message:
        """Wait for a message; its numbers are in an array of their own."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > largest_header:
            raise ValueError(f"a header of {length} bytes")
        try:
            header = msgspec.json.decode(bytes(self._exactly(length)), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError("no header") from error
        count = header.pop("values", 0)
        if not isinstance(count, int) or not 0 <= count <= self._largest:
            raise ValueError(f"{count} numbers, where {self._largest} are the most")
        values = np.empty(count, np.float32)
        self._fill(values.data.cast("B") if count else memoryview(b""))
        return Message(header, values)

    def close(self) -> None:
        """End the connection; who waits for a message on it gets a ConnectionError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        self._fill(memoryview(data))
        return data

    def _fill(self, room: memoryview) -> None:
        while len(room):
            got = self._connection.recv_into(room)
            if not got:
                raise ConnectionError("the other side has ended")
            room = room[got:]


def connect(
    address: tuple[str, int], *, token: str, role: str, largest: int, encryption: Encryption = PLAIN
) -> Channel:
    """A channel to a listener, as a `role` of its session. Raises OSError.

    Parameters
    ----------
    largest
        The most numbers that one message may have.
    """
    connection = socket.create_connection(address, timeout=_HELLO_S)
    try:
        if encryption.connecting is not None:
            connection = encryption.connecting.wrap_socket(connection)
        connection.settimeout(None)
        channel = Channel(connection, largest=largest)
        channel.send({"token": token, "role": role})
    except BaseException:
        connection.close()
        raise
    return channel


class Listener:
    """Takes connections of one session, and gives each to `serve` in a thread of its own until it is closed."""

    def __init__(
        self,
        host: str,
        *,
        token: str,
        largest: int,
        serve: Callable[[Channel, str], None],
        encryption: Encryption = PLAIN,
    ) -> None:
        self._token, self._largest, self._serve, self._encryption = token, largest, serve, encryption
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._guard, self._open, self._threads = threading.Lock(), set[Channel](), list[threading.Thread]()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="parameters", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every connection, and wait for their threads."""
        with self._guard:
            self._is_closed = True
            channels = list(self._open)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for channel in channels:
            channel.close()
        for thread in (self._thread, *self._threads):
            if thread is not threading.current_thread():
                thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._greet, args=(connection,), name="parameters", daemon=True)
            with self._guard:
                if self._is_closed:
                    connection.close()
                    return
                self._threads = [one for one in self._threads if one.is_alive()]
                self._threads.append(thread)
            thread.start()

    def _greet(self, connection: socket.socket) -> None:
        """Serve a connection that knows the token; any other is closed. An end of the other side is no problem here."""
        channel = None
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(_HELLO_S)
            if self._encryption.listening is not None:
                connection = self._encryption.listening.wrap_socket(connection, server_side=True)
            channel = Channel(connection, largest=self._largest)
            with self._guard:
                if self._is_closed:
                    return
                self._open.add(channel)
            try:
                hello = channel.receive(largest_header=_LARGEST_HELLO).header
                connection.settimeout(None)
                if hmac.compare_digest(str(hello.get("token", "")), self._token):
                    self._serve(channel, str(hello.get("role", "")))
            finally:
                with self._guard:
                    self._open.discard(channel)
                channel.close()


def round_trips(channel: Channel, *, values: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds to and back of transfers of so many numbers, by this computer's clock alone.

    The other side is `echo`. To it: until its short answer; back: from a short question to the last number. Each has
    one latency of a short message too many, which is measured with no numbers at all and left in.
    """
    sent, times = np.zeros(values, np.float32), []
    for _ in range(repeats):
        began_s = time.perf_counter()
        channel.send({"wants": 0}, sent)
        channel.receive()
        middle_s = time.perf_counter()
        channel.send({"wants": values})
        channel.receive()
        times.append((middle_s - began_s, time.perf_counter() - middle_s))
    return times


def echo(channel: Channel, _role: str) -> None:
    """The other side of `round_trips`, until it ends."""
    while True:
        wanted = int(channel.receive().header.get("wants", 0))
        channel.send({}, np.zeros(min(wanted, 2**28), np.float32))
