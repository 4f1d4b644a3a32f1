"""Letters that look alike (confusables), to detect a name that imitates another name.

The table contains the characters that Unicode lists as confusable with a single Latin letter or digit (UTS 39, Unicode
Security Mechanisms, https://www.unicode.org/Public/security/latest/confusables.txt). Characters that compatibility
decomposition (NFKD) and case folding already unify are left out. The whole Unicode list has 9,000 entries, most of them
for scripts in which no class name is compared.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping
from typing import Final

# fmt: off
_LOOK_LIKE: Final[Mapping[str, str]] = {
    "a": "ɑΑαАаᎪᗅ⍺ꓮ𐊠𖽀",
    "b": "ƄΒВЬᏏᏴᑲᖯᗷꓐꞴ𐊂𐊡𐌁",
    "c": "ΣςСсᏟᴄⲤⲥꓚꮯ𐊢𐌂𐐕𐐽𐔜𑣩𑣲🝌",
    "d": "ԁᎠᏧᑯᗞᗪꓒꓓ",
    "e": "ΕЕеҽᎬ℮⋿ⴹꓰꬲ𐊆𑢦𑢮",
    "f": "ϜքᖴẝꓝꞘꞙꬵ𐊇𐊥𐔥𑢢𑣂𝈓",
    "g": "ƍɡԌցᏀᏳᶃꓖ",
    "h": "ΗНһհᎻᏂᕼⲎꓧ𐋏",
    "i": "ıɩɪιіӏᎥ⍳ꙇꭵ𑣃",
    "j": "ͿϳЈјᎫᒍꓙꞲ",
    "k": "ΚКᏦᛕⲔꓗ𐔘",
    "l": "ƖǀΙІӀוןا١۱ߊᏞᒪᛁ∣⏽│ⲒⳐⵏꓡꓲ𐊊𐌉𐌠𐐛𐔦𑢣𑢲𖼖𖼨𝈪𞣇",
    "m": "ΜϺМᎷᗰᛖⲘꓟ𐊰𐌑",
    "n": "ΝոռⲚꓠ𐔓",
    "o": "ΟοσОоՕօסه٥ھہە۵߀०০੦૦ଠ୦௦౦೦ഠ൦๐໐ဝ၀ჿዐᴏᴑⲞⲟⵔ〇ꓳꬽ𐊒𐊫𐐄𐐬𐓂𐓪𐔖𑓐𑢵𑣈𑣗𑣠",
    "p": "ΡρРрᏢᑭ⍴Ⲣⲣꓑ𐊕",
    "q": "ԛգզⵕ",
    "r": "ƦгᎡᏒᖇᴦⲅꓣꭇꭈꮁ𐒴𖼵𝈖",
    "s": "ƽЅѕՏᏕᏚꓢꜱꮪ𐊖𐐠𐑈𑣁𖼺",
    "t": "ΤТᎢ⊤⟙Ⲧꓔ𐊗𐊱𐌕𑢼𖼊🝨",
    "u": "ʋυՍսሀᑌᴜ∪⋃ꓴꞟꭎꭒ𐓎𐓶𑢸𑣘𖽂",
    "v": "νѴѵט٧۷Ꮩᐯᴠ∨⋁ⴸꓦꛟꮩ𐔝𑜆𑢠𑣀𖼈𝈍",
    "w": "ɯѡԜԝաᎳᏔᴡꓪꮃ𑜊𑜎𑜏𑣦𑣯",
    "x": "×ΧХхᕁᕽ᙭ᚷ╳⤫⤬⨯ⲬⵝꓫꞳ𐊐𐊴𐌗𐌢𐔧𑣬",
    "y": "ɣʏΥγУуҮүყᎩᎽᶌỿⲨꓬꭚ𐊲𑢤𑣜𖽃",
    "z": "ΖᏃᴢꓜꮓ𐋵𑢩𑣄𑣥",
    "2": "ƧϨᒿꙄꛯꝚ",
    "3": "ƷȜЗӠⳌꝪꞫ𑣊𖼻𝈆",
    "4": "Ꮞ𑢯",
    "5": "Ƽ𑢻",
    "6": "бᏮⳒ𑣕",
    "7": "𐓒𑣆𝈒",
    "8": "Ȣȣ৪੪𐌚𞣋",
    "9": "৭੧୨൭ⳊꝮ𑢬𑣌𑣖",
}
# fmt: on
_PLAIN: Final = {ord(other): letter for letter, others in _LOOK_LIKE.items() for other in others}
_PLAIN_WHEN_FOLDED: Final = str.maketrans("i10|", "llol")
_PAIRS: Final = (("rn", "m"), ("vv", "w"))
# Words in the Unicode names of characters that are invisible
_WITHOUT_SHAPE: Final = ("FILLER", "BLANK", "VARIATION SELECTOR", "JOINER", "INHERENT")


def is_visible_text(text: str) -> bool:
    """Return whether a text has a visible letter or digit."""
    return any(letter.isalnum() and _is_seen(letter) for letter in unicodedata.normalize("NFKD", text))


def are_look_alikes(text: str, other: str) -> bool:
    """Return whether two texts look so similar, in upper or lower case, that a person may confuse them."""
    return not _skeletons(text).isdisjoint(_skeletons(other))


@functools.lru_cache(maxsize=256)  # every class name of a pack is compared with the program's own class names
def _skeletons(text: str) -> frozenset[str]:
    return frozenset(map(_skeleton, (text, text.upper(), text.lower())))


def _skeleton(text: str) -> str:
    """Return the visual skeleton of a text: its letters and digits, without accents, blanks and punctuation."""
    plain = unicodedata.normalize("NFKD", text).translate(_PLAIN).casefold()
    folded = unicodedata.normalize("NFKD", plain).translate(_PLAIN_WHEN_FOLDED)
    shown = "".join(letter for letter in folded if _is_part(letter) and _is_seen(letter))
    for pair, letter in _PAIRS:
        shown = shown.replace(pair, letter)
    return shown


def _is_part(letter: str) -> bool:
    """Return whether a character is kept when texts are compared by eye.

    Letters, digits and vowel signs (Thai, Hindi) are kept. Accents, blanks and punctuation are not.
    """
    is_vowel = unicodedata.category(letter) in ("Mn", "Mc") and not unicodedata.combining(letter)
    return letter.isalnum() or is_vowel


def _is_seen(letter: str) -> bool:
    return not any(word in unicodedata.name(letter, "") for word in _WITHOUT_SHAPE)
