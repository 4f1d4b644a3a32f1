"""Write the lock files: all direct and indirect dependencies, each with one version and the hashes of its files.

    python installer/lock.py [--upgrade] [PACKAGE...]     (needs uv: pip install uv)

Without arguments, locked versions do not change, and only new dependencies in pyproject.toml are added. The lock file
of the installer is for Linux and Windows: a package that only one system needs has a marker. The lock files do not name
the source of packages. The hashes identify the files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# For each lock file: the extras of pyproject.toml, and the systems.
# TensorFlow cannot be locked for all systems. The metadata of its Linux wheel requires tensorflow-intel 2.19.1 on
# Windows, which does not exist. The Windows wheel has no such requirement.
LOCKS: Final = {
    "installer/requirements.lock": (("desktop", "installer"), "--universal"),
    "installer/development.lock": (("desktop", "adapt", "dev"), "--python-platform=x86_64-manylinux_2_28"),
}
_OLDEST_PYTHON: Final = "3.11"
_HEAD: Final = """\
# Written by installer/lock.py from pyproject.toml ({extras}). Install with: pip install --require-hashes -r {name}
"""


def main() -> int:
    """Write all lock files and return 0. Raises CalledProcessError if uv fails."""
    parser = argparse.ArgumentParser(description="Lock the versions and hashes of all dependencies.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="upgrade these packages to their newest version")
    parser.add_argument("--upgrade", action="store_true", help="upgrade all packages to their newest version")
    options = parser.parse_args()
    program = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if program is None:
        parser.error("uv is needed: pip install uv")
    for name, (extras, systems) in LOCKS.items():
        moves = ["--upgrade"] if options.upgrade else [f"--upgrade-package={package}" for package in options.packages]
        write_lock(program, name, extras, [systems, *moves])
    return 0


def write_lock(program: str, name: str, extras: Sequence[str], uv_options: Sequence[str]) -> None:
    """Resolve the dependencies of some extras of pyproject.toml, and write them with hashes to the lock file `name`.

    `program` is the path of uv. `uv_options` are further options of `uv pip compile`, such as the systems to lock for.
    Raises subprocess.CalledProcessError with the output of the resolver.
    """
    lock = ROOT / name
    chosen = [f"--extra={extra}" for extra in extras]
    subprocess.run(
        [program, "pip", "compile", "pyproject.toml", *chosen, *uv_options, "--output-file", name, "--quiet",
         f"--python-version={_OLDEST_PYTHON}", "--fork-strategy=fewest", "--generate-hashes",
         "--no-header", "--no-emit-index-url", "--no-emit-find-links"],
        cwd=ROOT, env=_environment(), check=True,
    )  # fmt: skip
    head = _HEAD.format(extras=", ".join(extras), name=name)
    body = "\n".join(line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    lock.write_text(f"{head}{body}\n", encoding="utf-8", newline="\n")


def _environment() -> dict[str, str]:
    """Return environment variables without this computer's package sources.

    A wheel that was built on this computer would have a hash that no other computer knows.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    if "PIP_CERT" in os.environ:
        environment.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    return environment


if __name__ == "__main__":
    sys.exit(main())
