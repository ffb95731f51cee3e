"""Tests of the parts of the classic peers: frames and subjects against the vectors, JSON, the scheduler's choices."""

from __future__ import annotations

import io
import json
import struct
import unittest
import uuid

import models
import wire
from harness import HERE
from models import ClientConfig, InputFile, JobRequest, JobResult, JsonError
from scheduler import Job, Scheduler, matches
from wire import BODY_MAX, Closed, Frame, Type

VECTORS = HERE.parent / "vectors"
JOB = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class Bytes:
    """Bytes that are read like a socket, for the frame reader."""

    def __init__(self, data: bytes):
        self._data = io.BytesIO(data)

    def recv_into(self, view: memoryview) -> int:
        return self._data.readinto(view)


def vectors(file: str) -> dict:
    return json.loads((VECTORS / file).read_text(encoding="utf-8"))


class WireVectors(unittest.TestCase):
    def test_founding_frames_survive_decode_and_encode(self):
        checked = 0
        for vector in vectors("frames.json")["vectors"]:
            expected = vector["expect"].get("frame")
            if expected is None or expected["code"] >= 30:
                continue  # hostile, or a message of heft's own
            with self.subTest(vector["name"]):
                data = bytes.fromhex(vector["hex"]) + bytes(vector.get("then_zeros", 0))
                generation = expected["generation"].lower()
                body_max = max(BODY_MAX, len(data))  # one vector is larger than a classic peer would read
                frame = wire.read_frame(Bytes(data), generation, body_max)
                self.assertEqual(
                    (frame.type, str(frame.msg_id), str(frame.corr_id), frame.subject, len(frame.payload)),
                    tuple(expected[name] for name in ("code", "msg_id", "corr_id", "subject", "payload_len")))
                trailing = expected["trailing"]
                whole = data[4:len(data) - trailing] if trailing else data[4:]
                self.assertEqual(wire.encode(generation, frame), struct.pack("<i", len(whole)) + whole)
                checked += 1
        self.assertGreaterEqual(checked, 48)

    def test_hostile_frames_close_the_connection(self):
        classic_refuses = {"LengthZero", "LengthNegative", "LengthUnder", "SubjectOverrun", "PayloadOverrun", "Truncated"}
        checked = 0
        for vector in vectors("frames.json")["vectors"]:
            if vector["expect"].get("frame_error") in classic_refuses:
                generation = "f2" if vector["speaks"] == "first" else vector["speaks"].lower()
                with self.subTest(vector["name"]), self.assertRaises(Closed):
                    wire.read_frame(Bytes(bytes.fromhex(vector["hex"])), generation)
                checked += 1
        self.assertGreaterEqual(checked, 12)

    def test_the_limit_is_on_reading_only(self):
        frame = Frame(Type.ACK_JOB, payload=bytes(BODY_MAX - 39))
        self.assertEqual(wire.read_frame(Bytes(wire.encode("f2", frame)), "f2"), frame)
        over = wire.encode("f2", Frame(Type.ACK_JOB, payload=bytes(BODY_MAX - 38)))
        with self.assertRaisesRegex(Closed, "length 4194305"):
            wire.read_frame(Bytes(over), "f2")

    def test_a_long_subject_corrupts_its_frame(self):
        data = wire.encode("f2", Frame(Type.SUBMIT_JOB, subject="s" * 65_537, payload=b"x"))
        self.assertEqual(data[37:39], b"\x01\x00")
        with self.assertRaises(Closed):
            wire.read_frame(Bytes(data), "f2")

    def test_subjects(self):
        for vector in vectors("subjects.json")["matches"]:
            with self.subTest(vector["why"]):
                self.assertEqual(matches(vector["pattern"], vector["subject"]), vector["matches"])


class Json(unittest.TestCase):
    def test_writer(self):
        for value, text in [
            ("a<>&'\"+`/\\b", r'"a\u003C\u003E\u0026\u0027\u0022\u002B\u0060/\\b"'),
            ("\b\t\n\f\r\0\x1b\x7f", r'"\b\t\n\f\r\u0000\u001B\u007F"'),
            ("計é\U0001F600\ufffd", r'"\u8A08\u00E9\uD83D\uDE00\uFFFD"'),
            (b"\xfb\xef\xff", '"++//"'),
            (b"", '""'),
            (InputFile("n"), '{"Name":"n","CacheId":null,"Content":null}'),
            (ClientConfig("c", 8), '{"ClientId":"c","DesiredParallelism":8}'),
            (JobRequest(JOB, "c", "calcA", ["a"], [InputFile("n", None, b"A")]),
             f'{{"JobId":"{JOB}","ClientId":"c","ExecName":"calcA","Args":["a"],'
             '"Files":[{"Name":"n","CacheId":null,"Content":"QQ=="}]}'),
            (JobResult(JOB, "c", "e", "OK", "1+1", "", None),
             f'{{"JobId":"{JOB}","ClientId":"c","ExecName":"e","Status":"OK","Stdout":"1\\u002B1","Stderr":"",'
             '"OutputArchive":null}'),
        ]:
            with self.subTest(text):
                self.assertEqual(models.write(value).decode(), text)

    @unittest.skipUnless((VECTORS / "models.json").exists(), "no tests/vectors/models.json")
    def test_writer_against_the_model_vectors(self):
        readers = {"JobRequest": JobRequest, "JobResult": JobResult, "ClientConfig": ClientConfig}
        checked = 0
        for vector in vectors("models.json")["write"]:
            if vector["name"].startswith("ours") or vector["model"] not in readers:
                continue
            with self.subTest(vector["name"]):
                data = vector["json"].encode()
                self.assertEqual(readers[vector["model"]].from_json(data).to_json(), data)
                checked += 1
        self.assertGreaterEqual(checked, 5)

    def test_reader_takes(self):
        read = JobRequest.from_json
        self.assertEqual(read(b'{"jobId":"x","Later":{"a":["\\ud800"]}}'), JobRequest(wire.NIL, None, None, None, None))
        self.assertEqual(read(f'{{"JobId":"{str(JOB).upper()}"}}'.encode()).JobId, JOB)
        self.assertEqual(read(b'{"ExecName":"a","\\u0045xecName":"b"}').ExecName, "b")
        self.assertEqual(read(b'{"Files":[{"Content":""},{"Content":null},null]}').Files,
                         [InputFile(None, None, b""), InputFile(None, None, None), None])

    def test_reader_refuses(self):
        for text in ['{"JobId":"00112233445566778899aabbccddeeff"}', f'{{"JobId":"{{{JOB}}}"}}', '{"JobId":null}',
                     '{"JobId":""}', '{"Files":[{"Content":"QQ"}]}', '{"Files":[{"Content":"-_-_"}]}',
                     '{"Files":[{"Content":"QQ ="}]}', '{"Files":[{"Content":"QQ==QQ=="}]}', '{"Args":"a"}',
                     '{"Args":[1]}', '{"ExecName":"\\ud800"}', '{"a":1,}', '{"a":NaN}', "[]", "null", "", "\ufeff{}",
                     '{"x":' + "[" * 64 + "]" * 64 + "}"]:
            with self.subTest(text), self.assertRaises(JsonError):
                JobRequest.from_json(text.encode())
        for text in ['{"DesiredParallelism":"4"}', '{"DesiredParallelism":4.0}', '{"DesiredParallelism":2147483648}']:
            with self.subTest(text), self.assertRaises(JsonError):
                ClientConfig.from_json(text.encode())


class Choices(unittest.TestCase):
    """The scheduler alone, with its events thrown away."""

    def setUp(self):
        self.scheduler = Scheduler(1.0, lambda *_, **__: None)

    def worker(self, pattern: str, credit: int) -> uuid.UUID:
        connection = uuid.uuid4()
        self.scheduler.worker_up(uuid.uuid4(), connection, pattern)
        self.assertEqual(self.scheduler.credit(connection, credit), [])
        return connection

    def submit(self, exec_name: str, client: str = "c", text: str = "") -> list:
        return self.scheduler.submit(Job(uuid.uuid4(), client, exec_name, text.encode()))

    def test_fewest_running_then_most_credit(self):
        little, much = self.worker("job.assign.*", 1), self.worker("job.assign.>", 5)
        targets = [target for _ in range(3) for target, _ in self.submit("x")]
        self.assertEqual(targets, [much, little, much])  # SC05

    def test_a_capped_client_stops_its_executable(self):
        self.scheduler.client_up("greedy", uuid.uuid4(), 1)
        self.scheduler.client_up("other", uuid.uuid4(), 1)
        for exec_name, client, text in [("x", "greedy", "1"), ("x", "greedy", "2"), ("x", "greedy", "3"),
                                        ("x", "other", "4"), ("y", "other", "5")]:
            self.submit(exec_name, client, text)
        connection = uuid.uuid4()
        self.scheduler.worker_up(uuid.uuid4(), connection, "job.assign.*")
        passes = [[frame.payload for _, frame in self.scheduler.credit(connection, 9)]]
        passes += [[frame.payload for _, frame in self.scheduler.tick()] for _ in range(3)]
        # SC11: job 2 goes behind job 4 and ends the pass of x; y gets its turn, and job 4 finds `other` at its cap.
        self.assertEqual(passes, [[b"1", b"5"], [], [], []])

    def test_a_resend_prefers_another_worker(self):
        self.scheduler = Scheduler(0.0, lambda *_, **__: None)  # everything is overdue at once
        self.worker("job.assign.x", 5)
        self.submit("x", text="x")
        busy = self.worker("job.assign.*", 3)
        for _ in range(2):
            self.submit("y")
        target, frame = self.scheduler.tick()[0]
        self.assertEqual((target, frame.payload), (busy, b"x"))  # RT04, though the owner has more room

    def test_pattern_of_one_more_segment_gets_nothing(self):
        self.worker("job.assign.calcA.*", 4)
        self.assertEqual(self.submit("calcA"), [])  # C10 is heft's, not upstream's

