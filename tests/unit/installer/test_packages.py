"""The .deb and the portable archive, made from a folder that replaces the frozen program."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import build
import contents
import icons
import make_deb
import make_portable
from fieldray.inference.coral_status import STATE_BY_USB_ID

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="packages for Linux")
needs_dpkg = pytest.mark.skipif(
    not (shutil.which("dpkg-deb") and shutil.which("objdump")), reason="needs dpkg-deb and objdump"
)


@pytest.fixture(autouse=True)
def one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    folder = tmp_path / "fieldray"
    (folder / "_internal").mkdir(parents=True)
    (folder / "_internal" / "база.txt").write_text("x" * 3000)
    for name in contents.PROGRAMS:
        shutil.copyfile("/bin/true", folder / name)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "icons"
    folder.mkdir()
    for side in icons.SIDES:
        (folder / f"fieldray-{side}.png").write_bytes(b"png")
    return folder


def test_the_package_has_its_files_and_fields(tmp_path: Path, frozen: Path, pictures: Path) -> None:
    root = tmp_path / "root"
    make_deb.lay_out(root, frozen, icons=pictures)
    made = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    assert made >= {
        "opt/fieldray/fieldray",
        "opt/fieldray/fieldray-window",
        "opt/fieldray/fieldray-worker",
        "opt/fieldray/_internal/база.txt",
        "usr/bin/fieldray",
        "usr/lib/udev/rules.d/60-fieldray-coral.rules",
        "usr/share/applications/fieldray.desktop",
        "usr/share/icons/hicolor/48x48/apps/fieldray.png",
        "usr/share/icons/hicolor/scalable/apps/fieldray.svg",
        "usr/share/mime/packages/fieldray.xml",
        "usr/share/doc/fieldray/copyright",
    }
    assert (root / "usr/bin/fieldray").resolve() == root / "opt/fieldray/fieldray"


@needs_dpkg
def test_two_builds_give_the_same_package(tmp_path: Path, frozen: Path, pictures: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(make_deb.build(frozen, tmp_path / name, icons=pictures))
        os.utime(frozen / "_internal" / "база.txt")  # another day
    assert made[0].read_bytes() == made[1].read_bytes()
    assert made[0].name == f"fieldray_{contents.version()}_amd64.deb"
    assert [path.name for path in (tmp_path / "one").iterdir()] == [made[0].name]
    shown = subprocess.run(["dpkg-deb", "--field", made[0]], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^Depends: libc6 \(>= [\d.]+\)$", shown, re.MULTILINE)  # all that /bin/true needs
    listed = subprocess.run(["dpkg-deb", "--contents", made[0]], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    assert len([line for line in listed.splitlines() if line.startswith("-rwx")]) == len(contents.PROGRAMS)


def test_the_description_names_the_purpose() -> None:
    text = make_deb.control_text(version="1.2.3", depends=["libc6 (>= 2.35)", "zlib1g"], installed_kb=42)
    fields = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(" "))
    assert (fields["Version"], fields["Installed-Size"]) == ("1.2.3", "42")
    assert fields["Depends"] == "libc6 (>= 2.35), zlib1g"
    assert "Research use only. Not for diagnostic use." in text
    assert text.endswith("\n")


@pytest.mark.parametrize("name", make_deb.SCRIPTS)
def test_the_scripts_are_valid(name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(make_deb.maintainer_script(name, installed_kb=1000))
    assert "@" not in script.read_text()
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def preinst(tmp_path: Path, *, installed_kb: int, language: str = "C") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "preinst"
    script.write_text(make_deb.maintainer_script("preinst", installed_kb=installed_kb), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "LANG": language}
    return subprocess.run(
        ["sh", script, "install"], capture_output=True, text=True, env=environment, check=False, encoding="utf-8"
    )


def test_a_full_disk_is_reported_in_both_languages(tmp_path: Path) -> None:
    petabyte_kb = 10**12
    english = preinst(tmp_path, installed_kb=petabyte_kb)
    ukrainian = preinst(tmp_path, installed_kb=petabyte_kb, language="uk_UA.UTF-8")
    assert english.returncode == ukrainian.returncode == 1
    # 10**12 KB and the spare 20 MB, in MB of 1024 KB
    needed = (10**12 + 20 * 1024) // 1024
    assert english.stderr.startswith(f"Fieldray: the disk is too full: {needed} MB are needed, ")
    assert ukrainian.stderr.startswith(f"Fieldray: на диску замало місця: потрібно {needed} МБ, ")


def test_with_enough_disk_space_it_installs(tmp_path: Path) -> None:
    done = preinst(tmp_path, installed_kb=1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_menu_entry_has_both_languages_and_starts_the_window() -> None:
    entry = menu_entry((contents.ROOT / "installer/debian/fieldray.desktop").read_text(encoding="utf-8"))
    assert entry["exec"] == f"/{make_deb.INSTALL_FOLDER}/fieldray-window %F"
    assert entry["icon"] == "fieldray"
    assert set(entry["mimetype"].strip(";").split(";")) == {"application/dicom", "inode/directory"}
    for key in ("genericname", "comment", "keywords"):
        assert re.search("[а-щьюяґєії]", entry[f"{key}[uk]"])
    assert "Not for diagnostic use" in entry["comment"]
    assert "Не для діагностики" in entry["comment[uk]"]


@pytest.mark.skipif(not shutil.which("desktop-file-validate"), reason="needs desktop-file-validate")
def test_the_menu_entry_is_valid() -> None:
    entry = contents.ROOT / "installer/debian/fieldray.desktop"
    done = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_build_uses_the_given_time() -> None:
    made = build.reproducible_environment({"SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": "random"})
    assert (made["SOURCE_DATE_EPOCH"], made["PYTHONHASHSEED"], made["TZ"]) == ("1700000000", "0", "UTC")


def menu_entry(text: str) -> Mapping[str, str]:
    parser = configparser.RawConfigParser(delimiters="=")
    parser.read_string(text)
    return parser["Desktop Entry"]


def test_the_udev_rule_has_both_usb_ids_of_the_edgetpu() -> None:
    text = (contents.ROOT / "installer/60-fieldray-coral.rules").read_text(encoding="utf-8")
    rules = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [re.findall(r'ATTRS\{(?:idVendor|idProduct)\}=="([0-9a-f]{4})"', rule) for rule in rules]
    assert {(int(vendor, 16), int(product, 16)) for vendor, product in found} == set(STATE_BY_USB_ID)
    assert all('GROUP="plugdev"' in rule and 'MODE="0664"' in rule for rule in rules)


def test_the_portable_archive_has_its_files(tmp_path: Path, frozen: Path, pictures: Path) -> None:
    made = make_portable.build(frozen, tmp_path, icons=pictures)
    with tarfile.open(made) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
        archive.extractall(tmp_path / "out", filter="data")
    top = f"fieldray-{contents.version()}-linux-x86_64"
    assert {name.partition("/")[0] for name in entries} == {top}
    assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, 1_700_000_000)}
    programs = {name for name, entry in entries.items() if entry.isfile() and entry.mode & 0o100}
    assert programs == {f"{top}/{name}" for name in (*contents.PROGRAMS, "add-to-menu")}
    readme = (tmp_path / "out" / top / "README.txt").read_text(encoding="utf-8")
    assert "Not for diagnostic use." in readme
    assert "Не для діагностики." in readme


def test_the_portable_program_adds_and_removes_its_menu_entry(tmp_path: Path, frozen: Path, pictures: Path) -> None:
    folder = tmp_path / "Мої програми & 100% $HOME"
    make_portable.lay_out(folder, frozen, icons=pictures)
    home = tmp_path / "дім"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}

    def run(*arguments: str) -> str:
        command = ["sh", folder / "add-to-menu", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "added to the menu" in run()
    entry = home / ".local/share/applications/fieldray.desktop"
    # quoted as the desktop entry specification asks: a backslash before $, doubled because the value is a string
    wanted = f"{tmp_path}/Мої програми & 100%% \\\\$HOME/fieldray-window"
    assert menu_entry(entry.read_text(encoding="utf-8"))["exec"] == f'"{wanted}" %F'
    assert "removed from" in run("--remove")
    assert not entry.exists()
    assert (folder / "fieldray").exists()
