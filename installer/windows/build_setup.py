"""Build Setup, the installer for Windows, from a frozen program, on Windows or Linux. Needs only NSIS (makensis).

    python installer/windows/build_setup.py FROZEN OUTPUT_FOLDER

FROZEN is the folder that contains fieldray-window.exe. The path of the Setup is printed. Equal frozen programs and
equal SOURCE_DATE_EPOCH give equal Setups.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = Path(__file__).with_name("fieldray.nsi")
PROGRAMS: Final = ("fieldray-window.exe", "fieldray.exe", "fieldray-worker.exe")
_ON_WINDOWS: Final = Path("C:/Program Files (x86)/NSIS/makensis.exe")


def build(frozen: Path, output_folder: Path, *, version: str, icon: Path | None = None, name: str = "") -> Path:
    """Build Setup, the installer for Windows, from the frozen program in `frozen`. Returns the path of Setup.

    `name` is the file name; "" for fieldray-VERSION-setup.exe. Raises FileNotFoundError if makensis or a program is
    missing, ValueError if makensis fails.
    """
    makensis = find_makensis()
    missing = [program for program in PROGRAMS if not (frozen / program).is_file()]
    if missing:
        raise FileNotFoundError(f"{frozen} is no program frozen for Windows: {', '.join(missing)} is not there")
    output_folder.mkdir(parents=True, exist_ok=True)
    output = output_folder.resolve() / (name or f"fieldray-{version}-setup.exe")
    with tempfile.TemporaryDirectory() as folder:
        lists = write_lists(frozen.resolve(), Path(folder))
        defines = _facts(frozen, version) | lists | {"OUTPUT": str(output)}
        defines |= {"ICON": str(icon or _icon(makensis)), "TARGET": _target(makensis)}
        _compile(makensis, SCRIPT, defines)
    return output


def find_makensis() -> Path:
    """Return the path of the program makensis. Raises FileNotFoundError, whose text tells how to install makensis."""
    found = shutil.which("makensis") or (str(_ON_WINDOWS) if _ON_WINDOWS.is_file() else None)
    if found is None:
        raise FileNotFoundError("makensis is not installed (Debian: apt-get install nsis; Windows: install NSIS 3)")
    return Path(found)


def write_lists(frozen: Path, folder: Path) -> dict[str, str]:
    """Write the NSIS scripts that install and remove the files of the program to `folder`.

    Returns the paths of the scripts, by name of the NSIS define.
    """
    files = sorted(path.relative_to(frozen).as_posix() for path in frozen.rglob("*") if path.is_file())
    lists = {"INSTALL_LIST": install_lines(frozen, files), "REMOVE_LIST": remove_lines(files)}
    defines = {}
    for name, lines in lists.items():
        path = folder / f"{name.lower()}.nsh"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        defines[name] = str(path)
    return defines


def install_lines(frozen: Path, files: Sequence[str]) -> list[str]:
    """Return the NSIS lines that install files. `files` are paths relative to the folder `frozen`, with /.

    Raises ValueError for a name that Windows does not allow.
    """
    lines, folder = [], None
    for file in files:
        if re.search(r'[<>:"|?*\\\x00-\x1f]', file):
            raise ValueError(f"not a name for Windows: {file}")
        if folder != (folder := PurePosixPath(file).parent):
            lines.append(f'SetOutPath "$Staging{_inside(folder)}"')
        lines.append(f'File "/oname={_quoted(PurePosixPath(file).name)}" "{frozen / file}"')
    return lines


def remove_lines(files: Sequence[str]) -> list[str]:
    """Return the NSIS lines that remove each file by name, and then each folder if empty, the deepest folders first."""
    folders = {parent for file in files for parent in PurePosixPath(file).parents if str(parent) != "."}
    deepest_first = sorted(folders, key=lambda folder: (-len(folder.parts), str(folder)))
    lines = [f'Delete "$INSTDIR{_inside(PurePosixPath(file))}"' for file in files]
    return lines + [f'RMDir "$INSTDIR{_inside(folder)}"' for folder in deepest_first]


def _inside(path: PurePosixPath) -> str:
    return "".join("\\" + _quoted(part) for part in path.parts)


def _quoted(text: str) -> str:
    return text.replace("$", "$$").replace("`", "$\\`")


def _facts(frozen: Path, version: str) -> dict[str, str]:
    paths = [path for path in frozen.rglob("*") if path.is_file()]
    size_kb = sum(path.stat().st_size + 4096 for path in paths) // 1024
    return {
        "VERSION": version,
        "NUMBERS": windows_version(version),
        "SIZE_KB": str(size_kb),
        "SIZE_MB": str(size_kb // 1024 + 1),
        "LONGEST": str(max(len(path.relative_to(frozen).as_posix()) for path in paths)),
    }


def windows_version(version: str) -> str:
    """Return a version as the four numbers that Windows needs: 1.2 and 1.2rc1 become 1.2.0.0.

    Raises ValueError if the text does not start with a number.
    """
    found = re.match(r"\d+(\.\d+){0,3}", version)
    if not found:
        raise ValueError(f"{version!r} is not a version")
    return ".".join([*found[0].split("."), "0", "0", "0"][:4])


def project_version() -> str:
    """Return the version of the program in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def _icon(makensis: Path) -> Path:
    made = ROOT / "build" / "icons" / "fieldray.ico"
    if made.is_file():
        return made
    icons = "Contrib/Graphics/Icons/modern-install.ico"
    return next(path for path in (makensis.parent / icons, Path("/usr/share/nsis") / icons) if path.is_file())


def _target(makensis: Path) -> str:
    """Return the NSIS target of Setup: 64-bit if the installed NSIS supports this target, else 32-bit.

    NSIS for Windows supports only 32-bit Setups, which also work.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.nsi"
        probe.write_text("Unicode true\nTarget amd64-unicode\nOutFile probe.exe\nSection\nSectionEnd\n")
        done = subprocess.run([str(makensis), "-V1", str(probe)], capture_output=True, check=False)
    return "amd64-unicode" if done.returncode == 0 else "x86-unicode"


def _compile(makensis: Path, script: Path, defines: Mapping[str, str]) -> None:
    command = [str(makensis), "-V2", "-WX", "-INPUTCHARSET", "UTF8"]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    done = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, errors="replace", check=False, env=_environment()
    )
    if done.returncode:
        raise ValueError(f"makensis refused {script.name}:\n{done.stdout}{done.stderr}")


def _environment() -> dict[str, str]:
    return {"LC_ALL": "C.UTF-8", **os.environ}


def main() -> int:
    """Build Setup, as the command line says, and print its path. Returns 0, or 1 after an error message."""
    parser = argparse.ArgumentParser(description="Make Setup for Windows from a frozen program.")
    parser.add_argument("frozen", type=Path)
    parser.add_argument("output_folder", type=Path)
    options = parser.parse_args()
    try:
        setup = build(options.frozen, options.output_folder, version=project_version())
    except (OSError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(f"{setup}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
