"""The program's settings: one table, from which the defaults, the settings file and the dialog are made.

To add a setting, add a row. The file is `settings.json` in the user's data folder. A key or value in the file that this
version does not know is reported and replaced by the default. The unknown key or value stays in the file, because a
newer version may know it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.backends import device_choices
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.paths import data_folder, translation_catalogue_paths
from fieldray.persistence import exclusive_write_access, require_regular_file, write_atomically
from fieldray.reasons import Reason, reason
from fieldray.typed_json import parse_json

_MAX_FOLDERS: Final = 8
Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting, as a row of the table.

    allowed               the allowed texts, or a function that returns them; empty for any text
    min_value, max_value  the limits of a number
    label                 the text in the dialog
    """

    key: str
    label: str
    default: Value
    allowed: Sequence[str] | Callable[[], Sequence[str]] = ()
    min_value: float = 0
    max_value: float = 0
    is_in_dialog: bool = True

    @property
    def choices(self) -> Sequence[str]:
        """The texts that this setting allows now, in the order of the dialog."""
        return self.allowed() if callable(self.allowed) else self.allowed

    def problem(self, value: object) -> Reason | None:
        """Return the reason why `value` is not allowed; None if `value` is allowed."""
        if type(value) is not type(self.default):
            return reason("setting_type", key=self.key, value=value, kind=type(self.default).__name__)
        if self.choices and value not in self.choices:
            return reason("setting_choice", key=self.key, value=value, known=", ".join(self.choices))
        if self.max_value > self.min_value and not self.min_value <= float(str(value)) <= self.max_value:
            return reason(
                "setting_range", key=self.key, value=value, low=f"{self.min_value:g}", high=f"{self.max_value:g}"
            )
        return None


def language_choices() -> tuple[str, ...]:
    """Return the allowed languages: the language of the system, English, and the languages of the catalogues."""
    return tuple(dict.fromkeys(("system", "en", *translation_catalogue_paths())))


# fmt: off
SETTING_ROWS: Final[tuple[SettingRow, ...]] = (
    SettingRow(key="language", label="Language", default="system", allowed=language_choices),
    SettingRow(key="theme", label="Appearance", default="system", allowed=("system", "light", "dark")),
    SettingRow(key="hide_patient", label="Hide patient names and IDs", default=False),
    SettingRow(key="keep_folders", label="Remember recent folders", default=True),
    SettingRow(key="reader", label="Your name and role, for the verdicts in reports", default=""),
    SettingRow(key="heat_map_opacity", label="Heat map opacity, percent", default=45, min_value=0, max_value=100),
    SettingRow(key="device", label="Device that runs the model", default="auto", allowed=device_choices),
    SettingRow(key="policy", label="Device that runs the model if an Edge TPU (Coral USB Accelerator) is connected",
        default="accelerator", allowed=("accelerator", "fastest", "both")),
    SettingRow(key="edgetpu_clock", label="Clock speed of the Edge TPU (highest: risk of skin burns)",
        default="std", allowed=("std", "max")),
    SettingRow(key="decoders", label="Files read at the same time (0: one per CPU core)", default=0,
        min_value=0, max_value=64),
    SettingRow(key="decode_timeout_s", label="Time limit for reading one file, seconds", default=60,
        min_value=5, max_value=600),
    SettingRow(key="decode_memory_mb", label="Memory limit for reading one file, megabytes", default=2048,
        min_value=512, max_value=16384),
    SettingRow(key="keep_previews", label="Keep a small preview of each image with its result", default=True),
    SettingRow(key="verify_files", label="Verify full file contents when a run resumes (slower)", default=False),
    SettingRow(key="pack", label="Default pack", default="", is_in_dialog=False),
    SettingRow(key="operating_point", label="Operating point of the default pack", default="", is_in_dialog=False),
    SettingRow(key="window", label="Position and size of the window", default="", is_in_dialog=False),
    SettingRow(key="panes", label="Widths of the list, image and result panels", default="", is_in_dialog=False),
    SettingRow(key="by_patient", label="List the images of a patient together", default=True, is_in_dialog=False),
    SettingRow(key="folded", label="Collapsed sections of the result panel", default="", is_in_dialog=False),
    SettingRow(key="folders", label="Recent folders, the newest first", default="", is_in_dialog=False),
)
# fmt: on
BASIC_SETTING_KEYS: Final = (
    "language",
    "theme",
    "hide_patient",
    "keep_folders",
    "reader",
    "heat_map_opacity",
)  # the others are advanced
ROW_BY_KEY: Final[Mapping[str, SettingRow]] = {row.key: row for row in SETTING_ROWS}


class Settings:
    """The current values of the program's settings.

    Indexing with a key returns the value, `set` checks and changes a value, and `save` writes the file.
    """

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._values: dict[str, Value] = {}
        self._changed: dict[str, Value] = {}
        for key, value in (values or {}).items():
            self.set(key, value)

    def __getitem__(self, key: str) -> Value:
        return self._values.get(key, ROW_BY_KEY[key].default)

    def integer(self, key: str) -> int:
        """Return the value of a setting whose type is a whole number."""
        return int(self[key])

    def set(self, key: str, value: Value, *, is_from_file: bool = False) -> None:
        """Change one value. Raises UsageProblem for a value that the row does not allow, KeyError for an unknown key.

        is_from_file  whether the value comes from the settings file, so that `save` need not write it
        """
        problem = ROW_BY_KEY[key].problem(value)
        if problem:
            raise UsageProblem(problem)
        self._values[key] = value
        if not is_from_file:
            self._changed[key] = value

    def choose_pack(self, name: str, operating_point: str = "") -> None:
        """Make a pack this site's default, which screens all images for which nobody chose a pack.

        name             pack as for the option `--pack`: ID or ID-VERSION, and @FINGERPRINT of the signer; "" for none
        operating_point  name of the operating point; "" for the pack's first operating point
        """
        self.set("pack", name)
        self.set("operating_point", operating_point)

    @property
    def recent_folders(self) -> tuple[str, ...]:
        """The opened folders, the last opened folder first; empty if the settings forbid remembering folders."""
        with contextlib.suppress(ValueError):
            return parse_json(str(self["folders"]), tuple[str, ...]) if self["keep_folders"] else ()
        return ()

    def remember_folders(self, opened: Sequence[str]) -> None:
        """Store the opened folders, if the settings allow this. An empty sequence deletes all stored folders."""
        kept = (*opened, *self.recent_folders) if opened and self["keep_folders"] else ()
        self.set("folders", json.dumps(list(dict.fromkeys(kept))[:_MAX_FOLDERS]))

    def save(self, path: Path | None = None) -> None:
        """Write the values changed since the last call into the file. All other content of the file stays unchanged.

        path  the settings file; None for `default_settings_path`

        Raises StorageProblem, also if a link is in place of the file, or if the file cannot be read before the change.
        """
        path = path or default_settings_path()
        require_regular_file(path)
        with exclusive_write_access(path):
            changed, self._changed = self._changed, {}
            try:
                content = {**_content(path), **changed}
                write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode())
            except BaseException as error:
                self._changed = {**changed, **self._changed}
                if isinstance(error, OSError):
                    detail = error.strerror or type(error).__name__
                    raise StorageProblem(reason("settings_not_saved", path=path, detail=detail)) from error
                raise


def _content(path: Path) -> dict[str, object]:
    """Return the content of the settings file; empty if the file is missing or invalid. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
        values = json.loads(path.read_text(encoding="utf-8"))
        return values if isinstance(values, dict) else {}
    return {}


def default_settings_path() -> Path:
    """Return the path of the settings file."""
    return data_folder() / "settings.json"


def load_settings(path: Path | None = None) -> tuple[Settings, tuple[Reason, ...]]:
    """Read the settings file.

    path  the settings file; None for `default_settings_path`

    Returns the settings, and the problems found; an invalid value is replaced by its default.
    """
    path = path or default_settings_path()
    settings, problems = Settings(), []
    try:
        require_regular_file(path)
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return settings, ()
    except StorageProblem as problem:
        return settings, (problem.reason,)
    except OSError as error:
        detail = error.strerror or type(error).__name__
        return settings, (reason("settings_unreadable", path=path, detail=detail),)
    except (ValueError, RecursionError) as error:
        return settings, (reason("settings_unreadable", path=path, detail=type(error).__name__),)
    for key, value in values.items() if isinstance(values, dict) else ():
        try:
            settings.set(key, value, is_from_file=True)
        except (KeyError, UsageProblem) as error:
            problems.append(getattr(error, "reason", reason("setting_unknown", key=key)))
    return settings, tuple(problems)
