"""What the classic programs share beside the protocol: events on stdout, and an end to every process.

An event is one JSON object on a line of its own, flushed at once, so that a test can follow a peer while it runs.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import signal
import sys
import threading
from typing import Any, Callable, NoReturn

from wire import Frame

SHOWN_BYTES_MAX = 4096  # a payload up to this size stands in its event, a longer one only as a hash
_emit_lock = threading.Lock()


def emit(event: str, **members: Any) -> None:
    line = json.dumps({"event": event, **members}, default=str)
    try:
        with _emit_lock:
            print(line, flush=True)
    except BrokenPipeError:
        os._exit(1)  # whoever started this peer is gone


def payload_members(payload: bytes) -> dict[str, Any]:
    shown = base64.b64encode(payload).decode("ascii") if len(payload) <= SHOWN_BYTES_MAX else None
    return {"payload_len": len(payload), "payload_sha256": hashlib.sha256(payload).hexdigest(), "payload_b64": shown}


def frame_members(frame: Frame) -> dict[str, Any]:
    return {"msg_id": frame.msg_id, "corr_id": frame.corr_id, "subject": frame.subject,
            "body_bytes": frame.body_bytes, **payload_members(frame.payload)}


class Ending:
    """Why this program ends. SIGTERM, SIGINT and the lifetime call `wake` from a thread of their own; it unblocks the main
    thread. Made before any other thread, which then inherits that these signals are blocked."""

    SIGNALS = {signal.SIGTERM, signal.SIGINT}

    def __init__(self, lifetime: float, wake: Callable[[], Any]):
        self.asked: str | None = None
        self._wake = wake
        # Waited for by a thread: a handler runs in the main thread only, and one whose signal comes right before a
        # blocking read would run after that read.
        signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        threading.Thread(target=self._await_signal, daemon=True).start()
        timer = threading.Timer(lifetime, self._ask, ["lifetime"])  # no test leaves a process behind
        timer.daemon = True
        timer.start()

    def _await_signal(self) -> None:
        signal.sigwait(self.SIGNALS)
        self._ask("signal")

    def _ask(self, why: str) -> None:
        self.asked = self.asked or why
        self._wake()

    def why(self, otherwise: str) -> str:
        return self.asked or otherwise


def add_lifetime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lifetime", type=float, default=300, metavar="S",
                        help="end after this many seconds whatever happens (default 300)")


def run(main: Callable[[], int]) -> NoReturn:
    """Runs a program and leaves without waiting for its threads, which may be in a read or in a job."""
    try:
        code = main()
    except OSError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
