"""The shipped packs, and the pack from which recipes start, in any version."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).parents[1] / "models"
(CHILDREN,) = MODELS.glob("pneumonia-paediatric-*")
(ADULTS,) = MODELS.glob("adult-normal-abnormal-*")
(TUBERCULOSIS,) = MODELS.glob("tuberculosis-adult-*")
LUNGS = tuple(sorted(MODELS.glob("lung-fields-*"), reverse=True))
(CHILDREN_BEFORE,) = (MODELS / "lineage").glob("pneumonia-paediatric-*")
