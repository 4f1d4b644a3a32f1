"""The speed-up against the number of workers, as a picture."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fieldray.reports.outputs import write_own
from fieldray_cluster.training.formulas import Estimate

with contextlib.chdir(Path(__file__).parent):  # as in `fieldray_adapt.page`
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

_STYLE: Final = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
# By which an earlier picture is known again; there is no date, so that the same figures give the same file.
_MARK: Final = "fieldray adapt estimate"
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": {"Software": _MARK},
}


def write_plot(path: Path, known: Sequence[Estimate]) -> None:
    """Write the speed-ups as .svg or .png, by the suffix of `path`: between best and worst case, as printed, the ideal.

    Raises UsageProblem, StorageProblem.
    """
    kind = path.suffix.lower().removeprefix(".")
    stream = io.BytesIO()
    with rc_context({**_STYLE, "svg.hashsalt": _MARK}):
        _figure(known).savefig(stream, format=kind, dpi=150, metadata=_METADATA[kind])
    data = stream.getvalue()
    if kind == "svg":  # what comes before names a document elsewhere
        data = f"<!-- {_MARK} -->\n".encode() + data[data.index(b"<svg") :]
    write_own(path, _is_own, data)


def _is_own(head: bytes) -> bool:
    return _MARK.encode() in head


def _figure(known: Sequence[Estimate]) -> Figure:
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    workers = [one.workers for one in known]
    low, high = [one.lowest_speed_up for one in known], [one.highest_speed_up for one in known]
    line = axes.plot(workers, [one.speed_up for one in known], "o-", markersize=3, label="predicted")[0]
    if low != high:
        axes.fill_between(workers, low, high, color=line.get_color(), alpha=0.2, label="worst to best case")
    if any(one.printed_speed_up != one.speed_up for one in known):
        axes.plot(workers, [one.printed_speed_up for one in known], "--", linewidth=1, label="as printed")
    top = axes.get_ylim()[1]
    axes.plot(workers, workers, ":", color="#8a8f98", label="linear")
    axes.axhline(1, color="#8a8f98", linewidth=0.8)
    axes.set(xlabel="workers", ylabel="times as fast as one machine", ylim=(0, max(top, 1.2)))
    axes.set_title(f"{known[0].mode}, {known[0].server} server{'s' if known[0].server == 'distributed' else ''}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure
