"""Find stale benchmark pages: the measured code has changed since the commit that was measured.

    python tools/benchmark_pages.py            list all pages with their state; exit code 1 if a page is malformed

`build_docs.py` puts a note on top of each stale page. docs/benchmarks/README.md explains the format of a page. The
script needs only Git and the standard library.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_COMMIT: Final = re.compile(r"[0-9a-f]{7,40}")
_TEXTS: Final = ("title", "date", "commit", "machine", "command")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatter:
    """The facts of a measurement, at the top of its benchmark page. A changed file below `paths` makes the page stale.

    `paths` are relative to the root of the checkout. `commit` is the commit that was measured, or "unknown".
    """

    title: str
    date: str
    commit: str
    machine: str
    command: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """Whether a benchmark page is stale: the number of commits that changed the measured code after the measurement.

    `commits` is None if the commits cannot be counted. `problem` then says why.
    """

    commits: int | None
    problem: str = ""

    @property
    def sentence(self) -> str:
        """A sentence that says why the page is stale; "" if the page is current."""
        if self.commits is None:
            return f"Stale: {self.problem}."
        if not self.commits:
            return ""
        since = f"{self.commits} commit{'s have' if self.commits > 1 else ' has'}"
        return f"Stale: {since} changed the measured code since."


def read_front_matter(text: str) -> FrontMatter:
    """Parse the front matter of a benchmark page, a small subset of YAML. `text` is the whole page.

    Raises ValueError if a key is missing, unknown or malformed. The message names the key or quotes the line.
    """
    head, closing, _ = text.removeprefix("---\n").partition("\n---\n")
    if not text.startswith("---\n") or not closing:
        raise ValueError("it does not begin with front matter between two lines of ---")
    texts: dict[str, str] = {}
    paths: list[str] = []
    for line in head.splitlines():
        if line.startswith("  - "):
            paths.append(_unquoted(line.removeprefix("  - ")))
            continue
        key, colon, value = line.partition(":")
        if not colon or key in texts or key not in (*_TEXTS, "paths"):
            raise ValueError(f"this line is not understood: {line}")
        texts[key] = _unquoted(value)
    if missing := [key for key in (*_TEXTS, "paths") if not (paths if key == "paths" else texts.get(key))]:
        raise ValueError(f"missing: {', '.join(missing)}")
    _check(texts)
    return FrontMatter(**{key: texts[key] for key in _TEXTS}, paths=tuple(paths))


def _check(texts: Mapping[str, str]) -> None:
    datetime.date.fromisoformat(texts["date"])
    if texts["commit"] != "unknown" and not _COMMIT.fullmatch(texts["commit"]):
        raise ValueError(f"{texts['commit']} is no commit of at least seven digits, and not `unknown`")


def _unquoted(value: str) -> str:
    value = value.strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def page_state(page: FrontMatter, *, root: Path = ROOT) -> PageState:
    """Count the commits that changed the measured code since the measurement of `page`.

    `root` is the checkout. Raises OSError if Git is not installed.
    """
    if page.commit == "unknown":
        return PageState(commits=None, problem="nobody wrote down which commit was measured")
    command = ["git", "rev-list", "--count", f"{page.commit}..HEAD", "--", *page.paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        return PageState(commits=None, problem="the commit that was measured is not in this repository")
    return PageState(commits=int(done.stdout))


def list_pages(folder: Path) -> list[Path]:
    """Return the paths of all Markdown pages in `folder` except README.md, sorted by file name."""
    return sorted(path for path in folder.glob("*.md") if path.name != "README.md")


def add_page_note(text: str, page: FrontMatter, current_state: PageState) -> str:
    """Add the facts of the measurement below the title of a benchmark page, and a warning if the page is stale.

    `text` is the page as Markdown without its front matter, and `page` the front matter. Returns Markdown.
    """
    run = f"{page.date} at commit `{page.commit}` on {page.machine}"
    facts = f"Measured on {run}, but where another run is named.\n\n```\n{page.command}\n```\n\n"
    note = f'!!! warning "{current_state.sentence}"\n\n' if current_state.sentence else ""
    title, newline, rest = text.lstrip().partition("\n")
    if not title.startswith("# "):
        return note + facts + text
    return f"{title}{newline}\n{note}{facts}{rest}"


def main(folder: Path = ROOT / "docs" / "benchmarks", *, root: Path = ROOT) -> int:
    """Print the state of each benchmark page in `folder`. Returns 1 if a page is malformed, else 0."""
    faults = 0
    for path in list_pages(folder):
        try:
            found = read_front_matter(path.read_text(encoding="utf-8"))
        except ValueError as error:
            faults += 1
            sys.stdout.write(f"{path.name}: MALFORMED: {error}\n")
            continue
        sys.stdout.write(f"{path.name}: {page_state(found, root=root).sentence or 'current'}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
