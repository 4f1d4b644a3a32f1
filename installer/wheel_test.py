"""Test the wheel as a Python developer would use it: `pip install` in a new virtual environment.

    python installer/wheel_test.py [--extra adapt]

The wheel is built from this checkout. The installed demo must give its 20 results. The packs, the guide in every
language, and the licences must be installed. With `--extra adapt`, a recipe is also written and checked. Needs the
network for the dependencies.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_ANSWERS: Final = 20  # number of results of `fieldray demo`
# Prints a line for each missing file of the installed package.
_LOOK: Final = """
from importlib.metadata import files
from fieldray.paths import asset_path, builtin_packs_folder, guide_folder
from fieldray.translation import languages
wanted = [guide_folder() / f"{code}.md" for code in languages()]
wanted += [asset_path(f"fonts/LICENSE-{name}.txt") for name in ("DejaVu", "Unifont")]
wanted.append(asset_path("demonstration/CREDITS.md"))
wanted += [file.locate() for file in files("fieldray") if file.name == "LICENSE"] or [guide_folder() / "no LICENSE"]
packs = sorted(builtin_packs_folder().iterdir())
wanted += [pack / "manifest.sig" for pack in packs] or [builtin_packs_folder() / "no packs"]
print(*[path for path in wanted if not path.is_file()], sep="\\n")
"""


def main() -> int:
    """Build, install and test the wheel. Returns 0 if nothing is missing and everything works, else 1."""
    parser = argparse.ArgumentParser(description="Test the wheel in a separate virtual environment.")
    parser.add_argument("--extra", default="", help="also install this extra of the wheel, for example adapt")
    extra = parser.parse_args().extra
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        pip = ("-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(folder, sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        wheel = next(folder.glob("fieldray-*.whl"))
        _run(folder, sys.executable, "-I", "-m", "venv", folder / "venv")
        _run(folder, python, *pip, "install", f"{wheel}[{extra}]" if extra else wheel)
        missing = _missing(folder, python)
        if extra == "adapt":
            program = (python.with_name("fieldray"), "adapt")
            _run(folder, *program, "new", "classifier", "recipe.toml")
            command = [*program, "check", "recipe.toml"]
            said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if said.returncode != 2 or "recipe.toml" not in said.stderr:  # the recipe's folders do not exist
                missing.append(f"the message of `fieldray adapt check`: {said.stdout}{said.stderr}")
    for what in missing:
        sys.stdout.write(f"MISSING: {what}\n")
    return 1 if missing else 0


def _missing(folder: Path, python: Path) -> list[str]:
    """Return the names of missing packs, guides, licences and demo results of the installed wheel.

    `python` is the Python of the virtual environment in which the wheel is installed.
    """
    found = _run(folder, python, "-I", "-c", _LOOK).split()
    answers = folder / "results.jsonl"
    _run(folder, python.with_name("fieldray"), "demo", "--no-window", "--json", answers)
    count = len(answers.read_text(encoding="utf-8").splitlines())
    return [*found, *([f"{_ANSWERS} results of the demo (found: {count})"] if count != _ANSWERS else [])]


def _run(folder: Path, *command: str | Path) -> str:
    """Run a command in the folder `folder`, with a user data folder there. Returns the output.

    Raises CalledProcessError.
    """
    environment = {**os.environ, "FIELDRAY_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
