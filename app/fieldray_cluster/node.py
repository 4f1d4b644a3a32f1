"""Run a process of a cluster: a Dask scheduler or worker, with only the features that are needed.

By default, Dask reads settings that name code to load and addresses to contact, serves web pages, spills memory to
disk, and logs arguments of failed tasks. This module disables these features. The settings are this program's own
(`replace_dask_settings`), and no image name gets into a log.

A task whose worker died ends with `distributed.KilledWorker`, without a second attempt, because `allowed-failures` is
0. A worker runs one task at a time.

`NodeProcess` and `NodeGroup` start cluster processes on this computer, restart dead processes, and end all together.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, cast

import dask.config
import distributed
import msgspec
from distributed import Scheduler, Security, Worker

from fieldray.errors import EnvironmentProblem
from fieldray.offline import allow_networks
from fieldray.paths import VERSION, python_command
from fieldray.reasons import reason
from fieldray_cluster.certificates import AUTHORITY_FILE_NAME, CertificateRole, certificate_and_key_paths

SCHEDULER_LOST_EXIT_CODE: Final = 3
"""The exit code of a worker process that has lost the connection to its scheduler."""
_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
# Dask keeps 1000 messages for debugging, which would need 200 MB with screening results.
_KEPT_MESSAGES: Final = 1
_SETTINGS: Final = {
    "distributed.admin.low-level-log-length": _KEPT_MESSAGES,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1h",
    "distributed.admin.large-graph-warning-threshold": "1TB",
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "60s",
}


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a process of a cluster.

    Attributes
    ----------
    role
        "scheduler" or "worker".
    host
        The numeric IP address of the process.
    port
        For a scheduler: the port; 0 for any free port.
    scheduler
        For a worker: the scheduler's address, `tcp://HOST:PORT` or `tls://HOST:PORT`.
    name
        For a worker: the name NODE/NUMBER.
    allowed_networks
        Numeric IP addresses and networks that the process may contact. This computer is always allowed.
    certificates
        The folder of the certificates. None is allowed only with `is_unencrypted`.
    is_unencrypted
        Whether connections are without certificates. If True, everybody who reaches the process can run code in it.
    scratch_folder
        For a worker: the folder for temporary files.
    core_count
        For a worker: the number of this computer's cores that the worker may use; 0 for all cores.
    """

    role: str
    host: str = "127.0.0.1"
    port: int = 0
    scheduler: str = ""
    name: str = ""
    allowed_networks: tuple[str, ...] = ()
    certificates: str | None = None
    is_unencrypted: bool = False
    scratch_folder: str = ""
    core_count: int = 0

    def __post_init__(self) -> None:
        if not self.certificates and not self.is_unencrypted:
            raise ValueError("certificates are needed")


def replace_dask_settings(*networks: str) -> None:
    """Replace Dask's settings by the settings of this program, reduce Dask's logging, and allow some networks.

    `networks` are IP addresses and networks that this process may contact. Raises InternetRefused in a process that is
    no process of a cluster.
    """
    dask.config.refresh(paths=[], env={})
    dask.config.set(_SETTINGS)
    for name in ("distributed", "tornado", *logging.root.manager.loggerDict):
        if name.startswith(("distributed", "tornado")):  # Dask sets levels of single loggers, too
            logging.getLogger(name).setLevel(logging.CRITICAL)
    allow_networks((*_LOOPBACK, *networks))


def allow_own_ip_address(host: str) -> None:
    """Allow this process to contact its own IP address: the address from which it connects to `host`.

    Dask looks up the addresses of both ends of a connection, which the offline guard would otherwise refuse. Raises
    OSError if there is no route to the host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((host, 9))  # finds the own address without sending anything (datagram socket)
        allow_networks((way.getsockname()[0],))


def tls_settings(certificates: Path | None, role: CertificateRole = "node") -> Security | None:
    """Return Dask's settings for mutual TLS with the cluster's certificates; None without certificates."""
    if certificates is None:
        return None
    certificate, key = map(str, certificate_and_key_paths(certificates, role))
    return Security(
        require_encryption=True,
        tls_ca_file=str(certificates / AUTHORITY_FILE_NAME),
        **{f"tls_{kind}_cert": certificate for kind in ("client", "scheduler", "worker")},
        **{f"tls_{kind}_key": key for kind in ("client", "scheduler", "worker")},
    )


class _Silent:
    """Base class for a Dask scheduler or worker that serves no web pages."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Do nothing, in place of starting Dask's web server."""


class _SilentScheduler(_Silent, Scheduler):  # type: ignore[misc]
    pass


class _SilentWorker(_Silent, Worker):  # type: ignore[misc]
    """A Dask worker that serves no web pages, and that stores the reason of its end and its number of cores."""

    reason_of_end = ""
    cores = 0

    async def close(self, *arguments: Any, **options: Any) -> Any:
        """Close the worker as Dask does, but do not wait for a running task, which ends with this process."""
        self.reason_of_end = self.reason_of_end or str(options.get("reason", ""))
        return await super().close(*arguments, **{**options, "executor_wait": False})


async def run_node(settings: NodeSettings, *, say: Callable[[str], None], stop: asyncio.Event) -> int:
    """Run a scheduler or worker until `stop` is set, or until the scheduler is stopped or lost. Returns the exit code.

    The exit code of a worker that lost its scheduler is `SCHEDULER_LOST_EXIT_CODE`. `say` is called with the address
    when other processes can connect. Raises OSError if the address is not available, and TimeoutError if no scheduler
    answers.
    """
    replace_dask_settings(*settings.allowed_networks)
    certificates = Path(settings.certificates) if settings.certificates else None
    encryption = tls_settings(certificates)
    protocol = "tls" if encryption else "tcp"
    server: Scheduler | Worker
    if settings.role == "scheduler":
        server = _SilentScheduler(
            host=settings.host, port=settings.port, protocol=protocol, security=encryption, dashboard=False
        )
    else:
        server = _SilentWorker(
            settings.scheduler,
            name=settings.name,
            host=settings.host,
            protocol=protocol,
            security=encryption,
            nthreads=1,
            memory_limit=0,
            local_directory=settings.scratch_folder,
            death_timeout=30,
            dashboard=False,
        )
        server.cores = settings.core_count
    async with server:
        say(server.address)
        ended, stopped = asyncio.create_task(server.finished()), asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, stopped):
            task.cancel()
    if settings.role == "worker":  # an interrupted task leaves the files that were sent to it
        shutil.rmtree(server.local_directory, ignore_errors=True)
    was_lost = "connection-broken" in getattr(server, "reason_of_end", "") and not stop.is_set()
    return SCHEDULER_LOST_EXIT_CODE if was_lost else 0


def run_until_input_ends(settings: NodeSettings) -> int:
    """Run `run_node` in a child process until standard input closes, and print the address to standard output.

    The function ends the process and does not return. When standard input closes, the process stops within five
    seconds, even during a task.
    """

    async def run() -> int:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        threading.Thread(target=_wait_for_end, args=(loop, stop), name="input", daemon=True).start()
        return await run_node(settings, say=functools.partial(print, flush=True), stop=stop)

    code = asyncio.run(run())
    sys.stdout.flush()
    os._exit(code)  # the thread of a task would keep the process alive


def _wait_for_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Wait until standard input closes, set `stop`, and after five seconds end the process."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
    time.sleep(_GRACE_S)
    os._exit(0)  # a worker may wait for a lost scheduler


def worker_core_count() -> int:
    """Return the number of cores that the worker of the current task may use; 0 for all cores."""
    return int(getattr(distributed.get_worker(), "cores", 0))


def program_and_dask_versions() -> str:
    """Return a text with the versions of program and Dask, which must be equal on all computers of a cluster."""
    return f"Fieldray {VERSION}, dask {dask.__version__}, distributed {distributed.__version__}"


# ---- processes of this computer


_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0
_GRACE_S: Final = 5.0
_LAST_BYTES: Final = 2000

log = logging.getLogger(__name__)


class NodeProcess:
    """A scheduler or worker process on this computer, which is restarted after it dies, until `close` is called.

    A process that was stopped on purpose, or that cannot start, is not restarted. `warn` is called with a line of text
    after each restart.
    """

    def __init__(self, settings: NodeSettings, *, warn: Callable[[str], None] = log.warning) -> None:
        self._settings = settings
        self._warn = warn
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_over = False
        self._process: subprocess.Popen[str] | None = None
        self._address = ""
        self._end = "-"
        self._thread = threading.Thread(target=self._keep, name=f"cluster-{settings.role}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The id of the process that was started last; None before the first start."""
        return self._process.pid if self._process else None

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds for the final end of the process. Returns whether the process has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout_s)

    def wait_for_address(self, timeout_s: float = 60.0) -> str:
        """Wait at most `timeout_s` seconds until the process has an address, and return the address.

        Raises EnvironmentProblem (cluster_node_not_started).
        """
        with self._changed:
            self._changed.wait_for(lambda: self._address or self._is_over, timeout_s)
            if not self._address:
                raise EnvironmentProblem(reason("cluster_node_not_started", role=self._settings.role, end=self._end))
            return self._address

    def close(self) -> None:
        """Stop the process, by force if it has not ended after five seconds. The process is not restarted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            process = self._process
        if process:
            with contextlib.suppress(OSError):
                cast("IO[str]", process.stdin).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()
        self._thread.join()

    def _keep(self) -> None:
        """Start the process, and start it again each time it dies, after pauses that grow to ten seconds.

        Returns if `close` was called, or if the process was stopped or cannot start.
        """
        delay_s = _FIRST_DELAY_S
        try:
            while not self._is_closed:
                began_s = time.monotonic()
                code = self._run_once()
                if not self._is_closed:
                    log.warning("%s has ended: %s", self._settings.name or self._settings.role, self._end)
                if code == 0 or (not self._address and code > 0):
                    return  # closed, or unable to start; a process killed during its start is started again
                if time.monotonic() - began_s > _LONGEST_DELAY_S:
                    delay_s = _FIRST_DELAY_S
                with self._changed:
                    if self._changed.wait_for(lambda: self._is_closed, delay_s):
                        return
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
                name = self._settings.name or self._settings.role
                self._warn(reason("cluster_node_again", node=name, end=self._end).text)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _run_once(self) -> int:
        """Start the process once, store the address that it prints, and wait for its end. Returns the exit code."""
        with tempfile.TemporaryFile() as said:
            with self._changed:
                if self._is_closed:
                    return 0
                self._process = subprocess.Popen(
                    python_command("fieldray_cluster.node_main", msgspec.json.encode(self._settings).decode()),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    start_new_session=sys.platform != "win32",  # Ctrl-C goes to the driver only, which ends the process
                )
            with self._process as process:
                self._note_address(cast("IO[str]", process.stdout).readline().strip())
                cast("IO[str]", process.stdout).read()
                code = process.wait()
            self._end = ": ".join(filter(None, (str(code), _last_lines(said))))
            return code

    def _note_address(self, line: str) -> None:
        if line and self._settings.role == "scheduler" and not self._settings.port:
            port = int(line.rpartition(":")[2])  # a restarted scheduler must have the port of the first one
            self._settings = msgspec.structs.replace(self._settings, port=port)
        with self._changed:
            self._address = line or self._address
            self._changed.notify_all()


def _last_lines(output: IO[bytes]) -> str:
    """Return the last line of a text file that is not blank; "" if there is none."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = output.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class NodeGroup(contextlib.ExitStack):
    """A context manager of cluster processes on this computer. At its end, the last started process ends first."""

    def add(self, settings: NodeSettings, *, warn: Callable[[str], None] = log.warning) -> NodeProcess:
        """Start a cluster process that ends with this group. `warn` gets a line of text after each restart."""
        return self.enter_context(contextlib.closing(NodeProcess(settings, warn=warn)))
