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
    "cluster_other_scheduler": "The scheduler at {address} has {there}, but here it is {here}. Install the same version on every computer, and start the cluster again.",
    "cluster_no_worker": "The scheduler at {address} has no workers. Let computers join with: fieldray cluster join {address}",
    "cluster_node_not_started": "A process of the cluster ({role}) could not be started. If you named its address and port, check that they are this computer's own and free.",
    "cluster_node_again": "{node} has ended unexpectedly and is started again.",
    "cluster_host": "{host} is not an address in numbers. Name this computer's own address in the network of the cluster, for example 192.168.1.10.",
    "cluster_lost": "The connection to the cluster was lost and could not be made again. Results so far are kept: start the same command again to go on.",
    "cluster_node_problem": "{node} cannot be given any work: {detail}",
    "cluster_other_version": "It has {name} {there}, but here it is {here}. Install the same version on every computer.",
    "cluster_no_pack": "It cannot use the pack {pack}: {detail}",
    "cluster_other_pack": "It has another pack under the name {pack}. Install the same pack on every computer.",
    "cluster_other_settings": "It uses other operating points for {pack} than this computer. Make the site's points the same on every computer.",
    "cluster_no_path": "It does not see {path}, or finds it empty. Connect the share there, or send the images with --send-files.",
    "cluster_clock": Plural("Its clock differs by {difference} second from this computer's.", "Its clock differs by {difference} seconds from this computer's.", by="difference"),
    "archive_in_use": "Another program (process {process}) is working on {folder}. Wait until it is done, or name another folder with --out.",
    "archive_other_work": "{folder} was begun with other paths, another pack ({pack}), other settings or another version of the program. Name another folder with --out.",
    "archive_damaged": "{path} is damaged and cannot be used. Name another folder with --out, or delete this one to begin again.",
    "archive_worker_ended": Plural("Screening this image ended the process that did it, {times} time. The image was left out.", "Screening this image ended the process that did it, {times} times. The image was left out.", by="times"),
    "cluster_certificates": "The folder {folder} holds no usable certificates ({detail}). Make some with: fieldray cluster certificates FOLDER",
    "cluster_certificates_there": "{folder} already contains {name}. Choose an empty folder: certificates that are in use are never replaced.",
}
