//! The client's transfers against a leader that follows the test's script: large inputs, large
//! parts of results, breaks, sources that change, and nothing left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/leader.rs"]
mod leader;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/transfers.rs"]
mod transfers;

use bytes::Bytes;
use chunking::message::{
    Abort, AnswerStatus, Body, Cancel, Done, Features, Grant, LimitId, OpenFlags, Purpose, Reason,
    Standing, Verdict,
};
use chunking::{ChunkHead, Codec, DigestKind, Kind};
use heft::client::{
    Client, Downloads, JobError, JobEvent, JobHandle, JobSpec, MultiClient, Options,
};
use heft::model::blob_id;
use heft::model::{JobRequest, JobResult, JsonModel};
use heft::transfer::{Compression, MemorySink};
use leader::{FEATURES, FakeLeader, PATIENCE, Peer, Seen, calc, ok, options};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use transfers::*;
use uuid::Uuid;

async fn connect(leader: &FakeLeader, options: &Options) -> (Client, Peer) {
    let (client, peer) =
        tokio::join!(Client::connect(&leader.address, options), transferring(leader));
    (client.unwrap(), peer)
}

async fn end(job: &mut JobHandle) -> Result<JobResult, JobError> {
    timeout(PATIENCE, job.wait()).await.expect("an end in time")
}

/// The next news of this form.
async fn event(job: &mut JobHandle, is: impl Fn(&JobEvent) -> bool) -> JobEvent {
    loop {
        let event = timeout(PATIENCE, job.event()).await.expect("news in time").expect("news");
        if is(&event) {
            return event;
        }
    }
}

#[tokio::test]
async fn a_large_input_goes_as_a_blob_within_its_windows_and_is_kept_until_the_result() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let content = Bytes::from(noise(5 * MIB + 7));
    let spec =
        JobSpec::from(calc()).bytes("model.bin", content.clone()).bytes("small.cfg", &b"x=1"[..]);
    let mut job = client.submit(spec).await.unwrap();
    let request = peer.next().await.request();
    let blob = request.files[0].blob.clone().unwrap();
    assert_eq!((blob.size, request.files[0].content.as_ref()), (content.len() as u64, None));
    assert_eq!(blob.id, blob_id(job.id(), 0, Purpose::Input, 0));
    assert_eq!(request.files[1].content.as_deref(), Some(&b"x=1"[..]), "small ones go inside");
    let (id, open) = opened(&mut peer).await;
    assert_eq!(
        (id, open.owner, open.name.as_str(), open.size),
        (blob.id, job.id(), "model.bin", blob.size)
    );
    assert!(open.flags.has(OpenFlags::KEEPS_SOURCE));

    peer.message(id, &grant(2, &[])).await;
    assert_eq!(chunks(&mut peer, &content, 2).await, [0, 1]);
    let full =
        Grant { reason: Reason::SPOOL_FULL, text: "the spool is full".into(), ..grant(0, &[]) };
    peer.message(id, &full).await;
    let waiting = event(&mut job, |event| matches!(event, JobEvent::Waiting { .. })).await;
    let said =
        JobEvent::Waiting { reason: Reason::SPOOL_FULL, text: "the spool is full".to_owned() };
    assert_eq!(waiting, said);
    peer.message(id, &grant(8, &[])).await;
    assert_eq!(chunks(&mut peer, &content, 4).await, [2, 3, 4, 5]);
    done(&mut peer, &content).await;
    peer.message(id, &Verdict::Ok).await;
    peer.submitted(job.id(), Standing::Queued, 0).await;
    let total = content.len() as u64;
    event(&mut job, |event| *event == JobEvent::Uploading { done: total, total }).await;

    // A worker was lost: the leader asks for what it does not have any more.
    peer.message(id, &Verdict::Resend(ranges(&[(1, 1), (5, 1)]))).await;
    peer.message(id, &grant(4, &[])).await;
    assert_eq!(chunks(&mut peer, &content, 2).await, [1, 5]);
    done(&mut peer, &content).await;
    peer.message(id, &Verdict::Ok).await;
    peer.result(&ok(&request, "42")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "42");
    client.close().await;
}

#[tokio::test]
async fn what_fits_a_frame_goes_inside_also_from_a_file_and_an_empty_one() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let dir = tempfile::tempdir().unwrap();
    let (small, empty) = (dir.path().join("small"), dir.path().join("empty"));
    std::fs::write(&small, noise(2 * MIB)).unwrap();
    std::fs::write(&empty, b"").unwrap();
    let spec = JobSpec::from(calc()).file("small", &small).unwrap().file("empty", &empty).unwrap();
    client.submit(spec).await.unwrap();
    let request = peer.next().await.request();
    assert_eq!(request.files[0].content, Some(noise(2 * MIB)));
    assert_eq!(request.files[1].content, Some(vec![]));
    client.close().await;
}

#[tokio::test]
async fn after_a_cut_the_job_and_its_transfers_are_opened_again_and_only_the_rest_is_sent() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let content = noise(6 * MIB);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.bin");
    std::fs::write(&path, &content).unwrap();
    let mut job =
        client.submit(JobSpec::from(calc()).file("model.bin", &path).unwrap()).await.unwrap();
    let first = peer.next().await;
    let (id, open) = opened(&mut peer).await;
    peer.message(id, &grant(3, &[])).await;
    assert_eq!(chunks(&mut peer, &content, 3).await, [0, 1, 2]);
    drop(peer);

    let mut peer = transferring(&leader).await;
    let again = peer.next().await;
    assert_eq!((again.msg_id, again.payload), (first.msg_id, first.payload), "the same bytes");
    assert_eq!(opened(&mut peer).await, (id, open));
    peer.message(id, &grant(8, &[(0, 2), (4, 1)])).await;
    assert_eq!(chunks(&mut peer, &content, 3).await, [2, 3, 5]);
    done(&mut peer, &content).await;
    drop(peer);

    // All of it was held: Done alone.
    let mut peer = transferring(&leader).await;
    let request = peer.next().await.request();
    opened(&mut peer).await;
    peer.message(id, &grant(0, &[(0, 6)])).await;
    done(&mut peer, &content).await;
    peer.message(id, &Verdict::Ok).await;
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn an_input_that_the_leader_does_not_need_does_no_harm() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let mut job = client.submit(JobSpec::from(calc()).bytes("m", noise(4 * MIB))).await.unwrap();
    let request = peer.next().await.request();
    let (id, _) = opened(&mut peer).await;
    peer.message(id, &Abort { reason: Reason::UNKNOWN, text: "the job has ended".into() }).await;
    peer.result(&ok(&request, "stored")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "stored");
    client.close().await;
}

#[tokio::test]
async fn a_source_that_shrinks_or_grows_ends_its_job_here_and_at_the_leader() {
    for (size, word) in [(3 * MIB as u64, "shrank"), (9 * MIB as u64, "grew")] {
        let leader = FakeLeader::start().await;
        let (client, mut peer) = connect(&leader, &options()).await;
        let content = noise(6 * MIB);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.bin");
        std::fs::write(&path, &content).unwrap();
        let mut job =
            client.submit(JobSpec::from(calc()).file("model.bin", &path).unwrap()).await.unwrap();
        peer.next().await.request();
        let (id, _) = opened(&mut peer).await;
        peer.message(id, &grant(1, &[])).await;
        assert_eq!(chunk(&mut peer, &content).await, 0);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
        peer.message(id, &grant(8, &[])).await;
        let error = end(&mut job).await.unwrap_err();
        let text = format!("{word} from {} bytes to {size}", 6 * MIB);
        assert!(error.to_string().contains(&text), "{error}");
        let JobError::InputLost { reason, name, .. } = error else { panic!("{error}") };
        assert_eq!((reason, name.as_str()), (Reason::SOURCE_GONE, "model.bin"));
        let mut came = [next_of(&mut peer).await, next_of(&mut peer).await];
        came.sort_by_key(|seen| seen.code);
        assert_eq!((came[0].kind(), came[0].msg_id), (Kind::Abort, id));
        assert_eq!(Abort::decode(&came[0].payload).unwrap().reason, Reason::SOURCE_GONE);
        assert_eq!((came[1].kind(), came[1].msg_id), (Kind::Cancel, job.id()));
        assert!(Cancel::decode(&came[1].payload).unwrap().text.as_str().contains(word));
        client.close().await;
    }
}

/// The next frame that is not a chunk: one may still have been on its way.
async fn next_of(peer: &mut Peer) -> Seen {
    loop {
        let seen = peer.next().await;
        if seen.kind() != Kind::Chunk {
            return seen;
        }
    }
}

#[tokio::test]
async fn a_cancelled_job_sends_no_more_chunks() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let content = noise(8 * MIB);
    let mut job = client.submit(JobSpec::from(calc()).bytes("m", content.clone())).await.unwrap();
    let request = peer.next().await.request();
    let (id, _) = opened(&mut peer).await;
    peer.message(id, &grant(1, &[])).await;
    chunk(&mut peer, &content).await;
    job.cancel("enough").await;
    next(&mut peer, Kind::Cancel).await;
    peer.message(id, &grant(8, &[])).await;
    let mut failed = ok(&request, "");
    failed.status = heft::model::JobStatus::Failed;
    peer.result(&failed).await;
    end(&mut job).await.unwrap();
    client.close().await;
    assert!(peer.poll().await.is_none(), "nothing came behind the Cancel");
}

#[tokio::test]
async fn a_refused_input_ends_its_job_with_the_reason() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let mut job = client.submit(JobSpec::from(calc()).bytes("m", noise(4 * MIB))).await.unwrap();
    peer.next().await.request();
    let (id, _) = opened(&mut peer).await;
    peer.message(id, &Verdict::Failed { reason: Reason::TOO_LARGE, text: "over the spool".into() })
        .await;
    let error = end(&mut job).await.unwrap_err();
    assert!(matches!(&error, JobError::InputLost { reason: Reason::TOO_LARGE, .. }), "{error}");
    assert!(error.to_string().contains("over the spool"), "{error}");
    client.close().await;
}

#[tokio::test]
async fn a_classic_leader_gets_no_large_job_and_a_slow_one_gets_it_with_its_welcome() {
    let leader = FakeLeader::start().await;
    let (welcome_wait, connect_wait) = (Duration::from_millis(10), Some(Duration::from_secs(2)));
    let options = Options { welcome_wait, connect_wait, ..options() };
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let content = noise(4 * MIB);
    let mut refused =
        client.submit(JobSpec::from(calc()).bytes("m", content.clone())).await.unwrap();
    let error = end(&mut refused).await.unwrap_err();
    let JobError::NoWelcome { leader: silent, refusal, .. } = error else { panic!("{error}") };
    let in_base64 = (4 * MIB as u64).div_ceil(3) * 4;
    assert_eq!(
        (silent, refusal.value, refusal.limit),
        (leader.address.clone(), in_base64, 4_194_304)
    );

    let mut job = client.submit(JobSpec::from(calc()).bytes("m", content.clone())).await.unwrap();
    peer.welcome_with(FEATURES.with(Features::TRANSFERS)).await;
    let request = peer.next().await.request();
    assert_eq!(request.job_id, job.id());
    opened(&mut peer).await;
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_moved_job_sends_its_files_anew_to_the_other_leader() {
    let (first, second) = (FakeLeader::start().await, FakeLeader::start().await);
    let options = Options { grace: Duration::from_millis(50), ..options() };
    let leaders = [first.address.clone(), second.address.clone()];
    let (client, mut one, mut two) = tokio::join!(
        MultiClient::connect(&leaders, &options),
        transferring(&first),
        transferring(&second)
    );
    let client = client.unwrap();
    while !client.states().iter().all(|state| state.is_up()) {
        tokio::task::yield_now().await;
    }
    let content = noise(4 * MIB);
    let mut job = client.submit(JobSpec::from(calc()).bytes("m", content.clone())).await.unwrap();
    one.next().await.request();
    let (id, _) = opened(&mut one).await;
    one.message(id, &grant(2, &[])).await;
    chunks(&mut one, &content, 2).await;
    drop((one, first));
    let request = two.next().await.request();
    assert_eq!(opened(&mut two).await.0, id);
    two.message(id, &grant(8, &[])).await;
    assert_eq!(chunks(&mut two, &content, 4).await, [0, 1, 2, 3]);
    done(&mut two, &content).await;
    two.message(id, &Verdict::Ok).await;
    two.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_client_keeps_to_the_transfers_that_the_leader_takes_on_a_connection() {
    let leader = FakeLeader::start().await;
    let options = options();
    let limited = async {
        let mut peer = leader.accept().await;
        // Half of them are for parts of results.
        peer.welcome_limited(FEATURES.with(Features::TRANSFERS), &[(LimitId::TRANSFERS, 4)]).await;
        peer
    };
    let (client, mut peer) = tokio::join!(Client::connect(&leader.address, &options), limited);
    let client = client.unwrap();
    let content = Bytes::from(noise(4 * MIB));
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(client.submit(JobSpec::from(calc()).bytes("m", content.clone())).await.unwrap());
    }
    let mut requests = Vec::new();
    for job in &jobs[..2] {
        requests.push(peer.next().await.request());
        assert_eq!(opened(&mut peer).await.1.owner, job.id());
    }
    // A job that was held back is cancelled on the spot; one without files goes at once.
    assert!(client.cancel(jobs[2].id(), "not needed").await);
    assert_eq!(end(&mut jobs[2]).await, Err(JobError::CancelledUnsent { job: jobs[2].id() }));
    let small = client.submit(calc()).await.unwrap();
    assert_eq!(peer.next().await.request().job_id, small.id());
    peer.result(&ok(&requests[0], "")).await;
    end(&mut jobs[0]).await.unwrap();
    assert_eq!(peer.next().await.request().job_id, jobs[3].id());
    assert_eq!(opened(&mut peer).await.1.owner, jobs[3].id());
    client.close().await;
}

#[tokio::test]
async fn compressed_chunks_come_where_they_were_asked_for() {
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let text = b"row;value;another value\n".repeat(200_000);
    let compression = Compression::Fixed(Codec::Zstd);
    let spec = JobSpec { compression, ..JobSpec::from(calc()).bytes("m", text) };
    client.submit(spec).await.unwrap();
    peer.next().await.request();
    let (id, open) = opened(&mut peer).await;
    assert_eq!(open.codec, Codec::Zstd);
    peer.message(id, &grant(1, &[])).await;
    let seen = next(&mut peer, Kind::Chunk).await;
    let (head, sent) = ChunkHead::decode(&seen.payload).unwrap();
    assert!(head.codec == Codec::Zstd && sent.len() < MIB / 10);
    client.close().await;
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, |entries| entries.count())
}

#[tokio::test]
async fn wanted_parts_are_checked_written_and_given_out_with_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let leader = FakeLeader::start().await;
    let options =
        Options { downloads: Downloads::Directory(dir.path().join("parts")), ..options() };
    let (client, mut peer) = connect(&leader, &options).await;
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    let (archive, stdout) = (noise(3 * MIB + 5), noise(2 * MIB));
    // One comes before the result, the other behind it.
    let first = open_part(&mut peer, job.id(), 1, Purpose::Archive, &archive).await;
    assert_eq!(granted(&mut peer, first).await, grant(8, &[]));
    send_part(&mut peer, first, &archive, 0).await;
    assert_eq!(verdict(&mut peer, first).await, Verdict::Ok);
    let second = blob_id(job.id(), 1, Purpose::Stdout, 0);
    let mut result = ok(&request, "the first bytes");
    (result.archive, result.stdout_blob) = (named(first, &archive), named(second, &stdout));
    peer.result(&result).await;
    open_part(&mut peer, job.id(), 1, Purpose::Stdout, &stdout).await;
    granted(&mut peer, second).await;
    send_chunk(&mut peer, second, &stdout, 0).await;
    event(&mut job, |event| matches!(event, JobEvent::Downloading { total, .. } if *total > 0))
        .await;
    // A flipped bit costs its chunk.
    let raw = &stdout[MIB..];
    let mut payload = [&ChunkHead::plain(MIB as u64, raw).encode()[..], raw].concat();
    *payload.last_mut().unwrap() ^= 1;
    peer.send(Kind::Chunk, second, Uuid::nil(), "", &payload).await;
    peer.message(second, &Done { digest: digest(&stdout, DigestKind::ChunkList) }).await;
    assert_eq!(verdict(&mut peer, second).await, Verdict::Resend(ranges(&[(1, 1)])));
    send_part(&mut peer, second, &stdout, 1).await;
    assert_eq!(verdict(&mut peer, second).await, Verdict::Ok);

    let finished = timeout(PATIENCE, job.finish()).await.unwrap().unwrap();
    assert_eq!((finished.result().unwrap(), finished.missing.len()), (result, 0));
    let read = |purpose| std::fs::read(finished.part(purpose).unwrap().path().unwrap()).unwrap();
    assert!(read(Purpose::Archive) == archive && read(Purpose::Stdout) == stdout);
    assert_eq!(files_in(&dir.path().join("parts")), 2);
    drop(finished);
    assert_eq!(files_in(&dir.path().join("parts")), 0, "they are removed with it");
    client.close().await;
}

#[tokio::test]
async fn a_part_goes_on_where_it_was_after_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let leader = FakeLeader::start().await;
    let options = Options { downloads: Downloads::Directory(dir.path().to_owned()), ..options() };
    let (client, mut peer) = connect(&leader, &options).await;
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    let archive = noise(6 * MIB);
    let id = open_part(&mut peer, job.id(), 1, Purpose::Archive, &archive).await;
    granted(&mut peer, id).await;
    for index in [0, 1, 2, 4] {
        send_chunk(&mut peer, id, &archive, index).await;
    }
    // The fourth consumed chunk brings the next grant, so all four are stored.
    granted(&mut peer, id).await;
    let mut result = ok(&request, "");
    result.archive = named(id, &archive);
    peer.result(&result).await;
    drop(peer);

    let mut peer = transferring(&leader).await;
    assert_eq!(peer.next().await.request().job_id, job.id());
    peer.result(&result).await;
    open_part(&mut peer, job.id(), 1, Purpose::Archive, &archive).await;
    assert_eq!(granted(&mut peer, id).await.held, ranges(&[(0, 3), (4, 1)]));
    send_chunk(&mut peer, id, &archive, 3).await;
    send_part(&mut peer, id, &archive, 5).await;
    assert_eq!(verdict(&mut peer, id).await, Verdict::Ok);
    let finished = timeout(PATIENCE, job.finish()).await.unwrap().unwrap();
    assert!(std::fs::read(finished.parts[0].path().unwrap()).unwrap() == archive);
    let kept = dir.path().join("kept.zip");
    finished.parts.into_iter().next().unwrap().keep_as(&kept).unwrap();
    assert_eq!(
        (files_in(dir.path()), std::fs::metadata(&kept).unwrap().len()),
        (1, 6 * MIB as u64)
    );
    client.close().await;
}

#[tokio::test]
async fn parts_that_are_not_wanted_are_declined_and_the_result_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    for downloads in [Downloads::None, Downloads::Outputs(dir.path().to_owned())] {
        let leader = FakeLeader::start().await;
        let (client, mut peer) = connect(&leader, &Options { downloads, ..options() }).await;
        let mut job = client.submit(calc()).await.unwrap();
        let request = peer.next().await.request();
        let archive = noise(2 * MIB);
        let id = open_part(&mut peer, job.id(), 1, Purpose::Archive, &archive).await;
        let declined = Verdict::Failed { reason: Reason::CANCELLED, text: "not wanted".into() };
        assert_eq!(verdict(&mut peer, id).await, declined);
        let mut result = ok(&request, "");
        result.archive = named(id, &archive);
        peer.result(&result).await;
        assert_eq!(end(&mut job).await.unwrap(), result);
        // And a part of a job that nobody here knows.
        let unknown = open_part(&mut peer, Uuid::new_v4(), 1, Purpose::Stdout, &archive).await;
        assert_eq!(verdict(&mut peer, unknown).await, declined);
        client.close().await;
    }
    assert_eq!(files_in(dir.path()), 0);
}

#[tokio::test]
async fn an_aborted_part_is_dropped_and_the_next_attempt_brings_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let leader = FakeLeader::start().await;
    let options = Options { downloads: Downloads::Directory(dir.path().to_owned()), ..options() };
    let (client, mut peer) = connect(&leader, &options).await;
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    let (lost, archive) = (noise(2 * MIB), noise(MIB));
    let first = open_part(&mut peer, job.id(), 1, Purpose::Archive, &lost).await;
    granted(&mut peer, first).await;
    send_chunk(&mut peer, first, &lost, 0).await;
    peer.message(first, &Abort { reason: Reason::SOURCE_GONE, text: "worker lost".into() }).await;
    let second = open_part(&mut peer, job.id(), 2, Purpose::Archive, &archive).await;
    granted(&mut peer, second).await;
    assert_eq!(files_in(dir.path()), 1, "what had come of the first is gone");
    send_part(&mut peer, second, &archive, 0).await;
    assert_eq!(verdict(&mut peer, second).await, Verdict::Ok);
    let gone = blob_id(job.id(), 2, Purpose::Stderr, 0);
    let mut result = ok(&request, "");
    (result.archive, result.stderr_blob) = (named(second, &archive), named(gone, &lost));
    peer.result(&result).await;
    open_part(&mut peer, job.id(), 2, Purpose::Stderr, &lost).await;
    granted(&mut peer, gone).await;
    peer.message(gone, &Abort { reason: Reason::UNKNOWN, text: "no longer kept".into() }).await;
    let finished = timeout(PATIENCE, job.finish()).await.unwrap().unwrap();
    assert_eq!((finished.parts.len(), finished.missing.len()), (1, 1));
    assert!(finished.missing[0].why.contains("no longer kept"), "{:?}", finished.missing);
    drop(finished);
    client.close().await;
    assert_eq!(files_in(dir.path()), 0);
}

#[tokio::test]
async fn a_client_that_closes_leaves_no_file_and_sinks_of_ones_own_get_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let leader = FakeLeader::start().await;
    let to_files = Options { downloads: Downloads::Directory(dir.path().to_owned()), ..options() };
    let (client, mut peer) = connect(&leader, &to_files).await;
    let job = client.submit(calc()).await.unwrap();
    peer.next().await.request();
    let content = noise(2 * MIB);
    let id = open_part(&mut peer, job.id(), 1, Purpose::Archive, &content).await;
    granted(&mut peer, id).await;
    assert_eq!(files_in(dir.path()), 1);
    client.close().await;
    assert_eq!(files_in(dir.path()), 0);

    let sink = MemorySink::default();
    let made = sink.clone();
    let downloads = Downloads::Sink(Arc::new(move |_| Some(Box::new(made.clone()))));
    for (downloads, kept) in [(downloads, true), (Downloads::discard(), false)] {
        let leader = FakeLeader::start().await;
        let (client, mut peer) = connect(&leader, &Options { downloads, ..options() }).await;
        let mut job = client.submit(calc()).await.unwrap();
        let request = peer.next().await.request();
        let id = open_part(&mut peer, job.id(), 1, Purpose::Archive, &content).await;
        granted(&mut peer, id).await;
        send_part(&mut peer, id, &content, 0).await;
        assert_eq!(verdict(&mut peer, id).await, Verdict::Ok);
        let mut result = ok(&request, "");
        result.archive = named(id, &content);
        peer.result(&result).await;
        let finished = timeout(PATIENCE, job.finish()).await.unwrap().unwrap();
        assert_eq!((finished.parts[0].size, finished.parts[0].path()), (2 * MIB as u64, None));
        assert!(!kept || sink.take() == content);
        client.close().await;
    }
}

#[tokio::test]
async fn a_result_that_is_kept_is_fetched_with_its_parts_also_over_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let leader = FakeLeader::start().await;
    let (client, mut peer) = connect(&leader, &options()).await;
    let job = Uuid::new_v4();
    let archive = noise(6 * MIB);
    let request = JobRequest { job_id: job, ..calc() };
    let id = blob_id(job, 1, Purpose::Archive, 0);
    let mut result = ok(&request, "kept");
    result.archive = named(id, &archive);
    let shown: serde_json::Value = serde_json::from_slice(&result.to_json()).unwrap();
    let answer = json!({"found": true, "result": shown});
    let downloads = Downloads::Directory(dir.path().to_owned());
    let fetching = client.fetch(job, &downloads);
    let script = async {
        let ask = next(&mut peer, Kind::Ask).await;
        assert_eq!((ask.subject.as_str(), ask.question()), ("result", json!({"job_id": job})));
        peer.answer(&ask, AnswerStatus::Whole, &answer).await;
        open_part(&mut peer, job, 1, Purpose::Archive, &archive).await;
        granted(&mut peer, id).await;
        for index in 0..4 {
            send_chunk(&mut peer, id, &archive, index).await;
        }
        granted(&mut peer, id).await;
        drop(peer);
        let mut peer = transferring(&leader).await;
        let ask = next(&mut peer, Kind::Ask).await;
        peer.answer(&ask, AnswerStatus::Whole, &answer).await;
        open_part(&mut peer, job, 1, Purpose::Archive, &archive).await;
        assert_eq!(granted(&mut peer, id).await.held, ranges(&[(0, 4)]));
        send_part(&mut peer, id, &archive, 4).await;
        assert_eq!(verdict(&mut peer, id).await, Verdict::Ok);
        peer
    };
    let (fetched, mut peer) =
        timeout(PATIENCE, async { tokio::join!(fetching, script) }).await.unwrap();
    let finished = fetched.unwrap().unwrap();
    assert_eq!(finished.result().unwrap(), result);
    assert!(std::fs::read(finished.parts[0].path().unwrap()).unwrap() == archive);
    drop(finished);
    assert_eq!(files_in(dir.path()), 0);

    let none = client.fetch(job, &Downloads::None);
    let script = async {
        let ask = next(&mut peer, Kind::Ask).await;
        peer.answer(&ask, AnswerStatus::Whole, &json!({"found": false})).await;
    };
    let (none, ()) = tokio::join!(none, script);
    assert!(none.unwrap().is_none());
    client.close().await;
}

#[tokio::test]
async fn a_fetch_waits_for_a_leader_that_is_away_for_longer_than_an_answer_may_take() {
    let leader = FakeLeader::start().await;
    let options = Options { answer_wait: Some(Duration::from_millis(100)), ..options() };
    let (client, peer) = connect(&leader, &options).await;
    let (address, job) = (leader.address.clone(), Uuid::from_u128(7));
    drop((leader, peer));
    let fetching = client.fetch(job, &Downloads::None);
    let answering = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let leader = FakeLeader::start_at(&address).await;
        let mut peer = leader.welcome().await;
        let request = JobRequest { job_id: job, ..calc() };
        let result: serde_json::Value =
            serde_json::from_slice(&ok(&request, "late").to_json()).unwrap();
        while let Some(asked) = peer.poll().await {
            let answer = json!({"found": true, "result": result});
            peer.answer(&asked, AnswerStatus::Whole, &answer).await;
        }
    });
    let fetched = timeout(PATIENCE, fetching).await.expect("it comes in time");
    assert_eq!(fetched.unwrap().unwrap().result().unwrap().stdout, "late");
    answering.abort();
}
