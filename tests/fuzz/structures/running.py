"""Runs a target in separate processes. If an input crashes or hangs one, that is a finding, and the run continues."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import psutil

from fuzz.structures.reading import Finding, Tally

_CHILD: Final = Path(__file__).with_name("child.py")
_GUIDED: Final = Path(__file__).with_name("guided.py")
_COVERED: Final = re.compile(r"cov: (\d+) .*corp: (\d+)")
_LOOK_S: Final = 1.0
# When an input counts as a hang: by CPU time, which a busy computer does not change, or by time without any CPU use.
_STUCK_CPU_S: Final = 20.0
_STUCK_S: Final = 300.0
_FAST: Final = Path("/dev/shm")


def run_target(name: str, *, inputs: int, seed: int) -> tuple[Tally, list[Finding]]:
    """Read `inputs` inputs of a target."""
    tally, findings, first = Tally(), dict[str, Finding](), 0
    while first < inputs:
        with _Process(_CHILD, name, seed, first, inputs) as process:
            if _heard_all(process, name, tally, findings):
                break
            first = process.at() + 1
    tally.inputs = inputs
    return tally, list(findings.values())


def run_guided(name: str, *, seconds: float, seed: int, corpus: Path) -> tuple[Tally, list[Finding], tuple[int, int]]:
    """Read inputs of a target for `seconds`. Inputs that reach more code are mutated further.

    corpus   a folder of inputs to begin with; inputs that reach more code are added

    Returns also how many places of the code were reached, and the number of inputs in the corpus.
    """
    tally, findings, covered = Tally(), dict[str, Finding](), (0, 0)
    until_s = time.monotonic() + seconds
    while (left_s := int(until_s - time.monotonic())) > 0:
        with _Process(_GUIDED, name, seed, left_s, corpus) as process:
            is_done = _heard_all(process, name, tally, findings)
            covered = max(covered, process.covered())
        if is_done:
            break
        seed += 1  # the same seed would lead to the same crash
    return tally, list(findings.values()), covered


def _heard_all(process: _Process, name: str, tally: Tally, findings: dict[str, Finding]) -> bool:
    """Collect the output of a process. Returns whether it finished; a crash or a hang is added as a finding."""
    for news in process.news():
        if isinstance(news, Tally):
            tally.add(news)
        else:
            findings.setdefault(news.kind, news)
    if process.end:
        kind = f"{process.end} {process.last_words()}".strip()
        findings.setdefault(kind, Finding(target=name, number=process.at(), kind=kind, data=process.input()))
        tally.outcomes["FOUND"] += 1
    return not process.end


class _Process:
    """A process that reads inputs. `end` says how it crashed or hung, and is empty if it finished."""

    def __init__(self, script: Path, *arguments: object) -> None:
        self.end = ""
        self._held = tempfile.TemporaryDirectory(prefix="fieldray-structures-", dir=_FAST if _FAST.is_dir() else None)
        self._folder = Path(self._held.name)
        self._errors = (self._folder / "errors").open("w+b")
        command = [sys.executable, "-X", "faulthandler", script, *arguments, self._folder]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=self._errors, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
        self._held.cleanup()

    def at(self) -> int:
        """Return the number of the current input."""
        with (self._folder / "at").open("rb") as stream:
            return int(struct.unpack("<q", stream.read(8))[0])

    def input(self) -> bytes:
        """Return the current input, if the process writes it down."""
        kept = (self._folder / "at").read_bytes()
        return kept[16 : 16 + struct.unpack("<q", kept[8:16])[0]] if len(kept) > 16 else b""

    def covered(self) -> tuple[int, int]:
        """Return libFuzzer's last numbers: places of the code that were reached, and inputs in the corpus."""
        found = _COVERED.findall((self._folder / "errors").read_text(errors="replace"))
        return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)

    def last_words(self) -> str:
        """Return the place of the program at which the process ended, else the last line of its errors."""
        lines = (self._folder / "errors").read_text(errors="replace").splitlines()
        places = [line.strip() for line in lines if "/app/fieldray/" in line]
        return places[0].partition("/app/fieldray/")[2] if places else "".join(lines[-1:])[:200]

    def news(self) -> Iterator[Tally | Finding]:
        """Yield the output of the process until its end. Kills it if an input hangs."""
        assert self._process.stdout is not None
        number, since, cpu_s = -1, time.monotonic(), 0.0
        while True:
            if select.select([self._process.stdout], [], [], _LOOK_S)[0]:
                line = self._process.stdout.readline()
                if not line:
                    break
                yield _heard(json.loads(line))
            with contextlib.suppress(OSError, struct.error, psutil.Error):  # struct.error: the process has not begun
                if (now := self.at()) != number:
                    number, since, cpu_s = now, time.monotonic(), self._cpu_s()
                if self._cpu_s() - cpu_s > _STUCK_CPU_S or time.monotonic() - since > _STUCK_S:
                    self.end = "hangs"
                    self._process.kill()
        code = self._process.wait()
        if code and not self.end:
            self.end = f"ends the process ({code})"

    def _cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


def _heard(facts: dict[str, Any]) -> Tally | Finding:
    if "target" in facts:
        return Finding(**{**facts, "data": base64.b64decode(facts["data"])})
    return Tally(**{**facts, "outcomes": Counter(facts["outcomes"]), "longest_s": tuple(facts["longest_s"])})
