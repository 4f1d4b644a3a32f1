"""A home of a benchmark's own: what the program keeps of its own stays as it is."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def own_home() -> Iterator[Path]:
    """A folder for everything, with a fresh home in it (`paths.user_data`), removed afterwards."""
    before = os.environ.get("FIELDRAY_HOME")
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        os.environ["FIELDRAY_HOME"] = str(Path(folder) / "home")
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["FIELDRAY_HOME"]
            else:
                os.environ["FIELDRAY_HOME"] = before
