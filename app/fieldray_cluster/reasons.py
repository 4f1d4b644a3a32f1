"""The messages of clusters, archives, workflows and training estimates, by code (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "cluster_not_installed": "Working with a cluster needs additional modules ({name} is missing). Install the "
                             "modules with: pip install 'fieldray[cluster]'",
    "cluster_address": "{address} is not the address of a scheduler. Write a numeric IP address and a port, for "
                       "example {protocol}://192.168.1.10:8786. The address begins with tls if the cluster uses "
                       "certificates, and with tcp if not.",
    "cluster_no_answer": "No scheduler answers at {address}. Check that the scheduler runs (fieldray cluster start) "
                         "and that the address is correct. Check that both computers use the same certificates.",
    "cluster_other_scheduler": "The program versions differ: {there} on the scheduler at {address}, {here} on this "
                               "computer. Install the same version on every computer, and start the cluster again.",
    "cluster_no_worker": "The scheduler at {address} has no workers. Let computers join with: fieldray cluster join {address}",
    "cluster_node_not_started": "A process of the cluster ({role}) could not be started (exit code {end}). If you "
                                "named an address and a port, check that the address belongs to this computer and "
                                "that the port is free.",
    "cluster_node_again": "The process {node} ended unexpectedly (exit code {end}) and is being started again.",
    "cluster_host": "{host} is not a numeric IP address. Name this computer's own address in the network of the "
                    "cluster, for example 192.168.1.10.",
    "cluster_lost": "The connection to the cluster was lost. Results so far are kept. To continue, start the "
                    "command again.",
    "cluster_node_problem": "The node {node} gets no work: {detail}",
    "cluster_other_version": "The program versions differ: {there} on the node, {here} on this computer. Install "
                             "the same versions on every computer.",
    "cluster_no_pack": "The node cannot use the pack {pack}: {detail}",
    "cluster_other_pack": "The node has another pack under the name {pack}. Install the same pack on every computer.",
    "cluster_other_settings": "The node and this computer have different local operating points (thresholds chosen in "
                              "audits) for {pack}. Use the same local operating points on every computer.",
    "cluster_no_path": "The folder {path} is missing or empty on the node. Mount the shared folder on the node, or "
                       "send the images with --send-files.",
    "cluster_other_answer": "The node sent an invalid answer. Install the program on the node again. Then start the "
                            "node again.",
    "cluster_silent": Plural("A process on the node did not answer for {minutes} minute.",
                             "A process on the node did not answer for {minutes} minutes.", count_parameter="minutes"),
    "cluster_no_reply": "A process on the node does not answer, so the process gets no work. Check whether the "
                        "computer of the node is asleep, or start the node again.",
    "cluster_node_deaths": Plural("The processes on the node ended {times} time during screening. Check the memory "
                                  "and disk space of the node, then start the command again.",
                                  "The processes on the node ended {times} times in a row during screening. Check "
                                  "the memory and disk space of the node, then start the command again.", count_parameter="times"),
    "cluster_clock": Plural("The clock of the node differs by {difference} second from the clock of this computer.", "The clock of the node differs by {difference} seconds from the clock of "
                                         "this computer.", count_parameter="difference"),
    "archive_in_use": "Another program (process {process}) is working on {folder}. Wait until the other program is "
                      "done, or name another folder with --out.",
    "archive_other_work": "The run in {folder} was begun with other paths, another pack ({pack}), other settings or "
                          "another version of the program. Name another folder with --out.",
    "archive_damaged": "{path} is damaged and cannot be used. Name another folder with --out, or delete the folder "
                       "to begin again.",
    "archive_list_lost": "The list of images in {folder} is missing, but the folder has results. Restore the file "
                         "{name}. To begin again, name another folder with --out, or delete the folder {folder}.",
    "archive_failed": Plural("{count} image failed. To try the image again, start the command again.",
                             "{count} images failed. To try these images again, start the command again.", count_parameter="count"),
    "archive_one_address": "To screen images on a server, name only the address of these images, without other "
                           "paths and without --send-files. Every computer reads the images from the server itself.",
    "archive_no_protocol": "The address {address} is not supported. Supported addresses begin with: s3, http, "
                           "https, sftp.",
    "archive_no_library": "{address} cannot be read: {detail}. Install the missing module.",
    "archive_password": "Leave the password out of the address: results would show the password. Write the password "
                        "into ~/.config/fsspec (for example {protocol}.json).",
    "archive_no_tag": "The server does not state the size of {address}, or sends neither an ETag nor a "
                      "Last-Modified header. The program could not detect a change of the image, so the image "
                      "cannot be screened.",
    "archive_not_listed": "The server does not let you list the files of {address}. Check the address, your "
                          "credentials and your rights.",
    "archive_server_gone": "{address} cannot be reached: {detail}. Check the address, the network and your "
                           "credentials. Results so far are kept. To continue, start the command again.",
    "archive_server_awaited": "The node cannot reach the server of the images, and tries again for up to 5 minutes. "
                              "Check the network, the address and the credentials on the node.",
    "archive_object_changed": "The image file on the server has changed since the list of images of this run was "
                              "made. To screen the new image, start a new run with another folder for results: --out "
                              "FOLDER",
    "archive_object_large": "The image file on the server is too large to download: {size_mb} MB. The limit is "
                            "{limit_mb} MB.",
    "archive_worker_ended": Plural("Screening this image crashed the process {times} time. The image was left out.",
                                   "Screening this image crashed the process {times} times. The image was left out.",
                                   count_parameter="times"),
    "cluster_certificates": "The folder {folder} has no usable certificates ({detail}). Make certificates with: "
                            "fieldray cluster certificates FOLDER",
    "cluster_certificates_expired": "The certificates in {folder} were valid until {date}. Make new certificates "
                                    "with fieldray cluster certificates FOLDER and copy the new certificates to "
                                    "every computer. Then start the cluster again.",
    "cluster_key_open": "Other users of this computer can read the key {path}. With this key, other users can run "
                        "programs in your name. Remove the rights of other users (chmod 600), or make new "
                        "certificates with: fieldray cluster certificates FOLDER",
    "cluster_unencrypted": "Name the folder of the certificates with --certificates (make certificates with: "
                           "fieldray cluster certificates FOLDER). Without certificates, everybody who reaches the "
                           "port of this computer can run programs in your name. To work without certificates "
                           "nevertheless, use --unencrypted.",
    "cluster_certificates_there": "{folder} already contains {name}. Choose an empty folder: existing certificates "
                                  "are never replaced.",
    "training_needs_mode": "--workers {workers} needs a mode for several workers. Choose --mode sync-join, --mode "
                           "sync-split or --mode async.",
    "training_staleness_sync": "--staleness needs --mode async: in the other modes the workers wait for each other. "
                               "Remove --staleness, or choose --mode async.",
    "training_staleness": Plural("With {workers} worker in --mode async, gradients are up to {least} updates late. "
                                 "Replace --staleness {staleness} by --staleness {least} or more, or choose --mode "
                                 "sync-join.",
                                 "With {workers} workers in --mode async, gradients are up to {least} updates late, "
                                 "even if all workers are equally fast. Replace --staleness {staleness} by "
                                 "--staleness {least} or more, or choose --mode sync-join.", count_parameter="workers"),
    "training_small_batch": Plural("A batch has {images} image per class, too few for {workers} workers. Use fewer "
                                   "workers or a larger batch.",
                                   "A batch has {images} images per class, too few for {workers} workers. Use fewer "
                                   "workers or a larger batch.", count_parameter="images"),
    "training_few_batches": Plural("An epoch has {batches} batch, too few for {workers} workers. Use fewer workers "
                                   "or smaller batches.",
                                   "An epoch has {batches} batches, too few for {workers} workers. Use fewer "
                                   "workers or smaller batches.", count_parameter="batches"),
    "training_few_workers": Plural("You asked for {workers} workers, but the cluster has {there} process. Let more "
                                   "computers join, or ask for fewer workers.",
                                   "You asked for {workers} workers, but the cluster has {there} processes. Let more "
                                   "computers join, or ask for fewer workers.", count_parameter="there"),
    "training_server_lost": "The process that stores the network's weights has ended. Training is saved up to the "
                            "last epoch. To resume, start the command again.",
    "training_worker_lost": Plural("Worker {worker} was lost {times} time in one epoch. Training is saved up to the "
                                   "last epoch. To resume, start the command again.",
                                   "Worker {worker} was lost {times} times in one epoch. Training is saved up to "
                                   "the last epoch. To resume, start the command again.", count_parameter="times"),
    "training_worker_again": "Worker {worker} was lost. Another process replaces this worker.",
    "training_measured_lost": "The process on {host} that measures the network speed does not answer or has ended. "
                              "Check that {host} can be reached, then start the command again.",
    "training_host_busy": "The process on {host} that should store the network's weights is busy with other work or "
                          "has left the cluster. Wait until the other work ends, or let more computers join. Then "
                          "start the command again.",
    "training_server_unreached": "The processes that store the network's weights cannot be reached ({hosts}): "
                                 "{detail}. Check that every computer of the cluster may connect to every other "
                                 "computer.",
    "training_node_folder": "The node {node} cannot read the training images in {path}. Put the folder of the run "
                            "on a share that every node mounts at the same path.",
    "training_node_other": "The images in {path} on {node} differ from the images on this computer. Put the folder "
                           "of the run on a share that every node mounts at the same path. Then start the command "
                           "again.",
    "training_diverged_weights": "Training diverged in epoch {epoch}: a weight is not a number. Lower learning_rate "
                                 "in the recipe and run the recipe again. Training resumes from the last good "
                                 "epoch.",
    "training_batch_norm": "Note: the network has batch normalisation. Each worker normalises its own part of a "
                           "batch, so the result differs a little from training in one process.",
    "training_dropout": "Note: the network has dropout. Each worker draws its own dropout masks, so the result "
                        "differs a little from training in one process.",
    "workflow_blocked": "This task was not started, because the task {parent} failed. See the cause with: fieldray "
                        "workflow status RECIPE --task {parent}. Then run the workflow again.",
    "workflow_other_answer": "The cluster returned the result of another task. Run the workflow again. If the error "
                             "happens again, restart the cluster.",
    "workflow_exit": "The command ended with the exit code {exit_code}.",
    "workflow_signal": "The command was ended by the signal {number}.",
    "workflow_not_started": "The command could not be started on {node}: {detail}.",
    "workflow_worker_lost": Plural("The process of this task crashed {count} time.",
                                   "The processes of this task crashed {count} times.", count_parameter="count"),
    "workflow_stopped": "The task was stopped before the end.",
    "workflow_node_failed": "The node {node} could not run the task: {detail}.",
    "workflow_input_missing": "{path} does not exist.",
    "workflow_node_folder": "The node {node} cannot read {path}. Put the folder of the recipe on a share that every "
                            "node mounts at the same path.",
    "workflow_not_running": "No workflow is running in {path}.",
    "workflow_no_run": "There is no run of this recipe yet ({path}).",
    "workflow_journal": "The journal of the workflow {path} is damaged in line {line}. Delete that line and run the "
                        "command again. Finished tasks are kept.",
    "workflow_no_task": "There is no task {task} in this workflow.",
    "workflow_is_sweep": "The recipe {path} has a table [sweep], so the recipe describes a sweep. Use: fieldray "
                         "workflow sweep {path}",
    "workflow_no_sweep": "The recipe {path} has no table [sweep], which a sweep needs.",
    "sweep_differs": "The sweep in {path} was begun with other settings, other data or another version of the "
                     "program. Use another folder, or delete the folder of the sweep.",
    "sweep_diverged": "The trial recorded no value of {metric}.",
    "sweep_none": "No trial of the sweep finished, so there is no best trial. See the cause with: fieldray workflow "
                  "status RECIPE. Then raise the number of trials (key trials of the recipe), and run the sweep again.",
    "objects_left": Plural("{count} object of {address} was not copied. The first problem was with {name}: {detail} "
                           "Run the command again.",
                           "{count} objects of {address} were not copied. The first problem was with {name}: "
                           "{detail} Run the command again.", count_parameter="count"),
    "estimate_workers": "There are more workers ({workers}) than batches ({batches}), so some workers would be "
                        "idle. Use at most as many workers as batches.",
    "estimate_most_workers": "The training time with {workers} workers cannot be estimated: at most {limit} "
                             "workers are possible.",
    "estimate_no_update": "Without --t-update, the prediction leaves out the time to update the weights. Training of "
                          "a large network may take far longer than predicted.",
    "estimate_best": "Training is fastest with {workers} workers, --mode {mode} and --server {server}: {speed_up} "
                     "times as fast as on one machine.",
    "estimate_one_machine": Plural("Train on one machine. With --mode {mode}, {workers} worker is not faster.",
                                   "Train on one machine. With --mode {mode}, no number of workers up to {workers} is "
                                   "faster.", count_parameter="workers"),
    "estimate_fewest": "With {workers} workers and --server {server}, training is {speed_up} times as fast as on one "
                       "machine. More workers add little: this is nine tenths of the highest possible speed.",
    "estimate_second": "With 2 workers and --server {server}, training is {speed_up} times as fast as on one machine.",
    "estimate_second_not": "Do not add a second machine: with 2 workers and --server {server}, training is {speed_up} "
                           "times as fast as on one machine.",
}
# fmt: on
