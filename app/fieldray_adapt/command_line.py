"""The command `fieldray adapt`, and which of its command lines may use the computer network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

COMMANDS: Final[Mapping[str, str]] = {"adapt": "make a model pack from labelled images"}
IS_TOOLCHAIN: Final = True
# Steps that can train on a cluster. They use the network only if --mode names another mode than "local".
_DIVIDED: Final = frozenset({"run", "train"})


def joins_cluster(arguments: Sequence[str]) -> bool:
    """Return whether a command line connects to the processes of a cluster, or to a server of images."""
    action = arguments[1] if len(arguments) > 1 else ""
    return action in ("fetch", "measure-cluster") or (action in _DIVIDED and _names_other_mode(arguments[2:]))


def _names_other_mode(arguments: Sequence[str]) -> bool:
    modes = [word.partition("=")[2] for word in arguments if word.startswith("--mode=")]
    modes += [mode for word, mode in pairwise(arguments) if word == "--mode"]
    return any(mode != "local" for mode in modes)


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command `adapt` with all of its options to a parser."""
    from fieldray_adapt import adapt_command

    adapt_command.register_commands(commands, COMMANDS["adapt"])
