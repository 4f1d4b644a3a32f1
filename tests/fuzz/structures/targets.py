"""All fuzz targets: the parts of the program that read data from outside their process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.processes.wire import INVALID_MESSAGE_ERRORS
from fuzz.structures import dicom_files, index_files, kept_files, messages, pack_files, zip_files
from fuzz.structures.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        Target("dicom-header", "DICOM headers: nested sequences, every encoding, deflated, character sets",
            make=dicom_files.make_header, read=dicom_files.read_header, share=20),
        Target("dicom-pixels", "DICOM pixel data: native, fragments, offset tables, lookup tables, all codecs",
            make=dicom_files.make_pixels, read=dicom_files.read_pixels, share=8, most_mb=600.0),
        Target("dicomdir", "DICOMDIRs: record trees that loop, break off, climb out or name what is not there",
            make=index_files.make_index, read=index_files.read_index, share=3),
        Target("zip", "zip files: the listing, and the members, stored and deflated",
            make=zip_files.make_zip, read=zip_files.read_zip, share=4),
        Target("manifest", "manifests of packs: fields of another type, size, number, depth; JSON that is none",
            make=pack_files.make_manifest, read=pack_files.read_manifest, share=14),
        Target("signature", "signatures of packs, written in every other way",
            make=pack_files.make_signature, read=pack_files.read_signature, share=8),
        Target("npy", "arrays of packs: headers that lie about type, order, shape and size",
            make=pack_files.make_array, read=pack_files.read_array, share=14, refuses=(ValueError,)),
        Target("pack", "whole packs: signed manifests over files that are links, folders, pipes, longer or not there",
            make=pack_files.make_whole_pack, read=pack_files.read_pack, share=1),
        Target("wire", "messages between processes: frames and arrays that announce what is not there",
            make=messages.make_frame, read=messages.read_frame, share=12, refuses=(ValueError,), most_mb=100.0),
        Target("answers", "answers of workers, networks and the comparison, as the program takes them",
            make=messages.make_answer, read=messages.read_answer, share=6, refuses=INVALID_MESSAGE_ERRORS,
            most_mb=100.0),
        Target("channel", "messages of a divided training, before and after the token",
            make=messages.make_channel_message, read=messages.read_channel, share=6,
            refuses=(ValueError, ConnectionError), most_mb=100.0),
        Target("kept-files",
            "settings, remembered folders, trusted keys, a site's points, records of archives and workflows",
            make=kept_files.make_file, read=kept_files.read_file, share=4),
        Target("rows", "rows of a database that somebody else wrote: results, runs, verdicts",
            make=kept_files.make_row, read=kept_files.read_row, share=10),
        Target("chunks", "results that a worker of an archive sends, as Parquet",
            make=kept_files.make_chunk, read=kept_files.read_chunk, share=1, refuses=(ValueError,), most_mb=400.0),
        Target("tables", "tables of labels, and the first bytes of files that may be reports of the program",
            make=kept_files.make_table, read=kept_files.read_table, share=5),
    )
}  # fmt: skip


def shares(names: tuple[str, ...], inputs: int) -> dict[str, int]:
    """Divide `inputs` among these targets by their shares. Each gets at least one."""
    whole = sum(TARGETS[name].share for name in names)
    return {name: max(1, inputs * TARGETS[name].share // whole) for name in names}
