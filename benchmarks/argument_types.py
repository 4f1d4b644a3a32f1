"""What a person types after an option of `python -m benchmarks`, as the value that is meant."""

from __future__ import annotations

import argparse

from benchmarks.image_files import KINDS
from fieldray.commands.bench import number_from
from fieldray_cluster.training.formulas import MODES


def counts(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers of 1 or more. Raises ArgumentTypeError."""
    return tuple(map(number_from(1), text.split(",")))


def file_kinds(text: str) -> tuple[str, ...]:
    """`JPEG,RLE` as kinds of files, however they are written. Raises ArgumentTypeError."""
    by_name = {name.lower(): name for name in KINDS}
    asked = tuple(name.strip().lower() for name in text.split(","))
    if not set(asked) <= set(by_name):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(KINDS)}")
    return tuple(by_name[name] for name in asked)


def networks(text: str) -> tuple[str, ...]:
    """`squeezenet,vgg16` as networks that a recipe may name. Raises ArgumentTypeError."""
    from fieldray_adapt.networks import NETWORKS  # only now: other commands need no toolchain

    return _chosen(text, tuple(NETWORKS))


def modes(text: str) -> tuple[str, ...]:
    """`async,sync-join` as modes of a divided training. Raises ArgumentTypeError."""
    return _chosen(text, MODES)


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    if not set(asked) <= set(known):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
    return asked


def low_and_high(text: str) -> tuple[float, float]:
    """`1-7` as (1.0, 7.0)."""
    low, _, high = text.partition("-")
    try:
        found = float(low), float(high or low)
    except ValueError:
        found = (0.0, 0.0)
    if not 0.01 <= found[0] <= found[1] <= 100:
        raise argparse.ArgumentTypeError("give LOW-HIGH, for example 1-7")
    return found


def amount(text: str) -> float:
    """A number of 0 or more. Raises ArgumentTypeError."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e9:
        raise argparse.ArgumentTypeError("give a number of 0 or more")
    return amount
