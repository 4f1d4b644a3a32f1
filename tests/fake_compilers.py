"""A program that behaves as edgetpu_compiler does."""

from __future__ import annotations

import stat
import sys
from pathlib import Path


def fake_compiler(folder: Path, made: bytes | None, *, says: str = "", status: int = 0) -> Path:
    """A program that takes edgetpu_compiler's arguments, prints something and writes what it `made`, or nothing."""
    program, source = folder / "edgetpu_compiler", folder / "made.tflite"
    source.write_bytes(made or b"")
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        "from pathlib import Path\n"
        "out = Path(sys.argv[sys.argv.index('--out_dir') + 1])\n"
        f"if {made is not None}: shutil.copy({str(source)!r}, out / 'model_edgetpu.tflite')\n"
        f"print({says!r})\n"
        f"sys.exit({status})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
