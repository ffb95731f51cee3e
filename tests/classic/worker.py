#!/usr/bin/env python3
"""A classic worker: of upstream's HEAD (f2), or of the minimal versions before it (f0, f1).

It says hello, offers credit, and answers assignments until the connection ends; it never reconnects and ignores every
frame but AssignJob (RD04). Run it with --help for its behaviours and options.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Callable

import wire
from behaviours import BEHAVIOURS, Crash, Hung, Site, execute, put_cache
from common import Ending, add_lifetime, emit, frame_members, run
from models import CachePutRequest, CachePutResult, JobRequest, JobResult, JsonError
from wire import Closed, Connection, Frame, Type

EPILOG = """\
f2: what a job does is chosen by its ExecName (--exec adds names; calcA is echo):
  echo       Stdout: the Args joined by a blank, then "<name> <sha256>" for each input, one a line
  cache      Stdout: "<name> <bytes> <sha256> <inline | path in the cache>" for each input
  fail       FAILED, Stderr "Process error: <Args>"
  exit3      FAILED as after a non-zero exit code
  sleep      Args[0] seconds
  hang       never ends
  crash      ends the process (exit code 70); with Args[0] "close" only the connection
  badutf8    Stdout with U+FFFD for invalid bytes; Args[0]: the bytes in hex
  big        an AckJob whose body has Args[0] bytes
  make       leaves a file made.bin of Args[0] bytes, which --platform windows zips; Stdout: "made.bin <sha256>"
  prints     Args[0] lines of odd characters on Stdout, Args[1] on Stderr, and a file made.bin of Args[2] bytes
  empty      an AckJob without a payload
  duplicate  DUPLICATE although the job is new
Any other name: FAILED, "Executable not found: ...".

f0, f1: the payload is opaque; waits --delay seconds, then acknowledges.

events: started, assigned, acked, duplicate, credit, put, dropped, crashing, ignored, closed
exit code: 0 at the end of the connection or on SIGTERM, 1 on an error, 70 after a crash
"""

CRASH_CODE = 70


class Dedup:
    """Finished jobs of this process (DD01). A look-up does not check the age; only the sweep after a job forgets."""

    def __init__(self, ttl: float):
        self._ttl = ttl
        self._finished: dict[uuid.UUID, float] = {}
        self._lock = threading.Lock()

    def __contains__(self, job_id: uuid.UUID) -> bool:
        with self._lock:
            return job_id in self._finished

    def add(self, job_id: uuid.UUID) -> None:
        with self._lock:
            self._finished.setdefault(job_id, time.monotonic())

    def sweep(self) -> None:
        oldest = time.monotonic() - self._ttl
        with self._lock:
            self._finished = {job_id: at for job_id, at in self._finished.items() if at >= oldest}


class Worker:
    def __init__(self, options: argparse.Namespace, connection: Connection):
        self.options = options
        self.connection = connection
        self.stop = threading.Event()
        self.dedup = Dedup(600 if options.style == "001" else 1800)
        self.assigned = 0
        self.outstanding = 0
        self.count_lock = threading.Lock()
        executables = BEHAVIOURS | {name: BEHAVIOURS[behaviour] for name, behaviour in options.exec}
        self.site = Site(executables, options.cache_dir, options.exe_dir, options.platform == "windows",
                         options.cache_patch)

    def run(self, ending: Ending) -> None:
        options = self.options
        f2 = options.generation == "f2"
        initial = options.credit if options.credit is not None else (options.max_par if f2 else 1)  # CR02, CR01
        # One pool thread for each job that may run (WX06). F0 and F1 workers do one job after the other.
        pool = ThreadPoolExecutor(options.max_par if f2 else 1)
        try:
            # T10. The encoding of F0 has no room for id and pattern, that of F1 none for the pattern.
            self.connection.send(Frame(Type.HELLO_WORKER, msg_id=options.id, subject=options.pattern))
            self.connection.send(wire.credit(initial))
            emit("started", generation=options.generation, worker_id=options.id, pattern=options.pattern,
                 credit=initial)
            while True:
                frame = self.connection.receive()
                if frame.type == Type.CACHE_PUT and options.cache_patch:
                    self.put(frame)
                    continue
                if frame.type != Type.ASSIGN_JOB:
                    emit("ignored", type=frame.type, **frame_members(frame))
                    continue
                work = self.take(frame)
                if work is not None:
                    pool.submit(self.guard, work, frame.msg_id)
        except Closed as end:
            emit("closed", why=ending.why(end.why))
        finally:
            self.stop.set()
            self.connection.close()

    def take(self, frame: Frame) -> Callable[[], None] | None:
        """Notes an assignment when it is read, whether or not there is room to run it, and says how to do it.

        A payload that is no JobRequest is dropped: the exception ends the job's task before it has an id to answer with.
        There is no ack, and the credit is gone."""
        self.assigned += 1
        with self.count_lock:
            self.outstanding += 1
        job_id, members = frame.msg_id, {}
        if self.options.generation != "f2":
            work = partial(self.opaque_job, job_id)
        else:
            try:
                request = JobRequest.from_json(frame.payload)
                members = request_members(request)
                work = partial(self.classic_job, request.JobId, request)
            except JsonError as error:
                emit("dropped", why=str(error), **frame_members(frame))
                return None
        emit("assigned", job_id=self.shown(job_id), outstanding=self.outstanding, **members, **frame_members(frame))
        if self.options.crash_on == self.assigned:
            self.crash(job_id)
        return work

    def put(self, frame: Frame) -> None:
        """T06, T07, with --cache-patch. No credit is taken or given. As in the founding documents the reader waits for
        it, and a payload that is no CachePutRequest ends the worker."""
        request = CachePutRequest.from_json(frame.payload)
        status, message = put_cache(self.site, request)
        result = CachePutResult(request.CacheId, status, message)
        self.connection.send(Frame(Type.CACHE_ACK, corr_id=frame.corr_id, subject=f"cache.ack.{request.CacheId}",
                                   payload=result.to_json()))
        emit("put", cache_id=request.CacheId, names=[entry.Name for entry in request.Entries or []], status=status,
             message=message, **frame_members(frame))

    def guard(self, work: Callable[[], None], job_id: uuid.UUID) -> None:
        """Keeps a pool thread from swallowing what went wrong."""
        try:
            work()
        except (Closed, Hung):
            pass  # the connection is over: the reader sees it too
        except Crash as crash:
            if crash.close_only:
                emit("crashing", job_id=job_id, how="close")
                self.connection.shut()
            else:
                self.crash(job_id)
        except Exception:
            traceback.print_exc()
            os._exit(1)

    def crash(self, job_id: uuid.UUID) -> None:
        emit("crashing", job_id=self.shown(job_id), how="exit")
        os._exit(CRASH_CODE)

    def shown(self, job_id: uuid.UUID) -> uuid.UUID | None:
        return None if self.options.generation == "f0" else job_id  # F0 has no ids

    def classic_job(self, job_id: uuid.UUID, request: JobRequest) -> None:
        """F2: dedup, run, remember, ack, credit, sweep. The JobId of the request names the job, and so does the ack's
        CorrId (T03): of a request that names none, the empty Guid."""
        if job_id in self.dedup:
            self.answer_duplicate(job_id, request.JobId, request.ClientId, request.ExecName)
            return
        result, outcome = execute(self.site, request, self.stop)
        if outcome.body_bytes is not None:
            head = len(wire.encode("f2", Frame(Type.ACK_JOB, payload=result.to_json()))) - 4
            result.Stdout += "x" * max(0, outcome.body_bytes - head)
        self.finish(job_id, None if outcome.empty_ack else result)

    def answer_duplicate(self, job_id: uuid.UUID, *names: Any) -> None:
        """DD02, CR09: upstream says DUPLICATE and returns credit; the 001 worker sends an empty ack and keeps it."""
        emit("duplicate", job_id=job_id)
        if self.options.style == "001":
            self.ack(job_id, None)
        else:
            self.ack(job_id, JobResult(*names, "DUPLICATE"))
            self.return_credit()

    def opaque_job(self, job_id: uuid.UUID) -> None:
        """F0, F1: dummy work, an empty ack (F1 with the job in CorrId; F0 has no ids), credit of one (CR06)."""
        if not self.stop.wait(self.options.delay):
            self.ack(job_id, None)
            self.return_credit()

    def finish(self, job_id: uuid.UUID, result: JobResult | None) -> None:
        self.dedup.add(job_id)  # DD01: after execution, so a copy that came meanwhile was run as well
        self.ack(job_id, result)
        self.return_credit()
        self.dedup.sweep()

    def ack(self, job_id: uuid.UUID, result: JobResult | None) -> None:
        payload = b"" if result is None else result.to_json()
        with self.count_lock:
            self.outstanding -= 1
        size = self.connection.send(Frame(Type.ACK_JOB, corr_id=job_id, payload=payload))
        emit("acked", job_id=self.shown(job_id), body_bytes=size,
             status=None if result is None else result.Status)

    def return_credit(self) -> None:
        """CR06, CR07: one, after the ack; --credit-delay stands for the wait for a calmer CPU."""
        if self.options.credit_delay and self.stop.wait(self.options.credit_delay):
            return
        self.connection.send(wire.credit(1))
        emit("credit", delta=1)


def request_members(request: JobRequest) -> dict[str, Any]:
    files = request.Files
    if files is not None:
        files = [file and {"name": file.Name, "cache_id": file.CacheId,
                           "content_len": None if file.Content is None else len(file.Content)} for file in files]
    return {"json_job_id": request.JobId, "client_id": request.ClientId, "exec": request.ExecName,
            "args": request.Args, "files": files}


def executable(text: str) -> tuple[str, str]:
    name, _, behaviour = text.partition("=")
    if behaviour not in BEHAVIOURS:
        raise argparse.ArgumentTypeError(f"{text!r}: want NAME=BEHAVIOUR with one of {', '.join(BEHAVIOURS)}")
    return name, behaviour


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A classic worker for tests.", epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("pattern", nargs="?", default="", help="subject of the hello, f2 only (default job.assign.*)")
    parser.add_argument("--generation", choices=wire.GENERATIONS, default="f2")
    parser.add_argument("--id", type=uuid.UUID, default=None, help="worker id (default random)")
    parser.add_argument("--max-par", type=int, default=int(os.environ.get("WORKER_MAX_PAR", "4")), metavar="N",
                        help="f2: jobs at a time and first credit (default $WORKER_MAX_PAR or 4)")
    parser.add_argument("--credit", type=int, default=None, metavar="N",
                        help="another first credit (default --max-par for f2, 1 for f0 and f1)")
    parser.add_argument("--credit-delay", type=float, default=0, metavar="S", help="wait between ack and credit")
    parser.add_argument("--delay", type=float, default=0, metavar="S", help="f0, f1: dummy work (default 0)")
    parser.add_argument("--style", choices=("head", "001"), default="head",
                        help="f2: answer to a duplicate; 001: an empty ack and no credit")
    parser.add_argument("--exec", type=executable, action="append", default=[("calcA", "echo")],
                        metavar="NAME=BEHAVIOUR", help="one more executable, or another behaviour for a name")
    parser.add_argument("--crash-on", type=int, default=None, metavar="N", help="end the process at assignment N")
    parser.add_argument("--cache-dir", default="/opt/grid/cache", metavar="DIR")
    parser.add_argument("--cache-patch", action="store_true",
                        help="f2: with the cache of the founding documents: answers CachePut, and keeps <CacheId>/<Name>")
    parser.add_argument("--exe-dir", default="/opt/grid/exe", metavar="DIR", help="only named in texts")
    parser.add_argument("--platform", choices=("linux", "windows"), default="linux",
                        help="windows: the result archive is attached in place of a zip error")
    add_lifetime(parser)
    options = parser.parse_intermixed_args(arguments)
    options.id = options.id or uuid.uuid4()
    options.max_par = max(1, options.max_par)  # WX06
    options.pattern = options.pattern if options.pattern.strip() else "job.assign.*"  # S04
    return options


def main() -> int:
    options = parse()
    connection = Connection.connect(options.host, options.port, options.generation)
    ending = Ending(options.lifetime, connection.shut)
    Worker(options, connection).run(ending)
    return 1 if ending.asked == "lifetime" else 0


if __name__ == "__main__":
    run(main)
