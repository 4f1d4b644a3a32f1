"""Variables of the environment that name code: none of them puts a library into this program or its children.

The program brings its own parts of Qt and OpenSSL; what a shell's start-up file or a desktop entry names instead may
lie anywhere, also beside the images. An entry of a search path that is empty or relative is the current directory.
What the system's loader does before the first line of this program (LD_PRELOAD) is not in its hands. And the signals by
which those around it ask it to end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import MutableMapping
from typing import Final

# OpenSSL reads its configuration, which may name libraries, with the first hash or signature; Qt and what a desktop's
# theme brings along (GTK, GIO) look for plugins, the C library for converters of character sets.
_NAMING_CODE: Final = (
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    "QT_PLUGIN_PATH",
    "QT_QPA_PLATFORM_PLUGIN_PATH",
    "QT_QPA_GENERIC_PLUGINS",
    "QML_IMPORT_PATH",
    "QML2_IMPORT_PATH",
    "GTK_MODULES",
    "GTK3_MODULES",
    "GTK_PATH",
    "GTK_EXE_PREFIX",
    "GIO_EXTRA_MODULES",
    "GIO_MODULE_DIR",
    "GCONV_PATH",
    "SSLKEYLOGFILE",  # no code, but the keys of a cluster's connections
)
_SEARCHED: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "PATH")
_SEARCHED_ENDINGS: Final = ("_PATH", "_DIRS")  # drivers of OpenGL, EGL, Vulkan and video, layers, plugins


def keep_foreign_code_out(environment: MutableMapping[str, str] = os.environ) -> None:
    """Take such variables out, and the current directory out of search paths; call it before any library is loaded."""
    for name in _NAMING_CODE:
        environment.pop(name, None)
    for name in list(environment):
        if name in _SEARCHED or name.endswith(_SEARCHED_ENDINGS):
            places = environment[name].split(os.pathsep)
            environment[name] = os.pathsep.join(filter(os.path.isabs, places))
            if not environment[name]:
                del environment[name]  # an empty one means the current directory as well


def leave_no_core() -> None:
    """A process that crashes leaves no image of its memory, in which names of patients are; its children neither."""
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def polite_ends() -> tuple[int, ...]:
    """The signals that ask this process to end in order: Ctrl-C, a shutdown, and a terminal that is closed.

    The last one is no wish to end where it is ignored already (`nohup`), and Windows has none.
    """
    hang_up = getattr(signal, "SIGHUP", None)
    is_heard = hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((hang_up,) if is_heard else ()))
