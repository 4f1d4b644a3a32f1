"""Names of packs and of their files, the folders that contain packs, and the pack that a name means.

A drive may be hostile, so only listed characters are allowed. No file is read, and no link is followed.

id         1 to 64 of a-z, 0-9 and the hyphen
version    x.y.z, three whole numbers of at most 6 digits, compared as numbers (https://semver.org, without suffixes)
file name  1 to 100 of A-Z a-z 0-9 . _ -, beginning with a letter or digit, not ending with a dot, not a device name of
           Windows ("NUL", "com1.tflite"), not `manifest.json` or `manifest.sig`

A person names a pack by its id or by `id-version`. The signer may follow: `chest@3475-0f98-...`. A name without signer
means the shipped pack, even if other packs have that name. If no shipped pack has the name, the name means the only
pack that has it.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fieldray.domain.model import Manifest, PackKind
from fieldray.errors import PackProblem
from fieldray.reasons import Reason, reason

MANIFEST_NAME: Final = "manifest.json"
SIGNATURE_NAME: Final = "manifest.sig"

ID_REGEX: Final = r"[a-z0-9-]{1,64}"
VERSION_REGEX: Final = r"(?:0|[1-9][0-9]{0,5})(?:\.(?:0|[1-9][0-9]{0,5})){2}"
FILE_NAME_REGEX: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_SEPARATORS: Final = re.compile(r"[\s:-]")
_DIGITS: Final = re.compile(r"[0-9a-f]{64}")
_DEVICE: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def is_version(text: str) -> bool:
    """Return whether a text is a valid version of a pack, such as `1.2.0`."""
    return re.fullmatch(VERSION_REGEX, text) is not None


def name_with_signer(name: str, *, is_signed: bool, fingerprint: str) -> str:
    """Return a pack's name with the fingerprint of its signer: `name@fingerprint`.

    The name of a shipped or unsigned pack is returned unchanged.
    """
    return f"{name}@{fingerprint}" if is_signed and fingerprint else name


def split_pack_name(name: str) -> tuple[str, str]:
    """Split a pack's name into (id or `id-version`, normalised fingerprint).

    The fingerprint is "" if the name has no fingerprint. Any other text, for example a path with "@", is returned
    whole.
    """
    bare, _, signer = name.rpartition("@")
    fingerprint = parse_fingerprint(signer)
    return (bare, fingerprint) if bare and fingerprint else (name, "")


def parse_fingerprint(text: str) -> str:
    """Normalise a fingerprint that a person typed. The result is "" if the text is no fingerprint.

    Letter case does not matter. Spaces, colons or hyphens may separate the digits.
    """
    digits = _SEPARATORS.sub("", text).lower()
    return group_fingerprint_digits(digits) if _DIGITS.fullmatch(digits) else ""


def group_fingerprint_digits(digits: str) -> str:
    """Format the 64 digits of a fingerprint as 16 groups of 4, joined by hyphens."""
    return "-".join(digits[start : start + 4] for start in range(0, 64, 4))


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version: its three numbers. Raises ValueError if the text is no version."""
    if not is_version(version):
        raise ValueError(f"not a version: {version!r}")
    return tuple(int(part) for part in version.split("."))


def is_file_name(text: str) -> bool:
    """Return whether a pack may contain a file with this name."""
    return (
        re.fullmatch(FILE_NAME_REGEX, text) is not None
        and not text.endswith(".")
        and _DEVICE.fullmatch(text) is None
        and text.lower() not in (MANIFEST_NAME, SIGNATURE_NAME)
    )


DRIVE_FOLDER: Final = "fieldray"
LEGACY_CPU_FILE_NAME: Final = "chest_resnet50_grayscale_fp32.tflite"
LEGACY_EDGETPU_FILE_NAME: Final = "chest_resnet50_grayscale_uint8_edgetpu.tflite"
_MAX_PACKS: Final = 100
_MAX_ENTRIES: Final = 10_000  # folders are searched repeatedly, and a hostile drive may hold any number of entries


def pack_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders of the packs on a drive, or the folder itself if it is a pack.

    On a drive, packs lie in the folder `fieldray`. At most 100 packs are returned, sorted by name. A legacy model
    (unsigned files of the dissertation) may lie in the drive's root, and then comes last. Raises OSError, for example
    if the drive is pulled out.
    """
    if is_pack(folder):
        return (folder,)
    inside = folder / DRIVE_FOLDER
    packs = pack_folders_inside(inside) if stat.S_ISDIR(_mode(inside)) else ()
    return (*packs, folder) if contains_legacy_model(folder) else packs


def pack_folders_inside(folder: Path) -> tuple[Path, ...]:
    """Return the folders of the packs directly inside a folder, sorted by name.

    At most 10,000 entries are examined, and at most 100 packs returned. Raises OSError.
    """
    with os.scandir(folder) as entries:
        seen = (entry for entry in itertools.islice(entries, _MAX_ENTRIES) if not entry.name.startswith("."))
        names = sorted(entry.name for entry in seen if entry.is_dir(follow_symlinks=False))
    packs = (folder / name for name in names if is_pack(folder / name))
    return tuple(itertools.islice(packs, _MAX_PACKS))


def is_pack(folder: Path) -> bool:
    """Return whether a folder contains a pack, recognised by the manifest file. Raises OSError."""
    return _is_file(folder / MANIFEST_NAME)


def contains_legacy_model(folder: Path, *, name: str = "") -> bool:
    """Return whether a folder contains a legacy model: the unsigned model files of the dissertation. Raises OSError.

    name  the only file name to look for; by default the CPU file and the Edge TPU file both count
    """
    names = (name,) if name else (LEGACY_CPU_FILE_NAME, LEGACY_EDGETPU_FILE_NAME)
    return any(_is_file(folder / known) for known in names)


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def _mode(path: Path) -> int:
    """Return the mode of a file without following links; 0 if the file does not exist."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


# ---- which pack a name means


PackOrigin = Literal["builtin", "installed", "drive"]
CandidateTrust = Literal["builtin", "trusted", "unknown_key", "legacy", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCandidate:
    """A pack that was found on this computer. The signature is verified; the other files are not.

    trust                        "broken": unreadable, or with an invalid signature; `pack_id`, `version` and `names`
                                 are then empty
    kind                         only a classifier screens images; packs of other kinds assist a classifier
    manifest                     the manifest of a classifier; None for other kinds
    problem                      the reason why `PackLibrary.load` would refuse the pack now, or None. Examples: an
                                 unknown key, an older version, another kind, the name of another signer's pack, a
                                 missing required pack
    is_namesake_of_shipped_pack  whether this pack of another signer has the id of a pack that ships with the program
    """

    folder: Path
    origin: PackOrigin
    trust: CandidateTrust
    kind: PackKind = "classifier"
    pack_id: str = ""
    version: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    manifest: Manifest | None = field(default=None, compare=False)  # identified by fingerprint and version
    problem: Reason | None = None
    is_namesake_of_shipped_pack: bool = False

    @property
    def pack_name(self) -> str:
        """`id-version`; for a broken pack the name of its folder."""
        return f"{self.pack_id}-{self.version}" if self.pack_id else self.folder.name

    @property
    def id_with_signer(self) -> str:
        """The pack's id with the fingerprint of its signer. Only this pack and its other versions have this name."""
        return name_with_signer(self.pack_id, is_signed=self.trust != "builtin", fingerprint=self.fingerprint)

    def has_name(self, name: str) -> bool:
        """Return whether the pack has this name: its id or `id-version`, with or without its signer.

        If several packs have the name, `packs_named` chooses the packs that a person means.
        """
        bare, signer = split_pack_name(name)
        return bare in (self.pack_id, self.pack_name) and signer in ("", self.fingerprint)

    @property
    def usability_rank(self) -> int:
        """How far the pack is from being usable; 0 is the best.

        0  the pack can be used
        1  the pack has a `problem`; a person may be able to allow the pack nevertheless
        2  the pack is unsigned (a legacy model), so a person must allow the pack
        3  the pack cannot screen
        """
        if not self.can_screen:
            return 3
        return 2 if self.trust == "legacy" else int(self.problem is not None)

    @property
    def can_screen(self) -> bool:
        """Whether the pack is a readable classifier.

        A confirmation by a person or a required pack may still be missing.
        """
        return self.trust != "broken" and self.kind == "classifier"


def packs_named(name: str, candidates: Iterable[PackCandidate]) -> tuple[PackCandidate, ...]:
    """Return the packs that a name means.

    name  id or `id-version`, optionally followed by `@` and the signer's fingerprint. A name without fingerprint never
          means a pack of another signer with the id of a shipped pack
    """
    _, signer = split_pack_name(name)
    called = (candidate for candidate in candidates if candidate.has_name(name))
    return tuple(candidate for candidate in called if signer or not candidate.is_namesake_of_shipped_pack)


def choose_candidate(candidates: Sequence[PackCandidate], *, name: Path | str) -> PackCandidate:
    """Return the pack meant by a path or name. Of several versions, the highest is returned.

    Packs that can be loaded are preferred, then packs that need a person's permission, then all others.

    name  the path or name, for messages

    Raises PackProblem: pack_not_found, pack_several, pack_several_signers.
    """
    if not candidates:
        raise PackProblem(reason("pack_not_found", name=name))
    least = min(candidate.usability_rank for candidate in candidates)
    packs = [candidate for candidate in candidates if candidate.usability_rank == least]
    if len({candidate.pack_id for candidate in packs}) > 1:
        raise PackProblem(reason("pack_several", names=", ".join(candidate.pack_name for candidate in packs)))
    if len({candidate.id_with_signer for candidate in packs}) > 1:
        first, second = packs[0], next(one for one in packs if one.id_with_signer != packs[0].id_with_signer)
        raise PackProblem(reason("pack_several_signers", first=first.id_with_signer, second=second.id_with_signer))
    return max(packs, key=version_preference_key)


def version_preference_key(candidate: PackCandidate) -> tuple[bool, tuple[int, ...]]:
    """Return the key by which the versions of a pack are sorted, the preferred version last.

    Versions without a `problem` are preferred. Of these, higher versions are preferred.
    """
    return candidate.problem is None, version_key(candidate.version) if candidate.version else ()
