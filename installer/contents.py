"""The content of the installed program: tables of modules and files for `fieldray.spec`, and functions for them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

PROGRAMS: Final = ("fieldray", "fieldray-window", "fieldray-worker")

# Modules that are imported by name at run time, so PyInstaller does not find them.
RUNTIME: Final = (
    "ai_edge_litert",
    "ai_edge_litert.interpreter",
    "ai_edge_litert._pywrap_litert_interpreter_wrapper",
    "ai_edge_litert._pywrap_string_util",
    "ai_edge_litert._pywrap_tensorflow_lite_metrics_wrapper",
    "ai_edge_litert.metrics_portable",
    # imagecodecs imports a codec when the codec is first used. All codecs need the first two modules.
    "imagecodecs._shared",
    "imagecodecs._shared_cython",
    "imagecodecs._png",
)
# fontTools imports a module for each table of a font by name. These tables are in the fonts of the reports.
FONT_TABLES: Final = tuple(
    f"fontTools.ttLib.tables.{name}"
    for name in (
        "C_F_F_", "D_S_I_G_", "G_D_E_F_", "G_P_O_S_", "G_S_U_B_", "O_S_2f_2", "_c_m_a_p", "_c_v_t", "_f_p_g_m",
        "_g_a_s_p", "_g_l_y_f", "_h_d_m_x", "_h_e_a_d", "_h_h_e_a", "_h_m_t_x", "_k_e_r_n", "_l_o_c_a", "_m_a_x_p",
        "_n_a_m_e", "_p_o_s_t", "_p_r_e_p",
    )
)  # fmt: skip

# Never in the installed program: the other packages of this project, other window toolkits, development tools, and
# modules that could connect to a network.
EXCLUDED: Final = (
    "fieldray_adapt", "fieldray_cluster", "dask", "distributed", "fsspec", "optuna", "pyarrow", "s3fs",
    "tensorflow", "keras", "torch", "jax", "matplotlib", "scipy", "pandas", "h5py",
    "PIL.ImageQt", "PIL.ImageTk", "PIL._tkinter_finder", "PIL._avif", "PIL._webp", "tkinter", "_tkinter",
    "PySide6.QtNetwork", "PySide6.QtQml", "PySide6.QtQuick", "PySide6.QtOpenGL", "PySide6.QtPdf", "PySide6.QtSql",
    "PySide6.QtTest", "PySide6.QtXml", "PySide6.QtDesigner", "PySide6.QtHelp",
    "google.protobuf", "flatbuffers", "ml_dtypes", "tqdm",
    "requests", "urllib3", "certifi", "idna", "charset_normalizer", "httpx", "aiohttp",
    "ssl", "_ssl", "ftplib", "smtplib", "xmlrpc", "http.server", "socketserver", "webbrowser", "asyncio",
    "pip", "setuptools", "wheel", "pkg_resources", "distutils", "ensurepip", "lib2to3", "idlelib", "pydoc", "doctest",
    "unittest", "test", "pytest", "_pytest", "IPython", "curses", "readline", "sentry_sdk",
)  # fmt: skip

# `fieldray doctor` and the reports read the versions of these distributions.
DISTRIBUTIONS_WITH_RECORD: Final = (
    "fieldray", "numpy", "pillow", "pydicom", "imagecodecs", "psutil",
    "cryptography", "platformdirs", "msgspec", "fpdf2", "fonttools", "uharfbuzz", "defusedxml",
    "ai-edge-litert", "PySide6-Essentials", "shiboken6",
)  # fmt: skip

# Patterns of paths in PyInstaller's collection, in which * also matches /. `_KEPT` wins over `_LEFT_OUT`.
_KEPT: Final = (
    "PySide6/Qt/plugins/platforms/libqxcb.so",
    "PySide6/Qt/plugins/platforms/libqoffscreen.so",
    "PySide6/plugins/platforms/qwindows.dll",
    "PySide6/plugins/platforms/qoffscreen.dll",
    "*/plugins/imageformats/*qjpeg.*",
    "*/plugins/imageformats/*qsvg.*",
    "*/plugins/iconengines/*",
    "*/plugins/styles/*",
    "*/plugins/xcbglintegrations/*",
    "*/plugins/platforminputcontexts/*compose*",
    "*/plugins/platforminputcontexts/*ibus*",
    "*/plugins/platformthemes/*xdgdesktopportal*",
    *(f"PySide6/*translations/qtbase_{path.name}.qm" for path in (ROOT / "assets" / "translations").iterdir()),
    "ai_edge_litert/_pywrap_litert_interpreter_wrapper.*",
    "ai_edge_litert/_pywrap_string_util.*",
    "ai_edge_litert/_pywrap_tensorflow_lite_metrics_wrapper.*",
    "ai_edge_litert/*pywrap_litert_common.*",
    "imagecodecs.libs/libcharls-*",
    "imagecodecs.libs/libjpeg-*",
    "imagecodecs.libs/liblcms2-*",
    "imagecodecs.libs/libopenjp2-*",
    "imagecodecs.libs/libpng16*",
)
_LEFT_OUT: Final = (
    "*/plugins/*",
    "PySide6/*translations/*",
    "*Qt6Network.*", "*Qt6Qml*", "*Qt6Quick*", "*Qt6Pdf*", "*Qt6VirtualKeyboard*", "*Qt6OpenGL.*", "*Qt6Wayland*",
    "*Qt6WlShell*", "*Qt6Sql.*", "*Qt6Test.*", "*Qt6EglFS*", "*Qt6EglFs*", "*opengl32sw.dll",
    "PySide6/QtNetwork.*", "PySide6/QtDBus.*",
    "ai_edge_litert/*", "imagecodecs/*", "imagecodecs.libs/*",
    "numpy/_core/_simd.*",  # only for NumPy's own tests
    # These libraries must be those of the system, because drivers and the Edge TPU runtime use them too.
    "libstdc++.so.*", "libgcc_s.so.*", "libgomp.so.*", "libglib-2.0.so.*", "libgthread-2.0.so.*", "libdbus-1.so.*",
    "libfontconfig.so.*", "libfreetype.so.*", "libz.so.*", "libexpat.so.*", "libuuid.so.*", "libX11*.so.*",
    "libxcb.so.*", "libxkbcommon.so.*", "libsystemd.so.*", "libudev.so.*", "libusb-1.0.so.*", "libGL*.so.*",
    "libEGL.so.*", "libOpenGL.so.*", "libgbm.so.*", "libdrm.so.*", "libwayland-*.so.*", "libpcre2-8.so.*",
    "libpng16.so.*", "libbrotli*.so.*", "libXau.so.*", "libXdmcp.so.*", "libbsd.so.*", "libmd.so.*", "libcap.so.*",
    "libgcrypt.so.*", "libgpg-error.so.*", "liblz4.so.*", "libzstd.so.*", "libxkbcommon-x11.so.*",
)  # fmt: skip

_RECORD_PARTS: Final = ("METADATA", "entry_points.txt")


def is_included(member_path: str) -> bool:
    r"""Return whether the file at the path `member_path` in PyInstaller's collection is part of the installed program.

    The path may have / or \ between the folders.
    """
    path = member_path.replace("\\", "/")
    modules = (module for module in (*RUNTIME, *codec_modules()) if module.startswith("imagecodecs."))
    if any(fnmatchcase(path, pattern) for pattern in (*_KEPT, *(f"{m.replace('.', '/')}.*" for m in modules))):
        return True
    if ".dist-info/" in path:
        return PurePosixPath(path).name in _RECORD_PARTS
    return not any(fnmatchcase(path, pattern) for pattern in _LEFT_OUT)


def is_excluded(module: str) -> bool:
    """Return whether a module, or a package that contains the module, is in the table `EXCLUDED`."""
    return any(module == name or module.startswith(name + ".") for name in EXCLUDED)


def worker_modules(package: Path) -> list[str]:
    """Return all modules that a worker process may load by name: all modules of the program except the window.

    No import statement names these modules.
    """
    found = [path.relative_to(package.parent).with_suffix("") for path in sorted(package.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in found]
    return [name for name in names if not name.startswith("fieldray.desktop")]


@functools.cache
def codec_modules() -> tuple[str, ...]:
    """Return the modules that pydicom's decoders load by name, from the program's table of decoders."""
    from fieldray.imaging.codec import codecs  # `build` and `make_deb` run without the program's libraries

    return tuple(sorted({module for codec in codecs().values() for module in codec.runtime_modules}))


def entry_modules(package: str) -> list[str]:
    """Return the modules of a package that is used as a table of entries (see `fieldray.registry`).

    No import statement names these modules.
    """
    path = importlib.import_module(package).__path__
    return [package, *(f"{package}.{module.name}" for module in pkgutil.iter_modules(path))]


def backend_modules() -> list[str]:
    """Return the modules that support the devices (such as the Edge TPU), which are loaded by name."""
    from fieldray.backends import BACKENDS

    return sorted({entry.backend_kind_function_path.partition(":")[0] for entry in BACKENDS})


def data_files(root: Path, packs: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs (file, folder in the installed program) for assets, user guide, and the packs that `packs` names."""
    # The program reads compiled catalogues. The .po files are for translators.
    files = [path for path in sorted((root / "assets").rglob("*")) if path.is_file() and path.suffix != ".po"]
    files += sorted((root / "docs" / "guide").iterdir())
    for pack in packs:
        files += [path for path in sorted((root / "models" / pack).rglob("*")) if path.is_file()]
    data = PurePosixPath("fieldray/_data")
    return [(str(path), str(data / path.parent.relative_to(root).as_posix())) for path in files]


def version(root: Path = ROOT) -> str:
    """Return the program's version. Raises ValueError if the version cannot be part of a file or package name."""
    with (root / "pyproject.toml").open("rb") as file:
        found = str(tomllib.load(file)["project"]["version"])
    if not re.fullmatch(r"\d+(\.\d+){1,3}[a-z0-9.+~]*", found):
        raise ValueError(f"{found!r} is not a version")
    return found
