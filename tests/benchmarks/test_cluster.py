"""The benchmark of archives copies images that the program tells apart, and counts what differs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cluster_runs import differences, write_copies
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import write_studies
from program import write_images


def test_copies_are_images_with_bytes_of_their_own(tmp_path: Path) -> None:
    write_studies(tmp_path / "sources", count=1)
    sources = [*(tmp_path / "sources").rglob("*.dcm"), *write_images(tmp_path / "sources", 1)]
    folder = write_copies(tmp_path / "copies", sources, 6)
    copies = sorted(folder.iterdir())
    assert len({copy.read_bytes() for copy in copies}) == 6
    refs = list(discover([folder]))
    assert [ref.problem for ref in refs] == [None] * 6
    assert {ref.kind for ref in refs} == {"dicom", "png"}


def test_what_is_missing_or_other_differs() -> None:
    one = {"a": ("normal", "", "1"), "b": ("normal", "", "2"), "c": ("normal", "", "3")}
    other = {"a": ("normal", "", "1"), "b": ("abnormal", "", "2"), "d": ("normal", "", "3")}
    assert differences(one, other) == 3
