"""The guard that refuses the internet: installed first in every process, and not passed by accident."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import struct
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fieldray
from fieldray.command_names import (
    BUILTIN_COMMANDS,
    OPTIONAL_PACKAGES,
    command_line_module_of,
    command_line_modules,
    has_only_image_paths,
    is_command,
    opens_window,
)
from fieldray.offline import allow_only_display_connection, is_display_remote, seccomp_filter
from fieldray.paths import child_process_command, program_command
from program import python

PACKAGE = Path(fieldray.__file__).parent
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's filter is Linux's")


def run(code: str, *arguments: str, **environment: str) -> str:
    """The output of a separate Python process."""
    done = python(code, *arguments, environment={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the guard comes first


def modules() -> Iterator[tuple[str, str]]:
    for package in ("fieldray", *OPTIONAL_PACKAGES):
        for path in sorted((PACKAGE.parent / package).rglob("*.py")):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            yield name, path.read_text(encoding="utf-8")


def entries() -> list[str]:
    """Every module of the packages that can be run with -m."""
    return [name for name, text in modules() if re.search(r"""^if __name__ == ["']__main__["']""", text, re.MULTILINE)]


def test_only_known_modules_are_entry_points() -> None:
    assert entries() == [
        "fieldray.__main__",
        "fieldray.processes.child_main",
        "fieldray_cluster.node_main",
        "fieldray_cluster.workflow.guard",
        "fieldray_cluster.workflow.trial_command",
    ]
    assert child_process_command("fieldray.bench.machine:handle")[-2:] == [
        "fieldray.processes.child_main",
        "fieldray.bench.machine:handle",
    ]
    assert program_command("screen")[-2:] == ["fieldray.__main__", "screen"]
    project = PACKAGE.parent.parent / "pyproject.toml"
    if project.is_file():
        scripts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["scripts"]
        assert {script.partition(":")[0] for script in scripts.values()} <= set(entries())


# Prints the modules outside the standard library that are loaded when the guard installs its audit hook.
WHEN_GUARDED = """
import runpy, sys
before = set(sys.modules)
def watch(event, arguments):
    if event == "sys.addaudithook":
        new = [name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names]
        print(sorted(new), flush=True)
sys.addaudithook(watch)
name, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
except SystemExit as end:
    sys.exit(0 if end.code in (0, 2) else end.code)
"""


@pytest.mark.parametrize(
    "command",
    [
        ["fieldray.__main__", "screen", "--help"],
        ["fieldray.__main__", "adapt", "run", "--help"],
        ["fieldray.__main__", "demo", "--help"],
        ["fieldray.processes.child_main", "elsewhere:handle"],
        ["fieldray.__main__", "archive", "screen", "--help"],
        ["fieldray.__main__", "workflow", "run", "--help"],
    ],
    ids=["screen", "adapt", "demo", "child", "archive", "workflow"],
)
def test_nothing_is_imported_before_the_guard(command: list[str]) -> None:
    first = run(WHEN_GUARDED, *command, PYTHONPATH="").splitlines()[0]
    own = {"fieldray", "fieldray.processes", "fieldray.offline", "fieldray.command_names"}
    assert set(ast.literal_eval(first)) <= own | {
        *OPTIONAL_PACKAGES,
        *(f"{package}.command_line" for package in OPTIONAL_PACKAGES),
    }


# Modules that start other programs, and why these programs need no further guard.
STARTS_PROGRAMS = {
    "fieldray.processes.child": "our own child, which begins with the guard",
    "fieldray.desktop.past_runs": "the system's window on a folder, where a person asks to see what was saved",
    "fieldray.process_environment": "the installed window, which begins with the guard",
    "fieldray_cluster.node": "processes of a cluster, which begin with the guard and speak by asyncio",
    "fieldray_cluster.connection": "none: a coroutine is run on the loop of Dask's client",
    "fieldray_cluster.workflow.tasks": "the guard of a command",
    "fieldray_cluster.workflow.guard": "the command that the user's recipe names",
    "fieldray_adapt.networks.edgetpu": "the compiler the user installed",
    "fieldray_cluster.commands.training": "the command adapt fetch, which begins with the guard",
    "fieldray.bench.machine": "sysctl, pmset and powercfg, of the system",
}
# By library, by Qt (also opening a page or a file), or by the os module.
WAYS_TO_START = re.compile(
    r"\b(subprocess|multiprocessing|ProcessPoolExecutor|webbrowser|QProcess|QDesktopServices|asyncio|pty"
    r"|os\.(system|popen|startfile|fork|forkpty|exec[lv]\w*|spawn\w+|posix_spawn\w*))\b"
)


def test_only_known_modules_start_programs() -> None:
    mentioned = [(name, text) for name, text in modules() if WAYS_TO_START.search(text)]
    assert {name for name, text in mentioned if WAYS_TO_START.search(without_words(text))} == set(STARTS_PROGRAMS)


def without_words(text: str) -> str:
    """A module's code without comments and strings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree)


# ---- accidental ways around the guard

ATTEMPTS = """
import ctypes, importlib, json, socket, sys, _socket
from fieldray.offline import stay_offline
stay_offline(is_toolchain="toolchain" in sys.argv)
stay_offline()
attempts = {
    "a socket": lambda: socket.socket(),
    "an IPv6 socket": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "without the module": lambda: _socket.socket(),
    "a subclass": lambda: type("Mine", (socket.socket,), {})(),
    "after a reload": lambda: importlib.reload(socket).socket(),
    "a server": lambda: socket.create_server(("127.0.0.1", 0)),
    "a connection": lambda: socket.create_connection(("127.0.0.1", 9)),
    "a name": lambda: socket.getaddrinfo("localhost", 80),
    "an old name": lambda: socket.gethostbyname("localhost"),
    "a page": lambda: __import__("urllib.request").request.urlopen("http://127.0.0.1:9/"),
    "http": lambda: __import__("http.client").client.HTTPConnection("127.0.0.1", 9).connect(),
    "mail": lambda: __import__("smtplib").SMTP("127.0.0.1", 9),
    "a browser": lambda: __import__("webbrowser").GenericBrowser("true").open("http://127.0.0.1:9/"),
    "a library that does it when imported": lambda: importlib.import_module("calls_home"),
    "ctypes": lambda: ctypes.CDLL(None).socket,
    "ctypes of a library": lambda: ctypes.CDLL("C:/Windows/System32/WS2_32.dll"),
    "a socket from elsewhere": lambda: socket.socket(fileno=0),
}
refused = {}
for name, attempt in attempts.items():
    try:
        attempt()
    except Exception as error:
        refused[name] = type(error).__name__
    else:
        refused[name] = "went through"
print(json.dumps(refused))
"""


@pytest.fixture
def calls_home(tmp_path: Path) -> str:
    (tmp_path / "calls_home.py").write_text("import socket\nsocket.socket().connect(('127.0.0.1', 9))\n")
    return os.pathsep.join([str(tmp_path), *sys.path])


@pytest.mark.parametrize("kind", ["program", "toolchain"])
def test_every_way_to_the_network_in_python_is_refused(kind: str, calls_home: str) -> None:
    refused = json.loads(run(ATTEMPTS, kind, PYTHONPATH=calls_home))
    assert set(refused.values()) == {"InternetRefused"}, refused


GOES_ON = """
import socket, urllib.request, pathlib, sys, ctypes
from fieldray.offline import stay_offline
stay_offline()
one, other = socket.socketpair()
one.sendall(b"inside"); assert other.recv(6) == b"inside"; one.close(); other.close()
file = pathlib.Path(sys.argv[1]); file.write_text("a file")
with urllib.request.urlopen(file.as_uri()) as page: assert page.read() == b"a file"
socket.gethostname()
assert ctypes.CDLL(None).getpid() > 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there a socket pair is made of internet sockets")
def test_local_sockets_and_files_still_work(tmp_path: Path) -> None:
    run(GOES_ON, str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["requests", "PySide6.QtNetwork"])
def test_network_libraries_cannot_be_imported(name: str) -> None:
    code = "import sys; from fieldray.offline import stay_offline; stay_offline()\ntry: __import__(sys.argv[1])\n"
    assert run(code + "except ModuleNotFoundError: print('absent')", name) == "absent\n"


def test_the_window_loads_no_network_module_of_qt() -> None:
    pytest.importorskip("PySide6")
    code = (
        "import sys; from fieldray.offline import stay_offline; stay_offline(shows_window=True)\n"
        "import fieldray.desktop.application\nprint('PySide6.QtWidgets' in sys.modules)\n"
        "print(any('Qt6Network' in line for line in open('/proc/self/maps')) if sys.platform == 'linux' else False)"
    )
    assert run(code).split() == ["True", "False"]


# ---- native code, held back by the kernel

NATIVE = """
import ctypes, json, socket, subprocess, sys
from fieldray.offline import stay_offline
stay_offline(is_toolchain="toolchain" in sys.argv, shows_window="window" in sys.argv)
system = ctypes.CDLL(None, use_errno=True)
call = {"x86_64": 41, "aarch64": 198}[__import__("os").uname().machine]
def attempt(family):
    made = system.syscall(ctypes.c_long(call), family, 2, 0)
    return ctypes.get_errno() if made < 0 else 0
shell = subprocess.run(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9"], capture_output=True, text=True).stderr
families = [attempt(family) for family in (1, 16, 2, 10, 17)]
print(json.dumps({"families": families, "shell": "denied" if "denied" in shell else shell}))
"""


@on_linux
def test_native_code_and_child_programs_are_refused_too() -> None:
    seen = json.loads(run(NATIVE, DISPLAY="far.example:0"))
    # inside the computer: AF_UNIX, AF_NETLINK; refused: AF_INET, AF_INET6, AF_PACKET
    assert seen == {"families": [0, 0, errno.EACCES, errno.EACCES, errno.EACCES], "shell": "denied"}


@on_linux
def test_an_x11_display_over_ssh_is_reachable_only_for_the_window() -> None:
    far, xcb = "localhost:10.0", ""
    assert json.loads(run(NATIVE, "window", DISPLAY=far, QT_QPA_PLATFORM=xcb))["families"][2] == 0
    for display, platform in ((":0", xcb), ("x:", xcb), (far, "vnc"), (far, "offscreen")):
        seen = json.loads(run(NATIVE, "window", DISPLAY=display, QT_QPA_PLATFORM=platform))
        assert seen["families"][2:] == [errno.EACCES] * 3


# Another program of this user has an open connection.
TAKEN = """
import ctypes, errno, json, subprocess, sys
from fieldray.offline import stay_offline
other = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
number = int(other.stdout.readline())
stay_offline()
system = ctypes.CDLL(None, use_errno=True)
process = system.syscall(434, other.pid, 0)
taken = system.syscall(438, process, number, 0)
told = [process >= 0, taken, ctypes.get_errno()]
attached = system.ptrace(0x4206, other.pid, None, None)
print(json.dumps([*told, attached, ctypes.get_errno()]))
other.communicate("\\n")
"""
HAS_CONNECTION = "import socket; one = socket.create_server(('127.0.0.1', 0)); print(one.fileno(), flush=True); input()"


@on_linux
def test_a_connection_of_another_program_cannot_be_taken() -> None:
    seen = json.loads(run(TAKEN, HAS_CONNECTION))
    assert seen == [True, -1, errno.EACCES, -1, errno.EACCES]


# Besides the thread that connected to the display, an older thread tries to connect, and so does a child process.
CONNECTED = (
    NATIVE.partition("shell = ")[0]
    + """
import threading
from fieldray.offline import block_further_connections
from fieldray.processes.child import Child
from fieldray.processes.wire import Message
child = Child("fieldray.bench.machine:handle")
child.start()
child.call(Message({"share": 0.01, "is_irregular": False, "seed": 1}), timeout_s=60)
child_is_held = "Seccomp:\t2" in open(f"/proc/{child.pid}/status").read()
child.close()
is_there, others = threading.Event(), []
def work(): is_there.wait(); others.append([attempt(family) for family in (1, 2, 10)])
thread = threading.Thread(target=work); thread.start()
before = attempt(2)
try: socket.socket()
except PermissionError: python_is_held = True
block_further_connections()
is_there.set(); thread.join()
print(json.dumps([before, python_is_held, child_is_held, others[0], [attempt(family) for family in (1, 2, 10)]]))
"""
)


@on_linux
def test_after_the_display_no_other_connection_is_allowed() -> None:
    held = [0, errno.EACCES, errno.EACCES]
    seen = json.loads(run(CONNECTED, "window", DISPLAY="localhost:10.0", QT_QPA_PLATFORM="xcb"))
    assert seen == [0, True, True, held, held]


def test_only_a_usual_display_name_counts_as_remote() -> None:
    far = ("localhost:10.0", "LOCALHOST:10", "far.example:0", "tcp/far.example:0.1", "192.0.2.7:0", "[2001:db8::7]:1.0")
    near = ("", ":0", ":0.0", "unix:0", "x:", "x", "x:y", "x:0.y", "x:0;y:1", "x y:0", "/tmp/x:0", "far..:", "-x:0")
    assert [display for display in far if not is_display_remote({"DISPLAY": display})] == []
    assert [display for display in near if is_display_remote({"DISPLAY": display})] == []


def test_a_remote_display_allows_no_other_server() -> None:
    far = {
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus;tcp:host=far.example,port=80",
        "AT_SPI_BUS_ADDRESS": "tcp:host=far.example,port=80",
        "IBUS_ADDRESS": "unixexec:path=/tmp/program",
        "SESSION_MANAGER": "local/here:@/tmp/.ICE-unix/1,tcp/far.example:80",
    }
    allow_only_display_connection(far)
    nowhere = "unix:path=/dev/null"
    assert far == dict.fromkeys(("DBUS_SESSION_BUS_ADDRESS", "AT_SPI_BUS_ADDRESS", "IBUS_ADDRESS"), nowhere)
    near = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus,guid=1", "SESSION_MANAGER": "local/here:@/tmp/.ICE-unix/1"}
    kept = dict(near)
    allow_only_display_connection(kept)
    assert kept == near
    for before, bus in (({"XDG_RUNTIME_DIR": "/run/user/7"}, "unix:path=/run/user/7/bus"), ({}, nowhere)):
        environment = dict(before)
        allow_only_display_connection(environment)  # otherwise a program is started that looks for one
        assert environment == {**before, "DBUS_SESSION_BUS_ADDRESS": bus}


def test_only_files_and_folders_as_arguments_open_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("images", "screen", "-h"):
        (tmp_path / name).mkdir()
    (tmp_path / "image.dcm").touch()
    for arguments in ([], ["images"], ["image.dcm", "images"], [str(tmp_path)], ["./screen"], ["images", "screen"]):
        assert has_only_image_paths(arguments), arguments
    for arguments in (
        ["screen"],
        ["screen", "images"],
        ["-h"],
        ["images", "-h"],
        ["images", "missing"],
        ["missing"],
        ["image.dcm/"],
        [""],
        ["x" * 5000],
        ["images\0"],
    ):
        assert not has_only_image_paths(arguments), arguments


def test_the_names_of_the_commands_are_known_before_they_are_imported() -> None:
    shown = re.search(r"\n\s+COMMAND\n(.*?)\n\n", run("from fieldray.cli import run; run(['--help'])"), re.DOTALL)
    assert shown
    named = re.findall(r"^    (\w+)", shown.group(1), re.MULTILINE)
    assert set(named) == {*BUILTIN_COMMANDS}.union(*(each.COMMANDS for each in command_line_modules()))
    assert named[: len(BUILTIN_COMMANDS)] == list(BUILTIN_COMMANDS)


def test_optional_packages_are_asked_only_for_their_commands() -> None:
    assert [command_line_module_of(name) for name in ("screen", "images", "")] == [None] * 3
    assert is_command("screen") and is_command("adapt") and is_command("workflow")
    assert not is_command("images")
    shown = run("from fieldray.cli import run; import sys; run(['screen', '--help']); print(sorted(sys.modules))")
    loaded = {name for name in ast.literal_eval(shown.splitlines()[-1]) if name.startswith(OPTIONAL_PACKAGES)}
    assert loaded == {*OPTIONAL_PACKAGES, *(f"{package}.command_line" for package in OPTIONAL_PACKAGES)}


WITHOUT_THEM = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("fieldray_adapt", "fieldray_cluster"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from fieldray.__main__ import main
for words in (["screen", "--help"], ["adapt", "run", "recipe.toml"], ["nonsense"]):
    print(main(words), file=sys.stderr)
"""


def test_commands_of_missing_optional_packages_name_the_package() -> None:
    code, said, *rest = python(WITHOUT_THEM).stderr.splitlines()
    assert (code, rest[0], rest[2]) == ("0", "2", "2"), (said, rest)
    assert said == (
        "fieldray: The command adapt is not installed. Install the commands for making packs and for archives, "
        "clusters and workflows with: pip install 'fieldray[adapt,cluster]'"
    )


def test_commands_without_a_window_never_wait_for_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    assert opens_window([]) and opens_window(["demo"]) and opens_window(["demo", "--fresh"])
    assert opens_window(["images"])
    for command in (
        ["screen", "images"],
        ["packs", "list"],
        ["demo", "--no-window"],
        ["bench"],
        ["doctor"],
        ["--help"],
    ):
        assert not opens_window(command)


def filter_result(code: bytes, *, architecture: int, number: int, argument: int) -> int:
    """The return value of the seccomp filter for a system call, computed as the kernel does it."""
    facts = {0: number, 4: architecture, 16: argument}
    steps: list[Any] = list(struct.iter_unpack("=HBBI", code))
    accumulator = position = 0
    while True:
        operation, if_true, if_false, operand = steps[position]
        position += 1
        if operation == 0x20:
            accumulator = facts[operand]
        elif operation == 0x06:
            return int(operand)
        else:
            holds = accumulator == operand if operation == 0x15 else accumulator >= operand
            position += if_true if holds else if_false


@pytest.mark.parametrize(
    ("architecture", "socket_call", "on_others"), [(0xC000003E, 41, (101, 311)), (0xC00000B7, 198, (117, 271))]
)
def test_the_seccomp_filter_refuses_only_internet_calls(
    architecture: int, socket_call: int, on_others: tuple[int]
) -> None:
    code = seccomp_filter(architecture, socket_call, on_others)
    allow, refuse, absent = 0x7FFF0000, 0x50000 | errno.EACCES, 0x50000 | errno.ENOSYS

    def asked(number: int, argument: int = 0, machine: int = architecture) -> int:
        return filter_result(code, architecture=machine, number=number, argument=argument)

    assert [asked(socket_call, family) for family in (1, 16)] == [allow, allow]
    assert {asked(socket_call, family) for family in range(64) if family not in (1, 16)} == {refuse}
    refused = (socket_call, 438, *on_others)  # pidfd_getfd, ptrace and process_vm_writev reach into other processes
    assert {asked(number, 2) for number in range(500) if number not in (*refused, 425)} == {allow}
    assert {asked(number, 2) for number in refused} == {refuse}
    assert asked(425) == absent  # io_uring_setup, which could open sockets by itself
    assert asked(socket_call, 1, machine=0x40000003) == refuse  # 32-bit calls from a 64-bit program
    assert asked(0x40000000 + socket_call, 1) == refuse  # x32


@pytest.mark.parametrize(
    ("arguments", "joins"),
    [
        (["adapt", "run", "recipe.toml"], False),
        (["adapt", "run", "recipe.toml", "--mode", "async"], True),
        (["adapt", "run", "recipe.toml", "--mode=sync-join"], True),
        (["adapt", "train", "recipe.toml", "--mode=local"], False),
        (["adapt", "run", "recipe.toml", "--mode", "local", "--mode=async"], True),
        (["adapt", "estimate", "--mode", "async"], False),
        (["adapt", "measure-cluster", "recipe.toml"], True),
        (["adapt", "fetch", "recipe.toml"], True),
        (["adapt", "run", "recipe.toml", "--fetch"], False),  # it starts the command above
        (["adapt", "--mode"], False),
        (["screen", "run", "--mode", "async"], False),
        (["images"], False),
        ([], False),
        (["archive", "screen", "scans"], True),
        (["cluster", "certificates", "folder"], False),
        (["cluster", "join", "10.0.0.1:8786"], True),
        (["workflow", "run", "recipe.toml"], True),
        (["workflow", "status", "recipe.toml"], False),
    ],
)
def test_only_cluster_commands_and_modes_join_a_cluster(arguments: list[str], joins: bool) -> None:
    command_line = command_line_module_of(arguments[0]) if arguments else None
    assert (command_line is not None and command_line.joins_cluster(arguments)) is joins
