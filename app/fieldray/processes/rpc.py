"""Calls to a child process: what is asked and what comes back, as frozen dataclasses.

A call is described once, and both sides use the description. Arrays travel beside the JSON, paths as text. What comes
back may have been shaped by a hostile file: it is taken for what its type says, and raises `wire.NONSENSE` where it is
anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, get_origin

import msgspec

from fieldray.domain.events import Count
from fieldray.errors import FieldrayError, shortage, unexpected
from fieldray.processes.child import Child, ChildLost
from fieldray.processes.wire import Message
from fieldray.reasons import reason
from fieldray.typed_json import converted

if TYPE_CHECKING:
    from fieldray.processes.wire import Array

Q = TypeVar("Q")
A = TypeVar("A")

_CALL: Final = "call"
_VALUE: Final = "value"
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """One thing that a child does: its name, and the types of the question and of the answer."""

    name: str
    question: type[Q]
    answer: type[A]

    def ask(self, child: Child, question: Q, *, timeout_s: float) -> A:
        """What a child answers. Raises as `Child.ask`."""
        return child.ask(sent(question, call=self.name), self.answered, timeout_s=timeout_s)

    def apart(self, child: Child, question: Q, *, progress: Count, timeout_s: float) -> A:
        """What a child answers that is started for this alone; `progress` hears how far it is (`announce("3/12")`).

        Whoever wants it no more raises in `progress`: the process is killed. Raises EnvironmentProblem where none can
        be started, FieldrayError where it was lost, and what it raised itself.
        """
        try:
            child.start()
            with ThreadPoolExecutor(1, thread_name_prefix=self.name) as asking:
                answer = asking.submit(self.ask, child, question, timeout_s=timeout_s)
                try:
                    while not wait([answer], timeout=_LOOK_S).done:
                        done, _, total = child.stage.partition("/")
                        progress(int(done or 0), int(total or 0))
                except BaseException:
                    child.kill()
                    raise
                return answer.result()
        except OSError as error:
            raise shortage(error) or FieldrayError(unexpected(error)) from error
        except ChildLost as error:
            raise FieldrayError(reason("internal", detail=str(error))) from error
        finally:
            child.close()

    def answered(self, message: Message) -> A:
        """What a message says. Raises `wire.NONSENSE`."""
        return received(message, self.answer)


def served(*calls: tuple[Call[Any, Any], Callable[[Any], Any]]) -> Callable[[Message], Message]:
    """The handler of a child that does these calls, each by a function from question to answer."""
    table: Mapping[str, tuple[Call[Any, Any], Callable[[Any], Any]]] = {call.name: (call, do) for call, do in calls}

    def handle(message: Message) -> Message:
        call, do = table[message.body[_CALL]]
        return sent(do(received(message, call.question)))

    return handle


def sent(value: Any, *, call: str = "") -> Message:
    """A value as it travels: a dataclass of plain values, arrays and paths, or of further ones."""
    arrays: dict[str, Array] = {}

    def replaced(part: Any) -> Any:
        if isinstance(part, Path):
            return str(part)
        import numpy as np

        if not isinstance(part, np.ndarray):
            raise TypeError(f"{type(part).__name__} does not travel")
        name = str(len(arrays))
        arrays[name] = part
        return name

    return Message({_CALL: call, _VALUE: msgspec.to_builtins(value, enc_hook=replaced)}, arrays)


def received(message: Message, kind: type[A]) -> A:
    """The value that was sent. Raises ValueError and LookupError for what is not of this type."""
    arrays = message.arrays

    def found(of: Any, part: Any) -> Any:
        if of is object:
            return part
        if of is Path:
            return Path(part)
        array = arrays[part]
        wanted = get_args(get_args(of)[1])[0] if get_origin(of) else Any
        if wanted is not Any and array.dtype != wanted:
            raise ValueError(f"an array of {array.dtype}")
        return array

    return converted(message.body[_VALUE], kind, found)
