"""The channel for weights and gradients between a worker and a parameter server: raw numbers over one connection.

A message is a JSON header, after its length, and the numbers that it announces. Numbers are sent from their array and
received into their final array, without pickling or copying. Connections are between the cluster's own processes,
encrypted if the cluster is (see `certificates`). Each begins with the session's token, which Dask gave only to members
of the session. Before the token no numbers are accepted, and time and number of attempts are limited.

No process waits forever for a computer that lost power or its network. The system probes an idle connection, and ends
one whose data is not acknowledged. During a wait a process can do other work (`receive`), or check whether the other
side still exists (`has_ended`). Both read from the connection, because on an encrypted connection a readable descriptor
does not mean a message.
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

from fieldray.offline import networks_allowed
from fieldray.typed_json import parse_json

Vector = NDArray[np.float32]
"""A vector of float32 numbers."""
_LENGTH: Final = struct.Struct("!I")
_LARGEST_HEADER: Final = 2**22
_NOTHING: Final = np.zeros(0, np.float32)
_HELLO_S: Final = 20.0
_LARGEST_HELLO: Final = 1024
_MOST_UNGREETED: Final = 64
"""Number of connections that may be open before their token is known."""
_TICK_S: Final = 0.2
_SILENT_S: Final = 60
"""Seconds without a sign of life of the other side, after which a connection is over."""
# Socket options of keep-alive. Each system has some of them.
_SIGNS_OF_LIFE: Final = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPALIVE": 20,  # macOS calls it so
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 1000 * _SILENT_S,
}


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMessage:
    """A message that was received over a `Channel`: header and numbers."""

    header: Mapping[str, Any]
    values: Vector = field(default_factory=lambda: _NOTHING)


class Channel:
    """A connection for weights and gradients.

    Raises ConnectionError if the other side is gone, ValueError for an invalid message. `largest` is the largest count
    of numbers in one message.
    """

    def __init__(self, connection: socket.socket, *, largest: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SIGNS_OF_LIFE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection, self._largest = connection, largest

    def send(self, header: Mapping[str, Any], values: Vector = _NOTHING) -> None:
        """Send a message over the channel. `values` is one contiguous float32 array."""
        facts = msgspec.json.encode({**header, "values": len(values)})
        self._connection.sendall(_LENGTH.pack(len(facts)) + facts)
        if len(values):
            self._connection.sendall(np.ascontiguousarray(values, np.float32).data.cast("B"))

    def receive(self, *, meanwhile: Callable[[], None] | None = None) -> ChannelMessage:
        """Wait for a message, and return it.

        `meanwhile` is called repeatedly during the wait. It may end the wait by raising an exception.
        """
        self._connection.settimeout(None if meanwhile is None else _TICK_S)
        try:
            return self._message(_LARGEST_HEADER, self._largest, meanwhile or _nothing)
        finally:
            self._connection.settimeout(None)

    def receive_hello(self) -> Mapping[str, Any]:
        """Receive the first message of an unknown sender: short, without numbers, within a time limit. Returns its
        header.
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

        It counts as ended, too, if the other side has sent data when none was expected.
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
        """End the connection. A thread waiting for a message gets a ConnectionError."""
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
                if error.errno is not None:  # no tick of `receive`: sent data were not acknowledged
                    raise
                meanwhile()
                continue
            if not got:
                raise ConnectionError("the other side has ended")
            room = room[got:]


def _nothing() -> None:
    """Do nothing while waiting for a message."""


def connect(
    address: tuple[str, int], *, token: str, role: str, max_values: int, encryption: ssl.SSLContext | None = None
) -> Channel:
    """Open a channel to a listener of another process. Raises OSError.

    Parameters
    ----------
    token
        The secret of the session, which the listener requires.
    role
        What this process is in the session: the number of a worker, or the driver.
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
    """Open channels to several servers of a session, and close them at the end of the block. Raises OSError.

    The addresses come from the cluster and not from a person. During the block this process may connect to them in
    addition to its configured networks. The parameters are those of `connect`, with one `max_values` for each address.
    """
    with contextlib.ExitStack() as ends:
        ends.enter_context(networks_allowed([host for host, _ in addresses]))
        channels = []
        for address, most in zip(addresses, max_values, strict=True):
            channels.append(connect(address, token=token, role=role, max_values=most, encryption=encryption))
            ends.callback(channels[-1].close)
        yield channels


class Listener(socketserver.ThreadingTCPServer):
    """Accepts connections of one session, and runs `serve` for each in its own thread, until it is closed.

    An open listener keeps its process alive as long as its connections. Its own threads must not close it.
    """

    request_queue_size = 2 * _MOST_UNGREETED

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
        self._ungreeted = threading.BoundedSemaphore(_MOST_UNGREETED)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), socketserver.BaseRequestHandler)
        self.address: tuple[str, int] = self.socket.getsockname()[:2]
        self._thread = threading.Thread(target=self.serve_forever, args=(_TICK_S,), name="parameters", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection, and wait for the connections' threads."""
        self.shutdown()
        with self._guard:
            self._is_closed = True
            channels = list(self._open)
        for channel in channels:
            channel.close()
        self.server_close()
        self._thread.join()

    def verify_request(self, *_: object) -> bool:
        """Return whether one more connection may try to identify itself."""
        return self._ungreeted.acquire(blocking=False)

    def finish_request(self, request: Any, _client_address: object) -> None:
        """Serve a connection that sends the token, and close any other. A lost connection is no error."""
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
    """Measure the seconds of transfers of `values` numbers to the other side (`serve_echo`) and back.

    Returns pairs (there, back). *There* ends with the other side's short answer. *Back* begins with a short question
    and ends with the last number. Each time includes the latency of one short message. A measurement without numbers
    gives this latency, which is not subtracted.
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
    """Send back what `time_round_trips` sends, until the channel ends."""
    while True:
        wanted = int(channel.receive().header.get("wants", 0))
        channel.send({}, np.zeros(min(wanted, 2**28), np.float32))
