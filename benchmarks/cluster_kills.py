"""Kill random processes while an archive is screened, and during a sweep of short trainings, and check the results."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import cluster_runs
from benchmarks.cluster_runs import ImageResults
from benchmarks.processes import CHECKOUT
from benchmarks.screening import ScreeningFailed
from fieldray.paths import python_command

Notify = Callable[[str], None]

_CALM_S: Final = (1.0, 8.0)
_TRIAL_CALM_S: Final = (10.0, 30.0)
_KILLED: Final = -9
_PATIENTS: Final = "60"

_RECIPE: Final = """
labels = [{ code = "opacity", positive = ["opacity"] }]
[pack]
id = "short"
names = { en = "Short" }
[input]
height = 32
width = 32
[network]
blocks = [1]
width = 0.125
[[data]]
path = "images"
patient = '^(p[0-9]+)'
[training]
epochs = 1
batch_size = 16
images_per_epoch = 64
threads = 1
"""
_SWEEP: Final = """
run = "sweep"
seed = 1
[cluster]
workers = 2
preemptible = true
[sweep]
recipe = "short.toml"
trials = {trials}
[sweep.keys]
"training.learning_rate" = {{ low = 1e-4, high = 1e-2, scale = "log" }}
"training.batch_size" = [8, 16]
"""


def screen_archive_with_kills(
    images: Path, folder: Path, options: Sequence[str], expected: ImageResults, *, kills: int, seed: int, notify: Notify
) -> dict[str, Any]:
    """Screen an archive with two workers, and kill random processes `kills` times.

    The driver (the process of the command) is started again if it was killed. Returns the numbers of killed processes
    and of starts, the numbers of lost and differing results, and sentences for the report. Raises ScreeningFailed if
    the command fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    chance, killed, starts = random.Random(seed), Counter[str](), 0
    command = cluster_runs.screening_command(images, folder, ("--chunk", "32", *options), workers=2)
    began_s = time.perf_counter()
    while True:
        starts += 1
        with cluster_runs.start_command(command, folder / "home") as process:
            while process.poll() is None and sum(killed.values()) < kills:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(chance.uniform(*_CALM_S))
                    break
                role = chance.choice(("driver", "scheduler", "worker"))
                notify(f"kill {sum(killed.values()) + 1} of {kills}: {role}")
                killed[role] += _killed_one(process.pid, role, chance)
            assert process.stderr
            said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode in cluster_runs.COMPLETED_EXIT_CODES and (folder / "out" / "merged.json").exists():
            break
        if process.returncode != _KILLED:
            raise ScreeningFailed(f"the driver ended with exit code {process.returncode}: {said}")
    if sum(killed.values()) < kills:
        raise ScreeningFailed(f"the archive was complete after {sum(killed.values())} kills: choose a larger --count")
    total_s, kept = time.perf_counter() - began_s, cluster_runs.count_faults(folder / "home", expected)
    names = ", ".join(f"{number} {role}" for role, number in sorted(killed.items()))
    sentence = f"Killed: {names}. The driver was started {starts} times. Total time: {total_s:.0f} s."
    figures = {"killed": dict(killed), "starts": starts, "total_s": total_s, **kept}
    return {**figures, "sentences": [sentence, cluster_runs.faults_sentence(kept)]}


def run_sweep_with_kills(folder: Path, *, trials: int, kills: int, seed: int, notify: Notify) -> dict[str, Any]:
    """Run a sweep of short trainings with two workers, and kill random workers `kills` times.

    Then the finished sweep is started again, which must do nothing. Returns the numbers of trials by state, the times,
    and sentences for the report. Raises ScreeningFailed if the sweep fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    drawing = [sys.executable, str(CHECKOUT / "tools" / "draw_classes.py"), "images", "--patients", _PATIENTS]
    subprocess.run(drawing, cwd=folder, check=True)
    (folder / "short.toml").write_text(_RECIPE, encoding="utf-8")
    (folder / "sweep.toml").write_text(_SWEEP.format(trials=trials), encoding="utf-8")
    chance, killed, began_s = random.Random(seed), 0, time.perf_counter()
    with _sweep(folder) as process:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(*_TRIAL_CALM_S))
                break
            if killed < kills:
                killed += _killed_one(process.pid, "worker", chance)
                notify(f"sweep: {killed} of {kills} workers killed")
    total_s = time.perf_counter() - began_s
    if process.returncode:
        raise ScreeningFailed(f"the sweep ended with {process.returncode}: {(folder / 'said.txt').read_text()}")
    board = json.loads((folder / "sweep" / "leaderboard.json").read_text(encoding="utf-8"))
    before = (folder / "sweep" / "journal.jsonl").read_bytes()
    began_s = time.perf_counter()
    with _sweep(folder) as process:
        process.wait()
    again_s, again = time.perf_counter() - began_s, (folder / "said.txt").read_text(encoding="utf-8").splitlines()
    if before != (folder / "sweep" / "journal.jsonl").read_bytes():
        raise ScreeningFailed("the finished sweep was changed when it was started again")
    has_pack = any((folder / "sweep" / row["pack"] / "manifest.json").exists() for row in board if row.get("pack"))
    states = dict(Counter(row["state"] for row in board))
    ended = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    words = again[0] if again else ""
    figures = {"trials": trials, "killed": killed, "states": states, "has_pack": has_pack, "total_s": total_s}
    sentences = [
        f"{trials} trials, {killed} workers killed. States of the trials: {ended}. Total time: {total_s:.0f} s.",
        f"The best trial has {'a' if has_pack else 'NO'} pack.",
        f"The finished sweep, started again, ended after {again_s:.1f} s with the message {words!r}.",
    ]
    return {**figures, "again_s": again_s, "again": words, "sentences": sentences}


def _sweep(folder: Path) -> subprocess.Popen[bytes]:
    command = python_command("fieldray.__main__", "workflow", "sweep", "sweep.toml")
    return cluster_runs.start_logged_command(command, folder / "home", folder / "said.txt", cwd=folder)


def _killed_one(pid: int, role: str, chance: random.Random) -> int:
    """Kill the process `pid` if `role` is "driver", else a random "scheduler" or "worker" that `pid` has started.

    Returns the number of killed processes: 1, or 0 if there is no such process.
    """
    with contextlib.suppress(psutil.Error, IndexError):
        driver = psutil.Process(pid)
        chance.choice([driver] if role == "driver" else find_node_processes(driver, role)).kill()
        return 1
    return 0


def find_node_processes(process: psutil.Process, role: str) -> list[psutil.Process]:
    """Return the running processes of a role ("scheduler" or "worker") that a process has started.

    Raises psutil.Error.
    """
    return [child for child in process.children(recursive=True) if _role_of(child) == role]


def _role_of(process: psutil.Process) -> str:
    """Return the role of a cluster process, "scheduler" or "worker"; "" for other processes."""
    with contextlib.suppress(psutil.Error):
        line = process.cmdline()
        return str(json.loads(line[-1])["role"]) if "fieldray_cluster.node_main" in line else ""
    return ""
