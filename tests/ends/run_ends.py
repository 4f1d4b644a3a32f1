"""Ends many windows by a signal at random moments on a busy machine: `make ends`, or

    python tests/ends/run_ends.py [--windows 1000] [--at-once 6] [--seed 1]

Each window begins to screen drawn images. Up to `_LONGEST_S` after it handles signals, it gets SIGTERM, SIGINT or
SIGHUP. It must end in order (exit code 0) within `_LIMIT_S`. Otherwise the figures keep the stacks of its threads.
Several windows at once are the load: with six on two cores each waits for the others all the time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.runner import RunResult, long_run, say

_LONGEST_S: Final = 3.0
_LIMIT_S: Final = 180.0  # the window waits at most 30 s for its parts to close, and longer on a busy machine
_START_LIMIT_S: Final = 600.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WINDOW: Final = "import sys; from fieldray.__main__ import open_in_window; sys.exit(open_in_window(sys.argv[1:]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a window. `code` is None if it did not end or never opened; `stacks` are those of its threads."""

    signal: str
    after_s: float
    code: int | None
    seconds: float
    stacks: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this run."""
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=6, help="windows side by side (default: 6)")


def run(options: argparse.Namespace) -> RunResult:
    """Start and end all windows. The facts have those that did not end in order."""
    from fieldray.imaging.synthetic import write_studies

    for number in set(_SIGNALS):  # else windows inherit ignored signals, as after `nohup` or `&`
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    chance = random.Random(options.seed)
    moments = [(chance.choice(_SIGNALS), chance.uniform(0, _LONGEST_S)) for _ in range(options.windows)]
    ends = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        write_studies(Path(folder, "images"), count=8)
        for count, end in enumerate(pool.map(lambda moment: _ended(Path(folder), *moment), moments), 1):
            ends.append(end)
            if count % 50 == 0 or end.code != 0:
                say(f"{count} windows, the last with {end.code} after {end.seconds:.1f} s{end.stacks}")
    amiss = [end for end in ends if end.code != 0]
    facts = {
        "windows": len(ends),
        "at once": options.at_once,
        "signals": Counter(end.signal for end in ends),
        "exit codes": Counter(str(end.code) for end in ends),
        "longest end, s": max(end.seconds for end in ends),
        "amiss": [asdict(end) for end in amiss],
    }
    sentence = f"{len(ends)} windows were asked to end, {len(amiss)} did not in order, in {{seconds}}"
    return RunResult(facts=facts, sentence=sentence, holds=not amiss)


def _ended(folder: Path, number: signal.Signals, after_s: float) -> End:
    """Start a window, wait until it handles signals and `after_s` more, send the signal, and wait for its end."""
    with tempfile.TemporaryDirectory(dir=folder) as home, tempfile.TemporaryFile(dir=folder) as words:
        settings = Path(home, "settings.json")
        settings.write_text('{"pack": "pneumonia-paediatric"}', encoding="utf-8")  # else it asks for the patients' ages
        command = [sys.executable, "-X", "faulthandler", "-P", "-c", _WINDOW, str(folder / "images")]
        environment = {**os.environ, "FIELDRAY_HOME": home, "QT_QPA_PLATFORM": "offscreen"}
        process = subprocess.Popen(command, env=environment, stdout=words, stderr=words)
        try:
            began_s = time.monotonic()
            try:
                _wait_until_heard(process, number)
                time.sleep(after_s)
                began_s = time.monotonic()
                process.send_signal(number)
                code: int | None = process.wait(_LIMIT_S)
            except (TimeoutError, subprocess.TimeoutExpired):
                code = None
                process.send_signal(signal.SIGABRT)  # faulthandler writes all stacks
                process.wait(_LIMIT_S)
            seconds = round(time.monotonic() - began_s, 2)
        finally:
            process.kill()
            process.wait()
        words.seek(0)
        stacks = words.read().decode(errors="replace") if code != 0 else ""
    return End(signal=number.name, after_s=round(after_s, 3), code=code, seconds=seconds, stacks=stacks[-20_000:])


def _wait_until_heard(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Wait until the window has its own signal handlers, as listed in /proc (proc(5)). Raises TimeoutError."""
    wanted = 1 << (number - 1) | 1 << (signal.SIGTERM - 1)  # Python itself catches SIGINT earlier
    deadline_s = time.monotonic() + _START_LIMIT_S
    status = Path(f"/proc/{process.pid}/status")
    while True:
        caught = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) & wanted == wanted:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the window did not come up to hear {number.name}")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/ends.json"))
