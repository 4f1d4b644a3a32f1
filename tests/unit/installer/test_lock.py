"""The lock files: complete, up to date with the project's requirements, and without addresses of packages."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lock

PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+))? \\$")
HASH = re.compile(r"^ {4}--hash=sha256:[0-9a-f]{64}(?: \\)?$")


def pins(name: str) -> dict[str, str]:
    """Version by package; fails at lines other than pins, hashes and comments, and at pins without a hash."""
    versions: dict[str, str] = {}
    hashes: dict[str, int] = {}
    package = ""
    for line in (lock.ROOT / name).read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if pin := PIN.match(line):
            package = canonicalize_name(pin["name"])
            assert package not in versions, f"two versions of {package}"
            versions[package], hashes[package] = pin["version"], 0
        else:
            assert HASH.match(line), line
            hashes[package] += 1
    assert min(hashes.values()) >= 1
    return versions


def asked_for(extras: tuple[str, ...]) -> list[Requirement]:
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    requirements = [Requirement(text) for text in wanted]
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"sys_platform": "linux"})]


@pytest.mark.parametrize("name", list(lock.LOCKS))
def test_every_requirement_is_locked_with_hashes(name: str) -> None:
    versions = pins(name)
    extras, _systems = lock.LOCKS[name]
    unmet = [
        str(wanted)
        for wanted in asked_for(extras)
        if not wanted.specifier.contains(versions.get(canonicalize_name(wanted.name), "0"))
    ]
    assert unmet == [], "run installer/lock.py"


@pytest.mark.parametrize("name", list(lock.LOCKS))
def test_lock_files_name_no_package_index(name: str) -> None:
    text = (lock.ROOT / name).read_text(encoding="utf-8")
    assert re.findall(r"://|--index|--extra-index|--find-links| @ ", text) == []


def test_the_installer_lock_has_windows_packages_and_no_training_packages() -> None:
    versions = pins("installer/requirements.lock")
    assert "pywin32-ctypes" in versions
    assert {"tensorflow-cpu", "keras", "pytest", "requests"}.isdisjoint(versions)
