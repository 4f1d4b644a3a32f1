"""What clinics write for a view and a body part, and what it means to a pack.

A pack names DICOM's own terms (PS3.3 C.8.11.5.1.1, PS3.16 CID 4009 and 4010). Hospitals write those of their language,
shortened, with dots, or with what else they know of the image. One table for all packs says what is meant.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from fieldray.domain.model import HeaderRules
from fieldray.domain.study import ImageHeader

# Of a field: nothing; what the pack is for; something else that is known; words that are in no table.
Saying = Literal["nothing", "accepted", "other", "unknown"]

_SAYS_NOTHING: Final = frozenset({"", "NONE", "UNKNOWN", "UNK", "OTHER", "UNSPECIFIED", "NA"})
_UNDIVIDED: Final = str.maketrans({"Ł": "L", "Ø": "O", "Đ": "D", "Æ": "AE", "Œ": "OE"})
_FRONTAL: Final = frozenset({"PA", "AP", "FRONTAL"})

_POSTURE: Final = (
    "UPRIGHT|ERECT|SUPINE|PRONE|PORT|MOBILE|STAND|SIT|SEMI|BED|CHEST|THORAX|TORAX|VIEW|PROJ|LORD|INSP|EXP|STEH|LIEG"
)
# How a view is written, upper case and without accents: what is looked for in words, and in all of them run together.
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
# Of a known kind, which no frontal view of the chest is.
_OTHER_VIEWS: Final = re.compile(r"\b(CC|MLO|ML|LM)\b|AXIAL|TANGENT|TOWNE|WATERS|CALDWELL|SUNRISE|SKYLINE")
# SNOMED CT, and the codes that it had in SNOMED RT (PS3.16 CID 4010).
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

# The beginnings of words; after "~" what may stand anywhere in them, after "=" whole words.
_BODY_PARTS: Final[Mapping[str, str]] = {
    "CHEST": "~CHEST ~THORAX ~TORAX ~THORAKS ~TORAKS ~TORACE ~LUNG ~CXR CHST THX PULM POUMON POLMON POITRINE "
    "PECHO PEITO PETTO BRUSTKORB BRUSTRAUM BRYSTKASS BROSTKORG KLATKA KLP PIERSIOW PLUC PLIC PLJUC "
    "HRUD GRUDNI GOGUS AKCIGER MELLKAS TUDO KRUT KEUHKO RINTAKEHA RINNAK =NGUC =PHOI =PARU ΘΩΡΑΚ "
    "ΠΝΕΥΜ ОГК ОГП ТОРАК ФЛГ ФЛЮОР КЛЕТ КЛІТ ЛЕГК ЛЕГЕН БЕЛОДР ~胸 ~肺 ~흉부 ~폐 ~صدر",
    "ABDOMEN": "ABDOM =ABD =KUB VENTRE BAUCH BRZUCH BRICH STOMACH MAGEN GASTR COLON BOWEL INTESTIN KIDNEY "
    "RENAL LIVER BLADDER GALLBL IVU IVP UROGR ESOPH OESOPH ЖИВОТ БРЮШ ЧЕРЕВ ~腹",
    "PELVIS": "PELV BECKEN BASSIN BACINO BACIA MIEDNIC PANEV =HIP =HIPS HUFT HUEFT HANCHE CADERA =ANCA "
    "QUADRIL BIODR SACR COCCY ТАЗ КУЛЬШ ~骨盆",
    "SPINE": "~SPINE SPINAL VERTEBR COLUMNA COLUNA COLONNA COLONNE RACHI ~WIRBEL KREGOS LUMB CERVIC LWS BWS "
    "HWS ХРЕБ ПОЗВОН ~椎 ~脊",
    "SKULL": "SKULL HEAD CRANI CRANE KOPF SCHADEL SCHAEDEL TETE CABEZA CABECA TESTA CZASZK GLOWA LEBK =FACE "
    "FACIAL SINUS ORBIT JAW MANDIB MAXILL NASAL NOSE MASTOID TMJ BRAIN DENT TEETH TOOTH ZYGOM SELLA "
    "PNS ЧЕРЕП ГОЛОВ ~颅 ~頭",
    "NECK": "NECK HALS CUELLO COLLO LARYN THYROID ШИЯ ШИЇ ШЕЯ ШЕИ",
    "SHOULDER": "SHOULDER SCHULTER EPAULE HOMBRO SPALLA OMBRO CLAVIC CLAVIK SCAPUL ACJOINT ПЛЕЧ КЛЮЧИЦ ЛОПАТ ~肩",
    "ARM": "=ARM =ARMS HUMER ELBOW ELLENB COUDE CODO GOMITO COTOVELO FOREARM UNTERARM OBERARM RADIUS ULNA "
    "UPPEREXTREM ЛІКОТ ЛОКТ ПРЕДПЛЕЧ ПЕРЕДПЛІЧ ~肘",
    "HAND": "HAND WRIST FINGER THUMB =MAIN =MANO POIGNET MUNECA POLSO PUNHO DLON =RECE NADGARST КИСТ ЗАПЯСТ "
    "ПАЛЕЦ ПАЛЬЦ ~手",
    "LEG": "=LEG =LEGS FEMUR FEMORA TIBIA FIBUL THIGH LOWEREXTREM EXTREM OBERSCH UNTERSCH ГОМІЛ ГОЛЕН СТЕГН БЕДР",
    "KNEE": "KNEE KNIE GENOU RODILLA GINOCCH JOELHO KOLAN KOLEN PATELL КОЛІН КОЛЕН ~膝",
    "FOOT": "FOOT FEET FUSS PIED =PIE STOPA ANKLE CHEVILLE TOBILLO CAVIGLIA TORNOZELO SPRUNGG HEEL CALCAN "
    "=TOE =TOES СТОП ГОМІЛКОВОСТ ~足",
    "RIB": "=RIB =RIBS RIPPE COTES COSTILL ZEBR STERN РЕБР ГРУДИН ~肋",
    "BREAST": "BREAST MAMM =MAMA =SENO МОЛОЧН",
    "WHOLEBODY": "WHOLEB BABYGRAM SKELET FULLBODY TOTALBODY PHANTOM",
}
# Adjectives of the chest, which the spine and the breast have as well: they count where nothing else is named.
_OF_THE_CHEST: Final = "THORAC THORAK TORAC TORAK BRUST BRYST BROST ГРУД"


def _words(text: str) -> str:
    """In upper case, without accents, divided by single blanks; letters that stand alone together: `P. A.` is `PA`."""
    plain = unicodedata.normalize("NFKD", text.upper()).translate(_UNDIVIDED)
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    words = re.sub(r"[\W_]+", " ", plain).strip()
    return re.sub(r"\b(\w) (?=\w\b)", r"\1", words)


def _part_pattern(entries: str) -> re.Pattern[str]:
    forms = {"~": "{}", "=": r"\b{}\b"}
    found = [forms.get(entry[0], r"\b{}").format(re.escape(_words(entry.lstrip("~=")))) for entry in entries.split()]
    return re.compile("|".join(found))


_VIEW_PATTERNS: Final = {
    term: tuple(re.compile(unicodedata.normalize("NFKD", part)) for part in parts) for term, parts in _VIEWS.items()
}
_PART_PATTERNS: Final = {term: _part_pattern(entries) for term, entries in _BODY_PARTS.items()}
_CHEST_ADJECTIVE: Final = _part_pattern(_OF_THE_CHEST)


def views_of(text: str) -> frozenset[str]:
    """The views that a text names: PA, AP, FRONTAL, LATERAL, OBLIQUE, or AXIAL for others; none for unknown words."""
    words = _words(text)
    compact = words.replace(" ", "")
    found = {term for term, (spaced, run) in _VIEW_PATTERNS.items() if spaced.search(words) or run.search(compact)}
    if _DECUBITUS.search(words):  # the patient lies on the side: the view may be frontal all the same
        return frozenset(found & _FRONTAL or {"LATERAL"})
    if not found and _OTHER_VIEWS.search(words):
        return frozenset({"AXIAL"})
    return frozenset(found)


def view_of_code(code: str, meaning: str) -> str:
    """The view that an item of a View Code Sequence names: its term, or its meaning where the code is in no table."""
    return _VIEW_CODES.get(code.strip().upper(), meaning)


def body_parts_of(text: str) -> frozenset[str]:
    """The parts of the body that a text names, by the terms of the table; none where its words are in no table."""
    words = _words(text)
    words = f"{words} {words.replace(' ', '')}"
    found = {term for term, pattern in _PART_PATTERNS.items() if pattern.search(words)}
    if not found and _CHEST_ADJECTIVE.search(words):
        found = {"CHEST"}
    return frozenset(found)


def view_says(header: ImageHeader, rules: HeaderRules) -> Saying:
    """What View Position and View Code Sequence together say: a side view by either is none that is accepted."""
    said = [text for text in (header.view_position, header.view_code) if not _says_nothing(text)]
    if not said:
        return "nothing"
    found = {view for text in said for view in views_of(text)}
    accepted = _terms(rules.views, views_of)
    if accepted & _FRONTAL:
        accepted.add("FRONTAL")
    if found:
        return "accepted" if found <= accepted else "other"
    return "accepted" if _is_named(said, rules.views) else "unknown"


def body_part_says(header: ImageHeader, rules: HeaderRules) -> Saying:
    """What Body Part Examined says; of several parts, one that is accepted is enough."""
    text = header.body_part_examined
    if _says_nothing(text):
        return "nothing"
    found = body_parts_of(text)
    if found & _terms(rules.body_parts, body_parts_of) or any(part in text.upper() for part in rules.body_parts):
        return "accepted"
    return "other" if found else "unknown"


def _terms(accepted: Iterable[str], terms_of: Callable[[str], frozenset[str]]) -> set[str]:
    return {term for word in accepted for term in terms_of(word)}


def _is_named(texts: Iterable[str], words: Iterable[str]) -> bool:
    return any(word in _words(text).split() for text in texts for word in words)


def _says_nothing(text: str) -> bool:
    return re.sub(r"[\W_]+", "", text.upper()) in _SAYS_NOTHING
