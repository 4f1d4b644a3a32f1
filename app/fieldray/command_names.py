"""The names of all commands: those of this package, and those of two optional packages.

The optional package `fieldray_adapt` makes packs, and `fieldray_cluster` distributes work over processes and machines.
The installed program contains neither. Both packages are found by their names alone: code of any other distribution is
never loaded (see `registry`). In its module `command_line`, each optional package lists its commands, and says which of
them may use the network. This list is read before any large module is imported, and before the guard of `offline` is
active.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    import argparse

# Name of each command, and its line in the list of commands.
BUILTIN_COMMANDS: Final[Mapping[str, str]] = {
    "screen": "screen images, folders, DICOMDIRs and zip files",
    "demo": "screen openly licensed images and show the result",
    "compare": "align a prior image with the current one and show the differences",
    "audit": "measure a pack on your own images with known labels",
    "history": "list, show, compare, export or delete past runs",
    "store": "check, compact, back up or restore the results database",
    "packs": "list, verify, trust and install model packs",
    "constancy": "run the constancy test of each pack",
    "doctor": "check whether this computer can screen images, and report what to change",
    "bench": "measure how fast this computer runs the packs",
}
# A command `NAME` is in the module `commands.NAME`, except for the commands of this table.
MODULE_OF_COMMAND: Final[Mapping[str, str]] = {
    "store": "history",
    "constancy": "packs",
    "demo": "screen",
    "doctor": "bench",
}
OPTIONAL_PACKAGES: Final = ("fieldray_adapt", "fieldray_cluster")


class CommandLineModule(Protocol):
    """The interface of the module `command_line` in an optional package.

    COMMANDS      a line of help for each command
    IS_TOOLCHAIN  whether the package is the toolchain that makes packs, which imports TensorFlow
    """

    COMMANDS: Mapping[str, str]
    IS_TOOLCHAIN: bool  # see `offline.stay_offline`

    def joins_cluster(self, arguments: Sequence[str]) -> bool:
        """Return whether a command line connects to a cluster or a server, so that its process needs the network.

        arguments  the command line, which begins with a command of the optional package
        """

    def register_commands(self, commands: argparse._SubParsersAction[Any]) -> None:
        """Add the commands of the optional package, with all their options, to the parser."""


def modules_of_optional_packages(name: str) -> Iterator[ModuleType]:
    """Yield the module named `name` from each installed optional package that has such a module."""
    for package in OPTIONAL_PACKAGES:
        try:
            yield import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != package:
                raise


@functools.cache
def command_line_modules() -> tuple[CommandLineModule, ...]:
    """Return the modules `command_line` of the installed optional packages."""
    return tuple(cast("CommandLineModule", module) for module in modules_of_optional_packages("command_line"))


def command_line_module_of(name: str) -> CommandLineModule | None:
    """Return the module `command_line` of the optional package with the command `name`; None without such a package."""
    return (
        next((each for each in command_line_modules() if name in each.COMMANDS), None)
        if name not in BUILTIN_COMMANDS
        else None
    )


def is_command(name: str) -> bool:
    """Return whether the program, or an installed optional package, has a command of this name."""
    return name in BUILTIN_COMMANDS or command_line_module_of(name) is not None


def opens_window(arguments: Sequence[str]) -> bool:
    """Return whether the command line shows a window in this process."""
    return has_only_image_paths(arguments) or (arguments[0] == "demo" and "--no-window" not in arguments)


def has_only_image_paths(arguments: Sequence[str]) -> bool:
    """Return whether the command line is empty, or names only existing files and folders for the window to screen.

    A word that is the name of a command always means the command. To open a folder of that name, write `./screen`.
    """
    return not (arguments and is_command(arguments[0])) and all(
        not argument.startswith("-") and os.path.exists(argument)  # noqa: PTH110 - Path.exists raises for a long name
        for argument in arguments
    )
