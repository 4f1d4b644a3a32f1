"""Connections of a cluster: certificates, numeric addresses only, no other network; and how its processes end."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from distributed import Client, KilledWorker, protocol
from distributed.protocol.serialize import ToPickle

from archives import cluster_of_nodes, worker
from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.paths import data_folder, python_command
from fieldray.persistence import PRIVATE_FILE_MODE, write_new_file
from fieldray_cluster.certificates import CERTIFICATE_FILE_NAMES, make_certificates, require_certificates
from fieldray_cluster.connection import (
    ConnectionSettings,
    ForbiddenPickle,
    clock_and_certificate,
    describe_cluster,
    full_address,
    host_of,
    list_workers,
    open_client,
    require_same_version,
)
from fieldray_cluster.node import NodeGroup, NodeSettings, program_and_dask_versions
from program import python
from waiting import wait_for


def test_certificates_are_this_user_s_alone_and_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    paths = make_certificates(folder)
    assert [path.name for path in paths] == list(CERTIFICATE_FILE_NAMES)
    assert not any(path.stat().st_mode & 0o077 for path in (folder, *paths))
    require_certificates(folder, "node")
    with pytest.raises(UsageProblem, match="already contains"):
        make_certificates(folder)


def test_certificates_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    make_certificates(one)
    make_certificates(other)
    (one / "node.key").write_bytes((other / "node.key").read_bytes())
    with pytest.raises(UsageProblem, match="has no usable certificates"):
        require_certificates(one, "node")
    with pytest.raises(UsageProblem, match="has no usable certificates"):
        require_certificates(tmp_path, "node")


def test_certificates_that_have_ended_say_when(tmp_path: Path) -> None:
    make_certificates(tmp_path / "old", days=-1)
    with pytest.raises(UsageProblem, match=r"were valid until 20\d\d-\d\d-\d\d\. Make new certificates"):
        require_certificates(tmp_path / "old", "node")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_a_key_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    make_certificates(folder)
    (folder / "node.key").chmod(0o640)
    with pytest.raises(UsageProblem, match="Other users of this computer can read"):
        require_certificates(folder, "node")


def test_a_process_without_certificates_needs_an_explicit_option() -> None:
    with pytest.raises(ValueError, match="certificates are needed"):
        NodeSettings(role="scheduler")


def test_local_processes_accept_only_their_own_driver(tmp_path: Path) -> None:
    make_certificates(tmp_path / "other")
    with open_client(ConnectionSettings(workers=1)) as client:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        assert all(worker.startswith("tls://127.0.0.1:") for worker in client.scheduler_info(n_workers=-1)["workers"])
        (folder,) = (data_folder() / "cluster").glob("*/certificates")
        assert not folder.stat().st_mode & 0o077
        for certificates, spelled in ((None, address.replace("tls", "tcp")), (tmp_path / "other", address)):
            stranger = ConnectionSettings(
                address=spelled, certificates=certificates, needs_worker=False, scheduler_timeout_s=1.0
            )
            with pytest.raises(EnvironmentProblem, match="No scheduler answers"), open_client(stranger):
                pass
    assert not folder.exists()


@pytest.mark.parametrize("given", ["10.0.0.1:8786", "tcp://[fe80::1]:80"])
def test_addresses_are_numbers(given: str) -> None:
    full = f"tcp://{given.removeprefix('tcp://')}"
    assert full_address(given, None) == full
    assert host_of(full) == full[6:].rpartition(":")[0].strip("[]")


@pytest.mark.parametrize(
    "given",
    ["", "localhost:8786", "10.0.0.1", "10.0.0:1", "10.0.0.1:0", "10.0.0.1:65536", "tls://10.0.0.1:8786", "[::1:9"],
)
def test_an_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(UsageProblem, match="is not the address of a scheduler"):
        full_address(given, None)


def test_a_client_s_certificates_can_submit_work_but_not_serve_as_a_node(tmp_path: Path) -> None:
    whole, client_only, posing = (tmp_path / name for name in ("whole", "client", "posing"))
    make_certificates(whole)
    for folder in (client_only, posing):
        folder.mkdir()
        (folder / "authority.pem").write_bytes((whole / "authority.pem").read_bytes())
        for ending in ("pem", "key"):
            name = f"{'node' if folder == posing else 'client'}.{ending}"
            write_new_file(folder / name, (whole / f"client.{ending}").read_bytes(), mode=PRIVATE_FILE_MODE)
    with pytest.raises(UsageProblem, match=r"no usable certificates \(node.pem: No such file"):
        require_certificates(client_only, "node")
    with NodeGroup() as nodes:
        address = nodes.add(NodeSettings(role="scheduler", certificates=str(whole))).wait_for_address()
        for name, folder in (("honest/1", whole), ("posing/1", posing)):
            nodes.add(
                NodeSettings(
                    role="worker", scheduler=address, certificates=str(folder), name=name, scratch_folder=str(tmp_path)
                )
            )
        with open_client(ConnectionSettings(address=address, certificates=client_only)) as client:
            client.wait_for_workers(2, timeout=30)
            names = {where: each["name"] for where, each in list_workers(client).items()}
            said = {names[where]: what for where, what in client.run(os.getpid, on_error="return").items()}
    assert isinstance(said["honest/1"], int) and isinstance(said["posing/1"], OSError)


def test_a_clock_that_is_off_and_a_certificate_that_has_ended_are_named(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ended = tmp_path / "ended"
    make_certificates(ended, days=-1)

    def late(dask_worker: Any = None, dask_scheduler: Any = None) -> tuple[float, str]:
        now_s, certificate = clock_and_certificate(dask_worker, dask_scheduler)
        return now_s + (3600 if dask_worker else -3600), certificate

    with open_client(ConnectionSettings(workers=1, certificates=tmp_path)) as client:
        lines = describe_cluster(client, late)
        assert all(
            re.search("certificate until 20.*  The clock of the node differs by 3(599|600) seconds", line)
            for line in lines
        )
        for name in ("node.pem", "node.key"):
            (tmp_path / name).write_bytes((ended / name).read_bytes())
        assert all("were valid until" in line for line in describe_cluster(client))
        (tmp_path / "node.key").unlink()
        assert all("(node.key: No such file" in line for line in describe_cluster(client))


def test_a_cluster_without_workers_says_how_they_join(tmp_path: Path) -> None:
    with cluster_of_nodes(tmp_path, patience_s=30.0) as (_, _, connection):
        hasty = replace(connection, worker_timeout_s=0.2)
        with pytest.raises(EnvironmentProblem, match="has no workers"), open_client(hasty):
            pass


def test_no_web_page_is_served_and_foreign_settings_of_dask_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "foreign.py").write_text(f"open({str(ran)!r}, 'w')")
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        monkeypatch.setenv(f"DASK_DISTRIBUTED__{role}__PRELOAD", str([str(tmp_path / "foreign.py")]))
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__STATUS__TASK_STREAM_LENGTH", "17")
    before = psutil.Process().children()
    with open_client(ConnectionSettings(workers=1)) as client:
        assert client.submit(os.getpid).result() != os.getpid()
        for child in set(psutil.Process().children()) - set(before):
            listening = [each for each in child.net_connections("inet") if each.status == psutil.CONN_LISTEN]
            assert [each.laddr.ip for each in listening] == ["127.0.0.1"]
    assert not ran.exists()


def test_a_connection_that_breaks_during_the_tls_handshake_is_reported_as_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(client: Client, timeout: float | None = None) -> None:
        client._connecting_to_scheduler = False
        raise ValueError("IOStream is not idle; cannot convert to SSL")

    monkeypatch.setattr(Client, "_ensure_connected", broken)
    with pytest.raises(EnvironmentProblem) as problem, open_client(ConnectionSettings(workers=1)):
        pass
    assert problem.value.reason.code == "cluster_no_answer"


def test_dask_keeps_no_log_of_sent_data() -> None:
    with open_client(ConnectionSettings(workers=1)) as client:
        for number in range(5):
            assert client.submit(len, "of a patient" * number).result() == 12 * number
        assert len(client.scheduler_comm.recent_message_log) <= 1
        assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.transition_log)) <= 1


def test_nothing_that_a_worker_or_a_scheduler_pickles_runs_here(tmp_path: Path) -> None:
    class Hostile(Exception):
        def __reduce__(self) -> Any:
            mark = f"import os; open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w')"
            return exec, (mark,)

    def give(*_: object) -> object:
        return [Hostile()]

    def fail(*_: object) -> object:
        raise Hostile

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with open_client(ConnectionSettings(workers=1)) as client:
        with pytest.raises(KilledWorker):  # messages of Dask itself are read
            client.submit(die, pure=False).result(timeout=30)
        asked = (lambda task: client.submit(task, pure=False).result(timeout=30), client.run, client.run_on_scheduler)
        for function, ask in itertools.product((give, fail), asked):
            with pytest.raises(Exception, match=r"exec|NotPlain|x80"):
                ask(function)
        with pytest.raises(ForbiddenPickle):
            protocol.loads(protocol.dumps({"result": ToPickle(Hostile())}))
        assert client.submit(len, "values").result(timeout=30) == 6
    assert str(os.getpid()) not in {path.name for path in tmp_path.iterdir()}


ATTEMPTS = """
import json, socket, sys
from fieldray.offline import allow_networks, stay_offline
stay_offline(joins_cluster="cluster" in sys.argv)
def refused(attempt):
    try: attempt()
    except Exception as error: return type(error).__name__
    return "went through"
def connect(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as one: one.connect(address)
before = refused(lambda: connect(("127.0.0.1", 9)))
told = refused(lambda: allow_networks(["127.0.0.0/8"]))
print(json.dumps({
    "before": before, "told": told,
    "here": refused(lambda: connect(("127.0.0.2", 9))),
    "elsewhere": refused(lambda: connect(("128.0.0.1", 9))),
    "in the other protocol": refused(lambda: connect(("::1", 9), socket.AF_INET6)),
    "everywhere": refused(lambda: socket.create_server(("0.0.0.0", 0))),
    "a name": refused(lambda: socket.getaddrinfo("localhost", 80)),
    "to send": refused(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("8.8.8.8", 53))),
}))
"""


def attempts(kind: str) -> dict[str, str]:
    done = python(ATTEMPTS, kind)
    assert not done.returncode, done.stderr
    return dict(json.loads(done.stdout))


def test_a_process_of_a_cluster_reaches_only_the_permitted_addresses() -> None:
    assert {name for name, what in attempts("cluster").items() if what == "went through"} == {"told", "here"}


def test_a_process_outside_a_cluster_cannot_permit_addresses() -> None:
    assert set(attempts("program").values()) == {"InternetRefused"}


def test_a_worker_ends_during_a_task_when_its_input_is_closed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def endless(path: Path) -> None:
        path.touch()
        time.sleep(1000)

    with cluster_of_nodes(tmp_path) as (_, scheduler, connection):
        told = worker("ward/1", scheduler.wait_for_address(), tmp_path)
        words = python_command("fieldray_cluster.node_main", msgspec.json.encode(told).decode())
        with (
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process,
            open_client(connection) as client,
        ):
            try:
                future = client.submit(endless, begun)
                wait_for(begun.exists)
                assert process.stdin
                process.stdin.close()
                assert process.wait(25) == 0  # without our code, Dask would wait half a minute for the task
                future.cancel()
            finally:
                process.kill()


def test_a_worker_that_waits_for_a_scheduler_ends_when_its_input_is_closed(tmp_path: Path) -> None:
    told = msgspec.json.encode(worker("ward/1", "tcp://127.0.0.1:9", tmp_path)).decode()
    words = python_command("fieldray_cluster.node_main", told)
    assert subprocess.run(words, stdin=subprocess.DEVNULL, timeout=25, check=False).returncode == 0


def test_the_message_about_a_restarted_process_has_its_exit_code() -> None:
    heard = list[str]()
    with NodeGroup() as nodes:
        scheduler = nodes.add(NodeSettings(role="scheduler", is_unencrypted=True), warn=heard.append)
        address, first = scheduler.wait_for_address(), scheduler.pid
        psutil.Process(first).kill()
        wait_for(lambda: bool(heard) and scheduler.pid != first)
        assert scheduler.wait_for_address() == address  # the restarted process has the same address
    assert heard == [
        f"The process scheduler ended unexpectedly (exit code {-9 if os.name == 'posix' else 15}) and is being started "
        "again."
    ]


def test_a_scheduler_of_another_version_is_named() -> None:
    require_same_version("tcp://10.0.0.1:8786", program_and_dask_versions())
    with pytest.raises(EnvironmentProblem, match=r"Fieldray 0.0.1 on the scheduler at tcp://10.0.0.1:8786, Fieldray"):
        require_same_version("tcp://10.0.0.1:8786", "Fieldray 0.0.1")
