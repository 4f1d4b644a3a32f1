"""Test Setup and the uninstaller silently in a new Windows environment (wine), with a small stand-in for Fieldray.

    python installer/windows/smoke_test.py [--keep FOLDER] [--only WORDS]

Files and registry are compared before and after each step. Prints a line for each step. Exit code 0 if all steps
succeeded, 1 if a step failed, 2 if wine or NSIS is not installed. The step with the full disk needs root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import build_setup
from wine import Snapshot, Wine

_STAND_IN: Final = """Unicode true
Target amd64-unicode
SilentInstall silent
RequestExecutionLevel user
OutFile {name}
Section
Sleep 30000
SectionEnd
"""
_PROGRAM: Final = "AppData/Local/Programs/Fieldray"
_RESULTS: Final = "AppData/Local/fieldray"
_REMEMBERED: Final = r"Software\\Microsoft\\Windows\\CurrentVersion\\Uninstall\\Fieldray"


class SetupTest:
    """The environment of the test: the wine prefix, two versions of Setup, and the files that each should install."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.payloads = {version: _payload(folder / f"payload-{version}", version) for version in ("1.0", "1.1")}
        self.setups = {
            version: build_setup.build(payload, folder / "out", version=version)
            for version, payload in self.payloads.items()
        }
        self.wine = Wine(folder / "prefix")
        self.home = self.wine.home
        self.program = self.home / _PROGRAM
        self.wine.set_windows_version("win10")
        self.fresh: Snapshot = self.wine.snapshot()

    def setup(self, version: str, *arguments: str, expect: int = 0) -> str:
        """Run Setup of the version `version` silently, and return the output.

        Raises AssertionError if the exit code is not `expect`.
        """
        code, said = self.wine.run(self.setups[version], "/S", *arguments)
        assert code == expect, f"Setup {version} {' '.join(arguments)} ended with {code}, not {expect}: {said}"
        return said

    def remove(self, *arguments: str, program: Path | None = None, expect: int = 0) -> str:
        """Run the uninstaller of the installed program silently, and return the output.

        `program` is the folder of the program; None for the default folder. Raises AssertionError if the exit code is
        not `expect`.
        """
        program = program or self.program
        where = "C:\\" + str(program.relative_to(self.wine.drive)).replace("/", "\\")
        code, said = self.wine.run(program / "uninstall.exe", "/S", *arguments, f"_?={where}")
        assert code == expect, f"the uninstaller ended with {code}, not {expect}: {said}"
        if not expect:  # with _?= the uninstaller cannot delete itself
            (program / "uninstall.exe").unlink(missing_ok=True)
            program.rmdir()
        return said

    def expect_program(self, version: str, program: Path | None = None, *, more: frozenset[str] = frozenset()) -> None:
        """Raise AssertionError unless exactly the files of the version `version`, and `more`, are installed.

        Contents are compared, too. `program` is the folder of the program; None for the default folder.
        """
        program, payload = program or self.program, self.payloads[version]
        wanted = {path.relative_to(payload).as_posix() for path in payload.rglob("*") if path.is_file()}
        found = {path.relative_to(program).as_posix() for path in program.rglob("*") if path.is_file()}
        assert found == wanted | {"uninstall.exe", "install.ini"} | more, found ^ wanted
        for name in wanted:
            assert (program / name).read_bytes() == (payload / name).read_bytes(), name
        beside = {path.name for path in program.parent.iterdir()} & {"Fieldray.new", "Fieldray.old"}
        assert not beside, beside

    @contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """Raise AssertionError if the block has changed a file or a registry key."""
        before = self.wine.snapshot()
        yield
        assert before.changes(self.wine.snapshot()) == (set(), set()), before.changes(self.wine.snapshot())


def _payload(folder: Path, version: str) -> Path:
    folder.mkdir()
    for name in build_setup.PROGRAMS:
        script = folder / "stand-in.nsi"
        script.write_text(_STAND_IN.format(name=name), encoding="utf-8")
        subprocess.run([str(build_setup.find_makensis()), "-V1", str(script)], check=True)
        script.unlink()
    inside = folder / "_internal"
    files = {
        "base_library.zip": version,
        "знімки/файл.txt": "a name that is not Latin",
        "PySide6/Qt/lib/a$b ${c}.txt": "a name with what scripts use",
        "/".join(["long" * 10] * 3) + "/end.txt": "a long path",
        f"only-in-{version}/file.txt": version,
    }
    for name, text in files.items():
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_text(text, encoding="utf-8")
    (inside / "large.bin").write_bytes(os.urandom(600_000))
    return folder


# ---- the steps, each of which continues from the result of the step before


def old_windows_is_refused(world: SetupTest) -> None:
    world.wine.set_windows_version("win7")
    with world.nothing_changes():
        assert "64-bit Windows 10" in world.setup("1.0", expect=6)
    world.wine.set_windows_version("win10")


def a_first_install_changes_its_own_places_only(world: SetupTest) -> None:
    world.setup("1.0")
    world.expect_program("1.0")
    paths, keys = world.fresh.changes(world.wine.snapshot())
    home = world.home.relative_to(world.wine.drive).as_posix()
    menu = f"{home}/AppData/Roaming/Microsoft/Windows/Start Menu/Programs/Fieldray.lnk"
    strange = {path for path in paths if not f"{path}/".startswith(f"{home}/AppData/Local/Programs/")} - {menu}
    assert menu in paths
    assert not strange, strange
    assert keys == {f"user:{_REMEMBERED}"}, keys
    values = dict(line.partition("=")[::2] for line in world.wine.snapshot().registry[f"user:{_REMEMBERED}"])
    assert values['"DisplayVersion"'] == '"1.0"'
    assert values['"InstallLocation"'].endswith('Programs\\\\Fieldray"')


def a_running_program_is_noticed(world: SetupTest) -> None:
    window = world.wine.start(world.program / "fieldray-window.exe")
    time.sleep(5)
    code, said = _while_running(world, world.setups["1.1"], "/S")
    assert (code, "running" in said) == (3, True), (code, said)
    code, said = _while_running(world, world.program / "uninstall.exe", "/S", f"_?={_windows_path(world)}")
    assert (code, "running" in said) == (3, True), (code, said)
    assert window.poll() is None
    world.wine.end()
    window.wait(60)
    world.expect_program("1.0")


def _windows_path(world: SetupTest) -> str:
    return "C:\\" + str(world.program.relative_to(world.wine.drive)).replace("/", "\\")


def _while_running(world: SetupTest, program: Path, *arguments: str) -> tuple[int, str]:
    done = world.wine.call(str(program), *arguments, timeout_s=120)
    return done.returncode, done.stdout.strip()


def an_upgrade_leaves_nothing_old(world: SetupTest) -> None:
    results = world.home / _RESULTS
    results.mkdir(parents=True)
    (results / "results.db").write_text("the user's")
    (world.program / "mine.txt").write_text("put here by the user")
    world.setup("1.1", "/DESKTOP")
    world.expect_program("1.1", more=frozenset({"mine.txt"}))
    (world.program / "mine.txt").unlink()
    assert not (world.program / "_internal" / "only-in-1.0").exists()
    assert (world.home / "Desktop" / "Fieldray.lnk").exists()
    assert '"DisplayVersion"="1.1"' in world.wine.snapshot().registry[f"user:{_REMEMBERED}"]


def installing_again_changes_nothing(world: SetupTest) -> None:
    with world.nothing_changes():
        world.setup("1.1")


def removing_keeps_the_results(world: SetupTest) -> None:
    world.remove()
    results = (world.home / _RESULTS).relative_to(world.wine.drive).as_posix()
    paths, keys = world.fresh.changes(world.wine.snapshot())
    programs = results.replace("fieldray", "Programs")
    assert paths - {programs} == {results, f"{results}/results.db"}, paths
    assert keys == set(), keys


def removing_takes_the_results_when_asked(world: SetupTest) -> None:
    world.setup("1.0")
    world.remove("/REMOVERESULTS")
    assert not (world.home / _RESULTS).exists()


def the_ordinary_uninstaller_takes_itself_away(world: SetupTest) -> None:
    world.setup("1.0")
    (world.program / "mine.txt").write_text("put here by the user")
    world.wine.run(world.program / "uninstall.exe", "/S")
    assert [path.name for path in world.program.iterdir()] == ["mine.txt"]
    (world.program / "mine.txt").unlink()
    world.program.rmdir()


def everyone_gets_it_when_asked(world: SetupTest) -> None:
    before = world.wine.snapshot()
    world.setup("1.0", "/ALLUSERS")
    program = world.wine.drive / "Program Files" / "Fieldray"
    world.expect_program("1.0", program)
    _paths, keys = before.changes(world.wine.snapshot())
    assert keys == {f"system:{_REMEMBERED}"}, keys
    assert (world.wine.drive / "ProgramData/Microsoft/Windows/Start Menu/Programs/Fieldray.lnk").exists()
    world.remove(program=program)
    assert before.changes(world.wine.snapshot()) == (set(), set()), before.changes(world.wine.snapshot())


def other_folders_are_taken_or_refused(world: SetupTest) -> None:
    clinic = world.wine.drive / "Клініка №1" / "Програми"
    world.setup("1.0", "/D=C:\\Клініка №1\\Програми\\Fieldray")
    world.expect_program("1.0", clinic / "Fieldray")
    world.remove(program=clinic / "Fieldray")
    shutil.rmtree(clinic.parent)
    foreign = world.wine.drive / "Foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("not ours")
    with world.nothing_changes():
        assert "contains other files" in world.setup("1.0", "/D=C:\\Foreign", expect=5)
        assert "too long" in world.setup("1.0", "/D=C:\\" + "x" * 130, expect=5)
        assert "with its drive" in world.setup("1.0", "/D=C:\\", expect=5)
    shutil.rmtree(foreign)


def the_runtime_of_the_edgetpu_is_taken_from_beside_setup(world: SetupTest) -> None:
    beside = world.folder / "out" / "edgetpu-runtime"
    beside.mkdir()
    (beside / "edgetpu.dll").write_text("MZ, but no library")
    with world.nothing_changes():
        assert "64-bit Windows on Intel and AMD" in world.setup("1.0", expect=8)
    shutil.copy(world.wine.drive / "windows" / "system32" / "zlib1.dll", beside / "edgetpu.dll")  # a 64-bit library
    world.setup("1.0")
    world.expect_program("1.0", more=frozenset({"edgetpu.dll"}))
    shutil.rmtree(beside)
    world.setup("1.1")
    world.expect_program("1.1", more=frozenset({"edgetpu.dll"}))


def a_disk_without_room_leaves_the_old_program(world: SetupTest) -> None:
    if os.geteuid() != 0:
        raise NotTried("needs root to mount a small disk")
    with _small_disk(world, "e", "size=512k"):
        assert "not enough space" in world.setup("1.0", "/D=E:\\Fieldray", expect=4)
    with _small_disk(world, "f", "size=64m,nr_inodes=31") as disk:  # room for one program, not for files of a second
        world.setup("1.0", "/D=F:\\Fieldray")
        world.expect_program("1.0", disk / "Fieldray")
        assert "Nothing was changed" in world.setup("1.1", "/D=F:\\Fieldray", expect=4)
        world.expect_program("1.0", disk / "Fieldray")


@contextmanager
def _small_disk(world: SetupTest, letter: str, options: str) -> Iterator[Path]:
    disk = world.folder / f"disk-{letter}"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        world.wine.give_drive(letter, disk)
        yield disk
    finally:
        world.wine.wait_until_idle()
        subprocess.run(["umount", str(disk)], check=True)


class NotTried(Exception):
    """The error for a step that cannot be performed on this computer."""


STEPS: Final[tuple[Callable[[SetupTest], None], ...]] = (
    old_windows_is_refused,
    a_first_install_changes_its_own_places_only,
    a_running_program_is_noticed,
    an_upgrade_leaves_nothing_old,
    installing_again_changes_nothing,
    removing_keeps_the_results,
    removing_takes_the_results_when_asked,
    the_ordinary_uninstaller_takes_itself_away,
    everyone_gets_it_when_asked,
    other_folders_are_taken_or_refused,
    the_runtime_of_the_edgetpu_is_taken_from_beside_setup,
    a_disk_without_room_leaves_the_old_program,
)


def main() -> int:
    """Run the steps of the test, as the command line says. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Test Setup and the uninstaller in Wine.")
    parser.add_argument("--keep", type=Path, help="work in this new folder, and keep the folder afterwards")
    parser.add_argument("--only", default="", metavar="WORDS", help="run only the steps with these words in their name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        try:
            world = SetupTest(folder)
        except FileNotFoundError as missing:
            sys.stderr.write(f"The test was not run: {missing}\n")
            return 2
        try:
            return _walk(world, options.only)
        finally:
            world.wine.end()


def _walk(world: SetupTest, words: str) -> int:
    for step in STEPS:
        name = step.__name__.replace("_", " ")
        if words not in name:
            continue
        try:
            step(world)
        except AssertionError as failure:
            sys.stdout.write(f"FAILED  {name}: {failure}\n")
            return 1
        except NotTried as why:
            sys.stdout.write(f"skipped {name}: {why}\n")
        else:
            sys.stdout.write(f"ok      {name}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
