"""The pack that a benchmark works with."""

from __future__ import annotations

import argparse

from fieldray.commands.options import drives_with_packs, load_pack, pack_to_measure
from fieldray.domain.model import Model
from fieldray.paths import user_data


def load_measured_pack(options: argparse.Namespace) -> Model:
    """The one that was asked for, else the one to measure. Raises PackNotChosen, PackProblem, StorageProblem."""
    from fieldray.packs.library import PackLibrary  # not before it is needed: it brings much along

    library = PackLibrary(user_data())
    return load_pack(library, options.pack or pack_to_measure(library, drives_with_packs()), options)
