"""Test the program with every other Python version on this computer: `make pythons`.

    python tools/pythons.py [--list]

The script looks for Python 3.11 to 3.14 on the PATH and in pyenv, except for the version that runs the script. It
installs the program for each version in a new virtual environment below build/pythons. The demo must then give 20
results, with Python warnings as errors. A window must close properly after a signal. Exit code 0: all versions passed,
or no other version was found. Exit code 1: a version failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
_ANSWERS: Final = 20  # number of results of `fieldray demo`


def find_pythons() -> dict[str, Path]:
    """Return the Python programs on this computer that can make virtual environments, by version ("3.12")."""
    return {version: found for version in VERSIONS if (found := next(_programs(version), None))}


def _programs(version: str) -> Iterator[Path]:
    """Yield the paths of Python programs that really run with the version `version`, from the PATH and from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    for program in (*([on_path] if on_path else []), *sorted(pyenv.glob(f"versions/{version}.*/bin/python3"))):
        code = "import ensurepip, sqlite3, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([program, "-I", "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            yield Path(program)


def works_with_python(version: str, program: Path) -> bool:
    """Install Fieldray with the Python at `program` in a new virtual environment. Returns whether demo and window work.

    `version` is the version of this Python ("3.12").
    """
    place = ROOT / "build" / "pythons" / version
    python = place / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "results.jsonl")
        steps: tuple[tuple[str | Path, ...], ...] = (
            (program, "-m", "venv", "--clear", place),
            (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", f"{ROOT}[desktop]"),
            (python, "-W", "error", "-m", "fieldray", "demo", "--no-window", "--json", lines),
            (python, ROOT / "tests/ends/run_ends.py", "--windows", "1", "--out", Path(folder, "ends.json")),
        )
        environment = {**os.environ, "FIELDRAY_HOME": str(Path(folder, "home"))}
        is_well = all(subprocess.run(step, env=environment, check=False).returncode == 0 for step in steps)
        return is_well and len(lines.read_text(encoding="utf-8").splitlines()) == _ANSWERS


def main() -> int:
    """Test the program with each other Python version, or only list the versions. Returns 1 if a version failed."""
    parser = argparse.ArgumentParser(description="Test the program with every other Python version that is installed.")
    parser.add_argument("--list", action="store_true", help="only list the installed Python versions")
    own = "{}.{}".format(*sys.version_info)
    others = {version: program for version, program in find_pythons().items() if version != own}
    absent = [version for version in VERSIONS if version != own and version not in others]
    sys.stdout.write(
        f"Running Python {own}. Also installed: {', '.join(others) or 'none'}. Not installed: {', '.join(absent)}\n"
    )
    if parser.parse_args().list:
        return 0
    verdicts = {version: works_with_python(version, program) for version, program in others.items()}
    for version, is_well in verdicts.items():
        sys.stdout.write(f"Python {version}: {'the demo and a window work' if is_well else 'FAILED'}\n")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
