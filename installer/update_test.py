"""Test an update of the package with existing results: install an earlier version, the new version, then go back.

    sudo python installer/update_test.py OLD.deb NEW.deb [--portable ARCHIVE] [--cache FOLDER]

The test runs in a small system without Python and network (see `clean_root`). The earlier version screens studies, gets
a default pack, a trusted key and verdicts, and is killed during a run. With the new version, nothing may be lost: runs,
results, verdicts, trust and choices are unchanged, and the killed run can be resumed. The portable archive shows the
same results. With the earlier version again, the results are shown, or a message says that a later version wrote them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import clean_root
import smoke_steps
from clean_root import CommandResult
from expectation import UnexpectedResult
from smoke_steps import PACK, PROGRAM, InstallTrial

ROOT: Final = Path(__file__).resolve().parent.parent
_ROOM_MB: Final = 3000
_STUDIES: Final = 60  # studies; the first 24 equal those of `fieldray demo drawn`
_KILLED_AFTER: Final = 30
_MORE: Final = "/srv/more"
_KEY: Final = "-".join(["0123"] * 16)  # a made-up fingerprint
_LIMIT_S: Final = 300
_RESULT: Final = re.compile(r"(\S+) +(\S+) +(\S+) +(/home/\S+)$")  # a row of `fieldray history show`
_VERDICTS: Final = """
    INSERT INTO verdicts (result_id, result_hash, choice, note, given_s, content_sha256, category, score)
    SELECT id, result_hash, 'disagree', 'тінь ребра', saved_s, content_sha256, category, score FROM results LIMIT 3
"""


class Update:
    """The work of a user with an earlier and a new version. Methods raise UnexpectedResult if results are lost."""

    def __init__(self, trial: InstallTrial) -> None:
        self._trial, self._user = trial, trial.root.add_user("iryna", number=2000, home="/home/iryna")
        self._home = trial.root.inside("/home/iryna/.local/share/fieldray")

    def work_with_old_version(self) -> dict[str, Any]:
        """Work with the earlier version: choose a pack, trust a key, screen images, give verdicts, kill a run.

        Returns the output of commands about this work, as `shown_data` does.
        """
        self._output_of("packs", "default", PACK)
        self._output_of("packs", "trust", _KEY)
        self._output_of("demo", "drawn", "--pack", PACK, "--no-window", "--folder", "/home/iryna/images")
        with contextlib.closing(sqlite3.connect(self._home / "results.sqlite")) as database, database:
            database.execute(_VERDICTS)  # only the window gives verdicts
        command = (PROGRAM, "screen", _MORE, "--pack", PACK, "--json", "/home/iryna/killed.jsonl")
        killed = self._trial.root.start(*command, user=self._user, environment={})
        deadline_s = time.monotonic() + _LIMIT_S
        while smoke_steps.count_stored_results(self._trial, self._user) < _KILLED_AFTER:
            if killed.poll() is not None or time.monotonic() > deadline_s:
                raise UnexpectedResult(f"the run was not under way any more to be killed: {killed.poll()}")
            time.sleep(0.02)
        killed.kill()
        killed.communicate()
        return self.shown_data()

    def shown_data(self, program: str = PROGRAM) -> dict[str, Any]:
        """Return the runs, the trusted keys, and the results of the first run, as `program` shows them.

        A result has score, threshold, verdict and file. Class names and notes are left out, because a later version may
        have other words.
        """
        runs = json.loads("\n".join(self._output_of("history", "list", "--json", "-", program=program)))["runs"]
        listed = self._output_of("history", "show", str(min(run["run"] for run in runs)), program=program)
        return {
            "runs": runs,
            "results": [" ".join(found) for line in listed for found in _RESULT.findall(line)],
            "keys": [line for line in self._output_of("packs", "trust", program=program) if _KEY in line],
        }

    def require_kept(self, before: dict[str, Any], program: str = PROGRAM) -> None:
        """Raise UnexpectedResult if `program` does not show all runs, results and keys of `before`, unchanged.

        A later version may show more about a run.
        """
        now = self.shown_data(program)
        for run in before["runs"]:
            same = next((other for other in now["runs"] if other["run"] == run["run"]), {})
            if lost := {name for name in run if same.get(name) != run[name]}:
                raise UnexpectedResult(f"run {run['id']} lost or changed {sorted(lost)}: {same}")
        for name in ("results", "keys"):
            if missing := [line for line in before[name] if line not in now[name]]:
                raise UnexpectedResult(f"{name} are not as they were, {len(missing)} lines: {missing[:3]}")
        is_judged = any(" disagree " in line for line in before["results"])
        if not (before["keys"] and len(before["runs"]) > 1 and is_judged):
            raise UnexpectedResult("there was nothing to lose")

    def require_resumed(self) -> str:
        """Screen the images of the killed run with the new version. Returns a sentence about the result.

        Raises UnexpectedResult unless the results of the killed run are reused. With another version of the pack, all
        images must be screened again instead.
        """
        packs = {run["pack"] for run in self.shown_data()["runs"]}
        done = self._trial.root.run(PROGRAM, "screen", _MORE, "--pack", PACK, "--json", "-", user=self._user)
        taken = [line for line in done.errors if " from an earlier run" in line]
        counts = [int(word) for line in taken for word in line.split() if word.isdigit()]
        is_other_pack = {run["pack"] for run in self.shown_data()["runs"]} != packs
        is_resumed = any(_KILLED_AFTER <= count < _STUDIES for count in counts)
        if done.code or len(done.output) != _STUDIES or not (is_resumed or is_other_pack):
            raise UnexpectedResult("\n".join([f"not resumed: {len(done.output)} lines", *done.errors]))
        if is_other_pack:
            return "The pack has a new version, so all images of the killed run were screened with that version."
        return "The run that was killed under the earlier version went on."

    def require_downgrade(self, before: dict[str, Any]) -> str:
        """Check that the earlier version, installed again, shows all results of `before`. Returns a phrase to print.

        The earlier version may instead give one message about the later version, and change no file. Otherwise raises
        UnexpectedResult.
        """
        files = self._digests()
        listed = self._run("history", "list", "--json", "-")
        if listed.code == 0:
            self.require_kept(before)
            return "its results are there"
        if len(listed.errors) != 1 or "version" not in listed.errors[0] or files != self._digests():
            raise UnexpectedResult("\n".join(["the earlier version, over a later one's results", *listed.errors]))
        return listed.errors[0]

    def _digests(self) -> dict[str, bytes]:
        names = ("results.sqlite", "settings.json", "pack_trust.json")
        return {name: (self._home / name).read_bytes() for name in names if (self._home / name).exists()}

    def _run(self, *arguments: str, program: str = PROGRAM) -> CommandResult:
        return self._trial.root.run(program, *arguments, user=self._user, limit_s=_LIMIT_S)

    def _output_of(self, *arguments: str, program: str = PROGRAM) -> tuple[str, ...]:
        done = self._run(*arguments, program=program)
        if done.code:
            raise UnexpectedResult("\n".join([f"{done.command} ended with {done.code}", *done.output, *done.errors]))
        return done.output


def main() -> int:
    """Test an update, as the command line says. Returns 0 if nothing was lost, else 1."""
    parser = argparse.ArgumentParser(description="Test an update and a downgrade with existing results.")
    parser.add_argument("old", type=Path, help="Debian package of the old version")
    parser.add_argument("new", type=Path, help="Debian package of the new version")
    parser.add_argument("--portable", type=Path, help="also test this portable archive")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "smoke", help="cache for the root file system")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("run this as root")
    if "FIELDRAY_ALONE" not in os.environ:
        clean_root.prepared_base(options.cache.resolve(), options.new)
        return clean_root.run_isolated([sys.executable, *sys.argv])
    base = options.cache.resolve() / clean_root.release_name()
    with clean_root.copied_root(base, options.cache.resolve() / "update", size_mb=_ROOM_MB) as root:
        trial = InstallTrial(root, options.old, options.new, options.portable)
        try:
            _update(trial)
        except (UnexpectedResult, OSError, subprocess.SubprocessError) as problem:
            sys.stdout.write(f"FAILED: {type(problem).__name__}: {problem}\n")
            return 1
    return 0


def _update(trial: InstallTrial) -> None:
    from fieldray.imaging.synthetic import write_studies

    write_studies(trial.root.inside(_MORE), count=_STUDIES)
    _install(trial, trial.package)
    update = Update(trial)
    before = update.work_with_old_version()
    _install(trial, trial.newer_package)
    update.require_kept(before)
    _say(f"{len(before['runs'])} runs, trusted keys and choices are unchanged after the update.")
    _say(update.require_resumed())
    after = update.shown_data()
    if trial.portable_archive:
        place = trial.root.inside("/srv/portable")
        place.mkdir()
        subprocess.run(["tar", "-xf", trial.portable_archive, "-C", place, "--strip-components=1"], check=True)
        update.require_kept(after, "/srv/portable/fieldray")
        _say("The portable archive shows equal results.")
    _install(trial, trial.package)
    _say(f"After the downgrade: {update.require_downgrade(after)}")


def _install(trial: InstallTrial, package: Path) -> None:
    """Install a .deb file with its dependencies in the small system. The version may be newer or older."""
    options = ("-o", "APT::Sandbox::User=root", "--yes", "--allow-downgrades", "--reinstall", "--no-install-recommends")
    done = trial.root.run("apt-get", "install", *options, trial.copy_into_root(package))
    if done.code:
        raise UnexpectedResult("\n".join([done.command, *done.output, *done.errors]))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "app"))
    sys.exit(main())
