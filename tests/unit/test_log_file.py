from __future__ import annotations

import logging
import os
import stat
import sys
from pathlib import Path

import pytest

from fieldray.log_file import LOG_FILE_NAME, configure_logging


def test_only_warnings_of_the_program_are_logged(tmp_path: Path) -> None:
    with configure_logging(tmp_path) as path:
        assert not path.exists()
        logging.getLogger("fieldray.pipeline").warning("a reader ended")
        logging.getLogger("fieldray.pipeline").info("not worth a line")
        logging.getLogger("elsewhere").error("not ours")
    text = path.read_text(encoding="utf-8")
    assert "WARNING" in text
    assert "fieldray.pipeline: a reader ended" in text
    assert len(text.splitlines()) == 1
    logging.getLogger("fieldray").warning("after")
    assert path.read_text(encoding="utf-8") == text


def test_a_large_log_file_is_rotated(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE_NAME).write_text("x" * 1_000_001)
    with configure_logging(tmp_path):
        logging.getLogger("fieldray").error("new")
    assert (tmp_path / (LOG_FILE_NAME + ".1")).stat().st_size == 1_000_001
    assert "new" in (tmp_path / LOG_FILE_NAME).read_text()


def test_an_unwritable_log_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with configure_logging(tmp_path / "file"):
        logging.getLogger("fieldray").error("lost")


def test_a_name_cannot_forge_a_log_record(tmp_path: Path) -> None:
    forged = "x.png\n2026-01-01 00:00:00,000 ERROR 1 MainThread fieldray: forged\x1b[2J\u202e"
    log = logging.getLogger("fieldray.imaging")
    with configure_logging(tmp_path) as path:
        log.warning("cannot read %s", forged)
        try:
            raise ValueError(forged)
        except ValueError:
            log.exception("failed")
    lines = path.read_text(encoding="utf-8").split("\n")
    records = [line for line in lines if line and not line.startswith("    ")]
    assert [record.partition("imaging: ")[2] for record in records] == ["cannot read x.png", "failed"]
    assert "    Traceback (most recent call last):" in lines
    assert any("forged\\x1b[2J\\u202e" in line for line in lines)
    assert "\x1b" not in path.read_text(encoding="utf-8")


posix = pytest.mark.skipif(sys.platform == "win32", reason="links and permissions of POSIX")


@posix
def test_the_log_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / LOG_FILE_NAME).touch(mode=0o644)
        with configure_logging(tmp_path) as path:
            logging.getLogger("fieldray").error("private")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "private" in path.read_text(encoding="utf-8")


@posix
def test_a_link_or_pipe_instead_of_the_log_is_not_opened(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("with link", "with pipe"):
        (tmp_path / name).mkdir()
    (tmp_path / "with link" / LOG_FILE_NAME).symlink_to(victim)
    os.mkfifo(tmp_path / "with pipe" / LOG_FILE_NAME)
    for name in ("with link", "with pipe"):
        with configure_logging(tmp_path / name):
            logging.getLogger("fieldray").error("lost")
    assert victim.read_text() == "precious"
