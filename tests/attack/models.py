"""Attack cases: correctly signed packs with a hostile network, which must not score any image."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from harness.case import Group
from harness.world import World
from tiny_models import changed_model, remember, tiny_model_bytes
from tiny_packs import fingerprint, with_file

CASES = Group("models")


def changed(change: Callable[[list[Any]], None]) -> bytes:
    """Return the tiny network with changed operators."""
    return changed_model(lambda model: change(model.subgraphs[0].operators))


def missing_tensor(operators: list[Any]) -> None:
    """Make the first operator read a tensor that does not exist."""
    operators[0].inputs = np.array([2**31 - 1, 1, 2], np.int32)


def in_a_cycle(operators: list[Any]) -> None:
    """Make the output of the last operator the input of the first."""
    operators[0].inputs = [*operators[-1].outputs[:1], *list(operators[0].inputs)[1:]]


_GOOD: Final = tiny_model_bytes()
_MODELS: Final = {
    "offsets": (
        "a model whose offsets all point outside the file",
        _GOOD[:8] + b"\xff\xff\xff\x7f" * (len(_GOOD) // 4),
    ),
    "wild-index": ("an operator that reads a tensor that does not exist", changed(missing_tensor)),
    "state": (
        "a network that adds its outputs for earlier images",
        changed_model(remember, tiny_model_bytes("float32")),
    ),
    "cycle": ("the output of the last operator is the input of the first operator", changed(in_a_cycle)),
}


@CASES.table(_MODELS)
def hostile(world: World, data: bytes) -> None:
    """With this network no image gets a score. A good pack signed by the same key works afterwards."""
    expected, pack = world.good_images(3), with_file(world.folder / "hostile", "model.tflite", data)
    done = world.run("screen", world.images, "--pack", pack, *world.pack_options[2:], "--json", "-").ends_with(3)
    assert not [line for line in done.lines if line["score"] is not None], "an image was scored"
    done.takes()
    world.screen(expected, codes=(0,))


@CASES.case(
    "flipped-bytes", "12 models with changed bytes: each is refused, or gives the scores in the manifest", limit_s=120
)
def flipped_bytes(world: World) -> None:
    expected = world.good_images(1)
    for seed in range(12):
        chance = random.Random(seed)
        data = bytearray(_GOOD)
        for _ in range(4):
            data[chance.randrange(8, len(data))] ^= chance.randrange(1, 256)
        pack = with_file(world.folder / f"flipped-{seed}", "model.tflite", bytes(data))
        done = world.run("screen", world.images, "--pack", pack, "--trust", fingerprint(pack), "--json", "-", "--fresh")
        done.ends_with(0, 1, 3).takes()
        if done.code == 0:
            done.has(expected)
