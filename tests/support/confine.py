"""Runs a program with less than it is used to: system calls that are refused (Linux), limits that are lower.

    python3 confine.py [--refuse CALL=ERROR]... [--limit NAME=SOFT[:HARD]]... -- PROGRAM [ARGUMENT]...

CALL is io_uring_setup, io_uring_enter or pipe2; ERROR is a name such as EPERM, or `kill`, which ends the process that makes the call.
NAME is a limit as Python's `resource` has it, such as nofile. What the program says on its standard error comes on its
standard output, so that whoever started it reads both in their order.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import platform
import resource
import struct
import sys

# The numbers of the calls, and what the kernel calls the machine (linux/audit.h).
CALLS = {
    "x86_64": (0xC000003E, {"io_uring_setup": 425, "io_uring_enter": 426, "pipe2": 293}),
    "aarch64": (0xC00000B7, {"io_uring_setup": 425, "io_uring_enter": 426, "pipe2": 59}),
}

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000
LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K
NUMBER_AT, MACHINE_AT = 0, 4  # in struct seccomp_data


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def refuse(refused: list[str]) -> None:
    machine, numbers = CALLS[platform.machine()]
    steps = [
        instruction(LOAD, MACHINE_AT),
        instruction(JUMP_IF_EQUAL, machine, if_true=1),
        instruction(RETURN, RET_ALLOW),
        instruction(LOAD, NUMBER_AT),
    ]
    for call, error in (one.split("=") for one in refused):
        answer = RET_KILL_PROCESS if error == "kill" else RET_ERRNO | getattr(errno, error)
        steps += [instruction(JUMP_IF_EQUAL, numbers[call], if_false=1), instruction(RETURN, answer)]
    steps.append(instruction(RETURN, RET_ALLOW))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl{arguments} failed: {os.strerror(ctypes.get_errno())}")


def limit(text: str) -> None:
    name, values = text.split("=")
    soft, _, hard = values.partition(":")
    resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (int(soft), int(hard or soft)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refuse", action="append", default=[], metavar="CALL=ERROR")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=SOFT[:HARD]")
    parser.add_argument("program", nargs="+")
    args = parser.parse_args()
    os.dup2(1, 2)
    for text in args.limit:
        limit(text)
    if args.refuse:
        refuse(args.refuse)
    os.execv(args.program[0], args.program)


if __name__ == "__main__":
    main()
