"""Reports in full: 50 images of all kinds through the programs of others, and 1,000 results timed in every format.

    python tests/reports/run_reports.py --data ../shared/data

Scores are made up; headers and pixels are real or drawn, and read by the program. Figures go to build/reports.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from pydicom import dcmread  # noqa: E402
from PySide6.QtCore import QCoreApplication, QTimer  # noqa: E402

from fieldray.desktop.background import Background  # noqa: E402
from fieldray.desktop.notices import NoticeBoard  # noqa: E402
from fieldray.domain.finding import Screened  # noqa: E402
from fieldray.domain.image import ShownImage  # noqa: E402
from fieldray.domain.run import StoredResult  # noqa: E402
from fieldray.imaging.discover import discover  # noqa: E402
from fieldray.packs.library import PackLibrary  # noqa: E402
from fieldray.reasons import Reason  # noqa: E402
from fieldray.reports.exporter import EXPORTERS, Exporter, ReportOptions  # noqa: E402
from phantoms import write_collection  # noqa: E402
from report_programs import PROGRAMS, iod_errors, missing, orthanc, said  # noqa: E402
from report_runs import read_here, results_of, run_with, screened_file, write_frames  # noqa: E402

IMAGES: Final = 50
RESULTS: Final = 1000
BEAT_MS: Final = 5
SIDE: Final = 1280  # of the images, as large as any format asks for
OBJECTS: Final = ("sr", "sc", "seg")


def main() -> int:
    """Check and time; the exit code says whether every check passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of real images beside the drawn ones")
    parser.add_argument("--results", type=int, default=RESULTS, help="results that are timed")
    options = parser.parse_args()
    if absent := missing(*PROGRAMS):
        print(f"Not installed: {', '.join(absent)}")  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory() as folder:
        outcomes = images(Path(folder), options.data)
        shown = [image for _, image in read_here(results_of(outcomes), SIDE)]
        figures = {"images": kinds(outcomes), **checked(outcomes, shown, Path(folder))}
        figures["formats"] = [
            timed(exporter, outcomes, shown, options.results, Path(folder)) for exporter in EXPORTERS.entries()
        ]
    text = json.dumps(figures, indent=1)
    print(text)  # noqa: T201
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "reports.json").write_text(text + "\n")
    return int(bool(figures["errors"]) or figures["returned_equal"] != figures["objects"])


def images(folder: Path, data: Path | None) -> list[Screened]:
    """Drawn and real ones in turn, so that 50 hold many kinds of both."""
    drawn = folder / "drawn"
    drawn.mkdir()
    write_collection(drawn)
    write_frames(drawn / "frames.dcm", 3)
    real: list[Path] = []
    if data is not None:
        real = sorted(path for path in (data / "dicom").rglob("*") if path.is_file())
        real += sorted((data / "nih").glob("*"))[:2] + sorted((data / "kermany").rglob("*.jp*g"))[:2]
    found = itertools.chain.from_iterable(
        pair for pair in itertools.zip_longest(discover(real), discover([drawn])) if pair
    )
    read = (screened_file(ref) for ref in found if ref is not None)
    return list(itertools.islice((outcome for outcome in read if outcome is not None), IMAGES))


def kinds(outcomes: list[Screened]) -> dict[str, Any]:
    """How many there are of each kind."""
    headers = [outcome.ref.header for outcome in outcomes]
    return {
        "count": len(outcomes),
        "files": Counter(outcome.ref.kind for outcome in outcomes),
        "photometric": Counter(header.photometric_interpretation for header in headers),
        "transfer_syntaxes": len({header.transfer_syntax_uid for header in headers if header.transfer_syntax_uid}),
        "frames_of_several": sum(header.number_of_frames > 1 for header in headers),
    }


def checked(outcomes: list[Screened], shown: list[ShownImage | Reason], folder: Path) -> dict[str, Any]:
    """What the programs say of all objects and documents of these images."""
    results = results_of(outcomes)
    stored = run_with(
        results,
        options=ReportOptions(language="uk", names_people=True),
        read_images=lambda some, _: zip(some, shown, strict=True),
    )
    for name in (*OBJECTS, "pdf", "pdf-studies"):
        EXPORTERS.named(name).write(folder / f"out{EXPORTERS.named(name).suffix}", stored)
    objects = sorted(folder.glob("out-s[rce]*/*.dcm"))
    errors = {str(path): found for path in objects if (found := iod_errors(path))}
    for path in folder.glob("out-sr/*.dcm"):
        said("dsrdump", path)
        said("dcmdump", path)
    documents = [folder / "out.pdf", *(folder / "out-studies").iterdir()]
    for path in documents:
        said("qpdf", "--check", path)
        assert "Tagged:          yes" in said("pdfinfo", path)
        assert "Не для діагностики" in said("pdftotext", path, "-")
    returned = returned_equal(objects, folder)
    print(f"{len(objects)} objects, {len(errors)} with errors, {returned} returned equal", flush=True)  # noqa: T201
    return {"objects": len(objects), "errors": errors, "documents": len(documents), "returned_equal": returned}


def returned_equal(objects: list[Path], folder: Path) -> int:
    """How many Orthanc files under the study of their image and gives back as they were sent."""
    equal = 0
    (folder / "archive").mkdir()
    with orthanc(folder / "archive") as archive:
        archive.send(objects)
        for path in objects:
            sent = dcmread(path)
            name = archive.find(sent.SOPInstanceUID)
            if name is not None and archive.study_of(name)["StudyInstanceUID"] == sent.StudyInstanceUID:
                equal += archive.download(name) == sent
    return equal


def timed(
    exporter: Exporter, outcomes: list[Screened], shown: list[ShownImage | Reason], count: int, folder: Path
) -> dict[str, Any]:
    """Seconds and bytes of so many results, each of a study of its own, and the longest pause of a window meanwhile."""
    model = PackLibrary(folder).load(PackLibrary(folder).builtin()[0].folder)
    label = model.manifest.labels[0].code
    many = [_of_its_own(outcome, label, number) for number, outcome in zip(range(count), itertools.cycle(outcomes))]
    images = [image for _, image in zip(range(count), itertools.cycle(shown))]

    def read(results: Iterable[StoredResult], _side: int) -> Iterator[tuple[StoredResult, ShownImage | Reason]]:
        return ((result, images[result.row_id - 1]) for result in results)

    stored = run_with(iter(results_of(many)), read_images=read, manifest=model.manifest)
    path = folder / f"timed-{exporter.name}{exporter.suffix}"
    begun_s = time.process_time()
    seconds, pause_ms = in_background(lambda: exporter.write(path, stored))
    cpu_s = time.process_time() - begun_s
    files = [path] if path.is_file() else list(path.iterdir())
    size = sum(file.stat().st_size for file in files)
    return {
        "format": exporter.name,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "pause_ms": pause_ms,
        "files": len(files),
        "bytes": size,
    }


def _of_its_own(outcome: Screened, label: str, number: int) -> Screened:
    header = replace(outcome.ref.header, study_instance_uid=f"1.2.3.{number + 1}")
    findings = tuple(replace(found, label=label) for found in outcome.findings)
    maps = outcome.class_maps
    return replace(
        outcome,
        ref=replace(outcome.ref, header=header),
        findings=findings,
        class_maps=None if maps is None else maps + 4,
    )


def in_background(work: Callable[[], None]) -> tuple[float, float]:
    """How long some work takes off the window's thread, and the longest time that this thread did not come to turn."""
    app = QCoreApplication.instance() or QCoreApplication([])
    background, beats, timer = Background(NoticeBoard()), [time.perf_counter()], QTimer()
    timer.timeout.connect(lambda: beats.append(time.perf_counter()))
    timer.start(BEAT_MS)

    def failed(error: Exception) -> None:
        app.exit(1)
        raise error

    start = time.perf_counter()
    background.run(work, channel="export", failed=failed, done=lambda _: app.exit(0))
    assert app.exec() == 0
    seconds = time.perf_counter() - start
    timer.stop()
    background.close(wait_s=5)
    pauses = [1000 * (after - before) for before, after in itertools.pairwise(beats)]
    return seconds, max(pauses)


if __name__ == "__main__":
    sys.exit(main())
