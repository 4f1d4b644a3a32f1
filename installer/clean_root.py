"""Make a small Debian or Ubuntu system in a folder, without Python and without a network, to test the package in.

The base of the system is made once by debootstrap, from the mirror that apt uses on this computer. Each test uses an
overlay over the base, which is kept in memory, and runs in separate namespaces. After a test, nothing is left. Needs
root.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLEAN_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
_LIMIT_S: Final = 300


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: the command, the exit code, and the lines of standard output and standard error."""

    command: str
    code: int
    output: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class User:
    """A user of the small system: user id `number`, and home folder `home` as a path in the small system."""

    number: int
    home: str


@dataclass(frozen=True, slots=True)
class CleanRoot:
    """The root folder of a small system, in which commands can be run."""

    path: Path

    def run(
        self, *command: str, user: User | None = None, environment: Mapping[str, str] | None = None,
        limit_s: float = _LIMIT_S,
    ) -> CommandResult:  # fmt: skip
        """Run a command in the small system, wait for its end, and return the result.

        The command runs as `user`; None for root. Raises TimeoutExpired after `limit_s` seconds.
        """
        done = subprocess.run(
            self._chrooted(command, user), env=self._environment(user, environment), capture_output=True, text=True,
            timeout=limit_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        lines = tuple(done.stdout.splitlines()), tuple(done.stderr.splitlines())
        return CommandResult(" ".join(command), done.returncode, *lines)

    def start(self, *command: str, user: User, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command in the small system as a user, without waiting for its end. Returns the process."""
        return subprocess.Popen(
            self._chrooted(command, user), env=self._environment(user, environment), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def inside(self, path: str) -> Path:
        """Return the path on this computer of `path`, an absolute path in the small system."""
        return self.path / path.lstrip("/")

    def add_user(self, name: str, *, number: int, home: str) -> User:
        """Add a user to the small system, with user id `number` and a home folder. Raises CalledProcessError."""
        subprocess.run(
            ["chroot", self.path, "useradd", "--create-home", "--home-dir", home, "--uid", str(number), name],
            check=True, env=dict(CLEAN_ENVIRONMENT), capture_output=True,
        )  # fmt: skip
        return User(number, home)

    def _chrooted(self, command: Sequence[str], user: User | None) -> list[str]:
        who = [f"--userspec={user.number}:{user.number}"] if user else []
        return ["chroot", *who, str(self.path), *command]

    def _environment(self, user: User | None, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**CLEAN_ENVIRONMENT, "HOME": user.home if user else "/root", **(more or {})}


def prepared_base(cache: Path, package: Path) -> Path:
    """Return the base folder of the small system, with the downloaded dependencies of the .deb file `package`.

    The base is made in the folder `cache` if it does not exist. This needs the network. The dependencies are not
    installed.
    """
    name, mirror = release_name(), mirror_of(release_name())
    base = cache / name
    if not (base / "prepared").exists():
        shutil.rmtree(base, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        _run("debootstrap", "--variant=minbase", name, str(base), mirror)
        (base / "prepared").touch()
    depends = subprocess.run(["dpkg-deb", "-f", package, "Depends"], capture_output=True, check=True).stdout
    stamp = base / "var/cache" / f"fieldray-{hashlib.sha256(depends).hexdigest()[:12]}"
    if not stamp.exists():
        _download(base, package)
        stamp.touch()
    return base


def _download(base: Path, package: Path) -> None:
    shutil.copyfile("/etc/resolv.conf", base / "etc/resolv.conf")
    shutil.copyfile(package, base / "tmp/fieldray.deb")
    for command in (
        ["update"],
        ["install", "--yes", "--download-only", "--no-install-recommends", "-o", "APT::Sandbox::User=root",
         "/tmp/fieldray.deb"],
    ):  # fmt: skip
        subprocess.run(
            ["chroot", base, "apt-get", *command], check=True, env=dict(CLEAN_ENVIRONMENT), stdout=subprocess.DEVNULL
        )
    (base / "tmp/fieldray.deb").unlink()


def release_name() -> str:
    """Return the code name of this computer's Debian or Ubuntu, such as "bookworm". Raises OSError if unknown."""
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    found = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.MULTILINE)
    if not found:
        raise OSError("this system does not say its code name")
    return found[1]


def mirror_of(name: str) -> str:
    """Return the address from which apt on this computer gets the packages of the release with the code name `name`.

    Raises OSError if apt has no such address.
    """
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        code_name, _, address = line.partition(" ")
        if code_name == name:
            return resolve_mirror(address)
    raise OSError(f"apt knows no mirror of {name}")


def resolve_mirror(address: str) -> str:
    """Return `address`, or the first address in the mirror list (apt-transport-mirror) that `address` names."""
    listed = address.removeprefix("mirror+file:").rstrip("/")
    return address if listed == address.rstrip("/") else Path(listed).read_text(encoding="utf-8").split()[0]


@contextlib.contextmanager
def copied_root(base: Path, scratch: Path, *, size_mb: int) -> Iterator[CleanRoot]:
    """Yield a new copy of the small system `base`, with `size_mb` MB of free space, during the block.

    The calling process must be in a separate mount namespace (see `run_isolated`).
    """
    scratch.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "tmpfs", str(scratch))
    for folder in ("upper", "work", "root"):
        (scratch / folder).mkdir()
    layers = f"lowerdir={base},upperdir={scratch}/upper,workdir={scratch}/work"
    root = scratch / "root"
    _run("mount", "-t", "overlay", "-o", layers, "overlay", str(root))
    for kind, path, options in (("proc", "proc", ""), ("sysfs", "sys", "ro"), ("tmpfs", "dev/shm", "")):
        (root / path).mkdir(exist_ok=True)
        _run("mount", "-t", kind, *(["-o", options] if options else []), kind, str(root / path))
    for device in ("null", "zero", "full", "random", "urandom", "tty"):
        (root / "dev" / device).touch()
        _run("mount", "--bind", f"/dev/{device}", str(root / "dev" / device))
    try:
        yield CleanRoot(root)
    finally:
        _run("umount", "--recursive", "--lazy", str(scratch))


def run_isolated(arguments: Sequence[str]) -> int:
    """Run a command in new namespaces: without network, with separate mounts and processes. Returns the exit code."""
    return subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *arguments],
        env={**os.environ, "FIELDRAY_ALONE": "1"}, check=False,
    ).returncode  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
