"""Output, exit code and peak memory of a finished `fieldray` process, with assertions about them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

# The result that an image must get. "unscored": refused or failed, either is right.
Fate = Literal["screened", "refused", "failed", "unscored", "any"]
PARENT_MB: Final = 450.0
CHILD_MB: Final = 2300.0  # a decoder's limit is 2,048 MB of address space
_NEVER_SAID: Final = ("Traceback", "unexpected error", '"internal"', "Exception ignored", "Fatal Python error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A finished process. `code` is negative after a signal. Paths of images are compared relative to `images`.

    The methods are assertions: they raise AssertionError or return this record.
    """

    code: int
    out: str
    err: str
    images: Path = Path()
    parent_mb: float = 0.0
    child_mb: float = 0.0

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines of its standard output."""
        return json_lines(self.out)

    def is_calm(self) -> Self:
        """Require that the process printed no traceback and no unexpected error."""
        for words in _NEVER_SAID:
            assert words not in self.out + self.err, f"{words} in: {tail(self.err or self.out)}"
        return self

    def ends_with(self, *codes: int) -> Self:
        """Require one of these exit codes, and no unexpected error (`is_calm`)."""
        self.is_calm()
        assert self.code in codes, f"exit code {self.code}, not {codes}: {tail(self.err)}"
        return self

    def says(self, *words: str) -> Self:
        """Require all of these texts in standard output or standard error."""
        return self._has_words(words, self.out + self.err)

    def prints(self, *words: str) -> Self:
        """Require all of these texts in standard output."""
        return self._has_words(words, self.out)

    def complains(self, *words: str) -> Self:
        """Require all of these texts in standard error."""
        return self._has_words(words, self.err)

    def has(self, expected: Mapping[str, Fate]) -> Self:
        """Require one JSON line for each of these images, with the expected result; see `check_rows`."""
        check_rows(self.lines, expected, images=self.images)
        return self

    def takes(self, *, parent_mb: float = PARENT_MB, child_mb: float = CHILD_MB) -> Self:
        """Require a peak memory below these limits."""
        for who, took, most in (("the program", self.parent_mb, parent_mb), ("a child", self.child_mb, child_mb)):
            assert took < most, f"{who} took {took:.0f} MB, at most {most:.0f} allowed"
        return self

    def _has_words(self, words: Sequence[str], text: str) -> Self:
        for each in words:
            assert each in text, f"{each!r} is not in: {tail(text)} (the rest: {tail(self.err or self.out)})"
        return self


def check_rows(lines: Sequence[Mapping[str, Any]], expected: Mapping[str, Fate], *, images: Path) -> None:
    """Require exactly one row for each image, with the result that it must get. Raises AssertionError."""
    found = Counter((os.path.relpath(line["path"], images), line["image"]) for line in lines)
    doubled = {name for name, number in found.items() if number > 1}
    assert not doubled, f"rows doubled: {sorted(doubled)[:5]}"
    names = {name for name, _ in found}
    lacking, extra = set(expected) - names, names - set(expected)
    assert not lacking and not extra, f"lost: {sorted(lacking)[:5]}, not expected: {sorted(extra)[:5]}"
    for line in lines:
        check_fate(line, expected[os.path.relpath(line["path"], images)])


def check_fate(line: Mapping[str, Any], fate: Fate) -> None:
    """Require that a row has the expected result. Raises AssertionError."""
    status, why = line["status"], f"{line['path']}: {line['status']} ({line['reason_code']}), not {fate}"
    if status == "screened":
        assert fate in ("screened", "any"), why
        assert 0 <= line["score"] <= 1, why
        return
    assert line["score"] is None, why
    assert fate in (status, "unscored", "any"), why
    assert line["reason"], f"{line['path']}: no reason"


def json_lines(text: str) -> list[dict[str, Any]]:
    """Return the objects in the output of `--json`, without a last line that a kill cut short."""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def tail(text: str, *, longest: int = 300) -> str:
    """Return the end of a text on one line."""
    return " | ".join(text.split("\n"))[-longest:].encode("ascii", "backslashreplace").decode()
