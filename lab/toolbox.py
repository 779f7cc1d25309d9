"""How does a command run inside one of the lab's Debian trees, leaving nothing behind?

The command gets its own mount and process namespaces.  The kernel ends them with the command, and the
command with us (parent death signal), so neither Ctrl-C nor kill -9 leaves a process or a mount.
"""

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO

from lab import cache
from lab.errors import LabCommandError

# "/" is no mount point when we run in a chroot; joining our own mount namespace once more leaves the chroot,
# and there the whole namespace can be made private so that no mount below ever shows up outside.
PRIVATE = r"""
set -e
mount --make-rprivate / 2>/dev/null || nsenter --mount=/proc/self/ns/mnt mount --make-rprivate /
"""
CONTAIN = (
    PRIVATE
    + r"""
mount -t proc proc /proc
exec "$@"
"""
)
ENTER = (
    PRIVATE
    + r"""
tree=$1 cwd=$2
shift 2
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o size=100% tmpfs "$tree/run"
mkdir "$tree/run/lock"
while [ "$1" != -- ]; do
	if [ -d "$1" ]; then mkdir -p "$tree$2"; else mkdir -p "$tree${2%/*}"; : >>"$tree$2"; fi
	mount --bind "$1" "$tree$2"
	shift 2
done
shift
exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
	chroot "$tree" sh -c 'cd "$1" && shift && exec "$@"' sh "$cwd" "$@"
"""
)

CCACHE = {
    "PATH": "/usr/lib/ccache:/usr/sbin:/usr/bin:/sbin:/bin",
    "CCACHE_DIR": "/run/ccache",
    "CCACHE_MAXSIZE": "2G",
    # Trees are unpacked anew: the compiler's time says nothing of it.
    "CCACHE_COMPILERCHECK": "content",
}

_running: set["subprocess.Popen[bytes]"] = set()
_running_lock = threading.Lock()


def enter_command(
    tree: Path, argv: Sequence[str], *, binds: Mapping[Path, Path] | None = None, cwd: str = "/"
) -> list[str]:
    """Return the command that runs ``argv`` inside the tree; ``binds`` maps paths outside to paths inside.

    Inside, /run is an empty tmpfs that goes away with the command.  The parent death signal follows the
    *thread* that starts the command: start long-lived ones from a thread that lives as long.
    """
    pairs = [str(part) for outside, inside in (binds or {}).items() for part in (outside, inside)]
    return _in_namespaces(ENTER, [str(tree), cwd, *pairs, "--", *argv])


def contained_command(argv: Sequence[str]) -> list[str]:
    """Return the command that runs ``argv`` on this machine; its processes and mounts end with us."""
    return _in_namespaces(CONTAIN, argv)


def _in_namespaces(script: str, arguments: Sequence[str]) -> list[str]:
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "unchanged"]
    return ["setpriv", "--pdeathsig", "KILL", *namespaces, "sh", "-c", script, "sh", *arguments]


@contextlib.contextmanager
def started(argv: Sequence[str], **options: IO[bytes] | int | None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command for the length of the block: it is dead when the block is left, however that happens."""
    options = {"stdin": subprocess.DEVNULL, **options}
    process = subprocess.Popen(argv, start_new_session=True, **options)  # type: ignore[call-overload]
    with _running_lock:
        _running.add(process)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        with _running_lock:
            _running.discard(process)


def kill_started() -> None:
    """Kill what other threads have started (Ctrl-C reaches the main thread only)."""
    with _running_lock:
        for process in _running:
            process.kill()


def run_in_tree(  # noqa: PLR0913 - choices by keyword, each with a default
    tree: Path,
    argv: Sequence[str],
    *,
    binds: Mapping[Path, Path] | None = None,
    cwd: str = "/",
    log: Path | None = None,
    check: bool = True,
) -> CompletedProcess[str]:
    """Run a command in the tree; its output goes to the log, or without one into the result.

    Raises LabCommandError when it fails, unless ``check`` is off.
    """
    command = enter_command(tree, argv, binds=binds, cwd=cwd)
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(log.open("ab")) if log else subprocess.PIPE
        process = stack.enter_context(started(command, stdout=sink, stderr=subprocess.STDOUT))
        output = (process.communicate()[0] or b"").decode(errors="replace")
    if check and process.returncode:
        shown = log.read_text(errors="replace") if log else output
        raise LabCommandError(" ".join(argv[:4]), returncode=process.returncode, output=shown, log=log)
    return CompletedProcess(list(argv), process.returncode, output, "")


def compile_in_tree(
    tree: Path, argv: Sequence[str], *, binds: Mapping[Path, Path], cwd: str, log: Path
) -> CompletedProcess[str]:
    """Run a build in a tree that has ccache: what was ever compiled from the same text is not compiled again.

    The build sees a compiler of the usual name, so that it does not take it for another one.
    """
    kept = cache.cache_root() / "ccache"
    kept.mkdir(parents=True, exist_ok=True)
    words = ["env", *(f"{name}={value}" for name, value in CCACHE.items()), *argv]
    return run_in_tree(tree, words, binds={**binds, kept: Path(CCACHE["CCACHE_DIR"])}, cwd=cwd, log=log)


def inside(path: Path) -> Path:
    """Return where a path of the cache is seen inside a tree when the cache is bound by ``cache_binds``."""
    return Path("/run/cache") / path.relative_to(cache.cache_root())


def cache_binds() -> dict[Path, Path]:
    """Return the bind that shows the cache inside a tree."""
    return {cache.cache_root(): Path("/run/cache")}
