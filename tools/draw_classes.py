"""Draw training images for a first pack, in two folders, `normal` and `opacity`.

    python tools/draw_classes.py images [--patients 60] [--first 0]

The drawings look like chest X-rays but show no real person. The images in `opacity` have opacities in a lung. Each
invented patient has two images. A pack that is trained on the drawings is of no use for real images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from fieldray.imaging.synthetic import chest_phantom

_SIDE = 256
_TWELVE_BITS = 4095


def main() -> None:
    """Draw two images of each invented patient below the folder that is named on the command line."""
    parser = argparse.ArgumentParser(description="Draw a folder with synthetic chest X-rays of two classes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--patients", type=int, default=60, help="draw this number of patients (default: 60)")
    parser.add_argument("--first", type=int, default=0, help="draw patients from this number on (default: 0)")
    options = parser.parse_args()
    for patient in range(options.first, options.first + options.patients):
        name = "opacity" if patient % 2 else "normal"
        (options.folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(2):
            pixels = chest_phantom(_SIDE, _SIDE, patient * 10 + number, abnormal=name == "opacity")
            grey = (pixels.astype(np.float32) * (255 / _TWELVE_BITS)).astype(np.uint8)
            Image.fromarray(grey).save(options.folder / name / f"p{patient:03d}-{number + 1}.png")


if __name__ == "__main__":
    main()
