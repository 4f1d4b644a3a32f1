"""Which modules and data go into the installed program."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import contents
import fieldray
from fieldray.backends import BACKENDS
from fieldray.packs.signing import BUILTIN_PACK_HASHES

PACKAGE = Path(fieldray.__file__).parent
SERVICE = re.compile(r"\"(fieldray\.[a-z_.]+):[a-z_]+\"")


def test_every_service_of_a_child_process_is_included() -> None:
    """Services are imported by name, so no import statement leads to them."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    asked_for = {name for text in texts for name in SERVICE.findall(text)}
    taken = contents.worker_modules(PACKAGE)
    assert "fieldray.workers.image_worker" in asked_for
    assert asked_for <= set(taken)
    assert not [name for name in taken if name.startswith("fieldray.desktop")]
    assert "fieldray.bench" in taken


@pytest.mark.parametrize(
    "path",
    [
        "PySide6/Qt/plugins/platforms/libqxcb.so",
        "PySide6/Qt/plugins/platforms/libqoffscreen.so",
        "PySide6/Qt/plugins/imageformats/libqsvg.so",
        "PySide6/Qt/lib/libQt6Widgets.so.6",
        "PySide6/Qt/lib/libicudata.so.73",
        "PySide6/Qt/translations/qtbase_uk.qm",
        "PySide6/translations/qtbase_uk.qm",
        "PySide6\\plugins\\platforms\\qwindows.dll",
        "ai_edge_litert/libpywrap_litert_common.so",
        "ai_edge_litert\\_pywrap_litert_interpreter_wrapper.pyd",
        "imagecodecs/_imcd.abi3.so",
        "imagecodecs.libs/libopenjp2-7e27257a.so.2.5.4",
        "imagecodecs/_jpeg2k.abi3.so",
        "imagecodecs\\_png.pyd",
        "imagecodecs.libs/libpng16-35002b02.so.16.55.0",
        "imagecodecs.libs/libjpeg-f212e7a6.so.8.3.2",
        "numpy.libs/libscipy_openblas64_-32a4b2a6.so",
        "pillow.libs/libfreetype-57f805ba.so.6.20.6",
        "libxcb-cursor.so.0",
        "libpython3.11.so.1.0",
        "numpy-2.4.6.dist-info/METADATA",
        "fieldray/_data/assets/translations/uk/LC_MESSAGES/fieldray.mo",
    ],
)
def test_included_paths(path: str) -> None:
    assert contents.is_included(path)


@pytest.mark.parametrize(
    "path",
    [
        "PySide6/Qt/lib/libQt6Network.so.6",
        "PySide6\\Qt6Network.dll",
        "PySide6/QtNetwork.abi3.so",
        "PySide6/Qt/lib/libQt6Quick.so.6",
        "PySide6/Qt/lib/libQt6Qml.so.6",
        "PySide6/Qt/plugins/tls/libqopensslbackend.so",
        "PySide6/Qt/plugins/networkinformation/libqnetworkmanager.so",
        "PySide6/Qt/plugins/platforms/libqvnc.so",
        "PySide6/Qt/translations/qtbase_de.qm",
        "ai_edge_litert/libLiteRtWebGpuAccelerator.so",
        "ai_edge_litert/libLiteRt.so",
        "ai_edge_litert\\vendors\\intel\\dispatch.dll",
        "imagecodecs/_webp.abi3.so",
        "numpy/_core/_simd.cpython-311-x86_64-linux-gnu.so",
        "imagecodecs/_jpegxl.abi3.so",
        "imagecodecs\\_apng.pyd",
        "imagecodecs.libs/libaom-391a2213.so.3.13.1",
        "libstdc++.so.6",
        "libusb-1.0.so.0",
        "libX11-xcb.so.1",
        "numpy-2.4.6.dist-info/RECORD",
    ],
)
def test_excluded_paths(path: str) -> None:
    assert not contents.is_included(path)


def test_the_toolchain_and_the_network_are_excluded() -> None:
    for module in ("fieldray_adapt.run", "fieldray_cluster.node", "tensorflow.lite", "torch", "matplotlib.pyplot",
                   "PIL.ImageQt", "PySide6.QtNetwork", "requests", "urllib3.util", "ssl", "smtplib"):  # fmt: skip
        assert contents.is_excluded(module)
    for module in ("fieldray.pipeline.batch", "numpy", "pydicom", "PIL.Image", "hashlib", "PySide6.QtSvg", "testing"):
        assert not contents.is_excluded(module)


def test_a_wheel_includes_only_the_trusted_packs_of_their_folder() -> None:
    project = tomllib.loads((contents.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    taken = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    packs = {path: target for path, target in taken.items() if path.startswith("models")}
    assert packs == {f"models/{name}": f"fieldray/_data/models/{name}" for name in BUILTIN_PACK_HASHES}


def test_the_data_are_assets_and_trusted_packs() -> None:
    files = contents.data_files(contents.ROOT, sorted(BUILTIN_PACK_HASHES))
    paths = {f"{path}/{Path(file).name}" for file, path in files}
    assert "fieldray/_data/assets/translations/uk/LC_MESSAGES/fieldray.mo" in paths
    assert not [path for path in paths if path.endswith(".po")]
    assert "fieldray/_data/assets/icons/fieldray.svg" in paths
    for pack in BUILTIN_PACK_HASHES:
        assert f"fieldray/_data/models/{pack}/manifest.json" in paths
    assert not [path for path in paths if "recipes" in path or "studies" in path]


@pytest.mark.parametrize(("text", "good"), [("1.2.3", True), ("0.1.0rc1", True), ("1.2/3", False), ("", False)])
def test_a_version_must_be_usable_in_a_file_name(tmp_path: Path, text: str, good: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{text}"\n')
    if good:
        assert contents.version(tmp_path) == text
    else:
        with pytest.raises(ValueError, match="is not a version"):
            contents.version(tmp_path)


def test_export_formats_are_included_though_nothing_imports_them() -> None:
    taken = contents.entry_modules("fieldray.reports.exporters")
    assert {f"fieldray.reports.exporters{name}" for name in ("", ".csv", ".json")} <= {*taken}


def test_the_modules_of_the_devices_are_included() -> None:
    """A table names them, which a search of import statements does not see."""
    modules = contents.backend_modules()
    assert len(modules) == len(list(BACKENDS))
    assert all(importlib.util.find_spec(module) for module in modules)
    spec = (Path(contents.__file__).parent / "fieldray.spec").read_text(encoding="utf-8")
    assert "contents.backend_modules()" in spec
