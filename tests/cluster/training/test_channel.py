"""Numbers between processes: as they are, for those alone who know the session's token."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fieldray.cluster.certificates import make_certificates
from fieldray.cluster.node import security
from fieldray.cluster.training.channel import Channel, Encryption, Listener, connect, echo, round_trips

TOKEN = "a" * 32


def _answer(channel: Channel, role: str) -> None:
    while True:
        message = channel.receive()
        channel.send({**message.header, "role": role}, message.values * np.float32(2))


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", token=TOKEN, largest=1000, serve=_answer)
    yield made
    made.close()


def test_facts_and_numbers_arrive(listener: Listener) -> None:
    channel = connect(listener.address, token=TOKEN, role="7", largest=1000)
    sent = np.arange(1000, dtype=np.float32)
    channel.send({"fact": [1, "two"]}, sent)
    message = channel.receive()
    assert message.header == {"fact": [1, "two"], "role": "7"}
    np.testing.assert_array_equal(message.values, 2 * sent)
    channel.send({})
    assert len(channel.receive().values) == 0
    channel.close()


def test_whoever_does_not_know_the_token_gets_nothing(listener: Listener) -> None:
    channel = connect(listener.address, token="b" * 32, role="7", largest=1000)
    with pytest.raises(OSError):
        channel.send({})
        channel.receive()
    channel.close()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!I", 2**31),
        struct.pack("!I", 4) + b"nope",
        struct.pack("!I", 15) + b'{"values":2000}',
        struct.pack("!I", 13) + b'{"values":-1}',
    ],
)
def test_what_is_no_message_ends_the_connection(sent: bytes) -> None:
    ours, theirs = _pair()
    channel = Channel(ours, largest=1000)
    theirs.sendall(sent)
    with pytest.raises(ValueError):
        channel.receive()
    channel.close()
    theirs.close()


def test_a_transfer_is_timed_both_ways() -> None:
    listener = Listener("127.0.0.1", token=TOKEN, largest=1000, serve=echo)
    channel = connect(listener.address, token=TOKEN, role="", largest=1000)
    times = round_trips(channel, values=1000, repeats=3)
    assert len(times) == 3 and all(to > 0 and back > 0 for to, back in times)
    channel.close()
    listener.close()


def test_connections_are_encrypted_by_the_cluster_s_certificates(tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_certificates(tmp_path / name)
    own, foreign = (security(tmp_path / name) for name in ("one", "other"))
    assert own is not None and foreign is not None
    listening = own.get_listen_args("worker")["ssl_context"]
    listener = Listener("127.0.0.1", token=TOKEN, largest=10, serve=_answer, encryption=Encryption(listening=listening))
    mutual = Encryption(connecting=own.get_connection_args("client")["ssl_context"])
    channel = connect(listener.address, token=TOKEN, role="1", largest=10, encryption=mutual)
    channel.send({}, np.ones(3, np.float32))
    assert channel.receive().values.tolist() == [2, 2, 2]
    channel.close()
    with pytest.raises(ssl.SSLError):
        stranger = Encryption(connecting=foreign.get_connection_args("client")["ssl_context"])
        connect(listener.address, token=TOKEN, role="1", largest=10, encryption=stranger)
    listener.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return server.accept()[0], theirs
