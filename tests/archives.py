"""Archives and clusters for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fieldray_cluster.archive_worker import ArchiveRequest
from fieldray_cluster.connection import ConnectionSettings
from fieldray_cluster.node import NodeGroup, NodeProcess, NodeSettings


def archive_request(*paths: object, **changes: object) -> ArchiveRequest:
    """Return a request for an archive with these paths. Its pack does not exist."""
    values = {
        "paths": tuple(map(str, paths)),
        "pack": "none-1.0.0",
        "pack_name": "none-1.0.0",
        "model_sha256": "0" * 64,
        "settings_hash": "0" * 64,
        "operating_point": None,
        "ages_confirmed": False,
        "settings": (("device", "cpu"), ("keep_previews", True)),
    }
    return ArchiveRequest(**{**values, **changes})  # type: ignore[arg-type]


def worker(name: str, scheduler: str, scratch: Path) -> NodeSettings:
    """Return the settings of a worker whose scheduler has unencrypted connections."""
    return NodeSettings(role="worker", is_unencrypted=True, scheduler=scheduler, name=name, scratch_folder=str(scratch))


@contextlib.contextmanager
def cluster_of_nodes(
    folder: Path, *names: str, patience_s: float = 2.0
) -> Iterator[tuple[NodeGroup, NodeProcess, ConnectionSettings]]:
    """Start a cluster with these workers for the block. Yields its processes, its scheduler, and the connection
    settings.
    """
    with NodeGroup() as nodes:
        scheduler = nodes.add(NodeSettings(role="scheduler", is_unencrypted=True))
        address = scheduler.wait_for_address()
        for name in names:
            nodes.add(worker(name, address, folder / "scratch"))
        yield nodes, scheduler, ConnectionSettings(address=address, scheduler_timeout_s=patience_s)
