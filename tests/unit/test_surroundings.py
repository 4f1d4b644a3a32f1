"""Variables of the environment that name libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fieldray.paths import program_command
from fieldray.surroundings import keep_foreign_code_out

_CODE = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void begin(void) { FILE *mark = fopen(getenv("MARK"), "a"); fclose(mark); }
"""
_CONFIGURATION = """
openssl_conf = begin
[begin]
providers = providers
[providers]
other = other
[other]
module = {library}
activate = 1
"""


def test_variables_that_are_known_are_kept_and_no_others() -> None:
    known = {"LANG": "uk_UA.UTF-8", "LC_TIME": "C", "DISPLAY": ":0", "FIELDRAY_HOME": "home", "SYSTEMROOT": r"C:\W"}
    known |= {"QT_SCALE_FACTOR": "2", "XDG_SESSION_TYPE": "x11", "TF_NUM_INTRAOP_THREADS": "1", "USERPROFILE": r"C:\me"}
    naming_code = ("OPENSSL_CONF", "QT_PLUGIN_PATH", "GTK_MODULES", "LIBGL_DRIVERS_PATH", "LD_AUDIT", "MATPLOTLIBRC")
    naming_code += ("DASK_CONFIG", "OMP_TOOL_LIBRARIES", "KERAS_BACKEND", "SSLKEYLOGFILE", "PYTHONPATH", "OF_TOMORROW")
    environment = known | dict.fromkeys(naming_code, "/x")
    keep_foreign_code_out(environment)
    assert environment == known


def test_the_current_directory_is_in_no_search_path() -> None:
    separator, first, last = os.pathsep, str(Path("/first").absolute()), str(Path("/last").absolute())
    environment = {
        "LD_LIBRARY_PATH": separator.join([first, "", ".", "lib", last]),
        "LD_PRELOAD": f"{first} ./here.so:{last}:here.so",
        "DYLD_LIBRARY_PATH": "",
        "PATH": separator + first,
        "XDG_CONFIG_HOME": ".",
        "XDG_DATA_DIRS": separator.join([".", last]),
        "HOMEPATH": "me",
    }
    keep_foreign_code_out(environment)
    assert environment == {
        "LD_LIBRARY_PATH": separator.join([first, last]),
        "LD_PRELOAD": separator.join([first, last]),
        "PATH": first,
        "XDG_DATA_DIRS": last,
        "HOMEPATH": "me",
    }


@pytest.mark.skipif(os.name != "posix", reason="core files of POSIX")
def test_the_program_itself_leaves_no_core_file(tmp_path: Path) -> None:
    code = (
        "import resource\nfrom fieldray.__main__ import main\nresource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))\n"
        "main(['packs', 'list'])\nprint(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    environment = {**os.environ, "FIELDRAY_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["(0, 0)"], done.stderr


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler of Linux")
def test_a_library_that_a_configuration_of_openssl_names_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(_CODE)
    library, mark = tmp_path / "other.so", tmp_path / "mark"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    (tmp_path / "openssl.cnf").write_text(_CONFIGURATION.format(library=library))
    own = {"OPENSSL_CONF": str(tmp_path / "openssl.cnf"), "FIELDRAY_HOME": str(tmp_path / "home"), "MARK": str(mark)}
    done = subprocess.run(program_command("packs", "list"), env={**os.environ, **own}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
