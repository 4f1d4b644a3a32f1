"""The sentences of the cluster and of archives screened by it (see `reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.sentence import Plural, Template

# fmt: off
CLUSTER: Final[Mapping[str, Template]] = {
    "cluster_not_installed": "Working with a cluster needs additional modules ({name} is missing). Install them with: pip install 'fieldray[cluster]'",
    "cluster_address": "{address} is not the address of a scheduler. Write it in numbers, for example {protocol}://192.168.1.10:8786. With certificates it begins with tls, without with tcp.",
    "cluster_no_answer": "No scheduler answers at {address}. Check that it runs there (fieldray cluster start), that the address is right, and that both sides use the same certificates.",
    "cluster_no_worker": "The scheduler at {address} has no workers. Let computers join with: fieldray cluster join {address}",
    "cluster_node_not_started": "A process of the cluster ({role}) could not be started. If you named its address and port, check that they are this computer's own and free.",
    "cluster_node_again": "{node} has ended unexpectedly and is started again.",
    "cluster_certificates": "The folder {folder} holds no usable certificates ({detail}). Make some with: fieldray cluster certificates FOLDER",
    "cluster_certificates_there": "{folder} already contains {name}. Choose an empty folder: certificates that are in use are never replaced.",
}
