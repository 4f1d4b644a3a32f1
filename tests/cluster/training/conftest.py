"""Divided training needs the extra `cluster` and the toolchain."""

from __future__ import annotations

import importlib.util

_NEEDED = ("distributed", "tensorflow")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, _NEEDED)) else ["test_*.py"]
