"""Message texts about packs: their patients and performance, and why a pack cannot be used (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "for_ages": "For patients aged {youngest} to {oldest} years.",
    "for_any_age": "The pack states no age range.",
    "measured_own": "The pack was tested on {images} images from the hospital or hospitals of the training images "
                    "(internal test). Training used none of these test images. Area under the ROC curve: {auc} (95 % "
                    "confidence interval {low} to {high}).",
    "measured_elsewhere": "The pack was tested on {images} images of another hospital (external test). Area under "
                          "the ROC curve: {auc} (95 % confidence interval {low} to {high}).",
    "not_measured_elsewhere": "There was no external test, so the area under the ROC curve at another hospital is "
                              "unknown.",
    "pack_not_chosen": "No pack was chosen. Name a pack with --pack ID, or set a default with: fieldray packs "
                       "default ID",
    "pack_twice": "This command works with only one pack, but several packs were named. Name one pack: --pack ID",
    "default_gone": "The default pack {name} is no longer available. Choose another pack.",
    "no_pack": "No model pack was found. Plug in a drive with packs, or name the folder of a pack with --pack.",
    "pack_not_found": "No pack named {name} was found. List the packs with: fieldray packs list",
    "pack_no_manifest": "The folder {path} is not a pack and contains no pack: the file {name} is missing.",
    "pack_is_file": "{path} is a file, but a pack is a folder. Name the folder with the file {name}. Unpack a zip "
                    "file first.",
    "pack_unreadable": "The pack cannot be read: {detail}.",
    "pack_incomplete": "The file {name} is missing from the pack.",
    "pack_unsigned": "The pack has no signature.",
    "pack_bad_signature": "The signature does not match: the pack was changed after signing. Nothing was loaded.",
    "pack_tampered": "The file {name} differs from the file that was signed. Nothing was loaded.",
    "pack_unknown_key": "The pack is signed with a key that is not trusted yet: {fingerprint}. Compare this "
                        "fingerprint with the fingerprint that the signer publishes. Trust the key only if the two "
                        "fingerprints are equal.",
    "pack_another_there": "The pack {pack} was removed, or replaced by another pack. Choose a pack again.",
    "other_pack_gone": "The drive with the pack {pack} was removed. The next run does not use this pack.",
    "other_pack_apart": "{pack} and {others} are for patients of different ages, so one run cannot use these packs "
                        "together.",
    "pack_older": "Version {version} of this pack is older than version {seen}, which comes with the program "
                  "or was used on this computer before.",
    "pack_content_changed": "{pack} differs from the pack that ran on this computer before: the ID, version and "
                            "signer are equal, but the content differs. Ask the signer which of the two packs is "
                            "right.",
    "pack_manifest": "The pack's manifest is not valid: {detail}.",
    "pack_bad_name": "The pack contains a file name that is not allowed: {name}.",
    "pack_too_large": "The pack's file {name} is too large: {size_mb} MB. At most {limit_mb} MB are allowed.",
    "pack_newer_format": "The pack needs a newer version of the program (pack format {version}).",
    "pack_older_format": "The pack is in an older format ({version}), which this program does not read. Ask the "
                         "maker of the pack for a new version.",
    "pack_not_classifier": "This pack (kind: {kind}) does not screen images itself. Other packs use this pack.",
    "pack_companion_missing": "This pack needs the pack {companion}, which was not found.",
    "pack_companion_older": "This pack needs a newer version of the pack {companion}. The version found is {seen}.",
    "pack_companion_unusable": "This pack needs the pack {companion}, which cannot be used. {detail}",
    "pack_legacy": "This legacy model is unsigned and was not verified, so the model is used only if you confirm. "
                   "The operating point and the accuracy are unknown. The model has one output for each class, and "
                   "the larger output decides the class.",
    "pack_legacy_no_cpu": "The legacy model has only a file for the Edge TPU ({found}). Copy the file for the CPU "
                          "({missing}) into the same folder.",
    "pack_namesake": "This pack has the same name as a pack that is known on this computer ({pack}), but a different "
                     "signer. The pack is used only if you confirm.",
    "pack_namesake_shipped": "This pack has the same name as a pack that comes with the program ({pack}), but a "
                             "different signer. The pack is used only if you confirm.",
    "pack_several_signers": "Several signers have packs with this name. Name one pack: {first} or {second}",
    "pack_companion_other_signer": "This pack needs the pack {companion}, signed by the same signer or supplied "
                                   "with the program. The pack {companion} that was found is signed with another "
                                   "key: {fingerprint}.",
    "pack_several": "Several packs were found: {names}. Name one of these packs.",
    "trust_damaged": "The list of trusted keys and versions cannot be read: {path} ({detail}). No signed pack is "
                     "used until this file is repaired. If you delete the file, you must trust the keys again, and "
                     "the program no longer detects older versions of packs.",
    "pack_in_the_way": "Nothing was written: {path} is not a pack signed with this key, or contains files that are "
                       "not part of the pack. {detail} Move or delete the folder.",
    "pack_other_signer": "The pack in this folder is signed with the key {there}. The new pack is signed with the key "
                         "{here}.",
    "pack_not_of_it": "The file {name} is not part of the pack.",
    "pack_passed_over": "The pack in {folder} cannot be used, so another pack is used. {detail}",
    "drive_gone": "The drive was removed during reading, or the drive is failing. Nothing was loaded. Plug the drive "
                  "in again. If the error happens again, use another drive.",
    "fingerprint": "This is not a key fingerprint: {text}. A fingerprint has 64 characters: digits 0-9 and letters "
                   "a-f.",
    "signing_key": "The signing key {path} cannot be used: {detail}.",
    "signing_key_open": "Other users of this computer can read the signing key {path} and sign packs in your name. "
                        "Remove the rights of other users (chmod 600), or delete the key: the next pack is then "
                        "signed with a new key.",
    "pack_weak_key": "The signing key is invalid (weak key): anybody can make a signature for any pack with this "
                     "key. Nothing was loaded.",
}
# fmt: on
