"""Runs a command on a terminal of so many columns, and writes what the terminal got.

    terminal.py COLUMNS PROGRAM [ARGUMENT...]
"""

import fcntl
import os
import pty
import struct
import sys
import termios


def main():
    columns, program = int(sys.argv[1]), sys.argv[2:]
    pid, terminal = pty.fork()
    if pid == 0:
        size = struct.pack("HHHH", 50, columns, 0, 0)
        fcntl.ioctl(1, termios.TIOCSWINSZ, size)
        os.environ.setdefault("TERM", "xterm")
        os.execv(program[0], program)
    while True:
        try:
            got = os.read(terminal, 65536)
        except OSError:
            break
        if not got:
            break
        os.write(1, got)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


main()
