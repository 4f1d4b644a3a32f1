"""The command `fieldray cluster`, which starts, joins, inspects and stops a cluster.

The module also has the options of other commands that use a cluster."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.commands.console import Console, add_command, add_command_group, parse_path_option
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray_cluster.certificates import CertificateRole
    from fieldray_cluster.connection import ConnectionSettings
    from fieldray_cluster.node import NodeProcess

_DEFAULT_PORT: Final = 8786
_TICK_S: Final = 0.5


def register_commands(commands: argparse._SubParsersAction[Any], summary: str) -> None:
    """Add the command `cluster` and its subcommands to a parser."""
    actions = add_command_group(commands, "cluster", summary)
    start = add_command(actions, "start", "start the scheduler that other computers join", run=run_start)
    start.add_argument("--host", required=True, metavar="ADDRESS", help="IP address of this computer")
    start.add_argument(
        "--port", type=whole_number(1, 65535), default=_DEFAULT_PORT, metavar="N", help="the port (default: 8786)"
    )
    _add_member_options(start)
    join = add_command(actions, "join", "join a scheduler as a worker", run=run_join)
    join.add_argument("address", metavar="HOST:PORT", help="IP address and port of the scheduler")
    join.add_argument("--host", required=True, metavar="ADDRESS", help="IP address of this computer")
    join.add_argument(
        "--workers", type=whole_number(1, 256), default=1, metavar="N", help="number of worker processes (default: 1)"
    )
    join.add_argument(
        "--name", default="", metavar="NAME", help="name of this computer in the cluster (default: the host name)"
    )
    _add_member_options(join)
    for name, text, run in (
        ("status", "list the computers of a cluster", run_status),
        ("stop", "stop a cluster", run_stop),
    ):
        action = add_command(actions, name, text, run=run)
        action.add_argument("address", metavar="HOST:PORT", help="IP address and port of the scheduler")
        _add_certificates_option(action)
    text = "make certificates for a cluster; copy them to each computer"
    make = add_command(actions, "certificates", text, run=run_certificates)
    make.add_argument("folder", type=parse_path_option, metavar="DIR", help="the folder to write to")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which a command uses a cluster: `--workers`, `--cluster`, `--certificates`."""
    parser.add_argument(
        "--workers",
        type=whole_number(1, 256),
        default=1,
        metavar="N",
        help="number of processes on this computer, if --cluster is not given (default: 1)",
    )
    add_cluster_options(parser)


def add_cluster_options(parser: argparse._ActionsContainer) -> None:
    """Add the options for the connection to a cluster at an address: `--cluster`, `--certificates`."""
    parser.add_argument("--cluster", metavar="HOST:PORT", help="IP address and port of the scheduler")
    _add_certificates_option(parser)


def connection_settings(options: argparse.Namespace) -> ConnectionSettings:
    """Return the settings for a connection to the cluster that the command-line options describe."""
    from fieldray_cluster.connection import ConnectionSettings

    return ConnectionSettings(address=options.cluster, workers=options.workers, certificates=options.certificates)


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a type function for argparse, which parses a whole number from `minimum` to `maximum`."""

    def number(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= len(str(maximum)) and minimum <= int(text) <= maximum:
            return int(text)
        raise argparse.ArgumentTypeError(f"a whole number from {minimum} to {maximum} is needed, not {text}")

    return number


@contextlib.contextmanager
def importing_cluster_modules() -> Iterator[None]:
    """Run a block that imports modules for clusters.

    If a module is missing, raises UsageProblem (cluster_not_installed, adapt_not_installed), whose text tells how to
    install the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        is_cluster = str(error.name).partition(".")[0] in ("dask", "distributed", "fsspec", "optuna", "pyarrow")
        code = "cluster_not_installed" if is_cluster else "adapt_not_installed"
        raise UsageProblem(reason(code, name=error.name)) from error


def run_start(options: argparse.Namespace, console: Console) -> int:
    """Run `cluster start`, which runs the scheduler of a cluster until Ctrl-C or `cluster stop`.

    Returns the exit code. Raises UsageProblem, EnvironmentProblem.
    """
    with importing_cluster_modules():
        from fieldray_cluster.node import NodeGroup, NodeSettings

    _require_member(options, console)
    settings = NodeSettings(
        role="scheduler",
        host=options.host,
        port=options.port,
        allowed_networks=(options.host, *options.network),
        certificates=_text(options.certificates),
        is_unencrypted=options.unencrypted,
    )
    with NodeGroup() as nodes:
        node = nodes.add(settings, warn=console.print_error)
        address = node.wait_for_address()
        console.print_line(f"The cluster is at {address}. Other computers join with: fieldray cluster join {address}")
        _wait_for_end(node)
    return 0


def run_join(options: argparse.Namespace, console: Console) -> int:
    """Run `cluster join`, which runs workers for a scheduler until Ctrl-C or `cluster stop`.

    Returns the exit code. Raises UsageProblem, EnvironmentProblem.
    """
    with importing_cluster_modules():
        from fieldray.paths import scratch_folder
        from fieldray_cluster.connection import (
            core_count_per_worker,
            full_address,
            host_of,
            open_client,
            scheduler_clock_text,
        )
        from fieldray_cluster.node import NodeGroup, NodeSettings

    _require_member(options, console)
    address = full_address(options.address, options.certificates)
    name = options.name or platform.node() or options.host
    with open_client(_to_look(options, "node")) as client:
        console.print_line(f"The scheduler: {scheduler_clock_text(client)}")
    with scratch_folder() as scratch, NodeGroup() as nodes:
        started = [
            nodes.add(
                NodeSettings(
                    role="worker",
                    host=options.host,
                    scheduler=address,
                    name=f"{name}/{number}",
                    allowed_networks=(options.host, host_of(address), *options.network),
                    certificates=_text(options.certificates),
                    is_unencrypted=options.unencrypted,
                    scratch_folder=str(scratch),
                    core_count=core_count_per_worker(options.workers),
                ),
                warn=console.print_error,
            )
            for number in range(1, options.workers + 1)
        ]
        for node in started:
            node.wait_for_address()
        console.print_line(f"{name} works for {address}.")
        _wait_for_end(*started)
    return 0


def run_status(options: argparse.Namespace, console: Console) -> int:
    """Run `cluster status`, which lists the workers of a cluster. Returns the exit code.

    Raises UsageProblem, EnvironmentProblem.
    """
    with importing_cluster_modules():
        from fieldray_cluster.connection import describe_cluster, open_client

    _print_certificates(options, console, "client")
    with open_client(_to_look(options, "client")) as client:
        console.print_lines(describe_cluster(client))
    return 0


def run_stop(options: argparse.Namespace, console: Console) -> int:
    """Run `cluster stop`, which ends the scheduler and all workers of a cluster.

    Returns the exit code. Raises UsageProblem, EnvironmentProblem.
    """
    with importing_cluster_modules():
        from fieldray_cluster.connection import open_client

    with open_client(_to_look(options, "client")) as client:
        client.shutdown()
    console.print_line("The cluster was stopped.")
    return 0


def run_certificates(options: argparse.Namespace, console: Console) -> int:
    """Run `cluster certificates`, which makes the certificates of a cluster. Returns the exit code.

    Raises UsageProblem, StorageProblem.
    """
    with importing_cluster_modules():
        from fieldray_cluster.certificates import make_certificates

    for path in make_certificates(options.folder):
        console.print_line(f"Written: {path}")
    console.print_line("Copy the folder to each computer of the cluster. Everybody who has the folder can join.")
    console.print_line("A computer that only gives out work needs no node.pem and no node.key.")
    return 0


def _to_look(options: argparse.Namespace, role: CertificateRole) -> ConnectionSettings:
    """Return connection settings for commands that only inspect or stop a cluster.

    With these settings, a cluster without workers or of another program version is no problem.
    """
    from fieldray_cluster.connection import ConnectionSettings

    return ConnectionSettings(address=options.address, certificates=options.certificates, role=role, needs_worker=False)


def _wait_for_end(*nodes: NodeProcess) -> None:
    """Wait until all cluster processes have ended. After Ctrl-C, the processes are ended in an orderly way."""
    with contextlib.suppress(KeyboardInterrupt):
        while not all(node.wait(_TICK_S) for node in nodes):
            pass


def _add_member_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a computer that belongs to a cluster: its address, reachable networks, and encryption."""
    parser.add_argument(
        "--network",
        action="append",
        type=_network,
        default=[],
        metavar="NETWORK",
        help="IP network of the other computers (192.168.1.0/24); other networks are never contacted; may be repeated",
    )
    _add_certificates_option(parser)
    parser.add_argument(
        "--unencrypted",
        action="store_true",
        help="work without certificates: everybody who reaches the port of this computer can run programs as you",
    )


def _add_certificates_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--certificates", type=parse_path_option, metavar="DIR", help="encrypt with the certificates in this folder"
    )


def _require_member(options: argparse.Namespace, console: Console) -> None:
    """Check the options of a computer that belongs to a cluster.

    Raises UsageProblem: cluster_unencrypted unless exactly one of `--certificates` and `--unencrypted` is given,
    cluster_host if `--host` is no numeric IP address, and the reasons of `require_certificates`.
    """
    from fieldray_cluster.connection import is_ip_address

    if bool(options.certificates) == options.unencrypted:
        raise UsageProblem(reason("cluster_unencrypted"))
    _print_certificates(options, console, "node")
    if not is_ip_address(options.host):
        raise UsageProblem(reason("cluster_host", host=options.host))


def _print_certificates(options: argparse.Namespace, console: Console, role: CertificateRole) -> None:
    from fieldray_cluster.certificates import certificate_text

    if options.certificates:
        console.print_line(certificate_text(options.certificates, role))


def _text(path: Path | None) -> str | None:
    return str(path.absolute()) if path else None


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        with contextlib.suppress(ValueError):
            meant = ipaddress.ip_network(text, strict=False)
            raise argparse.ArgumentTypeError(f"{text} is an address within a network; is {meant} meant?") from error
        raise argparse.ArgumentTypeError(f"{text} is not a numeric IP network, such as 192.168.1.0/24") from error
