"""The placement report: which operators run on an Edge TPU, and why others do not; and compiling by a fake compiler."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from fake_compilers import fake_compile, fake_compiler, package
from fieldray.backends import CPU
from fieldray.errors import BackendProblem, EnvironmentProblem, PackProblem, UsageProblem
from fieldray.inference.backend import BackendKind, NetworkOutput
from fieldray.inference.coral import edgetpu_kind, parse_edgetpu_options
from fieldray.inference.worker import WorkerBackend, cpu_kind
from fieldray.packs.verified import read_card, read_pack, read_verified_manifest
from fieldray_adapt.networks.edgetpu import (
    MIB,
    compile_for_edgetpu,
    describe_placement,
    estimate_inference_ms,
    placement_step,
    read_placement,
)
from fieldray_adapt.pack.card import edgetpu_section, render_card
from fieldray_adapt.recipe_actions import compile_pack
from fieldray_adapt.run import Run
from fieldray_adapt.training.steps import recipe_specification
from packs_factory import make_lung_fields
from program import runner
from tiny_models import changed_model, tiny_model_bytes
from tiny_packs import fingerprint, write_tiny_pack
from tiny_recipe import read_recipe

RECIPE = Path(__file__).parents[2] / "models" / "recipes" / "pneumonia-paediatric.toml"


def test_an_int8_file_maps_as_a_whole() -> None:
    placement = read_placement(tiny_model_bytes())
    assert placement.edgetpu_operator_count == len(placement.operators) and not placement.cpu_operator_counts
    assert placement.subgraphs == 1 and not placement.compiled
    # int8 weights 4 x 4x4x1 and 1 x 1x1x4, int32 biases 4 and 1, and two reshapes to two int32 sides each
    assert placement.weight_bytes == 64 + 4 + 4 * 4 + 4 + 2 * 2 * 4
    # 16 x 16 cells, 4 channels of 4x4 pixels, then one map of 4 channels
    assert sum(row.multiply_adds for row in placement.operators) == 256 * (64 + 4)
    assert placement.streamed_bytes == 0
    assert placement.cached_bytes == round(104 * 1.17)


def test_float_values_do_not_map() -> None:
    placement = read_placement(tiny_model_bytes("float32"))
    assert placement.edgetpu_operator_count == 0 and placement.subgraphs == 0 and placement.estimate_ms is None
    assert any("float32" in why for why in placement.cpu_operator_counts)


def test_operators_after_one_on_the_cpu_stay_on_the_cpu() -> None:
    def unknown_scores(model: Any) -> None:
        for code in model.operatorCodes:
            if code.builtinCode == schema.BuiltinOperator.LOGISTIC:
                code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FLOOR

    placement = read_placement(changed_model(unknown_scores))
    left = placement.cpu_operator_counts
    assert left["FLOOR: not an operator of the Edge TPU"] == 1
    # the conversion of the scores to uint8 follows this operator; the class maps and features do not depend on it
    assert left["QUANTIZE: comes after an operator that stays on the CPU"] == 1
    assert placement.edgetpu_operator_count == len(placement.operators) - 2


def test_an_unfixed_size_and_a_fused_pool_are_named() -> None:
    def dynamic(model: Any) -> None:
        for tensor in model.subgraphs[0].tensors:
            if len(tensor.shape) == 4:
                tensor.shapeSignature = [1, -1, -1, int(tensor.shape[3])]

    def fused(model: Any) -> None:
        for row in model.subgraphs[0].operators:
            if isinstance(row.builtinOptions, schema.Pool2DOptionsT):
                row.builtinOptions.fusedActivationFunction = 1

    assert any("size is not fixed" in why for why in read_placement(changed_model(dynamic)).cpu_operator_counts)
    assert any("fused" in why for why in read_placement(changed_model(fused)).cpu_operator_counts)


def test_the_estimate_is_the_published_fit() -> None:
    # ResNet50 at 224 px: 23 MiB raw are 26.9 on the chip, 20.4 of them streamed; 3.7 billion multiply-adds
    assert estimate_inference_ms(streamed_bytes=0, multiply_adds=0) == pytest.approx(2.17)
    assert estimate_inference_ms(streamed_bytes=2 * MIB, multiply_adds=3_000_000_000) == pytest.approx(
        2.17 + 4.52 + 2.31
    )


OTHERS = [b"", b"TFL3", b"\x10\x00\x00\x00TFL3" + b"\xff" * 40, bytes(200)]


@pytest.mark.parametrize("data", [*OTHERS, *(tiny_model_bytes()[:length] for length in (40, 200, 700))])
def test_a_file_that_is_no_model_is_a_plain_error(data: bytes) -> None:
    with pytest.raises(UsageProblem, match="TensorFlow Lite"):
        read_placement(data)


COMPILED = fake_compile(tiny_model_bytes(), (1, 5000), (2, 300), oldest_runtime=14)


def test_a_compiled_file_gives_exact_figures() -> None:
    placement = read_placement(COMPILED)
    assert placement.compiled and placement.subgraphs == 1 and placement.edgetpu_operator_count == 1
    assert (placement.cached_bytes, placement.streamed_bytes, placement.min_runtime) == (5000, 300, 14)
    assert "exact" in describe_placement(placement) and "version 14" in describe_placement(placement)


def test_a_package_that_stands_alone_streams_everything() -> None:
    assert parse_edgetpu_options(bytes(7) + package((0, 777))) == (14, 0, 777)


@pytest.mark.parametrize("length", range(12, 150, 9))
def test_a_damaged_package_is_a_plain_error(length: int) -> None:
    with pytest.raises(ValueError, match="Edge TPU"):
        parse_edgetpu_options((bytes(7) + package((1, 50), (2, 60)))[:length])


def test_options_without_a_package_are_a_plain_error() -> None:
    with pytest.raises(ValueError, match="no DWN1"):
        parse_edgetpu_options(struct.pack("<20I", *range(20)))


def test_the_report_says_what_is_an_estimate() -> None:
    text = describe_placement(read_placement(tiny_model_bytes()))
    assert "Forecast" in text and "an estimate, not measured" in text


def test_the_card_describes_the_compiled_file_or_the_forecast_without_one() -> None:
    recipe = read_recipe(RECIPE)
    files = {"litert": tiny_model_bytes()}
    text = render_card("card.md", recipe.pack, specification=recipe_specification(recipe), files=files, tools={})
    said = "\n## Edge TPU\n\nThis pack has no file compiled for the Edge TPU.\n\n"
    said += "- Forecast for the Edge TPU (not compiled): "
    operators = len(read_placement(files["litert"]).operators)
    assert f"{said}{operators} of {operators} operators mapped, 1 subgraph(s)\n- Weights kept on" in text
    assert "ms per image on USB 3: an estimate, not measured\n\n## Data\n" in text
    exact = edgetpu_section(files | {"edgetpu": COMPILED})
    assert "has a file compiled" in exact and "(exact): 1 of 1 operators" in exact and "an estimate" not in exact


def _run(folder: Path) -> Run:
    """Return a run whose step `quantise` has written the tiny network."""
    recipe = read_recipe(RECIPE)
    run = Run(recipe=replace(recipe, run=folder), progress=lambda *_: None)
    run.step_folder("quantise").mkdir(parents=True)
    (run.step_folder("quantise") / "int8.tflite").write_bytes(tiny_model_bytes())
    run.write_step_json("quantise", "outputs.json", {"int8": {"scores": 0}})
    return run


def test_the_placement_of_the_int8_file_is_reported(tmp_path: Path) -> None:
    run = _run(tmp_path)
    facts = placement_step(run)
    assert facts["mapped"] == facts["operators"] and facts["subgraphs"] == 1
    assert run.read_step_json("placement", "placement.json", dict[str, Any])["left_on_cpu"] == {}
    assert "estimate" in (tmp_path / "placement" / "placement.txt").read_text()


def test_a_partly_compiled_file_is_refused(tmp_path: Path) -> None:
    operators = len(read_placement(tiny_model_bytes()).operators)
    partly = fake_compile(tiny_model_bytes(), (1, 5000), is_whole=False)
    with pytest.raises(UsageProblem, match=f"Operators that run on the CPU: {operators}"):
        compile_for_edgetpu(tiny_model_bytes(), compiler=fake_compiler(tmp_path, partly))
    with pytest.raises(
        UsageProblem, match=f"Subgraphs: 0. Operators that run on the CPU: {operators}"
    ):  # the file is unchanged
        compile_for_edgetpu(tiny_model_bytes(), compiler=fake_compiler(tmp_path, tiny_model_bytes()))


@pytest.mark.parametrize(("status", "made"), [(1, b"?"), (0, None)])
def test_a_failed_compilation_repeats_the_compiler_s_last_line(tmp_path: Path, status: int, made: bytes | None) -> None:
    says = "Invalid model: x\nCould not preprocess model"
    with pytest.raises(EnvironmentProblem, match="Could not preprocess model"):
        compile_for_edgetpu(tiny_model_bytes(), compiler=fake_compiler(tmp_path, made, says=says, status=status))


class Blind(WorkerBackend):
    """A fake device that gives every image the lowest score."""

    def run(self, image: NDArray[np.uint8]) -> NetworkOutput:
        return replace(super().run(image), scores=np.zeros(1, np.float32))


def test_a_pack_is_compiled_with_its_golden_vectors_checked_and_signed_anew(tmp_path: Path) -> None:
    shipped, mine, said = write_tiny_pack(tmp_path / "shipped"), tmp_path / "mine", list[str]()
    compiler, key = fake_compiler(tmp_path, COMPILED), tmp_path / "signing.pem"
    blind = BackendKind(entry=CPU, open=lambda: Blind(CPU))
    none = edgetpu_kind(find_devices=lambda: (), libraries=("libfieldray-none.so.1",))
    compiled = partial(compile_pack, signing_key=key, say=said.append, compiler=compiler, kinds=(none, cpu_kind()))
    with pytest.raises(UsageProblem, match="so the pack was not changed"):
        compiled(shipped, output_folder=None)
    with pytest.raises(BackendProblem, match="does not give the results that the pack expects"):
        compiled(shipped, output_folder=mine, kinds=(blind,))
    assert not mine.exists() and not key.exists()
    stranger = tmp_path / "stranger.pem"
    stranger.write_text("no key")
    with pytest.raises(UsageProblem, match="the file is not a PEM key, or the key has a password"):
        compiled(shipped, output_folder=mine, signing_key=stranger)
    assert not mine.exists()
    # a pack of another key is in the way: the new key and the new folder for the key are removed again
    with pytest.raises(PackProblem, match="The new pack is signed with the key"):
        compiled(shipped, output_folder=shipped.parent, signing_key=tmp_path / "keys" / "new.pem")
    assert not (tmp_path / "keys").exists() and read_verified_manifest(shipped).fingerprint == fingerprint(shipped)

    place = compiled(shipped, output_folder=mine)
    assert said[-1] == "CPU: gives the scores of the 5 golden vectors."
    assert said[-2].startswith("Edge TPU: not run. No Edge TPU is connected.")
    found = read_verified_manifest(place)
    model = read_pack(place).model
    assert found.pack_name == "tiny-1.0.0" and found.fingerprint != fingerprint(shipped)
    assert model.files["edgetpu"] == COMPILED and found.content.minimum_edgetpu_runtime == 14
    assert found.content.provenance == {"compiled_from": f"tiny-1.0.0@{fingerprint(shipped)}"}
    assert model.card == f"# Tiny\n\n{edgetpu_section(model.files)}\n" and "(exact)" in model.card
    assert "edgetpu" not in read_verified_manifest(shipped).content.files
    # a pack of the same key is replaced, and has each entry once
    assert compiled(place, output_folder=None) == place
    assert read_verified_manifest(place).content.provenance == found.content.provenance
    assert read_card(place) == model.card


def test_the_command_compiles_a_pack_and_says_what_is_missing(tmp_path: Path, home: Path) -> None:
    pack, fieldray = write_tiny_pack(tmp_path / "shipped"), partial(runner(home), "adapt", "compile")
    options = ("--key", tmp_path / "mine.pem", "--out", tmp_path / "mine")
    fake_compiler(tmp_path, COMPILED)
    done = fieldray(pack, *options, environment={"PATH": str(tmp_path)})
    made = tmp_path / "mine" / "tiny-1.0.0"
    assert done.out.splitlines()[-2:] == [
        f"Written: {made}",
        f"To use the pack: fieldray packs install {made} --trust {fingerprint(made)}",
    ]
    for wrong, place, said in (
        (pack, tmp_path / "none", "edgetpu_compiler is not installed"),
        (RECIPE, tmp_path, "The pack cannot be read"),
        (make_lung_fields(tmp_path), tmp_path, "does not screen images"),
    ):
        fieldray(wrong, *options, environment={"PATH": str(place)}).ends_with(1, 2, 3).complains(said)
