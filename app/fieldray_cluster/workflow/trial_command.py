"""Run a trial of a sweep, as a separate process: `trial_command ORDER` performs steps of a recipe with changed keys.

ORDER is JSON. The recipe is changed in memory and not in its file. So paths in the recipe are still relative to the
folder of the file.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fieldray.offline import stay_offline

if TYPE_CHECKING:
    from fieldray_adapt.recipes.tables import RecipeDocument


def main(arguments: list[str] | None = None) -> int:
    """Run the steps that an order names, for one trial of a sweep. Returns 0 after success, 1 if a step fails.

    The error of a failed step is printed to standard error. `arguments` has the order as JSON; None for the arguments
    of the process.
    """
    stay_offline(is_toolchain=True)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `fieldray adapt`
    from pathlib import Path

    from fieldray.errors import FieldrayError
    from fieldray_adapt.recipe_actions import run_recipe_document
    from fieldray_adapt.recipes.tables import RecipeDocument

    order = json.loads((sys.argv[1:] if arguments is None else arguments)[0])
    try:
        document = with_changed_keys(RecipeDocument.read(Path(order["recipe"])), order["changes"])
        run_recipe_document(order["step"], document, say=functools.partial(print, flush=True), progress=lambda *_: None)
    except FieldrayError as error:
        for line in (*getattr(error, "lines", ()), str(error)):
            sys.stderr.write(f"{line}\n")
        return 1
    return 0


def with_changed_keys(document: RecipeDocument, changes: Mapping[str, Any]) -> RecipeDocument:
    """Return a copy of a recipe in which some keys have new values. `changes` are the new values by key.

    A key is for example `training.learning_rate`. The text of the returned recipe lists the changes. Raises KeyError if
    a part of a key before the last dot is no table.
    """
    tables: dict[str, Any] = copy.deepcopy(dict(document.tables))
    for key, value in changes.items():
        *groups, name = key.split(".")
        table = tables
        for group in groups:
            table = table.setdefault(group, {})
            if not isinstance(table, dict):
                raise KeyError(key)
        table[name] = value
    lines = [f"# {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in changes.items()]
    text = "\n".join([document.text.rstrip("\n"), "", "# Changed for a trial of a sweep:", *lines, ""])
    return replace(document, tables=tables, text=text)


if __name__ == "__main__":
    sys.exit(main())
