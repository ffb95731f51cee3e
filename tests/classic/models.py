"""The JSON of classic peers, written and read as System.Text.Json does by default (SPEC M01-M04, M13-M15).

A record's missing member becomes its default (an empty Guid, null, 0) and never an error; that is how a request without
`Args` gets as far as the worker (M15). Members that the record does not have are passed over.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from dataclasses import dataclass, fields
from typing import Any

from wire import NIL

# --- writing (M13) ----------------------------------------------------------------------------------------------

# The default encoder leaves these alone: printable ASCII without what means something in HTML or in JSON.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "\"&'+<>\\`")
_ESCAPED = re.compile(f"[^{re.escape(_PLAIN)}]")
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", "\\": "\\\\"}


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"  # half a pair cannot be written
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"
    return f"\\u{code:04X}"


def write(value: Any) -> bytes:
    return _text(value).encode("ascii")


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{_ESCAPED.sub(_escape, value)}"'
    if isinstance(value, uuid.UUID):
        return f'"{value}"'
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode("ascii")}"'  # not escaped: a `+` stays
    if isinstance(value, list):
        return f"[{','.join(_text(item) for item in value)}]"
    if isinstance(value, _Record):
        return f"{{{','.join(f'{_text(f.name)}:{_text(getattr(value, f.name))}' for f in fields(value))}}}"
    raise TypeError(f"no such member in a classic model: {type(value).__name__}")


# --- reading (M14) ----------------------------------------------------------------------------------------------

DEPTH_MAX = 64
_SURROGATE = re.compile("[\ud800-\udfff]")
_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class JsonError(Exception):
    """Where .NET throws a JsonException."""


def _parse(data: bytes) -> Any:
    def no_constant(word: str) -> Any:
        raise JsonError(f"{word} is no JSON")

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not JSON: {error}") from error
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > DEPTH_MAX:
            raise JsonError(f"nested deeper than {DEPTH_MAX}")
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return value


def _string(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise JsonError(f"{type(value).__name__} in place of a string")
    if _SURROGATE.search(value):
        raise JsonError("half a surrogate pair")
    return value


def _guid(value: Any) -> uuid.UUID:
    if not isinstance(value, str) or not _GUID.fullmatch(value):
        raise JsonError("no Guid in D form")
    return uuid.UUID(value)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) % 4:
        raise JsonError("no base64 with padding")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise JsonError(f"no base64: {error}") from error


def _int32(value: Any) -> int:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise JsonError("no Int32")
    return value


def _list(value: Any, item: Any) -> list[Any] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise JsonError(f"{type(value).__name__} in place of a list")
    return [item(element) for element in value]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JsonError(f"{type(value).__name__} in place of an object")
    return value


class _Record:
    def to_json(self) -> bytes:
        return write(self)


# --- the models, with .NET's member names -----------------------------------------------------------------------


@dataclass
class InputFile(_Record):
    Name: str | None
    CacheId: str | None = None
    Content: bytes | None = None

    @classmethod
    def read(cls, value: Any) -> InputFile | None:
        if value is None:
            return None
        members = _object(value)
        return cls(_string(members.get("Name")), _string(members.get("CacheId")), _bytes(members.get("Content")))


@dataclass
class JobRequest(_Record):
    JobId: uuid.UUID
    ClientId: str | None
    ExecName: str | None
    Args: list[str | None] | None
    Files: list[InputFile | None] | None

    @classmethod
    def from_json(cls, data: bytes) -> JobRequest:
        members = _object(_parse(data))
        return cls(_guid(members["JobId"]) if "JobId" in members else NIL, _string(members.get("ClientId")),
                   _string(members.get("ExecName")), _list(members.get("Args"), _string),
                   _list(members.get("Files"), InputFile.read))


@dataclass
class JobResult(_Record):
    JobId: uuid.UUID
    ClientId: str | None
    ExecName: str | None
    Status: str | None
    Stdout: str | None = ""
    Stderr: str | None = ""
    OutputArchive: bytes | None = None

    @classmethod
    def from_json(cls, data: bytes) -> JobResult:
        members = _object(_parse(data))
        texts = [_string(members.get(name)) for name in ("ClientId", "ExecName", "Status", "Stdout", "Stderr")]
        return cls(_guid(members["JobId"]) if "JobId" in members else NIL, *texts,
                   OutputArchive=_bytes(members.get("OutputArchive")))


@dataclass
class CacheEntry(_Record):
    Name: str | None
    Content: bytes | None

    @classmethod
    def read(cls, value: Any) -> CacheEntry:
        members = _object(value)
        return cls(_string(members.get("Name")), _bytes(members.get("Content")))


@dataclass
class CachePutRequest(_Record):
    CacheId: str | None
    Entries: list[CacheEntry] | None
    TargetPattern: str | None

    @classmethod
    def from_json(cls, data: bytes) -> CachePutRequest:
        members = _object(_parse(data))
        return cls(_string(members.get("CacheId")), _list(members.get("Entries"), CacheEntry.read),
                   _string(members.get("TargetPattern")))


@dataclass
class CachePutResult(_Record):
    CacheId: str | None
    Status: str | None
    Message: str | None

    @classmethod
    def from_json(cls, data: bytes) -> CachePutResult:
        members = _object(_parse(data))
        return cls(*(_string(members.get(name)) for name in ("CacheId", "Status", "Message")))


@dataclass
class ClientConfig(_Record):
    ClientId: str | None
    DesiredParallelism: int = 0

    @classmethod
    def from_json(cls, data: bytes) -> ClientConfig:
        members = _object(_parse(data))
        return cls(_string(members.get("ClientId")), _int32(members.get("DesiredParallelism", 0)))
