"""The log has the published fields, and is read again; lines of the published log itself are read too."""

from __future__ import annotations

from fieldray_cluster.training.training_log import as_csv, log_lines, parsed


def test_what_is_logged_is_read_again() -> None:
    notes = [{"at": 0.0, "loss": 0.5}, {"at": 1.5, "loss": 0.25, "accuracy": 0.9389}]
    row = {"epoch": 100, "loss": 0.1443, "dice": 0.7724, "cells_wrong": 0.051}
    lines = list(log_lines(notes, row, first_iteration=1979, rate=0.001))
    assert lines == [
        "1970-01-01 00:00:01,500 Iter 1980, Minibatch Loss= 0.2500, Training Accuracy= 0.9389, Minibatch error= 6.1%",
        "1970-01-01 00:00:01,500 Epoch 99, Average loss: 0.1443, learning rate: 0.0010",
        "1970-01-01 00:00:01,500 Verification error= 5.1%, loss= 0.2276",
    ]
    iteration, epoch, verification = parsed("\n".join(["started", *lines]))
    assert (iteration.kind, iteration.iteration, iteration.accuracy, iteration.error) == (
        "iteration",
        1980,
        0.9389,
        6.1,
    )
    assert (epoch.kind, epoch.epoch, epoch.loss, epoch.learning_rate) == ("epoch", 99, 0.1443, 0.001)
    assert (verification.kind, verification.error, verification.loss) == ("verification", 5.1, 0.2276)


def test_rows_become_csv() -> None:
    text = "2019-05-23 10:00:00,123 Epoch 99, Average loss: 0.1443, learning rate: 0.0010"
    head, line = as_csv(parsed(text)).splitlines()
    assert head == "time,kind,epoch,iteration,loss,accuracy,error,learning_rate"
    assert line == '"2019-05-23 10:00:00,123",epoch,99,,0.1443,,,0.001'
