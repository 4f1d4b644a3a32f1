"""Compare the results of networks with the classes that radiologists gave to images of adults.

    python tools/radiologists.py table ../shared/data runs/read-by-radiologists.csv
    python tools/radiologists.py figures ../shared/data runs/adult-teacher

Radiologists read NIH images again for the RSNA challenge of 2018. `table` writes a table of these images for a recipe.
The licence of the classes forbids commercial use. Use them to choose and to measure, but not to train a shipped pack:
in a recipe, give the table the share 0. `figures` prints AUCs of the int8 networks of a cross-validation. Each image is
scored by a network that was trained without the images of that patient.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.metrics import auc

_SETS = {"rsna_normal": "", "rsna_opacity": "", "nih_224": "jrzech"}


def read_images(data: Path) -> list[dict[str, str]]:
    """Return the rows of index.csv whose images radiologists read, each with the radiologists' class as `rsna_class`.

    Data sets in which disease and hospital go together are left out. `data` has index.csv and radiologists.csv.
    """
    with (data / "radiologists.csv").open(encoding="utf-8", newline="") as stream:
        classes = {Path(row["nih_image"]).stem: row["rsna_class"] for row in csv.DictReader(stream)}
    with (data / "index.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["part"].startswith(_SETS.get(row["set"], "-"))]
    read = [row | {"rsna_class": classes.get(Path(row["path"]).stem, "")} for row in rows]
    return [row for row in read if row["rsna_class"]]


def write_table(data: Path, out: Path) -> None:
    """Write a CSV file `out` of the images that radiologists read, with the columns of index.csv in the folder `data`.

    The label is "normal" if the radiologists' class is "Normal", else "abnormal".
    """
    rows = read_images(data)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"label": "normal" if row["rsna_class"] == "Normal" else "abnormal"} for row in rows)


def print_figures(data: Path, run: Path) -> None:
    """Print the AUCs of docs/benchmarks/adults.md, computed from the cross-validation of the training folder `run`."""
    known = {str((data / row["path"]).resolve()): row for row in read_images(data)}
    with (run / "data" / "split.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    with np.load(run / "cross" / "scores.npz") as arrays:
        scores, targets = arrays["int8"][:, 0], arrays["targets"][:, 0]
    rows = [known.get(str(Path(line["path"]).resolve()), {}) for line in lines]
    is_scored = np.isfinite(scores)

    def where(**wanted: str) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = is_scored & np.array(
            [all(row.get(name) == value for name, value in wanted.items()) for row in rows]
        )
        return chosen

    normal, jrzech, opacity = where(rsna_class="Normal"), where(part="jrzech"), where(rsna_class="Lung Opacity")
    is_pa, sick = where(view="PA"), where(part="jrzech") & ~where(rsna_class="Normal")
    shenzhen = is_scored & np.array([line["source"] == "shenzhen" for line in lines])
    pairs = {
        "jrzech not normal, against all read as normal": (sick, normal),
        "jrzech not normal, against jrzech normal": (sick, jrzech & normal),
        "jrzech not normal, against all read as normal, PA": (sick & is_pa, normal & is_pa),
        "opacities against normal, PA": (opacity & is_pa, normal & is_pa),
        "opacities against normal, AP": (opacity & ~is_pa, normal & ~is_pa),
        "Shenzhen, its own labels": (shenzhen & (targets > 0.5), shenzhen & (targets < 0.5)),
    }
    for name, (yes, no) in pairs.items():
        area = auc(np.concatenate([scores[yes], scores[no]]), np.repeat([True, False], [yes.sum(), no.sum()]))
        print(f"{name}: {area:.3f} ({yes.sum()} and {no.sum()} images)")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("table", "figures"))
    parser.add_argument("data", type=Path, help="the folder with index.csv and radiologists.csv")
    text = "for `table` the CSV file to write; for `figures` the folder of a run with cross-validation"
    parser.add_argument("result", type=Path, help=text)
    options = parser.parse_args()
    try:
        (write_table if options.action == "table" else print_figures)(options.data, options.result)
    except OSError as problem:
        parser.error(f"{problem.filename}: {problem.strerror}")
