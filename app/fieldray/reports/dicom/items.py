"""Content items of structured reports (PS3.3 C.17.3), and the codes that are this program's own."""

from __future__ import annotations

from typing import Final

from pydicom.dataset import Dataset

from fieldray.plain_text import visible
from fieldray.reports.dicom.instance import Source, coded, reference

OWN_SCHEME: Final = "99FIELDRAY"
ONE: Final = ("1", "UCUM", "no units")
PERCENT: Final = ("%", "UCUM", "percent")
SOURCE: Final = ("121112", "DCM", "Source of Measurement")
_MOST_TEXT: Final = 1024

Code = tuple[str, str, str]


def content_item(relationship: str, kind: str, name: Code | None = None) -> Dataset:
    """An item of this kind, without its value."""
    item = Dataset()
    item.RelationshipType, item.ValueType = relationship, kind
    if name is not None:
        item.ConceptNameCodeSequence = [concept(name)]
    return item


def concept(code: Code) -> Dataset:
    """A code as an item of a sequence; one of more than 16 letters has an attribute of its own."""
    value, scheme, meaning = code
    if len(value) <= 16:
        return coded(value, scheme, meaning)
    item = coded("", scheme, meaning)
    del item.CodeValue
    item.LongCodeValue = value
    return item


def container(relationship: str, name: Code, items: list[Dataset]) -> Dataset:
    """A container of items."""
    item = content_item(relationship, "CONTAINER", name)
    item.ContinuityOfContent = "SEPARATE"
    item.ContentSequence = items
    return item


def template(number: str) -> Dataset:
    """An item of the template of that number (PS3.16)."""
    item = Dataset()
    item.MappingResource, item.TemplateIdentifier = "DCMR", number
    return item


def code_item(relationship: str, name: Code, value: Code) -> Dataset:
    """A coded value."""
    item = content_item(relationship, "CODE", name)
    item.ConceptCodeSequence = [concept(value)]
    return item


def text_item(relationship: str, name: Code, text: str) -> Dataset:
    """A text, as long as one may be."""
    item = content_item(relationship, "TEXT", name)
    item.TextValue = visible(text)[:_MOST_TEXT] or "-"
    return item


def comment(text: str) -> Dataset:
    """A comment in plain words."""
    return text_item("CONTAINS", ("121106", "DCM", "Comment"), text)


def uid_item(relationship: str, name: Code, uid: str) -> Dataset:
    """A UID."""
    item = content_item(relationship, "UIDREF", name)
    item.UID = uid
    return item


def image_item(relationship: str, name: Code | None, source: Source) -> Dataset:
    """A reference to an image."""
    item = content_item(relationship, "IMAGE", name)
    item.ReferencedSOPSequence = [reference(source)]
    return item


def number_item(name: Code, value: float, unit: Code) -> Dataset:
    """A number with its unit."""
    item = content_item("CONTAINS", "NUM", name)
    measured = Dataset()
    measured.NumericValue, measured.FloatingPointValue = f"{value:.6g}", value
    measured.MeasurementUnitsCodeSequence = [concept(unit)]
    item.MeasuredValueSequence = [measured]
    return item
