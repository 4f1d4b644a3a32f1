"""Workflows need the extra `cluster`, and what writes their recipes the toolchain."""

from __future__ import annotations

import importlib.util

_NEEDED = ("distributed", "optuna", "tensorflow")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, _NEEDED)) else ["test_*.py"]
