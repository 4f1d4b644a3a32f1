"""Sentences on a pack's intended patients and performance, and the reading of view, body part and age in headers."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fieldray.domain.finding import WORK_LIST_ORDER, Category, ResultCount
from fieldray.domain.image import ImageHeader
from fieldray.domain.metrics import Share
from fieldray.domain.model import HeaderRules, Manifest, OperatingPoint
from fieldray.reasons import Reason, reason

# Keys in a pack's metrics for measurements on images of its own hospitals, and of another hospital.
_OWN = "test"
_ELSEWHERE = "external_test"
# Keys in a pack's metrics for images with the finding and without it.
TRUTH_NAMES: Final[Mapping[bool, str]] = {True: "positive", False: "negative"}
# Code of the note on a patient whose age is not stated, by whether a person confirmed the ages.
AGE_NOTE_CODE_BY_CONFIRMED: Final[Mapping[bool, str]] = {True: "age_confirmed", False: "age_not_stated"}
_OTHERS = frozenset({"age", "ages_contradict", "born_too_late", "body_part"})


def header_says_frontal_chest(header: ImageHeader, accepted: HeaderRules) -> bool:
    """Return whether a header names both a body part and a view that the pack accepts.

    The body part alone is not enough, because a lateral image shows the chest as well.
    """
    return body_part_match(header, accepted) == view_match(header, accepted) == "accepted"


def intended_patients_sentence(accepted: HeaderRules) -> Reason:
    """Return the sentence that names the patients whose images a pack accepts."""
    if accepted.ages_years is None:
        return reason("for_any_age")
    youngest, oldest = accepted.ages_years
    return reason("for_ages", youngest=youngest, oldest=oldest)


def common_age_range(age_ranges: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the age range (youngest, oldest) that all packs accept; None if all packs accept any age.

    If the ranges do not overlap, youngest is above oldest.

    age_ranges  age range of each pack, or None for any age
    """
    known = [ages for ages in age_ranges if ages]
    return (max(youngest for youngest, _ in known), min(oldest for _, oldest in known)) if known else None


def performance_sentences(manifest: Manifest) -> tuple[Reason, ...]:
    """Return sentences on the measured performance: at the pack's own hospitals, and at another hospital.

    If no other hospital was measured, a sentence says so.
    """
    own = tuple(_measured(manifest, _OWN, "measured_own"))
    return own + (tuple(_measured(manifest, _ELSEWHERE, "measured_elsewhere")) or (reason("not_measured_elsewhere"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDistribution:
    """The measured distribution of images over the displayed classes.

    is_from_other_hospital  whether the images come from a hospital that is not one of the pack's own hospitals
    shares_by_truth         share of each class: key True for images with the finding, key False for images without
    """

    is_from_other_hospital: bool
    shares_by_truth: Mapping[bool, Mapping[Category, Share]]

    @property
    def unsure_and_total_count(self) -> tuple[int, int]:
        """The number of images in the class *unsure*, and the number of all images, as measured."""
        counted = [of["unsure"] for of in self.shares_by_truth.values()]
        return sum(share.count for share in counted), sum(share.of for share in counted)


def counts_per_hundred(shares: Mapping[Category, Share]) -> dict[Category, int]:
    """Convert the shares of the classes to numbers of images per 100: whole numbers with the sum 100.

    A class without a share has the number 0.
    """
    total = sum(share.count for share in shares.values()) or 1
    exact = {category: 100 * share.count / total for category, share in shares.items()}
    numbers = {category: int(value) for category, value in exact.items()}
    missing = (100 if any(exact.values()) else 0) - sum(numbers.values())
    for category in sorted(exact, key=lambda one: numbers[one] - exact[one])[:missing]:
        numbers[category] += 1
    return dict.fromkeys(WORK_LIST_ORDER, 0) | numbers


def class_distributions(manifest: Manifest | None, point: OperatingPoint | None) -> tuple[ClassDistribution, ...]:
    """Return the distributions over the classes that the pack's maker measured at an operating point.

    The pack's own hospitals come first, then another hospital. The result is empty if nothing was measured, or for a
    local operating point.
    """
    if manifest is None or point is None or point.is_local:
        return ()
    label = _member(_member(manifest.metrics, "labels"), point.label)
    parts = ((part, _member(_member(_member(label, part), "classes"), point.name)) for part in (_OWN, _ELSEWHERE))
    counted = (
        ClassDistribution(
            is_from_other_hospital=part == _ELSEWHERE,
            shares_by_truth={truth: _shares(_member(found, name)) for truth, name in TRUTH_NAMES.items()},
        )
        for part, found in parts
    )
    return tuple(classes for classes in counted if all("unsure" in own for own in classes.shares_by_truth.values()))


def _shares(found: Mapping[str, object]) -> dict[Category, Share]:
    """Return the share of each class that a pack's metrics contain, in the order of the work list.

    found  the shares by class, from JSON. Invalid entries are left out
    """
    values = {category: _member(found, category) for category in WORK_LIST_ORDER if category in found}
    return {category: share for category, own in values.items() if (share := _share(own))}


def _share(found: Mapping[str, object]) -> Share | None:
    counts, values = ([found.get(name) for name in names] for names in (("count", "of"), ("value", "low", "high")))
    is_counted = all(type(count) is int and count >= 0 for count in counts) and counts[1] != 0
    is_share = all(type(value) in (int, float) and 0 <= value <= 1 for value in values)  # type: ignore[operator]
    return Share(*counts, *values) if is_counted and is_share else None  # type: ignore[arg-type]


def _measured(manifest: Manifest, part: str, code: str) -> Iterator[Reason]:
    """Yield a sentence with the AUC for each label, from one part of the metrics.

    A label is left out if its metrics do not have the form that the toolchain writes.

    part  "test" or "external_test"
    code  code of the sentence
    """
    for label in manifest.labels:
        found = _member(_member(_member(manifest.metrics, "labels"), label.code), part)
        auc, images = _member(found, "auc"), found.get("images")
        values = [auc.get(name) for name in ("value", "low", "high")]
        if type(images) is int and all(isinstance(value, float) and 0 <= value <= 1 for value in values):
            value, low, high = (f"{value:.2f}" for value in values)
            yield reason(code, auc=value, low=low, high=high, images=images)


def _member(values: object, name: str) -> Mapping[str, object]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def header_notes(header: ImageHeader, accepted: HeaderRules, *, ages_confirmed: bool) -> tuple[Reason, ...]:
    """Return notes for a person on an image's header.

    The notes are about a contradictory or missing age, an unknown view or body part, an unusual orientation, and text
    burned into the pixels.

    ages_confirmed  whether a person confirmed that all patients are in the pack's age range
    """
    notes = [_age_note(header, accepted, is_confirmed=ages_confirmed)]
    if view_match(header, accepted) == "unknown":
        notes.append(reason("view_unknown", view=header.view))
    if body_part_match(header, accepted) == "unknown":
        notes.append(reason("body_part_unknown", body_part=header.body_part_examined))
    notes.append(_orientation_note(header))
    if header.burned_in_annotation.upper().startswith("Y"):
        notes.append(reason("burned_in_annotation"))
    return tuple(note for note in notes if note)


def _age_note(header: ImageHeader, accepted: HeaderRules, *, is_confirmed: bool) -> Reason | None:
    if header.patient_age_years is not None and header.contrary_age_years is not None:
        ages = sorted((header.patient_age_years, header.contrary_age_years))
        return reason("ages_differ", age=int(ages[0]), other=int(ages[1]))
    if accepted.ages_years is None or header.patient_age_years is not None:
        return None
    youngest, oldest = accepted.ages_years
    return reason(AGE_NOTE_CODE_BY_CONFIRMED[is_confirmed], youngest=youngest, oldest=oldest)


def update_age_notes(notes: Iterable[Reason], *, ages_confirmed: bool) -> tuple[Reason, ...]:
    """Return the notes of a stored result, adapted to a new run that takes over the result.

    The note that the patient's age is not stated also says whether a person confirmed the ages. Only this note is
    rewritten.

    ages_confirmed  whether a person confirmed the ages in the new run
    """
    written, other = AGE_NOTE_CODE_BY_CONFIRMED[ages_confirmed], AGE_NOTE_CODE_BY_CONFIRMED[not ages_confirmed]
    return tuple(Reason(written, note.parameters) if note.code == other else note for note in notes)


@dataclass(slots=True)
class PatientNoteCounts:
    """Counts of a run's images for the notes on patients.

    unintended_patient_image_count  number of images whose header contradicts the pack's rules
    unstated_age_count              number of images without a stated age
    """

    unintended_patient_image_count: int = 0
    unstated_age_count: int = 0

    def add(self, result_count: ResultCount) -> None:
        """Add results to the counts.

        result_count  the number of results with one category and one set of codes. Results refused because of age or
                      body part are added to `unintended_patient_image_count`. Results with the note that the age is not
                      stated are added to `unstated_age_count`. All other results change no count
        """
        is_unintended = result_count.category == "refused" and not _OTHERS.isdisjoint(
            result_count.reason_and_note_codes
        )
        self.unintended_patient_image_count += result_count.result_count * is_unintended
        self.unstated_age_count += result_count.result_count * (
            AGE_NOTE_CODE_BY_CONFIRMED[False] in result_count.reason_and_note_codes
        )

    def notes(self, accepted: HeaderRules) -> tuple[Reason, ...]:
        """Return notes on the number of images of unintended patients, and of images without a stated age.

        accepted  the pack's header rules; the notes name the ages that the pack accepts
        """
        counts = {"other_patients": self.unintended_patient_image_count, "ages_not_stated": self.unstated_age_count}
        intended = intended_patients_sentence(accepted).text
        return tuple(reason(code, count=count, patients=intended) for code, count in counts.items() if count)


# ---- what a header's words mean
#
# A pack names DICOM's own terms (PS3.3 C.8.11.5.1.1, PS3.16 CID 4009 and 4010). Hospitals write terms of their own
# language, abbreviated, with dots, or with further words. One table for all packs translates these to DICOM's terms.


# What a header field says: nothing; a value that the pack accepts; another known value; or unknown words.
HeaderMatch = Literal["nothing", "accepted", "other", "unknown"]

_SAYS_NOTHING: Final = frozenset({"", "NONE", "UNKNOWN", "UNK", "OTHER", "UNSPECIFIED", "NA"})
_UNDIVIDED: Final = str.maketrans({"Ł": "L", "Ø": "O", "Đ": "D", "Æ": "AE", "Œ": "OE"})
_FRONTAL: Final = frozenset({"PA", "AP", "FRONTAL"})

_POSTURE: Final = (
    "UPRIGHT|ERECT|SUPINE|PRONE|PORT|MOBILE|STAND|SIT|SEMI|BED|CHEST|THORAX|TORAX|VIEW|PROJ|LORD|INSP|EXP|STEH|LIEG"
)
# Patterns of each view, in upper case without accents: for the words of a text, and for the text without blanks.
_VIEWS: Final[Mapping[str, tuple[str, str]]] = {
    "PA": (
        rf"\bPA\d*\b|\bPA({_POSTURE})|({_POSTURE})PA\b",
        "POST(ERO|ERIOR)?(TO)?ANT|ZADOPREDN|TYLNOPRZEDN|ЗАДН[ЬЕ]О?ПЕРЕДН",
    ),
    "AP": (
        rf"\bAP\d*\b|\bAP({_POSTURE})|({_POSTURE})AP\b",
        "ANT(ERO|ERIOR)?(TO)?POST|PREDOZADN|PRZEDNIOTYLN|ПЕРЕДН[ЬЕ]О?ЗАДН",
    ),
    "FRONTAL": (r"\bFACE\b", "FRONT|FRENTE|CORONAL|DORSOVENTRAL|VENTRODORSAL|ФРОНТ|ПРЯМ|正位|正面"),
    "LATERAL": (
        r"\b[LR]{2}\b|\b[LR]?T?LAT\d*\b|\bLAT[LR]T?\b|\bSEIT",
        "(?<!BI)(?<!UNI)LATER|PROFIL|PERFIL|SAGIT|САГИТ|САГІТ|BOCZN|BOCN|БОКОВ|БІЧН|CROSSTABLE|XTABLE|側|侧",
    ),
    "OBLIQUE": (r"\bOBL|\b[LR][APL]O\b|\bКОС[АО]", "OBLI[CQ]U|SCHRA|SKOSN|SIKM|斜"),
}
_DECUBITUS: Final = re.compile(r"\b[LR]LD\b|DECUB")
# Other known views, none of which is a frontal view of the chest.
_OTHER_VIEWS: Final = re.compile(r"\b(CC|MLO|ML|LM)\b|AXIAL|TANGENT|TOWNE|WATERS|CALDWELL|SUNRISE|SKYLINE")
# Codes of SNOMED CT and the older SNOMED RT (PS3.16 CID 4010) for each view.
_VIEW_CODES: Final[Mapping[str, str]] = {
    code: term
    for term, codes in (
        ("PA", "272479007 R-40888 R-10214"),
        ("AP", "399348003 R-10206"),
        ("FRONTAL", "399033003 R-10202"),
        (
            "LATERAL",
            "399067008 R-102CD 399198007 R-10232 399173006 R-10236 399260004 R-10224 399352003 R-10228 30730003 G-A145",
        ),
        (
            "OBLIQUE",
            "399182000 R-102C1 399160007 R-10204 399312000 R-10208 399038007 R-10210 399006002 R-10212 399059000 "
            "R-10216 399356000 R-40985 399135007 R-10220 399368009 R-10226 399099002 R-10230 399236003 R-10234 "
            "399184004 R-10238 260427002 R-40783 260426006 R-40782",
        ),
        ("AXIAL", "399061009 R-10241 399162004 R-10242 399196006 R-10244 399110001 R-102C2"),
    )
    for code in codes.split()
}

# Entries match the beginning of a word; with "~" any part of the text, with "=" a whole word.
_BODY_PARTS: Final[Mapping[str, str]] = {
    "CHEST": "~CHEST ~THORAX ~TORAX ~THORAKS ~TORAKS ~TORACE LUNG ~CXR CHST PULM POUMON POLMON POITRINE PECHO PEITO "
    "PETTO BRUSTKORB BRUSTRAUM BRYSTKASS BROSTKORG KLATKA KLP PLUC PLIC PLJUC HRUDNIK AKCIGER MELLKAS TUDO KEUHKO "
    "RINTAKEHA RINNAK =PHOI =PARU ΠΝΕΥΜ ОГК ОГП ТОРАКС ФЛГ ФЛЮОР КЛЕТ КЛІТ ЛЕГК ЛЕГЕН БЕЛОДР ~胸部 ~肺 ~흉부 ~폐",
    "ABDOMEN": "ABDOM =ABD =KUB VENTRE BAUCH BRZUCH BRICH STOMACH MAGEN GASTR COLON BOWEL INTESTIN KIDNEY "
    "RENAL LIVER BLADDER GALLBL IVU IVP UROGR ESOPH OESOPH ЖИВОТ БРЮШ ЧЕРЕВ ~腹",
    "PELVIS": "PELV BECKEN BASSIN BACINO BACIA MIEDNIC PANEV =HIP =HIPS HUFT HUEFT HANCHE CADERA =ANCA "
    "QUADRIL BIODR SACR COCCY ТАЗ КУЛЬШ ~骨盆",
    "SPINE": "~SPINE SPINAL VERTEBR COLUMNA COLUNA COLONNA COLONNE COLOANA RACHI ~WIRBEL ~WERVEL ~VIRVEL ~RYGG "
    "KREGOS ODCIN PATER CHRBTIC HRBET HRBT HREB KHREB KRALJEZ KICM KICHM OMURG STUBUR =SONG LUMB ~LUMBA ~LOMBA "
    "CERVIC LWS BWS HWS ХРЕБ ПОЗВОН ВІДДІЛ ОТДЕЛ ΣΠΟΝΔ ~椎 ~脊 ~فقر",
    "SKULL": "SKULL HEAD CRANI CRANE KOPF SCHADEL SCHAEDEL TETE CABEZA CABECA TESTA CZASZK GLOWA LEBK =FACE "
    "FACIAL SINUS ORBIT JAW MANDIB MAXILL NASAL NOSE MASTOID TMJ BRAIN DENT TEETH TOOTH ZYGOM SELLA "
    "PNS ЧЕРЕП ГОЛОВ ~颅 ~頭",
    "NECK": "NECK HALS CUELLO COLLO LARYN THYROID ШИЯ ШИЇ ШЕЯ ШЕИ",
    "SHOULDER": "SHOULDER SCHULTER EPAULE HOMBRO SPALLA OMBRO CLAVIC CLAVIK SCAPUL ACJOINT ПЛЕЧ КЛЮЧИЦ ЛОПАТ ~肩 ~鎖",
    "ARM": "=ARM =ARMS HUMER ELBOW ELLENB COUDE CODO GOMITO COTOVELO FOREARM UNTERARM OBERARM RADIUS ULNA "
    "UPPEREXTREM ЛІКОТ ЛОКТ ПРЕДПЛЕЧ ПЕРЕДПЛІЧ ~肘",
    "HAND": "HAND WRIST FINGER THUMB =MAIN =MANO POIGNET MUNECA POLSO PUNHO DLON =RECE NADGARST КИСТ ЗАПЯСТ "
    "ПАЛЕЦ ПАЛЬЦ ~手",
    "LEG": "=LEG =LEGS FEMUR FEMORA TIBIA FIBUL THIGH LOWEREXTREM EXTREM OBERSCH UNTERSCH ГОМІЛ ГОЛЕН СТЕГН БЕДР",
    "KNEE": "KNEE KNIE GENOU RODILLA GINOCCH JOELHO KOLAN KOLEN PATELL КОЛІН КОЛЕН ~膝",
    "FOOT": "FOOT FEET FUSS PIED =PIE STOPA ANKLE CHEVILLE TOBILLO CAVIGLIA TORNOZELO SPRUNGG HEEL CALCAN "
    "=TOE =TOES СТОП ГОМІЛКОВОСТ ~足",
    "RIB": "=RIB =RIBS RIPPE COTES COSTILL ZEBR STERN РЕБР ГРУДИН ~肋 ~胸骨",
    "BREAST": "BREAST MAMM =MAMA =SENO МОЛОЧН",
    "WHOLEBODY": "WHOLEB BABYGRAM SKELET FULLBODY TOTALBODY PHANTOM",
}
# Words for the chest that may also mean the spine or the breast. Such a word counts as the chest unless the text names
# a part other than the abdomen.
_OF_THE_CHEST: Final = "THORA TORA THX BRUST BRYST BROST PIERSIOW HRUD GRUDN GOGUS KRUT =NGUC ΘΩΡΑΚ ТОРАК ГРУД ~胸 ~صدر"


def _words(text: str) -> str:
    """Normalise a text for comparison: upper case, no accents, single blanks.

    Adjacent single letters are joined, so that `P. A.` becomes `PA`.
    """
    plain = unicodedata.normalize("NFKD", text.upper()).translate(_UNDIVIDED)
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    words = re.sub(r"[\W_]+", " ", plain).strip()
    return re.sub(r"\b(\w) (?=\w\b)", r"\1", words)


_ADJECTIVE: Final = "OF THE CHEST"
_KEPT_TEXTS: Final = 256


def _part_pattern(entries: str) -> re.Pattern[str]:
    forms = {"~": "{}", "=": r"\b{}\b"}
    found = [forms.get(entry[0], r"\b{}").format(re.escape(_words(entry.lstrip("~=")))) for entry in entries.split()]
    return re.compile("|".join(found))


# The patterns take milliseconds of a process's start, and PNG and JPEG files have no words. The headers of an archive
# have the same few words.


@functools.cache
def _view_patterns() -> Mapping[str, Sequence[re.Pattern[str]]]:
    return {term: [re.compile(unicodedata.normalize("NFKD", part)) for part in parts] for term, parts in _VIEWS.items()}


@functools.cache
def _part_patterns() -> Mapping[str, re.Pattern[str]]:
    return {term: _part_pattern(entries) for term, entries in {**_BODY_PARTS, _ADJECTIVE: _OF_THE_CHEST}.items()}


@functools.lru_cache(maxsize=_KEPT_TEXTS)
def views_named_in(text: str) -> frozenset[str]:
    """Return the views that a text names: PA, AP, FRONTAL, LATERAL, OBLIQUE, and AXIAL for any other known view.

    The result is empty for unknown words.
    """
    words = _words(text)
    compact = words.replace(" ", "")
    found = {term for term, (spaced, run) in _view_patterns().items() if spaced.search(words) or run.search(compact)}
    if _DECUBITUS.search(words):  # decubitus: the patient lies on the side, and the view may still be frontal
        return frozenset(found & _FRONTAL or {"LATERAL"})
    if not found and _OTHER_VIEWS.search(words):
        return frozenset({"AXIAL"})
    return frozenset(found)


def view_of_code(code: str, meaning: str) -> str:
    """Return the view of an item of the View Code Sequence: by the code if known, else the meaning as written."""
    return _VIEW_CODES.get(code.strip().upper(), meaning)


@functools.lru_cache(maxsize=_KEPT_TEXTS)
def body_parts_named_in(text: str) -> frozenset[str]:
    """Return the body parts that a text in any known language names, as terms such as CHEST.

    The result is empty for unknown words.
    """
    words = _words(text)
    words = f"{words} {words.replace(' ', '')}"
    found = {term for term, pattern in _part_patterns().items() if pattern.search(words)}
    if _ADJECTIVE in found and found <= {_ADJECTIVE, "ABDOMEN"}:
        found.add("CHEST")
    return frozenset(found - {_ADJECTIVE})


def view_match(header: ImageHeader, rules: HeaderRules) -> HeaderMatch:
    """Compare the view in a header with the views that a pack accepts.

    Result      condition
    "accepted"  the rules accept every view that View Position and View Code Sequence name
    "other"     a known view is named that the rules do not accept
    "unknown"   only words are named that the program does not know
    "nothing"   no view is stated

    If View Position is missing, Patient Orientation is checked for a lateral view, too.
    """
    said = [text for text in (header.view_position, header.view_code, _view_by(header)) if not _says_nothing(text)]
    if not said:
        return "nothing"
    found = {view for text in said for view in views_named_in(text)}
    accepted = _terms(rules.views, views_named_in)
    if accepted & _FRONTAL:
        accepted.add("FRONTAL")
    if found:
        return "accepted" if found <= accepted else "other"
    is_named = any(view in _words(text).split() for text in said for view in rules.views)
    return "accepted" if is_named else "unknown"


def view_words(header: ImageHeader) -> str:
    """Return the words by which an image's header names the view, for a message."""
    by_orientation = f"Patient Orientation {header.patient_orientation}" if _view_by(header) else ""
    return " / ".join(filter(None, (header.view_position, header.view_code, by_orientation)))


def _directions(header: ImageHeader) -> str:
    """Return the directions of rows and columns (PS3.3 C.7.6.1.1.1) as two letters; LF for an upright frontal image.

    The result is empty if there is a View Position, or if the letters do not belong to two different axes.
    """
    found = "".join(part.strip()[:1].upper() for part in header.patient_orientation.split("\\"))
    axes = [axis for axis in ("AP", "RL", "HF") if set(axis) & set(found)]
    is_known = len(found) == len(axes) == 2 and set(found) <= set("APRLHF")
    return found if is_known and _says_nothing(header.view_position) else ""


def _view_by(header: ImageHeader) -> str:
    """Return the view that Patient Orientation implies, if that view is not frontal; empty for a frontal view."""
    directions = set(_directions(header))
    if not directions & set("AP"):
        return ""
    return "LATERAL" if directions & set("HF") else "AXIAL"


def _orientation_note(header: ImageHeader) -> Reason | None:
    directions, stated = _directions(header), {"orientation": header.patient_orientation}
    if set(directions) & set("HF") and directions[1] != "F":
        return reason("orientation_turned", **stated)
    return reason("orientation_mirrored", **stated) if directions == "RF" else None


# ---- images that are no ordinary exposure

# Digital X-ray, mammography and intra-oral images For Processing (PS3.4 B.5).
_RAW_CLASSES: Final = frozenset(f"1.2.840.10008.5.1.4.1.1.1.{kind}.1" for kind in (1, 2, 3))
# Words in Image Type, whose third and later values differ by manufacturer: dual energy, subtraction, bone, soft tissue.
_KINDS_OF_IMAGE: Final = re.compile(r"ENERGY|\bDES?\b|\bES\b|\bSUB\b|SUBTR|BONE|SOFT|TISSUE|SUPPRESS|\bRIBS?\b")
# Patterns for descriptions in sentences. They are stricter: a sentence may name a subtracted grid, or contain DE
# as an ordinary word.
_KINDS_IN_WORDS: Final = re.compile(
    "DUAL ?ENERGY|(ENERGY|TEMPORAL) ?SUBTR|(BONE|RIB)S? ?(IMAGE|SUPPR|SUBTR|REMOV)|SOFT ?TISSUE"
)


def is_for_processing(header: ImageHeader) -> bool:
    """Return whether a file contains unprocessed detector values (FOR PROCESSING; PS3.3 C.8.11.3)."""
    return header.presentation_intent_type.upper() == "FOR PROCESSING" or header.sop_class_uid in _RAW_CLASSES


def is_special_exposure(header: ImageHeader) -> bool:
    """Return whether the header says that the image is no ordinary exposure.

    Examples are an image of bone or soft tissue alone, and the difference of two exposures.
    """
    found = _KINDS_OF_IMAGE.search(_words(header.image_type)) or _KINDS_IN_WORDS.search(_words(header.derivation))
    return found is not None


def body_part_match(header: ImageHeader, rules: HeaderRules) -> HeaderMatch:
    """Compare Body Part Examined in a header with the body parts that a pack accepts.

    The result is "accepted" if at least one named part is accepted, "other" if the program knows a named part but the
    rules do not accept it, "unknown" for words that the program does not know, and "nothing" if no part is stated.
    """
    text = header.body_part_examined
    if _says_nothing(text):
        return "nothing"
    found = body_parts_named_in(text)
    own_words = (part for part in rules.body_parts if not body_parts_named_in(part))
    if found & _terms(rules.body_parts, body_parts_named_in) or any(part in text.upper() for part in own_words):
        return "accepted"
    return "other" if found else "unknown"


def _terms(accepted: Iterable[str], terms_of: Callable[[str], frozenset[str]]) -> set[str]:
    return {term for word in accepted for term in terms_of(word)}


def _says_nothing(text: str) -> bool:
    return re.sub(r"[\W_]+", "", text.upper()) in _SAYS_NOTHING
