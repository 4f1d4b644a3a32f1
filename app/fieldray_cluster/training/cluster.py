"""The cluster of a plan: the one at an address, or processes of this computer for its workers and servers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from distributed import Client

from fieldray_cluster.connection import ConnectionSettings, open_client
from fieldray_cluster.training.plan import Plan


def opened(plan: Plan) -> AbstractContextManager[Client]:
    """A client of it; what was started for it ends with the block. Raises UsageProblem, EnvironmentProblem."""
    return open_client(
        ConnectionSettings(address=plan.address, workers=plan.workers + plan.servers, certificates=plan.certificates)
    )
