"""Processes of a cluster on this computer: started, started again when one dies, and ended together."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Final, Self, cast

import msgspec

from fieldray.errors import EnvironmentProblem
from fieldray.paths import python_command
from fieldray.reasons import reason
from fieldray_cluster.node import NodeSettings

_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0
_GRACE_S: Final = 5.0
_LAST_BYTES: Final = 2000

log = logging.getLogger(__name__)


class NodeProcess:
    """One process, kept alive by a thread until `close`; a worker that was told by its scheduler to end stays ended.

    told  receives a line when it had to be started again
    """

    def __init__(self, settings: NodeSettings, *, told: Callable[[str], None] = log.warning) -> None:
        self._settings = settings
        self._told = told
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
        """Of the process that runs now."""
        return self._process.pid if self._process else None

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended for good; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout_s)

    def address(self, timeout_s: float = 60.0) -> str:
        """Where it can be reached; waits for it. Raises EnvironmentProblem (cluster_node_not_started)."""
        with self._changed:
            self._changed.wait_for(lambda: self._address or self._is_over, timeout_s)
            if not self._address:
                raise EnvironmentProblem(reason("cluster_node_not_started", role=self._settings.role, end=self._end))
            return self._address

    def close(self) -> None:
        """End it: in order, by force where that takes longer."""
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
        delay_s = _FIRST_DELAY_S
        try:
            while not self._is_closed:
                began_s = time.monotonic()
                code = self._run_once()
                if code == 0 or (not self._address and code > 0):
                    return  # told to end, or it cannot begin; one that was killed before it began begins again
                if time.monotonic() - began_s > _LONGEST_DELAY_S:
                    delay_s = _FIRST_DELAY_S
                with self._changed:
                    if self._changed.wait_for(lambda: self._is_closed, delay_s):
                        return
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
                name = self._settings.name or self._settings.role
                self._told(reason("cluster_node_again", node=name, end=self._end).text)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _run_once(self) -> int:
        """Start it, note its address, and wait for its end; the exit code."""
        with tempfile.TemporaryFile() as said:
            code = self._run_saying(said)
            self._end = ": ".join(filter(None, (str(code), _last_words(said))))
        return code

    def _run_saying(self, said: IO[bytes]) -> int:
        with self._changed:
            if self._is_closed:
                return 0
            self._process = subprocess.Popen(
                python_command("fieldray_cluster.node_main", msgspec.json.encode(self._settings).decode()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=sys.platform != "win32",  # a Ctrl-C is for the driver, which ends this one in order
            )
        with self._process as process:
            line = cast("IO[str]", process.stdout).readline().strip()
            if line and self._settings.role == "scheduler" and not self._settings.port:
                port = int(line.rpartition(":")[2])  # the next one has to be found at the same place
                self._settings = msgspec.structs.replace(self._settings, port=port)
            with self._changed:
                self._address = line or self._address
                self._changed.notify_all()
            cast("IO[str]", process.stdout).read()
            return process.wait()


def _last_words(said: IO[bytes]) -> str:
    """The last line of a file that says anything."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = said.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class NodeGroup:
    """Several processes that are ended together, the last one first."""

    def __init__(self) -> None:
        self._nodes: list[NodeProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(self._nodes):
            node.close()

    @property
    def pids(self) -> list[int]:
        """Of the processes that run, in the order they were added."""
        return [node.pid for node in self._nodes if node.pid is not None]

    def wait(self, timeout_s: float) -> bool:
        """Wait until all of them have ended for good; whether they have."""
        until_s = time.monotonic() + timeout_s
        return all(node.wait(max(0.0, until_s - time.monotonic())) for node in self._nodes)

    def add(self, settings: NodeSettings, *, told: Callable[[str], None] = log.warning) -> NodeProcess:
        """Start one more."""
        node = NodeProcess(settings, told=told)
        self._nodes.append(node)
        return node
