"""Why a runtime library cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.errors import BackendProblem
from fieldray.inference.coral.status import LIBRARY_NAMES, EdgeTpuLibrary, load_problem


class WindowsError(OSError):
    def __init__(self, winerror: int, text: str) -> None:
        super().__init__(text)
        self.winerror = winerror


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("libedgetpu.so.1: cannot open shared object file: No such file or directory"), "coral_no_library"),
        (OSError("libusb-1.0.so.0: cannot open shared object file: No such file or directory"), "coral_no_libusb"),
        (OSError("/usr/lib/libedgetpu.so.1: invalid ELF header"), "coral_bad_library"),
        (OSError("/usr/lib/libedgetpu.so.1: file too short"), "coral_bad_library"),
        (OSError("libedgetpu.so.1: wrong ELF class: ELFCLASS32"), "coral_bad_library"),
        (OSError("dlopen(libedgetpu.1.dylib, 6): no such file"), "coral_no_library"),
        (OSError("dlopen(/usr/local/lib/libedgetpu.1.dylib): incompatible architecture"), "coral_bad_library"),
        (WindowsError(193, "[WinError 193] %1 is not a valid Win32 application"), "coral_bad_library"),
        (WindowsError(126, "Could not find module 'edgetpu.dll' (or one of its dependencies)"), "coral_no_library"),
    ],
)
def test_the_loaders_words_become_a_reason(error: OSError, code: str) -> None:
    assert load_problem(error, "libedgetpu.so.1").code == code


def test_the_installed_programs_loader_hides_the_words_in_the_cause() -> None:
    wrapped = OSError("Failed to load dynlib/dll 'libedgetpu.so.1'. Most likely this dynlib/dll was not found")
    wrapped.__cause__ = OSError("/usr/lib/libedgetpu.so.1: invalid ELF header")
    assert load_problem(wrapped, "libedgetpu.so.1").code == "coral_bad_library"


def test_no_library_of_several_names() -> None:
    with pytest.raises(BackendProblem) as caught:
        EdgeTpuLibrary(("libfieldray-none.so.1", "/nowhere/libfieldray-none.so.1"))
    assert caught.value.reason.code == "coral_no_library"
    assert dict(caught.value.reason.parameters) == {"name": "libfieldray-none.so.1"}


def test_a_text_file_is_no_library(tmp_path: Path) -> None:
    text = tmp_path / "libedgetpu.so.1"
    text.write_text("This is a text file of some length, and not a library at all.\n" * 20)
    with pytest.raises(BackendProblem) as caught:
        EdgeTpuLibrary(("libfieldray-none.so.1", str(text)))
    assert caught.value.reason.code == "coral_bad_library"


def test_every_system_has_names() -> None:
    assert set(LIBRARY_NAMES) == {"linux", "darwin", "win32"}
