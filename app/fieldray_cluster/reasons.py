"""The messages of clusters, archives, workflows and training estimates, by code (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "cluster_not_installed": "Working with a cluster needs additional modules ({name} is missing). Install them with: pip install 'fieldray[cluster]'",
    "cluster_address": "{address} is not the address of a scheduler. Write the address in numbers, for example "
                       "{protocol}://192.168.1.10:8786. With certificates the address begins with tls, without "
                       "certificates with tcp.",
    "cluster_no_answer": "No scheduler answers at {address}. Check that the scheduler runs (fieldray cluster "
                         "start), that the address is right, and that both sides use the same certificates.",
    "cluster_other_scheduler": "The versions differ: {there} on the scheduler at {address}, {here} on this "
                               "computer. Install the same version on every computer, and start the cluster again.",
    "cluster_no_worker": "The scheduler at {address} has no workers. Let computers join with: fieldray cluster join {address}",
    "cluster_node_not_started": "A process of the cluster ({role}) could not be started (exit code {end}). If you named its address and port, check that they are this computer's own and free.",
    "cluster_node_again": "{node} has ended unexpectedly (exit code {end}) and is started again.",
    "cluster_host": "{host} is not an address in numbers. Name this computer's own address in the network of the cluster, for example 192.168.1.10.",
    "cluster_lost": "The connection to the cluster was lost. Results so far are kept. Start the same command again "
                    "to continue.",
    "cluster_node_problem": "{node} gets no work: {detail}",
    "cluster_other_version": "The versions differ: {there} on that computer, {here} on this one. Install the same "
                             "versions on every computer.",
    "cluster_no_pack": "That computer cannot use the pack {pack}: {detail}",
    "cluster_other_pack": "That computer has another pack under the name {pack}. Install the same pack on every "
                          "computer.",
    "cluster_other_settings": "That computer has other local operating points for {pack} than this computer. Use "
                              "the same local operating points on every computer.",
    "cluster_no_path": "{path} is missing or empty on that computer. Connect the share on that computer, or send "
                       "the images with --send-files.",
    "cluster_other_answer": "That computer sent an invalid answer. Install the program on that computer again, "
                            "and start the program again.",
    "cluster_silent": Plural("A process on that computer did not answer for {minutes} minute.",
                             "A process on that computer did not answer for {minutes} minutes.", by="minutes"),
    "cluster_no_reply": "A process on that computer does not answer, and gets no work before the process answers. "
                        "Check whether that computer sleeps, or start the program there again.",
    "cluster_node_deaths": Plural("The processes on that computer ended {times} time during screening. Check its "
                                  "memory and disk space, then start the same command again.",
                                  "The processes on that computer ended {times} times in a row during screening. "
                                  "Check its memory and disk space, then start the same command again.", by="times"),
    "cluster_clock": Plural("The clock of that computer differs by {difference} second from the clock of this "
                            "computer.", "The clock of that computer differs by {difference} seconds from the clock "
                                         "of this computer.", by="difference"),
    "archive_in_use": "Another program (process {process}) is working on {folder}. Wait until that program is done, "
                      "or name another folder with --out.",
    "archive_other_work": "{folder} was begun with other paths, another pack ({pack}), other settings or another version of the program. Name another folder with --out.",
    "archive_damaged": "{path} is damaged and cannot be used. Name another folder with --out, or delete the folder "
                       "to begin again.",
    "archive_list_lost": "The list of images in {folder} is missing, but the folder has results. Restore {name}. To "
                         "begin again, name another folder with --out, or delete the folder.",
    "archive_failed": Plural("{count} image failed. Start the same command again to retry.",
                             "{count} images failed. Start the same command again to retry.", by="count"),
    "archive_one_address": "Name a single address of objects, without other paths and without --send-files. Every "
                           "computer reads the objects from the server.",
    "archive_no_protocol": "The address {address} is not supported. Supported addresses begin with: s3, http, "
                           "https, sftp.",
    "archive_no_library": "{address} cannot be read: {detail}. Install the missing module.",
    "archive_password": "Leave the password out of the address: results would show the password. Write the password "
                        "into ~/.config/fsspec (for example {protocol}.json).",
    "archive_no_tag": "The server gives no size or no date of change of {address} (ETag or Last-Modified), so a "
                      "changed image could not be detected.",
    "archive_not_listed": "The server does not let you list {address}. Check the name, your credentials and your rights.",
    "archive_server_gone": "{address} cannot be reached: {detail}. Check the address, the network and your "
                           "credentials. Results so far are kept. Start the same command again to continue.",
    "archive_server_awaited": "That computer cannot reach the server of the objects, and retries for up to 5 "
                              "minutes. Check the network, the address and the credentials on that computer.",
    "archive_object_changed": "The object has changed since the list was made. To screen the new content, name "
                              "another folder with --out.",
    "archive_object_large": "The object is too large to be downloaded: {size_mb} MB, at most {limit_mb} MB.",
    "archive_worker_ended": Plural("Screening this image crashed the process {times} time. The image was left out.",
                                   "Screening this image crashed the process {times} times. The image was left out.",
                                   by="times"),
    "cluster_certificates": "The folder {folder} has no usable certificates ({detail}). Make certificates with: "
                            "fieldray cluster certificates FOLDER",
    "cluster_certificates_expired": "The certificates in {folder} were valid until {date}. Make new ones with fieldray cluster certificates FOLDER, copy them to every computer, and start the cluster again.",
    "cluster_key_open": "Other users of this computer can read {path} and run programs as you. Remove their rights "
                        "(chmod 600), or make new certificates with: fieldray cluster certificates FOLDER",
    "cluster_unencrypted": "Name the folder of the certificates with --certificates (made by: fieldray cluster "
                           "certificates FOLDER). Without certificates, everybody who reaches the port of this "
                           "computer can run programs as you. To allow that, use --unencrypted.",
    "cluster_certificates_there": "{folder} already contains {name}. Choose an empty folder: certificates that are in use are never replaced.",
    "training_needs_mode": Plural("{workers} worker trains alone. Choose another mode for several workers.",
                                  "{workers} workers need a mode. Choose one with --mode: sync-join, sync-split or "
                                  "async.", by="workers"),
    "training_staleness_sync": "--staleness needs --mode async: in the other modes the workers wait for each other. "
                               "Remove --staleness, or choose --mode async.",
    "training_staleness": Plural("With {workers} worker in --mode async, gradients are up to {least} updates late. "
                                 "Replace --staleness {staleness} by {least} or more, or choose --mode sync-join.",
                                 "With {workers} workers in --mode async, gradients are up to {least} updates late, "
                                 "even where all are equally fast. Replace --staleness {staleness} by {least} or "
                                 "more, or choose --mode sync-join.", by="workers"),
    "training_small_batch": Plural("A batch has {images} image per class, too few for {workers} workers. Use fewer "
                                   "workers or a larger batch.",
                                   "A batch has {images} images per class, too few for {workers} workers. Use fewer "
                                   "workers or a larger batch.", by="images"),
    "training_few_batches": Plural("An epoch has {batches} batch, too few for {workers} workers. Use fewer workers "
                                   "or smaller batches.",
                                   "An epoch has {batches} batches, too few for {workers} workers. Use fewer "
                                   "workers or smaller batches.", by="batches"),
    "training_few_workers": Plural("{workers} workers are asked for, but the cluster has {there} process. Let more "
                                   "computers join, or ask for fewer workers.",
                                   "{workers} workers are asked for, but the cluster has {there} processes. Let "
                                   "more computers join, or ask for fewer workers.", by="there"),
    "training_server_lost": "The process with the weights has ended. Training is saved up to the last epoch. Start "
                            "the same command again to resume.",
    "training_worker_lost": Plural("Worker {worker} was lost {times} time in one epoch. Training is saved up to the "
                                   "last epoch. Start the same command again to resume.",
                                   "Worker {worker} was lost {times} times in one epoch. Training is saved up to "
                                   "the last epoch. Start the same command again to resume.", by="times"),
    "training_worker_again": "Worker {worker} was lost. Another process takes its place.",
    "training_measured_lost": "The process at {host} for measuring transfers does not answer or has ended. Check "
                              "that {host} can be reached, and start the same command again.",
    "training_host_busy": "The process at {host} for the weights is busy with other work or has left the cluster. "
                          "Wait for that work to end, or let more computers join, and start the same command again.",
    "training_server_unreached": "The processes that hold the weights cannot be reached ({hosts}): {detail}. Check that every computer of the cluster may connect to every other one.",
    "training_node_folder": "{node} cannot read the training images in {path}. Put the folder of the run on a share "
                            "that every node mounts at the same path.",
    "training_node_other": "{node} has other images in {path} than this computer. Put the folder of the run on a "
                           "share that every node mounts at the same path, and start the same command again.",
    "training_diverged_weights": "Training diverged in epoch {epoch}: a weight is not a number. Lower learning_rate "
                                 "in the recipe and run the recipe again. Training resumes from the last good "
                                 "epoch.",
    "training_batch_norm": "Note: the network has batch normalisation. Each worker normalises its own part of a "
                           "batch, so the result differs a little from training in one process.",
    "training_dropout": "Note: the network has dropout. Each worker draws its own dropout masks, so the result "
                        "differs a little from training in one process.",
    "workflow_blocked": "Not started, because {parent} failed. Look for the cause with: fieldray workflow status "
                        "RECIPE --task {parent}. Then run the workflow again.",
    "workflow_other_answer": "The cluster returned the answer of another task. Run the workflow again. If that "
                             "happens again, restart the cluster.",
    "workflow_exit": "The command ended with the exit code {exit_code}.",
    "workflow_signal": "The command was ended by the signal {number}.",
    "workflow_not_started": "The command could not be started on {node}: {detail}.",
    "workflow_worker_lost": Plural("The process of this task crashed {count} time.",
                                   "The processes of this task crashed {count} times.", by="count"),
    "workflow_stopped": "Stopped before the task ended.",
    "workflow_node_failed": "{node} could not run the task: {detail}.",
    "workflow_input_missing": "{path} does not exist.",
    "workflow_node_folder": "{node} cannot read {path}. Put the folder of the recipe on a share that every node "
                            "mounts at the same path.",
    "workflow_not_running": "Nothing is running in {path}.",
    "workflow_no_run": "There is no run of this recipe yet ({path}).",
    "workflow_journal": "The journal {path} is damaged in line {line}. Delete that line and run the same command "
                        "again. Finished tasks are kept.",
    "workflow_no_task": "There is no task {task} in this workflow.",
    "workflow_is_sweep": "{path} has a table [sweep]. Use: fieldray workflow sweep {path}",
    "workflow_no_sweep": "{path} has no table [sweep].",
    "sweep_differs": "The sweep in {path} was begun with other settings, other data or another version of the "
                     "program. Use another folder, or delete this folder.",
    "sweep_diverged": "The trial has no {metric} in its history.",
    "sweep_none": "No trial of the sweep finished, so there is no winner. Look for the cause with: fieldray "
                  "workflow status RECIPE. Then raise trials in the recipe and run the sweep again.",
    "estimate_workers": "{workers} workers are more than {batches} batches, so some workers would be idle. Use at "
                        "most as many workers as batches.",
    "estimate_most_workers": "The time of {workers} workers cannot be estimated. The limit is {limit} workers.",
    "estimate_best": "With {mode}, training is fastest on {workers} workers with {server}: {speed_up} times as fast as on one machine.",
    "estimate_one_machine": Plural("Train on one machine. With {mode}, {workers} worker is not faster.",
                                   "Train on one machine. With {mode}, no number of workers up to {workers} is "
                                   "faster.", by="workers"),
    "estimate_fewest": "Nine tenths of that speed are reached with {workers} workers and {server}: {speed_up} times "
                       "as fast as on one machine.",
    "estimate_second": "Two workers with {server} are {speed_up} times as fast as one machine.",
    "estimate_second_not": "A second machine is not worth adding: two workers with {server} are {speed_up} times "
                           "as fast as one machine.",
}
# fmt: on
