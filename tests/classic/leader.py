#!/usr/bin/env python3
"""A classic leader as of upstream's HEAD: F2 only, no cluster, no redirects, no cache relay.

It answers neither hellos nor submits (W23), passes payloads on as they came, and resends what is not acknowledged in
time. Its known flaws are part of it (RT08, SC11, CP05). This file has the connections and the clock; `scheduler.py`
decides.
"""

from __future__ import annotations

import argparse
import os
import queue
import select
import socket
import struct
import threading
import uuid

from common import Ending, add_lifetime, emit, frame_members, run
from models import ClientConfig, JobRequest, JsonError
from scheduler import CAP_DEFAULT, Job, Scheduler, Send
from wire import Closed, Connection, Frame, Type

EPILOG = """\
events: listening, client, worker, credit, bad_credit, submitted, duplicate_submit, assigned, resent, acked, late_ack,
        result, result_dropped, requeued, dlq, ignored, closed
exit code: 0 on SIGTERM, 1 on an error or at the end of --lifetime
"""

OUTBOX_MAX = 1024  # W15
OUTBOX_WAIT_S = 30
TICK_S = 0.2  # SC09
TICK_S_MIN = 0.01
CREDIT_MAX = 10_000  # CR04


class Peer:
    """A connection with its outbox and the one thread that writes to it (W15)."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._outbox: queue.Queue[Frame | None] = queue.Queue(OUTBOX_MAX)
        threading.Thread(target=self._write, daemon=True).start()

    def send(self, frame: Frame) -> None:
        """Waits when the outbox is full. A peer that takes nothing for long is cut off, so that this ends."""
        try:
            self._outbox.put(frame, timeout=OUTBOX_WAIT_S)
        except queue.Full:
            self.connection.shut()

    def end(self) -> None:
        self.connection.close()
        try:
            self._outbox.put_nowait(None)
        except queue.Full:
            pass  # the writer has frames left, and fails at the next one

    def _write(self) -> None:
        try:
            while (frame := self._outbox.get()) is not None:
                self.connection.send(frame)
        except Closed:
            self.connection.shut()  # RT06: the reader sees it, and the worker's jobs are requeued


class Leader:
    def __init__(self, time_scale: float):
        self.scheduler = Scheduler(time_scale, emit)
        self.tick = max(TICK_S_MIN, TICK_S * min(1.0, time_scale))
        self.lock = threading.Lock()
        self.peers: dict[uuid.UUID, Peer] = {}  # by connection id

    def serve(self, connection: Connection) -> None:
        """One connection from its first frame to its end. The first frame says who it is (W16)."""
        peer = Peer(connection)
        connection_id = uuid.uuid4()
        role = who = None
        try:
            hello = connection.receive()
            if hello.type == Type.HELLO_CLIENT:
                role, who = "client", hello.subject or uuid.uuid4().hex  # T09
                self.client(peer, connection_id, who, hello)
            elif hello.type == Type.HELLO_WORKER:
                role, who = "worker", hello.msg_id
                self.worker(peer, connection_id, hello)
            else:
                raise Closed(f"first frame of type {hello.type}")
        except Closed as end:
            emit("closed", role=role, id=who, why=end.why)
        finally:
            peer.end()

    def client(self, peer: Peer, connection_id: uuid.UUID, client_id: str, hello: Frame) -> None:
        cap = cap_of(hello)
        with self.lock:
            self.peers[connection_id] = peer
            self.scheduler.client_up(client_id, connection_id, cap)
            emit("client", client_id=client_id, cap=cap, **frame_members(hello))
        try:
            while True:
                frame = peer.connection.receive()
                if frame.type == Type.SUBMIT_JOB:
                    self.submit(client_id, frame)
                else:
                    emit("ignored", role="client", id=client_id, type=frame.type, **frame_members(frame))
        finally:
            with self.lock:
                del self.peers[connection_id]
                self.scheduler.client_down(client_id, connection_id)

    def submit(self, client_id: str, frame: Frame) -> None:
        with self.lock:
            new = self.scheduler.first_sight(frame.msg_id)
        if not new:
            emit("duplicate_submit", client_id=client_id, **frame_members(frame))
            return
        try:
            request = JobRequest.from_json(frame.payload)
        except JsonError as error:
            raise Closed(f"submit of no JobRequest: {error}") from error  # thrown in the connection's task
        # M17: from here on the JobId of the JSON is the job, whatever the frame's MsgId was.
        job = Job(request.JobId, request.ClientId or client_id, request.ExecName or "", frame.payload)
        with self.lock:
            emit("submitted", job_id=job.job_id, client_id=job.client_id, exec=job.exec_name, **frame_members(frame))
            sends = self.scheduler.submit(job)
        self.deliver(sends)

    def worker(self, peer: Peer, connection_id: uuid.UUID, hello: Frame) -> None:
        worker_id = hello.msg_id
        with self.lock:
            self.peers[connection_id] = peer
            self.scheduler.worker_up(worker_id, connection_id, hello.subject)
            emit("worker", worker_id=worker_id, pattern=hello.subject, **frame_members(hello))
        try:
            while True:
                frame = peer.connection.receive()
                if frame.type == Type.CREDIT:
                    self.credit(worker_id, connection_id, frame)
                elif frame.type == Type.ACK_JOB:
                    with self.lock:
                        sends = self.scheduler.ack(connection_id, frame)
                    self.deliver(sends)
                else:
                    emit("ignored", role="worker", id=worker_id, type=frame.type, **frame_members(frame))
        finally:
            with self.lock:
                del self.peers[connection_id]
                sends = self.scheduler.worker_down(connection_id)
            self.deliver(sends)

    def credit(self, worker_id: uuid.UUID, connection_id: uuid.UUID, frame: Frame) -> None:
        """CR03, CR04."""
        if len(frame.payload) not in (0, 4):
            emit("bad_credit", worker_id=worker_id, **frame_members(frame))
            return
        delta = struct.unpack("<i", frame.payload)[0] if frame.payload else 1
        if delta <= 0:
            emit("bad_credit", worker_id=worker_id, delta=delta, **frame_members(frame))
            return
        with self.lock:
            emit("credit", worker_id=worker_id, delta=delta)
            sends = self.scheduler.credit(connection_id, min(delta, CREDIT_MAX))
        self.deliver(sends)

    def deliver(self, sends: list[Send]) -> None:
        """Outside the lock, since an outbox may make wait."""
        for connection_id, frame in sends:
            with self.lock:
                peer = self.peers.get(connection_id)
            if peer is not None:  # a worker that is gone has had its jobs requeued
                peer.send(frame)

    def run_clock(self, stop: int) -> None:
        """Until there is something to read from `stop`, which whoever ends the program writes to."""
        while not select.select([stop], [], [], self.tick)[0]:
            with self.lock:
                sends = self.scheduler.tick()
            self.deliver(sends)


def cap_of(hello: Frame) -> int:
    """CP02, CP03: the wish counts if it names the same client as the subject."""
    try:
        config = ClientConfig.from_json(hello.payload)
    except JsonError:
        return CAP_DEFAULT
    if (config.ClientId or "") != hello.subject:
        return CAP_DEFAULT
    return max(1, config.DesiredParallelism)


def accept_all(listener: socket.socket, leader: Leader) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # shut at the end
        threading.Thread(target=leader.serve, args=[Connection(sock, "f2")], daemon=True).start()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A classic leader for tests.", epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, help="0 chooses a free one; the event `listening` says which")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--time-scale", type=float, default=1.0, metavar="X",
                        help="factor on the ack timeouts of 1 to 30 s; below 1 on the timer of 200 ms too (default 1)")
    add_lifetime(parser)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    listener = socket.create_server((options.host, options.port), backlog=128)
    leader = Leader(options.time_scale)
    stop, stopper = os.pipe()
    ending = Ending(options.lifetime, lambda: os.write(stopper, b"!"))
    threading.Thread(target=accept_all, args=[listener, leader], daemon=True).start()
    emit("listening", port=listener.getsockname()[1], host=options.host)
    leader.run_clock(stop)
    listener.close()
    emit("closed", role="leader", id=None, why=ending.why("stopped"))
    return 1 if ending.asked == "lifetime" else 0


if __name__ == "__main__":
    run(main)
