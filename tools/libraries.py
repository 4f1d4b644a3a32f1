"""Report libraries whose installed version is more than a year old (printed by `make check`), and

    python tools/libraries.py --look-up     (needs uv, pip install uv, and the network)

writes `libraries.txt`: for each library in pyproject.toml, the newest version of a year ago. An installed library does
not tell its age, and `make check` needs no network, so the installed version is compared with that file. An old library
is no failure, because some libraries are finished.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "tools" / "libraries.txt"
_YEAR: Final = datetime.timedelta(days=365)


def asked_for() -> list[str]:
    """Return the names of all libraries in pyproject.toml, each once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    return sorted({Requirement(text).name for text in wanted}, key=str.lower)


def old_ones(text: str) -> list[str]:
    """Return the libraries of a table whose installed version was already there a year before, with that version."""
    rows = dict(re.findall(r"^(\S+)==(\S+)$", text, re.MULTILINE))
    return [
        f"{name} {version}"
        for name, old in rows.items()
        if (version := _installed(name)) and Version(version) <= Version(old)
    ]


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def look_up(uv: str) -> None:
    """Write the table with the newest versions of a year before today, from the package index."""
    day = datetime.date.today() - _YEAR
    command = [uv, "pip", "compile", "-", "--no-deps", f"--exclude-newer={day}", "--no-header", "--quiet"]
    command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python", sys.executable]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    if "PIP_CERT" in os.environ:
        environment.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    rows = []
    for name in asked_for():  # one at a time: a library that is younger than a year has no version then
        done = subprocess.run(command, input=name, env=environment, capture_output=True, text=True, check=False)
        rows += [line for line in done.stdout.splitlines() if "==" in line]
    head = f"# The newest version of each library on {day}, written by tools/libraries.py --look-up\n"
    TABLE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")


def main() -> int:
    """Report old libraries, or write the table. Returns 0."""
    parser = argparse.ArgumentParser(description="Name the libraries that are more than a year old.")
    parser.add_argument("--look-up", action="store_true", help="write the table anew")
    if parser.parse_args().look_up:
        uv = shutil.which("uv") or parser.error("uv is needed: pip install uv")
        look_up(uv)
    text = TABLE.read_text(encoding="utf-8")
    day = re.findall(r"\d{4}-\d\d-\d\d", text)[0]
    sys.stdout.write(f"Libraries as of {day} or before: {', '.join(old_ones(text)) or 'none'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
