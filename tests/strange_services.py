"""Services of a child process that crash, hang, use much memory, print, or misbehave for some files.

`command` starts them in place of the program's own services in a `Child` or `WorkerPool`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

_MODULE = "fieldray.strange_services"


def command(service: str) -> list[str]:
    """Return the command that serves `service`, which may be a function of this file."""
    return [sys.executable, "-P", str(Path(__file__)), service]


def strange(function: str) -> str:
    """Return the service name of a function of this file."""
    return f"{_MODULE}:{function}"


def reader_command(_service: str) -> list[str]:
    """Return the command of a worker that misbehaves for files with certain names."""
    return command(strange("read"))


if __name__ == "__main__":
    import numpy as np

    from fieldray.errors import Unreadable
    from fieldray.processes import child_main, serving
    from fieldray.processes.wire import Message
    from fieldray.reasons import reason

    def echo(message: Message) -> Message:
        return message

    def act(message: Message) -> Message:
        """Perform the action that the message names."""
        what = message.body["what"]
        if what == "crash":
            os.abort()
        if what == "hang":
            time.sleep(600)
        if what == "balloon":
            return Message({}, {"huge": np.ones(int(message.body["megabytes"]) * 2**17)})
        if what == "refuse":
            raise Unreadable(reason("truncated"))
        if what == "call home":
            socket.create_connection(("127.0.0.1", 9))
        if what == "bug":
            raise KeyError("nobody expected this")
        if what == "ask":
            asked = serving.ask_parent(Message(message.body["question"]))
            return Message({"said": asked.body, "pid": os.getpid()})
        if what == "ask without end":
            while True:
                serving.ask_parent(Message({}))
        if what == "print":
            print("noise on standard output", flush=True)  # noqa: T201
            os.write(1, b"and below Python too\n")
        return Message({"pid": os.getpid()})

    def end(_message: Message) -> Message:
        os.abort()

    def nonsense(message: Message) -> Message:
        return Message({"raised": {"kind": "Unreadable", "code": message.body["code"], "parameters": 7}})

    def read(message: Message) -> Message:
        """Answer as the real worker, except for certain file names. "once" leaves a file and fails only once."""
        from fieldray.workers.image_worker import handle

        value = message.body["value"]
        path = Path((value if isinstance(value, list) else [value])[0]["ref"]["path"])
        if message.body["call"] == "hash":
            return handle(message)
        if "killed" in path.name:
            os.kill(os.getpid(), signal.SIGKILL)
        mark = path.with_suffix(".mark")
        if "crash" in path.name and not ("once" in path.name and mark.exists()):
            mark.touch()
            os.abort()
        if "hang" in path.name:
            path.with_suffix(".hangs").touch()
            time.sleep(600)
        if "balloon" in path.name:
            np.ones(2**33)
        return babbling(handle(message)) if "nonsense" in path.name else handle(message)

    def end_in_classifier(message: Message) -> Message:
        """Answer as `read`, but end when a classifier runs, after the image was read."""
        from fieldray.workers.image_worker import handle

        call, value = message.body["call"], message.body["value"]
        if call == "look":
            read(message)
        if call == "run" or (call == "look" and value[0]["classifier_location"] == "here"):
            serving.announce_stage("inference")
            os.abort()
        return handle(message)

    def end_in_second(message: Message) -> Message:
        """Answer as `read`, but end when the classifier of the second pack runs."""
        from fieldray.workers.image_worker import handle

        if message.body["call"] == "look" and any(
            one["pack_number"] and one["classifier_location"] == "here" for one in message.body["value"]
        ):
            serving.announce_stage("inference")
            os.abort()
        return handle(message)

    def babbling(answer: Message) -> Message:
        """Return the answer with a text for every value, as from a decoder that a hostile file controls."""
        return Message({"call": "", "value": ["nonsense"] * len(answer.body["value"])}, answer.arrays)

    sys.modules[_MODULE] = sys.modules[__name__]
    if sys.argv[1] == strange("babble"):
        sys.stdout.buffer.write(b"Hello! I am no message at all, and I go on and on.\n" * 100)
        sys.stdout.flush()
        time.sleep(600)
    sys.exit(child_main.main())
