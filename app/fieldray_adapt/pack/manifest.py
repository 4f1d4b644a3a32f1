"""The manifest of a classifier's pack, still without the figures that are measured with the pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from fieldray.domain.model import Calibration, Label, Manifest, OperatingPoint, OutOfDistributionCheck, PackRequirement
from fieldray.packs.verified import read_verified_manifest
from fieldray_adapt.run import Run
from fieldray_adapt.training.steps import load_last_network, read_converted_file


def make_manifest(
    run: Run,
    *,
    points: Sequence[OperatingPoint],
    calibration: Mapping[str, Calibration],
    ood_check: OutOfDistributionCheck | None,
) -> Manifest:
    """Return the manifest of a pack with the recipe's texts. Figures, warnings and provenance are added later.

    Parameters
    ----------
    points
        The operating points.
    calibration
        The calibration of the scores of each label, by label code.
    ood_check
        The out-of-distribution check; None for a pack without this check.

    Raises UsageProblem (`step_missing`), PackProblem.
    """
    recipe, texts = run.recipe, run.recipe.pack
    specification, _ = load_last_network(run)
    return Manifest(
        pack_id=texts.id,
        version=texts.version,
        names=texts.names,
        descriptions=texts.descriptions,
        intended_use=texts.intended_use,
        limits=texts.limits,
        input=recipe.input,
        class_names=asdict(texts.class_names) if texts.class_names else None,
        labels=tuple(
            Label(code=label.code, scheme=label.scheme, meaning=label.meaning) for label in recipe.pack_labels
        ),
        outputs=read_converted_file(run, "int8").output_roles(specification),
        operating_points=tuple(points),
        calibration=calibration,
        ood_gate=ood_check,
        accepted=texts.accepted_headers,
        requires=_requires(run),
    )


def _requires(run: Run) -> tuple[PackRequirement, ...]:
    """Return the requirement for a lung-field pack: the pack of the training, or a later version with that pack's key.

    Empty if the recipe has no lung-field pack.
    """
    if run.recipe.lungs is None:
        return ()
    found = read_verified_manifest(run.recipe.lungs)
    pack_id, version = found.content.id, found.content.version
    return (PackRequirement(kind="lung-fields", id=pack_id, minimum_version=version, key=found.fingerprint),)
