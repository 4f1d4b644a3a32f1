"""The dissertation's bare models in a drive's root, as an unsigned pack (V. Taran, KPI Kyiv, 2022).

The files say nothing about themselves; what is known is how the dissertation's demonstration fed and read them. The
grey image, stretched to 128 x 128, goes in as its levels of 0..255, not divided by anything: as float32 to the file for
the CPU, as bytes to the one for the Edge TPU. The first output has two shares of 1, abnormal and then normal. The
larger is the class and the number that is shown, a byte as a share of 255. Nobody measured an operating point, so that
each result says that none is known.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fieldray.domain.model import InputSpec, Label, Manifest, Model, OutputRoles, Trust
from fieldray.errors import PackProblem
from fieldray.packs.manifest import size_limit
from fieldray.packs.naming import LEGACY_CPU_NAME, LEGACY_EDGETPU_NAME, is_legacy
from fieldray.packs.reading import guarded, read_file, read_optional_file
from fieldray.reasons import reason

_ASSUMED_EN: Final = (
    "Unsigned: nobody vouches for these files. Operating point unknown: the class is that of the larger output; how "
    "often it is right was not measured. Assumed, since the files do not say: 128 x 128 grey levels of 0..255, outputs "
    "in the order abnormal, normal."
)
_ASSUMED_UK: Final = (
    "Без підпису: за ці файли ніхто не ручається. Робоча точка невідома: клас визначає більший вихід, і як часто він "
    "правильний, не виміряно. Припущено, бо файли про це мовчать: 128 x 128 рівнів сірого 0..255, виходи в порядку "
    "«відхилення», «норма»."
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
        Label(code="abnormal", scheme="fieldray", meaning={"en": "abnormal", "uk": "відхилення"}),
        Label(code="normal", scheme="fieldray", meaning={"en": "normal", "uk": "норма"}),
    ),
    outputs=OutputRoles(scores=0, activation="softmax"),
    is_bare=True,
    provenance={"source": "V. Taran, dissertation, KPI Kyiv, 2022; the file itself is unsigned"},
)


def known_manifest(trust: Trust) -> Manifest | None:
    """What a pack says that is not at hand any more: nothing, but for these files, which never say anything."""
    return MANIFEST if trust == "legacy" else None


@guarded
def require_legacy(folder: Path) -> None:
    """That the file for the CPU is there: without it nothing runs while there is no Edge TPU. Raises PackProblem."""
    if not is_legacy(folder, name=LEGACY_CPU_NAME):
        raise PackProblem(reason("pack_legacy_no_cpu", found=LEGACY_EDGETPU_NAME, missing=LEGACY_CPU_NAME))


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
