"""Packs that find the lung fields: what their manifest must say, and a tiny one that runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from fieldray.domain.model import LUNG_CHECKS
from fieldray.errors import PackProblem
from fieldray.packs.manifest import GoldenTolerance, LungCheck, LungFieldsManifest, LungOutputs, parse
from fieldray.packs.verified import read_files, read_verified_manifest
from packs_factory import make_lung_fields
from tiny_lungs import tiny_checks, tiny_lungs_bytes, write_tiny_lungs
from tiny_models import tiny_inputs


def _checks(*names: str) -> tuple[LungCheck, ...]:
    return tuple(LungCheck(name=name, threshold=0.5) for name in names)


def test_a_pack_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = write_tiny_lungs(tmp_path, mask_threshold=0.4)
    found = parse((folder / "manifest.json").read_bytes())
    assert isinstance(found, LungFieldsManifest)
    assert (found.outputs.mask, found.outputs.checks, found.mask_threshold) == (0, 1, 0.4)
    assert tuple(check.name for check in found.checks) == LUNG_CHECKS
    pack = read_files(folder, read_verified_manifest(folder))
    with pytest.raises(PackProblem):  # it screens nothing by itself
        pack.model("signed")
    model = pack.companion("signed")
    assert model is not None and model.manifest.lung_rules is not None
    assert model.manifest.lung_rules.mask_threshold == 0.4
    assert {label.scheme for label in model.manifest.labels} == {"fieldray"}
    assert (model.manifest.outputs.mask, model.manifest.outputs.scores) == (0, 1)
    assert tuple(label.code for label in model.manifest.labels) == tuple(model.manifest.lung_rules.thresholds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checks": _checks(*reversed(LUNG_CHECKS))}, f": checks: need {', '.join(LUNG_CHECKS)}, in this order"),
        ({"checks": _checks(*LUNG_CHECKS[:-1])}, "checks"),
        ({"checks": (LungCheck(name="frontal_chest", threshold=1.0), *_checks(*LUNG_CHECKS[1:]))}, "threshold"),
        ({"outputs": LungOutputs(mask=1, checks=1)}, ": outputs: one output has two roles"),
        ({"mask_threshold": 0.0}, "mask_threshold"),
        ({"golden": GoldenTolerance(tolerance=0.02)}, "golden_inputs is missing"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(PackProblem) as caught:
        make_lung_fields(tmp_path, **changes)
    assert message in caught.value.reason.text


def test_golden_scores_are_those_of_the_checks(tmp_path: Path) -> None:
    folder = write_tiny_lungs(tmp_path)
    scores = np.load(folder / "golden_scores.npy", allow_pickle=False)
    assert scores.shape == (5, 6)
    with pytest.raises(PackProblem):  # five columns: none of them is that of `mirrored`
        write_tiny_lungs(tmp_path, checks=_checks(*LUNG_CHECKS[:-1]))


def test_the_tiny_network_answers_as_its_formula_says() -> None:
    interpreter = Interpreter(model_content=tiny_lungs_bytes())
    interpreter.allocate_tensors()
    for image, expected in zip(tiny_inputs(), tiny_checks(tiny_inputs()), strict=True):
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image[None])
        interpreter.invoke()
        mask, checks = (interpreter.get_tensor(row["index"])[0] for row in interpreter.get_output_details())
        blocks = image.reshape(16, 4, 16, 4).mean((1, 3)) / 255
        assert mask.shape == (16, 16, 1)
        assert np.abs(mask[..., 0] / 255 - (1 - blocks)).max() < 0.02
        assert np.abs(checks / 256 - expected).max() < 0.02
