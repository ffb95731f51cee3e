"""What the classic F2 worker "executes": behaviours in place of `<ExecName>.exe`, around the steps of upstream's worker.

The order of the steps is the classic one (WX03): find the executable, write the inputs, run, zip, acknowledge. Inputs
live in memory; only the cache is read from disk, without any check of the path (WX11).
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import threading
from dataclasses import dataclass
from typing import Callable

from models import CachePutRequest, InputFile, JobRequest, JobResult

PRINTED_LINE = "aé日😀\"\\<+>" + "-" * 84 + "\n"
BAD_BYTES = b"good \xff\xfe bad \xc3( cut \xe6\x97\n"


class JobFailed(Exception):
    """Ends a job as FAILED with this text in Stderr, before any process has run: nothing is zipped."""


@dataclass
class Input:
    content: bytes
    source: str  # "inline" or the path in the cache


@dataclass
class Job:
    request: JobRequest
    inputs: dict[str, Input]
    stop: threading.Event  # set when the worker ends: nothing may wait longer

    def argument(self, index: int, otherwise: str) -> str:
        return self.request.Args[index] if index < len(self.request.Args) else otherwise


@dataclass
class Outcome:
    stdout: str = ""
    stderr: str = ""
    status: str = "OK"
    ran: bool = True  # a process ran and ended, so its directory is zipped (WX04)
    empty_ack: bool = False
    made: bytes | None = None  # a file made.bin that the process left, for the zip
    body_bytes: int | None = None  # pad Stdout until the AckJob's body has this size


class Crash(Exception):
    """The worker is to end in the middle of the job, by its connection only or as a process."""

    def __init__(self, close_only: bool):
        super().__init__("crash")
        self.close_only = close_only


class Hung(Exception):
    """The worker ended while the job ran: no ack."""


# --- behaviours -------------------------------------------------------------------------------------------------


def echo(job: Job) -> Outcome:
    lines = [" ".join(job.request.Args)]
    lines += [f"{name} {hashlib.sha256(item.content).hexdigest()}" for name, item in job.inputs.items()]
    return Outcome("".join(line + "\n" for line in lines))


def cache(job: Job) -> Outcome:
    """Where each input came from."""
    return Outcome("".join(f"{name} {len(item.content)} {hashlib.sha256(item.content).hexdigest()} {item.source}\n"
                           for name, item in job.inputs.items()))


def fail(job: Job) -> Outcome:
    """As a process that could not be started (WX05)."""
    raise JobFailed(f"Process error: {' '.join(job.request.Args) or 'asked to fail'}")


def exit3(job: Job) -> Outcome:
    """Exit code 3. The number itself is nowhere in a JobResult (WX05)."""
    return Outcome("before the end\n", "exit code 3\n", "FAILED")


def sleep(job: Job) -> Outcome:
    if job.stop.wait(float(job.argument(0, "0"))):
        raise Hung
    return Outcome("slept\n")


def hang(job: Job) -> Outcome:
    """Never ends, like a process that filled the stderr pipe (WX11)."""
    job.stop.wait()
    raise Hung


def crash(job: Job) -> Outcome:
    raise Crash(close_only=job.argument(0, "") == "close")


def badutf8(job: Job) -> Outcome:
    """Output that held invalid UTF-8; Args[0] may give other bytes in hex. .NET and Python replace alike, one U+FFFD
    for each maximal broken part."""
    data = bytes.fromhex(job.argument(0, BAD_BYTES.hex()))
    return Outcome(data.decode("utf-8", "replace"))


def big(job: Job) -> Outcome:
    """An AckJob whose body has Args[0] bytes, over the limit too (W06)."""
    return Outcome(body_bytes=int(job.argument(0, "4194304")))


def make(job: Job) -> Outcome:
    """A file of Args[0] bytes that do not compress, for the archive of a worker on Windows. Says its SHA-256."""
    made = random.Random(1).randbytes(int(job.argument(0, "0")))
    return Outcome(f"made.bin {hashlib.sha256(made).hexdigest()}\n", made=made)


def prints(job: Job) -> Outcome:
    """Args[0] lines on Stdout, Args[1] on Stderr, of characters that JSON escapes, and a file of Args[2] bytes."""
    lines = [PRINTED_LINE * int(job.argument(index, "0")) for index in (0, 1)]
    return Outcome(*lines, made=random.Random(2).randbytes(int(job.argument(2, "0"))))


def empty(job: Job) -> Outcome:
    """The ack of a 001 worker: no payload (T03, C17)."""
    return Outcome(empty_ack=True)


def duplicate(job: Job) -> Outcome:
    """DUPLICATE at first sight, as after a result that was lost on its way (C17)."""
    return Outcome(status="DUPLICATE", ran=False)


Behaviour = Callable[[Job], Outcome]
BEHAVIOURS: dict[str, Behaviour] = {
    behaviour.__name__: behaviour
    for behaviour in (echo, cache, fail, exit3, sleep, hang, crash, badutf8, big, make, prints, empty,
                      duplicate)
}

# --- the steps around them --------------------------------------------------------------------------------------


@dataclass
class Site:
    """The directories of a worker, and which behaviour stands for which executable."""

    executables: dict[str, Behaviour]
    cache_dir: str
    exe_dir: str
    windows: bool
    cache_patch: bool = False


def execute(site: Site, request: JobRequest, stop: threading.Event) -> tuple[JobResult, Outcome]:
    """Runs a job to its result. Raises `Crash` and `Hung`; everything else that goes wrong is FAILED."""
    result = JobResult(request.JobId, request.ClientId, request.ExecName, "FAILED")
    outcome = Outcome(ran=False)
    try:
        behaviour = site.executables.get(request.ExecName or "")
        if behaviour is None:
            raise JobFailed(f"Executable not found: {site.exe_dir}/{request.ExecName or ''}.exe")
        inputs = _inputs(site, request.Files)
        if None in request.Args:  # a null list throws here too (M15)
            raise TypeError("an argument is null")
        outcome = behaviour(Job(request, inputs, stop))
        result.Status, result.Stdout, result.Stderr = outcome.status, outcome.stdout, outcome.stderr
        if outcome.ran:
            _archive(site, request, inputs, outcome.made, result)
    except JobFailed as error:
        result.Stderr = str(error)
    except (Crash, Hung):
        raise
    except Exception as error:  # as upstream's outermost catch: M15's nulls end here
        result.Stderr = f"worker error: {error}"
    return result, outcome


def _inputs(site: Site, files: list[InputFile | None]) -> dict[str, Input]:
    inputs: dict[str, Input] = {}
    for file in files:
        name = file.Name
        if name is None or not name.strip() or ".." in name or "/" in name or "\\" in name:  # WX08
            raise JobFailed("invalid file name")
        if file.Content:  # CA12: content wins, but only if there is some
            inputs[name] = Input(file.Content, "inline")
        elif file.CacheId:
            # CA04: the path is the id alone, without the name. As with .NET's Path.Combine an absolute id replaces the
            # directory and `..` leaves it.
            path = os.path.join(site.cache_dir, file.CacheId)
            if not os.path.isfile(path):
                raise JobFailed(f"Cache miss: {file.CacheId}")  # CA11
            with open(path, "rb") as source:
                inputs[name] = Input(source.read(), path)
        # C19: an empty inline file without a CacheId falls through and is not created.
    return inputs


def put_cache(site: Site, request: CachePutRequest) -> tuple[str, str]:
    """The cache patch (CA03, CA05), word for word, without a check of any path."""
    try:
        directory = os.path.join(site.cache_dir, request.CacheId)
        os.makedirs(directory, exist_ok=True)
        added = skipped = 0
        for entry in request.Entries:
            path = os.path.join(directory, entry.Name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.isfile(path):
                skipped += 1
                continue
            with open(path, "wb") as target:
                target.write(entry.Content)
            added += 1
    except Exception as error:
        return "FAILED", str(error)
    if added > 0 and skipped == 0:
        return "OK", f"added={added}"
    if added == 0 and skipped > 0:
        return "SKIPPED", f"already-present={skipped}"
    return "OK", f"added={added}, skipped={skipped}"


def _archive(site: Site, request: JobRequest, inputs: dict[str, Input], made: bytes | None,
             result: JobResult) -> None:
    """WX04: the whole job directory as a zip, after a failure too. On Linux this always throws, because the zip is made
    inside the directory that is being zipped (WX11)."""
    if not site.windows:
        if result.Stderr and not result.Stderr.endswith("\n"):
            result.Stderr += "\n"
        path = f"/tmp/jobs/{request.JobId.hex}/result.zip"  # WX02
        result.Stderr += (f"zip error: The process cannot access the file '{path}' because it is being used by "
                          "another process.")
        return
    import zipfile  # here, because it is slow to load and few tests need it

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(f"{request.ExecName}.exe"), b"MZ")
        for name, item in inputs.items():
            archive.writestr(zipfile.ZipInfo(name), item.content, zipfile.ZIP_DEFLATED)
        if made is not None:
            archive.writestr(zipfile.ZipInfo("made.bin"), made)
    result.OutputArchive = buffer.getvalue()
