"""Writes results databases of version 11, and their content as the program of that time reads it (version-11.zip).

It runs only with the program 0.2.0, whose databases have version 11: `PYTHONPATH=tests python
tests/old_stores/write_version_11.py`. Later programs are tested with these files, which are never written again.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from fieldray.domain.finding import Outcome, ReadFacts, Screened
from fieldray.domain.image import ImageHeader
from fieldray.domain.run import RunSpec, Verdict
from fieldray.reasons import reason
from fieldray.store.deletion import delete_runs
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from lungs import lungs
from outcomes import failed, image_ref, refused, run_spec, screened

FOLDER = Path(__file__).parent
ADULTS = run_spec(pack_name="adults-1.0.0", model_sha256="aa" * 32, settings_hash="01" * 32)
TUBERCULOSIS = run_spec(pack_name="tuberculosis-1.0.0", model_sha256="bb" * 32, settings_hash="02" * 32)
CHILDREN = run_spec(pack_name="children-1.0.0", model_sha256="cc" * 32, settings_hash="03" * 32, operating_points=())
UNDECODABLE = os.fsdecode(b"\xd8\xf0\xff.dcm")


def image(name: str, content: str, score: float, *, spec: RunSpec = ADULTS, **where: Any) -> Screened:
    """Return an image with a result of this pack and a preview. Its hash repeats the byte `content`."""
    made = screened(image_ref(name, **where), score=score)
    preview = io.BytesIO()
    PIL.Image.fromarray(np.full((64, 48), int(content, 16), np.uint8)).save(preview, "JPEG")
    facts = replace(made.facts, content_sha256=content * 32, preview=preview.getvalue(), stamp=content.encode() * 16)
    findings = (
        made.findings
        if spec.operating_points
        else tuple(replace(found, point=None, decision="not_assessed") for found in made.findings)
    )
    return replace(made, facts=facts, findings=findings, pack_name=spec.pack_name, model_sha256=spec.model_sha256)


def one_pack(path: Path) -> None:
    """Write four runs of one pack with verdicts, a deletion, a missing image, unusual names, and an interruption."""
    person = ImageHeader(
        patient_id="MRN-1", patient_name="Шевченко^Тарас", study_date="2026-01-02", sop_instance_uid="1.2"
    )
    first: list[Outcome] = [
        image("abnormal.dcm", "a1", 0.8, header=person),
        replace(image("unseen.dcm", "a2", 0.1), lungs=lungs(), notes=(reason("screened_anyway"), reason("rotated"))),
        image("archive.zip", "a3", 0.5, member="inside/b.dcm"),
        image("frames.dcm", "a4", 0.2, frame=1, header=ImageHeader(number_of_frames=3)),
        image(UNDECODABLE, "a5", 0.9),
        image("moved.dcm", "a6", 0.7),
        refused(image_ref("side.dcm")),
        failed(image_ref("cut.dcm")),
    ]
    with ResultStore(path) as store:
        store.stamp_key()
        run_id = store.open_run(ADULTS)
        rows = store.save_all(run_id, first, spec=ADULTS)
        store.finish(run_id)
        for row_id, verdict in (
            (rows[0], Verdict(choice="disagree", note="схоже на тінь")),
            (rows[2], Verdict(choice="agree")),
            (rows[5], Verdict(choice="unsure", note="ask again")),
            (rows[6], Verdict(choice="disagree", note="is frontal")),
        ):
            store.set_verdict(row_id, verdict, judged=store.row(row_id).outcome)
        store.set_read(rows[3], judged=store.row(rows[3]).outcome, is_read=True)
    with ResultStore(path) as store:  # a second pass: one image was moved, one has changed
        again = store.open_run(ADULTS)
        store.reuse_answers(again, [rows[1], rows[2], rows[3]])
        store.save(again, image("abnormal.dcm", "b1", 0.6, header=person), spec=ADULTS)
        store.save(again, image("moved-here.dcm", "a6", 0.7), spec=ADULTS, is_resumed=True)
        store.save(again, first[6], spec=ADULTS, is_resumed=True)
        store.finish(again)
        deleted = store.open_run(replace(ADULTS, paths=("/others",)))
        store.save(deleted, image("deleted.dcm", "c1", 0.3), spec=ADULTS)
        store.finish(deleted)
    delete_runs(path, [deleted])
    leaving = replace(ADULTS, paths=("/leaving",))
    for images in (("stays.dcm", "e1"), ("leaves.dcm", "e2")), (("stays.dcm", "e1"),):  # the second pass lacks one
        with ResultStore(path) as store:
            run_id = store.open_run(leaving)
            for name, content in images:
                store.save(run_id, image(name, content, 0.2), spec=ADULTS)
            if len(images) == 1:
                store.finish(run_id)
    with ResultStore(path) as store:  # killed: the run has no end
        broken_off = store.open_run(replace(ADULTS, paths=("/images", "/more")))
        store.save(broken_off, image("abnormal.dcm", "a1", 0.8, header=person), spec=ADULTS, is_resumed=True)
        store.save(broken_off, image("new.dcm", "d1", 0.4), spec=ADULTS)


def several_packs(path: Path) -> None:
    """Write a finished run of two packs, one of three that was killed between two commits, and one of one pack."""
    with ResultStore(path) as store:
        store.stamp_key()
        alone = store.open_run(replace(ADULTS, paths=("/alone",)))
        store.save(alone, image("alone.dcm", "a1", 0.8), spec=ADULTS)
        store.finish(alone)

        run_ids = [store.open_run(spec) for spec in (ADULTS, TUBERCULOSIS)]
        store.link(run_ids)
        scores = {"healthy.dcm": (0.1, 0.2), "tuberculous.dcm": (0.2, 0.9), "both.dcm": (0.8, 0.7)}
        for number, (name, (adults, tuberculosis)) in enumerate(scores.items()):
            content = f"b{number}"
            store.save(run_ids[1], image(name, content, tuberculosis, spec=TUBERCULOSIS), spec=TUBERCULOSIS)
            store.save(run_ids[0], image(name, content, adults), spec=ADULTS)
        for run_id, spec in zip(reversed(run_ids), (TUBERCULOSIS, ADULTS), strict=True):
            store.save(run_id, refused(image_ref("side.dcm")), spec=spec)
            store.finish(run_id)
        verdict = Verdict(choice="disagree", note="an old scar")
        (judged,) = (one for one in store.rows(run_ids[1]) if one.outcome.ref.path.name == "tuberculous.dcm")
        store.set_verdict(judged.row_id, verdict, judged=judged.outcome)
        (judged,) = (one for one in store.rows(run_ids[0]) if one.outcome.ref.path.name == "both.dcm")
        store.set_verdict(judged.row_id, Verdict(choice="agree"), judged=judged.outcome)
        store.set_read(judged.row_id - 1, judged=store.row(judged.row_id - 1).outcome, is_read=True)

    with ResultStore(path) as store:
        specs = [replace(spec, paths=("/interrupted",)) for spec in (ADULTS, TUBERCULOSIS, CHILDREN)]
        run_ids = [store.open_run(spec) for spec in specs]
        store.link(run_ids)
        for run_id, spec in zip(reversed(run_ids), reversed(specs), strict=True):
            store.save(run_id, image("whole.dcm", "c1", 0.8, spec=spec), spec=spec)
        store.save(run_ids[2], image("half.dcm", "c2", 0.3, spec=CHILDREN), spec=specs[2])  # then a power cut


def read(path: Path) -> dict[str, Any]:
    """Return the content of a database as the program of that time reads it."""
    with HistoryQuery(path) as query:
        runs = sorted(query.runs(), key=lambda run: run.run_id)
        return {
            "runs": [
                {
                    "id": run.run_id,
                    "together": run.together_id,
                    "state": run.state,
                    "paths": run.spec.paths,
                    "pack": run.spec.pack_name,
                    "model_sha256": run.spec.model_sha256,
                    "started_s": run.started_s,
                    "not_present": query.not_present(run.run_id),
                    "earlier_verdicts": [
                        [one.image, one.category, one.verdict.choice, one.verdict.note]
                        for one in query.superseded_verdicts(run.run_id)
                    ],
                    "results": [_said(found) for found in query.rows(run.run_id)],
                }
                for run in runs
            ]
        }


def _said(found: Any) -> dict[str, Any]:
    outcome = found.outcome
    facts: ReadFacts = outcome.facts
    return {
        "id": found.row_id,
        "image": os.fsencode(outcome.ref.key).hex(),
        "category": outcome.category,
        "scores": [one.score for one in getattr(outcome, "findings", ())],
        "content_sha256": facts.content_sha256,
        "has_thumbnail": facts.thumbnail is not None,
        "has_map": getattr(outcome, "class_maps", None) is not None,
        "has_lungs": getattr(outcome, "lungs", None) is not None,
        "patient": outcome.ref.header.patient_name,
        "verdict": found.verdict and [found.verdict.choice, found.verdict.note],
        "is_read": found.is_read,
        "is_resumed": found.is_resumed,
    }


def main() -> None:
    """Write both databases."""
    said: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        zipfile.ZipFile(FOLDER / "version-11.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        for write in (one_pack, several_packs):
            path = Path(name) / write.__name__ / "results.sqlite"
            path.parent.mkdir()
            write(path)
            said[write.__name__] = read(path)
            for file in sorted(path.parent.glob("*.sqlite")):
                archive.write(file, f"{write.__name__}/{file.name}")
    text = json.dumps(said, indent=1, ensure_ascii=False)
    (FOLDER / "version-11.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
