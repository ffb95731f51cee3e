"""What the self-test needs around the classic programs: processes whose events it can wait for, and bare sockets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from typing import Any

import wire
from wire import Closed, Frame, Type

HERE = Path(__file__).parent
PATIENCE_S = 20  # for a busy machine; nothing here takes a tenth of it
ANY_SIZE = 2**31 - 1


class Program:
    """A classic program and the events it has printed so far."""

    def __init__(self, name: str, *arguments: Any, stdin: str | None = None):
        self.name = name
        self.events: list[dict[str, Any]] = []
        self._more = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(HERE / f"{name}.py"), "--lifetime", "60", *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if stdin is not None:
            self._process.stdin.write(stdin)
        self._process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            event = json.loads(line)
            with self._more:
                self.events.append(event)
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def all(self, event: str, **members: Any) -> list[dict[str, Any]]:
        return [each for each in list(self.events)
                if each["event"] == event and all(each.get(name) == value for name, value in members.items())]

    def expect(self, event: str, count: int = 1, **members: Any) -> dict[str, Any]:
        """Waits until `count` such events have come, and returns the last of them."""
        with self._more:
            if not self._more.wait_for(lambda: len(self.all(event, **members)) >= count, PATIENCE_S):
                raise AssertionError(f"{self.name}: no {count} x {event} {members} among {self.events}")
        return self.all(event, **members)[count - 1]

    def exit_code(self) -> int:
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)  # the events are whole now
        return code

    def terminate(self) -> int:
        self._process.terminate()
        return self.exit_code()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.exit_code()
        self._process.stdout.close()


class Wire:
    """One end of a connection in the hands of the test."""

    def __init__(self, sock: socket.socket, generation: str = "f2"):
        sock.settimeout(PATIENCE_S)
        self.sock = sock
        self.generation = generation

    def send(self, frame: Frame) -> None:
        self.sock.sendall(wire.encode(self.generation, frame))

    def send_anyway(self, frame: Frame) -> None:
        """For a frame whose receiver may close before it has read all of it."""
        try:
            self.send(frame)
        except OSError:
            pass

    def next(self) -> Frame:
        return wire.read_frame(self.sock, self.generation, ANY_SIZE)

    def is_closed(self) -> bool:
        """True once the peer has ended the connection without another frame."""
        try:
            self.next()
        except Closed as end:
            return not end.why.startswith("reset: timed out")
        return False


class Case(unittest.TestCase):
    def program(self, name: str, *arguments: Any, **options: Any) -> Program:
        program = Program(name, *arguments, **options)
        self.addCleanup(program.kill)
        return program

    def leader(self, *arguments: Any) -> tuple[Program, int]:
        leader = self.program("leader", 0, *arguments)
        return leader, leader.expect("listening")["port"]

    def worker(self, port: int, *arguments: Any) -> Program:
        worker = self.program("worker", "127.0.0.1", port, *arguments)
        worker.expect("started")
        return worker

    def client(self, port: int, *arguments: Any, jobs: list[dict[str, Any]] | None = None,
               client_id: str = "clientA") -> Program:
        if jobs is None:
            return self.program("client", "127.0.0.1", port, client_id, *arguments)
        lines = "".join(json.dumps(job) + "\n" for job in jobs)
        return self.program("client", "127.0.0.1", port, client_id, *arguments, "--jobs", "-", stdin=lines)

    def dial(self, port: int, generation: str = "f2") -> Wire:
        sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.addCleanup(sock.close)
        return Wire(sock, generation)

    def listen(self) -> tuple[socket.socket, int]:
        """A port for a program that wants a leader; the test plays that leader."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(PATIENCE_S)
        self.addCleanup(listener.close)
        return listener, listener.getsockname()[1]

    def accept(self, listener: socket.socket, generation: str = "f2") -> Wire:
        sock, _ = listener.accept()
        self.addCleanup(sock.close)
        return Wire(sock, generation)

    def worker_at(self, *arguments: Any, generation: str = "f2") -> tuple[Program, Wire]:
        """A worker behind a leader played by the test, past its hello and first credit."""
        listener, port = self.listen()
        worker = self.worker(port, "--generation", generation, *arguments)
        leader = self.accept(listener, generation)
        self.assertEqual(leader.next().type, Type.HELLO_WORKER)
        self.assertEqual(leader.next().type, Type.CREDIT)
        return worker, leader
