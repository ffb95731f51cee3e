//! `heft-tools log` on a directory that somebody writes to meanwhile: segments begin and end,
//! snapshots are made, files and blobs go.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use heft::core::Record;
use heft::core::ids::{JobId, Run};
use heft::store::blobs::{BlobFiles, DiskOp};
use heft::store::log::Rotated;
use support::{Data, id, tool};

/// Enough for several segments and snapshots.
const RECORDS_MIN: u64 = 300;

/// What a leader does all day, in a hurry.
fn write(data: &mut Data, stop: &AtomicBool) {
    let mut files = BlobFiles::durable(data.disk.clone(), data.owner, "live").unwrap();
    let mut number: u128 = 1000;
    // On a slow disk it goes on until there is something to speak of.
    while !stop.load(Ordering::Relaxed) || data.index < RECORDS_MIN {
        number += 1;
        data.enqueue(number, &[7; 500]);
        data.assign(number, 1, 9);
        let blob = id(number << 64);
        let has_blob = number.is_multiple_of(25);
        if has_blob {
            data.blob(blob, number, true);
        }
        let blobs = if has_blob { vec![blob] } else { Vec::new() };
        data.ack(number, 9, u64::try_from(number).unwrap(), b"result", blobs);
        // All but a few are forgotten after a while, and then their files go.
        if let Some(old) =
            number.checked_sub(20).filter(|old| *old > 1000 && !old.is_multiple_of(7))
        {
            data.push(Record::Forget { job: JobId(id(old)), run: Run(1) });
            files.execute(DiskOp::Remove { blob: id(old << 64) });
        }
        data.log.note_synced().unwrap();
        if matches!(data.log.rotate().unwrap(), Rotated::Yes) && number.is_multiple_of(3) {
            data.snapshot();
        }
    }
}

#[test]
fn pe09_c29_a_directory_that_changes_meanwhile_is_read_without_a_false_word() {
    let mut data = Data::with_segments(8 * 1024);
    data.syncs = false;
    let path = data.text().to_owned();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&mut data, &stop));
        let rounds =
            if std::env::var("HEFT_TEST_SCALE").as_deref() == Ok("long") { 400 } else { 25 };
        for _ in 0..rounds {
            let verified = tool(&["log", "verify", &path]);
            let dumped = tool(&["log", "dump", &path]);
            let replayed = tool(&["log", "replay", &path, "--json"]);
            if writer.is_finished() {
                break;
            }
            let all = [&verified, &dumped, &replayed];
            if all.iter().any(|ran| ran.code != 0) {
                stop.store(true, Ordering::Relaxed);
                let end = |text: &str| {
                    text.chars().skip(text.chars().count().saturating_sub(1500)).collect::<String>()
                };
                let said: Vec<String> = all
                    .iter()
                    .map(|ran| format!("{}: {}\n{}", ran.code, ran.err, end(&ran.out)))
                    .collect();
                panic!("{}", said.join("\n----\n"));
            }
            let indexes: Vec<u64> =
                dumped.lines().iter().map(|line| line["index"].as_u64().unwrap()).collect();
            assert!(indexes.is_sorted_by(|one, other| one < other), "each record once");
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    let verified = tool(&["log", "verify", &path]);
    assert_eq!(verified.code, 0, "{}", verified.out);
}
