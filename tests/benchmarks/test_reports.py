"""Pages of benchmarks in Markdown: reading a written page, and detecting a stale one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import benchmark_pages
from benchmark_pages import page_state, read_front_matter
from benchmarks.reports import BenchmarkPage, PageRefused, machine_line, plan_page, write_page
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table

REPORT = BenchmarkReport(
    file_stem="pipeline",
    title="Fieldray: from files & scores",
    blocks=(
        Table("By kind", ("", "a|b"), (("RLE", "1 < 2"),)),
        BulletList("Notes", ("a <b> & c",)),
    ),
    json_values={"x": 1},
)
GOOD = """---
title: From files to scores
date: 2026-11-22
commit: '1234567'
machine: 2 cores
command: python -m benchmarks pipeline
paths:
  - app
---

# From files to scores

Text.
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, name: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


# ---- pages of Markdown


def test_a_written_page_can_be_read_again(tmp_path: Path) -> None:
    page = BenchmarkPage(path=tmp_path / "pipeline.md", commit="0123456789ab", command="python -m x", paths=("app",))
    text = write_page(REPORT, page).read_text()
    found = read_front_matter(text)
    assert (found.commit, found.command, found.paths) == ("0123456789ab", "python -m x", ("app",))
    assert found.title == "From files & scores" and found.machine == machine_line()
    assert "| RLE | 1 &lt; 2 |" in text and "a\\|b" in text and "- a &lt;b&gt; &amp; c" in text


def test_a_page_replaces_the_earlier_one_and_names_the_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    made = commit(tmp_path, "app/a.py")
    (tmp_path / "notes.txt").write_text("not measured")
    pages = tmp_path / "pages"
    page = plan_page("x", command="c", paths=["app"], folder=pages, root=tmp_path)
    assert made.startswith(page.commit) and page.path == pages / "x.md"
    for _ in range(2):
        write_page(REPORT, page)
    assert sorted(path.name for path in pages.iterdir()) == ["x.md"]
    (tmp_path / "app" / "a.py").write_text("changed")
    with pytest.raises(PageRefused, match="commit these changes"):
        plan_page("y", command="c", paths=["app"], folder=pages, root=tmp_path)


# ---- stale pages


def test_a_page_gets_stale_with_the_code_it_measured(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    measured = commit(tmp_path, "app/a.py")
    page = read_front_matter(GOOD.replace("1234567", measured))
    commit(tmp_path, "other/b.py")
    assert page_state(page, root=tmp_path).sentence == ""
    commit(tmp_path, "app/c.py")
    assert page_state(page, root=tmp_path).sentence == "Stale: 1 commit has changed the measured code since."
    commit(tmp_path, "app/d.py")
    assert page_state(page, root=tmp_path).commits == 2


def test_an_unknown_commit_is_stale(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    commit(tmp_path, "app/a.py")
    for name, why in (("unknown", "nobody wrote down"), ("abcdef1", "not in this repository")):
        page = read_front_matter(GOOD.replace("1234567", name))
        assert why in page_state(page, root=tmp_path).sentence


def test_the_committed_pages_are_well_formed() -> None:
    assert benchmark_pages.main() == 0
