"""The dissertation's bare models in a drive's root, as an unsigned pack (V. Taran, KPI Kyiv, 2022).

The files say nothing about themselves. Known is what the dissertation tells: ResNet50, 128 x 128 grey pixels, normal
against abnormal. The rest is assumed, and said so on the card: values are shown as in the file and scaled to 0..1,
the image is stretched to the square, the scores are the first output, in the order normal, abnormal. No operating
point is known, so nothing is ever assessed by it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fieldray.domain.model import InputSpec, Label, Manifest, Model, OutputRoles
from fieldray.packs.manifest_types import size_limit
from fieldray.packs.naming import LEGACY_CPU_NAME, LEGACY_EDGETPU_NAME
from fieldray.packs.reading import guarded, read_file, read_optional_file

_ASSUMED_EN: Final = (
    "Unsigned: nobody vouches for these files. Scores only, nothing is assessed. Assumed, since the files do not say: "
    "128 x 128 grey pixels scaled to 0..1, outputs in the order normal, abnormal."
)
_ASSUMED_UK: Final = (
    "Без підпису: за ці файли ніхто не ручається. Лише оцінки, без висновку. Припущено, бо файли про це мовчать: "
    "128 x 128 сірих пікселів у межах 0..1, виходи в порядку «норма», «відхилення»."
)
MANIFEST: Final = Manifest(
    pack_id="legacy-chest-resnet50",
    version="0.0.0",
    names={"en": "Legacy chest model (unsigned)", "uk": "Стара модель грудної клітки (без підпису)"},
    descriptions={
        "en": "The bare model file of the 2022 dissertation, found in the drive's root.",
        "uk": "Окремий файл моделі з дисертації 2022 року, знайдений у корені диска.",
    },
    intended_use={"en": "Research on the method only.", "uk": "Лише для дослідження методу."},
    limits={"en": _ASSUMED_EN, "uk": _ASSUMED_UK},
    input=InputSpec(height=128, width=128, intensity="as_displayed", fit="stretch"),
    labels=(
        Label(code="normal", scheme="fieldray", meaning={"en": "normal", "uk": "норма"}),
        Label(code="abnormal", scheme="fieldray", meaning={"en": "abnormal", "uk": "відхилення"}),
    ),
    outputs=OutputRoles(scores=0, activation="softmax"),
    provenance={"source": "V. Taran, dissertation, KPI Kyiv, 2022; the file itself is unsigned"},
)


@guarded
def load_legacy(folder: Path) -> Model:
    """The bare model in a drive's root, copied into memory. Raises PackProblem."""
    network = read_file(folder, name=LEGACY_CPU_NAME, limit_bytes=size_limit("litert"))
    compiled = read_optional_file(folder, name=LEGACY_EDGETPU_NAME, limit_bytes=size_limit("edgetpu"))
    return Model(
        manifest=MANIFEST,
        trust="legacy",
        fingerprint="",
        model_sha256=hashlib.sha256(network).hexdigest(),
        files={"litert": network} | ({} if compiled is None else {"edgetpu": compiled}),
        card=_ASSUMED_EN,
    )
