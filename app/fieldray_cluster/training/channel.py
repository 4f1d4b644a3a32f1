"""Send weights and gradients between a worker and a parameter server, as raw numbers over one connection (channel).

A message is the length of a JSON header, the header, and numbers. Numbers are sent and received without pickling or
copying. If the cluster has certificates, connections are encrypted (see `certificates`). A connection begins with the
session's token, a secret that Dask gave only to members of the session. Before the token, no numbers are accepted, and
time and number of attempts are limited.

No process waits forever for a computer that lost power or network. The operating system probes an idle connection, and
ends a connection whose data is not acknowledged. During a wait, a process can do other work (`receive`), or check
whether the other side still exists (`has_ended`). Both methods read from the connection, because on an encrypted
connection a readable socket does not mean that a message has come.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldray.offline import networks_temporarily_allowed
from fieldray.typed_json import parse_json

Vector = NDArray[np.float32]
"""A vector of float32 numbers."""
_LENGTH: Final = struct.Struct("!I")
_LARGEST_HEADER: Final = 2**22
_NOTHING: Final = np.zeros(0, np.float32)
_HELLO_S: Final = 20.0
_LARGEST_HELLO: Final = 1024
_MAX_UNGREETED: Final = 64
"""The largest number of open connections that have not sent their token yet."""
_TICK_S: Final = 0.2
_SILENT_S: Final = 60
"""Seconds without a sign of life from the other side, after which a connection is ended."""
# Socket options of keep-alive. Each system has some of them.
_SIGNS_OF_LIFE: Final = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPALIVE": 20,  # name on macOS
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 1000 * _SILENT_S,
}


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMessage:
    """A message that was received over a `Channel`: a header, and a vector of float32 numbers."""

    header: Mapping[str, Any]
    values: Vector = field(default_factory=lambda: _NOTHING)


class Channel:
    """A connection to another process for weights and gradients.

    Methods raise ConnectionError if the other process has ended the connection, and ValueError for an invalid message.
    `largest` is the largest count of numbers in one message.
    """

    def __init__(self, connection: socket.socket, *, largest: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SIGNS_OF_LIFE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection, self._largest = connection, largest

    def send(self, header: Mapping[str, Any], values: Vector = _NOTHING) -> None:
        """Send a message: a header and the numbers `values`, one contiguous float32 array."""
        facts = msgspec.json.encode({**header, "values": len(values)})
        self._connection.sendall(_LENGTH.pack(len(facts)) + facts)
        if len(values):
            self._connection.sendall(np.ascontiguousarray(values, np.float32).data.cast("B"))

    def receive(self, *, meanwhile: Callable[[], None] | None = None) -> ChannelMessage:
        """Wait for a message, and return the message.

        `meanwhile` is called repeatedly during the wait. An exception in `meanwhile` ends the wait.
        """
        self._connection.settimeout(None if meanwhile is None else _TICK_S)
        try:
            return self._message(_LARGEST_HEADER, self._largest, meanwhile or _nothing)
        finally:
            self._connection.settimeout(None)

    def receive_hello(self) -> Mapping[str, Any]:
        """Receive the first message on a connection, and return the header.

        The sender is not known yet. So the message must be short, without numbers, and arrive within a time limit.
        """
        late = threading.Timer(_HELLO_S, self.close)
        late.daemon = True
        late.start()
        try:
            return self._message(_LARGEST_HELLO, 0, _nothing).header
        finally:
            late.cancel()

    def has_ended(self) -> bool:
        """Return, without waiting, whether the connection has ended.

        A connection on which unexpected data has arrived also counts as ended.
        """
        try:
            self._connection.settimeout(0)
            try:
                self._connection.recv(1)
            finally:
                self._connection.settimeout(None)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """End the connection. A thread that waits for a message gets a ConnectionError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _message(self, largest_header: int, largest: int, meanwhile: Callable[[], None]) -> ChannelMessage:
        def exactly(count: int) -> bytes:
            data = bytearray(count)
            self._fill(memoryview(data), meanwhile)
            return bytes(data)

        (length,) = _LENGTH.unpack(exactly(_LENGTH.size))
        if length > largest_header:
            raise ValueError(f"a header of {length} bytes")
        try:
            header = parse_json(exactly(length), dict[str, Any])
        except ValueError as error:
            raise ValueError("no header") from error
        count = header.pop("values", 0)
        if type(count) is not int or not 0 <= count <= largest:
            raise ValueError(f"no number of values of which {largest} are the most")
        values = np.empty(count, np.float32)
        self._fill(values.data.cast("B") if count else memoryview(b""), meanwhile)
        return ChannelMessage(header, values)

    def _fill(self, room: memoryview, meanwhile: Callable[[], None]) -> None:
        while len(room):
            try:
                got = self._connection.recv_into(room)
            except TimeoutError as error:
                if error.errno is not None:  # not a timeout of `receive`: sent data were not acknowledged
                    raise
                meanwhile()
                continue
            if not got:
                raise ConnectionError("the other side has ended")
            room = room[got:]


def _nothing() -> None:
    """Do nothing; the default of `meanwhile` in `Channel.receive`."""


def connect(
    address: tuple[str, int], *, token: str, role: str, max_values: int, encryption: ssl.SSLContext | None = None
) -> Channel:
    """Open a channel to a listener of another process, at (host, port). Raises OSError.

    Parameters
    ----------
    token
        The secret of the session, which the listener requires.
    role
        The role of this process in the session: the number of a worker, or "driver".
    max_values
        The largest count of numbers that one message may have.
    encryption
        The cluster's TLS context; None for unencrypted connections.
    """
    connection: socket.socket = socket.create_connection(address, timeout=_HELLO_S)
    try:
        if encryption:
            connection = encryption.wrap_socket(connection)
        connection.settimeout(None)
        channel = Channel(connection, largest=max_values)
        channel.send({"token": token, "role": role})
    except BaseException:
        connection.close()
        raise
    return channel


@contextlib.contextmanager
def open_channels(
    addresses: Sequence[tuple[str, int]],
    *,
    token: str,
    role: str,
    max_values: Sequence[int],
    encryption: ssl.SSLContext | None = None,
) -> Iterator[list[Channel]]:
    """Open a channel to each server of a session, and close the channels at the end of the block. Raises OSError.

    During the block, this process may contact the servers, even if they are outside its configured networks. The
    parameters are those of `connect`, with one `max_values` for each address.
    """
    with contextlib.ExitStack() as ends:
        ends.enter_context(networks_temporarily_allowed([host for host, _ in addresses]))
        channels = []
        for address, most in zip(addresses, max_values, strict=True):
            channels.append(connect(address, token=token, role=role, max_values=most, encryption=encryption))
            ends.callback(channels[-1].close)
        yield channels


class Listener(socketserver.ThreadingTCPServer):
    """Accepts the connections of one session, and calls `serve` for each connection in a separate thread.

    The process does not end while the listener is open or a connection exists. Do not call `close` in a thread of a
    connection.
    """

    request_queue_size = 2 * _MAX_UNGREETED

    def __init__(
        self,
        host: str,
        *,
        token: str,
        largest: int,
        serve: Callable[[Channel, str], None],
        encryption: ssl.SSLContext | None = None,
    ) -> None:
        self._token, self._largest, self._serve, self._encryption = token, largest, serve, encryption
        self._guard, self._open, self._is_closed = threading.Lock(), set[Channel](), False
        self._ungreeted = threading.BoundedSemaphore(_MAX_UNGREETED)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), socketserver.BaseRequestHandler)
        self.address: tuple[str, int] = self.socket.getsockname()[:2]
        self._thread = threading.Thread(target=self.serve_forever, args=(_TICK_S,), name="parameters", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting connections, close every connection, and wait until the threads of the connections end."""
        self.shutdown()
        with self._guard:
            self._is_closed = True
            channels = list(self._open)
        for channel in channels:
            channel.close()
        self.server_close()
        self._thread.join()

    def verify_request(self, *_: object) -> bool:
        """Return whether a new connection may send its token. False if too many connections have not sent a token."""
        return self._ungreeted.acquire(blocking=False)

    def finish_request(self, request: Any, _client_address: object) -> None:
        """Wait for the token on a new connection, then call `serve`. Without the right token, close the connection.

        A lost connection is no error.
        """
        with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as ends:
            known = ends.enter_context(contextlib.ExitStack())
            known.callback(self._ungreeted.release)
            request.settimeout(_HELLO_S)
            if self._encryption:
                request = self._encryption.wrap_socket(request, server_side=True)
            request.settimeout(None)
            channel = Channel(request, largest=self._largest)
            ends.callback(channel.close)
            with self._guard:
                if self._is_closed:
                    return
                self._open.add(channel)
            ends.callback(self._open.discard, channel)
            hello = channel.receive_hello()
            if hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
                known.close()
                self._serve(channel, str(hello.get("role", "")))


def time_round_trips(
    channel: Channel, *, values: int, repeats: int, meanwhile: Callable[[], None] | None = None
) -> list[tuple[float, float]]:
    """Measure the seconds to send `values` numbers to another process (`serve_echo`), and to get them back.

    Returns `repeats` pairs of seconds (there, back). Both times include the latency of one short message. To measure
    the latency alone, call the function with `values` 0.
    """
    sent, times = np.zeros(values, np.float32), []
    for _ in range(repeats):
        began_s = time.perf_counter()
        channel.send({"wants": 0}, sent)
        channel.receive(meanwhile=meanwhile)
        middle_s = time.perf_counter()
        channel.send({"wants": values})
        channel.receive(meanwhile=meanwhile)
        times.append((middle_s - began_s, time.perf_counter() - middle_s))
    return times


def serve_echo(channel: Channel, _role: str) -> None:
    """Send back all messages that `time_round_trips` sends over a channel, until the channel ends."""
    while True:
        wanted = int(channel.receive().header.get("wants", 0))
        channel.send({}, np.zeros(min(wanted, 2**28), np.float32))
