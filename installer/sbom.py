"""Write the list of parts of a frozen program (CycloneDX 1.6, JSON): all files with hashes, all parts with licences.

    python installer/sbom.py FROZEN                   (with the build environment's Python; writes FROZEN.cdx.json)
    python installer/sbom.py FOLDER --check LIST      (any Python; compares an installed program with the list)

Equal programs and equal SOURCE_DATE_EPOCH give equal lists.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import sys
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import parts

_PROJECT: Final = Path(__file__).resolve().parent.parent / "pyproject.toml"


def sbom_document(
    files: Mapping[str, str], found: Sequence[parts.Part], *, version: str, made_at: datetime.datetime
) -> dict[str, Any]:
    """Return the list of parts as JSON values.

    `files` has the SHA-256 of each file, by path in the program. `found` are the third-party parts. `made_at` is the
    time of the list, with a time zone.
    """
    program = {
        "type": "application",
        "bom-ref": "fieldray",
        "name": "fieldray",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:generic/fieldray@{version}",
    }
    whole = hashlib.sha256("\n".join(f"{digest} {path}" for path, digest in sorted(files.items())).encode())
    brought = {path: part for part in found for path in part.files}
    dependencies = [{"ref": "fieldray", "dependsOn": sorted(_reference(part) for part in found)}]
    dependencies += [
        {"ref": _reference(part), "dependsOn": [f"file:{path}" for path in part.files if path in files]}
        for part in found
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=whole.digest()[:16], version=4)}",
        "version": 1,
        "metadata": {"timestamp": made_at.isoformat().replace("+00:00", "Z"), "component": program},
        "components": [_component(part) for part in found]
        + [_file(path, digest, brought.get(path)) for path, digest in sorted(files.items())],
        "dependencies": dependencies,
    }


def _reference(part: parts.Part) -> str:
    return f"{part.kind}:{part.name}"


def _component(part: parts.Part) -> dict[str, Any]:
    is_plain = " " not in part.licence and not part.licence.startswith("LicenseRef")
    named = {"license": {"id": part.licence}} if is_plain and part.licence not in _UNLISTED else None
    component = {
        "type": "platform" if part.kind == "interpreter" else "library",
        "bom-ref": _reference(part),
        "name": part.name,
        "licenses": [named or {"license": {"name": part.licence}}],
        "purl": part.package_url,
    }
    return component | ({"version": part.version} if part.version else {})


_UNLISTED: Final = frozenset({"NOASSERTION"})


def _file(path: str, digest: str, part: parts.Part | None) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "file",
        "bom-ref": f"file:{path}",
        "name": path,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
    return component | ({"group": part.name} if part else {})


def file_hashes(frozen: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a frozen program, by path. Links are left out."""
    return {path: hashlib.sha256((frozen / path).read_bytes()).hexdigest() for path in parts.file_paths(frozen)}


def write_sbom(frozen: Path) -> Path:
    """Write the list of parts next to the folder of a frozen program. Returns the path of the list.

    Raises ValueError for a library of unknown origin.
    """
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    made_at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    version = str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
    content = sbom_document(file_hashes(frozen), parts.list_parts(frozen), version=version, made_at=made_at)
    path = frozen.with_name(f"{frozen.name}.cdx.json")
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    return path


def differences(files: Mapping[str, str], listed: Mapping[str, Any]) -> list[str]:
    """Compare the files of an installed program with a list of parts.

    Returns a line for each file that is missing, changed, or not in the list.
    """
    wanted = {
        component["name"]: component["hashes"][0]["content"]
        for component in listed["components"]
        if component["type"] == "file"
    }
    lines = [f"missing: {path}" for path in wanted.keys() - files.keys()]
    lines += [f"not in the list: {path}" for path in files.keys() - wanted.keys()]
    both = wanted.keys() & files.keys()
    return sorted(lines + [f"changed: {path}" for path in both if wanted[path] != files[path]])


def main(arguments: Sequence[str]) -> int:
    """Write the list of parts, or compare an installed program with a list. Returns 1 if they differ, else 0."""
    parser = argparse.ArgumentParser(
        description="List the parts of a frozen program (SBOM), or compare an installed program with the list."
    )
    parser.add_argument("frozen", type=Path)
    parser.add_argument("--check", type=Path, metavar="LIST", help="compare the folder with this list")
    options = parser.parse_args(arguments)
    if options.check is None:
        sys.stdout.write(f"{write_sbom(options.frozen)}\n")
        return 0
    found = differences(file_hashes(options.frozen), json.loads(options.check.read_text(encoding="utf-8")))
    sys.stdout.write("".join(f"{line}\n" for line in found) or "All files equal the list, and no file is additional.\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
