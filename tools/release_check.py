"""Run all checks before a release with one command: `make release-check`, or

    python tools/release_check.py [--previous OLD.deb] [--only WORDS] [--list]

The checkout must have no uncommitted changes, because the checks are for a commit. Each check is a `make` target. Its
output goes to the folder build/release/COMMIT. All checks together take hours, and the script may be stopped. Started
again, it leaves out the checks that succeeded on this commit. After each check, the script writes the results to
build/release/COMMIT/release.md. Exit code 0: all checks have succeeded.

    --previous OLD.deb   the Debian package of the previous version, to test the update; without it, no such test
    --only WORDS         run only the checks that have these words in their name
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pythons

ROOT: Final = Path(__file__).resolve().parent.parent
# The arguments for `make` by name of the check. The checks smoke and update need root.
_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "the wheel": ("wheel",),
    "installers": ("installer",),
    "smoke": ("smoke",),
    "offline proof": ("offline-proof",),
    "attack": ("attack",),
    "faults": ("faults",),
    "power cuts": ("powercut",),
    "walks": ("walk",),
    "ends by a signal": ("ends",),
    "cluster": ("cluster-test",),
    "damaged files": ("fuzz", "FUZZ_MINUTES=60"),
    "documents": ("docs",),
}


def check_targets(previous: Path | None, others: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
    """Return the arguments for `make` of each check, by name of the check.

    `previous` is the Debian package of the previous version; None leaves out the test of the update. `others` are the
    Python programs with which the tests are run as well, by version.
    """
    suites = {"suite": ("test",)}
    for version, program in others.items():
        place = f"VENV=build/release/python-{version}"
        suites[f"suite on Python {version}"] = ("test", f"PYTHON={program}", place)
    update = {"update": ("update", f"PREVIOUS={previous.resolve()}")} if previous else {}
    return {**suites, **_STEPS, **update}


def results_page(commit: str, wanted: Sequence[str], done: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown page with the results of the checks on a commit.

    `wanted` are the names of all checks, `done` the results by name. A check without a result is listed as not run.
    """
    machine = f"{platform.platform()}, Python {platform.python_version()}"
    rows = [f"# Release check of {commit}", "", machine, ""]
    rows += ["| Step | Result | Minutes | Ended | Last line |", "|---|---|---|---|---|"]
    for name in wanted:
        found = done.get(name)
        if found is None:
            rows.append(f"| {name} | not run | | | |")
            continue
        result = "held" if found["code"] == 0 else f"**failed ({found['code']})**"
        last = str(found["last"]).replace("|", "\\|")
        rows.append(f"| {name} | {result} | {found['seconds'] / 60:.0f} | {found['ended']} | {last} |")
    return "\n".join(rows) + "\n"


def run_check(name: str, targets: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the check `name` by `make` with the arguments `targets`. The output goes to a log file in `folder`.

    Returns the exit code ("code"), the duration ("seconds"), the time of the end and the last line of the output.
    """
    log, began_s = folder / f"{name.replace(' ', '-')}.log", time.monotonic()
    with log.open("wb") as stream:
        code = subprocess.run(["make", *targets], cwd=ROOT, stdout=stream, stderr=stream, check=False).returncode
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    ended = datetime.now(UTC).isoformat(timespec="minutes")
    seconds = round(time.monotonic() - began_s)
    return {"code": code, "seconds": seconds, "ended": ended, "last": lines[-1][:120] if lines else ""}


def main() -> int:
    """Run the checks that have not yet succeeded on the present commit. Returns 0 if all checks have succeeded."""
    parser = argparse.ArgumentParser(description="Run all checks before a release.")
    parser.add_argument("--previous", type=Path, metavar="OLD.deb", help="also test the update from this package")
    parser.add_argument("--only", default="", metavar="WORDS", help="run only checks with these words in their name")
    parser.add_argument("--list", action="store_true", help="only list the checks")
    options = parser.parse_args()
    own = "{}.{}".format(*sys.version_info)
    others = {version: program for version, program in pythons.find_pythons().items() if version != own}
    everything = check_targets(options.previous, others)
    if options.list:
        sys.stdout.write("".join(f"{name}: make {' '.join(targets)}\n" for name, targets in everything.items()))
        return 0
    if changed := _git("status", "--porcelain"):
        parser.error(f"the checkout has uncommitted changes: {changed.splitlines()[0]}")
    commit = _git("rev-parse", "HEAD")
    folder = ROOT / "build" / "release" / commit[:12]
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "steps.json"
    done: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name, targets in everything.items():
        if options.only in name and done.get(name, {}).get("code") != 0:
            sys.stdout.write(f"{name}: make {' '.join(targets)}\n")
            sys.stdout.flush()
            done[name] = run_check(name, targets, folder)
            kept.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
            (folder / "release.md").write_text(results_page(commit, list(everything), done), encoding="utf-8")
    sys.stdout.write(results_page(commit, list(everything), done))
    return 0 if all(done.get(name, {}).get("code") == 0 for name in everything) else 1


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
