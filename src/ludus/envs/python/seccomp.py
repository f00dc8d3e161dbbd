"""The system calls that a program in the sandbox may make, as a filter for the kernel.

Everything that is not listed fails with "Operation not permitted". Above all there is no call that
makes a process or a thread: RLIMIT_NPROC does not bind root, not even in a user namespace, while a
filter binds everyone. There are no sockets, no pipes, no signals to other processes, and none of
the calls that allocate memory which RLIMIT_AS does not count (shared memory, memfd).
"""

from __future__ import annotations

import errno
import struct

from ludus.errors import ConfigError

KILLED_STATUS = 137
"""The exit status that bubblewrap reports for a program that was ended by SIGKILL. The filter keeps
programs from exiting with this status, so it always means a kill: at the CPU limit, or by another
process."""

# Numbers on x86_64 and aarch64; None if an architecture does not have the call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # Files that are open, and files of the read-only root.
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "write": (1, 64),
    "writev": (20, 66),
    "open": (2, None),
    "openat": (257, 56),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "lseek": (8, 62),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    # Memory, which RLIMIT_AS counts.
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    # The process itself, which cannot start or signal another one.
    "execve": (59, 221),
    "arch_prctl": (158, None),
    "set_tid_address": (218, 96),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "futex": (202, 98),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    # Time and random numbers.
    "time": (201, None),
    "times": (100, 153),
    "gettimeofday": (96, 169),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "alarm": (37, None),
    "getrandom": (318, 278),
    "uname": (63, 160),
    "sysinfo": (99, 179),
}
# Allowed depending on their arguments.
_EXITS = {"exit": (60, 93), "exit_group": (231, 94)}
_PRLIMIT64 = (302, 261)

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the tables above, and the kernel's AUDIT_ARCH."""

_LOAD, _AND, _RETURN, _IF_EQUAL = 0x20, 0x54, 0x06, 0x15
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_ALLOW, _KILL_PROCESS, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM


def build_filter(machine: str) -> bytes:
    """Build the filter of system calls for a machine type as a BPF program."""
    if machine not in _ARCHITECTURES:
        raise ConfigError(
            f"The sandbox of the python environment runs on {' and '.join(_ARCHITECTURES)}, "
            f"and not on {machine}."
        )
    column, audit_arch = _ARCHITECTURES[machine]
    program = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_IF_EQUAL, audit_arch, then=1),
        # Calls of another architecture (32 bits) have other numbers.
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    for number in (numbers[column] for numbers in _ALLOWED.values()):
        if number is not None:
            program.append(_instruction(_IF_EQUAL, number, otherwise=1))
            program.append(_instruction(_RETURN, _ALLOW))
    for numbers in _EXITS.values():
        program += [
            _instruction(_IF_EQUAL, numbers[column], otherwise=5),
            _instruction(_LOAD, _ARGUMENTS_OFFSET),
            _instruction(_AND, 0xFF),
            _instruction(_IF_EQUAL, KILLED_STATUS, otherwise=1),
            _instruction(_RETURN, _KILL_PROCESS),
            _instruction(_RETURN, _ALLOW),
        ]
    # Limits may be read and not set: with a CPU limit of 0 a program could have itself killed.
    new_limit = _ARGUMENTS_OFFSET + 2 * 8
    program += [
        _instruction(_IF_EQUAL, _PRLIMIT64[column], otherwise=5),
        _instruction(_LOAD, new_limit),
        _instruction(_IF_EQUAL, 0, otherwise=3),
        _instruction(_LOAD, new_limit + 4),
        _instruction(_IF_EQUAL, 0, otherwise=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _REFUSE),
    ]
    return b"".join(program)


def _instruction(code: int, operand: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """A `struct sock_filter`: after a comparison, skip that many instructions."""
    return struct.pack("=HBBI", code, then, otherwise, operand)
