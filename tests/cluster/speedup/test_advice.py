"""The best number of workers and server, with one machine among the answers, in both languages."""

from __future__ import annotations

from fieldray.translation import Translator
from fieldray_cluster.training.formulas import MODES, SERVERS, Measured, Mode, advise, estimates

SQUEEZENET = Measured(gradient_s=0.758, transfer_s=0.033, batches=128)
VGG = Measured(gradient_s=0.719, transfer_s=5.153, batches=128)


def texts(measured: Measured, mode: Mode, workers: int = 8, **more: object) -> list[str]:
    return [one.text for one in advise(measured, mode=mode, most_workers=workers, **more).reasons]  # type: ignore[arg-type]


def test_squeezenet_split_over_a_central_server_is_best_on_4_workers() -> None:
    advice = advise(SQUEEZENET, mode="sync-split", most_workers=8, servers=("central",))
    assert advice.best is not None and (advice.best.workers, advice.best.server) == (4, "central")
    # Nine tenths of 1.876 are 1.688, and 3 workers reach 1.815.
    assert advice.fewest is not None and advice.fewest.workers == 3
    assert texts(SQUEEZENET, "sync-split", servers=("central",)) == [
        "With sync-split, training is fastest on 4 workers with a central server: "
        "1.88 times as fast as on one machine.",
        "Nine tenths of that are already reached with 3 workers and a central server: 1.81 times as fast.",
        "Two workers with a central server are 1.53 times as fast as one machine.",
    ]


def test_a_network_whose_transfer_takes_longer_than_its_gradient_stays_on_one_machine() -> None:
    for mode in MODES:
        advice = advise(VGG, mode=mode, most_workers=4)
        assert advice.best is None and advice.fewest is None
    assert texts(VGG, "sync-join", 4) == [
        "Train on one machine. With sync-join, no number of workers up to 4 is faster.",
        "A second machine does not pay: two workers with distributed servers are 0.24 times as fast as one machine.",
    ]


def test_enough_workers_outweigh_slow_links_where_batches_are_joined() -> None:
    """VGG: faster than one machine from N > 2 tc/tg = 14.3 on, as the closed form says."""
    gains = [one.workers for one in estimates(VGG, mode="sync-join", server="distributed", most_workers=20)
             if one.speed_up > 1.000001]  # fmt: skip
    assert gains == [15, 16, 17, 18, 19, 20]
    advice = advise(VGG, mode="sync-join", most_workers=20)
    assert advice.best is not None and advice.best.workers == 20


def test_one_worker_is_one_machine() -> None:
    advice = advise(SQUEEZENET, mode="async", most_workers=1)
    assert advice.best is None and advice.second is None
    assert texts(SQUEEZENET, "async", 1) == ["Train on one machine. With async, 1 worker is not faster."]


def test_distributed_servers_are_never_slower_than_a_central_one() -> None:
    for mode in MODES:
        central, distributed = (
            list(estimates(SQUEEZENET, mode=mode, server=server, most_workers=16)) for server in SERVERS
        )
        pairs = zip(central, distributed, strict=True)
        assert all(one.speed_up <= other.speed_up for one, other in pairs)


def test_the_advice_is_told_in_ukrainian() -> None:
    translator = Translator("uk")
    for measured in (SQUEEZENET, VGG):
        for one in advise(measured, mode="sync-split", most_workers=8).reasons:
            sentence = translator.reason(one)
            assert sentence != one.text
            assert "server" not in sentence
