"""Results as one JSON document: how they came to be, then every row. UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fieldray.domain.run import RunSpec, StoredResult
from fieldray.reports.content import export_rows
from fieldray.reports.outputs import own_text


def write_json(path: Path, results: Iterable[StoredResult], *, spec: RunSpec, about: Mapping[str, object]) -> None:
    """Write `{"about": {...}, "results": [...]}`; a result has the keys of `content.COLUMNS`. Raises StorageProblem."""
    with own_text(path, "json", inputs=tuple(map(Path, spec.paths))) as stream:
        stream.write('{"about": ' + json.dumps(about, ensure_ascii=False, indent=1) + ',\n"results": [')
        separator = "\n"
        for result in results:
            for row in export_rows(result, spec=spec):
                stream.write(separator + json.dumps(row, ensure_ascii=False))
                separator = ",\n"
        stream.write("\n]}\n")
