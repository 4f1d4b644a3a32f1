"""The sentences about training on several machines (see `reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.sentence import Plural, Template

# fmt: off
SPEEDUP: Final[Mapping[str, Template]] = {
    "estimate_missing": "{options} must be given. fieldray adapt measure-cluster RECIPE measures the times.",
    "estimate_time": "{option} {given} is not a time in seconds. It must be a number above 0, and at most 1e9.",
    "estimate_count": "{option} {given} is not a whole number of 1 or more.",
    "estimate_slowest": "--slowest {given} is not a factor. It says how many times as long the slowest worker takes as the others: 1 or more, and at most 1e9.",
    "estimate_workers": "There are {workers} workers for {batches} batches, so some would have nothing to do. Take as many workers as batches, or fewer.",
    "estimate_most_workers": "{workers} workers are more than can be estimated. At most {limit} can.",
    "estimate_too_large": "A simulation of {transfers} transfers takes too long. At most {limit} are simulated. Take fewer batches or workers, or leave out --simulate.",
    "estimate_plot": "--output plot needs --picture with the name of a file (.svg or .png).",
    "estimate_best": "With {mode}, training is fastest on {workers} workers with {server}: {speed_up} times as fast as on one machine.",
    "estimate_one_machine": Plural("Train on one machine. With {mode}, {workers} worker is not faster.",
                                   "Train on one machine. With {mode}, no number of workers up to {workers} is faster.", by="workers"),
    "estimate_fewest": "Nine tenths of that are already reached with {workers} workers and {server}: {speed_up} times as fast.",
    "estimate_second": "Two workers with {server} are {speed_up} times as fast as one machine.",
    "estimate_second_not": "A second machine does not pay: two workers with {server} are {speed_up} times as fast as one machine.",
}
