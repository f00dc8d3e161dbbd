"""Runs a model's code in a separate process, under bubblewrap, with limits.

Each program gets a new sandbox: Linux namespaces without network, a root that has only the
interpreter, its standard library and shared libraries, all read-only, none of the environment
variables, and a filter of system calls (`seccomp.py`) with which it cannot start a process or a
thread. Memory, CPU time and open files are limited by the kernel; elapsed time and output by
`Sandbox.run`. When it ends, nothing of it is left: the kernel removes the namespaces with the only
process in them.
"""

from __future__ import annotations

import json
import marshal
import os
import platform
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from ludus.envs.python.seccomp import KILLED_STATUS, build_filter
from ludus.errors import ConfigError

try:
    import resource
except ImportError:  # pragma: no cover - Windows has clients of servers only.
    resource = None  # type: ignore[assignment]  # A module has no optional type.


SandboxMode = Literal["bwrap", "none"]

MIB = 1 << 20
PROGRAMS_PER_CPU = 4
"""Programs at once: so few that waiting for one another does not cost them their elapsed time, and
that their memory is bounded."""
_MIN_KILLED_CPU_FRACTION = 0.5
"""A program that was killed with less of its CPU time did not reach the limit. The kernel compares
the limit with clock ticks, which may be more than what was used."""
_READ_BYTES = 1 << 16
# The same order of sets in every run. The other variables of the server stay outside.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
_PYTHON_OPTIONS = ("-s", "-S", "-P", "-B")


class SandboxFailed(RuntimeError):
    """The sandbox broke, and not by the program in it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use."""

    cpu_s: int = 2
    wall_s: float = 20.0
    """Elapsed time. It is for programs that wait; others have used up their CPU time before, unless
    the machine is very busy."""
    memory_mib: int = 256
    output_bytes: int = 1 << 16
    """What it may print; and what its function may return, over all calls."""

    @property
    def rlimits(self) -> dict[int, int]:
        return {
            resource.RLIMIT_CPU: self.cpu_s,
            resource.RLIMIT_AS: self.memory_mib * MIB,
            resource.RLIMIT_FSIZE: 0,
            resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_CORE: 0,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program did."""

    output: str
    """What it printed, stdout and stderr together."""
    exception: str | None
    """What the code raised, in one line; the traceback is in the output."""
    end_reason: str | None
    """What ended the program, in a sentence; None if it ran to its end."""
    replies: list[Any] = field(default_factory=list)
    """`{"value": …}` or `{"error": …}` per call, for as many calls as were made. The program may
    have forged them: they can be any JSON value."""


def _reset_slots() -> None:
    """A slot that another thread held is never released in a forked process."""
    global _slots
    _slots = threading.BoundedSemaphore(PROGRAMS_PER_CPU * (os.cpu_count() or 1))


_slots: threading.BoundedSemaphore
_reset_slots()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_slots)


class Sandbox:
    """A way to run programs. It holds no process and no file, and may be used by many threads."""

    def __init__(self, mode: SandboxMode, limits: Limits) -> None:
        self.limits = limits
        self._isolated = mode == "bwrap"
        program = files(__package__).joinpath("sandboxed_main.py").read_text(encoding="utf-8")
        self._python = [str(base_python()), *_PYTHON_OPTIONS, "-c", program]
        if self._isolated:
            self._bubblewrap, self._options = find_bubblewrap(), bubblewrap_options()
            self._filter = build_filter(platform.machine())

    def run(
        self, code: str, *, function: str | None = None, calls: Sequence[Sequence[Any]] = ()
    ) -> Outcome:
        """Execute the code; then call the function that it defines, once per list of arguments.

        Raises `SandboxFailed` if the program is not to blame.
        """
        request: Any = (code, function, calls)
        with _slots:
            process = self._start()
            try:
                replies, output, stop_reason = self._communicate(process, marshal.dumps(request))
            finally:
                status, cpu_s = self._end(process)
        text = output.decode("utf-8", "replace")
        first_line, *lines = replies.split(b"\n")[:-1] or [b""]
        if first_line != b'"started"':
            raise SandboxFailed(f"The sandbox did not start (status {status}): {text.strip()}")
        if not stop_reason and status in (KILLED_STATUS, -signal.SIGKILL):
            if self._isolated and cpu_s < _MIN_KILLED_CPU_FRACTION * self.limits.cpu_s:
                raise SandboxFailed("The sandbox was killed from outside.")
            stop_reason = f"it used more than {self.limits.cpu_s} s of CPU time"
        parsed_replies: list[Any] = []
        for line in lines[: len(calls) + 1]:
            reply = None  # The program may write anything.
            with suppress(ValueError, RecursionError):
                reply = json.loads(line)
            parsed_replies.append(reply)
        execution = parsed_replies[0] if parsed_replies else None
        end_reason = None
        if stop_reason:
            end_reason = f"The program was stopped: {stop_reason}."
        elif status or not isinstance(execution, dict):
            number = status - 128 if status > 128 else -status
            end_reason = f"The program exited with status {status}."
            with suppress(ValueError):
                end_reason = f"The program crashed ({signal.Signals(number).name})."
        exception = execution.get("error") if isinstance(execution, dict) else None
        return Outcome(
            output=text,
            exception=exception if isinstance(exception, str) else None,
            end_reason=end_reason,
            replies=parsed_replies[1:],
        )

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a process that does nothing before it has its limits.

        bubblewrap first waits for its options, and Python without it for the request.
        """
        if not self._isolated:
            return self._spawn(self._python)
        with ExitStack() as stack:
            pipes = [os.pipe(), os.pipe()]
            fds = [stack.enter_context(FileIO(reader, "rb")).fileno() for reader, _ in pipes]
            options, filter = (stack.enter_context(FileIO(end, "wb")) for _, end in pipes)
            process = self._spawn([self._bubblewrap, "--args", str(fds[0]), *self._python], fds)
            with suppress(BrokenPipeError):
                filter.write(self._filter)
                options.write("\0".join([*self._options, "--seccomp", str(fds[1])]).encode())
        return process

    def _spawn(self, command: list[str], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                cwd="/",
                pass_fds=pass_fds,
                # Ctrl-C is handled by this process.
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFailed(f"{command[0]} could not be started: {error}") from error
        try:
            for limit, value in self.limits.rlimits.items():
                resource.prlimit(process.pid, limit, (value, value))
        except OSError as error:
            process.kill()
            process.communicate()
            raise SandboxFailed(f"{command[0]} cannot be limited: {error}") from error
        return process

    def _communicate(
        self, process: subprocess.Popen[bytes], request: bytes
    ) -> tuple[bytes, bytes, str]:
        """Send the request; returns replies, output, and why the program must be stopped, if so."""
        assert process.stdin and process.stdout and process.stderr
        deadline = time.monotonic() + self.limits.wall_s
        # All of it is read before any of the code runs, so that this does not block.
        with suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()
        replies, output = bytearray(), bytearray()
        stop_reason = ""
        exit_fd = os.pidfd_open(process.pid)
        with (
            closing(os.fdopen(exit_fd, "rb", buffering=0)),
            selectors.DefaultSelector() as selector,
        ):
            selector.register(process.stdout, selectors.EVENT_READ, replies)
            selector.register(process.stderr, selectors.EVENT_READ, output)
            # A program may close both pipes and go on.
            selector.register(exit_fd, selectors.EVENT_READ)
            while selector.get_map() and not stop_reason:
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    stop_reason = f"it did not end within {self.limits.wall_s:g} s"
                for key, _ in events:
                    data = os.read(key.fd, _READ_BYTES) if key.fd != exit_fd else b""
                    if not data:
                        selector.unregister(key.fileobj)
                        continue
                    key.data.extend(data)
                    if len(key.data) > self.limits.output_bytes:
                        del key.data[self.limits.output_bytes :]
                        verb = "printed" if key.data is output else "returned"
                        stop_reason = f"it {verb} more than {self.limits.output_bytes >> 10} KiB"
        return bytes(replies), bytes(output), stop_reason

    def _end(self, process: subprocess.Popen[bytes]) -> tuple[int, float]:
        """Kill what still runs, and wait for it; returns exit status and CPU time."""
        if not self._isolated:
            # It may have started others. Until it is waited for, its number is not used again.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if has_ended is None and not _kill_only_child(process.pid):
                process.kill()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            # Data that could not be sent is still buffered.
            with suppress(BrokenPipeError):
                pipe.close()
        return process.returncode, usage.ru_utime + usage.ru_stime


@cache
def open_sandbox(mode: SandboxMode, limits: Limits) -> Sandbox:
    """A sandbox that was tried once; raises `ConfigError` if none can be made."""
    if sys.platform != "linux":
        raise ConfigError("The python environment runs on Linux only.")
    sandbox = Sandbox(mode, limits)
    try:
        sandbox.run("")
    except SandboxFailed as error:
        raise ConfigError(f"No sandbox can be made on this machine. {error} {ADVICE}") from None
    return sandbox


def _kill_only_child(pid: int) -> bool:
    """Kill the program in bubblewrap's process, which then reaps it and exits; False if none.

    If bubblewrap itself were killed, the program would be left to the machine's init process,
    which in a container may be one that reaps nothing.
    """
    children = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError, ValueError):
        (child,) = map(int, children.read_text().split())
        handle = os.pidfd_open(child)
        try:
            # If it is still a child now, its number was not given to another process meanwhile.
            if str(child) in children.read_text().split():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


MODE_VARIABLE = "LUDUS_PYTHON_SANDBOX"
ADVICE = f"To run the code of models without a sandbox, set {MODE_VARIABLE}=none."

_LIBRARY_DIRS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def find_bubblewrap() -> str:
    """The path of the program; raises `ConfigError` if it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise ConfigError(
            "The python environment needs bubblewrap (bwrap), which is not installed. "
            f"Install it: apt install bubblewrap. {ADVICE}"
        )
    return program


def bubblewrap_options() -> list[str]:
    """The options that make the sandbox: namespaces, identity and root."""
    options = ["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--as-pid-1"]
    visible, hidden = visible_paths()
    for path in map(str, visible):
        options += ["--ro-bind", path, path]
    for path in map(str, hidden):
        options += ["--tmpfs", path, "--remount-ro", path]
    return [*options, "--remount-ro", "/", "--chdir", "/"]


def visible_paths() -> tuple[list[Path], list[Path]]:
    """The paths that the interpreter needs in the sandbox, and the paths below them to hide.

    Installed packages are hidden, above all this one, which has the tests of the tasks.
    """
    multiarch = sysconfig.get_config_var("MULTIARCH") or "."
    libraries = [
        path / multiarch if (path / multiarch).is_dir() else path
        for path in map(Path, _LIBRARY_DIRS)
        if path.is_dir()
    ]
    # In a virtual environment: the paths of the interpreter that it refers to.
    prefixes = {"platbase": sys.base_exec_prefix}
    standard = {
        Path(sysconfig.get_path(name, vars=prefixes)).resolve() for name in ("stdlib", "platstdlib")
    }
    own_libraries = Path(sys.base_prefix, "lib").resolve()
    if own_libraries not in map(Path, _LIBRARY_DIRS):
        # An interpreter of pyenv, conda, uv or /usr/local, which may bring shared libraries.
        standard = {path for path in standard if not path.is_relative_to(own_libraries)}
        standard.add(own_libraries)
    visible = [base_python(), *libraries, *sorted(standard)]
    hidden = [
        path
        for top in visible
        for pattern in ("*-packages", "python*/*-packages")
        for path in top.glob(pattern)
    ]
    package = Path(__file__).resolve().parents[2]
    if any(map(package.is_relative_to, visible)) and not any(map(package.is_relative_to, hidden)):
        hidden.append(package)
    return visible, hidden


def base_python() -> Path:
    """The interpreter that a virtual environment refers to."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()
