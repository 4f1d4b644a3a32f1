"""Write the expected results for the constancy check. Run this after the shipped packs were accepted:

    python tools/constancy_set.py KEY [IMAGE ...]

Every pack of `models/` screens the test images on the CPU of this computer. The results go to `assets/constancy.json`;
the results of each named IMAGE are left out. The private key in the file KEY signs them to `assets/constancy.sig`. The
script prints the fingerprint of the key, which must equal `CONSTANCY_TEST_SIGNER` in `packs/signing.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fieldray.backends import CPU
from fieldray.errors import UsageProblem
from fieldray.imaging.synthetic import constancy_test_files
from fieldray.packs.library import PackLibrary
from fieldray.packs.signing import load_private_key, sign, verified_fingerprint
from fieldray.paths import asset_path, data_folder
from fieldray.pipeline.constancy import ConstancyFile, ExpectedResults, pack_key, screen_test_images
from fieldray.pipeline.session import Session
from fieldray.settings import Settings


def compute_expected_results(folder: Path, home: Path, *, without: Sequence[str]) -> tuple[str, ExpectedResults]:
    """Screen the test images with the pack in `folder` on the CPU. Returns (key of the pack, results by image name).

    `home` is the data folder of the program. Results of the images named in `without` are left out.
    """
    model = PackLibrary(home).load(folder)
    with Session(Settings({"device": CPU.name}), lambda _: None) as session:
        session.use_packs(model)
        answers = screen_test_images(session, model)
    return pack_key(model), {name: answers[name] for name in answers if name not in without}


def main(arguments: Sequence[str]) -> int:
    """Write constancy.json and constancy.sig, and print the fingerprint of the key. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key", type=Path, metavar="KEY")
    parser.add_argument("without", nargs="*", metavar="IMAGE")
    options = parser.parse_args(arguments)
    try:
        key = load_private_key(options.key)
    except UsageProblem as problem:
        parser.error(problem.reason.text)
    with tempfile.TemporaryDirectory() as home:
        os.environ["FIELDRAY_HOME"] = home
        packs = [found for found in PackLibrary(data_folder()).builtin() if found.can_screen]
        # Scores of drawn images may differ by rounding.
        files = {name: content for name, content in constancy_test_files() if name.endswith(".jpg")}
        images = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        answers = dict(compute_expected_results(one.folder, data_folder(), without=options.without) for one in packs)
        made = ConstancyFile(images=images, answers=answers)
    content = msgspec.json.format(msgspec.json.encode(made, order="sorted"), indent=1) + b"\n"
    signature = sign(content, key=key)
    asset_path("constancy.json").write_bytes(content)
    asset_path("constancy.sig").write_bytes(signature)
    sys.stdout.write(f"{verified_fingerprint(content, signature=signature)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
