"""Build the documents into one folder of pages that needs no network: `make docs`.

    python tools/build_docs.py [--out build/docs]

Pages are copied from `docs/`, each with a link to the glossary. Others are made here: the command line from the parser,
an API page per package from its docstrings, the lists of decisions and benchmarks. Zensical builds them in strict mode.
Then every link and anchor of the result is followed. Anything that a browser would fetch from elsewhere is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from benchmark_pages import pages, read_front_matter, state, with_note

ROOT: Final = Path(__file__).resolve().parent.parent
APP: Final = ROOT / "app"
COMMANDS: Final = "<!-- @COMMANDS -->"
_LINK: Final = re.compile(r"(?<!!)\[([^\]\[]+)\]\(([^)\s]+)\)")
_FETCHING: Final = frozenset({"script", "img", "iframe", "source", "audio", "video", "embed", "object"})


def main() -> int:
    """Build and check the documents. Returns 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description="Build the documents.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    folder = parser.parse_args().out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder)
    config = folder / "mkdocs.yml"
    built = subprocess.run(
        [sys.executable, "-P", "-m", "zensical", "build", "--strict", "-f", str(config)], check=False
    )
    if built.returncode:
        return built.returncode
    faults = sorted(faults_of(folder / "site"))
    lines = faults or [f"{folder / 'site' / 'index.html'}: every link leads somewhere"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if faults else 0


# ---- the pages


def stage(folder: Path) -> None:
    """Write all pages and their configuration to `folder`. Raises ValueError for a broken link."""
    source = folder / "source"
    for path in sorted((ROOT / "docs").rglob("*")):
        target = source / path.relative_to(ROOT / "docs")
        if path.is_dir():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(page_text(path), encoding="utf-8")
        else:
            shutil.copyfile(path, target)
    rooms = write_api(source / "api")
    lists = {"decisions": names(source / "decisions"), "benchmarks": names(source / "benchmarks"), "api": rooms}
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("[../../app]", f"[{ROOT / 'app'}]")
    for name, listed in lists.items():
        config = _filled(config, f'"@{name}"', [f"{name}/{page}" for page in listed])
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")


def page_text(path: Path) -> str:
    """Return a page of `docs/` with its generated parts. Links out of `docs/` become plain text."""
    text = path.read_text(encoding="utf-8")
    if COMMANDS in text:
        text = text.replace(COMMANDS, "\n\n".join(command_pages()))
    if path == ROOT / "docs" / "decisions" / "README.md":
        text = text + decision_list(path.parent)
    if path.parent.name == "benchmarks":
        text = text + benchmark_list(path.parent) if path.name == "README.md" else benchmark_page(text)

    def local(match: re.Match[str]) -> str:
        label, link = match.groups()
        if urlsplit(link).scheme or link.startswith("#"):
            return match.group()
        target = (path.parent / unquote(link.partition("#")[0])).resolve()
        is_made = target.is_relative_to(ROOT / "docs" / "api")
        if not (is_made or target.exists()):
            raise ValueError(f"{path.relative_to(ROOT)}: {link} leads nowhere")
        return match.group() if target.is_relative_to(ROOT / "docs") else label

    return _LINK.sub(local, text) + glossary_link(path)


def glossary_link(path: Path) -> str:
    """Return the last line of a page, a link to the glossary; "" for the glossary."""
    if path.name == "glossary.md":
        return ""
    return f"\n---\n\n[Glossary]({'../' * (len(path.relative_to(ROOT / 'docs').parts) - 1)}glossary.md)\n"


def names(folder: Path) -> list[str]:
    """Return the pages of a folder, the README first."""
    return ["README.md", *(path.name for path in pages(folder))]


def _filled(config: str, mark: str, listed: list[str]) -> str:
    line = next(line for line in config.splitlines() if mark in line)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return config.replace(f" {mark}", "".join(f"\n{indent}- {page}" for page in listed))


# ---- the command line


def command_pages() -> list[str]:
    """Return the `--help` texts of the program and of each command, as Markdown."""
    sys.path.insert(0, str(ROOT / "app"))
    from fieldray.cli import command_parser

    return [f"## `{prog}`\n\n```text\n{text.strip()}\n```" for prog, text in helps(command_parser())]


def helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield (name, help) of a parser and of all its subcommands."""
    yield parser.prog, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from helps(below)


# ---- the API


def write_api(folder: Path) -> list[str]:
    """Write a page for each sub-package, which mkdocstrings fills. Returns the names of the pages."""
    folder.mkdir(parents=True)
    program = APP / "fieldray"
    places = [path for path in sorted([*program.iterdir(), *APP.glob("fieldray_*")]) if path.is_dir()]
    rooms = {path.name: found for path in places if (found := sorted(path.rglob("*.py")))}
    rooms["program"] = sorted(program.glob("*.py"))
    for name, modules in rooms.items():
        dotted = [".".join(path.relative_to(APP).with_suffix("").parts) for path in modules]
        entries = [f"::: {module}" for module in dotted if not module.endswith("__")]
        (folder / f"{name}.md").write_text("\n\n".join([f"# {name}", *entries]) + "\n", encoding="utf-8")
    listed = "\n".join(f"- [{name}]({name}.md): {len(modules)} modules" for name, modules in rooms.items())
    text = f"# API\n\nMade from the docstrings, one page per package.\n\n{listed}\n\n[Glossary](../glossary.md)\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    return ["README.md", *(f"{name}.md" for name in rooms)]


# ---- the benchmarks


def benchmark_page(text: str) -> str:
    """Return a benchmark page with the facts of its measurement, and a note if it is stale."""
    found = read_front_matter(text)
    return with_note(text.partition("\n---\n")[2], found, state(found))


def benchmark_list(folder: Path) -> str:
    """Return a list of links to the benchmark pages."""
    rows = []
    for path in pages(folder):
        found = read_front_matter(path.read_text(encoding="utf-8"))
        now = state(found).sentence.removeprefix("Stale: ").removesuffix(".") or "current"
        rows.append(f"| {found.date} | [{found.title}]({path.name}) | `{found.commit}` | {now} |")
    return (
        "\n## Pages\n\n| Date | What | Commit | State of the measured code |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


# ---- the decisions


def decision_list(folder: Path) -> str:
    """Return a list of links to the decisions, with title and day."""
    rows = []
    for path in pages(folder):
        title, _, day = path.read_text(encoding="utf-8").splitlines()[:3]
        rows.append(f"| {day.strip('*')} | [{title.removeprefix('# ')}]({path.name}) |")
    return "\n| Date | Decision |\n|---|---|\n" + "\n".join(rows) + "\n"


# ---- the check


class _Page(HTMLParser):
    """The anchors of an HTML page, its links, and the files that a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and "canonical" not in found.get("rel", ""):
            self.fetched.append(found.get("href", ""))
        elif tag in _FETCHING and ("src" in found or "data" in found):
            self.fetched.append(found.get("src") or found["data"])


def faults_of(site: Path) -> Iterator[str]:
    """Yield the faults of the pages below `site`: broken links, and files that would be fetched from elsewhere."""
    built = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in built.items():
        where = path.relative_to(site)
        for link in page.fetched:
            if urlsplit(link).scheme not in ("", "data") or link.startswith("//"):
                yield f"{where}: fetches {link}"
            elif not urlsplit(link).scheme and not _target(path, link).exists():
                yield f"{where}: {link} is not there"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = _target(path, parts.path) if parts.path else path
            if not target.exists():
                yield f"{where}: {link} leads nowhere"
            elif parts.fragment and target in built and unquote(parts.fragment) not in built[target].anchors:
                yield f"{where}: {link} names no place in that page"
    for path in site.rglob("*.css"):
        for found in re.findall(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text("utf-8")):
            yield f"{path.relative_to(site)}: fetches {found}"


def _target(page: Path, link: str) -> Path:
    return (page.parent / unquote(urlsplit(link).path)).resolve()


if __name__ == "__main__":
    sys.exit(main())
