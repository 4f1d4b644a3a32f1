from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.settings import SETTING_ROWS, SettingRow, Settings, default_settings_path, load_settings


def test_every_default_is_allowed() -> None:
    assert [row.key for row in SETTING_ROWS if row.problem(row.default)] == []


def test_saved_settings_are_loaded(tmp_path: Path) -> None:
    settings = Settings({"decoders": 3, "language": "uk"})
    settings.save(tmp_path / "settings.json")
    again, problems = load_settings(tmp_path / "settings.json")
    assert (again["decoders"], again["language"], again["theme"], problems) == (3, "uk", "system", ())


def test_unknown_settings_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    written = {"of_a_newer_version": [1, {"a": None}], "theme": "sepia", "decoders": 2}
    path.write_text(json.dumps(written))
    settings, problems = load_settings(path)
    assert (settings["theme"], len(problems)) == ("system", 2)
    settings.set("language", "en")
    settings.save(path)
    assert json.loads(path.read_text()) == {**written, "language": "en"}
    settings.set("theme", "dark")
    settings.save(path)
    assert json.loads(path.read_text())["theme"] == "dark"


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, '{"decoders": ', "[1]", "\ud7ff", '{"decoders": 1' + "0" * 5000 + "}"]
)
def test_an_invalid_settings_file_gives_the_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text, encoding="utf-8")
    settings, _ = load_settings(tmp_path / "settings.json")
    assert settings["decoders"] == 0


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(UsageProblem):
        Settings({"decoders": 65})


def test_saving_changes_only_the_changed_settings_in_the_file(tmp_path: Path) -> None:
    """For example, a window is open while a command sets the default pack."""
    path = tmp_path / "settings.json"
    Settings({"pack": "old", "theme": "dark"}).save(path)
    (window, _), (elsewhere, _) = load_settings(path), load_settings(path)
    elsewhere.choose_pack("new")
    elsewhere.save(path)
    for opacity in (60, 70):
        window.set("heat_map_opacity", opacity)
        window.save(path)
        assert json.loads(path.read_text())["pack"] == "new"
        elsewhere.set("heat_map_opacity", 10)
        elsewhere.save(path)
    window.set("language", "uk")  # the slider was saved before and is not changed back
    window.save(path)
    assert [load_settings(path)[0][key] for key in ("pack", "theme", "heat_map_opacity", "language")] == [
        "new",
        "dark",
        10,
        "uk",
    ]


def test_a_setting_that_could_not_be_saved_is_saved_next_time(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    settings = Settings({"theme": "dark"})
    path.mkdir()
    with pytest.raises(StorageProblem):
        settings.save(path)
    path.rmdir()
    settings.save(path)
    assert load_settings(path)[0]["theme"] == "dark"


class _FailingPath(type(Path())):  # type: ignore[misc]
    """A file on a disk that fails while it is read."""

    def read_text(self, *_: object, **__: object) -> str:
        raise OSError(errno.EIO, "input/output error")


def test_an_unreadable_settings_file_is_not_replaced(tmp_path: Path) -> None:
    path = _FailingPath(tmp_path / "settings.json")
    path.write_text('{"decoders": 5}')
    settings, problems = load_settings(path)
    assert [problem.code for problem in problems] == ["settings_unreadable"]
    settings.set("theme", "dark")
    with pytest.raises(StorageProblem) as caught:
        settings.save(path)
    assert caught.value.reason.code == "settings_not_saved"
    settings.save(tmp_path / "settings.json")  # the file can be read again
    assert json.loads((tmp_path / "settings.json").read_text()) == {"decoders": 5, "theme": "dark"}


@pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")
def test_a_link_instead_of_the_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"decoders": 5}')
    (tmp_path / "settings.json").symlink_to(tmp_path / "other")
    settings, problems = load_settings(tmp_path / "settings.json")
    assert (settings["decoders"], [problem.code for problem in problems]) == (0, ["not_plain"])
    with pytest.raises(StorageProblem):
        settings.save(tmp_path / "settings.json")
    assert (tmp_path / "other").read_text() == '{"decoders": 5}'


@pytest.mark.parametrize("row", SETTING_ROWS, ids=lambda row: row.key)
def test_every_setting_keeps_its_limits(row: SettingRow) -> None:
    is_free_text = isinstance(row.default, str) and not row.choices
    wrong: list[object] = [None, [row.default], 1 if is_free_text else "sepia" if row.choices else "1"]
    if isinstance(row.default, bool):
        wrong.append(1)
    elif isinstance(row.default, int):
        wrong += [True, row.min_value - 1, row.max_value + 1, float(row.default)]
    assert [value for value in wrong if row.problem(value) is None] == []
    numbers = [True, False] if isinstance(row.default, bool) else [int(row.min_value), int(row.max_value)]
    right = row.choices or (["", "any"] if is_free_text else numbers)
    assert [value for value in right if row.problem(value) is not None] == []


def test_an_unknown_key_raises_a_key_error() -> None:
    with pytest.raises(KeyError):
        Settings({"of_nobody": 1})
    with pytest.raises(KeyError):
        Settings()["of_nobody"]


def test_a_number_is_read_as_a_number() -> None:
    assert Settings({"decoders": 3}).integer("decoders") == 3


def test_without_a_path_the_file_is_in_the_users_data(home: Path) -> None:
    assert load_settings()[1] == ()
    Settings({"theme": "dark"}).save()
    assert default_settings_path() == home / "settings.json"
    assert load_settings()[0]["theme"] == "dark"
