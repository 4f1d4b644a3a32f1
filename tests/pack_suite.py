"""Writes good, broken and malicious packs, with the verdict that a reader must reach: `pack_suite.py FOLDER`.

Authors of other readers can test them with these packs. The file `expected.json` next to the packs says:

    {"format": 2, "packs": {NAME: {"folder": NAME, "verdict": "good" or "broken", "tried": WHAT IS IN IT,
                                    "reason": CODE}}}

A pack is *good* if signature, description, files and arrays follow the format. The verdict ignores whether the key is
trusted and whether the network runs. `reason` is this program's code for the fault, for information. The packs are
signed by keys for tests, which must never be trusted.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT.parent / "app")]

from attack.packs import BROKEN, MakePack, after_writing, with_array, with_values  # noqa: E402
from fieldray.errors import PackProblem  # noqa: E402
from fieldray.packs.verified import manifest_file_entries, read_pack  # noqa: E402
from packs_factory import make_lung_fields, make_pack  # noqa: E402
from tiny_packs import edited, resigned, sign, with_file, write_tiny_pack  # noqa: E402

EXPECTED: Final = "expected.json"
# Left out, because a folder cannot be copied with them: pipes, devices, files of 256 GB.
_NOT_CARRIED: Final = ("fifo", "device", "sparse")

_REQUIRED: Final = (
    *("schema_version", "kind", "id", "version", "names", "limits"),
    *("input", "outputs", "labels", "files", "accepted"),
)
_FILES: Final = (
    *("manifest.json", "manifest.sig", "model.tflite", "MODEL_CARD.md"),
    *("golden_inputs.npy", "golden_scores.npy"),
)
Entry = tuple[str, str, MakePack]  # verdict, text for `tried`, function that writes the pack to a folder


def changed(change: Callable[[dict[str, Any]], object]) -> MakePack:
    """Return a function that makes the tiny pack with a changed description, signed again."""
    return lambda folder: edited(folder, change)


def without(name: str) -> MakePack:
    """Return a function that makes the tiny pack without a key of its description."""
    return changed(lambda document: document.pop(name))


def lungs(change: Callable[[dict[str, Any]], object]) -> MakePack:
    """Return a function that makes a lung-field pack with a changed description, signed again."""
    return lambda folder: resigned(make_lung_fields(folder), change)


def written_otherwise(folder: Path) -> Path:
    """Make a pack whose description is JSON in another form: reordered keys, and line breaks."""
    pack = write_tiny_pack(folder)
    document = json.loads((pack / "manifest.json").read_bytes())
    sign(pack, json.dumps(dict(reversed(document.items())), indent=4, ensure_ascii=False).encode())
    return pack


def with_role(folder: Path) -> Path:
    """Make a pack with a file whose role no reader knows yet."""
    pack = write_tiny_pack(folder)
    contents = {"of-tomorrow": b"a network for something new"}
    listed = msgspec.to_builtins(manifest_file_entries(contents))
    (pack / listed["of-tomorrow"]["name"]).write_bytes(contents["of-tomorrow"])
    return resigned(pack, lambda document: document["files"].update(listed))


def weakly_signed(folder: Path) -> Path:
    """Make a pack with a key of order 1, for which one signature is valid for every text."""
    pack, one = write_tiny_pack(folder), (1).to_bytes(32, "little")
    parts = {"key": one, "signature": one + bytes(32)}
    text = json.dumps({name: base64.b64encode(data).decode() for name, data in parts.items()}, sort_keys=True)
    (pack / "manifest.sig").write_bytes(text.encode() + b"\n")
    return pack


def flipped(name: str) -> MakePack:
    """Return a function that makes a pack with one wrong bit in a file."""

    def flip(pack: Path) -> None:
        data = bytearray((pack / name).read_bytes())
        data[len(data) // 2] ^= 1
        (pack / name).write_bytes(data)

    return after_writing(flip)


GOOD: Final[Mapping[str, tuple[str, MakePack]]] = {
    "good-classifier": ("all that a classifier may have: gate, self-test, calibration", make_pack),
    "good-edgetpu": ("with a file for the Edge TPU", lambda folder: make_pack(folder, edgetpu=True)),
    "good-tiny": ("a classifier whose network runs: bright images are abnormal", write_tiny_pack),
    "good-no-points": ("no operating points", lambda folder: make_pack(folder, operating_points=())),
    "good-no-gate": ("no out-of-distribution check", lambda folder: make_pack(folder, ood_gate=None)),
    "good-other-key": ("signed by another key", lambda folder: make_pack(folder, key_number=2)),
    "good-languages": (
        "texts in languages that the reader does not know",
        changed(lambda document: document["names"].update({"pt-BR": "Pequeno", "sr-Latn": "Mali", "yue": "細"})),
    ),
    "good-metrics": (
        "metrics nobody knows",
        changed(lambda document: document["metrics"].update({"z": [1, {"a": None}]})),
    ),
    "good-provenance": (
        "provenance nobody knows",
        changed(lambda document: document["provenance"].update({"moon": "full"})),
    ),
    "good-written-otherwise": ("keys in another order, line breaks between them", written_otherwise),
    "good-role": ("a file of a role that no reader knows yet", with_role),
    "good-version": ("a version of large numbers", lambda folder: make_pack(folder, version="10.200.3000")),
    "good-lung-fields": ("a lung-field pack", make_lung_fields),
}

BAD: Final[Mapping[str, tuple[str, MakePack]]] = {
    **{f"bad-without-{name}": (f"no {name}", without(name)) for name in _REQUIRED},
    "bad-format-old": ("format 1", with_values(schema_version=1)),
    "bad-format-new": ("format 3", with_values(schema_version=3)),
    "bad-format-true": ("format true", with_values(schema_version=True)),
    "bad-kind": ("a kind nobody knows", with_values(kind="oracle")),
    "bad-kind-other": ("a classifier that calls itself a lung-field pack", with_values(kind="lung-fields")),
    "bad-unknown-key": ("a key nobody knows", with_values(threshhold=0.5)),
    "bad-unknown-key-below": ("a key nobody knows in `input`", with_values("input", gamma=2)),
    "bad-no-english": ("no English name", with_values(names={"uk": "Малий"})),
    "bad-language": (
        "a language in another spelling",
        changed(lambda document: document["names"].update({"EN_us": "x"})),
    ),
    "bad-id": ("an id in capitals", with_values(id="Tiny")),
    "bad-side": ("an input of 4 pixels", with_values("input", height=4)),
    "bad-side-text": ("a height that is text", with_values("input", height="64")),
    "bad-channels": ("an input of 2 channels", with_values("input", channels=2)),
    "bad-margin": ("a margin of a half", with_values("input", margin=0.5)),
    "bad-outputs-meet": (
        "two outputs with one index",
        with_values("outputs", scores=0, class_maps=0),
    ),
    "bad-labels-none": ("no labels", with_values(labels=[])),
    "bad-labels-twice": ("a label twice", changed(lambda document: document["labels"].append(document["labels"][0]))),
    "bad-point-label": (
        "an operating point for a label that is not there",
        with_values("operating_points", 0, label="nobody"),
    ),
    "bad-point-band": (
        "a threshold outside its band",
        with_values("operating_points", 0, unsure_low=0.9, unsure_high=0.95),
    ),
    "bad-point-local": (
        "an operating point with a name kept for the site's own",
        with_values("operating_points", 0, name="local:mine"),
    ),
    "bad-point-twice": (
        "an operating point twice",
        changed(lambda document: document["operating_points"].append(document["operating_points"][0])),
    ),
    "bad-class-names": (
        "a class called like one of the program",
        with_values(class_names={"abnormal": {"en": "Normal"}, "normal": {"en": "None found"}}),
    ),
    "bad-class-names-meet": (
        "two classes whose names look alike",
        with_values(class_names={"abnormal": {"en": "Signs"}, "normal": {"en": "Ѕigns"}}),
    ),
    "bad-name-unseen": ("a name that nobody can see", with_values(names={"en": "\u3164"})),
    "bad-threshold": ("a threshold of 1.5", with_values("operating_points", 0, threshold=1.5)),
    "bad-calibration-label": (
        "a calibration for a label that is not there",
        changed(lambda document: document["calibration"].update(nobody={"slope": 1, "intercept": 0})),
    ),
    "bad-calibration-slope": (
        "a slope of -1",
        with_values(calibration={"opacity": {"slope": -1, "intercept": 0}}),
    ),
    "bad-ages": ("the oldest is younger than the youngest", with_values("accepted", ages_years=[9, 3])),
    "bad-no-card": ("no model card", changed(lambda document: document["files"].pop("card"))),
    "bad-no-golden-file": (
        "a self-test without its scores",
        changed(lambda document: document["files"].pop("golden_scores")),
    ),
    "bad-size-vast": ("a model of a terabyte", with_values("files", "litert", size_bytes=2**40)),
    "bad-hash-capitals": (
        "a SHA-256 in capitals",
        with_values("files", "litert", sha256="A" * 64),
    ),
    "bad-names-meet": (
        "two files whose names differ in case only",
        with_values("files", "card", name="MODEL.tflite"),
    ),
    "bad-name-device": ("a file named for a device", with_values("files", "litert", name="NUL.tflite")),
    "bad-name-manifest": ("a file called as the description", with_values("files", "litert", name="manifest.json")),
    "bad-vast": ("a description of more than 128 KiB", with_values("metrics", x="y" * 2**17)),
    "bad-card": ("a model card that is no text", lambda folder: with_file(folder, "MODEL_CARD.md", b"\xff\xfe#")),
    "bad-golden-cut": ("golden inputs that are cut", with_array("golden_inputs.npy", b"\x93NUMPY\x01\x00")),
    "bad-lungs-order": (
        "a lung-field pack with its checks in another order",
        lungs(lambda document: document["checks"].reverse()),
    ),
    "bad-lungs-checks": ("a lung-field pack with five checks", lungs(lambda document: document["checks"].pop())),
    "bad-lungs-mask": ("a mask's threshold of 1", lungs(lambda document: document.update(mask_threshold=1))),
    **{f"bad-flipped-{name}": (f"a bit of {name} is another", flipped(name)) for name in _FILES},
    "bad-cut": ("the model is cut", after_writing(lambda pack: (pack / "model.tflite").write_bytes(b"TFL3"))),
    "bad-gone": ("the model is not there", after_writing(lambda pack: (pack / "model.tflite").unlink())),
    "bad-no-manifest": ("no description", after_writing(lambda pack: (pack / "manifest.json").unlink())),
    "bad-signature-of-other": (
        "the signature of another pack",
        after_writing(
            lambda pack: (pack / "manifest.sig").write_bytes(
                (make_pack(pack.parent / "other") / "manifest.sig").read_bytes()
            )
        ),
    ),
    "bad-weak-key": ("a key of order 1, whose signature fits every text", weakly_signed),
}


def entries() -> dict[str, Entry]:
    """Return every pack of the suite by its name."""
    hostile = {
        f"hostile-{name}": ("broken", tried, make)
        for name, (tried, make) in BROKEN.items()
        if not name.endswith(_NOT_CARRIED)
    }
    good, bad = (
        {name: (verdict, tried, make) for name, (tried, make) in packs.items()}
        for verdict, packs in (("good", GOOD), ("broken", BAD))
    )
    return good | bad | hostile


def reason_of(pack: Path) -> str | None:
    """Return the code of the fault that this program's reader finds in a pack; None for a good one."""
    try:
        read_pack(pack)
    except PackProblem as problem:
        return problem.reason.code
    return None


def write(folder: Path, packs: Mapping[str, Entry] | None = None) -> Path:
    """Write all packs, or only `packs`, and the expected verdicts. Returns the path of expected.json.

    Raises AssertionError if this program's own reader reaches another verdict.
    """
    found = {}
    for name, (verdict, tried, make) in (packs or entries()).items():
        place = folder / ".making"
        place.mkdir(parents=True)
        made = make(place).rename(folder / name)
        shutil.rmtree(place)
        why = reason_of(made)
        assert (why is None) == (verdict == "good"), f"{name} is {verdict}, and the reader says {why}"
        found[name] = {"folder": name, "verdict": verdict, "tried": tried, "reason": why}
    expected = folder / EXPECTED
    expected.write_text(json.dumps({"format": 2, "packs": found}, indent=1) + "\n", encoding="utf-8")
    return expected


if __name__ == "__main__":
    sys.stdout.write(f"{write(Path(sys.argv[1]))}\n")
