"""Find unused code with vulture: functions, methods, properties, classes, constants and imports.

    python tools/dead_code.py [--without-tests]

Attributes are not reported, because most unread attributes are read by libraries (pydicom, ctypes, Qt). Code that only
a test uses counts as used, unless `--without-tests` is given.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import vulture

ROOT: Final = Path(__file__).resolve().parent.parent
_CODE: Final = ("app", "benchmarks", "tools")
_KINDS: Final = frozenset({"function", "method", "property", "class", "import", "unreachable_code"})
# Libraries call these names: Qt, logging, pickle, PyTorch, Keras, pydicom, fpdf2, Dask, paramiko, socketserver.
_CALLED_BY_OTHERS: Final = (
    "*Event",
    "paint",
    "columnCount",
    "minimumSizeHint",
    "handleError",
    "handle_starttag",
    "loadResource",
    "forward",
    "call",
    "DECODER_DEPENDENCIES",
    # The table of backends looks up these names.
    "make_backend_kind",
    "ExclusiveEdgeTpu",
    "__call__",
    "footer",
    "normalize_text",
    "get_glyph",
    "pick",
    "pick_glyph",
    "start_http_server",
    "find_class",
    "subscribe_topic",
    "missing_host_key",
    "verify_request",
    "finish_request",
    # The entry of the installed window program calls this name.
    "open_in_window",
)


def find_dead_code(*, with_tests: bool = True, root: Path = ROOT) -> list[str]:
    """Return a line for each unused function, class, constant or import, with its file and line number.

    If `with_tests`, code that only a test uses counts as used. `root` is the checkout.
    """
    found = vulture.Vulture()
    found.scavenge([str(root / folder) for folder in (*_CODE, *(["tests"] if with_tests else []))])
    return [
        f"{item.filename.relative_to(root)}:{item.first_lineno} unused {item.typ} {item.name}"
        for item in found.get_unused_code(min_confidence=60)
        if _is_ours(item, root)
    ]


def _is_ours(item: vulture.core.Item, root: Path) -> bool:
    is_code = item.filename.relative_to(root).parts[0] in _CODE
    is_kind = item.typ in _KINDS or (item.typ == "variable" and item.name.isupper())
    return is_code and is_kind and not any(fnmatchcase(item.name, pattern) for pattern in _CALLED_BY_OTHERS)


def main(arguments: list[str]) -> int:
    """Print a line for each unused function, class, constant or import. Returns 1 if any was found, else 0."""
    found = find_dead_code(with_tests="--without-tests" not in arguments)
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
