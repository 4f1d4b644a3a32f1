"""The messages between the parent and the child of inference; both sides are here, so that they cannot differ.

open   body: runtimes, input, outputs, labels, is_bare, cores, budget_s, delegate (None for the CPU); array file (uint8
       bytes)
       -> body: runtime, version, networks, threads, device (its description, empty for the CPU)
warm   body: runtimes
       -> nothing: the runtime is imported, so that a later open is quick
run    array images (n, height, width, channels) uint8, n up to `networks`
       -> body: latencies_ms; arrays scores (n, labels), and class_maps (n, labels, rows, columns), features
       (n, length), mask (n, rows, columns) and planes (n, rows, columns, channels) where the model has them

There is no close: the child ends with its input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Final, Protocol

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fieldray.domain.model import InputSpec, OutputRoles
from fieldray.inference.backend import Answer
from fieldray.inference.litert import NetworkSpec
from fieldray.inference.runtime import Runtime
from fieldray.processes.wire import Message
from fieldray.typed_json import converted

_MOST_NETWORKS: Final = 1024


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DelegateSpec:
    """How the child opens a device: `opener` names a function ("module:function") that is called as `OpenDevice`.

    options  for it, as JSON
    failure  the code of the reason (with a `detail`) for an image that the device did not run
    """

    opener: str
    options: Mapping[str, Any]
    failure: str = "inference"


class OpenedDevice(Protocol):
    """A device that this process has opened, until it ends.

    delegate  for the runtime's interpreter
    detail    what the device says of itself, in a few words
    """

    @property
    def delegate(self) -> object: ...
    @property
    def detail(self) -> str: ...


class OpenDevice(Protocol):
    """Opens a device for a file. Raises BackendProblem."""

    def __call__(self, options: Mapping[str, Any], file: bytes, runtime: Runtime, /) -> OpenedDevice: ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OpenRequest:
    """Load `file`; time threadings on at most `cores` cores until `budget_s` is spent; `delegate` opens a device.

    With no `budget_s` nothing is timed: one network gets one thread per core, and its first image is really its first.
    """

    file: bytes
    spec: NetworkSpec
    runtimes: tuple[str, ...]
    cores: int
    budget_s: float | None
    delegate: DelegateSpec | None = None

    def message(self) -> Message:
        """As it travels."""
        body = {
            "operation": "open",
            "input": _values(self.spec.input),
            "outputs": _values(self.spec.outputs),
            "labels": self.spec.labels,
            "is_bare": self.spec.is_bare,
            "runtimes": list(self.runtimes),
            "cores": self.cores,
            "budget_s": self.budget_s,
            "delegate": asdict(self.delegate) if self.delegate else None,
        }
        return Message(body, {"file": np.frombuffer(self.file, np.uint8)})

    @classmethod
    def of(cls, message: Message) -> OpenRequest:
        """As it was sent."""
        body = message.body
        return cls(
            file=message.arrays["file"].tobytes(),
            spec=NetworkSpec(
                input=InputSpec(**body["input"]),
                outputs=OutputRoles(**body["outputs"]),
                labels=body["labels"],
                is_bare=body["is_bare"],
            ),
            runtimes=tuple(body["runtimes"]),
            cores=body["cores"],
            budget_s=body["budget_s"],
            delegate=DelegateSpec(**body["delegate"]) if body["delegate"] else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAnswer:
    """What the child opened: `networks` side by side with `threads` each; `device` is empty for the CPU."""

    runtime: str
    version: str
    networks: Annotated[int, Meta(ge=1, le=_MOST_NETWORKS)]
    threads: int
    device: str

    @property
    def text(self) -> str:
        """For the log and the status line."""
        return f"{self.runtime} {self.version}, {self.device or f'{self.networks} x {self.threads}'}"

    @classmethod
    def of(cls, message: Message) -> OpenAnswer:
        """As it was sent. Raises ValueError for a message that makes no sense."""
        return converted(message.body, cls)


def warm_message(runtimes: tuple[str, ...]) -> Message:
    """Ask for no more than the runtime to be imported."""
    return Message({"operation": "warm", "runtimes": list(runtimes)})


def run_message(images: Sequence[NDArray[np.uint8]]) -> Message:
    """Ask for answers to images of one shape."""
    return Message({"operation": "run"}, {"images": np.stack(images)})


def answer_message(answers: Sequence[Answer]) -> Message:
    """Answers to one `run`, in order."""
    arrays: dict[str, NDArray[Any]] = {"scores": np.stack([answer.scores for answer in answers])}
    for name in ("class_maps", "features", "mask", "planes"):
        values = [getattr(answer, name) for answer in answers]
        if values[0] is not None:
            arrays[name] = np.stack(values)
    return Message({"latencies_ms": [answer.latency_ms for answer in answers]}, arrays)


def answers_of(message: Message, *, count: int) -> list[Answer]:
    """The answers to `count` images. Raises `wire.NONSENSE` for a message that makes no sense."""
    scores, latencies_ms = message.arrays["scores"], message.body["latencies_ms"]
    maps, features, mask, planes = (message.arrays.get(name) for name in ("class_maps", "features", "mask", "planes"))
    if not count == len(scores) == len(latencies_ms):
        raise ValueError(f"{len(scores)} answers to {count} images")
    return [
        Answer(
            scores=scores[index],
            class_maps=None if maps is None else maps[index],
            features=None if features is None else features[index],
            mask=None if mask is None else mask[index],
            planes=None if planes is None else planes[index],
            latency_ms=float(latencies_ms[index]),
        )
        for index in range(count)
    ]


def _values(of: InputSpec | OutputRoles) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}
