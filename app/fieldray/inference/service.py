"""The code of a child process that runs one network on a device.

The network is loaded once, then images run one by one.
"""

from __future__ import annotations

import contextlib
import pkgutil
from typing import Any, Final

from fieldray.errors import BackendProblem
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.litert import Network, load_runtime, memory_problem
from fieldray.inference.worker import OPEN_NETWORK, RUN_NETWORK, InferRequest, OpenRequest
from fieldray.processes.child import make_message_handler


class NetworkService:
    """The service of a child process that loads one model once and runs images."""

    def __init__(self) -> None:
        self._network: Network | None = None
        self._device: Any = None

    def open(self, request: OpenRequest) -> str:
        """Load the network. Returns name and version of the runtime, and the device or threads, as one text.

        Raises BackendProblem, and ValueError if a network is already loaded.
        """
        if self._network:
            raise ValueError("opened already")
        runtime, file, delegate = load_runtime(), request.file.tobytes(), request.delegate
        try:
            if delegate:
                self._device = pkgutil.resolve_name(delegate.opener_class_name)(delegate.options, file, runtime)
            self._network = Network(
                file,
                request.spec,
                runtime=runtime,
                threads=request.threads,
                delegate=self._device.delegate if self._device else None,
                failure=delegate.failure_code if delegate else "inference",
            )
        except MemoryError as error:
            raise (memory_problem() or error) from error
        where = self._device.detail if self._device else f"1 x {request.threads}"
        return f"{runtime.name} {runtime.version}, {where}"

    def run(self, request: InferRequest) -> NetworkOutput:
        """Run the loaded network on the image of a request.

        Raises BackendProblem, and ValueError if no network is loaded yet.
        """
        if self._network is None:
            raise ValueError("no network is open")
        try:
            return self._network.run(request.values)
        except MemoryError as error:
            raise (memory_problem() or error) from error


# Every process that runs models needs the runtime, and may be started before the model is known.
with contextlib.suppress(BackendProblem):
    load_runtime()

_service: Final = NetworkService()
handle: Final = make_message_handler((OPEN_NETWORK, _service.open), (RUN_NETWORK, _service.run))
