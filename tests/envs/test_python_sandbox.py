"""Hostile programs: each harms nothing and gets a clear result."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.sandbox_processes import programs_in_sandboxes, sandbox_processes, wait_for
from ludus.envs.python import sandbox
from ludus.envs.python.sandbox import Limits, Outcome, SandboxFailed, open_sandbox
from ludus.envs.python.seccomp import build_filter
from ludus.errors import ConfigError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

SLEEP = "import time\ntime.sleep(600)"


def run(code: str, limits: Limits | None = None) -> Outcome:
    return open_sandbox("bwrap", limits or Limits()).run(code)


def call(code: str, *arguments: object) -> Outcome:
    return open_sandbox("bwrap", Limits()).run(code, function="f", calls=[arguments])


def open_files_and_mounts() -> tuple[int, str]:
    return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/mounts").read_text()


def test_a_program_is_shown_by_what_it_prints() -> None:
    outcome = run("import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')")
    assert outcome == Outcome(output="one\ntwo\nthree\n", exception=None, end_reason=None)


def test_an_exception_has_a_traceback_of_the_code_alone() -> None:
    outcome = run("def half(n):\n    return n / 0\n\nhalf(3)\n")
    assert outcome.exception == "ZeroDivisionError: division by zero"
    assert outcome.end_reason is None
    assert 'File "code.py", line 2, in half\n    return n / 0' in outcome.output
    assert "sandbox" not in outcome.output


def test_a_function_is_called_and_its_exceptions_are_replies() -> None:
    calls = [(1, 2), ("a", "b"), (1, "b")]
    outcome = open_sandbox("bwrap", Limits()).run(
        "def f(a, b):\n    return [a + b]", function="f", calls=calls
    )
    assert outcome.replies[:2] == [{"value": [3]}, {"value": ["ab"]}]
    assert outcome.replies[2]["error"].startswith("TypeError")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os\nwhile True:\n    os.fork()", "PermissionError"),
        ("import subprocess\nsubprocess.run(['/bin/sh'])", "PermissionError"),
        ("import threading\nthreading.Thread(target=print).start()", "can't start new thread"),
        ("import os\nos.kill(-1, 9)", "PermissionError"),
        ("import os\nos.symlink('/etc/passwd', '/out')", "PermissionError"),
        ("open('/out', 'w')", "Read-only file system"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("open('/proc/self/environ')", "FileNotFoundError"),
        ("import os\nos.chroot('/')", "PermissionError"),
        ("import resource as r\nr.setrlimit(r.RLIMIT_AS, (-1, -1))", "not allowed"),
        # It would have itself killed at once, which looks like a fault of the machine.
        ("import resource as r\nr.setrlimit(r.RLIMIT_CPU, (0, 0))", "not allowed"),
        ("x = bytearray(10**10)", "MemoryError"),
        ("x = []\nwhile True:\n    x.append(' ' * 10**6)", "MemoryError"),
    ],
)
def test_what_is_not_allowed_raises_in_the_program(code: str, error: str) -> None:
    outcome = run(code)
    assert outcome.exception is not None
    assert error in outcome.exception
    assert outcome.end_reason is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fork", ""),
        ("vfork", ""),
        ("unshare", "0x10000000"),
        ("ptrace", "0, 0, 0, 0"),
        ("shmget", "0, 1 << 30, 0o1600"),
        ("memfd_create", "b'm', 0"),
        ("socketpair", "1, 1, 0, (ctypes.c_int * 2)()"),
    ],
)
def test_the_kernel_refuses_calls_made_past_python(name: str, arguments: str) -> None:
    outcome = run(
        "import ctypes\n"
        "library = ctypes.CDLL(None, use_errno=True)\n"
        f"print(library.{name}({arguments}), ctypes.get_errno())"
    )
    assert outcome.output == "-1 1\n"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os\nos._exit(0)", "status 0"),
        ("import os\nos._exit(3)", "status 3"),
        # The status of a killed process, which would count as a fault of the machine.
        ("import os\nos._exit(137)", "SIGSYS"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("while True:\n    print('x' * 1000)", "printed more than 64 KiB"),
        ("import os\nwhile True:\n    os.write(3, b'x' * 1000)", "returned more than 64 KiB"),
    ],
)
def test_a_program_that_does_not_end_well_is_told_why(code: str, ended: str) -> None:
    outcome = run(code)
    assert outcome.end_reason is not None
    assert ended in outcome.end_reason
    assert len(outcome.output) <= Limits().output_bytes


def test_an_endless_loop_that_ignores_all_signals_is_stopped() -> None:
    code = (
        "import signal\n"
        "for number in signal.valid_signals() - {9, 19}:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "print('on and on', flush=True)\n"
        "while True:\n    pass"
    )
    outcome = run(code, Limits(cpu_s=1, wall_s=100))
    assert outcome.end_reason is not None and "1 s of CPU time" in outcome.end_reason
    assert outcome.output == "on and on\n"


def test_a_program_that_waits_with_closed_pipes_is_stopped() -> None:
    outcome = run(f"import os\nos.closerange(0, 64)\n{SLEEP}", Limits(wall_s=2))
    assert outcome.end_reason is not None and "within 2 s" in outcome.end_reason
    assert sandbox_processes() == []


def test_a_program_reaches_no_server_on_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        outcome = run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert outcome.exception is not None and "PermissionError" in outcome.exception


def test_a_program_sees_no_variable_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-you")
    outcome = run(
        "import glob, os\n"
        "print(dict(os.environ))\n"
        "for name in glob.glob('/proc/*/environ'):\n"
        "    print(open(name).read())"
    )
    assert "PYTHONHASHSEED" in outcome.output
    assert "sk-not-for-you" not in outcome.output


def test_a_program_deletes_nothing(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("still here")
    outcome = run(
        "import os, shutil\n"
        f"for path in ({str(tmp_path)!r}, '/../../..' + {str(tmp_path)!r}, '/'):\n"
        "    shutil.rmtree(path, ignore_errors=True)\n"
        f"print(os.path.exists({str(precious)!r}))"
    )
    assert outcome.output == "False\n"
    assert precious.read_text() == "still here"
    # The standard library is shared by all programs.
    assert run("import json").exception is None


def test_the_files_of_ludus_and_other_packages_are_not_there() -> None:
    outcome = run(
        "import os\n"
        "for folder, _, names in os.walk('/'):\n"
        "    if folder.endswith('-packages') and names: print(folder)\n"
        "    for name in names:\n"
        "        if name == 'sandboxed_main.py': print(folder)"
    )
    assert outcome == Outcome(output="", exception=None, end_reason=None)


def test_ludus_is_hidden_where_it_is_installed_among_what_programs_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = Path(os.__file__).resolve().parent / "ludus"
    monkeypatch.setattr(sandbox, "__file__", str(package / "envs" / "python" / "sandbox.py"))
    visible, hidden = sandbox.visible_paths()
    assert any(package.is_relative_to(path) for path in visible)
    assert package in hidden


@pytest.mark.parametrize(
    "code",
    [
        "def f(n):\n    print('{\"value\": 42}')\n    return 0",
        "class Any(int):\n    __eq__ = lambda *_: True\n    __repr__ = lambda _: '42'\n"
        "def f(n):\n    return Any(0)",
        "import builtins\nbuiltins.repr = builtins.print = lambda _: '42'\ndef f(n):\n    return 0",
    ],
)
def test_a_value_is_what_it_is_and_not_what_it_claims_to_be(code: str) -> None:
    assert call(code, 6).replies == [{"value": 0}]


def test_a_program_that_forges_replies_gains_no_more_than_by_returning_them() -> None:
    code = "import os\nos.write(3, b'{}\\n{\"value\": 1}\\n[[\\n')\ndef f(n):\n    return 2"
    assert call(code, 6).replies == [{"value": 1}]


@pytest.mark.parametrize("value", ["{1, 2}", "object()", "{1: 2}", "b''", "f"])
def test_a_value_that_is_not_json_is_an_error_of_the_call(value: str) -> None:
    (reply,) = call(f"def f(n):\n    return {value}", 6).replies
    assert reply["error"].startswith("TypeError")


def test_sessions_do_not_wait_for_one_another_and_a_killed_sandbox_is_a_fault() -> None:
    patient = open_sandbox("bwrap", Limits(wall_s=60))
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(patient.run, SLEEP)
        wait_for(programs_in_sandboxes)
        (program,) = programs_in_sandboxes()
        try:
            assert patient.run("print(1)").output == "1\n"
            assert not slow.done()
        finally:
            os.kill(program, signal.SIGKILL)
        with pytest.raises(SandboxFailed):
            slow.result()
    assert sandbox_processes() == []
    assert run("print(2)").output == "2\n"


def test_a_sandbox_ends_with_the_process_that_started_it() -> None:
    code = (
        "from ludus.envs.python.sandbox import Limits, open_sandbox\n"
        f"open_sandbox('bwrap', Limits(wall_s=600)).run({SLEEP!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        # bubblewrap and the program in it; the one that tries the sandbox ends at once.
        wait_for(lambda: len(sandbox_processes(parent.pid)) == 2)
        started = sandbox_processes(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in started))


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_programs_leave_no_process_and_no_file_behind(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    programs = [
        "def f(n):\n    return n + 1",
        "import os\nos.fork()",
        "while True:\n    print('x' * 1000)",
        "open('left', 'w').write('x')",
        "import os\nos._exit(1)",
    ]
    run("")
    before = open_files_and_mounts()
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(
            threads.map(lambda i: call(programs[i % len(programs)], 6), range(count)),
        )
    assert sum(outcome.replies == [{"value": 7}] for outcome in outcomes) == count / len(programs)
    assert sandbox_processes() == []
    assert open_files_and_mounts() == before
    assert list(tmp_path.iterdir()) == []


def test_a_machine_whose_system_calls_are_not_listed_is_named() -> None:
    assert build_filter("x86_64") != build_filter("aarch64")
    with pytest.raises(ConfigError, match="riscv64"):
        build_filter("riscv64")
