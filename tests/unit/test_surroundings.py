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


def test_variables_that_name_code_are_taken_out_and_no_others() -> None:
    environment = {"OPENSSL_CONF": "x", "QT_PLUGIN_PATH": "/x", "GTK_MODULES": "x", "LANG": "uk_UA.UTF-8"}
    keep_foreign_code_out(environment)
    assert environment == {"LANG": "uk_UA.UTF-8"}


def test_the_current_directory_is_in_no_search_path() -> None:
    separator, first, last = os.pathsep, str(Path("/first").absolute()), str(Path("/last").absolute())
    environment = {
        "LD_LIBRARY_PATH": separator.join([first, "", ".", "lib", last]),
        "DYLD_LIBRARY_PATH": "",
        "PATH": separator + first,
        "LIBGL_DRIVERS_PATH": ".",
        "LIBVA_DRIVERS_PATH": separator.join([".", last]),
        "SSLKEYLOGFILE": last,
    }
    keep_foreign_code_out(environment)
    assert environment == {
        **{"LD_LIBRARY_PATH": separator.join([first, last]), "PATH": first},
        "LIBVA_DRIVERS_PATH": last,
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
