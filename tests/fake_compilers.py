"""A program that behaves as edgetpu_compiler does, and what that prints."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

# As version 16.0 prints it.
LOG = """Edge TPU Compiler version 16.0.384591198
Started a compilation timeout timer of 180 seconds.

Model compiled successfully in 1200 ms.

Input model: model.tflite
Input size: 5.90MiB
Output model: model_edgetpu.tflite
Output size: 6.10MiB
On-chip memory used for caching model parameters: 6.86MiB
On-chip memory remaining for caching model parameters: 1.50KiB
Off-chip memory used for streaming uncached model parameters: 1.22MiB
Number of Edge TPU subgraphs: 1
Total number of operations: 77
Operation log: model_edgetpu.log

Operator                       Count      Status

CONV_2D                        54         Mapped to Edge TPU
Compilation child process completed within timeout period.
"""
PARTLY = LOG.replace(
    "Operation log",
    "Model successfully compiled but not all operations are supported by the Edge TPU.\n"
    "Number of operations that will run on Edge TPU: 70\nNumber of operations that will run on CPU: 7\nOperation log",
)


def fake_compiler(folder: Path, log: str, *, status: int = 0, writes: bool = True) -> Path:
    """A program that takes edgetpu_compiler's arguments, prints `log` and copies the file."""
    program = folder / "edgetpu_compiler"
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        "from pathlib import Path\n"
        "out = Path(sys.argv[sys.argv.index('--out_dir') + 1])\n"
        f"if {writes}: shutil.copy(sys.argv[-1], out / 'model_edgetpu.tflite')\n"
        f"print({log!r})\n"
        f"sys.exit({status})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
