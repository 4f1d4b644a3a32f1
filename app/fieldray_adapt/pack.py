"""The model card: what a pack is, what it was made from, what was measured, and what speaks against the figures.

A card is a template in `templates`, filled with the facts of its kind of pack; what stands on every card is `card.md`.

The pack step: manifest, model card, golden vectors and signature, written as a pack on a drive or in a folder.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from fieldray.domain.image import Image
from fieldray.domain.metrics import as_text
from fieldray.domain.model import (
    Calibration,
    Estimate,
    GoldenVectors,
    InputSpec,
    Label,
    Manifest,
    OodGate,
    OperatingPoint,
    OutputRoles,
    Requirement,
)
from fieldray.errors import PackProblem, UsageProblem
from fieldray.imaging.preprocess import to_tensor
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.manifest import SCHEMA_VERSION, Input, PackManifest
from fieldray.packs.signing import own_key
from fieldray.packs.verified import list_files, read_verified_manifest, require_pack, write_described, write_pack
from fieldray.reasons import Reason, reason
from fieldray.translation import Translator, languages
from fieldray_adapt.cross import CROSS_RESULTS
from fieldray_adapt.edgetpu import card_section
from fieldray_adapt.files import content_digest, digest, undone_on_failure
from fieldray_adapt.recipe import NO_WEIGHTS, PackTexts, Recipe, what_is_made, what_is_trained
from fieldray_adapt.recipe_data import LabelRule
from fieldray_adapt.run import Run, Step
from fieldray_adapt.specification import Specification, multiply_adds, parameters
from fieldray_adapt.steps import answers_of, converted, last_network, whole_network

Facts = Mapping[str, Any]

_CLOSE: Final = 0.05
_SHORTCUT_AUC: Final = 0.65
_FEW: Final = 100  # test images of the rarer kind: Wilson's interval of nine in ten is wider than +/- 6 points
_MANY_REFUSED: Final = 0.05


def filled(name: str, **facts: Any) -> str:
    """The Markdown of a template, filled. Raises jinja2.UndefinedError where a fact is missing."""
    environment = Environment(
        loader=PackageLoader("fieldray_adapt"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"as_text": as_text, "form": format}
    return environment.get_template(name).render(facts)


def card(
    name: str,
    texts: PackTexts,
    *,
    specification: Specification,
    files: Mapping[str, bytes],
    tools: Facts,
    warnings: Sequence[Reason] = (),
    **facts: Any,
) -> str:
    """The Markdown of a pack's card by the template of its kind, and its making. `files` are the networks by role."""
    sizes = {"parameters": parameters(specification), "multiply_adds": multiply_adds(specification)}
    sizes["size_bytes"] = len(files["litert"])
    own = {"specification": specification, "edgetpu": card_section(files), "tools": tools, "warnings": warnings}
    return filled(name, texts=texts, **own, **sizes, **facts)


def model_card(
    recipe: Recipe,
    *,
    specification: Specification,
    files: Mapping[str, bytes],
    data: Facts,
    results: Facts,
    tools: Facts,
    cross: Facts | None = None,
    pruned: Sequence[Facts] = (),
) -> str:
    """The card's Markdown. `data` are `dataset.Dataset.facts`, `results` the evaluation's figures, `cross` those of a
    cross-validation, where there was one, and `pruned` the iterations of the prune step.
    """
    meanings = {label.code: label.meaning["en"] for label in recipe.kept_labels}
    return card(
        "classifier_card.md",
        recipe.pack,
        specification=specification,
        files=files,
        tools=tools,
        warnings=warnings_of(results["labels"], results.get("gate") or {}, meanings=meanings),
        recipe=recipe,
        data=data,
        results=results,
        cross=cross,
        pruned=pruned,
        start="" if recipe.network.weights == NO_WEIGHTS else Path(recipe.network.weights).name,
        whole=parameters(whole_network(recipe)),
        verdict=_verdict,
        rows_of=_group_rows,
    )


def _group_rows(groups: Mapping[str, Mapping[str, Facts]]) -> list[tuple[str, str, Facts]]:
    return [(name, value, facts) for name, values in groups.items() for value, facts in values.items()]


def _verdict(area: float, shortcuts: Facts) -> str:
    """In words, how far what cannot be the finding explains the result."""
    best = max(shortcuts.values())
    if best > area - _CLOSE:
        return "**These come close to the network: a figure on this data set says little about lungs.**"
    if best > _SHORTCUT_AUC:
        return (
            "**The network is above both, but these are far above 0.5: the data set gives its classes away by more "
            "than the lungs, and any figure on it is optimistic.**"
        )
    return "The network is well above both."


def warnings_of(labels: Mapping[str, Facts], gate: Facts, *, meanings: Mapping[str, str]) -> list[Reason]:
    """What speaks against the figures of a pack: a shortcut does nearly as well, few patients, a strict gate.

    meanings  of the labels, in the language of whoever reads it
    """
    found = []
    for code, figures in labels.items():
        test, best = figures["test"], max(figures["shortcuts"].values())
        area = test["auc"]["value"]
        if best > _SHORTCUT_AUC or best > area - _CLOSE:
            which = "pack_shortcut_close" if best > area - _CLOSE else "pack_shortcut"
            found.append(reason(which, label=meanings[code], area=f"{best:.2f}", own=f"{area:.2f}"))
        if (fewer := min(test["positive"], test["negative"])) < _FEW:
            found.append(reason("pack_few_images", label=meanings[code], count=fewer))
    refused = max((gate[name]["value"] for name in ("images_refused", "elsewhere_refused") if name in gate), default=0)
    if refused > _MANY_REFUSED:
        found.append(reason("pack_gate_refuses", percent=f"{100 * refused:.0f}"))
    return found


_MEASURED: Final = ("test", "external_test")
_GOLDEN_IMAGES: Final = 6
_GOLDEN_CANDIDATES: Final = 36
_GOLDEN_SIDE: Final = 512
# The kernels of two processors differ by up to 3 steps of the 8-bit scale; a score may move by more where it is steep.
GOLDEN_TOLERANCE: Final = 0.06
_TOOLS: Final = ("numpy", "tensorflow-cpu", "tensorflow", "keras", "torch", "ai-edge-litert", "pillow", "fieldray")


def pack_step(run: Run) -> Mapping[str, Any]:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe = run.recipe
    results, chosen = evaluated(run), evaluated(run, "points.json")
    file, (specification, _) = converted(run, "int8"), last_network(run)
    manifest = _manifest(run, file.roles(specification), results, chosen)
    files = {"litert": file.data}
    card = model_card(
        recipe,
        specification=specification,
        files=files,
        data=results["data"],
        results=results,
        tools=manifest.provenance,
        cross=cross_validation_of(run),
        pruned=run.read("prune", "table.json") if recipe.prune else [],
    )
    golden = _golden(run, manifest)
    with undone_on_failure(recipe.signing_key, recipe.packs_folder):
        key = own_key(recipe.signing_key)
        folder = write_pack(recipe.packs_folder, manifest=manifest, files=files, card=card, golden=golden, key=key)
    warnings = manifest.warnings["en"].splitlines() if manifest.warnings else []
    return pack_facts(folder) | ({"warnings": warnings} if warnings else {})


def evaluated(run: Run, name: str = "metrics.json") -> Any:
    """What the evaluation left under this name. Raises UsageProblem `step_missing`."""
    try:
        return run.read("evaluate", name)
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="evaluate")) from problem


def described(recipe: Any) -> dict[str, Any]:
    """What the recipe of a square, grey network says of its pack; what its files are is not said yet."""
    texts, spec = recipe.pack, recipe.input
    return {
        "schema_version": SCHEMA_VERSION,
        "id": texts.id,
        "version": texts.version,
        "names": dict(texts.names),
        "descriptions": dict(texts.descriptions),
        "intended_use": dict(texts.intended_use),
        "limits": dict(texts.limits),
        "input": Input(
            height=spec.height,
            width=spec.width,
            channels=1,
            dtype="uint8",
            intensity=spec.intensity,
            fit=spec.fit,
            margin=spec.margin,
        ),
    }


def write_whole(recipe: Any, kind: type[PackManifest], contents: Mapping[str, bytes], **facts: Any) -> dict[str, Any]:
    """Write the signed pack of such a recipe; the facts of its step."""
    whole = kind(**described(recipe), files=list_files(contents), **facts)
    with undone_on_failure(recipe.signing_key, recipe.packs_folder):
        key = own_key(recipe.signing_key)
        folder = write_described(recipe.packs_folder, description=whole, contents=contents, key=key)
    return pack_facts(folder)


def pack_facts(folder: Path) -> dict[str, Any]:
    """What the status has of a pack that was written, by which `is_as_written` knows it again."""
    signed = read_verified_manifest(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {"pack": str(folder), "signer": signed.fingerprint, "manifest_sha256": signed.manifest_sha256, "bytes": size}


def is_as_written(facts: Mapping[str, Any]) -> bool:
    """Whether the very pack that a step wrote is where it wrote it, whole and alone."""
    folder = Path(facts["pack"])
    try:
        require_pack(folder, fingerprint=facts.get("signer", ""))
        return bool(read_verified_manifest(folder).manifest_sha256 == facts["manifest_sha256"])
    except (PackProblem, OSError):
        return False


def cross_validation_of(run: Run) -> Mapping[str, Any] | None:
    """The figures of the published cross-validation; None if there is none, or one of another recipe or other data."""
    try:
        facts = run.read("data", "facts.json")
        found = json.loads((run.recipe.published / CROSS_RESULTS).read_text(encoding="utf-8"))
    except OSError:
        return None
    figures: Mapping[str, Any] = found["labels"]
    wanted = json.loads(json.dumps({"trained": what_is_trained(run.recipe), "made": what_is_made(run.recipe)}))
    is_of_this = found["trained"] == wanted["trained"] and found.get("made", wanted["made"]) == wanted["made"]
    return figures if is_of_this and found.get("data_sha256") == facts["data_sha256"] else None


def _manifest(run: Run, outputs: OutputRoles, results: Mapping[str, Any], chosen: Mapping[str, Any]) -> Manifest:
    recipe, texts = run.recipe, run.recipe.pack
    return Manifest(
        pack_id=texts.id,
        version=texts.version,
        names=texts.names,
        descriptions=texts.descriptions,
        intended_use=texts.intended_use,
        limits=texts.limits,
        input=recipe.input,
        class_names=asdict(texts.class_names) if texts.class_names else None,
        warnings=_warning_texts(recipe.kept_labels, results),
        labels=tuple(
            Label(code=label.code, scheme=label.scheme, meaning=label.meaning) for label in recipe.kept_labels
        ),
        outputs=outputs,
        operating_points=tuple(_point(entry) for entry in chosen["points"]),
        calibration={code: Calibration(**values) for code, values in chosen["calibration"].items()},
        ood_gate=_ood_gate(run),
        accepted=texts.accepted,
        requires=_requires(run),
        provenance=provenance(run, data=[source.name for source in recipe.data]),
        metrics={
            "labels": _figures(results["labels"]),
            "ood_gate": results["gate"],
            **_evidence(run, results["labels"]),
        },
    )


def _warning_texts(labels: Sequence[LabelRule], results: Mapping[str, Any]) -> dict[str, str] | None:
    """A line for each warning, in every language of the program; None where there is none."""
    texts = {}
    for translator in map(Translator, languages()):
        meanings = {label.code: translator.pick(label.meaning) for label in labels}
        found = warnings_of(results["labels"], results["gate"], meanings=meanings)
        texts[translator.language] = "\n".join(map(translator.reason, found))
    return texts if any(texts.values()) else None


def _requires(run: Run) -> tuple[Requirement, ...]:
    """The lung-field pack it was trained and measured with, or a later version by the same key."""
    if run.recipe.lungs is None:
        return ()
    found = read_verified_manifest(run.recipe.lungs)
    pack_id, version = found.description.id, found.description.version
    return (Requirement(kind="lung-fields", id=pack_id, minimum_version=version, key=found.fingerprint),)


def _point(entry: Mapping[str, Any]) -> OperatingPoint:
    estimates = {name: Estimate(**entry[name]) for name in ("sensitivity", "specificity")}
    return OperatingPoint(**{**entry, **estimates})


def _figures(labels: Mapping[str, Any]) -> dict[str, Any]:
    """What a clinician may ask for; the rest is in the card."""
    names = ("images", "patients", "positive", "negative", "auc", "specificity_at_sensitivity", "calibration_error")
    return {
        code: {
            **{
                part: {name: found[part][name] for name in names}
                | {"classes": {name: point["classes"] for name, point in found[part]["points"].items()}}
                for part in _MEASURED
                if part in found
            },
            "reference": {"scores": found["test"]["score_counts"]},
            **_heat_map(found),
            "shortcuts": found["shortcuts"],
            "float_against_int8": found["float_against_int8"],
        }
        for code, found in labels.items()
    }


def _heat_map(found: Mapping[str, Any]) -> dict[str, Any]:
    """The scale on which the label's map is shown; a run without evidence has none."""
    return {"heat_map": found["heat_map"]} if "heat_map" in found else {}


def _evidence(run: Run, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Share of the first label's evidence inside the lungs; screening points out what lies below its limit."""
    found = labels[run.recipe.kept_labels[0].code].get("evidence_inside")
    return {"evidence_inside": found} if found else {}


def _ood_gate(run: Run) -> OodGate:
    with np.load(run.folder("evaluate") / "gate.npz", allow_pickle=False) as arrays:
        return OodGate(mean=arrays["mean"], projection=arrays["projection"], limit=float(arrays["limit"]))


def provenance(run: Run, *, data: Sequence[str]) -> dict[str, str]:
    """What a pack was made of and with; `data` are the names of its sources."""
    recipe, facts = (run.recipe.run / "recipe.json").read_bytes(), run.read("data", "facts.json")
    licences = {name: getattr(run.recipe.pack, name) for name in ("data_licence", "weights_licence")}
    return {
        "data": ", ".join(data),
        **{name: text for name, text in licences.items() if text},
        "split": f"by patient, {run.recipe.split.by}",
        "seed": str(run.recipe.training.seed),
        "recipe_sha256": hashlib.sha256(recipe).hexdigest(),
        **{name: facts[name] for name in ("data_sha256", "split_sha256")},
        "python": platform.python_version(),
        **{name: found for name in _TOOLS if (found := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _golden(run: Run, manifest: Manifest) -> GoldenVectors:
    """Synthetic images, no patient's, whose scores lie far apart, and what the file gives for them here."""
    inputs = np.stack([phantom(seed, manifest.input) for seed in range(_GOLDEN_CANDIDATES)])
    scores = answers_of(run, "int8", inputs, "golden vectors").scores
    spread = np.argsort(scores[:, 0])[np.linspace(0, len(scores) - 1, _GOLDEN_IMAGES).round().astype(int)]
    return GoldenVectors(inputs=inputs[spread], scores=scores[spread].astype(np.float32), tolerance=GOLDEN_TOLERANCE)


def phantom(seed: int, spec: InputSpec) -> NDArray[np.uint8]:
    """A synthetic chest as a network sees it: (height, width, channels)."""
    pixels = chest_phantom(_GOLDEN_SIDE, _GOLDEN_SIDE, seed, abnormal=seed % 2 == 0)
    values: NDArray[np.uint8] = to_tensor(Image(pixels=pixels), spec).values[0]
    return values


def whole_pack_step(perform: Callable[[Run], Mapping[str, Any]]) -> Step:
    """The step of a pack that is written by `write_whole`."""
    return Step(
        name="pack",
        perform=perform,
        reads=("pack", "packs_folder", "signing_key"),
        outside=lambda run: digest(run.recipe.pack.credits_text),
        stands=is_as_written,
    )


PACK: Final = Step(
    name="pack",
    perform=pack_step,
    reads=("pack", "packs_folder", "results", "signing_key"),
    outside=lambda run: digest(content_digest(run.recipe.published / CROSS_RESULTS), run.recipe.pack.credits_text),
    stands=is_as_written,
)
