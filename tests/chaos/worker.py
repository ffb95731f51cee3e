#!/usr/bin/env python3
"""A classic worker that runs programs, as upstream's does: in a directory of its own for each job, `<work-dir>/<JobId as 32
digits>`, with a copy of nothing but its inputs, and it never removes that directory (WX02, WX03, WX11).

    python3 worker.py HOST PORT --work-dir DIR [arguments of tests/classic/worker.py]
"""

from __future__ import annotations

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "classic"))

import behaviours  # noqa: E402
import common  # noqa: E402
import worker  # noqa: E402


def option(name: str) -> str:
    """Takes the option and its value out of the command line."""
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return value


WORK_DIR = option("--work-dir")
EXE_DIR = sys.argv[sys.argv.index("--exe-dir") + 1]


def work(job: behaviours.Job) -> behaviours.Outcome:
    directory = os.path.join(WORK_DIR, job.request.JobId.hex)
    os.makedirs(directory, exist_ok=True)
    for name, item in job.inputs.items():
        with open(os.path.join(directory, name), "wb") as target:
            target.write(item.content)
    # As a program that was started by hand, it goes on when its worker is killed; it ends soon.
    done = subprocess.run([os.path.join(EXE_DIR, "work"), *job.request.Args], cwd=directory, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    made = None
    if os.path.exists(os.path.join(directory, "made.bin")):
        with open(os.path.join(directory, "made.bin"), "rb") as source:
            made = source.read()
    status = "OK" if done.returncode == 0 else "FAILED"
    return behaviours.Outcome(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"), status,
                              made=made)


behaviours.BEHAVIOURS["work"] = work

if __name__ == "__main__":
    common.run(worker.main)
