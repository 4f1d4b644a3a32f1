"""Independent programs that check reports: dcmtk, dicom3tools, Orthanc, poppler and qpdf.

All are in Debian: apt-get install dcmtk dicom3tools orthanc poppler-utils qpdf. Orthanc runs only during one check, on
this computer, with a temporary folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pydicom
import pytest
from pydicom.dataset import Dataset

from program import free_port
from waiting import wait_for

_AE: Final = "FIELDRAY"
_START_S: Final = 60.0


def missing(*programs: str) -> list[str]:
    """Return the programs that are not installed. Servers may be in /usr/sbin, which is not in a user's PATH."""
    return [name for name in programs if found(name) is None]


def found(program: str) -> str | None:
    """Return the path of a program."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def said(*command: str | Path) -> str:
    """Return the output of a program, whose exit code must be 0."""
    done = subprocess.run([found(str(command[0])) or "", *map(str, command[1:])], capture_output=True, check=False)
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode:
        raise AssertionError(f"{command[0]} ended with {done.returncode}: {text}")
    return text


def iod_errors(path: Path) -> list[str]:
    """Return the errors that dciodvfy reports for a DICOM object."""
    done = subprocess.run([found("dciodvfy") or "", "-new", str(path)], capture_output=True, check=False)
    lines = (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.startswith("Error")]


@dataclass(frozen=True, slots=True)
class Archive:
    """A running Orthanc."""

    http: int
    dicom: int

    def send(self, paths: Sequence[Path]) -> None:
        """Send objects by storescu, as a modality does."""
        for proposal, chosen in _by_proposal(paths).items():
            options = ["-R", "-aet", "SENDER", "-aec", _AE, *([proposal] if proposal else [])]
            said("storescu", *options, "127.0.0.1", str(self.dicom), *chosen)

    def find(self, sop_instance_uid: str) -> str | None:
        """Return the archive's own name of an object."""
        answer = self._ask("/tools/find", {"Level": "Instance", "Query": {"SOPInstanceUID": sop_instance_uid}})
        names: list[str] = json.loads(answer)
        return names[0] if len(names) == 1 else None

    def study_of(self, name: str) -> dict[str, Any]:
        """Return the study in which the archive keeps an object: its UID and its patient."""
        study = json.loads(self._ask(f"/instances/{name}/study"))
        return {**study["MainDicomTags"], **study["PatientMainDicomTags"]}

    def download(self, name: str) -> Dataset:
        """Return an object as the archive sends it."""
        return pydicom.dcmread(io.BytesIO(self._ask(f"/instances/{name}/file")))

    def _ask(self, path: str, question: object = None) -> bytes:
        data = None if question is None else json.dumps(question).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", data, timeout=30) as answer:
            body: bytes = answer.read()
            return body


def _by_proposal(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return files by the option with which storescu proposes their transfer syntax."""
    sorted_: dict[str, list[Path]] = {}
    for path in paths:
        syntax = pydicom.dcmread(path, stop_before_pixels=True).file_meta.TransferSyntaxUID
        sorted_.setdefault("-xy" if syntax.is_compressed else "", []).append(path)
    return sorted_


@contextlib.contextmanager
def orthanc(folder: Path) -> Iterator[Archive]:
    """Start Orthanc on free ports of this computer for the block, with its data in a folder."""
    archive = Archive(free_port(), free_port())
    configuration = {
        "Name": _AE,
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "HttpPort": archive.http,
        "DicomPort": archive.dicom,
        "DicomAet": _AE,
        "DicomAlwaysAllowStore": True,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "Plugins": [],
    }
    path = folder / "orthanc.json"
    path.write_text(json.dumps(configuration))
    with (folder / "orthanc.log").open("wb") as log:
        server = subprocess.Popen([found("Orthanc") or "", str(path)], stdout=log, stderr=log)
        try:
            wait_for(lambda: _answers(archive, server), limit_s=_START_S)
            yield archive
        finally:
            server.terminate()
            server.wait(30)


def _answers(archive: Archive, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "Orthanc has ended"
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{archive.http}/system", timeout=5).close()
    except OSError:
        return False
    return True


def needs(*programs: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test without these programs."""
    absent = missing(*programs)
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


def pdf_text(path: Path) -> str:
    """Return the text of a document on one line, as poppler reads it."""
    said("qpdf", "--check", path)
    return " ".join(said("pdftotext", "-enc", "UTF-8", path, "-").split())
