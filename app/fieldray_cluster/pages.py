"""The scheduler's web pages that `node` serves where a person asks for them: which computers there are, and counts.

Dask's others show tasks, with the texts and tracebacks of their errors, and logs; a name of a file may be in them.
"""

from __future__ import annotations

from typing import Any, Final

from distributed.http.scheduler.info import routes as _all_pages
from distributed.http.scheduler.json import routes as _all_counts

_SHOWN: Final = frozenset({"info", "info/main/workers.html", "json/counts.json"})

routes: Final[list[tuple[Any, ...]]] = [route for route in (*_all_pages, *_all_counts) if route[0] in _SHOWN]
"""What Dask asks a module of pages for: an address and a handler for each."""
