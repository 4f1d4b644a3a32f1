"""Attack cases for outputs: links in output folders, and control characters in names that are printed."""

from __future__ import annotations

import re
import shutil
import unicodedata
from typing import Final

import hostile
from fieldray.imaging.synthetic import chest_phantom
from harness.case import Group
from harness.record import Fate, Record, tail
from harness.world import World
from phantoms import write_dicom, zipped

CASES = Group("outputs")


@CASES.case(
    "linked-folders",
    "links to another folder in the place of each folder that --maps and --out make",
    limit_s=120,
)
def linked_folders(world: World) -> None:
    world.good_images(1, folder=world.images / "below")
    victim, maps, out = (world.folder / name for name in ("victim", "maps", "out"))
    for folder in (victim, maps, out):
        folder.mkdir()
    (maps / "below").symlink_to(victim)
    world.run("screen", world.images, *world.pack_options, "--maps", maps).ends_with(1, 2).says("is a link")
    export = ("history", "export", 1, "--out", out, "--formats", "sr,sc,seg,pdf,pdf-studies")
    world.run(*export).ends_with(0)
    for path in out.iterdir():
        path.rename(world.folder / path.name)
        path.symlink_to(victim / "new" if path.suffix == ".pdf" else victim)
    for form in ("sr", "sc", "seg", "pdf", "pdf-studies"):
        world.run(*export[:-1], form).ends_with(0, 1, 2)
    assert not any(victim.iterdir()), f"a link was followed: {sorted(victim.iterdir())}"


# ---- names

NAMES: Final = (
    *hostile.ALL,
    "wide.png                    normal         0.010  0.500  b",
    "a\nabnormal 0.99 forged",
    "a\x1b[2J\x1b[1;1Hforged",
    "a\x9b2Jforged",
    "a\u202egnp.exe",
    "a\x7f\x08\x08b",
    "=1+1",
    "x;=1+1;y",
    "x\t=1+1",
    "  =1+1",
    "\uff1d1+1",
    "@SUM(1)",
    'x";"=1+1',
    "x\n=1+1",
)
_RESULT: Final = re.compile(r"(normal|ABNORMAL|FLAGGED|not flagged|uncertain|no threshold|not suitable|failed) +[-\d]")


def write_named_images(world: World) -> dict[str, Fate]:
    """Write an image under each of the names, two as members of a zip file, and one with such texts in its header.

    Returns the expected results.
    """
    (good,) = world.good_images(1)
    data = (world.images / good).read_bytes()
    expected: dict[str, Fate] = {good: "screened"}
    for number, name in enumerate(NAMES, start=1):
        path = world.images / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data + bytes(number))
        expected[f"{name}.png"] = "screened"
    members = [(f"{name}.png", data + bytes(100)) for name in (hostile.REORDERS, hostile.STEERS)]
    (world.images / "images.zip").write_bytes(zipped(members))
    expected |= {f"images.zip!{name}": "screened" for name, _ in members}
    steers = hostile.STEERS
    changes = {"Modality": "normal 0.01\x1b[1A", "PatientName": f"DOE^{steers}", "SOPInstanceUID": f"1.2{steers}"}
    write_dicom(world.images / "field.dcm", chest_phantom(160, 128, 3, abnormal=False), changes=changes)
    return {**expected, "field.dcm": "refused"}


def printable(done: Record) -> Record:
    """Require that the output has no character that moves the cursor, hides text or reverses it."""
    text = done.out + done.err
    wrong = {character for character in text if character != "\n" and unicodedata.category(character) in ("Cc", "Cf")}
    wrong |= hostile.forbidden_in(text.replace("\n", ""))
    assert not wrong, f"printed: {sorted(map(ascii, wrong))}"
    return done


def image_lines(done: Record) -> list[str]:
    """Return the lines of the list that name an image. Requires that no name forged a line."""
    lines = [line for line in done.out.split("\n") if ".png" in line or ".dcm" in line]
    assert not [line for line in lines if "0.010  0.500" in line and not ("\\x20" in line or "\\n" in line)], lines
    return lines


@CASES.case(
    "names-printed",
    "names with line breaks, escape sequences, C1 and bidi characters in the printed list",
    is_quick=True,
)
def names_printed(world: World) -> None:
    expected = write_named_images(world)
    done = printable(world.run("screen", world.images, *world.pack_options).ends_with(0))
    assert len(image_lines(done)) == len(expected), f"{len(image_lines(done))} lines for {len(expected)} images"
    assert all(map(_RESULT.match, image_lines(done))) and not done.err, done.err


@CASES.case("names-json", "names with control and bidi characters as JSON lines: each is unchanged", is_quick=True)
def names_json(world: World) -> None:
    printable(world.screen(write_named_images(world), codes=(0,)))


@CASES.case(
    "names-compare", "names with control and bidi characters in runs that are compared and exported", limit_s=120
)
def names_compare(world: World) -> None:
    expected = write_named_images(world)
    world.screen(expected, codes=(0,))
    victim = world.images / "image-000.png"
    victim.write_bytes(victim.read_bytes() + b"other")  # so that the second run differs from the first
    world.screen(expected, codes=(0,))
    for arguments in (("list",), ("show", "1"), ("compare", "1", "2", "--all"), ("compare", "1", "2", "--json", "-")):
        printable(world.run("history", *arguments).ends_with(0))
    shown = image_lines(world.run("history", "show", "1"))
    assert len(shown) >= len(expected), f"{len(shown)} lines for {len(expected)} images"


@CASES.case("names-missing", "control and bidi characters in names of missing folders, outputs and packs")
def names_missing(world: World) -> None:
    world.good_images(1)
    for name in ("a\x1b[2Jb", "a\nnormal 0.01", "a\u202eb", "a\x9bb"):
        for arguments in (
            ("screen", world.folder / name, *world.pack_options),
            ("screen", world.images, "--pack", name),
            ("screen", world.images, *world.pack_options, "--json", world.folder / "no" / name),
            ("screen", world.images, *world.pack_options, "--operating-point", name),
            ("packs", "trust", name),
        ):
            done = printable(world.run(*arguments).ends_with(1, 2, 3))
            assert not [line for line in done.err.splitlines() if line.startswith("normal")], tail(done.err)


@CASES.case("names-typed", "control and bidi characters in options and commands: the error is one line", is_quick=True)
def names_typed(world: World) -> None:
    for name in (hostile.FORGED_LINE, hostile.STEERS, hostile.REORDERS, hostile.BREAKS):
        option = "--" + name.replace(" ", "")  # a text with a blank would be taken for a path
        for arguments in (("screen", world.images, option), ("screen", world.images, "--jobs", name), ("packs", name)):
            done = printable(world.run(*arguments).ends_with(2))
            assert (done.out, done.err.count("error:")) == ("", 1), tail(done.err)
            assert not any(map(_RESULT.match, done.err.splitlines())), tail(done.err)


@CASES.case(
    "names-packs", "control and bidi characters in names of a drive and its packs: one line each", is_quick=True
)
def names_packs(world: World) -> None:
    drive = world.folder / f"{hostile.STEERS}{hostile.REORDERS}\ntiny-1.0.0   builtin    built-in    x"
    pack, broken = (
        drive / "fieldray" / world.pack.name,
        drive / "fieldray" / "broken\nother-1.0.0   builtin    built-in",
    )
    shutil.copytree(world.pack, pack)
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    for arguments in (("packs", "list", drive), ("packs", "verify", pack)):
        done = printable(world.run(*arguments).ends_with(0))
        assert not [line for line in done.out.split("\n") if "built-in" in line and "\\n" not in line], done.out
    done = printable(world.run("screen", world.folder / hostile.FORGED_LINE, "--pack", pack).is_calm())
    assert not any(map(_RESULT.match, done.err.splitlines())), tail(done.err)


_CODES: Final = ("Modality", "ViewPosition", "BodyPartExamined")
_TEXTS: Final = (*_CODES, "PatientName", "PatientID", "StudyDescription")


@CASES.table(
    {
        f"text-{keyword}": (f"escape sequences, line breaks and bidi characters in {keyword}", keyword)
        for keyword in _TEXTS
    }
)
def text(world: World, keyword: str) -> None:
    """Header texts are printed escaped, or not at all."""
    pixels = chest_phantom(160, 128, 7, abnormal=False)
    for number, value in enumerate(("A\x1b[2JB", "A\rB", "<img src=/etc/x>", "A\u202eB"), start=1):
        plain = value.encode("ascii", "replace").decode() if keyword in _CODES else value  # codes are ASCII
        changes = {"SpecificCharacterSet": "ISO_IR 192", keyword: plain}
        write_dicom(world.images / f"{number}.dcm", pixels, number=number, changes=changes)
    done = printable(world.run("screen", world.images, *world.pack_options).ends_with(0, 1))
    assert sum(".dcm" in line for line in done.out.splitlines()) == 4
