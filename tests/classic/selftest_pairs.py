"""Tests of the classic programs: paired with each other, and with bare sockets where a frame has to be odd."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import tempfile
import uuid
import zipfile
from pathlib import Path
from typing import Any

from harness import Case, Wire
from models import ClientConfig, JobRequest, JobResult
from wire import BODY_MAX, NIL, Frame, Type, credit

WORKER = uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def job(exec_name: str, *args: str, **members: Any) -> dict[str, Any]:
    return {"exec": exec_name, "args": list(args), **members}


def request(exec_name: str, *args: str, job_id: uuid.UUID | None = None) -> JobRequest:
    return JobRequest(job_id or uuid.uuid4(), "clientA", exec_name, list(args), [])


def assignment(what: JobRequest, body_bytes: int = 0) -> Frame:
    """An AssignJob whose body has at least so many bytes: one long argument fills it."""
    frame = Frame(Type.ASSIGN_JOB, what.JobId, subject=f"job.assign.{what.ExecName}.{WORKER}", payload=what.to_json())
    if not body_bytes:
        return frame
    missing = body_bytes - 39 - len(frame.subject) - len(frame.payload) - len('""')
    return assignment(JobRequest(what.JobId, what.ClientId, what.ExecName, ["x" * missing], what.Files))


class Trio(Case):
    """Leader, worker and client."""

    def results(self, jobs: list[dict[str, Any]], *worker_arguments: Any) -> list[dict[str, Any]]:
        """The results of jobs that are done one after the other, in their order."""
        _, port = self.leader("--time-scale", "20")
        self.worker(port, "--max-par", 1, *worker_arguments)
        client = self.client(port, jobs=jobs)
        self.assertEqual(client.exit_code(), 0, client.events)
        return client.all("result")

    def test_the_founding_sample(self):
        leader, port = self.leader()
        worker = self.worker(port, "--id", WORKER)
        client = self.client(port, 8)
        self.assertEqual(client.exit_code(), 0, client.events)
        self.assertEqual(leader.expect("client")["cap"], 8)
        self.assertEqual(leader.expect("credit")["delta"], 4)
        self.assertEqual(leader.expect("worker")["pattern"], "job.assign.*")
        results = {result["job_id"]: result for result in client.all("result")}
        self.assertEqual(len(results), 3)
        for index, submitted in enumerate(client.all("submitted")):
            job_id = submitted["job_id"]
            result, assigned = results[job_id], worker.expect("assigned", job_id=job_id)
            content = f"hello-{index}".encode()
            self.assertEqual(result["status"], "OK")
            self.assertEqual(result["stdout"], f"--mode=fast --seed={index}\ninput.txt {sha256(content)}\n")
            self.assertEqual((result["msg_id"], result["corr_id"]), (job_id, job_id))  # T05
            self.assertEqual(result["subject"], f"job.result.clientA.{uuid.UUID(job_id).hex}")
            self.assertEqual(assigned["subject"], f"job.assign.calcA.{WORKER}")  # T02
            self.assertEqual(assigned["payload_sha256"], leader.expect("submitted", job_id=job_id)["payload_sha256"])
        self.assertEqual(worker.terminate(), 0)
        self.assertEqual(worker.expect("closed")["why"], "signal")
        self.assertEqual(leader.expect("closed", role="worker")["why"], "eof")
        self.assertEqual(leader.terminate(), 0)

    def test_behaviours(self):
        echo, failed, exited, slept, bad, big, empty, duplicate, none = self.results([
            job("echo", "a", "é+<", files=[{"name": "日本.txt", "content_b64": b64(b"x")}]), job("fail", "why"),
            job("exit3"), job("sleep", "0.05"), job("badutf8"), job("big", "5000"), job("empty"), job("duplicate"),
            job("missing")])
        self.assertEqual((echo["status"], echo["stdout"]), ("OK", f"a é+<\n日本.txt {sha256(b'x')}\n"))
        self.assertRegex(echo["stderr"], "^zip error: ")
        self.assertEqual((failed["status"], failed["stderr"]), ("FAILED", "Process error: why"))
        self.assertEqual((exited["status"], exited["archive_b64"]), ("FAILED", None))
        self.assertRegex(exited["stderr"], r"\nzip error: ")  # WX11
        self.assertEqual(slept["status"], "OK")
        self.assertEqual(bad["stdout"], "good \ufffd\ufffd bad \ufffd( cut \ufffd\n")
        self.assertIn(rb"\uFFFD", base64.b64decode(bad["payload_b64"]))
        self.assertEqual(big["payload_len"], 5000 - 39)
        self.assertEqual((empty["payload_len"], empty["status"]), (0, None))
        self.assertEqual((duplicate["status"], duplicate["stdout"]), ("DUPLICATE", ""))
        self.assertEqual((none["status"], none["stderr"]),
                         ("FAILED", "Executable not found: /opt/grid/exe/missing.exe"))

    def test_archive_on_windows(self):
        (result,) = self.results([job("exit3", files=[{"name": "in", "content_b64": b64(b"abc")}])],
                                 "--platform", "windows")
        archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(result["archive_b64"])))
        self.assertEqual((result["status"], archive.read("in"), result["stderr"]),
                         ("FAILED", b"abc", "exit code 3\n"))
        self.assertEqual(archive.namelist(), ["exit3.exe", "in"])
        (result,) = self.results([job("make", "5000")], "--platform", "windows")
        archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(result["archive_b64"])))
        self.assertEqual(archive.namelist(), ["make.exe", "made.bin"])
        self.assertEqual(result["stdout"], f"made.bin {sha256(archive.read('made.bin'))}\n")

    def test_cache_without_checks(self):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "cache" / "set" / "data").mkdir(parents=True)
            for path in ("outside", "cache/flat", "cache/set/data/a.bin"):
                (root / path).write_bytes(path.encode())
            fetched, missed, folder = self.results([
                job("cache", files=[
                    {"name": "flat", "cache_id": "flat"},
                    {"name": "rewritten", "cache_id": "set/data/a.bin"},  # C02
                    {"name": "above", "cache_id": "../outside"},
                    {"name": "absolute", "cache_id": str(root / "outside")},
                    {"name": "inline wins", "cache_id": "flat", "content_b64": b64(b"!")},
                    {"name": "empty gives way", "cache_id": "flat", "content_b64": ""},
                    {"name": "not created", "content_b64": ""}]),  # C19
                job("cache", files=[{"name": "a", "cache_id": "nowhere"}]),
                job("cache", files=[{"name": "a", "cache_id": "set"}])], "--cache-dir", root / "cache")
        flat, outside = b"cache/flat", b"outside"
        at = f"{root}/cache"
        self.assertEqual(fetched["stdout"].splitlines(), [
            f"flat 10 {sha256(flat)} {at}/flat",
            f"rewritten 20 {sha256(b'cache/set/data/a.bin')} {at}/set/data/a.bin",
            f"above 7 {sha256(outside)} {at}/../outside",
            f"absolute 7 {sha256(outside)} {root}/outside",
            f"inline wins 1 {sha256(b'!')} inline",
            f"empty gives way 10 {sha256(flat)} {at}/flat"])
        self.assertEqual([(each["status"], each["stderr"]) for each in (missed, folder)],
                         [("FAILED", "Cache miss: nowhere"), ("FAILED", "Cache miss: set")])

    def test_requests_a_worker_fails(self):
        job_id = str(uuid.uuid4())
        half = f'{{"JobId":"{job_id}","ClientId":"clientA","ExecName":"echo","Args":[]}}'
        results = self.results([
            job("echo", raw_b64=b64(half.encode()), job_id=job_id),
            *(job("echo", files=[{"name": name, "content_b64": b64(b"x")}]) for name in ("../a", "a/b", "a\\b", " ")),
            job("echo", None)])
        self.assertEqual({result["status"] for result in results}, {"FAILED"})
        self.assertRegex(results[0]["stderr"], "^worker error")  # M15
        self.assertEqual([result["stderr"] for result in results[1:5]], ["invalid file name"] * 4)  # WX08
        self.assertRegex(results[5]["stderr"], "^worker error")

    def test_a_crash_in_the_middle_of_a_job_requeues_it(self):
        for args, how, code in (([], "exit", 70), (["close"], "close", 0)):
            with self.subTest(how):
                leader, port = self.leader("--time-scale", "20")
                first = self.worker(port)
                client = self.client(port, jobs=[job("crash", *args)])
                self.assertEqual(first.exit_code(), code)
                self.assertEqual(first.expect("crashing")["how"], how)
                leader.expect("requeued", why="worker down")
                second = self.worker(port, "--exec", "crash=echo")
                self.assertEqual(client.exit_code(), 0)
                self.assertEqual(client.expect("result")["status"], "OK")
                second.expect("assigned")

    def test_the_cap_is_respected(self):
        leader, port = self.leader("--time-scale", "20")
        worker = self.worker(port, "--max-par", 4)
        client = self.client(port, 2, jobs=[job("sleep", "0.02") for _ in range(8)])
        self.assertEqual(client.exit_code(), 0)
        leader.expect("assigned", count=8)
        worker.expect("assigned", count=8)
        self.assertLessEqual(max(event["outstanding"] for event in worker.all("assigned")), 2)
        self.assertLessEqual(max(event["running"] for event in leader.all("assigned")), 2)

    def test_unacknowledged_jobs_are_resent_and_die(self):
        leader, port = self.leader("--time-scale", "0.01")
        worker = self.worker(port, "--max-par", 1)
        client = self.client(port, "--no-wait", jobs=[job("hang")])
        self.assertEqual(client.exit_code(), 0)
        self.assertEqual(leader.expect("dlq")["attempts"], 6)
        self.assertEqual([event["attempt"] for event in leader.all("resent")], [2, 3, 4, 5, 6])
        self.assertEqual(worker.terminate(), 0)

    def test_a_resend_goes_elsewhere_and_the_late_ack_is_dropped(self):
        leader, port = self.leader("--time-scale", "0.1")
        client = self.client(port, jobs=[job("any")])
        workers = []
        for event in ("assigned", "resent"):
            worker = self.dial(port)
            worker.send(Frame(Type.HELLO_WORKER, uuid.uuid4(), subject="job.assign.any"))
            worker.send(credit(1))
            leader.expect(event)  # RT04: the second worker gets what the first did not acknowledge
            workers.append(worker)
        job_id = workers[0].next().msg_id
        for worker, text in zip(workers, ("first", "second")):
            result = JobResult(job_id, "clientA", "any", "OK", text)
            worker.send(Frame(Type.ACK_JOB, corr_id=job_id, payload=result.to_json()))
            leader.expect("late_ack" if text == "first" else "acked")  # RT08
        self.assertEqual(client.exit_code(), 0)
        self.assertEqual(client.expect("result")["stdout"], "second")

    def test_a_repeated_submit_is_ignored(self):
        leader, port = self.leader()
        self.worker(port)
        first, second = (str(uuid.uuid4()) for _ in range(2))
        self.client(port, jobs=[job("echo", job_id=first), job("echo", job_id=second, msg_id=first)])
        leader.expect("duplicate_submit", msg_id=first)  # DD04: the MsgId counts, not the JobId in the JSON
        self.assertEqual(len(leader.all("submitted")), 1)


class Limits(Case):
    """4 MiB of body is read, one byte more is a closed connection; nothing limits what is sent (W05, W06)."""

    def test_worker(self):
        worker, leader = self.worker_at()
        leader.send(assignment(request("echo"), BODY_MAX))
        self.assertEqual(worker.expect("assigned")["body_bytes"], BODY_MAX)
        self.assertEqual(JobResult.from_json(leader.next().payload).Status, "OK")
        self.assertEqual(leader.next().type, Type.CREDIT)
        leader.send_anyway(assignment(request("echo"), BODY_MAX + 1))
        self.assertEqual(worker.expect("closed")["why"], f"length {BODY_MAX + 1}")
        self.assertEqual(worker.exit_code(), 0)
        self.assertTrue(leader.is_closed())

    def test_worker_sends_what_no_classic_leader_reads(self):
        worker, leader = self.worker_at()
        leader.send(assignment(request("big", str(BODY_MAX + 1))))
        self.assertEqual(leader.next().body_bytes, BODY_MAX + 1)
        classic, port = self.leader()
        self.worker(port)
        self.client(port, jobs=[job("big", str(BODY_MAX + 1))])
        self.assertEqual(classic.expect("closed", role="worker")["why"], f"length {BODY_MAX + 1}")
        classic.expect("requeued")
        self.assertEqual(worker.terminate(), 0)

    def test_client(self):
        listener, port = self.listen()
        client = self.client(port, jobs=[job("echo"), job("echo")])
        leader = self.accept(listener)
        self.assertEqual(leader.next().payload, ClientConfig("clientA", 4).to_json())
        for size in (BODY_MAX, BODY_MAX + 1):
            submit = leader.next()
            result = JobResult(submit.msg_id, "clientA", "echo", "OK")
            result.Stdout = "x" * (size - 39 - len("s") - len(result.to_json()))
            leader.send_anyway(Frame(Type.RESULT, submit.msg_id, submit.msg_id, "s", result.to_json()))
        self.assertEqual(client.exit_code(), 1)
        self.assertEqual([event["body_bytes"] for event in client.all("result")], [BODY_MAX])
        self.assertEqual(client.expect("closed")["why"], f"length {BODY_MAX + 1}")

    def test_leader(self):
        leader, port = self.leader()
        client = self.client(port, jobs=[job("echo", body_bytes=BODY_MAX), job("echo", body_bytes=BODY_MAX + 1)])
        self.assertEqual(leader.expect("submitted")["body_bytes"], BODY_MAX)
        self.assertEqual(leader.expect("closed", role="client")["why"], f"length {BODY_MAX + 1}")
        self.assertEqual(client.exit_code(), 1)
        self.assertEqual(len(leader.all("submitted")), 1)

    def test_a_submit_at_the_limit_becomes_an_assignment_over_it(self):
        leader, port = self.leader()
        worker = self.worker(port)
        self.client(port, jobs=[job("echo", body_bytes=BODY_MAX)])
        over = BODY_MAX + len(f".{WORKER}")  # the subject grows by the worker's id
        self.assertEqual(worker.expect("closed")["why"], f"length {over}")
        leader.expect("requeued")


class Oddities(Case):
    def test_duplicates(self):
        for style, status, returned in (("head", "DUPLICATE", 1), ("001", None, 0)):
            with self.subTest(style):
                worker, leader = self.worker_at("--style", style)
                what = request("echo", "once")
                for _ in range(2):
                    leader.send(assignment(what))
                leader.send(assignment(request("echo", "next")))
                worker.expect("acked", count=3)
                worker.expect("credit", count=2 + returned)
                kinds = [leader.next() for _ in range(5 + returned)]
                acks = [frame.payload for frame in kinds if frame.type == Type.ACK_JOB and frame.corr_id == what.JobId]
                self.assertEqual(len([frame for frame in kinds if frame.type == Type.CREDIT]), 2 + returned)
                self.assertEqual(JobResult.from_json(acks[0]).Status, "OK")
                if status is None:
                    self.assertEqual(acks[1], b"")
                else:
                    self.assertEqual(acks[1], JobResult(what.JobId, "clientA", "echo", status).to_json())

    def test_unknown_frames_are_ignored_and_the_end_is_the_end(self):
        worker, leader = self.worker_at()
        for kind in (8, 20, 30, 255):
            leader.send(Frame(kind, payload=b'{"leader":"127.0.0.1:1"}'))
        leader.send(assignment(request("echo")))
        self.assertEqual(leader.next().type, Type.ACK_JOB)
        worker.expect("ignored", count=4)
        self.assertEqual([event["type"] for event in worker.all("ignored")], [8, 20, 30, 255])
        leader.sock.close()
        self.assertEqual(worker.exit_code(), 0)  # RD04: no reconnect

    def test_leader_ignores_what_it_does_not_know(self):
        leader, port = self.leader()
        worker = self.dial(port)
        worker.send(Frame(Type.HELLO_WORKER, WORKER, subject="job.assign.>", payload=b'{"Heft":{"Version":1}}'))
        worker.send(Frame(43, payload=b"\x01"))
        worker.send(credit(1))
        client = self.dial(port)
        client.send(Frame(Type.HELLO_CLIENT, subject="c",
                          payload=b'{"ClientId":"c","DesiredParallelism":7,"Heft":{"Version":1}}'))
        client.send(Frame(60, payload=b"\x01{}"))
        what = request("any")
        client.send(Frame(Type.SUBMIT_JOB, what.JobId, subject="job.submit.any", payload=what.to_json()))
        self.assertEqual(worker.next().payload, what.to_json())  # and nothing came before it (W23)
        for kind in (43, 60):
            leader.expect("ignored", type=kind)
        self.assertEqual(leader.expect("client")["cap"], 7)

    def test_first_frames_that_are_no_hello(self):
        leader, port = self.leader()
        for generation, frame in (("f2", credit(1)), ("f2", Frame(30)), ("f0", Frame(Type.HELLO_WORKER)),
                                  ("f1", Frame(Type.HELLO_CLIENT))):
            stranger = self.dial(port, generation)
            stranger.send(frame)
            self.assertTrue(stranger.is_closed())  # W16
        leader.expect("closed", count=4, role=None)

    def test_caps(self):
        leader, port = self.leader()
        wishes = [(b"", 4), (b'{"ClientId":"d","DesiredParallelism":9}', 4), (b"{", 4),
                  (b'{"ClientId":"c","DesiredParallelism":0}', 1)]
        for number, (payload, cap) in enumerate(wishes, 1):
            client = self.dial(port)
            client.send(Frame(Type.HELLO_CLIENT, subject="c", payload=payload))
            self.assertEqual(leader.expect("client", count=number)["cap"], cap)  # CP03

    def test_credit_rules(self):
        leader, port = self.leader()
        worker = self.dial(port)
        worker.send(Frame(Type.HELLO_WORKER, WORKER, subject="job.assign.*"))
        for payload in (struct.pack("<i", -5), struct.pack("<i", 0), b"\1\0\0", b"", struct.pack("<i", 20_000)):
            worker.send(Frame(Type.CREDIT, payload=payload))
        leader.expect("credit", count=2)
        self.assertEqual([event["delta"] for event in leader.all("credit")], [1, 20_000])
        self.assertEqual(len(leader.all("bad_credit")), 3)
        client = self.client(port, "--no-wait", jobs=[job("x")])
        self.assertEqual(leader.expect("assigned")["credit"], 10_000)  # 1 + 10,000 - 1: clamped (CR04)
        self.assertEqual(client.exit_code(), 0)

    def test_a_submit_that_is_no_request_ends_the_connection(self):
        leader, port = self.leader()
        client = self.client(port, jobs=[{"text": "raw", "subject": "groupA"}])
        self.assertEqual(client.exit_code(), 1)
        self.assertRegex(leader.expect("closed", role="client")["why"], "no JobRequest")


class Minimal(Case):
    """F0 and F1."""

    def expect_cycle(self, leader: Wire, corr_id: uuid.UUID) -> None:
        ack, more = leader.next(), leader.next()
        self.assertEqual((ack.type, ack.corr_id, ack.payload), (Type.ACK_JOB, corr_id, b""))
        self.assertEqual((more.type, more.payload), (Type.CREDIT, b"\1\0\0\0"))

    def test_workers(self):
        for generation in ("f0", "f1"):
            with self.subTest(generation):
                worker, leader = self.worker_at("--max-par", 3, generation=generation)
                self.assertEqual(worker.expect("started")["credit"], 1)
                job_id = NIL if generation == "f0" else uuid.uuid4()
                for text in (b"job-0", b"\xff\xfe"):
                    leader.send(Frame(Type.ASSIGN_JOB, job_id, payload=text))
                    self.expect_cycle(leader, job_id)
                    worker.expect("assigned", payload_b64=b64(text))
                self.assertEqual(worker.terminate(), 0)

    def test_clients(self):
        for generation in ("f0", "f1"):
            with self.subTest(generation):
                listener, port = self.listen()
                client = self.client(port, "--generation", generation)
                leader = self.accept(listener, generation)
                self.assertEqual(leader.next().type, Type.HELLO_CLIENT)
                self.assertEqual([leader.next().payload for _ in range(3)], [b"job-0", b"job-1", b"job-2"])
                self.assertEqual(client.exit_code(), 0)

    def test_f1_client_may_wait(self):
        listener, port = self.listen()
        client = self.client(port, "--generation", "f1", "--wait", jobs=[{"raw_b64": b64(b"\0\1")}])
        leader = self.accept(listener, "f1")
        leader.next()
        submit = leader.next()
        leader.send(Frame(Type.RESULT, submit.msg_id, submit.msg_id, payload=b"done"))
        self.assertEqual(client.exit_code(), 0)
        self.assertEqual(client.expect("result")["payload_b64"], b64(b"done"))

    def test_crash_on_an_assignment(self):
        worker, leader = self.worker_at("--crash-on", 2, generation="f0")
        leader.send(Frame(Type.ASSIGN_JOB, payload=b"x"))
        self.expect_cycle(leader, NIL)
        leader.send(Frame(Type.ASSIGN_JOB, payload=b"x"))
        self.assertEqual(worker.exit_code(), 70)
