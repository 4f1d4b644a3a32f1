"""The steps of the smoke test of the installed program, in the order of a clinic's work.

The smoke test prints the first line of each step's docstring.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import screen_picture
import shared_libraries
import smoke_images
from clean_root import CleanRoot, CommandResult, User
from expectation import APT_OUTPUT, UnexpectedResult, verify
from smoke_window import DISPLAY, find_windows, run_window, type_and_press, wait_until
from smoke_window import PROGRAM as WINDOW

PROGRAM: Final = "/opt/fieldray/fieldray"
IMAGES: Final = "/srv/Знімки грудної клітки"
IMAGES_LINK: Final = "/srv/images"  # link to IMAGES with a name that can be typed
DRIVE_FOLDER: Final = "/media/clinic/МОДЕЛІ"
STUDY_COUNT: Final = 24  # studies that `fieldray demo drawn` makes
PACK: Final = "pneumonia-paediatric"
_NOTICE: Final = r"Research use only\. Not for diagnostic use\."
_BANNER: Final = "#fdf0d2"  # background of questions and warnings
_OFFER: Final = "#e3eff5"  # background of offers
_UNCERTAIN: Final = "#7d5b00"  # colour of Uncertain in the work list
_DPKG_REFUSAL: Final = (
    r"dpkg: error processing archive .*fieldray.*\.deb \(--(install|unpack)\):",
    r" new fieldray package pre-installation script subprocess returned error exit status 1",
    r"Errors were encountered while processing:",
    r" .*fieldray.*\.deb|\?",
)


@dataclass(frozen=True, slots=True)
class InstallTrial:
    """The small system, the installers to test, the folder for pictures, and values for later steps.

    `root` is the small system, `package` the .deb, and `newer_package` a .deb with a higher version. `paths_before` are
    the paths before the installation. `screened_names` are the file names of screened images.
    """

    root: CleanRoot
    package: Path
    newer_package: Path
    portable_archive: Path | None
    pictures: Path | None = None
    users: dict[str, User] = field(default_factory=dict)
    paths_before: set[str] = field(default_factory=set)
    screened_names: list[str] = field(default_factory=list)

    def copy_into_root(self, file: Path) -> str:
        """Make a file of this computer readable in the small system. Returns the path in the small system."""
        place = self.root.inside(f"/run/{file.name}")
        if not place.exists():
            place.touch()
            subprocess.run(["mount", "--bind", "-o", "ro", str(file.resolve()), str(place)], check=True)
        return f"/run/{file.name}"

    def picture(self, name: str) -> screen_picture.Picture:
        """Take a picture of the display. If there is a folder for pictures, also write it to NAME.png."""
        taken = screen_picture.take_picture(DISPLAY)
        if self.pictures:
            taken.save(self.pictures / f"{name}.png")
        return taken


Step = Callable[[InstallTrial], None]


# ---- installation


def refuse_on_a_full_disk(trial: InstallTrial) -> None:
    """Try to install on a full disk: the installer gives a clear message and installs nothing"""
    place = trial.copy_into_root(trial.package)
    done = trial.root.run("dpkg", "--install", place)
    said = r"Fieldray: the disk is too full: \d+ MB are needed, \d+ MB are free\. Nothing was changed\."
    verify(done, code=1, output=APT_OUTPUT, errors=(said, *_DPKG_REFUSAL))
    _require_nothing_installed(trial)


def install(trial: InstallTrial) -> None:
    """Install the package with its dependencies, in a system without udev and without Python"""
    trial.paths_before.update(_files(trial.root))
    _require_no_python(trial)
    verify(_apt(trial, "install", trial.copy_into_root(trial.package)), output=APT_OUTPUT, errors=APT_OUTPUT)
    verify(trial.root.run("dpkg", "--verify", "fieldray"))
    verify(trial.root.run("dpkg", "--audit"))
    _require_no_python(trial)
    for number, (name, home) in enumerate({"iryna": "/home/Ірина Лікарка", "second": "/home/second"}.items(), 2000):
        trial.users[name] = trial.root.add_user(name, number=number, home=home)
        runtime = trial.root.inside(f"/run/user/{number}")
        runtime.mkdir(parents=True, mode=0o700)
        shutil.chown(runtime, number, number)
    program = trial.root.inside("/opt/fieldray")
    for file in shared_libraries.elf_files(program):
        if outside := shared_libraries.outside_paths(file, program):
            raise UnexpectedResult(f"{file.name} looks for libraries in {outside}")
    for subject in ("/opt/fieldray/fieldray", "/usr/share/applications/fieldray.desktop"):
        if not trial.root.inside(subject).exists():
            raise UnexpectedResult(f"{subject} was not installed")


# ---- the command line


def screen_images(trial: InstallTrial) -> None:
    """Screen synthetic studies with a shipped pack, while the install folder is read-only"""
    place = str(trial.root.inside("/opt/fieldray"))
    subprocess.run(["mount", "--bind", place, place], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    user = trial.users["iryna"]
    images = trial.root.inside(IMAGES)
    images.mkdir(parents=True)
    shutil.chown(images, user.number, user.number)
    trial.root.inside(IMAGES_LINK).symlink_to(IMAGES)
    for person in trial.users.values():
        chosen = trial.root.run(PROGRAM, "packs", "default", PACK, user=person)  # as at a children's hospital
        verify(chosen, output=(rf"Default pack: {PACK}",))
    made = trial.root.run(PROGRAM, "demo", "drawn", "--pack", PACK, "--no-window", "--folder", IMAGES, user=user)
    verify(
        made, output=(r"Drawing synthetic studies in .*", r"The studies are drawings, not X-rays\. .*", *_work_list())
    )
    again = trial.root.run("fieldray", "screen", IMAGES, "--pack", PACK, "--fresh", "--json", "-", user=user)
    verify(again, output=(r"\{.*\}",), errors=(*_summary(), r"\?Pack .*", r"\?Operating point .*"))
    results = [json.loads(line) for line in again.output]
    kinds = {result["status"] for result in results}
    if len(results) != STUDY_COUNT or not kinds <= {"screened", "refused"} or "screened" not in kinds:
        raise UnexpectedResult(f"{len(results)} results of the kinds {kinds}")
    if {result["backend"] for result in results if result["status"] == "screened"} != {"cpu"}:
        raise UnexpectedResult("not every image was screened on the processor")
    screened = (result["path"] for result in results if result["status"] == "screened")
    trial.screened_names.extend(sorted(Path(path).name for path in screened))
    _require_no_log(trial, user)


def screen_other_forms(trial: InstallTrial) -> None:
    """Screen one image as plain DICOM, RLE, lossless JPEG and PNG: all scores are equal"""
    user, place = trial.users["iryna"], "/srv/forms"
    if not trial.screened_names:
        raise UnexpectedResult("the pack that ships gave no score to any of the synthetic studies")
    name = trial.screened_names[0]  # an image that the shipped pack accepts
    plain = trial.root.inside(f"{IMAGES}/{name}").read_bytes()
    folder = trial.root.inside(place)
    folder.mkdir()
    for form, content in {name: plain, **smoke_images.encode_other_formats(plain)}.items():
        (folder / form).write_bytes(content)
    # A PNG file has no age, so the option confirms the ages.
    confirmed = ("--pack", PACK, "--ages-confirmed", "--fresh", "--json", "-")
    done = trial.root.run("fieldray", "screen", place, *confirmed, user=user)
    verify(done, output=(r"\{.*\}",), errors=(*_summary(), r"\?Pack .*", r"\?Operating point .*"))
    scores = {Path(result["path"]).name: result["score"] for result in map(json.loads, done.output)}
    score, grey = scores.get(name), scores.pop("picture.png", None)
    if score is None or grey is None or scores != dict.fromkeys((name, "rle.dcm", "lossless.dcm"), score):
        raise UnexpectedResult(f"scores {scores}, of the PNG {grey}")
    _require_no_log(trial, user)


def start_with_errors(trial: InstallTrial) -> None:
    """Start without a screen, without packs, with a wrong Edge TPU library: each gives a message"""
    user, root = trial.users["iryna"], trial.root
    no_screen = (
        r"fieldray: No display is available for the window\. Use the command line instead: fieldray screen FOLDER"
    )
    for command in ([PROGRAM], [WINDOW], ["fieldray"]):
        verify(root.run(*command, user=user), code=1, errors=(no_screen,))
    verify(root.run(PROGRAM, "screen", "/nowhere", user=user), code=2, errors=(r"fieldray: Nothing to screen: .*",))
    with _drive(trial, None):
        verify(root.run(PROGRAM, "packs", "list", DRIVE_FOLDER, user=user), output=("No packs found.",))
        none = root.run(PROGRAM, "screen", IMAGES, "--pack", DRIVE_FOLDER, user=user)
        verify(none, code=3, errors=(r"fieldray: .*",))
    library = root.inside("/usr/lib/x86_64-linux-gnu/libedgetpu.so.1")
    library.write_text("this is no library\n" * 100)
    done = root.run(PROGRAM, "doctor", user=user)
    library.unlink()
    wrong = "The file libedgetpu.so.1 is not an Edge TPU runtime for this computer. Reinstall libedgetpu."
    if done.code or done.errors or not any(wrong in line for line in done.output):
        raise UnexpectedResult("\n".join(["doctor", *done.output, *done.errors]))
    _require_no_log(trial, user)


# ---- the window


def open_window(trial: InstallTrial) -> None:
    """Open the window, open a folder with the keyboard, and wait for results"""
    user = trial.users["second"]
    with run_window(trial.root, user) as window:
        wait_until(lambda: _settled(trial, "1-welcome"), "the welcome page")
        type_and_press(window, "ctrl+o")
        dialog = wait_until(lambda: find_windows("Open a folder"), "the dialog that opens a folder")[0]
        wait_until(lambda: _settled(trial, "2-folder"), "the dialog")
        type_and_press(dialog, "Return", text=IMAGES_LINK)
        wait_until(
            lambda: count_stored_results(trial, user) == STUDY_COUNT, f"{STUDY_COUNT} results in the user's database"
        )
        wait_until(lambda: trial.picture("3-results").count(_UNCERTAIN) > 500, "uncertain rows in the work list")
        type_and_press(window, "Down")
        time.sleep(1.5)
        trial.picture("4-image")
    _require_no_log(trial, user)


def plug_in_a_drive(trial: InstallTrial) -> None:
    """Plug in a drive with a pack: the open window and the command line find the pack"""
    user = trial.users["second"]
    wayland = {"XDG_SESSION_TYPE": "wayland", "WAYLAND_DISPLAY": "wayland-0"}  # Wayland with XWayland, as is usual
    settings = trial.root.inside(f"{user.home}/.local/share/fieldray/settings.json")
    chosen = json.loads(settings.read_text(encoding="utf-8"))  # settings with the default pack
    # The small system has no Ukrainian locale.
    settings.write_text(json.dumps(chosen | {"language": "uk"}), encoding="utf-8")
    shutil.chown(settings, user.number, user.number)
    with run_window(trial.root, user, IMAGES, more=wayland):
        wait_until(lambda: trial.picture("5-ukrainian").count(_UNCERTAIN) > 500, "uncertain rows in the work list")
        wait_until(lambda: _settled(trial, "5-ukrainian"), "the end of the run")
        before = _banners(trial, "5-ukrainian")
        with _drive(trial, trial.root.inside("/opt/fieldray/_internal/fieldray/_data/models")):
            wait_until(lambda: _banners(trial, "6-drive") != before, "what the window says about the drive")
            listed = trial.root.run("fieldray", "packs", "list", user=user)
            packs = ("pneumonia-paediatric", "adult-normal-abnormal", "tuberculosis-adult", "lung-fields")
            places = ("comes with the program .*", "on a drive, trusted .*МОДЕЛІ.*")
            rows = tuple(rf"{pack}-\S+ +{place}" for pack in packs for place in places)
            verify(listed, output=(*rows, r" {4}.+"))
            offered = _banners(trial, "6-drive")
        # The window offered the pack of the drive. The offer disappears when the drive is removed.
        wait_until(lambda: _banners(trial, "7-drive-gone") != offered, "that the drive was removed")
    _require_no_log(trial, user)


def run_twice(trial: InstallTrial) -> None:
    """Run two windows of one user, a window of another user, and the command line at one time"""
    first, second = trial.users["iryna"], trial.users["second"]
    root = trial.root
    with run_window(root, first, IMAGES), run_window(root, first), run_window(root, second, IMAGES):
        done = root.run("fieldray", "screen", IMAGES, "--pack", PACK, "--fresh", "--json", "-", user=first)
        verify(done, output=(r"\{.*\}",), errors=(*_summary(), r"\?Pack .*", r"\?Operating point .*"))
        if len(done.output) != STUDY_COUNT:
            raise UnexpectedResult(f"{len(done.output)} results beside two windows")
    for user in (first, second):
        _require_no_log(trial, user)


# ---- upgrade and removal


def upgrade(trial: InstallTrial) -> None:
    """Upgrade the package: refused with a message while the program runs, else done"""
    subprocess.run(["umount", str(trial.root.inside("/opt/fieldray"))], check=True)
    newer, user = trial.copy_into_root(trial.newer_package), trial.users["second"]
    said = r"Fieldray: the program is running \(process \d+\)\. Close it and install again\. Nothing was changed\."
    with run_window(trial.root, user):
        done = trial.root.run("dpkg", "--install", newer)
        refusal = [line.replace("fieldray.*", ".*") for line in _DPKG_REFUSAL]
        verify(done, code=1, output=APT_OUTPUT, errors=(said, *refusal))
        removal = trial.root.run("dpkg", "--remove", "fieldray")
        if removal.code == 0 or not any("the program is running" in line for line in removal.errors):
            raise UnexpectedResult("\n".join(["removed under a running window", *removal.output, *removal.errors]))
    verify(trial.root.run("dpkg", "--verify", "fieldray"))
    verify(trial.root.run("dpkg", "--audit"))
    verify(_apt(trial, "install", newer), output=APT_OUTPUT, errors=APT_OUTPUT)
    shown = trial.root.run("dpkg-query", "--show", "--showformat", "${Version} ${Status}", "fieldray")
    verify(shown, output=(r".*\+1 install ok installed",))
    done = trial.root.run("fieldray", "screen", IMAGES, "--pack", PACK, "--json", "-", user=user)
    resumed = rf"{STUDY_COUNT} results were reused from an earlier run, because the files have not changed\. .*"
    verify(done, output=(r"\{.*\}",), errors=(*_summary(), resumed, r"\?Pack .*", r"\?Operating point .*"))


def remove(trial: InstallTrial) -> None:
    """Remove and purge the package: only the users' results are left"""
    verify(_apt(trial, "purge", "fieldray"), output=APT_OUTPUT, errors=APT_OUTPUT)
    left = {
        name
        for name in _files(trial.root) - trial.paths_before
        if "fieldray" in name and not name.startswith(("home/", "run/", "var/log/"))
    }
    if left:
        raise UnexpectedResult(f"left behind: {sorted(left)[:10]}")
    _require_nothing_installed(trial)
    for user in trial.users.values():
        if not count_stored_results(trial, user):
            raise UnexpectedResult("a user's results are gone")


def use_portable(trial: InstallTrial) -> None:
    """Unpack the portable archive to a long path with spaces, screen images, and add a menu entry"""
    if trial.portable_archive is None:
        raise UnexpectedResult("there is no portable archive")
    user = trial.users["iryna"]
    place = f"{user.home}/Програми/{'дуже довга назва теки ' * 3}/{'ще довша ' * 6}"
    inside = trial.root.inside(place)
    inside.mkdir(parents=True)
    subprocess.run(["tar", "-xf", str(trial.portable_archive), "-C", str(inside)], check=True)
    subprocess.run(["chown", "-R", f"{user.number}:{user.number}", str(trial.root.inside(user.home))], check=True)
    folder = f"{place}/{trial.portable_archive.name.removesuffix('.tar.xz')}"
    done = trial.root.run(f"{folder}/fieldray", "screen", IMAGES, "--pack", PACK, "--fresh", "--json", "-", user=user)
    verify(done, output=(r"\{.*\}",), errors=(*_summary(), r"\?Pack .*", r"\?Operating point .*"))
    verify(trial.root.run("sh", f"{folder}/add-to-menu", user=user), output=(r"Fieldray was added to the menu\. .*",))
    entry = trial.root.inside(f"{user.home}/.local/share/applications/fieldray.desktop")
    if f'Exec="{folder}/fieldray-window" %F' not in entry.read_text(encoding="utf-8").splitlines():
        raise UnexpectedResult(f"the menu entry does not start {folder}/fieldray-window")
    validated = subprocess.run(["desktop-file-validate", str(entry)], capture_output=True, text=True, check=False)
    if validated.returncode or validated.stdout:
        raise UnexpectedResult(validated.stdout + validated.stderr)
    taken_out = trial.root.run("sh", f"{folder}/add-to-menu", "--remove", user=user)
    verify(taken_out, output=(r"Fieldray was removed from the menu\. .*",))


STEPS: Final[tuple[Step, ...]] = (
    install, screen_images, screen_other_forms, start_with_errors, open_window, plug_in_a_drive, run_twice, upgrade,
    remove, use_portable,
)  # fmt: skip


# ---- functions that several steps use


@contextlib.contextmanager
def _drive(trial: InstallTrial, packs: Path | None) -> Iterator[None]:
    """Simulate a plugged-in drive during the block. The drive has the packs of the folder `packs`; None for none."""
    made, place = trial.root.inside("/mnt"), trial.root.inside(DRIVE_FOLDER)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(made)], check=True)
    if packs:
        shutil.copytree(packs, made / "fieldray")
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", str(made), str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)
        subprocess.run(["umount", str(made)], check=True)


def _settled(trial: InstallTrial, name: str) -> screen_picture.Picture | None:
    """Return a picture of the display if the display is not empty and has not changed for half a second, else None."""
    before = trial.picture(name)
    time.sleep(0.5)
    after = trial.picture(name)
    is_empty = len(set(after.rows)) < 20
    return after if before.rows == after.rows and not is_empty else None


def _banners(trial: InstallTrial, name: str) -> tuple[int, int]:
    """Return the numbers of pixels in the background of questions and warnings, and in the background of offers.

    If the numbers change, the window shows another sentence.
    """
    picture = trial.picture(name)
    return picture.count(_BANNER), picture.count(_OFFER)


def count_stored_results(trial: InstallTrial, user: User) -> int:
    """Return the number of results of the largest run in a user's results database; 0 without a database."""
    database = trial.root.inside(f"{user.home}/.local/share/fieldray/results.sqlite")
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        for table in ("answers", "results"):  # tables of the present version and of version 11
            with contextlib.suppress(sqlite3.OperationalError):  # the table does not exist
                query = f"SELECT count(*) FROM {table} GROUP BY run_id ORDER BY 1 DESC LIMIT 1"
                return int((connection.execute(query).fetchone() or (0,))[0])
    return 0


def _apt(trial: InstallTrial, action: str, subject: str) -> CommandResult:
    options = ["-o", "APT::Sandbox::User=root", "-o", "Dpkg::Use-Pty=0"]
    command = ["apt-get", action, "--yes", "--no-install-recommends", *options, subject]
    return trial.root.run(*command)


def _summary() -> tuple[str, ...]:
    """Return the patterns of the lines that the program prints at the end of a run."""
    return (
        r"\d+ images? in \d+:\d+ \([\d.]+/s\)(, \d+ from an earlier run)?",
        r"read first \d+  Signs of pneumonia \d+  uncertain \d+  None found by this pack \d+  no threshold \d+  "
        r"not suitable \d+  failed 0  not an image 0",
        r"\?Model, images/s from the third image on \(min / avg / max\): .*",
        r"\?Ran on cpu: ai_edge_litert .*",
        r"\?Lung fields: lung-fields-.*",
        r"\?\d+ images? (is|are) unlike the images that the pack was measured on\. .*",
        _NOTICE,
    )


def _work_list() -> tuple[str, ...]:
    """Return the patterns of all lines that a run prints for the user."""
    classes = "READ FIRST|SIGNS OF PNEUMONIA|uncertain|None found by this pack|not suitable"
    row = rf"({classes}) +(0\.\d+|-) +(0\.\d+|-)  .*\.dcm"
    return (
        r"Pack pneumonia-paediatric-.* \(comes with the program\)\. For patients aged 1 to 5 years\. .*",
        r"Operating point standard \(pneumonia\): threshold 0\.\d+, Signs of pneumonia from 0\.\d+.*",
        r"result +score +threshold +file",
        row,
        r"\? {29,}\S.*",  # notes about the row above
        *_summary(),
    )


def _files(root: CleanRoot) -> set[str]:
    """Return the paths of all files and folders in the small system, without /proc and /sys."""
    command = ["find", ".", "-path", "./proc", "-prune", "-o", "-path", "./sys", "-prune", "-o", "-print"]
    listed = subprocess.run(command, cwd=root.path, capture_output=True, text=True, check=True).stdout
    return {line.removeprefix("./") for line in listed.splitlines()}


def _require_no_python(trial: InstallTrial) -> None:
    found = [name for name in _files(trial.root) if name.startswith(("usr/bin/python", "usr/lib/python3/"))]
    if found:
        raise UnexpectedResult(f"the root has Python: {found[:3]}")


def _require_nothing_installed(trial: InstallTrial) -> None:
    shown = trial.root.run("dpkg-query", "--show", "--showformat", "${Status}", "fieldray")
    if shown.code == 0 and not shown.output[0].endswith(" not-installed"):
        raise UnexpectedResult(f"the package is {shown.output}")
    verify(trial.root.run("dpkg", "--audit"))
    for place in ("opt/fieldray", "usr/bin/fieldray", "usr/share/applications/fieldray.desktop"):
        if (trial.root.path / place).is_symlink() or (trial.root.path / place).exists():
            raise UnexpectedResult(f"{place} is there")


def _require_no_log(trial: InstallTrial, user: User) -> None:
    """Raise UnexpectedResult if the program has written a log for a user, because a log has warnings."""
    log = trial.root.inside(f"{user.home}/.local/share/fieldray/fieldray.log")
    if log.exists():
        raise UnexpectedResult(f"the program's log says:\n{log.read_text(encoding='utf-8')}")
