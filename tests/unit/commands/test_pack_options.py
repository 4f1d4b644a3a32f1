"""Which pack is taken when nobody names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.commands.pack_options import newest_kept
from fieldray.errors import PackProblem
from fieldray.packs.library import PackLibrary
from packs_factory import make_pack


def _code(library: PackLibrary) -> str:
    with pytest.raises(PackProblem) as caught:
        newest_kept(library)
    return caught.value.reason.code


def test_without_any_pack_it_says_what_to_do(tmp_path: Path) -> None:
    assert _code(PackLibrary(tmp_path / "home", builtin_root=tmp_path / "none", builtin_table={})) == "no_pack"


def test_a_pack_that_cannot_be_used_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    make_pack(tmp_path / "models")
    library = PackLibrary(tmp_path / "home", builtin_root=tmp_path / "models", builtin_table={})
    assert _code(library) == "pack_unknown_key"
