#!/usr/bin/env python3
"""Writes tests/vectors/frames.json: heft's frames, messages, manifests and packs as bytes, with their meaning.

It builds every vector from the layouts of docs/protocol.md with nothing but Python's standard library, so it is a
second implementation of the encoder; the tests hold the Rust one against it. Run it after a change of the protocol.
`--check` says whether the file is what this script would write; `--corpus DIR` writes each vector to a file of its own,
for a fuzzer to start from.
"""

import gzip
import hashlib
import json
import struct
import sys
import uuid
import zlib
from pathlib import Path

TARGET = Path(__file__).with_name("frames.json")
MIB = 1 << 20
BODY_MAX = 4 * MIB
FIRST_BODY_MAX = 128 * 1024

JOB = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER_JOB = uuid.UUID("7d444840-9dc0-11d1-b245-5ffdce74fad2")
WORKER = uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
TRANSFER = uuid.UUID("c0ffee00-0001-0002-0003-000000000004")
LEADER = uuid.UUID("1ead0000-1111-2222-3333-444444444444")
REQUESTED = uuid.UUID("da7a5e70-0001-0002-0003-000000000050")
GENERATION = uuid.UUID("da7a5e70-0001-0002-0003-000000000053")
PACK = uuid.UUID("da7a5e70-0001-0002-0003-000000000054")
NIL = uuid.UUID(int=0)

CODES = {
    "SubmitJob": 1, "AssignJob": 2, "AckJob": 3, "Credit": 4, "Result": 5, "CachePut": 6, "CacheAck": 7,
    "HelloClient": 9, "HelloWorker": 10, "NotLeader": 20, "LeaderHello": 21, "AppendEntries": 22, "AppendResp": 23,
    "RequestVote": 24, "VoteResp": 25, "InstallSnapshot": 26, "InstallSnapResp": 27, "Welcome": 30, "Open": 31,
    "Grant": 32, "Chunk": 33, "Done": 34, "Verdict": 35, "Abort": 36, "Void": 37, "Piece": 38, "Submitted": 40, "Refused": 41,
    "Start": 42, "Heartbeat": 43, "Progress": 44, "Cancel": 45, "Settled": 46,
    "Received": 47, "Keepalive": 48, "Programs": 49, "Put": 50, "Lack": 51, "Spread": 52,
    "Hold": 53, "Pack": 54, "Release": 55, "Have": 56, "Inspect": 57, "Ask": 60, "Answer": 61,
    "Follow": 62, "Output": 63, "RecordPiece": 70, "TimeoutNow": 71,
}
CODECS = {"None": 0, "Gzip": 1, "Brotli": 2, "Zstd": 3}

# --- the frame layouts ------------------------------------------------------------------------------------------


def frame(generation, code, msg=NIL, corr=NIL, subject=b"", payload=b"", trailing=b"", payload_len=None,
          subject_len=None, length=None):
    """One frame. The keyword lengths replace the true ones, to make hostile frames."""
    if isinstance(subject, str):
        subject = subject.encode()
    body = struct.pack("<B", code)
    if generation != "F0":
        body += msg.bytes_le + corr.bytes_le
    if generation == "F2":
        body += struct.pack("<H", len(subject) if subject_len is None else subject_len) + subject
    body += struct.pack("<I", len(payload) if payload_len is None else payload_len) + payload + trailing
    return struct.pack("<i", len(body) if length is None else length) + body


def checksum(generation, code, msg=NIL, corr=NIL, subject=b"", payload=b""):
    """CRC-32 of a body up to where it stands: the length counts it, and it does not count itself."""
    return struct.pack("<I", zlib.crc32(frame(generation, code, msg, corr, subject, payload)[4:]))


def flipped(data, byte, bit):
    """The same bytes but for one bit."""
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1:]


# --- the fields of messages -------------------------------------------------------------------------------------


def u8(value): return struct.pack("<B", value)
def u16(value): return struct.pack("<H", value)
def u32(value): return struct.pack("<I", value)
def u64(value): return struct.pack("<Q", value)
def text(value): return u16(len(value.encode())) + value.encode()
def ranges(*runs): return u16(len(runs)) + b"".join(u32(first) + u32(count) for first, count in runs)


def chunk_head(offset, raw_len, crc_sent, crc_raw, codec):
    return u64(offset) + u32(raw_len) + u32(crc_sent) + u32(crc_raw) + u8(codec)


def chunk_payload(offset, raw, codec="None", sent=None, **changes):
    sent = raw if sent is None else sent
    fields = {"offset": offset, "raw_len": len(raw), "crc_sent": zlib.crc32(sent), "crc_raw": zlib.crc32(raw),
              "codec": CODECS[codec]}
    fields.update(changes)
    return chunk_head(**fields) + sent


# --- collecting vectors -----------------------------------------------------------------------------------------

VECTORS = []


def add(name, rows, meaning, data, *, speaks, expect, limits="classic", zeros=0, plan=None, trailers=None):
    """`speaks`: a generation, or "first" for a connection's first frame. `zeros`: that many zero bytes follow.
    `trailers`: what the reader expects behind payloads, if not what classic peers have."""
    vector = {"name": name, "rows": rows.split(), "meaning": meaning, "speaks": speaks, "limits": limits,
              "hex": data.hex(), "expect": expect}
    if zeros:
        vector["then_zeros"] = zeros
    if plan:
        vector["plan"] = plan
    if trailers:
        vector["trailers"] = trailers
    VECTORS.append(vector)


def good(name, rows, meaning, generation, kind, *, msg=NIL, corr=NIL, subject="", payload=b"", trailing=b"",
         first=False, message=None, chunk=None, zeros=0, plan=None, limits="classic", pad=0, trailers=None,
         summed=False):
    """A frame that is read back as what it was written from. `summed`: with its checksum behind its payload."""
    if summed:
        trailing = checksum(generation, CODES[kind], msg, corr, subject, payload)
    data = frame(generation, CODES[kind], msg, corr, subject, payload, trailing,
                 payload_len=len(payload) + pad if pad else None,
                 length=None if not pad else len(frame(generation, CODES[kind], msg, corr, subject, payload)) - 4 + pad)
    has_ids, has_subject = generation != "F0", generation == "F2"
    read = {"generation": generation, "code": CODES[kind], "kind": kind,
            "msg_id": str(msg if has_ids else NIL), "corr_id": str(corr if has_ids else NIL),
            "subject": subject if has_subject else "", "payload_len": len(payload) + pad,
            "payload_hex": payload.hex(), "trailing": len(trailing)}
    expect = {"frame": read}
    if message is not None:
        expect["message"] = {kind: message}
    if chunk is not None:
        expect["chunk"] = chunk
    add(name, rows, meaning, data, speaks="first" if first else generation, expect=expect, zeros=pad, plan=plan,
        limits=limits, trailers=trailers)


def hostile(name, rows, meaning, data, error, *says, speaks="F2", limits="classic", layer="frame", zeros=0, plan=None,
            trailers=None):
    """Bytes that give an error: `layer` says which reader finds it, `says` what the error's text must name."""
    add(name, rows, meaning, data, speaks=speaks, limits=limits, zeros=zeros, plan=plan, trailers=trailers,
        expect={f"{layer}_error": error, "says": [str(value) for value in says]})


def bad_message(name, rows, meaning, kind, payload, error, *says):
    hostile(name, rows, meaning, frame("F2", CODES[kind], TRANSFER, payload=payload), error, *says, layer="message")


def bad_chunk(name, rows, meaning, payload, error, *says, plan):
    data = frame("F2", CODES["Chunk"], TRANSFER, payload=payload)
    hostile(name, rows, meaning, data, error, *says, layer="chunk", plan=plan)


# --- F0 and F1 --------------------------------------------------------------------------------------------------

good("F0 hello of a client", "W01 W18 T09", "The first frame of a minimal client: five bytes of body.", "F0",
     "HelloClient", first=True)
good("F0 hello of a worker", "W01 W18 T10", "The first frame of a minimal worker.", "F0", "HelloWorker", first=True)
good("F0 credit of one", "W01 T04 CR01", "A minimal worker has room for one job.", "F0", "Credit", payload=u32(1))
good("F0 submit of a raw job", "W01 T01 M19", "Opaque bytes; the leader makes the id.", "F0", "SubmitJob",
     payload=b"job-0")
good("F0 assign of a raw job", "W01 T02 M19", "The same bytes, unchanged.", "F0", "AssignJob", payload=b"job-0")
good("F0 empty ack", "W01 T03 C03", "From a minimal worker an empty ack means OK.", "F0", "AckJob")
good("F1 hello of a worker", "W02 W18 T10", "MsgId is the worker's id.", "F1", "HelloWorker", msg=WORKER, first=True)
good("F1 hello of a client", "W02 W18 T09", "Ids may be nil.", "F1", "HelloClient", first=True)
good("F1 submit", "W02 T01", "MsgId is the job's id.", "F1", "SubmitJob", msg=JOB, payload=b"\x00\x01\xfe\xff")
good("F1 assign", "W02 T02", "MsgId is the job's id.", "F1", "AssignJob", msg=JOB, payload=b"\x00\x01\xfe\xff")
good("F1 ack", "W02 T03", "CorrId is the job's id.", "F1", "AckJob", corr=JOB)
good("F1 credit", "W02 T04", "Credit of four.", "F1", "Credit", msg=OTHER_JOB, payload=u32(4))
good("F1 result", "W02 T05", "MsgId and CorrId are the job's id.", "F1", "Result", msg=JOB, corr=JOB, payload=b"done")

# --- F2: the founding messages ----------------------------------------------------------------------------------

REQUEST = ('{"JobId":"%s","ClientId":"clientA","ExecName":"calcA","Args":["--mode=fast","--seed=1"],'
           '"Files":[{"Name":"input.txt","CacheId":null,"Content":"aGVsbG8tMQ=="}]}' % JOB).encode()
RESULT = ('{"JobId":"%s","ClientId":"clientA","ExecName":"calcA","Status":"OK","Stdout":"42\\n","Stderr":"",'
          '"OutputArchive":null}' % JOB).encode()
CACHE_PUT = (b'{"CacheId":"dataset-20251019-v1","Entries":[{"Name":"data/a.bin","Content":"AAEC"}],'
             b'"TargetPattern":"job.assign.*"}')
CACHE_ACK = b'{"CacheId":"dataset-20251019-v1","Status":"OK","Message":"added=1"}'
CONFIG = b'{"ClientId":"clientA","DesiredParallelism":8}'
ANNOUNCED_CONFIG = (b'{"ClientId":"clientA","DesiredParallelism":8,"Heft":{"Version":1,'
                    b'"Features":["transfers","zstd","submit-answers"]}}')
ANNOUNCED_WORKER = b'{"Heft":{"Version":1,"Features":["transfers","leases"]},"Patterns":["job.assign.>"]}'
ASSIGN_SUBJECT = f"job.assign.calcA.{WORKER}"
RESULT_SUBJECT = f"job.result.clientA.{JOB.hex}"

good("hello of a client", "W03 W18 T09", "ClientId is the subject; no payload.", "F2", "HelloClient",
     subject="clientA", first=True)
good("hello of a client with a cap", "T09 CP01 M04", "ClientConfig as .NET writes it.", "F2", "HelloClient",
     subject="clientA", payload=CONFIG, first=True)
good("hello of a client that announces itself", "T09 M14", "More members, which a classic leader ignores.", "F2",
     "HelloClient", subject="clientA", payload=ANNOUNCED_CONFIG, first=True)
good("hello of a nameless client", "T09", "An empty ClientId: the leader makes one.", "F2", "HelloClient", first=True)
good("hello of a worker", "T10 S04", "MsgId is the worker's id, the subject its pattern.", "F2", "HelloWorker",
     msg=WORKER, subject="job.assign.*", first=True)
good("hello of a worker with a group", "T10 S02 C13", "A bare group name in place of a pattern.", "F2", "HelloWorker",
     msg=WORKER, subject="groupA", first=True)
good("hello of a worker that announces itself", "T10 S21", "A payload, which a classic leader ignores.", "F2",
     "HelloWorker", msg=WORKER, subject="job.assign.>", payload=ANNOUNCED_WORKER, first=True)
good("submit", "T01 M02 S03", "A JobRequest as .NET writes it; MsgId is its JobId.", "F2", "SubmitJob", msg=JOB,
     subject="job.submit.calcA", payload=REQUEST)
good("submit to a group", "T01 S02", "A group for a subject, raw bytes for a payload.", "F2", "SubmitJob", msg=JOB,
     subject="groupA", payload=b"process this")
good("submit to a direct subject", "T01 S07", "A full assign subject.", "F2", "SubmitJob", msg=JOB,
     subject="job.assign.A.1", payload=b"process this")
good("submit of nothing", "T01 M19", "An empty payload is a job too.", "F2", "SubmitJob", msg=JOB,
     subject="job.submit.calcA")
good("assign", "T02 W09", "The client's bytes unchanged; ids in .NET order.", "F2", "AssignJob", msg=JOB,
     subject=ASSIGN_SUBJECT, payload=REQUEST)
good("ack with a result", "T03 M03", "CorrId is the job's id, MsgId nil.", "F2", "AckJob", corr=JOB, payload=RESULT)
good("empty ack", "T03 C17", "From an F2 worker it never becomes a result.", "F2", "AckJob", corr=JOB)
good("credit of four", "T04 CR02", "An Int32, little-endian.", "F2", "Credit", msg=OTHER_JOB, payload=u32(4))
good("credit without a payload", "T04 CR03", "Means one.", "F2", "Credit", msg=OTHER_JOB)
good("credit below zero", "T04 CR04", "A sound frame; the broker ignores it.", "F2", "Credit", msg=OTHER_JOB,
     payload=struct.pack("<i", -5))
good("result", "T05", "The worker's bytes unchanged; both ids are the job's.", "F2", "Result", msg=JOB, corr=JOB,
     subject=RESULT_SUBJECT, payload=RESULT)
good("cache put from a client", "T06 S08 M06", "The target pattern stands in the subject.", "F2", "CachePut",
     msg=OTHER_JOB, subject="cache.put.job.assign.*", payload=CACHE_PUT)
good("cache put to a worker", "T06 S08", "CorrId is the client's request.", "F2", "CachePut", corr=OTHER_JOB,
     subject="cache.put", payload=CACHE_PUT)
good("cache ack", "T07 S08 M07 M12", "CorrId is the client's request.", "F2", "CacheAck", corr=OTHER_JOB,
     subject="cache.ack.dataset-20251019-v1", payload=CACHE_ACK)
good("not leader", "T20 RD01", "Go there.", "F2", "NotLeader", payload=b'{"leader":"10.0.0.2:5000"}')
good("not leader, and none known", "T20", "The value may be null.", "F2", "NotLeader", payload=b'{"leader":null}')
good("leader hello", "T21 S09", "Node to node.", "F2", "LeaderHello", subject="cluster.g1.hello", payload=b"{}")
good("append entries without entries", "T22 CU04", "A heartbeat.", "F2", "AppendEntries", subject="cluster.g1.append",
     payload=b'{"term":3,"leaderId":"n1","prevLogIndex":7,"prevLogTerm":3,"entries":[],"leaderCommit":7}')
good("append response", "T23", "", "F2", "AppendResp", payload=b'{"term":3,"success":true,"matchIndex":7}')
good("request vote", "T24", "", "F2", "RequestVote",
     payload=b'{"group":"g1","term":4,"candidate":"n2","lastLogIndex":7,"lastLogTerm":3}')
good("vote response", "T25", "", "F2", "VoteResp", payload=b'{"term":4,"granted":true}')
good("install snapshot", "T26", "", "F2", "InstallSnapshot", subject="cluster.g1.snapshot", payload=b"\x01\x02\x03")
good("install snapshot response", "T27", "", "F2", "InstallSnapResp", payload=b'{"term":4}')
good("a subject in another script", "W03", "Subjects are UTF-8; lengths count bytes.", "F2", "SubmitJob", msg=JOB,
     subject="job.submit.計算", payload=b"x")
good("the longest subject", "W10", "65,535 bytes.", "F2", "SubmitJob", msg=JOB, subject="s" * 65535, payload=b"x")
good("trailing bytes", "C04 W11", "Three bytes behind the payload: skipped and counted.", "F2", "AckJob", corr=JOB,
     payload=RESULT, trailing=b"\x00\x01\x02")
good("a body of exactly 4 MiB", "W05", "4,194,304 bytes are taken; the rest of the payload is zeros.", "F2",
     "AssignJob", msg=JOB, subject=ASSIGN_SUBJECT, pad=BODY_MAX - 39 - len(ASSIGN_SUBJECT))
good("a submit of 50 MB from a peer that announced nothing", "W06 W07 C01", "Streamed, never gathered. Only its head "
     "is checked here; zeros follow.", "F2", "SubmitJob", msg=JOB, subject="job.submit.calcA", pad=50_000_000)

# --- ours: welcome and transfers --------------------------------------------------------------------------------

FEATURES = 0b1_0111_1001
good("welcome", "W23", "Features: transfers, zstd, submit answers, leases, progress, ask. Three limits.", "F2",
     "Welcome", corr=WORKER,
     payload=u8(1) + LEADER.bytes_le + text("heft 0.1.0") + u64(FEATURES) + u16(3)
     + u16(1) + u64(BODY_MAX) + u16(2) + u64(MIB) + u16(3) + u64(8),
     message={"leader": str(LEADER), "software": "heft 0.1.0", "features": FEATURES,
              "limits": [[1, BODY_MAX], [2, MIB], [3, 8]]})


def open_payload(purpose=1, codec=3, digest=0, flags=1, chunk_bytes=MIB, size=67_108_864, owner=JOB, attempt=1,
                 name=text("data/input.bin"), version=1):
    return (u8(version) + u8(purpose) + u8(codec) + u8(digest) + u16(flags) + u32(chunk_bytes) + u64(size)
            + owner.bytes_le + u32(attempt) + name)


def open_message(**changes):
    fields = {"purpose": "Input", "codec": "Zstd", "digest": "ChunkList", "flags": 1, "chunk_bytes": MIB,
              "size": 67_108_864, "owner": str(JOB), "attempt": 1, "name": "data/input.bin"}
    return fields | changes


good("open of a job's input", "CH01 W13", "64 MiB in chunks of 1 MiB, some of them in zstd; the source is kept.", "F2",
     "Open", msg=TRANSFER, payload=open_payload(), message=open_message())
good("open of an empty blob", "C19", "No bytes, no chunks: Done follows the Grant.", "F2", "Open", msg=TRANSFER,
     payload=open_payload(codec=0, flags=0, size=0, name=text("empty")),
     message=open_message(codec="None", flags=0, size=0, name="empty"))
good("open of a result archive", "WX04", "Nothing promised about the source; SHA-256 asked for.", "F2", "Open",
     msg=TRANSFER, payload=open_payload(purpose=2, codec=0, digest=1, flags=0, size=20 << 30, attempt=2, name=text("")),
     message=open_message(purpose="Archive", codec="None", digest="Sha256", flags=0, size=20 << 30, attempt=2,
                          name=""))
good("open from a newer peer", "", "Version 2 has appended two fields: skipped.", "F2", "Open", msg=TRANSFER,
     payload=open_payload(version=2) + u64(7) + text("news"), message=open_message())
good("first grant of a resumed transfer", "CH01", "Eight chunks may come; 0-11 and 14 are here already.", "F2", "Grant",
     msg=TRANSFER, payload=u8(1) + u32(8) + u16(0) + text("") + ranges((0, 12), (14, 1)),
     message={"window": 8, "reason": 0, "text": "",
              "held": [{"first": 0, "count": 12}, {"first": 14, "count": 1}]})
good("later grant", "", "Two more.", "F2", "Grant", msg=TRANSFER,
     payload=u8(1) + u32(2) + u16(0) + text("") + ranges(), message={"window": 2, "reason": 0, "text": "", "held": []})
good("grant that makes wait", "", "Window 0, with the reason in a number and in words.", "F2", "Grant", msg=TRANSFER,
     payload=u8(1) + u32(0) + u16(4) + text("no worker for calcA is connected") + ranges(),
     message={"window": 0, "reason": 4, "text": "no worker for calcA is connected", "held": []})

good("first grant that has a part of a chunk", "CH01", "Chunks 0 and 1 are here, and the first 300,000 bytes of chunk 2.",
     "F2", "Grant", msg=TRANSFER,
     payload=u8(1) + u32(8) + u16(0) + text("") + ranges((0, 2)) + u8(1) + u32(2) + u32(300_000) + u32(0x1BADF00D),
     message={"window": 8, "reason": 0, "text": "", "held": [{"first": 0, "count": 2}],
              "part": {"index": 2, "bytes": 300_000, "crc_sent": 0x1BADF00D}})
good("grant from a newer peer, without a part", "", "What follows the part is skipped.", "F2", "Grant", msg=TRANSFER,
     payload=u8(2) + u32(2) + u16(0) + text("") + ranges() + u8(0) + u64(7),
     message={"window": 2, "reason": 0, "text": "", "held": []})

RAW = b"heft moves heavy payloads. " * 40
PLAN = {"size": 3 * 4096 + len(RAW), "chunk_bytes": 4096}
LAST = 3 * 4096
GZIPPED = gzip.compress(RAW, 6, mtime=0)
# Made once with the zstd and brotli reference libraries, which Python's standard library lacks.
ZSTD = bytes.fromhex("28b52ffd6038031d0100d868656674206d6f766573206865617679207061796c6f6164732e2001006be0ff1c03")
BROTLI = bytes.fromhex("17370400446f78bd3b2ee7bf420e45919290a8d260065556982fee06e63aefd1fc2cea0832")
FULL = bytes(index % 251 for index in range(4096))

good("a full chunk", "CH01", "The second chunk of 4 KiB, as it is: both checksums are equal.", "F2", "Chunk",
     msg=TRANSFER, payload=chunk_payload(4096, FULL), plan=PLAN,
     chunk={"index": 1, "codec": "None", "raw_hex": FULL.hex()})
for codec, sent in (("None", RAW), ("Gzip", GZIPPED), ("Brotli", BROTLI), ("Zstd", ZSTD)):
    good(f"the last chunk, codec {codec.lower()}", "CO01 CO02", f"{len(RAW)} raw bytes in {len(sent)}.", "F2", "Chunk",
         msg=TRANSFER, payload=chunk_payload(LAST, RAW, codec, sent), plan=PLAN,
         chunk={"index": 3, "codec": codec, "raw_hex": RAW.hex()})

LISTED = b"".join(u64(index * 4096) + u32(len(raw)) + u32(zlib.crc32(raw)) for index, raw in enumerate([FULL, RAW]))
for code, kind, digest in ((0, "chunk-list", hashlib.sha256(LISTED)), (1, "sha256", hashlib.sha256(FULL + RAW)),
                           (2, "blake3", None)):
    value = digest.digest() if digest else bytes(range(32))
    good(f"done with a {kind} digest", "", "Over the two chunks above." if digest else "Any 32 bytes.", "F2", "Done",
         msg=TRANSFER, payload=u8(1) + u8(code) + value, message={"digest": f"{kind}:{value.hex()}"})
good("verdict: whole", "", "The sender may forget the source.", "F2", "Verdict", msg=TRANSFER, payload=u8(1) + u8(0),
     message="Ok")
good("verdict: send again", "", "Chunk 7, and 40 to 63.", "F2", "Verdict", msg=TRANSFER,
     payload=u8(1) + u8(1) + ranges((7, 1), (40, 24)),
     message={"Resend": [{"first": 7, "count": 1}, {"first": 40, "count": 24}]})
good("verdict: failed", "", "A digest that was wrong twice.", "F2", "Verdict", msg=TRANSFER,
     payload=u8(1) + u8(2) + u16(10) + text("digest differs after a second try"),
     message={"Failed": {"reason": 10, "text": "digest differs after a second try"}})
good("abort", "", "The file shrank while it was read.", "F2", "Abort", msg=TRANSFER,
     payload=u8(1) + u16(12) + text("input.bin is 10 bytes now, 20 were announced"),
     message={"reason": 12, "text": "input.bin is 10 bytes now, 20 were announced"})
good("void", "", "The chunk at 5 MiB was filled with zeros after its source broke.", "F2", "Void", msg=TRANSFER,
     payload=u8(1) + u64(5 * MIB) + u16(12), message={"offset": 5 * MIB, "reason": 12})



def piece_payload(offset, raw, start, end, codec="None", sent=None, sent_len=None):
    whole = raw if sent is None else sent
    return (u8(1) + chunk_payload(offset, raw, codec, sent)[:21]
            + u32(len(whole) if sent_len is None else sent_len) + u32(start) + whole[start:end])


def piece_message(offset, raw, start, end, codec="None", sent=None):
    whole = raw if sent is None else sent
    return {"offset": offset, "raw_len": len(raw), "crc_sent": zlib.crc32(whole), "crc_raw": zlib.crc32(raw),
            "codec": codec, "sent_len": len(whole), "from": start, "len": end - start}


good("the first piece of a chunk", "CH01", "1,000 of 4,096 bytes.", "F2", "Piece", msg=TRANSFER,
     payload=piece_payload(4096, FULL, 0, 1000), message=piece_message(4096, FULL, 0, 1000))
good("the last piece of a chunk", "CH01", "The rest of it: now it is a chunk.", "F2", "Piece", msg=TRANSFER,
     payload=piece_payload(4096, FULL, 1000, 4096), message=piece_message(4096, FULL, 1000, 4096))
good("a piece of a compressed chunk", "CH01 CO01", "Lengths and places count bytes as sent.", "F2", "Piece", msg=TRANSFER,
     payload=piece_payload(LAST, RAW, 10, len(GZIPPED), "Gzip", GZIPPED),
     message=piece_message(LAST, RAW, 10, len(GZIPPED), "Gzip", GZIPPED))

# --- ours: job control, ask and answer --------------------------------------------------------------------------

good("submitted", "W23", "Queued, first run, three jobs ahead.", "F2", "Submitted", msg=JOB, corr=JOB,
     payload=u8(1) + u8(0) + u32(1) + u32(3), message={"standing": "Queued", "run": 1, "ahead": 3})
good("submitted again", "DD04 C17", "The job has ended; its stored result follows.", "F2", "Submitted", msg=JOB,
     corr=JOB, payload=u8(1) + u8(3) + u32(1) + u32(0), message={"standing": "Finished", "run": 1, "ahead": 0})
REFUSAL = 'job input is 5,242,880 bytes; classic worker w-3 takes at most 3,145,521: start a heft worker for "calcA"'
good("refused", "C01", "Value, limit, hop, and all of it as a sentence.", "F2", "Refused", msg=JOB, corr=JOB,
     payload=u8(1) + u16(2) + u64(5_242_880) + u64(3_145_521) + text("classic worker w-3") + text(REFUSAL),
     message={"reason": 2, "value": 5_242_880, "limit": 3_145_521, "hop": "classic worker w-3", "text": REFUSAL})
good("start", "C06", "Attempt 2 of run 1, under a lease of 30 s.", "F2", "Start", msg=JOB,
     payload=u8(1) + u32(1) + u32(2) + u32(30_000), message={"run": 1, "attempt": 2, "lease_ms": 30_000})
good("start of a job whose client takes parts", "C06 CO04", "The archive need not fit one frame.", "F2", "Start", msg=JOB,
     payload=u8(1) + u32(1) + u32(2) + u32(30_000) + u16(1),
     message={"run": 1, "attempt": 2, "lease_ms": 30_000, "flags": 1})
good("start from a newer peer", "", "Bits that are not known, and what follows the flags, are skipped.", "F2", "Start", msg=JOB,
     payload=u8(2) + u32(1) + u32(2) + u32(30_000) + u16(0x8001) + u32(7),
     message={"run": 1, "attempt": 2, "lease_ms": 30_000, "flags": 0x8001})
good("heartbeat of a busy worker", "C06 SC06", "Two jobs, 45.0 % CPU, room for two more.", "F2", "Heartbeat",
     payload=u8(1) + u16(450) + u32(2) + u16(2) + JOB.bytes_le + u32(1) + u32(2) + OTHER_JOB.bytes_le + u32(1) + u32(1),
     message={"cpu_permille": 450, "credit": 2, "jobs": [{"job": str(JOB), "run": 1, "attempt": 2},
                                                         {"job": str(OTHER_JOB), "run": 1, "attempt": 1}]})
good("heartbeat of an idle worker", "C06", "No jobs.", "F2", "Heartbeat", payload=u8(1) + u16(0) + u32(4) + u16(0),
     message={"cpu_permille": 0, "credit": 4, "jobs": []})
good("progress", "C05", "40 of 64 MiB received.", "F2", "Progress", msg=JOB,
     payload=u8(1) + u32(1) + u32(1) + u8(2) + u64(40 * MIB) + u64(64 * MIB) + text("data/input.bin"),
     message={"run": 1, "attempt": 1, "stage": "Receiving", "done": 40 * MIB, "total": 64 * MIB,
              "text": "data/input.bin"})
good("cancel", "", "Whichever attempt is under way.", "F2", "Cancel", msg=JOB,
     payload=u8(1) + u32(0) + text("heft cancel by clientA"), message={"attempt": 0, "text": "heft cancel by clientA"})
good("settled", "WX11", "The worker may drop what it kept of the job.", "F2", "Settled", msg=JOB, payload=u8(1) + u32(1),
     message={"run": 1})
good("received", "", "The client has the result.", "F2", "Received", msg=JOB, payload=u8(1) + u32(1), message={"run": 1})
good("keepalive", "C06", "A sign of life: the version alone.", "F2", "Keepalive", payload=u8(1), message={})
good("programs of a worker", "C20", "All that it has, unasked.", "F2", "Programs",
     payload=u8(1) + u8(2) + u16(2) + text("calcA") + text("render.exe"),
     message={"say": "Are", "names": ["calcA", "render.exe"]})
good("programs are asked for", "C20", "The leader wants to know.", "F2", "Programs", msg=OTHER_JOB,
     payload=u8(1) + u8(1) + u16(0), message={"say": "Look", "names": []})
good("programs are the same", "C20", "An answer: nothing changed.", "F2", "Programs", corr=OTHER_JOB,
     payload=u8(1) + u8(3) + u16(0), message={"say": "Same", "names": []})
good("programs are not listed", "C20", "There are too many.", "F2", "Programs", payload=u8(1) + u8(4) + u16(0),
     message={"say": "Unlisted", "names": []})
good("ask", "", "The verb is the subject, the arguments are JSON.", "F2", "Ask", msg=OTHER_JOB, subject="dlq.ls",
     payload=u8(1) + b'{"limit":100}', message={"json": '{"limit":100}'})
good("answer", "", "The last part.", "F2", "Answer", corr=OTHER_JOB, subject="dlq.ls",
     payload=u8(1) + u8(0) + b'{"jobs":[]}', message={"status": "Whole", "json": '{"jobs":[]}'})
good("answer in parts", "", "Another Answer to the same Ask follows.", "F2", "Answer", corr=OTHER_JOB, subject="dlq.ls",
     payload=u8(1) + u8(1) + b'{"jobs":[]}', message={"status": "MoreFollows", "json": '{"jobs":[]}'})
good("answer that is an error", "", "", "F2", "Answer", corr=OTHER_JOB, subject="dlq.show",
     payload=u8(1) + u8(2) + b'{"error":"no such job"}', message={"status": "Error", "json": '{"error":"no such job"}'})



FOLLOW = uuid.UUID("f0110000-0001-0002-0003-000000000062")
SAYS = ["Bytes", "Begins", "Ends", "Present", "JobEnded", "Refused", "Waits", "Lost"]


def follow_payload(stream=1, flags=1, attempt=0, began=0, start=0, until=262_144):
    return u8(1) + JOB.bytes_le + u32(attempt) + u32(began) + u8(stream) + u16(flags) + u64(start) + u64(until)


def output_payload(says, data=b"", attempt=2, began=2, offset=0, reason=0):
    says = SAYS.index(says) if isinstance(says, str) else says
    return u8(1) + u8(says) + u32(attempt) + u32(began) + u64(offset) + u16(reason) + data


def output_message(says, data=b"", attempt=2, began=2, offset=0, reason=0):
    return {"says": says, "attempt": attempt, "began": began, "offset": offset, "reason": reason, "bytes": len(data)}


good("follow", "", "The standard output of whichever attempt is under way, and on until the job has ended; 256 KiB may come.",
     "F2", "Follow", msg=FOLLOW, payload=follow_payload(),
     message={"job": str(JOB), "attempt": 0, "began": 0, "stream": "Stdout", "flags": 1, "from": 0, "until": 262_144})
good("follow that goes on", "", "To a worker: attempt 3. Of the program that began as attempt 2, 1,000 bytes of the standard "
     "error are known.", "F2", "Follow", msg=FOLLOW, payload=follow_payload(2, 1, 3, 2, 1000, 263_144),
     message={"job": str(JOB), "attempt": 3, "began": 2, "stream": "Stderr", "flags": 1, "from": 1000, "until": 263_144})
good("follow that is over", "", "Nothing more is wanted.", "F2", "Follow", msg=FOLLOW,
     payload=follow_payload(flags=2, until=0),
     message={"job": str(JOB), "attempt": 0, "began": 0, "stream": "Stdout", "flags": 2, "from": 0, "until": 0})
for says, data, places, meaning in [
    ("Bytes", b"step 1 of 7\n\xff\x00", {"offset": 4096}, "What a program prints need not be text."),
    ("Begins", b"worker-1", {}, "A program's output follows; the text names its worker."),
    ("Ends", b"", {"offset": 70_000}, "The program printed 70,000 bytes in all."),
    ("Present", b"", {"offset": 4110}, "There is no more now."),
    ("JobEnded", b"", {"offset": 70_000}, "The rest is in the result."),
    ("Refused", b"the job is unknown here", {"attempt": 0, "began": 0, "reason": 3}, "The follow is over."),
    ("Waits", b"the job is queued", {"attempt": 0, "began": 0}, "The follow goes on."),
    ("Lost", b"", {"offset": 2 << 30}, "The output goes on at 2 GiB; what is before that and was not sent is nowhere."),
]:
    good("output that says " + says, "", meaning, "F2", "Output", msg=FOLLOW, payload=output_payload(says, data, **places),
         message=output_message(says, data, **places))

# --- ours: nodes of a cluster -----------------------------------------------------------------------------------

CLUSTER = uuid.UUID("c1057e40-0001-0002-0003-000000000021")
DIRECTORY = uuid.UUID("d14ec704-0001-0002-0003-000000000021")
SNAPSHOT = uuid.UUID("54a95407-0001-0002-0003-000000000026")
CHALLENGE, PROOF = bytes(range(16)), bytes(range(100, 132))
ENTRY_KINDS = {"Record": 1, "Term": 2, "Members": 3, "Ahead": 4}


def leader_hello(purpose=1, relayed="", proof=u8(0), lowest=1, highest=1):
    return (u8(1) + CLUSTER.bytes_le + text("g1") + u32(2) + DIRECTORY.bytes_le + text("10.0.0.2:5000") + u8(purpose)
            + text(relayed) + u16(lowest) + u16(highest) + u32(2) + u64(1_700_000_000_000_000) + CHALLENGE + proof)


def leader_hello_message(purpose="Control", relayed="", proof=None):
    return {"cluster": str(CLUSTER), "group": "g1", "number": 2, "directory": str(DIRECTORY),
            "address": "10.0.0.2:5000", "purpose": purpose, "relayed": relayed,
            "versions": {"lowest": 1, "highest": 1, "level": 2}, "moment": 1_700_000_000_000_000,
            "challenge": list(CHALLENGE), "proof": proof and list(proof)}


def entry(kind, term, data=b"", length=None):
    return u8(ENTRY_KINDS.get(kind, kind)) + u64(term) + u32(len(data) if length is None else length) + data


def append_payload(entries=(), says=1, prev=(41, 2), commit=40, count=None, round=0, sent=7, trouble=0):
    return (u8(1) + u8(says) + u32(0) + u32(2) + u64(3) + u64(prev[0]) + u64(prev[1]) + u64(commit) + u64(round)
            + u64(sent) + u16(trouble) + u64(39) + u32(len(entries) if count is None else count) + b"".join(entries))


def append_message(entries=(), says="Append", prev=(41, 2), commit=40, round=0, sent=7, trouble=0):
    return {"says": says, "from": 0, "to": 2, "term": 3, "prev_index": prev[0], "prev_term": prev[1],
            "commit": commit, "round": round, "sent": sent, "trouble": trouble, "blobs_low": 39,
            "entries": [{"kind": kind, "term": term, "bytes": list(data)} for kind, term, data in entries]}


def append_resp(says=1, outcome=1, index=43, hint=0, hint_term=0, round=0):
    return (u8(1) + u8(says) + u32(2) + u32(0) + u64(3) + u8(outcome) + u64(index) + u64(hint) + u64(hint_term)
            + u64(40) + u64(round) + u64(7) + u64(39) + u16(2) + u32(5))


def append_resp_message(says="Append", outcome="Taken", index=43, hint=0, hint_term=0, round=0):
    return {"says": says, "from": 2, "to": 0, "term": 3, "outcome": outcome, "index": index, "hint": hint,
            "hint_term": hint_term, "commit": 40, "round": round, "echo": 7, "applied": 39, "trouble": 2,
            "lacking": 5}


def request_vote(flags=0):
    return u8(1) + u32(2) + u32(1) + u64(4) + u64(43) + u64(3) + u64(40) + u64(2) + u16(flags)


def vote_resp(answer=1, flags=0):
    return u8(1) + u32(1) + u32(2) + u64(4) + u8(answer) + u16(flags) + u64(40) + u64(2)


def record_piece(data, offset=0, total=3 * MIB):
    return u8(1) + u32(0) + u32(2) + u64(43) + u64(3) + u32(total) + u32(offset) + data


def install_payload(members=b"members", length=None):
    return (u8(1) + u32(0) + u32(2) + u64(3) + SNAPSHOT.bytes_le + u64(500) + u64(2) + u64(9 * MIB) + u32(12)
            + u32(len(members) if length is None else length) + members)


good("hello of a node", "T21", "The first on a connection: no challenge came yet, so there is no proof.", "F2",
     "LeaderHello", subject="cluster.g1", payload=leader_hello(), message=leader_hello_message())
good("hello of a node that answers", "T21", "With the proof for both challenges.", "F2", "LeaderHello",
     subject="cluster.g1", payload=leader_hello(purpose=2, proof=u8(1) + PROOF),
     message=leader_hello_message(purpose="Bulk", proof=PROOF))
good("hello of a node that relays a peer", "T21", "", "F2", "LeaderHello", subject="cluster.g1",
     payload=leader_hello(purpose=4, relayed="10.0.0.9:41000"),
     message=leader_hello_message(purpose="RelayContinues", relayed="10.0.0.9:41000"))
ENTRIES = [("Term", 3, b""), ("Record", 3, b"a record"), ("Members", 3, b"members"), ("Ahead", 3, b"")]
good("append of records", "T22 CU04", "The first of term 3, and three more. The last went ahead in pieces.", "F2",
     "AppendEntries", subject="cluster.g1", payload=append_payload([entry(*each) for each in ENTRIES]),
     message=append_message(ENTRIES))
good("append of nothing", "T22", "News of what is committed.", "F2", "AppendEntries", subject="cluster.g1",
     payload=append_payload(), message=append_message())
good("heartbeat of a leader", "T22 CU04", "With a question, from a leader whose disk is full.", "F2", "AppendEntries",
     subject="cluster.g1", payload=append_payload(says=2, prev=(0, 0), round=9, trouble=1),
     message=append_message(says="Heartbeat", prev=(0, 0), round=9, trouble=1))
good("answer to an append", "T23", "", "F2", "AppendResp", subject="cluster.g1", payload=append_resp(),
     message=append_resp_message())
good("answer to an append that did not fit", "T23", "Record 38 of term 2 may be equal.", "F2", "AppendResp",
     subject="cluster.g1", payload=append_resp(outcome=2, index=41, hint=38, hint_term=2),
     message=append_resp_message(outcome="Rejected", index=41, hint=38, hint_term=2))
good("answer to a heartbeat", "T23", "", "F2", "AppendResp", subject="cluster.g1",
     payload=append_resp(says=2, index=0, round=9), message=append_resp_message(says="Heartbeat", index=0, round=9))
for flags, name in ((0, "request of a vote"), (1, "request of a vote that promises nothing"),
                    (2, "request of a vote by a node that the leader chose")):
    good(name, "T24", "", "F2", "RequestVote", subject="cluster.g1", payload=request_vote(flags),
         message={"from": 2, "to": 1, "term": 4, "last_index": 43, "last_term": 3, "commit": 40, "commit_term": 2,
                  "flags": flags})
for answer, (code, flags) in {"Granted": (1, 0), "Refused": (2, 1)}.items():
    good("vote " + answer.lower(), "T25", "", "F2", "VoteResp", subject="cluster.g1", payload=vote_resp(code, flags),
         message={"from": 1, "to": 2, "term": 4, "answer": answer, "flags": flags, "commit": 40, "commit_term": 2})
good("offer of a snapshot", "T26", "The transfer follows on the bulk connection.", "F2", "InstallSnapshot",
     subject="cluster.g1", payload=install_payload(),
     message={"from": 0, "to": 2, "term": 3, "transfer": str(SNAPSHOT), "index": 500, "index_term": 2,
              "bytes": 9 * MIB, "blobs": 12, "members": list(b"members")})
for code, (stage, words) in enumerate([("Accepted", ""), ("HaveIt", ""), ("Busy", "one is being installed"), ("Done", ""),
                                       ("Failed", "block 3 is damaged")], 1):
    good("answer to a snapshot: " + stage, "T27", "", "F2", "InstallSnapResp", subject="cluster.g1",
         payload=u8(1) + u32(2) + u32(0) + u64(3) + SNAPSHOT.bytes_le + u8(code) + u64(500) + text(words),
         message={"from": 2, "to": 0, "term": 3, "transfer": str(SNAPSHOT), "stage": stage, "index": 500, "text": words})
good("piece of a record", "", "The third of three.", "F2", "RecordPiece", subject="cluster.g1",
     payload=record_piece(b"the end", 3 * MIB - 7),
     message={"from": 0, "to": 2, "index": 43, "term": 3, "total": 3 * MIB, "offset": 3 * MIB - 7, "len": 7})
good("timeout now", "", "Stand for election.", "F2", "TimeoutNow", subject="cluster.g1",
     payload=u8(1) + u32(0) + u32(2) + u64(3), message={"from": 0, "to": 2, "term": 3})

# --- ours: datasets ---------------------------------------------------------------------------------------------

# What two files share is cut alike: `data/a.bin` is two pieces, `data/b.bin` the second of them and one more.
PIECES = [b"what only a has. " * 20, b"what both files have. " * 30, b"what only b has. " * 10]
FILES = [("data/a.bin", [0, 1]), ("data/b.bin", [1, 2]), ("empty.txt", [])]


def blake3(data):
    """BLAKE3 of at most 1,024 bytes, which is one chunk of its tree; Python's standard library lacks it."""
    assert len(data) <= 1024
    start = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
    order = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    chain, blocks = start, [data[at:at + 64] for at in range(0, len(data), 64)] or [b""]
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        # Of the chunk the start is 1 and the end 2; the root, which is this chunk, 8.
        flags = (1 if number == 0 else 0) | (2 | 8 if is_last else 0)
        words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
        state = chain + start[:4] + [0, 0, len(block), flags]
        for _ in range(7):
            for place, (a, b, c, d) in enumerate(columns + diagonals):
                for word, by_d, by_b in ((words[2 * place], 16, 12), (words[2 * place + 1], 8, 7)):
                    state[a] = (state[a] + state[b] + word) % 2**32
                    state[d] = turned(state[d] ^ state[a], by_d)
                    state[c] = (state[c] + state[d]) % 2**32
                    state[b] = turned(state[b] ^ state[c], by_b)
            words = [words[place] for place in order]
        chain = [state[place] ^ state[place + 8] for place in range(8)]
    return struct.pack("<8I", *chain)


def turned(word, by): return (word >> by | word << 32 - by) % 2**32
def sha(*parts): return hashlib.sha256(b"".join(parts)).digest()
def piece(data): return blake3(data) + u32(len(data))
def shown(data): return f"{blake3(data).hex()}+{len(data)}"
def content(places): return b"".join(PIECES[place] for place in places)


def file_entry(name, places, size=None, digest=None):
    data = content(places)
    return (text(name) + u64(len(data) if size is None else size) + (sha(data) if digest is None else digest)
            + u32(len(places)) + b"".join(u32(place) for place in places))


def manifest_bytes(pieces=PIECES, files=FILES, marker=b"HFMF", version=2, piece_count=None, file_count=None,
                   entries=None):
    entries = [piece(data) for data in pieces] if entries is None else entries
    return (marker + u8(version) + bytes(3) + u32(len(entries) if piece_count is None else piece_count)
            + u32(len(files) if file_count is None else file_count) + b"".join(entries)
            + b"".join(found if isinstance(found, bytes) else file_entry(*found) for found in files))


def set_digest(files=FILES):
    """What identifies a set: over the names, sizes and hashes of its files, not over its pieces."""
    return sha(*(text(name) + u64(len(content(places))) + sha(content(places)) for name, places in files))


def pack_tail(pieces=PIECES, marker=b"HFPK", version=2, count=None, crc=None, entries=None):
    entries = b"".join(piece(data) for data in pieces) if entries is None else entries
    return (entries + marker + u8(version) + bytes(3) + u32(len(pieces) if count is None else count)
            + u32(zlib.crc32(entries) if crc is None else crc))


SET_BYTES = sum(len(content(places)) for _, places in FILES)
DIGEST = u8(1) + set_digest()
DIGEST_SHOWN = f"sha256:{set_digest().hex()}"
NO_DIGEST = u8(1) + bytes(32)
NO_DIGEST_SHOWN = f"sha256:{bytes(32).hex()}"
SET = "dataset-20251019-v1"


def put_payload(digest=DIGEST, size=SET_BYTES, files=3, flags=0, deadline=60_000, cache_id=text(SET),
                target=text("job.assign.>"), version=1):
    return (u8(version) + digest + GENERATION.bytes_le + u64(size) + u32(files) + u16(flags) + u64(deadline) + cache_id
            + target)


def put_message(**changes):
    fields = {"digest": DIGEST_SHOWN, "manifest": str(GENERATION), "bytes": SET_BYTES, "files": 3, "flags": 0,
              "deadline_ms": 60_000, "cache_id": SET, "target": "job.assign.>"}
    return fields | changes


good("put of a dataset", "CA09 M18 C18", "Three files for all workers; a minute for those that do not answer.", "F2",
     "Put", msg=REQUESTED, payload=put_payload(), message=put_message())
good("put that replaces, for the leader alone", "CA09", "Bit 0 of the flags; no worker is to have it; no deadline.",
     "F2", "Put", msg=REQUESTED, payload=put_payload(flags=1, deadline=0, target=text("none")),
     message=put_message(flags=1, deadline_ms=0, target="none"))
good("put of an empty set", "CA09", "A sound frame, and the digest is that of nothing; the leader refuses it.", "F2", "Put", msg=REQUESTED,
     payload=put_payload(digest=u8(1) + sha(), size=0, files=0),
     message=put_message(digest=f"sha256:{sha().hex()}", bytes=0, files=0))
good("put from a newer peer", "", "Version 2 has appended a field, and a flag that is not known is set: both are "
     "skipped.", "F2", "Put", msg=REQUESTED, payload=put_payload(version=2, flags=0x8000) + u64(7),
     message=put_message(flags=0x8000))
good("lack of a manifest", "M18", "The leader does not know the content; how much of it lacks is not known yet.", "F2",
     "Lack", corr=REQUESTED, payload=u8(1) + u8(1) + u64(0) + ranges(),
     message={"what": "Manifest", "bytes": 0, "pieces": []})
good("lack of pieces", "M18", "From a worker: the first and the third.", "F2", "Lack", msg=GENERATION,
     payload=u8(1) + u8(2) + u64(len(PIECES[0]) + len(PIECES[2])) + ranges((0, 1), (2, 1)),
     message={"what": "Pieces", "bytes": len(PIECES[0]) + len(PIECES[2]),
              "pieces": [{"first": 0, "count": 1}, {"first": 2, "count": 1}]})
good("lack of nothing", "CA05", "All of it is here.", "F2", "Lack", corr=REQUESTED,
     payload=u8(1) + u8(0) + u64(0) + ranges(), message={"what": "Nothing", "bytes": 0, "pieces": []})


def spread_payload(stage, counts, received, moved, words=""):
    return (u8(1) + u8(stage) + b"".join(u32(count) for count in counts) + u64(received) + u64(moved) + text(words))


good("spread: stored", "C18", "The leader has it; four workers are to have it and none has answered.", "F2", "Spread",
     corr=REQUESTED, payload=spread_payload(1, (4, 0, 0, 0, 4), SET_BYTES, 0),
     message={"stage": "Stored", "targets": 4, "ok": 0, "skipped": 0, "failed": 0, "missing": 4,
              "received": SET_BYTES, "moved": 0, "text": ""})
LATE = "w-4 has not answered within 60 s: see heft dataset status"
good("spread: over", "C18", "Two have got it, one had it, one has not answered.", "F2", "Spread", corr=REQUESTED,
     payload=spread_payload(2, (4, 2, 1, 0, 1), SET_BYTES, 2 * SET_BYTES, LATE),
     message={"stage": "Over", "targets": 4, "ok": 2, "skipped": 1, "failed": 0, "missing": 1, "received": SET_BYTES,
              "moved": 2 * SET_BYTES, "text": LATE})


def hold_payload(flags=1, digest=DIGEST, cache_id=text(SET)):
    return u8(1) + u16(flags) + digest + u64(SET_BYTES) + u32(3) + cache_id


for flags, name, meaning in ((0, "hold what is on its way", "The leader has not got all of it; nothing is shown yet."),
                             (1, "hold what is committed", "To be shown as soon as it is whole.")):
    good(name, "CA09 M18", meaning, "F2", "Hold", msg=GENERATION, payload=hold_payload(flags),
         message={"flags": flags, "digest": DIGEST_SHOWN, "bytes": SET_BYTES, "files": 3, "cache_id": SET})
good("pack", "M18", "Three pieces, in the order in which they lie in the pack.", "F2", "Pack", msg=PACK,
     corr=GENERATION, payload=u8(1) + u16(3) + b"".join(piece(data) for data in PIECES),
     message={"pieces": [shown(data) for data in PIECES]})
good("pack of nothing", "", "A sound message; the leader does not take such a pack.", "F2", "Pack", msg=PACK, corr=REQUESTED,
     payload=u8(1) + u16(0), message={"pieces": []})
good("release", "CA10", "The set was removed.", "F2", "Release", msg=GENERATION,
     payload=u8(1) + u16(0) + text("removed by an operator") + text(SET),
     message={"reason": 0, "text": "removed by an operator", "cache_id": SET})
good("release of what is not known", "CA11", "The answer to a wanted set that the leader has not got.", "F2", "Release",
     payload=u8(1) + u16(3) + text("no set is called lost-v1") + text("lost-v1"),
     message={"reason": 3, "text": "no set is called lost-v1", "cache_id": "lost-v1"})


def set_entry(state, digest, cache_id, words=""):
    return u8(state) + digest + text(cache_id) + text(words)


def have_payload(anew, sets, count=None):
    return (u8(1) + u8(anew) + u64(20 << 30) + u64(SET_BYTES) + u16(len(sets) if count is None else count)
            + b"".join(sets))


good("have: all that a worker holds", "CA05", "After a Welcome: what was said before does not count.", "F2", "Have",
     payload=have_payload(1, [set_entry(0, DIGEST, SET), set_entry(0, NO_DIGEST, "計算-v2")]),
     message={"anew": 1, "budget": 20 << 30, "used": SET_BYTES,
              "sets": [{"state": "Held", "digest": DIGEST_SHOWN, "cache_id": SET, "text": ""},
                       {"state": "Held", "digest": NO_DIGEST_SHOWN, "cache_id": "計算-v2", "text": ""}]})
good("have: gone and wanted", "CA11", "One was evicted, and a job needs another.", "F2", "Have",
     payload=have_payload(0, [set_entry(1, DIGEST, SET, "evicted"), set_entry(2, NO_DIGEST, "other-v1")]),
     message={"anew": 0, "budget": 20 << 30, "used": SET_BYTES,
              "sets": [{"state": "Gone", "digest": DIGEST_SHOWN, "cache_id": SET, "text": "evicted"},
                       {"state": "Wanted", "digest": NO_DIGEST_SHOWN, "cache_id": "other-v1", "text": ""}]})
good("have: lost", "CA05", "One was damaged, and is wanted back.", "F2", "Have",
     payload=have_payload(0, [set_entry(3, DIGEST, SET, "data/a.bin is not what was put")]),
     message={"anew": 0, "budget": 20 << 30, "used": SET_BYTES,
              "sets": [{"state": "Lost", "digest": DIGEST_SHOWN, "cache_id": SET,
                        "text": "data/a.bin is not what was put"}]})
good("have nothing", "", "An empty cache.", "F2", "Have", payload=u8(1) + u8(1) + u64(20 << 30) + u64(0) + u16(0),
     message={"anew": 1, "budget": 20 << 30, "used": 0, "sets": []})
good("inspect", "CA05", "Its CacheAck has the question's id.", "F2", "Inspect", msg=OTHER_JOB,
     payload=u8(1) + text(SET), message={"cache_id": SET})

# --- hostile frames ---------------------------------------------------------------------------------------------

SUBMIT, CREDIT = CODES["SubmitJob"], CODES["Credit"]
hostile("length zero", "W05", "", struct.pack("<i", 0), "LengthZero", 0)
hostile("length zero on a first frame", "W05 W18", "", struct.pack("<i", 0), "LengthZero", 0, speaks="first")
hostile("length below zero", "W05", "", struct.pack("<i", -1), "LengthNegative", -1)
hostile("the smallest Int32", "W05", "", struct.pack("<i", -2**31), "LengthNegative", -2**31, speaks="first")
hostile("one byte over 4 MiB from an announced peer", "W05", "Refused on four bytes.", struct.pack("<i", BODY_MAX + 1),
        "LengthOver", BODY_MAX + 1, BODY_MAX, limits="announced")
hostile("one byte over 4 MiB in a frame that is no bulk frame", "W05 W06", "The type decides.",
        struct.pack("<i", BODY_MAX + 1) + u8(CREDIT), "LengthOver", BODY_MAX + 1, BODY_MAX, "Credit")
hostile("a first frame over its limit", "W05", "A stranger gets little room.", struct.pack("<i", FIRST_BODY_MAX + 1),
        "FirstLengthOver", FIRST_BODY_MAX + 1, FIRST_BODY_MAX, speaks="first")
hostile("a body too short for F0", "W01", "", struct.pack("<i", 4) + bytes(4), "LengthUnder", 4, 5, "F0", speaks="F0")
hostile("a body too short for F1", "W02", "", struct.pack("<i", 36) + bytes(36), "LengthUnder", 36, 37, speaks="F1")
hostile("a body too short for F2", "W03", "", struct.pack("<i", 38) + bytes(38), "LengthUnder", 38, 39)
hostile("a first frame of four bytes", "W18", "No generation is so short.", struct.pack("<i", 4) + bytes(4),
        "NoGeneration", 4, speaks="first")
hostile("another protocol", "W18", "An HTTP request: its length field is 0x20544547.",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "FirstLengthOver", 0x20544547, FIRST_BODY_MAX,
        "does not speak this protocol", speaks="first")
hostile("a first frame whose lengths do not add up", "W18", "40 bytes, all of them 0xFF.",
        struct.pack("<i", 40) + b"\xff" * 40, "NoGeneration", 40, 255, speaks="first")
hostile("a first frame between F1 and F2", "W18", "38 bytes of body that are no F1.", struct.pack("<i", 38) + bytes(38),
        "NoGeneration", 38, speaks="first")
hostile("a first frame with trailing bytes", "W18 C04", "Detection wants an exact fit.",
        frame("F2", 9, subject="clientA", trailing=b"\x01"), "NoGeneration", 47, speaks="first")
hostile("a subject longer than the body", "W11", "", frame("F2", CREDIT, subject="abc", subject_len=8),
        "SubjectOverrun", 8, 3)
hostile("a payload longer than the body", "W11", "", frame("F2", CREDIT, payload=b"1234", payload_len=5),
        "PayloadOverrun", 5, 4)
hostile("a payload length below zero", "W11", "-1 as the Int32 it is to a classic peer.",
        frame("F2", CREDIT, payload=b"1234", payload_len=0xFFFFFFFF), "PayloadOverrun", 4294967295, 4)
hostile("a payload longer than the body, F0", "W11", "", frame("F0", CREDIT, payload=b"1234", payload_len=5),
        "PayloadOverrun", 5, 4, speaks="F0")
hostile("a payload longer than the body, F1", "W11", "", frame("F1", CREDIT, payload=b"1234", payload_len=5),
        "PayloadOverrun", 5, 4, speaks="F1")
hostile("a subject that is no UTF-8", "W03", "", frame("F2", SUBMIT, subject=b"job.\xff\xfe"), "SubjectNotUtf8", 4, 6)
hostile("a subject cut inside a character", "W03", "", frame("F2", SUBMIT, subject="job.計".encode()[:-1]),
        "SubjectNotUtf8", 4, 6)
hostile("the connection ends in the length", "W08", "", b"\x2b\x00", "Truncated", 2)
hostile("the connection ends in the head", "W08", "", frame("F2", CREDIT, payload=u32(1))[:30], "Truncated", 9)
hostile("the connection ends in the payload", "W08", "", frame("F2", CREDIT, payload=u32(1))[:-1], "Truncated", 1)
hostile("the connection ends in a first frame", "W08 W18", "", frame("F2", 9, subject="clientA")[:12], "Truncated", 29,
        speaks="first")
hostile("type 8", "T08", "Unassigned: a sound frame that means nothing.", frame("F2", 8, payload=b"?"), "UnknownKind", 8,
        layer="kind")
hostile("a dataset message of a newer peer", "", "58 and 59 are reserved.", frame("F2", 58), "UnknownKind", 58,
        "datasets", layer="kind")
hostile("type 255", "T11", "", frame("F2", 255), "UnknownKind", 255, layer="kind")
hostile("type 0 from F0", "", "", frame("F0", 0), "UnknownKind", 0, speaks="F0", layer="kind")

# --- checksums --------------------------------------------------------------------------------------------------

SUBMIT = {"msg": JOB, "subject": "job.submit.calcA", "payload": REQUEST}
SUBMITTED = frame("F2", CODES["SubmitJob"], **SUBMIT, trailing=checksum("F2", CODES["SubmitJob"], **SUBMIT))
SUMMED_WELCOME = {"corr": WORKER, "payload": u8(1) + LEADER.bytes_le + text("heft 0.1.0") + u64(1 << 11) + u16(0)}

good("a job with its checksum", "W08 C04", "CRC-32 of the body up to it, little-endian, behind the payload.", "F2",
     "SubmitJob", **SUBMIT, trailers="required", summed=True)
good("a result with its checksum", "W08", "", "F2", "Result", msg=JOB, corr=JOB, subject=f"job.result.clientA.{JOB.hex}",
     payload=RESULT, trailers="required", summed=True)
good("a frame without a payload with its checksum", "W08", "Ids count as much as content.", "F2", "AckJob", corr=JOB,
     trailers="required", summed=True)
good("a welcome with its checksum", "W08", "The leader's frames have checksums, and so do ours from now on.", "F2",
     "Welcome", **SUMMED_WELCOME, trailers="offered", summed=True,
     message={"leader": str(LEADER), "software": "heft 0.1.0", "features": 1 << 11, "limits": []})
HELLO_CRC = int.from_bytes(checksum("F2", CODES["HelloWorker"], msg=WORKER, subject=b"job.assign.>",
                                    payload=ANNOUNCED_WORKER), "little")
good("a welcome that says which hello came", "W08 T10", "hello-crc32 of the announced hello of a worker above.", "F2",
     "Welcome", corr=WORKER,
     payload=u8(1) + LEADER.bytes_le + text("heft 0.1.0") + u64(1 << 11) + u16(1) + u16(14) + u64(HELLO_CRC),
     trailers="offered", summed=True,
     message={"leader": str(LEADER), "software": "heft 0.1.0", "features": 1 << 11, "limits": [[14, HELLO_CRC]]})
good("a chunk where others have checksums", "W08", "It has its own, and nothing behind its payload.", "F2", "Chunk",
     msg=TRANSFER, payload=chunk_payload(0, b"raw bytes"), trailers="required",
     chunk={"index": 0, "codec": "None", "raw_hex": b"raw bytes".hex()}, plan={"size": 9, "chunk_bytes": 4096})
good("a credit from before the welcome was read", "W08", "The peer announced checksums and does not know yet that we do.",
     "F2", "Credit", payload=u32(4), trailers="announced")
BEGIN = checksum("F2", CODES["Welcome"])
add("checksums begin", "W08", "A peer has read our Welcome: it says so in a frame of that type with nothing but a "
    "checksum, and all of its frames have one from then on.", frame("F2", CODES["Welcome"], trailing=BEGIN), speaks="F2",
    trailers="announced",
    expect={"frame": {"generation": "F2", "code": CODES["Welcome"], "kind": "Welcome", "msg_id": str(NIL),
                      "corr_id": str(NIL), "subject": "", "payload_len": 0, "payload_hex": "", "trailing": 4},
            "message_error": "Short", "says": []})
hostile("a bit of a payload turned over", "W08", "", flipped(SUBMITTED, 70, 3), "Damaged", "SubmitJob", trailers="required")
hostile("a bit of an id turned over", "W08", "", flipped(SUBMITTED, 9, 0), "Damaged", "SubmitJob", trailers="required")
hostile("a bit of a checksum turned over", "W08", "", flipped(SUBMITTED, len(SUBMITTED) - 1, 7), "Damaged",
        trailers="required")
hostile("a bit of a type turned over", "W08", "It would be a chunk.", flipped(SUBMITTED, 4, 5), "TrailerLength", "Chunk",
        4, 0, trailers="required")
hostile("a bit of a payload's length turned over", "W08", "The checksum would be content.",
        frame("F2", CREDIT, payload=u32(1), trailing=checksum("F2", CREDIT, payload=u32(1)), payload_len=8),
        "TrailerLength", "Credit", 0, 4, trailers="required")
hostile("a bit of a length turned over", "W08", "It would swallow what follows.", flipped(SUBMITTED, 1, 4), "TrailerLength",
        4100, 4, trailers="required")
hostile("no checksum where one has to be", "W08", "", frame("F2", CREDIT, payload=u32(1)), "TrailerLength", 0, 4,
        trailers="required")
hostile("a checksum before they begin", "W08", "", SUBMITTED, "TrailerLength", "SubmitJob", 4, 0, trailers="announced")
hostile("a beginning without a checksum", "W08", "", frame("F2", CODES["Welcome"]), "TrailerLength", "Welcome", 0, 4,
        trailers="announced")
hostile("a welcome with a damaged checksum", "W08", "",
        frame("F2", CODES["Welcome"], **SUMMED_WELCOME, trailing=bytes(4)), "Damaged", "Welcome", trailers="offered")
hostile("one byte more than 4 MiB and a checksum", "W05", "", struct.pack("<i", BODY_MAX + 5), "LengthOver", BODY_MAX + 5,
        BODY_MAX + 4, limits="announced", trailers="required")

# --- hostile messages -------------------------------------------------------------------------------------------

bad_message("an empty open", "", "Not even a version.", "Open", b"", "Short", "version")
bad_message("open of version 0", "", "", "Open", open_payload(version=0), "Version", 0)
bad_message("open cut in its owner", "", "", "Open", open_payload()[:30], "Short", "owner", 16, 12)
bad_message("open with an unknown purpose", "", "", "Open", open_payload(purpose=9), "Value", "purpose", 9)
bad_message("open with an unknown codec", "", "", "Open", open_payload(codec=4), "Value", "codec", 4)
bad_message("open with an unknown digest", "", "", "Open", open_payload(digest=3), "Value", "digest", 3)
bad_message("open with a name over the limit", "", "", "Open", open_payload(name=text("n" * 4097)), "Over", "name",
            4097, 4096)
bad_message("open with a name longer than the payload", "", "", "Open", open_payload(name=u16(4096) + b"short"),
            "Short", "name", 4096, 5)
bad_message("open with a name that is no UTF-8", "", "", "Open", open_payload(name=u16(2) + b"\xc3\x28"), "NotUtf8",
            "name")
bad_message("grant with more ranges than are there", "", "A hostile count costs nothing.", "Grant",
            u8(1) + u32(1) + u16(0) + text("") + u16(1024), "Short", "held", 8192, 0)
bad_message("grant with more ranges than a message may list", "", "", "Grant",
            u8(1) + u32(1) + u16(0) + text("") + u16(1025) + bytes(1025 * 8), "Over", "held", 1025, 1024)
bad_message("grant with ranges that overlap", "", "", "Grant",
            u8(1) + u32(1) + u16(0) + text("") + ranges((0, 5), (4, 2)), "Value", "held", 4)
bad_message("grant with an empty range", "", "", "Grant", u8(1) + u32(1) + u16(0) + text("") + ranges((3, 0)), "Value",
            "held", 3)
bad_message("verdict with a range that overflows", "", "", "Verdict", u8(1) + u8(1) + ranges((0xFFFFFFFF, 2)), "Value",
            "ranges", 0xFFFFFFFF)
bad_message("verdict with an unknown outcome", "", "", "Verdict", u8(1) + u8(9), "Value", "outcome", 9)
bad_message("done with a short digest", "", "", "Done", u8(1) + u8(1) + bytes(31), "Short", "digest", 32, 31)
bad_message("welcome with too many limits", "", "", "Welcome",
            u8(1) + LEADER.bytes_le + text("x") + u64(0) + u16(257) + bytes(2570), "Over", "limits", 257, 256)
bad_message("heartbeat with more jobs than are there", "", "A hostile count costs nothing.", "Heartbeat",
            u8(1) + u16(0) + u32(0) + u16(16_384) + bytes(24), "Short", "jobs", 16_384 * 24, 24)
bad_message("programs with more names than are there", "", "A hostile count costs nothing.", "Programs",
            u8(1) + u8(2) + u16(1_000) + text("calcA"), "Short", "names", 2_000, 7)
bad_message("programs with more names than a list may have", "", "", "Programs", u8(1) + u8(2) + u16(1_001), "Over",
            "names", 1_001, 1_000)
bad_message("programs that say something unknown", "", "", "Programs", u8(1) + u8(5) + u16(0), "Value", "say", 5)
bad_message("programs with a name that is no UTF-8", "", "", "Programs", u8(1) + u8(2) + u16(1) + u16(2) + b"\xff\xfe",
            "NotUtf8", "names", 0)
bad_message("submitted with an unknown standing", "", "", "Submitted", u8(1) + u8(4) + u32(1) + u32(0), "Value",
            "standing", 4)
bad_message("progress with an unknown stage", "", "", "Progress", u8(1) + u32(1) + u32(1) + u8(0) + u64(0) + u64(0),
            "Value", "stage", 0)
bad_message("refused with a text over the limit", "", "", "Refused",
            u8(1) + u16(1) + u64(0) + u64(0) + text("") + text("t" * 2049), "Over", "text", 2049, 2048)
bad_message("put cut in its digest", "", "", "Put", put_payload()[:20], "Short", "digest", 32, 18)
bad_message("put with an unknown digest", "", "", "Put", put_payload(digest=u8(7) + bytes(32)), "Value", "digest", 7)
bad_message("put without a target", "", "", "Put", put_payload(target=b""), "Short", "target", 2, 0)
bad_message("put with a CacheId over the limit", "", "Of names; what a CacheId may be is for the leader to say.", "Put",
            put_payload(cache_id=text("c" * 4097)), "Over", "cache_id", 4097, 4096)
bad_message("put with a CacheId that is no UTF-8", "", "", "Put", put_payload(cache_id=u16(2) + b"\xff\xfe"), "NotUtf8",
            "cache_id", 0)
bad_message("put of version 0", "", "", "Put", put_payload(version=0), "Version", 0)
bad_message("lack of something unknown", "", "", "Lack", u8(1) + u8(3) + u64(0) + ranges(), "Value", "what", 3)
bad_message("lack with pieces that overlap", "", "", "Lack", u8(1) + u8(2) + u64(9) + ranges((5, 2), (6, 1)), "Value",
            "pieces", 6)
bad_message("lack with more runs than a message may list", "", "", "Lack",
            u8(1) + u8(2) + u64(9) + u16(1025) + bytes(1025 * 8), "Over", "pieces", 1025, 1024)
bad_message("lack with more runs than are there", "", "A hostile count costs nothing.", "Lack",
            u8(1) + u8(2) + u64(9) + u16(1024), "Short", "pieces", 8192, 0)
bad_message("spread at an unknown stage", "", "", "Spread", spread_payload(3, (0,) * 5, 0, 0), "Value", "stage", 3)
bad_message("spread cut in its counts", "", "", "Spread", u8(1) + u8(2) + u32(4) + u16(1), "Short", "ok", 4, 2)
bad_message("spread with a text over the limit", "", "", "Spread", spread_payload(2, (0,) * 5, 0, 0, "t" * 2049), "Over",
            "text", 2049, 2048)
bad_message("hold with a short digest", "", "", "Hold", u8(1) + u16(1) + u8(1) + bytes(31), "Short", "digest", 32, 31)
bad_message("hold with a CacheId longer than the payload", "", "", "Hold", hold_payload(cache_id=u16(255) + b"short"),
            "Short", "cache_id", 255, 5)
bad_message("pack with more pieces than are there", "", "A hostile count costs nothing.", "Pack",
            u8(1) + u16(16_384) + piece(b"one"), "Short", "pieces", 16_384 * 36, 36)
bad_message("pack with more pieces than a pack may have", "", "", "Pack", u8(1) + u16(16_385), "Over", "pieces", 16_385,
            16_384)
bad_message("pack cut in a piece", "", "", "Pack", u8(1) + u16(2) + piece(b"one") + piece(b"two")[:-1], "Short",
            "pieces", 72, 71)
bad_message("an empty release", "", "", "Release", b"", "Short", "version")
bad_message("release without a set", "", "", "Release", u8(1) + u16(0) + text("why"), "Short", "cache_id", 2, 0)
bad_message("release with a text that is no UTF-8", "", "", "Release", u8(1) + u16(0) + u16(1) + b"\xff" + text(SET),
            "NotUtf8", "text", 0)
bad_message("have with more sets than are there", "", "A hostile count costs nothing.", "Have",
            have_payload(1, [set_entry(0, DIGEST, SET)], count=512), "Short", "sets", 512 * 38,
            len(set_entry(0, DIGEST, SET)))
bad_message("have with more sets than a message may list", "", "", "Have", have_payload(1, [], count=513), "Over", "sets",
            513, 512)
bad_message("have with an unknown state", "", "", "Have", have_payload(0, [set_entry(4, DIGEST, SET)]), "Value", "sets", 4)
bad_message("have with a set cut in its text", "", "Its least bytes are there, those that it says it has are not.",
            "Have", have_payload(0, [u8(1) + DIGEST + text("") + u16(2) + b"e"]), "Short", "sets", 2, 1)
bad_message("inspect of nothing", "", "", "Inspect", u8(1), "Short", "cache_id", 2, 0)
bad_message("inspect with a CacheId over the limit", "", "", "Inspect", u8(1) + text("c" * 4097), "Over", "cache_id",
            4097, 4096)
bad_message("start with half of its flags", "", "", "Start", u8(1) + u32(1) + u32(2) + u32(3) + u8(1), "Short", "flags", 2, 1)
bad_message("grant with half a part", "", "", "Grant", u8(1) + u32(1) + u16(0) + text("") + ranges() + u8(1) + u32(3), "Short",
            "part")
bad_message("grant with two parts", "", "", "Grant",
            u8(1) + u32(1) + u16(0) + text("") + ranges() + u8(2) + 6 * u32(3), "Value", "part")
bad_message("piece of no bytes", "", "It would cost nothing to send for ever.", "Piece", piece_payload(4096, FULL, 7, 7), "Value",
            "bytes")
bad_message("piece that is too long", "", "", "Piece", piece_payload(0, bytes(65_537), 0, 65_537), "Value", "bytes")
bad_message("piece that ends behind its chunk", "", "", "Piece", piece_payload(4096, FULL, 1000, 4096, sent_len=4095), "Value",
            "from")
bad_message("piece that begins where no number adds up", "", "", "Piece",
            u8(1) + chunk_payload(4096, FULL)[:21] + u32(4096) + u32(0xFFFFFFFF) + b"x", "Value", "from")
bad_message("piece of a chunk that is too long", "", "", "Piece", piece_payload(4096, FULL, 0, 100, sent_len=MIB + 1), "Value",
            "sent_len")
bad_message("piece without all of its head", "", "", "Piece", piece_payload(4096, FULL, 0, 0)[:-1], "Short", "from")
bad_message("piece with an unknown codec", "", "", "Piece",
            u8(1) + chunk_payload(4096, FULL)[:20] + u8(9) + u32(4096) + u32(0) + b"x", "Value", "codec")
bad_message("hello of a node for a sixth purpose", "", "", "LeaderHello", leader_hello(purpose=6), "Value", "purpose", 6)
bad_message("hello of a node with half a proof", "", "", "LeaderHello", leader_hello(proof=u8(1) + PROOF[:16]), "Short",
            "proof", 32, 16)
bad_message("hello of a node with a third kind of proof", "", "", "LeaderHello", leader_hello(proof=u8(2)), "Value", "proof",
            2)
bad_message("hello of a node that reads nothing", "", "", "LeaderHello", leader_hello(lowest=3, highest=2), "Value",
            "versions", 2)
bad_message("append that says what is not known", "", "", "AppendEntries", append_payload(says=3), "Value", "says", 3)
bad_message("append of more records than a frame has", "", "No room is made for them.", "AppendEntries",
            append_payload(count=65_536), "Short", "entries", 65_536 * 13, 0)
bad_message("append of too many records", "", "", "AppendEntries", append_payload(count=65_537), "Over", "entries", 65_537)
bad_message("append of a record that is too large", "", "", "AppendEntries",
            append_payload([entry("Record", 3, b"x", MIB + 1)]), "Over", "entries", MIB + 1)
bad_message("append of a record that is cut short", "", "", "AppendEntries",
            append_payload([entry("Record", 3, b"xy", 3)]), "Short", "entries", 3, 2)
bad_message("append of an empty record", "", "", "AppendEntries", append_payload([entry("Record", 3)]), "Value", "entries", 0)
bad_message("append of a term with bytes", "", "", "AppendEntries", append_payload([entry("Term", 3, b"x")]), "Value",
            "entries", 1)
bad_message("append of an entry of a fifth kind", "", "", "AppendEntries", append_payload([entry(5, 3, b"x")]), "Value",
            "entries", 5)
bad_message("answer to an append that says neither", "", "", "AppendResp", append_resp(outcome=3), "Value", "outcome", 3)
bad_message("request of a vote that is cut short", "", "", "RequestVote", request_vote()[:-1], "Short", "flags", 2, 1)
bad_message("vote that is neither", "", "", "VoteResp", vote_resp(answer=0), "Value", "answer", 0)
bad_message("offer of a snapshot with too many members", "", "", "InstallSnapshot", install_payload(length=131_073), "Over",
            "members", 131_073)
bad_message("offer of a snapshot with members that are cut short", "", "", "InstallSnapshot", install_payload(length=8),
            "Short", "members", 8, 7)
bad_message("answer to a snapshot at a sixth stage", "", "", "InstallSnapResp",
            u8(1) + u32(2) + u32(0) + u64(3) + SNAPSHOT.bytes_le + u8(6) + u64(500) + text(""), "Value", "stage", 6)
bad_message("piece of no bytes of a record", "", "", "RecordPiece", record_piece(b""), "Value", "bytes", 0)
bad_message("piece behind the end of its record", "", "", "RecordPiece", record_piece(b"xx", 3 * MIB - 1), "Value", "offset",
            3 * MIB - 1)
bad_message("piece of a record that is too large", "", "", "RecordPiece", record_piece(b"x", 0, 64 * MIB + 1), "Value",
            "total", 64 * MIB + 1)
bad_message("timeout now without its term", "", "", "TimeoutNow", u8(1) + u32(0) + u32(2), "Short", "term", 8, 0)
bad_message("an empty ask", "", "", "Ask", b"", "Short", "version")
bad_message("answer with an unknown status", "", "", "Answer", u8(1) + u8(3) + b"{}", "Value", "status", 3)
bad_message("follow of a third output", "", "", "Follow", follow_payload(stream=3), "Value", "stream", 3)
bad_message("follow without its end", "", "", "Follow", follow_payload()[:-1], "Short", "until", 8, 7)
bad_message("output that says what is not known", "", "", "Output", output_payload(8), "Value", "says", 8)
bad_message("output of no bytes", "", "It would cost nothing to send for ever.", "Output", output_payload("Bytes"), "Value",
            "bytes", 0)
bad_message("output that is too long", "", "", "Output", output_payload("Bytes", bytes(65_537)), "Value", "bytes", 65_537)
bad_message("output that ends where no number adds up", "", "", "Output",
            output_payload("Bytes", b"xx", offset=(1 << 64) - 1), "Value", "offset", (1 << 64) - 1)
bad_message("output with a text that is too long", "", "", "Output", output_payload("Waits", b"x" * 2049), "Value", "bytes",
            2049)
bad_message("output with a text that is not UTF-8", "", "", "Output", output_payload("Refused", b"no \xff"), "NotUtf8",
            "bytes", 3)
bad_message("output without all of its head", "", "", "Output", output_payload("Ends")[:-1], "Short", "reason", 2, 1)
bad_message("credit of three bytes", "T04 CR03", "", "Credit", b"\x01\x00\x00", "Value", 3, "4 bytes")

# --- hostile chunks ---------------------------------------------------------------------------------------------

flipped = bytearray(RAW)
flipped[-1] ^= 1
bomb = gzip.compress(bytes(4096 * 64), 9, mtime=0)
bad_chunk("a chunk without room for its head", "", "", bytes(20), "Short", 20, 21, plan=PLAN)
bad_chunk("a chunk in an unknown codec", "", "", chunk_payload(0, FULL, codec="None")[:20] + u8(9) + FULL, "Codec", 9,
          plan=PLAN)
bad_chunk("a chunk between two places", "", "", chunk_payload(100, FULL), "OffsetBetween", 100, 4096, plan=PLAN)
bad_chunk("a chunk past the end", "", "", chunk_payload(4 * 4096, FULL), "OffsetPastEnd", 16384, PLAN["size"],
          plan=PLAN)
bad_chunk("a chunk far past the end", "", "2^63.", chunk_payload(1 << 63, FULL), "OffsetPastEnd", 1 << 63, plan=PLAN)
bad_chunk("a chunk with the wrong raw length", "", "", chunk_payload(0, RAW), "RawLen", len(RAW), 4096, plan=PLAN)
bad_chunk("a plain chunk with fewer bytes than it says", "", "", chunk_payload(0, FULL[:-1], raw_len=4096), "SentLen",
          4095, 4096, plan=PLAN)
bad_chunk("a compressed chunk larger than its raw bytes", "CO01", "",
          chunk_payload(LAST, RAW, "Zstd", RAW + b"more"), "SentLen", len(RAW) + 4, len(RAW), plan=PLAN)
bad_chunk("a flipped bit in the last byte", "", "", chunk_payload(LAST, RAW)[:21] + bytes(flipped), "CrcSent",
          f"{zlib.crc32(RAW):08x}", f"{zlib.crc32(bytes(flipped)):08x}", plan=PLAN)
bad_chunk("a wrong checksum of the raw bytes", "", "", chunk_payload(LAST, RAW, "Zstd", ZSTD, crc_raw=7), "CrcRaw",
          "00000007", plan=PLAN)
bad_chunk("a plain chunk with two checksums", "", "", chunk_payload(LAST, RAW, crc_raw=7), "CrcRaw", "00000007",
          plan=PLAN)
bad_chunk("a decompression bomb", "", f"{len(bomb)} bytes that inflate to 256 KiB, for a place of 4 KiB.",
          chunk_payload(0, FULL, "Gzip", bomb), "Inflate", "more than the 4096", plan=PLAN)
bad_chunk("a chunk that inflates to less", "", "", chunk_payload(0, FULL, "Zstd", ZSTD), "Inflate", 1080, 4096,
          plan=PLAN)
bad_chunk("a chunk in another codec than it says", "", "", chunk_payload(LAST, RAW, "Gzip", ZSTD), "Inflate", "gzip",
          plan=PLAN)


# --- manifests and packs ----------------------------------------------------------------------------------------

MANIFESTS, PACKS = [], []


def manifest(name, meaning, data, error=None, says=(), files=FILES):
    read = {"digest": f"sha256:{set_digest(files).hex()}", "pieces": [shown(data) for data in PIECES] if files else [],
            "files": [{"name": name, "size": len(content(places)), "sha256": sha(content(places)).hex(),
                       "pieces": places} for name, places in files]}
    expect = {"error": error, "says": [str(value) for value in says]} if error else {"manifest": read}
    MANIFESTS.append({"name": name, "meaning": meaning, "hex": data.hex(), "expect": expect})


def pack(name, meaning, tail, error=None, size=None, says=(), pieces=PIECES):
    size = sum(len(data) for data in pieces) + len(tail) if size is None else size
    expect = {"error": error, "says": [str(value) for value in says]} if error else {
        "pieces": [shown(data) for data in pieces]}
    PACKS.append({"name": name, "meaning": meaning, "tail_hex": tail.hex(), "size": size, "expect": expect})


manifest("three files", "Two share a piece, one is empty.", manifest_bytes())
manifest("no files", "An empty set.", manifest_bytes([], []), files=[])
manifest("nothing at all", "", b"", "Marker")
manifest("another marker", "A pack's.", manifest_bytes(marker=b"HFPK"), "Marker")
manifest("an earlier version", "Pieces were known by SHA-256.", manifest_bytes(version=1), "Version", (1, 2))
manifest("a later version", "", manifest_bytes(version=3), "Version", (3, 2))
manifest("cut in its front", "", manifest_bytes()[:12], "Length")
manifest("cut in its last file", "", manifest_bytes()[:-1], "Length")
manifest("a byte behind its end", "", manifest_bytes() + b"\0", "Length")
manifest("more pieces than are there", "A hostile count costs nothing.", manifest_bytes(piece_count=0xFFFFFFFF),
         "Length")
manifest("more files than are there", "The same for files.", manifest_bytes(file_count=0xFFFFFFFF), "Length")
manifest("more places than are there", "The same for the pieces of a file.",
         manifest_bytes([], [text("a") + u64(0) + sha() + u32(0xFFFFFFFF)]), "Length")
manifest("an empty piece", "", manifest_bytes(entries=[piece(b"")] + [piece(data) for data in PIECES[1:]]), "Entry",
         ("the length of a piece", 0))
manifest("a piece over its limit", "1 MiB and a byte.",
         manifest_bytes(entries=[piece(PIECES[0]), sha() + u32(MIB + 1), piece(PIECES[2])]), "Entry",
         ("the length of a piece", 1))
manifest("a place behind the pieces", "", manifest_bytes(files=[FILES[0], text("b") + u64(1) + sha() + u32(1) + u32(3)]),
         "Entry", ("the place of a piece", 1))
manifest("pieces not in the order of their use", "", manifest_bytes(files=[("a", [1, 0, 2])]), "Entry",
         ("the order of pieces", 0))
manifest("a piece that no file uses", "", manifest_bytes(files=FILES[:1]), "Entry", ("a piece that no file uses", 2))
manifest("a size that its pieces do not have", "",
         manifest_bytes(files=[FILES[0], file_entry("data/b.bin", [1, 2], size=7)]), "Entry", ("the size of a file", 1))
manifest("an empty file that hashes to something", "Its SHA-256 is that of nothing.",
         manifest_bytes(files=[*FILES[:2], file_entry("empty.txt", [], digest=bytes(32))]), "Entry",
         ("the SHA-256 of an empty file", 2))
manifest("names out of order", "", manifest_bytes(files=[FILES[2], *FILES[:2]]), "Entry", ("the order of names", 1))
manifest("a name twice", "", manifest_bytes(files=[FILES[0], ("data/a.bin", [1, 2])]), "Entry",
         ("the order of names", 1))
manifest("an empty name", "", manifest_bytes(files=[("", [0, 1, 2])]), "Entry", ("the length of a name", 0))
manifest("a name that is no UTF-8", "",
         manifest_bytes(files=[u16(2) + b"\xc3\x28" + file_entry("", [0, 1, 2])[2:]]), "Entry", ("a name", 0))

pack("three pieces", "", pack_tail())
pack("no pieces", "A footer.", pack_tail([]), pieces=[])
pack("no footer", "", pack_tail()[:15], "Footer")
pack("a pack with another marker", "A manifest's.", pack_tail(marker=b"HFMF"), "Footer")
pack("a pack of an earlier version", "Pieces were known by SHA-256.", pack_tail(version=1), "Version", says=(1, 2))
pack("a pack of a later version", "", pack_tail(version=3), "Version", says=(3, 2))
pack("a wrong checksum", "", pack_tail(crc=7), "Footer")
pack("more entries than are there", "A hostile count costs nothing.", pack_tail(count=16_384), "Footer")
pack("more entries than a pack may have", "", pack_tail(count=0xFFFFFFFF), "Footer")
pack("fewer entries than are there", "", pack_tail(count=2), "Footer")
pack("a pack of another size", "One byte more than its pieces and its list.", pack_tail(), "Footer",
     sum(len(data) for data in PIECES) + len(pack_tail()) + 1)
pack("a pack with an empty piece", "", pack_tail([b"", b"x"]), "Piece", says=(0, MIB), pieces=[b"", b"x"])
pack("a pack with a piece over its limit", "", pack_tail(count=1, entries=sha() + u32(MIB + 1)), "Piece",
     says=(MIB + 1, MIB))
pack("a pack over its limit", "65 pieces of 1 MiB.", pack_tail(count=65, entries=(sha() + u32(MIB)) * 65), "Large",
     says=(65, 65 * MIB, 64 * MIB))


def main():
    document = {
        "about": "Frames as bytes, and the manifests and packs of datasets. Written by generate.py; docs/protocol.md "
                 "explains the members.",
        "vectors": VECTORS,
        "manifests": MANIFESTS,
        "packs": PACKS,
    }
    names = [vector["name"] for vector in VECTORS + MANIFESTS + PACKS]
    assert len(names) == len(set(names)), "two vectors have the same name"
    written = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if sys.argv[1:2] == ["--corpus"] and len(sys.argv) == 3:
        directory = Path(sys.argv[2])
        directory.mkdir(parents=True, exist_ok=True)
        for number, vector in enumerate(VECTORS + MANIFESTS + PACKS):
            data = bytes.fromhex(vector.get("hex") or vector.get("tail_hex", ""))
            (directory / f"vector-{number:03}").write_bytes(data)
        print(f"{directory}: {len(names)} files written")
    elif sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != written:
            sys.exit(f"{TARGET.name} is not what generate.py writes: run tests/vectors/generate.py and look at the diff")
        print(f"{TARGET.name}: {len(names)} vectors, as generated")
    elif sys.argv[1:]:
        sys.exit("usage: generate.py [--check | --corpus DIR]")
    else:
        TARGET.write_text(written, encoding="utf-8")
        print(f"{TARGET.name}: {len(names)} vectors written")


if __name__ == "__main__":
    main()
