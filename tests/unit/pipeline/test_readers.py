"""What a run starts with, before everything else is imported."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from fieldray.pipeline.readers import number_of_readers, start_network
from fieldray.settings import Settings


def test_the_settings_say_how_many_files_are_read_at_once() -> None:
    assert number_of_readers(Settings({"decoders": 11})) == 11
    assert 1 <= number_of_readers(Settings()) <= 8


def test_the_networks_process_starts_where_the_processor_may_run_it() -> None:
    for device, starts in (("cpu", True), ("edgetpu", False)):
        with contextlib.closing(start_network(Settings({"device": device}))) as child:
            assert child.is_running == starts
        assert not child.is_running


def test_nothing_heavy_stands_before_the_first_process() -> None:
    script = "import sys, fieldray.cli, fieldray.pipeline.readers; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "PIL", "pydicom", "PySide6", "tensorflow", "ai_edge_litert", "cryptography", "sqlite3", "psutil"}
    assert heavy.isdisjoint(loaded)


def test_a_run_imports_neither_qt_nor_tensorflow_nor_codecs() -> None:
    rooms = "fieldray.commands.run, fieldray.pipeline.session, fieldray.pipeline.assembly"
    script = f"import sys, {rooms}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"PySide6", "tensorflow", "keras", "torch", "ai_edge_litert", "gdcm", "zipfile", "importlib.metadata"}
    assert heavy.isdisjoint(loaded)
