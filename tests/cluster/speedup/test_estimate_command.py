"""`fieldray adapt estimate`: all modes, servers and outputs, and every way to ask for what cannot be."""

from __future__ import annotations

import io
import itertools

import pytest

from fieldray import cli
from fieldray.commands.console import Console

SQUEEZENET = ("--t-grad", "0.758", "--t-comm", "0.033", "--workers", "8", "--batches", "128")


def estimate(*arguments: str) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    code = cli.run(["adapt", "estimate", *arguments], console=Console(out, error))
    return code, out.getvalue(), error.getvalue()


@pytest.mark.parametrize(
    ("mode", "server"), [*itertools.product(("async", "sync-join", "sync-split"), ("central", "distributed"))]
)
def test_every_mode_and_server_in_words_and_as_a_table(mode: str, server: str) -> None:
    expected = {  # the golden table's column of SqueezeNet at N = 8
        ("async", "central"): "5.709",
        ("async", "distributed"): "7.434",
        ("sync-join", "central"): "5.181",
        ("sync-join", "distributed"): "7.434",
        ("sync-split", "central"): "1.494",
        ("sync-split", "distributed"): "4.970",
    }[mode, server]
    code, out, _ = estimate(*SQUEEZENET, "--mode", mode, "--server", server)
    assert code == 0
    assert f"{expected} times as fast as one machine." in out.splitlines()[0]
    assert ("as printed" in out) == (mode == "sync-split")
    code, out, error = estimate(*SQUEEZENET, "--mode", mode, "--server", server, "--output", "csv")
    assert code == 0
    rows = [line.split(";") for line in out.splitlines()]
    assert rows[0] == ["workers", "speed_up", "worst", "best", "printed"]
    assert [row[0] for row in rows[1:]] == [str(number) for number in range(1, 9)]
    assert f"{float(rows[-1][1]):.3f}" == expected
    assert "training is fastest on" in error  # what a person reads does not reach the table


def test_the_sentence_is_about_the_server_that_was_asked_for() -> None:
    given = (*SQUEEZENET, "--mode", "sync-split")
    said = {name: estimate(*given, "--server", name)[1] for name in ("central", "distributed")}
    assert "distributed servers" not in said["central"] and "a central server" not in said["distributed"]
    assert "distributed servers" in estimate(*given)[1]  # of both the better one
    _, _, error = estimate(*given, "--server", "central", "--output", "csv")
    assert "a central server" in error and "distributed servers" not in error


def test_corrections_are_named() -> None:
    plain = ("--t-grad", "1", "--t-comm", "0.1", "--workers", "3", "--batches", "128")
    # 128 / (128/3 * (0.4/3 + 1)) = 2.647; rounded up to 43 rounds 2.627
    _, out, _ = estimate(*plain, "--ceil")
    assert "2.627 times" in out and "as printed, without corrections: 2.647." in out
    # the slowest takes twice as long: 3 / (0.4/3 + 2)
    _, out, _ = estimate(*plain, "--slowest", "2")
    assert "1.406 times" in out
    _, out, _ = estimate(*SQUEEZENET, "--network", "squeezenet")
    assert "as printed, without corrections: 7.434." in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*SQUEEZENET, "--workers", "129"), "There are 129 workers for 128 batches"),
        ((*SQUEEZENET, "--workers", "10001", "--batches", "20000"), "At most 10000 can"),
        ((*SQUEEZENET, "--workers", "1001", "--batches", "9999", "--network", "resnet-34"), "At most 1000 can"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    code, out, error = estimate(*arguments)
    assert (code, out) == (2, "")
    assert sentence in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required: --t-grad, --t-comm, --workers, --batches"),
        (SQUEEZENET[:-2], "required: --batches"),
        *((("--t-grad", text), "--t-grad: a number above 0 to") for text in ("0", "nan", "inf", "fast", "1e300")),
        *((("--t-comm", text), "--t-comm: a number above 0 to") for text in ("-1", "1e10")),
        *((("--workers", text), "--workers: a whole number from 1") for text in ("0", "2.5")),
        *((("--batches", text), "--batches: a whole number from 1") for text in ("-3", "9" * 30)),
        *((("--slowest", text), "--slowest: a number from 1 to") for text in ("0.5", "inf", "1e300")),
        (("--mode", "join"), "sync-join"),
    ],
)
def test_what_cannot_be_is_wrong_usage(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if said.startswith("required") else (*SQUEEZENET, *arguments)
    assert estimate(*given)[:2] == (2, "")
    assert said in capsys.readouterr().err
