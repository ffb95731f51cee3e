//! Records for tests of the log, by their numbers.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use bytes::Bytes;
use heft::core::Record;
use heft::core::event::{Inputs, Submission};
use heft::core::ids::{Index, JobId, Micros, ResultId, Run, WorkerId};
use heft::core::payload::FileNames;
use heft::core::subject::routing_key;
use heft::store::codec::Attached;
use heft::store::journal::LogOp;
pub use heft::store::log::Append;
use uuid::Uuid;

/// The job with this number is taken, with a payload of so many bytes. It is record `number`.
pub fn enqueue(number: u64, bytes: usize) -> Append {
    let job = Submission {
        job: JobId(Uuid::from_u128(number.into())),
        client: "alice".into(),
        key: routing_key("calcA", None).unwrap(),
        exec: "calcA".into(),
        priority: 0,
        to_all: false,
        size: 100,
        fingerprint: [7; 32],
        inputs: Inputs::Here,
        needs_transfers: false,
        require_worker: false,
        names: FileNames::Plain,
        tag: None,
        datasets: Vec::new(),
    };
    let attached =
        Attached { from_ours: true, blobs: Vec::new(), payload: payload(number, bytes).into() };
    Append {
        index: Index(number),
        record: Record::Enqueue { at: Micros(number), job, children: Vec::new(), kept: true },
        attached: Some(attached),
    }
}

/// What such a job's payload is.
pub fn payload(number: u64, bytes: usize) -> Bytes {
    Bytes::from(vec![u8::try_from(number % 251).unwrap(); bytes])
}

/// The job with this number ends with a result.
pub fn ack(index: u64, job: u64) -> Append {
    let (job, worker) = (JobId(Uuid::from_u128(job.into())), WorkerId(Uuid::from_u128(9)));
    let record = Record::Ack {
        at: Micros(index),
        job,
        run: Run(1),
        worker,
        result: ResultId(index),
        ok: true,
    };
    let payload = Bytes::from_static(b"result");
    Append {
        index: Index(index),
        record,
        attached: Some(Attached { from_ours: true, blobs: Vec::new(), payload: payload.into() }),
    }
}

/// The same for a journal, synced.
pub fn append(append: Append) -> LogOp {
    let Append { index, record, attached } = append;
    LogOp::Append { index, record, attached, sync: true }
}
