"""Channels of a divided training: arrays arrive unchanged, and only processes with the session's token connect."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fieldray_cluster.certificates import make_certificates
from fieldray_cluster.node import tls_settings
from fieldray_cluster.training.channel import Channel, Listener, connect, serve_echo, time_round_trips
from program import python

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


def test_a_message_s_header_and_array_arrive(listener: Listener) -> None:
    channel = connect(listener.address, token=TOKEN, role="7", max_values=1000)
    sent = np.arange(1000, dtype=np.float32)
    channel.send({"fact": [1, "two"]}, sent)
    message = channel.receive()
    assert message.header == {"fact": [1, "two"], "role": "7"}
    np.testing.assert_array_equal(message.values, 2 * sent)
    channel.send({})
    assert len(channel.receive().values) == 0
    channel.close()


def test_a_connection_without_the_token_gets_no_answer(listener: Listener) -> None:
    channel = connect(listener.address, token="b" * 32, role="7", max_values=1000)
    with pytest.raises(OSError):
        channel.send({})
        channel.receive()
    channel.close()


def test_a_transfer_is_timed_both_ways() -> None:
    listener = Listener("127.0.0.1", token=TOKEN, largest=1000, serve=serve_echo)
    channel = connect(listener.address, token=TOKEN, role="", max_values=1000)
    times = time_round_trips(channel, values=1000, repeats=3)
    assert len(times) == 3 and all(to > 0 and back > 0 for to, back in times)
    channel.close()
    listener.close()


def test_connections_are_encrypted_by_the_cluster_s_certificates(tmp_path: Path) -> None:
    (listening, mutual), (_, foreign) = _tls_contexts(tmp_path / "one"), _tls_contexts(tmp_path / "other")
    listener = Listener("127.0.0.1", token=TOKEN, largest=10, serve=_answer, encryption=listening)
    channel = connect(listener.address, token=TOKEN, role="1", max_values=10, encryption=mutual)
    channel.send({}, np.ones(3, np.float32))
    assert channel.receive().values.tolist() == [2, 2, 2]
    channel.close()
    with pytest.raises(ssl.SSLError):
        connect(listener.address, token=TOKEN, role="1", max_values=10, encryption=foreign)
    listener.close()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_waiting_receive_calls_meanwhile_until_a_message_comes(tmp_path: Path, is_encrypted: bool) -> None:
    """An encrypted connection's socket is readable at once, which does not mean that there is a message."""
    listening, connecting = _tls_contexts(tmp_path) if is_encrypted else (None, None)
    asked, may_answer = threading.Event(), threading.Event()

    def late(channel: Channel, _role: str) -> None:
        channel.receive()
        asked.set()
        assert not channel.has_ended()
        assert may_answer.wait(10)
        channel.send({"late": True}, np.ones(1000, np.float32))
        channel.receive()  # waits for the other side's end

    listener = Listener("127.0.0.1", token=TOKEN, largest=1000, serve=late, encryption=listening)
    channel = connect(listener.address, token=TOKEN, role="1", max_values=1000, encryption=connecting)
    channel.send({})
    assert asked.wait(10)
    with pytest.raises(EnvironmentError, match="looked"):
        channel.receive(meanwhile=_look)
    message = channel.receive(meanwhile=may_answer.set)
    assert message.header == {"late": True} and len(message.values) == 1000
    channel.close()
    listener.close()


def _tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts for listening and for connecting, with new certificates."""
    make_certificates(folder)
    own = tls_settings(folder)
    assert own is not None
    return own.get_listen_args("worker")["ssl_context"], own.get_connection_args("client")["ssl_context"]


def _look() -> None:
    raise OSError("looked")


def test_connections_use_tcp_keepalive_and_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    channel = Channel(ours, largest=1)
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
    channel.close()
    theirs.close()


GUARDED = """
import sys
from fieldray.offline import InternetRefused, stay_offline
stay_offline(joins_cluster=True)
from fieldray_cluster.training.channel import Listener, connect, open_channels, serve_echo, time_round_trips
from fieldray.offline import allow_networks, networks_temporarily_allowed
hosts = ("127.0.0.2", "127.0.0.3")
with networks_temporarily_allowed(hosts):  # those of the servers' own processes
    listeners = [Listener(host, token="t", largest=9, serve=serve_echo) for host in hosts]
allow_networks(["127.0.0.1"])  # the scheduler's
addresses = [one.address for one in listeners]
def refused(address):
    try:
        connect(address, token="t", role="", max_values=9).close()
    except InternetRefused:
        return True
    return False
said = [refused(one) for one in addresses]
with open_channels(addresses, token="t", role="", max_values=[9, 9]) as channels:
    said += [len(time_round_trips(one, values=9, repeats=1)) for one in channels]
said += [refused(one) for one in addresses]
for one in listeners:
    one.close()
print(said)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have only one address of the loopback")
def test_the_addresses_of_a_session_s_servers_are_permitted_only_during_the_session() -> None:
    done = python(GUARDED)
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == str([True, True, 1, 1, True, True])
