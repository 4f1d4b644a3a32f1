"""The helper of the smoke tests that compares a command's output with the expected lines."""

from __future__ import annotations

import pytest

from clean_root import CommandResult
from expectation import APT_OUTPUT, UnexpectedResult, verify


def done(code: int = 0, output: str = "", errors: str = "") -> CommandResult:
    return CommandResult("a command", code, tuple(output.splitlines()), tuple(errors.splitlines()))


def test_expected_output_passes() -> None:
    verify(done(output="12 images\nRan on cpu"), output=(r"\d+ images", r"\?Ran on .*", r"\?Never said"))


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (done(code=3), "ended with 3, not 0"),
        (done(output="12 images\nsegmentation fault"), "output, not expected: segmentation fault"),
        (done(output="12 images", errors="a warning"), "errors, not expected: a warning"),
        (done(), r"output, missing: \d+ images"),
        (done(output="12 images and more"), "output, not expected: 12 images and more"),
    ],
)
def test_unexpected_output_or_exit_code_fails(ended: CommandResult, said: str) -> None:
    with pytest.raises(UnexpectedResult) as caught:
        verify(ended, output=(r"\d+ images",))
    assert said in str(caught.value)


def test_usual_output_of_apt_passes_and_warnings_fail() -> None:
    verify(done(output="Setting up fieldray (0.1.0) ...\nReading package lists..."), output=APT_OUTPUT)
    for word in ("W: something odd", "dpkg: warning: x", "E: broken"):
        with pytest.raises(UnexpectedResult):
            verify(done(output=word), output=APT_OUTPUT)
