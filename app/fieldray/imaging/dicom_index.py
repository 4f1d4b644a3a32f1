"""What a DICOMDIR lists (PS3.10 8.6), read record by record: one that breaks off gives what stands before that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset, read_sequence_item
from pydicom.values import default_encoding

from fieldray.errors import Unreadable
from fieldray.imaging.dicom_header import Begun, begin, element_at, has_value, texts
from fieldray.imaging.dicom_stream import HeaderTooLong
from fieldray.imaging.identify import IndexFound
from fieldray.imaging.limits import MAX_HEADER_BYTES, MAX_INDEX_RECORDS
from fieldray.reasons import Reason, reason

_SEQUENCE: Final = 0x00041220
_MAX_READS: Final = 800_000  # a record is a dozen elements


def index_found(stream: BinaryIO) -> IndexFound:
    """What a DICOMDIR lists up to its end, or to where it breaks off. Raises OSError; Unreadable too_many_records."""
    stream.seek(0)
    references: list[tuple[str, ...]] = []
    problem: Reason | None = None
    try:
        for number, record in enumerate(_records(stream)):
            if number == MAX_INDEX_RECORDS:
                raise HeaderTooLong
            if has_value(record, "ReferencedFileID"):
                # no words if it cannot be read: that is no name either
                references.append(tuple(texts(record, "ReferencedFileID")))
    except HeaderTooLong as error:
        raise Unreadable(reason("too_many_records", limit=MAX_INDEX_RECORDS)) from error
    except EOFError:
        problem = reason("index_cut", count=len(references))
    except Exception as error:  # pydicom raises whatever the damaged bytes lead it to
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        problem = reason("index_damaged", count=len(references))
    return IndexFound(tuple(references), problem)


def _records(stream: BinaryIO) -> Iterator[Dataset]:
    """The records of a DICOMDIR (PS3.3 F.3), one after another as they stand there; offsets are not followed.

    Raises EOFError where the file breaks off, HeaderTooLong, ValueError and whatever pydicom raises for a damaged one.
    """
    begun = begin(stream, MAX_HEADER_BYTES, reads=_MAX_READS)
    read_dataset(begun.stream, begun.is_implicit, begun.is_little, stop_when=_is_at_sequence)
    sequence = element_at(begun, frozenset({_SEQUENCE}))
    if sequence is None:
        if begun.stream.is_cut:
            raise EOFError
        return
    end = None if sequence.is_encapsulated else sequence.offset + sequence.length
    while end is None or begun.stream.tell() < end:
        if (record := _record(begun)) is None:
            return
        yield record


def _record(begun: Begun) -> Dataset | None:
    """The next record, None at the end of a sequence without a stated length. Raises EOFError where there is none."""
    if begun.stream.is_at_end():
        raise EOFError
    try:
        record: Dataset | None = read_sequence_item(
            begun.stream, begun.is_implicit, begun.is_little, default_encoding, 0
        )
    except Exception as error:
        if begun.stream.is_cut:
            raise EOFError from error
        raise
    if begun.stream.is_cut:
        raise EOFError
    return record


def _is_at_sequence(tag: int, _representation: str | None, _length: int) -> bool:
    return tag == _SEQUENCE
