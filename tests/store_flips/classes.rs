//! Which bytes of which file are what.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) file: String,
    pub(crate) name: String,
    pub(crate) bytes: Range<usize>,
}

/// Takes a file apart.
struct Apart<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    all: Vec<Class>,
}

impl Apart<'_> {
    fn take(&mut self, name: &str, len: usize) {
        if len > 0 {
            let bytes = self.at..self.at + len;
            self.all.push(Class { file: self.file.to_owned(), name: name.to_owned(), bytes });
        }
        self.at += len;
    }

    fn u32_at(&self, at: usize) -> usize {
        u32::from_be_bytes(*self.bytes[at..].first_chunk().unwrap()) as usize
    }

    fn header(&mut self) {
        let fields = [("marker", 4), ("version", 4), ("node", 4), ("directory", 16), ("number", 8)];
        fields.into_iter().for_each(|(name, len)| self.take(name, len));
        self.take("rest of the header", 24);
        self.take("checksum of the header", 4);
    }

    fn log(&mut self) {
        self.header();
        let mut number = 0;
        while self.at < self.bytes.len() {
            let len = self.u32_at(self.at + 4);
            // A group without records marks how far the file is synced, or that another follows.
            let what = if len == 0 { "mark" } else { "group" };
            let fields = [
                ("marker", 4),
                ("length", 4),
                ("checksum", 4),
                ("first", 8),
                ("count", 4),
                ("synced", 8),
            ];
            for (name, len) in fields {
                self.take(&format!("{name} of {what} {number}"), len);
            }
            let end = self.at + len;
            while self.at < end {
                let len = self.u32_at(self.at);
                self.take(&format!("length of a record of group {number}"), 4);
                // Nothing but payloads repeats a byte so often.
                let record = &self.bytes[self.at..self.at + len];
                let tail =
                    record.iter().rev().take_while(|byte| Some(*byte) == record.last()).count();
                let payload = if tail > 40 { tail } else { 0 };
                self.take(&format!("record of group {number}"), len - payload);
                self.take(&format!("payload of group {number}"), payload);
            }
            number += 1;
        }
    }

    fn snapshot(&mut self) {
        self.header();
        while self.at < self.bytes.len() {
            let (kind, len) = (self.bytes[self.at], self.u32_at(self.at + 4));
            let fields = [
                ("kind", 1),
                ("rest", 3),
                ("length", 4),
                ("checksum of the body", 4),
                ("checksum of the head", 4),
            ];
            for (name, len) in fields {
                self.take(&format!("{name} of block {kind}"), len);
            }
            self.take(&format!("body of block {kind}"), len);
        }
    }

    fn map(&mut self) {
        self.header();
        for (name, len) in [("kind", 4), ("digest", 32), ("rest", 24), ("checksum", 4)] {
            self.take(&format!("{name} of the seal"), len);
        }
        let len = self.u32_at(self.at);
        for (name, len) in [("length", 4), ("checksum", 4), ("text", len)] {
            self.take(&format!("{name} of what the blob is"), len);
        }
        self.take("nothing", 8192 - self.at);
        let mut number = 0;
        while self.at < self.bytes.len() {
            let fields = [
                ("kind", 4),
                ("length", 4),
                ("raw length", 4),
                ("checksum as sent", 4),
                ("raw checksum", 4),
                ("checksum", 4),
            ];
            for (name, len) in fields {
                self.take(&format!("{name} of entry {number}"), len);
            }
            number += 1;
        }
    }

    fn data(&mut self) {
        while self.at < self.bytes.len() {
            let block = &self.bytes[self.at..(self.at + (1 << 20)).min(self.bytes.len())];
            let len = block.len().min(4000);
            self.take("bytes of a chunk", len);
            self.take("bytes behind a chunk", block.len() - len);
        }
    }
}

/// All classes of all files.
pub(crate) fn all(tree: &BTreeMap<String, Vec<u8>>) -> Vec<Class> {
    let mut all = Vec::new();
    for (file, bytes) in tree {
        let mut apart = Apart { file, bytes, at: 0, all: Vec::new() };
        let name = file.rsplit('/').next().unwrap();
        if name.starts_with("log-") {
            apart.log();
        } else if name.starts_with("snapshot-") {
            apart.snapshot();
        } else if name == "metadata" {
            apart.header();
        } else if name.ends_with(".map") {
            apart.map();
        } else {
            apart.data();
        }
        assert_eq!(apart.at, bytes.len(), "{file}");
        all.extend(apart.all);
    }
    all
}
