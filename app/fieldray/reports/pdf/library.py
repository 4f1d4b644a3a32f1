"""fpdf2 without its signatures: for them it imports a library for tests, and with that asyncio and sockets.

Documents are not signed. The installed program has none of these modules, and nothing of ours should load them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

_SIGNING: Final = ModuleType("fpdf.sign")
vars(_SIGNING).update(Signature=type("Signature", (), {}), sign_content=None)
sys.modules.setdefault("fpdf.sign", _SIGNING)

from fpdf import FPDF  # noqa: E402
from fpdf.enums import Align, MethodReturnValue, XPos, YPos  # noqa: E402
from fpdf.fonts import TTFFont  # noqa: E402
from fpdf.output import CIDSystemInfo, OutputProducer, PDFFont, PDFFontStream  # noqa: E402
from fpdf.prefs import ViewerPreferences  # noqa: E402
from fpdf.syntax import Name, PDFArray, PDFContentStream, PDFObject  # noqa: E402

__all__ = [
    "FPDF",
    "Align",
    "CIDSystemInfo",
    "MethodReturnValue",
    "Name",
    "OutputProducer",
    "PDFArray",
    "PDFContentStream",
    "PDFFont",
    "PDFFontStream",
    "PDFObject",
    "TTFFont",
    "ViewerPreferences",
    "XPos",
    "YPos",
]
