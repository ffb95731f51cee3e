"""The classic leader's state and its decisions: queues, credit, caps, in-flight jobs, resends, dead letters.

No sockets and no stdout: each method takes what happened and returns the frames to send, `emit` gets the events, and
the caller holds one lock around all of it. Flaws of upstream are kept on purpose and marked; a peer of a classic leader
has to live with them.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from models import JobResult, JsonError
from wire import Frame, Type

CAP_DEFAULT = 4  # CP02, CP05
PASS_ASSIGNMENTS_MAX = 1000  # SC09
TIMEOUT_FIRST_S, TIMEOUT_FACTOR, TIMEOUT_MAX_S, JITTER, ATTEMPTS_MAX = 1.0, 2.0, 30.0, 0.2, 6  # RT03

Send = tuple[uuid.UUID, Frame]  # connection, frame


@dataclass(frozen=True)
class Job:
    job_id: uuid.UUID
    client_id: str
    exec_name: str
    payload: bytes


@dataclass
class Worker:
    worker_id: uuid.UUID
    connection: uuid.UUID
    pattern: str
    credit: int = 0
    running: int = 0


@dataclass
class InFlight:
    job: Job
    owner: uuid.UUID  # connection
    attempt: int
    due: float


_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def matches(pattern: str, subject: str) -> bool:
    """Subject rules S12-S19: `*` is one segment, `>` all that is left or nothing; ASCII letters in either case."""
    wanted = [segment for segment in pattern.translate(_FOLD).split(".") if segment]
    given = [segment for segment in subject.translate(_FOLD).split(".") if segment]
    for index, segment in enumerate(wanted):
        if segment == ">":
            return True
        if index >= len(given) or segment not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


class Scheduler:
    def __init__(self, time_scale: float, emit: Callable[..., Any]):
        self._scale = time_scale
        self._emit = emit
        self._queues: dict[str, deque[Job]] = {}
        self._ring: deque[str] = deque()
        self._workers: dict[uuid.UUID, Worker] = {}  # by connection
        self._clients: dict[str, uuid.UUID] = {}  # to connection
        self._caps: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._in_flight: dict[uuid.UUID, InFlight] = {}
        self._dead: list[Job] = []  # DL01
        self._seen: set[uuid.UUID] = set()

    # --- clients

    def client_up(self, client_id: str, connection: uuid.UUID, cap: int) -> None:
        self._clients[client_id] = connection
        self._caps[client_id] = cap
        self._counts[client_id] = 0  # CP05: also while jobs of an earlier connection run

    def client_down(self, client_id: str, connection: uuid.UUID) -> None:
        if self._clients.get(client_id) == connection:
            for table in (self._clients, self._caps, self._counts):
                table.pop(client_id, None)  # CP05

    def first_sight(self, msg_id: uuid.UUID) -> bool:
        """DD04: by the frame's MsgId, for as long as the process lives."""
        if msg_id in self._seen:
            return False
        self._seen.add(msg_id)
        return True

    def submit(self, job: Job) -> list[Send]:
        self._enqueue(job)
        return list(self._pump())

    # --- workers

    def worker_up(self, worker_id: uuid.UUID, connection: uuid.UUID, pattern: str) -> None:
        self._workers[connection] = Worker(worker_id, connection, pattern)

    def worker_down(self, connection: uuid.UUID) -> list[Send]:
        """RT05."""
        del self._workers[connection]
        for entry in [entry for entry in self._in_flight.values() if entry.owner == connection]:
            del self._in_flight[entry.job.job_id]
            self._count_down(entry.job)
            self._enqueue(entry.job)
            self._emit("requeued", job_id=entry.job.job_id, why="worker down")
        return list(self._pump())

    def credit(self, connection: uuid.UUID, delta: int) -> list[Send]:
        worker = self._workers[connection]
        worker.credit = max(0, worker.credit + delta)  # CR04
        return list(self._pump())

    def ack(self, connection: uuid.UUID, frame: Frame) -> list[Send]:
        worker, job_id = self._workers[connection], frame.corr_id
        entry = self._in_flight.get(job_id)
        if entry is None or entry.owner != connection:
            # RT08: the ack of an attempt that timed out, or of a job that is finished. Its result is lost.
            self._emit("late_ack", job_id=job_id, worker_id=worker.worker_id, status=_status(frame.payload))
            return []
        del self._in_flight[job_id]
        worker.running = max(0, worker.running - 1)
        self._count_down(entry.job)
        self._emit("acked", job_id=job_id, worker_id=worker.worker_id, attempt=entry.attempt,
                   status=_status(frame.payload), payload_len=len(frame.payload))
        return [*self._result(entry.job, frame.payload), *self._pump()]

    def _result(self, job: Job, payload: bytes) -> Iterator[Send]:
        """T05: the worker's bytes unchanged."""
        connection = self._clients.get(job.client_id)
        if connection is None:
            self._emit("result_dropped", job_id=job.job_id, client_id=job.client_id)
            return
        self._emit("result", job_id=job.job_id, client_id=job.client_id)
        yield connection, Frame(Type.RESULT, job.job_id, job.job_id, f"job.result.{job.client_id}.{job.job_id.hex}",
                                payload)

    # --- assigning

    def _enqueue(self, job: Job) -> None:
        self._queues.setdefault(job.exec_name, deque()).append(job)
        if job.exec_name not in self._ring:  # SC03: at most once
            self._ring.append(job.exec_name)

    def _pump(self) -> Iterator[Send]:
        """One pass over the ring of executables (SC03, SC09)."""
        for _ in range(len(self._ring)):
            exec_name = self._ring.popleft()
            yield from self._assign_from(self._queues[exec_name])
            if self._queues[exec_name]:
                self._ring.append(exec_name)

    def _assign_from(self, jobs: deque[Job]) -> Iterator[Send]:
        for _ in range(PASS_ASSIGNMENTS_MAX):
            if not jobs:
                return
            worker = self._choose(jobs[0].exec_name)
            if worker is None:
                return
            job = jobs.popleft()
            if self._counts.get(job.client_id, 0) >= self._caps.get(job.client_id, CAP_DEFAULT):
                jobs.append(job)  # SC11: to the tail, and this executable has to wait for the next pass
                return
            yield self._assign(job, worker, attempt=1)

    def _choose(self, exec_name: str, besides: uuid.UUID | None = None) -> Worker | None:
        """SC05: fewest running, then most credit."""
        subject = f"job.assign.{exec_name}"  # S03
        able = [worker for worker in self._workers.values()
                if worker.credit > 0 and worker.connection != besides and matches(worker.pattern, subject)]
        return min(able, key=lambda worker: (worker.running, -worker.credit), default=None)

    def _assign(self, job: Job, worker: Worker, attempt: int) -> Send:
        worker.credit = max(0, worker.credit - 1)  # CR05; a resend to its owner may have none left (CR04)
        worker.running += 1
        # RT08: a resend raises the client's count once more, and no ack takes that back.
        self._counts[job.client_id] = self._counts.get(job.client_id, 0) + 1
        due = time.monotonic() + self._timeout(attempt)
        self._in_flight[job.job_id] = InFlight(job, worker.connection, attempt, due)
        self._emit("assigned" if attempt == 1 else "resent", job_id=job.job_id, worker_id=worker.worker_id,
                   attempt=attempt, credit=worker.credit, running=worker.running)
        subject = f"job.assign.{job.exec_name}.{worker.worker_id}"  # T02
        return worker.connection, Frame(Type.ASSIGN_JOB, job.job_id, subject=subject, payload=job.payload)

    def _count_down(self, job: Job) -> None:
        if job.client_id in self._counts:
            self._counts[job.client_id] = max(0, self._counts[job.client_id] - 1)

    # --- the clock

    def _timeout(self, attempt: int) -> float:
        plain = min(TIMEOUT_MAX_S, TIMEOUT_FIRST_S * TIMEOUT_FACTOR ** (attempt - 1))
        return plain * random.uniform(1 - JITTER, 1 + JITTER) * self._scale

    def tick(self) -> list[Send]:
        """Resends what is overdue (RT02-RT04), then tries to assign (SC09)."""
        now, sends = time.monotonic(), []
        for entry in [entry for entry in self._in_flight.values() if entry.due <= now]:
            job = entry.job
            if entry.attempt >= ATTEMPTS_MAX:
                del self._in_flight[job.job_id]
                self._count_down(job)
                self._dead.append(job)
                self._emit("dlq", job_id=job.job_id, attempts=entry.attempt, dead=len(self._dead))
                continue
            # RT04; RT08: the old owner's `running` stays as it is.
            target = self._choose(job.exec_name, besides=entry.owner) or self._workers[entry.owner]
            sends.append(self._assign(job, target, entry.attempt + 1))
        return [*sends, *self._pump()]


def _status(payload: bytes) -> str | None:
    try:
        return JobResult.from_json(payload).Status
    except JsonError:
        return None
