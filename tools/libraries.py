"""Report libraries whose installed version is more than a year old. `make check` prints the report.

    python tools/libraries.py
    python tools/libraries.py --look-up     write libraries.txt anew; needs the network and uv (pip install uv)

`libraries.txt` lists the version of each library that was the newest a year before the file was written. The report
compares the installed versions with that list, so it needs no network. An old library is no failure, because some
libraries rarely change.
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


def required_libraries() -> list[str]:
    """Return the sorted names of all libraries that pyproject.toml requires, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    return sorted({Requirement(text).name for text in wanted}, key=str.lower)


def outdated_libraries(text: str) -> list[str]:
    """Return "name version" of each library that is installed in the listed version or an older version.

    `text` is the content of `libraries.txt`. Libraries that are not installed are left out.
    """
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


def write_version_table(uv: str) -> None:
    """Write `libraries.txt`: for each library, the version that was the newest a year before today.

    `uv` is the path of the program uv, which asks the package index.
    """
    day = datetime.date.today() - _YEAR
    command = [uv, "pip", "compile", "-", "--no-deps", f"--exclude-newer={day}", "--no-header", "--quiet"]
    command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python", sys.executable]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    if "PIP_CERT" in os.environ:
        environment.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    rows = []
    for name in required_libraries():  # one call each: uv fails for a library without a version a year ago
        done = subprocess.run(command, input=name, env=environment, capture_output=True, text=True, check=False)
        rows += [line for line in done.stdout.splitlines() if "==" in line]
    head = f"# The newest version of each library on {day}, written by tools/libraries.py --look-up\n"
    TABLE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")


def main() -> int:
    """Print the libraries that are more than a year old. With `--look-up`, first write `libraries.txt`. Returns 0."""
    parser = argparse.ArgumentParser(description="List the required libraries whose version is more than a year old.")
    parser.add_argument("--look-up", action="store_true", help="first update tools/libraries.txt")
    if parser.parse_args().look_up:
        uv = shutil.which("uv") or parser.error("uv is needed: pip install uv")
        write_version_table(uv)
    text = TABLE.read_text(encoding="utf-8")
    day = re.findall(r"\d{4}-\d\d-\d\d", text)[0]
    sys.stdout.write(f"Libraries with a version of {day} or older: {', '.join(outdated_libraries(text)) or 'none'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
