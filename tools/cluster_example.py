"""Does what docs/cluster-example.md says: python tools/cluster_example.py FOLDER

Its recipes and commands are read from the page. While the archive is screened a worker is killed, and in the end the
decisions are compared with those of `fieldray screen` in another home.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGE: Final = ROOT / "docs" / "cluster-example.md"
_SHOWN: Final = 6
_BLOCK: Final = re.compile(r"^```([a-z]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FINGERPRINT: Final = re.compile(r"\b[0-9a-f]{4}(?:[ :-]?[0-9a-f]{4}){7,}\b", re.IGNORECASE)


def main() -> int:
    """Follow the page; 0 where the decisions are the same."""
    parser = argparse.ArgumentParser(description="Does what docs/cluster-example.md says.")
    parser.add_argument("folder", type=Path, help="an empty folder, or one of an earlier start")
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    began_s, said, known = time.monotonic(), "", dict[str, str]()
    for name, text in recipes():
        (folder / name).write_text(text, encoding="utf-8")
    for command in commands():
        if "PACK" in command and "PACK" not in known:
            known["PACK"] = _best_pack(folder)
        if "FINGERPRINT" in command and "FINGERPRINT" not in known:
            known["FINGERPRINT"] = _fingerprint(said)
        words = [known.get(word, word) for word in command]
        _say(f"$ {shlex.join(command)}\n")
        said = _run(words, folder, home="home", kills_worker=words[1:3] == ["archive", "screen"])
    _run(words, folder, home="other-home")
    same, count = _compared(folder)
    _say(f"{count} images, {same} with the same decisions and scores; {time.monotonic() - began_s:.0f} s\n")
    return 0 if same == count else 1


def recipes() -> Iterator[tuple[str, str]]:
    """(Name, text) of the recipes on the page."""
    for kind, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "toml":
            yield text.splitlines()[0].removeprefix("# "), text


def commands() -> Iterator[list[str]]:
    """The words of the commands on the page, in their order."""
    for kind, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if not kind:
            yield from map(shlex.split, text.splitlines())


def _run(words: list[str], folder: Path, *, home: str, kills_worker: bool = False) -> str:
    """Run a command of the page with this very Python; what it said. Raises SystemExit where it ends badly."""
    program, *rest = words
    script = [str(ROOT / rest.pop(0))] if program.endswith("python") else ["-m", "fieldray"]
    environment = {**os.environ, "FIELDRAY_HOME": str(folder / home)}
    with subprocess.Popen(
        [sys.executable, *script, *rest], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        if kills_worker:
            _kill_worker(process, folder / "archive-run" / "chunks")
        assert process.stdout
        said = process.stdout.read()
    _say("".join(said.splitlines(keepends=True)[-_SHOWN:]))  # of a list of all images the end
    if process.returncode:
        raise SystemExit(process.returncode)
    return said


def _kill_worker(driver: subprocess.Popen[str], chunks: Path) -> None:
    """End a worker once the first results are there."""
    import psutil

    from benchmarks.cluster_kills import nodes_of

    while driver.poll() is None:
        if chunks.is_dir() and any(chunks.glob("*.parquet")):
            for worker in nodes_of(psutil.Process(driver.pid), "worker")[:1]:
                _say(f"(worker {worker.pid} is killed)\n")
                worker.kill()
                return
        time.sleep(0.02)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _best_pack(folder: Path) -> str:
    board = json.loads((folder / "sweep" / "leaderboard.json").read_text(encoding="utf-8"))
    (best,) = (row for row in board if row["is_best"])
    return str(Path("sweep") / best["pack"])


def _fingerprint(said: str) -> str:
    found = _FINGERPRINT.search(said)
    if not found:
        raise SystemExit(f"no fingerprint in: {said}")
    return found[0]


def _compared(folder: Path) -> tuple[int, int]:
    """How many images have the same outcome in both homes, and how many there are in either."""
    from benchmarks.cluster_runs import differences, stored

    one, other = stored(folder / "home"), stored(folder / "other-home")
    count = len(one.keys() | other.keys())
    return count - differences(one, other), count


if __name__ == "__main__":
    sys.exit(main())
