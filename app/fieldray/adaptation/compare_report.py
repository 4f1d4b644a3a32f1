"""The page of a comparison: the pack beside the unpruned network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.files import publish
from fieldray.adaptation.intervals import told
from fieldray.adaptation.page import page, table, text
from fieldray.adaptation.plots import training_curves

_NOTE: Final = """Both networks learnt from the same images. Both int8 files answered the same images by the code that
screens, and were timed alternating, image by image, on one thread in one run. The difference is the pack's AUC less the
unpruned network's, with a 95 % interval over patients. Nothing was chosen on test images. The time on the Edge TPU is
an estimate."""
_MIB: Final = 2**20


def write_report(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page of a comparison's results (as `compare.compare_step` makes them). Raises StorageProblem."""
    title = f"{results['pack']} against the unpruned network"
    curves = training_curves(results["history"], labels=results["trained_labels"])
    parts = [
        f"<h1>{text(title)}</h1>",
        '<p class="note">Research use only. Not for diagnostic use.</p>',
        f"<p>{_NOTE}</p>",
        "<h2>Size and speed</h2>" + _speed(results),
        *[f"<h2>{text(code)}</h2>" + _quality(found) for code, found in results["labels"].items()],
        "<h2>Training of the unpruned network</h2>" + curves,
        "<pre>" + text(json.dumps(results["trained"], indent=1)) + "</pre>",
    ]
    publish(path, page(title, parts))


def _speed(results: Mapping[str, Any]) -> str:
    whole, pack, ratios = results["networks"]["whole"], results["networks"]["pack"], results["times_less"]
    rows = [
        ["multiply-adds an image, millions", *(f"{row['multiply_adds'] / 1e6:.1f}" for row in (whole, pack))],
        ["int8 file, MiB", *(f"{row['file_bytes'] / _MIB:.2f}" for row in (whole, pack))],
        ["Edge TPU, ms (an estimate)", *(f"{row['edgetpu_estimate_ms']:.1f}" for row in (whole, pack))],
        ["int8, one thread, ms per image", *(f"{row['milliseconds']:.3f}" for row in (whole, pack))],
    ]
    cells = [[*row, f"{ratios[name]:.2f}"] for row, name in zip(rows, ratios, strict=True)]
    cells += [
        ["operators mapped to the Edge TPU", *(f"{row['mapped']} of {row['operators']}" for row in (whole, pack)), ""],
        [
            "sent to the Edge TPU for every image, MiB",
            *(f"{r['streamed_bytes'] / _MIB:.2f}" for r in (whole, pack)),
            "",
        ],
    ]
    return table(["", "unpruned", "pack", "times less"], cells)


def _quality(found: Mapping[str, Any]) -> str:
    head = ["images", "number", "positive", "unpruned, float", "unpruned, int8", "pack, int8", "difference"]
    rows = [
        [
            part,
            row["images"],
            row["positive"],
            *(told(row["auc"][name], ".3f") for name in ("whole_float", "whole", "pack")),
            told(row["difference"], "+.4f"),
        ]
        for part, row in found.items()
    ]
    return table(head, rows)
