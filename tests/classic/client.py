#!/usr/bin/env python3
"""A classic client: of upstream's HEAD (f2), or of the minimal versions before it (f0, f1).

It says hello, submits, and waits for its Results; every other frame is ignored (W23, RD04). Run it with --help for the
form of a job.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import random
import sys
import threading
import traceback
import uuid
from typing import Any, Iterator

import wire
from common import Ending, add_lifetime, emit, frame_members, run
from models import CacheEntry, CachePutRequest, CachePutResult, ClientConfig, InputFile, JobRequest, JobResult, JsonError
from wire import Closed, Connection, Frame, Type

EPILOG = """\
A job is a JSON object on a line of its own; blank lines are skipped. All members are optional:
  exec        ExecName (f2; default calcA)
  args        list of strings
  files       list of {"name", "content_b64", "cache_id"}; a missing content is null, "" is an empty one
  job_id      default random
  msg_id      MsgId of the frame where it is to differ from the JobId (M17)
  client_id   ClientId inside the request where it is to differ from CLIENT_ID
  subject     default job.submit.<exec> (f2)
  raw_b64     these bytes are the payload, in place of a JobRequest
  text        this text is the payload, in place of a JobRequest
  body_bytes  one more argument of x's until the frame's body has this size (f2)
A put has a member of its own, and is answered by the first CacheAck:
  cache_put   {"cache_id", "entries": [{"name", "content_b64"} or {"name", "random": N}], "target"}; acks beside it: how many to
              wait for (default 1), subject: another one, payload_b64: these bytes in place of a CachePutRequest
Jobs go out as their lines arrive. Without --jobs: three jobs for calcA (f2), or the texts job-0 to job-2 (f0, f1).

events: started, submitted, put, cache_ack, result, ignored, done, closed
exit code: 0 once all results are there (with --no-wait: once all is sent) or on SIGTERM; 1 otherwise
"""


def founding_jobs(generation: str) -> Iterator[dict[str, Any]]:
    """CL02, and the loop of CL01."""
    for index in range(3):
        if generation == "f2":
            content = base64.b64encode(f"hello-{index}".encode()).decode()
            yield {"exec": "calcA", "args": ["--mode=fast", f"--seed={index}"],
                   "files": [{"name": "input.txt", "content_b64": content}]}
        else:
            yield {"text": f"job-{index}"}


def lines_of(path: str) -> Iterator[dict[str, Any]]:
    source = sys.stdin if path == "-" else open(path, encoding="utf-8")
    with source:
        for line in source:
            if line.strip():
                yield json.loads(line)


class Client:
    def __init__(self, options: argparse.Namespace, connection: Connection):
        self.options = options
        self.connection = connection
        self.changed = threading.Condition()
        self.waiting: dict[uuid.UUID, uuid.UUID] = {}  # any id a Result may carry, to the job's own id
        self.unanswered: set[uuid.UUID] = set()
        self.acks: dict[uuid.UUID, int] = {}  # puts, and how many acks they still wait for
        self.results = 0
        self.all_sent = False
        self.ended: str | None = None

    # --- sending

    def hello(self) -> None:
        """T09, CP01. F0 and F1 have no room for the ClientId, and no cap."""
        options = self.options
        payload = b""
        if options.generation == "f2" and not options.no_config:
            payload = ClientConfig(options.client_id, options.desired).to_json()
        self.connection.send(Frame(Type.HELLO_CLIENT, subject=options.client_id, payload=payload))
        emit("started", generation=options.generation, client_id=options.client_id, desired=options.desired)

    def submit_all(self) -> None:
        jobs = lines_of(self.options.jobs) if self.options.jobs else founding_jobs(self.options.generation)
        try:
            for job in jobs:
                (self.put if "cache_put" in job else self.submit)(job)
            with self.changed:
                self.all_sent = True
                self.changed.notify_all()
        except Closed:
            pass  # the receiving side ends the program
        except Exception:
            traceback.print_exc()
            os._exit(1)

    def submit(self, job: dict[str, Any]) -> None:
        generation = self.options.generation
        job_id = uuid.UUID(job["job_id"]) if "job_id" in job else uuid.uuid4()
        msg_id = uuid.UUID(job["msg_id"]) if "msg_id" in job else job_id  # T01
        if "body_bytes" in job:
            job = dict(job, args=[*job.get("args", []), ""])
            missing = job["body_bytes"] - (len(wire.encode(generation, self.frame(job, job_id, msg_id))) - 4)
            job["args"][-1] = "x" * missing
        frame = self.frame(job, job_id, msg_id)
        with self.changed:
            if generation != "f0":
                self.unanswered.add(job_id)
                self.waiting |= {job_id: job_id, msg_id: job_id}
        size = self.connection.send(frame)
        named = {} if generation == "f0" else {"job_id": job_id, "msg_id": msg_id}
        emit("submitted", **named, subject=frame.subject, body_bytes=size, payload_len=len(frame.payload))

    def put(self, line: dict[str, Any]) -> None:
        """CA07: CachePut, and the first CacheAck."""
        put, request_id = line["cache_put"], uuid.uuid4()
        target = put.get("target", "job.assign.*")
        entries = [CacheEntry(entry["name"], random.Random(entry["name"]).randbytes(entry["random"]) if "random" in entry
                              else base64.b64decode(entry["content_b64"], validate=True))
                   for entry in put.get("entries", [])]
        payload = CachePutRequest(put.get("cache_id"), entries, target).to_json()
        if "payload_b64" in line:
            payload = base64.b64decode(line["payload_b64"], validate=True)
        with self.changed:
            self.unanswered.add(request_id)
            self.acks[request_id] = line.get("acks", 1)
        subject = line.get("subject", f"cache.put.{target}")
        size = self.connection.send(Frame(Type.CACHE_PUT, request_id, subject=subject, payload=payload))
        sha256 = {entry.Name: hashlib.sha256(entry.Content).hexdigest() for entry in entries}
        emit("put", request_id=request_id, subject=subject, body_bytes=size, payload_len=len(payload), sha256=sha256)

    def cache_ack(self, frame: Frame) -> None:
        with self.changed:
            known = frame.corr_id in self.acks
        result = CachePutResult.from_json(frame.payload)
        emit("cache_ack", known=known, cache_id=result.CacheId, status=result.Status, message=result.Message,
             **frame_members(frame))
        with self.changed:
            if known:
                self.acks[frame.corr_id] -= 1
                if self.acks[frame.corr_id] <= 0:
                    self.unanswered.discard(frame.corr_id)
            self.changed.notify_all()

    def frame(self, job: dict[str, Any], job_id: uuid.UUID, msg_id: uuid.UUID) -> Frame:
        return Frame(Type.SUBMIT_JOB, msg_id, subject=self.subject(job), payload=self.payload(job, job_id))

    def subject(self, job: dict[str, Any]) -> str:
        if "subject" in job:
            return job["subject"]
        raw = "raw_b64" in job or "text" in job
        return "" if raw and "exec" not in job else f"job.submit.{job.get('exec', 'calcA')}"  # S03

    def payload(self, job: dict[str, Any], job_id: uuid.UUID) -> bytes:
        if "raw_b64" in job:
            return base64.b64decode(job["raw_b64"], validate=True)
        if "text" in job:
            return job["text"].encode()
        files = [InputFile(file["name"], file.get("cache_id"),
                           base64.b64decode(file["content_b64"], validate=True)
                           if file.get("content_b64") is not None else None) for file in job.get("files", [])]
        client_id = job.get("client_id", self.options.client_id)
        return JobRequest(job_id, client_id, job.get("exec", "calcA"), job.get("args", []), files).to_json()

    # --- receiving

    def receive_all(self) -> None:
        try:
            while True:
                frame = self.connection.receive()
                if frame.type == Type.RESULT:
                    self.result(frame)
                elif frame.type == Type.CACHE_ACK:
                    self.cache_ack(frame)
                else:
                    emit("ignored", type=frame.type, **frame_members(frame))
        except Closed as end:
            with self.changed:
                self.ended = end.why
                self.changed.notify_all()

    def result(self, frame: Frame) -> None:
        with self.changed:
            job_id = self.waiting.get(frame.corr_id) or self.waiting.get(frame.msg_id)
            first = job_id in self.unanswered
        emit("result", job_id=job_id, known=job_id is not None, first=first, **result_members(frame.payload),
             **frame_members(frame))
        with self.changed:
            self.unanswered.discard(job_id)
            self.results += first
            self.changed.notify_all()

    # --- the whole

    def run(self, ending: Ending) -> int:
        try:
            self.hello()
        except Closed as end:
            self.ended = end.why
        for part in (self.receive_all, self.submit_all):
            threading.Thread(target=part, daemon=True).start()
        with self.changed:
            self.changed.wait_for(self.over, timeout=self.options.timeout)
            finished = self.all_sent and (not self.options.wait or not self.unanswered)
            unanswered, results = len(self.unanswered), self.results
        if finished:
            emit("done", results=results)
        why = self.ended or ("done" if finished else "timeout")
        emit("closed", why=ending.why(why), unanswered=unanswered)
        self.connection.close()
        return 0 if finished or ending.asked == "signal" else 1

    def over(self) -> bool:
        return self.ended is not None or (self.all_sent and not (self.options.wait and self.unanswered))


def result_members(payload: bytes) -> dict[str, Any]:
    """The JobResult in it. F1 results and those of empty acks have none."""
    try:
        result = JobResult.from_json(payload)
    except JsonError as error:
        return {"status": None, "not_a_result": str(error)}
    archive = result.OutputArchive
    return {"json_job_id": result.JobId, "client_id": result.ClientId, "exec": result.ExecName,
            "status": result.Status, "stdout": result.Stdout, "stderr": result.Stderr,
            "archive_b64": None if archive is None else base64.b64encode(archive).decode()}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A classic client for tests.", epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("client_id", help="subject of the hello, f2 only; may be empty")
    parser.add_argument("desired", type=int, nargs="?", default=None,
                        help="cap (default $CLIENT_DESIRED_PAR or 4; at least 1)")
    parser.add_argument("--generation", choices=wire.GENERATIONS, default="f2")
    parser.add_argument("--jobs", metavar="FILE", help="jobs as JSON lines, - for standard input")
    parser.add_argument("--no-config", action="store_true", help="f2: a hello without a payload")
    parser.add_argument("--wait", action=argparse.BooleanOptionalAction, default=None,
                        help="wait for a Result of each job (default for f2; f0 never gets one)")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="for everything (default 60)")
    add_lifetime(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.desired is None:
        options.desired = int(os.environ.get("CLIENT_DESIRED_PAR", "4"))  # CP02, ENV01
    options.desired = max(1, options.desired)
    if options.wait is None:
        options.wait = options.generation == "f2"
    if options.wait and options.generation == "f0":
        parser.error("an f0 client never gets results (C03)")
    return options


def main() -> int:
    options = parse()
    connection = Connection.connect(options.host, options.port, options.generation)
    ending = Ending(options.lifetime, connection.shut)
    return Client(options, connection).run(ending)


if __name__ == "__main__":
    run(main)
