"""Build the documents as HTML pages that need no network: `make docs`.

    python tools/build_docs.py [--out build/docs]

The script copies the pages of `docs/` and adds a link to the glossary to each page. It generates more pages: the
commands from the argument parser, the API of each package from the docstrings, the lists of decisions and benchmarks.
Zensical then builds all pages in strict mode. At the end, the script checks every link and anchor of the HTML pages.
Anything that a browser would fetch from another computer is an error.
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

from benchmark_pages import add_page_note, list_pages, page_state, read_front_matter

ROOT: Final = Path(__file__).resolve().parent.parent
APP: Final = ROOT / "app"
COMMANDS: Final = "<!-- @COMMANDS -->"
_LINK: Final = re.compile(r"(?<!!)\[([^\]\[]+)\]\(([^)\s]+)\)")
_FETCHING: Final = frozenset({"script", "img", "iframe", "source", "audio", "video", "embed", "object"})


def main() -> int:
    """Build the documents and check their links. Returns 0 if no fault is found."""
    parser = argparse.ArgumentParser(description="Build the documents.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="output folder (default: build/docs)")
    folder = parser.parse_args().out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    stage_pages(folder)
    config = folder / "mkdocs.yml"
    built = subprocess.run(
        [sys.executable, "-P", "-m", "zensical", "build", "--strict", "-f", str(config)], check=False
    )
    if built.returncode:
        return built.returncode
    faults = sorted(find_faults(folder / "site"))
    lines = faults or [f"{folder / 'site' / 'index.html'}: every link leads somewhere"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if faults else 0


# ---- the pages


def stage_pages(folder: Path) -> None:
    """Write all Markdown pages and the file mkdocs.yml to `folder`. Raises ValueError if a page has a broken link."""
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
    lists = {
        "decisions": page_names(source / "decisions"),
        "benchmarks": page_names(source / "benchmarks"),
        "api": rooms,
    }
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("[../../app]", f"[{ROOT / 'app'}]")
    for name, listed in lists.items():
        config = _filled(config, f'"@{name}"', [f"{name}/{page}" for page in listed])
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")


def page_text(path: Path) -> str:
    """Return the text of a Markdown page of `docs/`, complete with its generated lists and the link to the glossary.

    A link to a file outside of `docs/` becomes plain text. Raises ValueError if the file of a link does not exist.
    """
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
    """Return the Markdown link to the glossary that ends the page at `path`; "" if the page is the glossary."""
    if path.name == "glossary.md":
        return ""
    return f"\n---\n\n[Glossary]({'../' * (len(path.relative_to(ROOT / 'docs').parts) - 1)}glossary.md)\n"


def page_names(folder: Path) -> list[str]:
    """Return the file names of all Markdown pages in `folder`, README.md first."""
    return ["README.md", *(path.name for path in list_pages(folder))]


def _filled(config: str, mark: str, listed: list[str]) -> str:
    line = next(line for line in config.splitlines() if mark in line)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return config.replace(f" {mark}", "".join(f"\n{indent}- {page}" for page in listed))


# ---- the command line


def command_pages() -> list[str]:
    """Return the `--help` texts of `fieldray` and of each subcommand, each as a Markdown section."""
    sys.path.insert(0, str(ROOT / "app"))
    from fieldray.cli import command_parser

    return [f"## `{prog}`\n\n```text\n{text.strip()}\n```" for prog, text in help_texts(command_parser())]


def help_texts(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the program name and the help text of `parser`, then of each of its subcommands, at any depth."""
    yield parser.prog, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from help_texts(below)


# ---- the API


def write_api(folder: Path) -> list[str]:
    """Write an API page for each sub-package to `folder`. mkdocstrings later puts in the docstrings.

    Returns the file names of the pages, README.md first.
    """
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
    """Move the front matter of a benchmark page below its title, and add a warning if the page is stale.

    `text` is the whole Markdown page. Raises ValueError if the front matter is malformed.
    """
    found = read_front_matter(text)
    return add_page_note(text.partition("\n---\n")[2], found, page_state(found))


def benchmark_list(folder: Path) -> str:
    """Return a Markdown table of the benchmark pages in `folder`: date, link, commit, and whether the page is stale."""
    rows = []
    for path in list_pages(folder):
        found = read_front_matter(path.read_text(encoding="utf-8"))
        now = page_state(found).sentence.removeprefix("Stale: ").removesuffix(".") or "current"
        rows.append(f"| {found.date} | [{found.title}]({path.name}) | `{found.commit}` | {now} |")
    return (
        "\n## Pages\n\n| Date | What | Commit | State of the measured code |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


# ---- the decisions


def decision_list(folder: Path) -> str:
    """Return a Markdown table of the decisions in `folder`: the date of each decision, and its title as a link."""
    rows = []
    for path in list_pages(folder):
        title, _, day = path.read_text(encoding="utf-8").splitlines()[:3]
        rows.append(f"| {day.strip('*')} | [{title.removeprefix('# ')}]({path.name}) |")
    return "\n| Date | Decision |\n|---|---|\n" + "\n".join(rows) + "\n"


# ---- the check


class _Page(HTMLParser):
    """The anchors and links of an HTML page, and the addresses of files that a browser fetches to show the page."""

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


def find_faults(site: Path) -> Iterator[str]:
    """Yield a line for each fault in the HTML and CSS files below `site`.

    A fault is a broken link, or a file that a browser would fetch from another computer.
    """
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
