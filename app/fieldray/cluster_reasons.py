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
    "cluster_node_not_started": "A process of the cluster ({role}) could not be started (exit code {end}). If you named its address and port, check that they are this computer's own and free.",
    "cluster_node_again": "{node} has ended unexpectedly (exit code {end}) and is started again.",
    "cluster_host": "{host} is not an address in numbers. Name this computer's own address in the network of the cluster, for example 192.168.1.10.",
    "cluster_lost": "The connection to the cluster was lost and could not be made again. Results so far are kept: start the same command again to go on.",
    "cluster_node_problem": "{node} cannot be given any work: {detail}",
    "cluster_other_version": "It has {name} {there}, but here it is {here}. Install the same version on every computer.",
    "cluster_no_pack": "It cannot use the pack {pack}: {detail}",
    "cluster_other_pack": "It has another pack under the name {pack}. Install the same pack on every computer.",
    "cluster_other_settings": "It uses other operating points for {pack} than this computer. Make the site's points the same on every computer.",
    "cluster_no_path": "It does not see {path}, or finds it empty. Connect the share there, or send the images with --send-files.",
    "cluster_node_deaths": Plural("Its processes ended {times} time in a row while they screened. Look whether it has enough memory and room on its disk, then start the same command again.", "Its processes ended {times} times in a row while they screened. Look whether it has enough memory and room on its disk, then start the same command again.", by="times"),
    "cluster_clock": Plural("Its clock differs by {difference} second from this computer's.", "Its clock differs by {difference} seconds from this computer's.", by="difference"),
    "archive_in_use": "Another program (process {process}) is working on {folder}. Wait until it is done, or name another folder with --out.",
    "archive_other_work": "{folder} was begun with other paths, another pack ({pack}), other settings or another version of the program. Name another folder with --out.",
    "archive_damaged": "{path} is damaged and cannot be used. Name another folder with --out, or delete this one to begin again.",
    "archive_worker_ended": Plural("Screening this image ended the process that did it, {times} time. The image was left out.", "Screening this image ended the process that did it, {times} times. The image was left out.", by="times"),
    "cluster_certificates": "The folder {folder} holds no usable certificates ({detail}). Make some with: fieldray cluster certificates FOLDER",
    "cluster_certificates_expired": "The certificates in {folder} were valid until {date}. Make new ones with fieldray cluster certificates FOLDER, copy them to every computer, and start the cluster again.",
    "cluster_key_open": "Other users of this computer can read {path}, and with it run programs as you. Take their rights away (chmod 600), or make new certificates with: fieldray cluster certificates FOLDER",
    "cluster_unencrypted": "Name the folder of the certificates with --certificates (made by: fieldray cluster certificates FOLDER). Without them everybody who reaches this computer's port can run programs as you; if that is what you want, name --unencrypted instead.",
    "cluster_certificates_there": "{folder} already contains {name}. Choose an empty folder: certificates that are in use are never replaced.",
    "training_needs_mode": Plural("{workers} worker trains by itself. Choose another mode for several workers.", "{workers} workers need a way to work together. Choose one with --mode: sync-join, sync-split or async.", by="workers"),
    "training_needs_server": "Asynchronous training needs a server for the weights. Choose one with --server: central or distributed.",
    "training_needs_torch": "Training without a server needs PyTorch on every computer. Install it with pip install 'fieldray[torch]', or choose --server central.",
    "training_staleness_sync": "Workers that wait for each other have no gradients that come too late. Leave --staleness out, or choose --mode async.",
    "training_staleness": Plural("With {workers} worker, a staleness below {least} cannot be kept ({staleness} was asked for).", "With {workers} workers that do not wait for each other, gradients are up to {least} updates late even where all are equally fast. Choose a --staleness of {least} or more instead of {staleness}, or --mode sync-join.", by="workers"),
    "training_small_batch": Plural("A batch has {images} image (of a kind), too few for {workers} workers. Use fewer workers or a larger batch.", "A batch has {images} images (of a kind), too few for {workers} workers. Use fewer workers or a larger batch.", by="images"),
    "training_few_batches": Plural("An epoch has {batches} batch, too few for {workers} workers. Use fewer workers or smaller batches.", "An epoch has {batches} batches, too few for {workers} workers. Use fewer workers or smaller batches.", by="batches"),
    "training_few_workers": Plural("{workers} workers are asked for, but the cluster has {there} process. Let more computers join, or ask for fewer workers.", "{workers} workers are asked for, but the cluster has {there} processes. Let more computers join, or ask for fewer workers.", by="there"),
    "training_not_divided": "A recipe of the kind {kind} can only be trained by one process. Leave --mode and --workers out.",
    "training_server_lost": "The process that held the weights has ended. The training is kept up to its last epoch: start the same command again to resume.",
    "training_cluster_lost": "The connection to the cluster was lost. The training is kept up to its last epoch: start the same command again to resume.",
    "training_worker_lost": Plural("Worker {worker} was lost {times} time in one epoch. The training is kept up to its last epoch: start the same command again to resume.", "Worker {worker} was lost {times} times in one epoch. The training is kept up to its last epoch: start the same command again to resume.", by="times"),
    "training_worker_again": "Worker {worker} was lost. Another process takes its place.",
    "training_epoch_again": "A worker was lost in epoch {epoch}, and with it the others' sums. The epoch begins again.",
    "training_workers_lost": Plural("Workers were lost {times} time. The training is kept up to its last epoch: start the same command again to resume.", "Workers were lost {times} times. The training is kept up to its last epoch: start the same command again to resume.", by="times"),
    "training_measured_lost": "The process at {host}, with which transfers are measured, does not answer or has ended. Check that it can be reached, and start the same command again.",
    "training_host_busy": "A process at {host} was to hold the weights, but it is busy with other work or has left the cluster. Wait for that work to end, or let more computers join, and start the same command again.",
    "training_server_unreached": "The processes that hold the weights cannot be reached ({hosts}): {detail}. Check that every computer of the cluster may connect to every other one.",
    "training_node_folder": "{node} cannot read the training's images in {path}. Put the run's folder on a share that every node has at the same place.",
    "training_node_other": "{node} finds other images in {path} than this computer. Put the run's folder on a share that every node has at the same place, and start the same command again.",
    "training_none_elsewhere": "Without a server, PyTorch sends the weights past the cluster's encryption and its certificates. That is for processes of this computer only: leave --cluster and --certificates out, or choose --server central or distributed.",
    "training_diverged_weights": "Training diverged in epoch {epoch}: a weight is not a number. Lower learning_rate in the recipe and run it again. It resumes from the last good epoch.",
    "training_batch_norm": "Note: the network has batch normalisation. Each worker normalises by its own part of a batch, so the result differs a little from training by one process.",
    "training_dropout": "Note: the network has dropout. Each worker draws what it drops by itself, so the result differs a little from training by one process.",
}
