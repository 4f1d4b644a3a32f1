"""The software bill of materials and the licences: complete, exact, and reproducible for one folder."""

from __future__ import annotations

import datetime
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import compare_builds
import licences
import parts
import sbom

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
QT = parts.Part(
    name="Qt", version="6.11.3", licence="LGPL-3.0-only", kind="native", package_url="pkg:generic/qt@6.11.3",
    texts={"LGPL-3.0-only": "the text"}, files=("_internal/libQt6Core.so.6",),
)  # fmt: skip
GCC = parts.Part(
    name="GCC runtime", version="", licence="GPL-3.0-or-later WITH GCC-exception-3.1", kind="native",
    package_url="pkg:generic/gcc-runtime",
)  # fmt: skip
FILES = {"fieldray": "0" * 64, "_internal/libQt6Core.so.6": "a" * 64}


def made(**changes: Any) -> dict[str, Any]:
    return sbom.sbom_document(FILES, [QT, GCC], **{"version": "1.2", "made_at": NOON, **changes})


def test_every_file_and_every_part_is_listed() -> None:
    document = made()
    by_reference = {component["bom-ref"]: component for component in document["components"]}
    assert by_reference.keys() == {"native:Qt", "native:GCC runtime", *(f"file:{path}" for path in FILES)}
    library = by_reference["file:_internal/libQt6Core.so.6"]
    assert library["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert library["group"] == "Qt"
    assert by_reference["native:Qt"]["licenses"] == [{"license": {"id": "LGPL-3.0-only"}}]
    assert by_reference["native:GCC runtime"]["licenses"] == [{"license": {"name": GCC.licence}}]
    assert {"ref": "native:Qt", "dependsOn": ["file:_internal/libQt6Core.so.6"]} in document["dependencies"]


def test_the_same_folder_gives_the_same_list_and_another_one_another() -> None:
    assert json.dumps(made()) == json.dumps(made())
    other = sbom.sbom_document({**FILES, "fieldray": "1" * 64}, [QT, GCC], version="1.2", made_at=NOON)
    assert other["serialNumber"] != made()["serialNumber"]


def test_the_bill_of_materials_follows_the_standard() -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(made())) is None
    assert validator.validate_str(json.dumps({**made(), "components": [{"type": "spaceship"}]})) is not None


def test_a_folder_is_checked_against_its_bill_of_materials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "installed"
    for path in FILES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    written = tmp_path / "list.cdx.json"
    written.write_text(json.dumps(sbom.sbom_document(sbom.file_hashes(folder), [], version="1.2", made_at=NOON)))
    assert sbom.main([str(folder), "--check", str(written)]) == 0
    (folder / "fieldray").write_text("another program")
    (folder / "_internal" / "libQt6Core.so.6").unlink()
    (folder / "_internal" / "more.so").touch()
    capsys.readouterr()
    assert sbom.main([str(folder), "--check", str(written)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "changed: fieldray",
        "missing: _internal/libQt6Core.so.6",
        "not in the list: _internal/more.so",
    ]


def test_a_licence_text_shared_by_parts_is_stored_once() -> None:
    other = parts.Part(
        name="shiboken6", version="6", licence="MIT", kind="distribution", package_url="", texts=dict(QT.texts),
        files=("_internal/x.so",),
    )  # fmt: skip
    table = licences.licence_table([QT, other])
    assert list(table["texts"].values()) == ["the text"]
    assert [row["files"] for row in table["parts"]] == [["_internal/libQt6Core.so.6"], []]


def test_an_unknown_library_is_an_error() -> None:
    known = {"numpy": GCC, "Python": QT}
    with pytest.raises(ValueError, match="libtelemetry"):
        list(parts._native_parts(["_internal/libtelemetry.so.1"], known))


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("_internal/libQt6Core.so.6", "Qt"),
        ("_internal/PySide6/Qt6Core.dll", "Qt"),
        ("_internal/PySide6/Qt/plugins/platforms/libqxcb.so", "Qt"),
        ("_internal/libcrypto.so.3", "OpenSSL"),
        ("_internal/imagecodecs.libs/libjpeg-f212e7a6.so.8.3.2", "libjpeg-turbo of imagecodecs"),
        ("_internal/imagecodecs/_jpeg8.pyd", "libjpeg-turbo of imagecodecs"),
        ("_internal/pillow.libs/libjpeg-ef1e7fbf.so.62.4.0", "libjpeg-turbo"),
        ("_internal/imagecodecs.libs/libpng16-35002b02.so.16.55.0", "libpng of imagecodecs"),
        ("_internal/imagecodecs/_png.pyd", "libpng with zlib-ng, of imagecodecs"),
        ("_internal/pillow.libs/libpng16-819d7b2f.so.16.53.0", "libpng"),
        ("_internal/libpython3.11.so.1.0", "Python"),
        ("_internal/_bz2.pyd", "Python"),
        ("_internal/numpy.libs/msvcp140-0f2ea95580b32bcf.dll", "Microsoft Visual C++ runtime"),
        ("_internal/VCRUNTIME140.dll", "Microsoft Visual C++ runtime"),
        ("_internal/psutil/_psutil_windows.pyd", None),
        ("_internal/ai_edge_litert/libpywrap_litert_common.so", None),
        ("_internal/imagecodecs/_imcd.abi3.so", None),
    ],
)
def test_native_libraries_are_identified_by_their_path(path: str, part: str | None) -> None:
    """None: the library belongs to the distribution that installed it."""
    row = parts._row(path)
    assert (row and row["name"]) == part


def test_every_licence_text_named_in_the_table_exists() -> None:
    folder = Path(parts.__file__).parent
    rows = tomllib.loads((folder / "native_parts.toml").read_text(encoding="utf-8"))["part"]
    named = {text for row in rows for text in row.get("texts", ())} | {"LGPL-3.0-only", "GPL-3.0-only"}
    there = {path.stem for path in (folder / "licence_texts").iterdir()}
    assert named <= there
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (folder / "licence_texts" / "LGPL-3.0-only.txt").read_text()


def test_no_shipped_distribution_is_a_tracking_package() -> None:
    """Searches the lock file, which includes indirect requirements, for names of packages that send usage data."""
    lock = Path(parts.__file__).with_name("requirements.lock").read_text(encoding="utf-8")
    names = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    assert len(names) > 20
    tracker = re.compile(r"telemetry|sentry|analytics|posthog|mixpanel|segment|datadog|newrelic|bugsnag|requests|httpx")
    assert [name for name in names if tracker.search(name)] == []


def test_builds_are_compared_by_content_mode_time_and_path(tmp_path: Path) -> None:
    def build(name: str) -> Path:
        (tmp_path / name / "inside").mkdir(parents=True)
        file = tmp_path / name / "inside" / "file"
        file.write_text("the same")
        file.chmod(0o644)
        os.utime(file, (1000, 1000))
        return tmp_path / name

    first, second = build("first"), build("second")
    assert compare_builds.main([str(first), str(second)]) == 0
    (second / "more").write_text("")
    os.utime(second / "inside" / "file", (1000, 1001))
    lines = compare_builds.differences(compare_builds.describe_files(first), compare_builds.describe_files(second))
    assert [line.partition(" (")[0] for line in lines] == ["differs: inside/file", "only in the second: more"]
    assert compare_builds.main([str(first), str(second)]) == 1
