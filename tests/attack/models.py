"""Models: rightly signed packs whose network must not be used, whatever it does when it is run."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from attack import hostile_models
from attack.hostile_packs import edited, npy_file, with_file
from fieldray.packs.verified import write_pack
from harness.case import Group
from harness.world import World
from packs_factory import key
from tiny_models import tiny_golden, tiny_manifest, tiny_model_bytes
from tiny_packs import fingerprint

CASES = Group("models")
_FILL_MB: Final = 3200


def refuse(world: World, pack: Path) -> None:
    """Screen with it: no image gets a score, and the good pack of the same key works afterwards."""
    expected = world.good_images(3)
    done = world.run("screen", world.images, "--pack", pack, *world.pack_options[2:], "--json", "-")
    done.ends_with(3)
    assert not [line for line in done.lines if line["score"] is not None], "an image was scored"
    done.takes()
    world.screen(expected, codes=(0,))


_GOOD: Final = tiny_model_bytes()
_MODELS: Final = {
    "garbage": ("a model of random bytes", random.Random(1).randbytes(20_000)),
    "header-only": ("a model that is only its first 8 bytes", _GOOD[:8]),
    "cut-early": ("a model cut after a quarter", _GOOD[: len(_GOOD) // 4]),
    "cut-late": ("a model without its last 100 bytes", _GOOD[:-100]),
    "offsets": ("a model whose offsets all point far away", _GOOD[:8] + b"\xff\xff\xff\x7f" * (len(_GOOD) // 4)),
    "custom-operator": ("an operator that no runtime knows", hostile_models.with_custom_operator()),
    "wild-index": ("an operator that reads a tensor which is not there", hostile_models.with_wild_index()),
    "cycle": ("the last operator's output is the first one's input", hostile_models.with_cycle()),
    "input-30000": ("an input of 30,000 x 30,000 pixels in the file", hostile_models.with_input_side(30_000)),
}


@CASES.table(_MODELS, quick=("custom-operator",))
def hostile(world: World, data: bytes) -> None:
    refuse(world, with_file(world.folder / "hostile", "model.tflite", data))


@CASES.case("manifest-30000", "an input of 30,000 x 30,000 pixels in the description")
def manifest_30000(world: World) -> None:
    vast = {"height": 30_000, "width": 30_000}
    refuse(world, edited(world.folder / "hostile", lambda document: document["input"].update(vast)))


@CASES.case("fill", f"one FILL operator of {_FILL_MB} MB: the process that runs the model has a memory limit")
def fill(world: World) -> None:
    world.good_images(3)
    pack = with_file(world.folder / "hostile", "model.tflite", hostile_models.with_fill(_FILL_MB))
    done = world.run("screen", world.images, "--pack", pack, *world.pack_options[2:], "--json", "-").ends_with(0, 1, 3)
    assert done.child_mb < _FILL_MB - 200, f"a child took {done.child_mb:.0f} MB"


@CASES.case("wrong-golden-scores", "golden scores that the model does not give")
def wrong_golden_scores(world: World) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 1), }"
    scores = (1 - tiny_golden().scores).astype("<f4").tobytes()
    refuse(world, with_file(world.folder / "hostile", "golden_scores.npy", npy_file(header, scores)))


@CASES.case("other-label-count", "a model of one label in a pack of two")
def other_label_count(world: World) -> None:
    manifest = tiny_manifest(labels=2)
    both = {"en": "x", "uk": "x"}
    labels = tuple(replace(label, meaning=both) for label in manifest.labels)
    texts = dict.fromkeys(("names", "descriptions", "intended_use", "limits"), both)
    pack = write_pack(
        world.folder / "hostile",
        manifest=replace(manifest, labels=labels, **texts),  # type: ignore[arg-type]
        files={"litert": tiny_model_bytes()},
        card="# Two\n",
        golden=tiny_golden(labels=2),
        key=key(1),
    )
    refuse(world, pack)


@CASES.case(
    "flipped-bytes", "12 models with some bytes changed: each is refused or gives the measured scores", limit_s=120
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
