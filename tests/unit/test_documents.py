"""README and documents: their length, links and commands, and whether their statements match the code."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import contents
from benchmark_pages import list_pages, read_front_matter
from build_docs import COMMANDS, command_pages, find_faults, page_text
from fieldray.cli import command_parser
from fieldray.reports.content import EXPORT_COLUMNS, image_result_values
from outcomes import refused
from shipped_packs import ADULTS, TUBERCULOSIS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
BENCHMARKS = list_pages(DOCS / "benchmarks")
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of_blocks(start: str) -> Iterator[tuple[str, list[str]]]:
    """(page, words) of every line in a code block that begins with a command."""
    for page in PAGES:
        for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            commands = [line.removeprefix(".venv/bin/") for line in block.splitlines() if not kind]
            for command in commands:
                if command.split()[:1] == [start]:
                    yield name_of(page), shlex.split(command, comments=True)[1:]


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.parametrize("pack", [TUBERCULOSIS, ADULTS], ids=name_of)
def test_the_readme_has_the_figures_of_the_manifests(pack: Path) -> None:
    (label,) = json.loads((pack / "manifest.json").read_bytes())["metrics"]["labels"].values()
    auc = label["external_test"]["auc"]
    said = f"{auc['value']:.2f} ({auc['low']:.2f} to {auc['high']:.2f})"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / unquote(place)).resolve() if place else page
        made = target.is_relative_to(DOCS / "api")  # made from the docstrings when the pages are built
        assert made or target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_command_of_the_documents_exists() -> None:
    asked = list(lines_of_blocks("fieldray"))
    assert len(asked) > 6
    for page, words in asked:
        assert not words or command_parser().parse_args(words), page


def test_every_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8")))
        assert named <= targets, name_of(page)
    assert {words[0] for _, words in lines_of_blocks("make")} <= targets


def test_the_page_of_the_command_line_has_every_command() -> None:
    text = page_text(DOCS / "command-line.md")
    assert COMMANDS not in text
    assert len(command_pages()) > 12
    assert all(f"## `fieldray {name}`" in text for name in ("screen", "packs list", "doctor", "bench device", "adapt"))


def typed(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All commands, with their parent command, and all long options of a parser."""
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        for below in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield below.prog.removeprefix("fieldray ")
            yield from typed(below)


def test_every_command_and_option_is_named_on_a_written_page() -> None:
    """Not counting the generated page of all commands. Keys of recipes are tested in test_recipes.py, those of the
    window in test_guide.py.
    """
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if "decisions" not in page.parts)
    names = list(typed(command_parser()))
    assert len(names) > 100
    assert [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_every_built_page_links_to_the_glossary(page: Path) -> None:
    assert page.name == "glossary.md" or "glossary.md)\n" in page_text(page)[-40:]


def test_every_page_stands_in_the_order_of_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    folders = {"decisions", "benchmarks"}  # these are listed by `make docs`
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.parent.name not in folders}
    assert listed == there


def test_every_column_of_exports_is_explained() -> None:
    text = (DOCS / "csv-columns.md").read_text(encoding="utf-8")
    assert [name for name in EXPORT_COLUMNS if f"`{name}`" not in text] == []


def test_the_line_of_json_has_every_key() -> None:
    """And no other key: the example line and the table below it have exactly the keys of a line."""
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    (block,) = (block for kind, block in BLOCK.findall(text) if kind == "json")
    shown, line = json.loads(block), image_result_values(refused(), pack="", model_sha256="")
    assert list(shown) == [*line, "images", "taken_over_by"]
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert [key for key in (*shown, *shown["lungs"]) if f"`{key}`" not in rows] == []


def test_the_architecture_names_every_layer() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]
    rooms = {name.strip(" ()") for layer in contract["layers"] for name in re.split(r"[|:]", layer)}
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert {room for room in rooms if not re.search(rf"\b{room}\b", text)} == set()


def test_every_file_named_for_a_kind_of_change_exists() -> None:
    text = (DOCS / "contributing.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:app|assets|benchmarks|docs|models|tests|tools)/[a-z0-9_/.-]+)`", text))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_citation_names_the_version() -> None:
    assert f"\nversion: {contents.version()}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_list_of_decisions_is_complete() -> None:
    text = page_text(DOCS / "decisions" / "README.md")
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [path.name for path in pages] == re.findall(r"\]\((\d{4}-[^)]+)\)", text)
    assert len({path.name[:4] for path in pages}) == len(pages)
    assert all(re.search(r"^\*20\d\d-\d\d-\d\d\*$", path.read_text(encoding="utf-8"), re.MULTILINE) for path in pages)


def test_every_decision_referred_to_exists() -> None:
    there = {int(path.name[:4]) for path in (DOCS / "decisions").glob("[0-9]*.md")}
    modules = [path for folder in ("app", "benchmarks", "tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    named = {
        int(number): name_of(path)
        for path in [*PAGES, *modules]
        for number in re.findall(r"\bdecision (\d+)\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert {number: place for number, place in named.items() if number not in there} == {}


@pytest.mark.parametrize("page", BENCHMARKS, ids=name_of)
def test_a_benchmark_page_is_built_with_its_measurements(page: Path) -> None:
    found = read_front_matter(page.read_text(encoding="utf-8"))
    text = page_text(page)
    assert text.startswith("# ") and "\n| " in text and "\n## What this does not show\n" in text
    assert f"`{found.commit}`" in text
    assert f"[{found.title}]({page.name})" in page_text(DOCS / "benchmarks" / "README.md")


def test_the_check_of_built_pages_finds_errors(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">b</a><a href="c.html">c</a><script src="//x.org/y.js">')
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1><img src="gone.png"><a href="https://example.org">ok</a>')
    (tmp_path / "s.css").write_text("@import url(https://fonts.example.org/f.css);")
    assert sorted(find_faults(tmp_path)) == [
        "a.html: b.html#there names no place in that page",
        "a.html: c.html leads nowhere",
        "a.html: fetches //x.org/y.js",
        "b.html: gone.png is not there",
        "s.css: fetches https://fonts.example.org/f.css",
    ]


def test_the_guide_goes_into_the_installed_program() -> None:
    taken = {Path(file).name: folder for file, folder in contents.data_files(ROOT, [])}
    assert taken["en.md"] == taken["uk.md"] == taken["en-result.png"] == "fieldray/_data/docs/guide"
