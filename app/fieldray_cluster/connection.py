"""Connect to a cluster: open a Dask client for processes on this computer, or for a scheduler at an address.

Without an address, a scheduler and `workers` single-threaded processes are started on 127.0.0.1, and end with the
client. The program starts these processes itself and does not use Dask's `LocalCluster`. Dask starts workers by
`multiprocessing`, which would run the caller's main module before the offline guard, and restarts workers that use much
memory. Here a thread restarts a dead process (see `node`).

Dask runs any code that a connected client sends, and every user of this computer can reach 127.0.0.1. So local
processes have temporary certificates, in a folder that only this user can read.

Messages from workers and schedulers are not trusted, because Dask pickles them, and a pickle can call any function.
After opening a client, this process accepts only plain values, and objects of classes that `allow_pickled_classes`
names.

A task whose worker died ends with `distributed.KilledWorker`, without a second attempt. Futures of a dead scheduler are
cancelled, or never done. The caller checks `is_connected`, leaves the block, and opens another client. Scheduler and
workers must be able to import submitted functions. Only a function inside another function is sent as code.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import ipaddress
import pickle
import re
import ssl
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import distributed.client
import distributed.protocol.pickle
from distributed import Client, KilledWorker, Worker
from distributed.core import Status
from distributed.scheduler import WorkerState

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.paths import scratch_folder
from fieldray.process_environment import usable_cores
from fieldray.processes.wire import INVALID_MESSAGE_ERRORS
from fieldray.reasons import Reason, reason
from fieldray_cluster.certificates import CertificateRole, make_certificates, require_certificates
from fieldray_cluster.node import (
    NodeGroup,
    NodeSettings,
    allow_own_ip_address,
    program_and_dask_versions,
    replace_dask_settings,
    tls_settings,
)

_ADDRESS: Final = re.compile(r"(?:(tcp|tls)://)?(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{1,5})")
_TICK_S: Final = 0.1
_CLOCKS_S: Final = 120.0
ANSWER_TIMEOUT_S: Final = 10.0
"""Seconds to wait for a worker's answer before work goes on without that worker."""
ReadClockAndCertificate = Callable[..., tuple[float, str]]
"""A function that a process runs to report its clock (seconds since 1970), and a sentence about its certificate."""
AnswerFuture = Future[object]
"""The future of a worker's answer to a question."""
# Classes in Dask's messages about results and lost workers.
_received: Final[set[type]] = {
    *(bytes, int, set, deque, defaultdict),
    *(KilledWorker, WorkerState, Status),
}


class ForbiddenPickle(TypeError):
    """The error for a pickle that contains objects other than plain values and allowed classes."""


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only plain values and objects of allowed classes. Raises ForbiddenPickle for other objects."""

    def find_class(self, module: str, name: str) -> type:
        for kind in _received:
            if (kind.__module__, kind.__qualname__) == (module, name):
                return kind
        raise ForbiddenPickle(f"{module}.{name}")


def allow_pickled_classes(*kinds: type) -> None:
    """Allow this process to unpickle objects of some classes: dataclasses or paths, whose unpickling runs no code."""
    _received.update(kinds)


def _plain(data: bytes, *, buffers: Sequence[Any] = ()) -> Any:
    """Unpickle plain values and objects of allowed classes, in place of Dask's own function. Raises ForbiddenPickle."""
    return _PlainUnpickler(io.BytesIO(data), buffers=buffers).load()


def _plain_error(_: bytes) -> OSError:
    """Return an OSError in place of the scheduler's pickled error about an unreachable worker."""
    return OSError("a worker could not be asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The settings of a connection to a cluster.

    Parameters
    ----------
    address
        The scheduler's address as `[tcp://|tls://]HOST:PORT`, with a numeric host. None for processes on this computer.
    workers
        Number of processes, 1 or more. With an address, the largest number of workers to wait for.
    certificates
        The folder of this computer's certificates. None for unencrypted connections to an address, and for temporary
        certificates of processes on this computer.
    role
        The role whose certificate the client shows.
    scheduler_timeout_s, worker_timeout_s
        Seconds to wait for a scheduler, and seconds to wait for the scheduler's first worker.
    needs_worker
        Whether the client submits work. If True, a cluster without workers or of another version is a problem.
    """

    address: str | None = None
    workers: int = 1
    certificates: Path | None = None
    role: CertificateRole = "client"
    scheduler_timeout_s: float = 30.0
    worker_timeout_s: float = 30.0
    needs_worker: bool = True


@contextlib.contextmanager
def open_client(settings: ConnectionSettings) -> Iterator[Client]:
    """Connect a Dask client to a cluster, and yield the client. At the end of the block, local processes end.

    Raises UsageProblem (cluster_address, cluster_certificates), EnvironmentProblem (cluster_no_answer,
    cluster_other_scheduler, cluster_no_worker, cluster_node_not_started).
    """
    if settings.certificates:
        require_certificates(settings.certificates, settings.role)
    with contextlib.ExitStack() as ends:
        if settings.address:
            address = full_address(settings.address, settings.certificates)
        else:
            scratch = ends.enter_context(scratch_folder())
            if not settings.certificates:
                settings = replace(settings, certificates=scratch / "certificates")
                make_certificates(scratch / "certificates")
            nodes, certificates = ends.enter_context(NodeGroup()), cast("Path", settings.certificates)
            address = _started(nodes, certificates, scratch, workers=settings.workers)
        yield ends.enter_context(_connected(address, settings))


def full_address(address: str, certificates: Path | None) -> str:
    """Return a scheduler's address with the protocol, such as tls://10.0.0.5:8786.

    The protocol is tls with certificates, else tcp. Raises UsageProblem (cluster_address) for an invalid address.
    """
    match = _ADDRESS.fullmatch(address)
    protocol = "tls" if certificates else "tcp"
    if not match or match[1] not in (None, protocol) or not 0 < int(match[3]) < 65536 or not is_ip_address(match[2]):
        raise UsageProblem(reason("cluster_address", address=address, protocol=protocol))
    return f"{protocol}://{match[2]}:{match[3]}"


def host_of(address: str) -> str:
    """Return the host of an address with protocol, such as 10.0.0.5; an IPv6 address has no brackets."""
    return address.partition("://")[2].rpartition(":")[0].strip("[]")


def is_connected(client: Client) -> bool:
    """Return whether the client is connected to its scheduler. A lost connection is never restored."""
    return bool(client.status == "running")


def client_tls_context(client_or_worker: Client | Worker) -> ssl.SSLContext | None:
    """Return the TLS context for connections of a client or worker; None for unencrypted connections."""
    context: ssl.SSLContext | None = client_or_worker.security.get_connection_args("client").get("ssl_context")
    return context


def core_count_per_worker(workers: int) -> int:
    """Return how many cores (1 or more) each of `workers` workers on this computer may use."""
    return max(1, round(usable_cores() / workers))


def list_workers(client: Client) -> dict[str, Mapping[str, Any]]:
    """Return the scheduler's description of each worker of a cluster, by address. A description has the key "name".

    Raises EnvironmentProblem (cluster_node_problem) for an invalid answer of the scheduler.
    """
    with _checking_messages(client):
        found = client.scheduler_info(n_workers=-1)["workers"]
        return {address: {**worker, "name": str(worker["name"])} for address, worker in found.items()}


def ask_workers(
    workers: Collection[str], client: Client, function: Callable[..., object], *arguments: object
) -> dict[str, object]:
    """Call a function in several worker processes. Returns the workers' answers by address (see `wait_for_answer`).

    The answer is None for a worker that does not answer within `ANSWER_TIMEOUT_S` seconds. Raises EnvironmentProblem
    (cluster_node_problem).
    """
    futures = {address: client.ask(address, function, *arguments) for address in workers}
    wait(futures.values(), timeout=ANSWER_TIMEOUT_S)
    return {address: wait_for_answer(client, future) if future.done() else None for address, future in futures.items()}


def wait_for_answer(client: Client, future: AnswerFuture) -> object:
    """Wait until a worker has answered. Returns the answer, or the exception that the called function raised.

    Returns None if the worker gave no answer. Raises OSError if the scheduler is lost, EnvironmentProblem
    (cluster_node_problem) for an invalid answer.
    """
    with _checking_messages(client):
        return future.result()


@contextlib.contextmanager
def _checking_messages(client: Client) -> Iterator[None]:
    """Run a block that reads messages of a scheduler, which Dask does not validate.

    Raises EnvironmentProblem (cluster_node_problem) if the block fails because of an invalid message.
    """
    try:
        yield
    except ForbiddenPickle:
        raise
    except INVALID_MESSAGE_ERRORS as error:
        why = reason("cluster_other_answer").text
        raise EnvironmentProblem(reason("cluster_node_problem", node=client.scheduler.address, detail=why)) from error


def node_name(worker: str) -> str:
    """Return the name of the node (computer) in a worker's name NODE/NUMBER."""
    return worker.rpartition("/")[0] or worker


def clock_difference_note(remote_clock_s: float, *, local_clock_s: float | None = None) -> Reason | None:
    """Return a note if the clocks of two computers differ by more than two minutes; else None.

    Clocks are in seconds since 1970. A local clock of None is this computer's clock. A wrong clock does not change
    results.
    """
    seconds = round(remote_clock_s - (time.time() if local_clock_s is None else local_clock_s))
    return reason("cluster_clock", difference=abs(seconds)) if abs(seconds) > _CLOCKS_S else None


def clock_and_certificate(dask_worker: Any = None, dask_scheduler: Any = None) -> tuple[float, str]:
    """Return the clock of this process (seconds since 1970), and a text about the certificate of this process.

    Dask passes the worker or the scheduler in which the function runs.
    """
    path = (dask_worker or dask_scheduler).security.tls_scheduler_cert
    if not path:
        return time.time(), "no certificate"
    try:
        return time.time(), f"certificate until {require_certificates(Path(path).parent, 'node').isoformat()}"
    except UsageProblem as problem:
        return time.time(), problem.reason.text


def scheduler_clock_text(client: Client, report: ReadClockAndCertificate = clock_and_certificate) -> str:
    """Return a text about the clock and the certificate of the scheduler.

    `report` is the function that the scheduler runs to report clock and certificate.
    """
    began_s = time.time()
    try:
        said: object = client.run_on_scheduler(report)
    except Exception as error:  # the scheduler has another version, or was just lost
        said = error
    return _state_text(said, local_clock_s=(began_s + time.time()) / 2)


def describe_cluster(client: Client, report: ReadClockAndCertificate = clock_and_certificate) -> list[str]:
    """Return a line about the scheduler, and a line about each worker of a cluster.

    The line of a worker has name, address, memory, "working" or "idle", certificate and clock. `report` is the function
    that each process runs to report clock and certificate.
    """
    workers, began_s = list_workers(client), time.time()
    said = ask_workers(workers, client, report)
    local_clock_s = (began_s + time.time()) / 2
    with _checking_messages(client):
        lines = [
            f"{worker['name']}  {address}  {worker['metrics'].get('memory', 0) / 2**20:.0f} MB  "
            f"{'working' if worker['metrics'].get('executing') else 'idle'}  "
            f"{_state_text(said.get(address), local_clock_s=local_clock_s)}"
            for address, worker in sorted(workers.items(), key=lambda item: str(item[1]["name"]))
        ]
    return [f"{client.scheduler.address}: {len(workers)} workers  {scheduler_clock_text(client, report)}", *lines]


def _state_text(answer: object, *, local_clock_s: float) -> str:
    if not (isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[0], float)):
        return "It does not answer."
    note = clock_difference_note(answer[0], local_clock_s=local_clock_s)
    return f"{answer[1]}  {note.text}" if note else str(answer[1])


def is_ip_address(text: str) -> bool:
    """Return whether a text is a numeric IP address, such as 10.0.0.5, and not a host name or a network."""
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _started(nodes: NodeGroup, certificates: Path, scratch: Path, *, workers: int) -> str:
    """Start a scheduler and `workers` workers on this computer. Returns the scheduler's address."""
    folder = str(certificates.absolute())
    scheduler = nodes.add(NodeSettings(role="scheduler", certificates=folder))
    address, cores = scheduler.wait_for_address(), core_count_per_worker(workers)
    for number in range(1, workers + 1):
        nodes.add(
            NodeSettings(
                role="worker",
                scheduler=address,
                name=f"local/{number}",
                certificates=folder,
                scratch_folder=str(scratch),
                core_count=cores,
            )
        )
    return address


class _Client(Client):  # type: ignore[misc]
    """A Dask client that ends all of its threads if no scheduler answers.

    The client ignores output and warnings of workers, because a warning is a pickle that Dask itself would load.
    `asked` are the futures of questions that workers have not answered yet.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.asked = set[AnswerFuture]()
        super().__init__(*arguments, **options)

    def ask(self, worker: str, function: Callable[..., object], *arguments: object) -> AnswerFuture:
        """Call a function in a worker process. Returns a future of the answer, without waiting.

        A worker on a suspended computer may answer after hours, or never.
        """

        async def answer() -> object:
            said = await self.run(function, *arguments, workers=[worker], on_error="return", asynchronous=True)
            return said.get(worker)

        future = asyncio.run_coroutine_threadsafe(answer(), self.loop.asyncio_loop)
        self.asked.add(future)
        future.add_done_callback(self.asked.discard)
        return future

    def subscribe_topic(self, topic: str, handler: Any) -> None:
        """Do nothing, so that the client does not receive output and warnings of workers."""

    def start(self, **options: Any) -> Any:
        try:
            return super().start(**options)
        except BaseException:
            self._loop_runner.stop()
            self.status = "closed"  # otherwise the destructor would close the client on an ended event loop
            raise

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        try:
            await super()._ensure_connected(timeout=timeout)
        except ValueError as error:  # Tornado's error for a connection that broke before encryption
            raise OSError(str(error)) from error


@contextlib.contextmanager
def _connected(address: str, settings: ConnectionSettings) -> Iterator[Client]:
    """Connect a Dask client to the scheduler at `address`, and yield the client. The end of the block closes it.

    Raises EnvironmentProblem if no scheduler answers.
    """
    replace_dask_settings(host_of(address))
    distributed.protocol.pickle.loads, distributed.client.loads = _plain, _plain_error
    try:
        allow_own_ip_address(host_of(address))
        client = _Client(
            address,
            security=tls_settings(settings.certificates, settings.role),
            set_as_default=False,
            timeout=settings.scheduler_timeout_s,
            direct_to_workers=False,
        )
    except (OSError, TimeoutError) as error:
        raise EnvironmentProblem(reason("cluster_no_answer", address=address)) from error
    try:
        if settings.needs_worker:
            require_same_version(address, _versions_of_scheduler(client, address))
            _wait_for_worker(client, address, settings.worker_timeout_s)
        yield client
    finally:
        with warnings.catch_warnings(), contextlib.suppress(OSError, TimeoutError):
            warnings.simplefilter("ignore")  # warnings about futures that nobody waits for
            for future in tuple(client.asked):
                future.cancel()
            client.close(timeout=5)


def _versions_of_scheduler(client: Client, address: str) -> str:
    """Return the versions of program and Dask in a scheduler. Raises EnvironmentProblem (cluster_no_answer)."""
    try:
        return str(client.run_on_scheduler(program_and_dask_versions))
    except (OSError, TimeoutError, CancelledError) as error:
        raise EnvironmentProblem(reason("cluster_no_answer", address=address)) from error
    except Exception as error:  # the scheduler's version is so different that it cannot call the function
        return type(error).__name__


def require_same_version(address: str, remote_versions: str) -> None:
    """Raise EnvironmentProblem (cluster_other_scheduler) if a scheduler has other versions than this process.

    `address` is the scheduler's address. `remote_versions` is the result of `program_and_dask_versions` in the
    scheduler.
    """
    if remote_versions != program_and_dask_versions():
        raise EnvironmentProblem(
            reason("cluster_other_scheduler", address=address, there=remote_versions, here=program_and_dask_versions())
        )


def _wait_for_worker(client: Client, address: str, patience_s: float) -> None:
    """Wait until the cluster has a worker. Raises EnvironmentProblem (cluster_no_worker) after `patience_s` seconds."""
    until_s = time.monotonic() + patience_s
    while not list_workers(client):
        if time.monotonic() > until_s:
            raise EnvironmentProblem(reason("cluster_no_worker", address=address))
        time.sleep(_TICK_S)
