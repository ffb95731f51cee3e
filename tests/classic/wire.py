"""Frames of the three founding generations, as classic peers write and read them (SPEC W01-W11).

Blocking sockets and exact reads. Nothing here repairs or resynchronises: whatever a classic reader does not like is a
closed connection to it, so `Closed` is the only error this module raises for what a peer sends.
"""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from dataclasses import dataclass, field
from enum import IntEnum

NIL = uuid.UUID(int=0)
BODY_MAX = 4_194_304  # W05: this many bytes of body are read, one more is a closed connection
GENERATIONS = ("f0", "f1", "f2")


class Type(IntEnum):
    """The codes a classic peer acts on (T01-T10). All others are ignored, so frames carry a plain int."""

    SUBMIT_JOB = 1
    ASSIGN_JOB = 2
    ACK_JOB = 3
    CREDIT = 4
    RESULT = 5
    CACHE_PUT = 6  # with the cache patch of the founding documents alone
    CACHE_ACK = 7
    HELLO_CLIENT = 9
    HELLO_WORKER = 10


class Closed(Exception):
    """The connection is over, in the eyes of a classic peer. `why` is for events and people."""

    def __init__(self, why: str):
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Frame:
    type: int
    msg_id: uuid.UUID = NIL
    corr_id: uuid.UUID = NIL
    subject: str = ""
    payload: bytes = b""
    # Size of the body as it was read, trailing bytes included; 0 in a frame that was never on a wire.
    body_bytes: int = field(default=0, compare=False)


def encode(generation: str, frame: Frame) -> bytes:
    """The whole frame, length first. There is no limit on what a classic peer sends (W06)."""
    body = [struct.pack("<B", frame.type)]
    if generation != "f0":
        body.append(frame.msg_id.bytes_le + frame.corr_id.bytes_le)  # W09
    if generation == "f2":
        subject = frame.subject.encode("utf-8", "replace")
        # W10: a longer subject is written whole under a length cut to 16 bits, and the frame is corrupt.
        body.append(struct.pack("<H", len(subject) & 0xFFFF) + subject)
    body.append(struct.pack("<i", len(frame.payload)))
    body.append(frame.payload)
    joined = b"".join(body)
    return struct.pack("<i", len(joined)) + joined


def decode(generation: str, body: bytes) -> Frame:
    """Reads a body. Inner lengths are trusted: one that does not fit throws in .NET, which drops the connection; bytes
    behind the payload are not looked at (W11). A subject that is no UTF-8 gets U+FFFD, as `Encoding.UTF8` does."""
    try:
        at = 1
        msg_id = corr_id = NIL
        subject = ""
        if generation != "f0":
            msg_id, corr_id = uuid.UUID(bytes_le=body[1:17]), uuid.UUID(bytes_le=body[17:33])
            at = 33
        if generation == "f2":
            (size,) = struct.unpack_from("<H", body, at)
            at += 2
            subject = _slice(body, at, size).decode("utf-8", "replace")
            at += size
        (size,) = struct.unpack_from("<i", body, at)
        payload = _slice(body, at + 4, size)
        return Frame(body[0], msg_id, corr_id, subject, payload, body_bytes=len(body))
    except (struct.error, ValueError, IndexError) as error:
        raise Closed(f"malformed frame: {error}") from error


def _slice(body: bytes, start: int, size: int) -> bytes:
    if size < 0 or start + size > len(body):
        raise ValueError(f"{size} bytes at {start} of a body of {len(body)}")
    return body[start:start + size]


def read_frame(sock: socket.socket, generation: str, body_max: int = BODY_MAX) -> Frame:
    """The next frame. `Closed` at an end of the stream, also inside a frame (W08), and for a bad length (W05)."""
    head = _read_exact(sock, 4, at_start=True)
    (length,) = struct.unpack("<i", head)
    if length <= 0 or length > body_max:
        raise Closed(f"length {length}")
    return decode(generation, _read_exact(sock, length))


def _read_exact(sock: socket.socket, size: int, at_start: bool = False) -> bytes:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        try:
            got = sock.recv_into(view[have:])
        except OSError as error:
            raise Closed(f"reset: {error.strerror or error}") from error
        if got == 0:
            raise Closed("eof" if at_start and have == 0 else "eof inside a frame")
        have += got
    return bytes(data)


class Connection:
    """A socket that speaks one generation. One reader; any number of writers, one at a time (W15)."""

    def __init__(self, sock: socket.socket, generation: str):
        self.generation = generation
        self._sock = sock
        self._write_lock = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connect(cls, host: str, port: int, generation: str) -> Connection:
        sock = socket.create_connection((host, port), timeout=10)
        sock.settimeout(None)
        return cls(sock, generation)

    def send(self, frame: Frame) -> int:
        """Writes the frame and returns the size of its body."""
        data = encode(self.generation, frame)
        try:
            with self._write_lock:
                self._sock.sendall(data)
        except OSError as error:
            raise Closed(f"reset: {error.strerror or error}") from error
        return len(data) - 4

    def receive(self) -> Frame:
        return read_frame(self._sock, self.generation)

    def shut(self) -> None:
        """Ends both directions. Wakes readers and writers in other threads; takes no lock."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was faster

    def close(self) -> None:
        self.shut()
        self._sock.close()


def credit(delta: int) -> Frame:
    """T04: an Int32 under a random MsgId."""
    return Frame(Type.CREDIT, msg_id=uuid.uuid4(), payload=struct.pack("<i", delta))
