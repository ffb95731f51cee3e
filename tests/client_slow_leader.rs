//! A client of a heft leader that takes its time to answer the hello, from a tenth of a second to a
//! minute: it is never taken for a classic one once it has answered, and its late answer always
//! counts. Times are a hundredth of the real ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/leader.rs"]
mod leader;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/transfers.rs"]
mod transfers;

use chunking::Kind;
use chunking::message::{AnswerStatus, Body, Cancel, Features, LimitId, Standing, Verdict};
use heft::answers::ask;
use heft::client::{Client, JobError, JobEvent, JobHandle, JobSpec, LinkState, Mode, Options};
use heft::core::retry::Backoff;
use heft::model::JobResult;
use heft::peer::PROBE_CLIENT_ID;
use leader::{FEATURES, FakeLeader, PATIENCE, Peer, calc, ok, options};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use transfers::*;

/// From 0.1 to 60 s, shortened.
const DELAYS_MS: [u64; 9] = [1, 3, 6, 10, 20, 50, 100, 300, 600];

/// 500 ms, shortened. The other limits are far away: a busy machine must not make the difference.
const WELCOME_WAIT: Duration = Duration::from_millis(5);

const OURS: Features = FEATURES.with(Features::TRANSFERS);

fn impatient() -> Options {
    Options { welcome_wait: WELCOME_WAIT, ..options() }
}

async fn end(job: &mut JobHandle) -> Result<JobResult, JobError> {
    timeout(PATIENCE, job.wait()).await.expect("an end in time")
}

/// Runs a scene once for each delay, all at a time.
async fn over_delays<F: Future<Output = ()> + Send + 'static>(scene: impl Fn(Duration) -> F) {
    let mut scenes = JoinSet::new();
    for delay in DELAYS_MS {
        scenes.spawn(scene(Duration::from_millis(delay)));
    }
    while let Some(ended) = scenes.join_next().await {
        ended.unwrap();
    }
}

/// A Welcome that comes after this time, on a connection of a client that must not say anything
/// before it.
async fn late_welcome(peer: &mut Peer, delay: Duration) {
    let early = timeout(delay, peer.poll()).await;
    assert!(early.is_err(), "before the Welcome came {early:?}");
    peer.welcome_with(OURS).await;
}

async fn connected(options: &Options) -> (FakeLeader, Client, Peer) {
    let leader = FakeLeader::start().await;
    let (client, peer) =
        tokio::join!(Client::connect(&leader.address, options), transferring(&leader));
    (leader, client.unwrap(), peer)
}

#[tokio::test]
async fn a_small_job_goes_once_to_a_leader_whose_first_answer_is_late_and_that_answer_counts() {
    over_delays(|delay| async move {
        let leader = FakeLeader::start().await;
        let options = impatient();
        let ((client, mut job), mut peer) = tokio::join!(
            async {
                let client = Client::connect(&leader.address, &options).await.unwrap();
                let job = client.submit(calc()).await.unwrap();
                (client, job)
            },
            async {
                let mut peer = leader.accept().await;
                sleep(delay).await;
                peer.welcome_with(OURS).await;
                peer
            }
        );
        let request = peer.next().await.request();
        peer.submitted(job.id(), Standing::Queued, 0).await;
        let answer = async {
            // Nothing but the question: the job is not sent a second time.
            let ask = peer.next().await;
            assert_eq!(ask.kind(), Kind::Ask);
            peer.answer(&ask, AnswerStatus::Whole, &json!({"jobs": {}})).await;
        };
        while !matches!(client.state(), LinkState::Up { mode: Mode::Announced { .. }, .. }) {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            tokio::join!(client.ask(&ask::Status {}), answer).0.unwrap().json,
            json!({"jobs": {}})
        );
        peer.result(&ok(&request, "42")).await;
        assert_eq!(end(&mut job).await.unwrap().stdout, "42");
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_large_job_waits_for_the_first_answer_of_a_slow_leader_and_says_so() {
    over_delays(|delay| async move {
        let leader = FakeLeader::start().await;
        let options = impatient();
        let content = noise(4 * MIB);
        let spec = JobSpec::from(calc()).bytes("m", content.clone());
        let ((client, mut job), mut peer) = tokio::join!(
            async {
                let client = Client::connect(&leader.address, &options).await.unwrap();
                let job = client.submit(spec).await.unwrap();
                (client, job)
            },
            async {
                let mut peer = leader.accept().await;
                late_welcome(&mut peer, delay).await;
                peer
            }
        );
        let request = peer.next().await.request();
        let (id, _) = opened(&mut peer).await;
        peer.message(id, &grant(4, &[])).await;
        assert_eq!(chunks(&mut peer, &content, 4).await, [0, 1, 2, 3]);
        done(&mut peer, &content).await;
        peer.message(id, &Verdict::Ok).await;
        peer.result(&ok(&request, "")).await;
        end(&mut job).await.unwrap();
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_large_job_is_given_up_when_connect_wait_is_over_without_an_answer_and_not_before() {
    let leader = FakeLeader::start().await;
    let options = Options { connect_wait: Some(Duration::from_millis(2500)), ..impatient() };
    let (client, peer) = tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let mut job = client.submit(JobSpec::from(calc()).bytes("m", noise(4 * MIB))).await.unwrap();
    let first = timeout(PATIENCE, job.event()).await.unwrap().unwrap();
    let JobEvent::Waiting { text, .. } = first else { panic!("{first:?}") };
    assert!(text.contains("waiting up to") && text.contains(&leader.address), "{text}");
    // Longer than the two seconds that were once all there was.
    let early = timeout(Duration::from_millis(2200), job.wait()).await;
    assert!(early.is_err(), "{early:?}");
    let error = end(&mut job).await.unwrap_err();
    let JobError::NoWelcome { leader: silent, waited, .. } = &error else { panic!("{error}") };
    assert_eq!(*silent, leader.address, "nobody has refused it");
    assert!(waited.0 >= Duration::from_secs(2), "{error}");
    for part in
        ["has not answered the hello", "the connection may be dead", "classic", "--connect-wait"]
    {
        assert!(error.to_string().contains(part), "{error}");
    }
    client.close().await;
    drop(peer);
}

#[tokio::test]
async fn an_upload_that_was_cut_goes_on_with_a_leader_that_answers_late() {
    over_delays(|delay| async move {
        let content = noise(6 * MIB);
        let (leader, client, mut peer) = connected(&impatient()).await;
        let mut job =
            client.submit(JobSpec::from(calc()).bytes("m", content.clone())).await.unwrap();
        peer.next().await.request();
        let (id, open) = opened(&mut peer).await;
        peer.message(id, &grant(3, &[])).await;
        assert_eq!(chunks(&mut peer, &content, 3).await, [0, 1, 2]);
        drop(peer);

        let mut peer = leader.accept().await;
        sleep(delay).await;
        let state = client.state();
        assert!(!state.is_up(), "it must not count as a classic leader: {state:?}");
        late_welcome(&mut peer, Duration::from_millis(1)).await;
        let request = peer.next().await.request();
        assert_eq!(opened(&mut peer).await, (id, open));
        peer.message(id, &grant(8, &[(0, 3)])).await;
        assert_eq!(chunks(&mut peer, &content, 3).await, [3, 4, 5]);
        done(&mut peer, &content).await;
        peer.message(id, &Verdict::Ok).await;
        peer.result(&ok(&request, "")).await;
        end(&mut job).await.unwrap();
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_job_whose_result_is_waited_for_is_asked_for_again_when_the_leader_answers() {
    over_delays(|delay| async move {
        let (leader, client, mut peer) = connected(&impatient()).await;
        let mut job = client.submit(calc()).await.unwrap();
        peer.next().await.request();
        peer.submitted(job.id(), Standing::Queued, 0).await;
        drop(peer);

        let mut peer = leader.accept().await;
        late_welcome(&mut peer, delay).await;
        let request = peer.next().await.request();
        assert_eq!(request.job_id, job.id());
        peer.result(&ok(&request, "42")).await;
        assert_eq!(end(&mut job).await.unwrap().stdout, "42");
        let mut waited = 0;
        while let Some(event) = job.event().await {
            assert!(!matches!(event, JobEvent::ResultMayBeLost { .. }));
            if let JobEvent::Waiting { text, .. } = event {
                assert!(text.contains("has not answered the hello"), "{text}");
                waited += 1;
            }
        }
        assert!(
            waited == 1 || delay < 20 * WELCOME_WAIT,
            "it is said that, and for whom, it waits"
        );
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_late_first_welcome_is_remembered_for_the_next_connection() {
    let leader = FakeLeader::start().await;
    let options = impatient();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    assert!(matches!(client.state(), LinkState::Up { mode: Mode::Classic, .. }));
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await.request();
    // A classic leader could not be told that it is not wanted.
    job.cancel("enough").await;
    peer.welcome_with(OURS).await;
    let cancel = peer.next().await;
    assert_eq!((cancel.kind(), cancel.msg_id), (Kind::Cancel, job.id()));
    assert_eq!(Cancel::decode(&cancel.payload).unwrap().text.as_str(), "enough");
    drop(peer);

    let mut peer = leader.accept().await;
    late_welcome(&mut peer, 20 * WELCOME_WAIT).await;
    let request = peer.next().await.request();
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_heft_leader_that_never_answers_is_tried_on_another_connection() {
    let options = Options { welcome_wait_max: Duration::from_millis(100), ..impatient() };
    let (leader, client, mut peer) = connected(&options).await;
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await.request();
    drop(peer);
    let mut silent = leader.accept().await;
    let mut peer = transferring(&leader).await;
    assert!(silent.poll().await.is_none(), "nothing was said there, and it was closed");
    let request = peer.next().await.request();
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
    assert!(
        Options::new("").welcome_wait_max > Duration::from_secs(60),
        "a pause of a minute is sat out"
    );
}

/// Two seconds and more, shortened.
const PROBES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_millis(100),
    jitter_percent: 20,
};

fn probing() -> Options {
    Options { probe_backoff: PROBES, ..impatient() }
}

/// The next connection, which has to be a probe.
async fn probe(leader: &FakeLeader) -> Peer {
    let peer = leader.accept().await;
    assert_eq!(peer.hello.subject, PROBE_CLIENT_ID);
    peer
}

/// The next connection that is not a probe; those are left unanswered until it comes.
async fn past_probes(leader: &FakeLeader) -> Peer {
    let mut probes = Vec::new();
    loop {
        let peer = leader.accept().await;
        if peer.hello.subject != PROBE_CLIENT_ID {
            return peer;
        }
        probes.push(peer);
    }
}

async fn waits(job: &mut JobHandle) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(event) = job.event().await {
        if let JobEvent::Waiting { text, .. } = event {
            texts.push(text);
        }
    }
    texts
}

#[tokio::test]
async fn a_job_on_a_line_that_was_dead_from_the_hello_on_moves_to_another_connection() {
    let leader = FakeLeader::start().await;
    let options = probing();
    let (client, mut dead) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    assert_eq!(dead.next().await.request().job_id, job.id());
    // The first gets no answer: the leader may have had a bad moment.
    drop(probe(&leader).await);
    let mut answered = probe(&leader).await;
    answered.welcome_with(OURS).await;
    assert!(answered.poll().await.is_none(), "a probe brings nothing but its hello");
    assert!(dead.poll().await.is_none(), "the dead one is given up");
    let mut peer = transferring(&leader).await;
    let request = peer.next().await.request();
    assert_eq!(request.job_id, job.id());
    peer.result(&ok(&request, "42")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "42");
    let told = waits(&mut job).await;
    assert!(told[0].contains("has sent nothing since"), "{told:?}");
    client.close().await;
}

#[tokio::test]
async fn a_large_job_on_a_line_that_was_dead_from_the_hello_on_goes_by_another_connection() {
    let leader = FakeLeader::start().await;
    let options = probing();
    let (client, dead) = tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let mut job = client.submit(JobSpec::from(calc()).bytes("m", noise(4 * MIB))).await.unwrap();
    probe(&leader).await.welcome_with(OURS).await;
    let mut peer = transferring(&leader).await;
    let request = peer.next().await.request();
    opened(&mut peer).await;
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
    drop(dead);
}

#[tokio::test]
async fn a_question_on_a_line_that_was_dead_from_the_hello_on_is_asked_on_another_connection() {
    let leader = FakeLeader::start().await;
    // As those have it that only ask: they wait for a Welcome until they give up.
    let options = Options { welcome_wait: 2 * PATIENCE, ..probing() };
    let answered = async {
        let dead = leader.accept().await;
        probe(&leader).await.welcome_with(OURS).await;
        let mut peer = transferring(&leader).await;
        let ask = peer.next().await;
        peer.answer(&ask, AnswerStatus::Whole, &json!({})).await;
        (dead, peer)
    };
    let asked = async {
        let client = Client::connect(&leader.address, &options).await.unwrap();
        client.ask(&ask::Status {}).await.unwrap().json
    };
    assert_eq!(tokio::join!(asked, answered).0, json!({}));
}

#[tokio::test]
async fn a_classic_leader_gets_a_job_once_however_often_it_is_probed() {
    let leader = FakeLeader::start().await;
    let options = probing();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    for _ in 0..3 {
        // As a leader that takes the hello of any client, and says nothing.
        let mut probe = probe(&leader).await;
        assert!(
            timeout(Duration::from_millis(20), probe.poll()).await.is_err(),
            "it says nothing, either"
        );
    }
    let again = timeout(Duration::from_millis(20), peer.poll()).await;
    assert!(again.is_err(), "{again:?}");
    assert!(matches!(client.state(), LinkState::Up { mode: Mode::Classic, .. }));
    peer.result(&ok(&request, "42")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "42");
    // It has spoken: there is nothing to find out any more.
    let mut next = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    assert!(
        timeout(Duration::from_millis(500), probe(&leader)).await.is_err(),
        "it is known to be there"
    );
    peer.result(&ok(&request, "")).await;
    end(&mut next).await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn a_slow_leader_that_answers_probe_and_hello_keeps_its_connection() {
    over_delays(|delay| async move {
        let leader = FakeLeader::start().await;
        let options = probing();
        let (client, mut peer) =
            tokio::join!(Client::connect(&leader.address, &options), leader.accept());
        let client = client.unwrap();
        let mut job = client.submit(calc()).await.unwrap();
        let request = peer.next().await.request();
        let mut probe = probe(&leader).await;
        sleep(delay).await;
        probe.welcome_with(OURS).await;
        peer.welcome_with(OURS).await;
        peer.submitted(job.id(), Standing::Queued, 0).await;
        let again = timeout(Duration::from_millis(1500), peer.poll()).await;
        assert!(again.is_err(), "it is not sent again, and the connection stays: {again:?}");
        peer.result(&ok(&request, "42")).await;
        assert_eq!(end(&mut job).await.unwrap().stdout, "42");
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_line_that_is_dead_after_a_reconnect_is_given_up_after_the_silence_limit() {
    let leader = FakeLeader::start().await;
    let limits = [(LimitId::SILENCE_MS, 200), (LimitId::HEARTBEAT_MS, 20)];
    let options = probing();
    let (client, mut peer) = tokio::join!(Client::connect(&leader.address, &options), async {
        let mut peer = leader.accept().await;
        peer.welcome_limited(OURS.with(Features::KEEPALIVE), &limits).await;
        peer
    });
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await;
    drop(peer);
    let mut dead = leader.accept().await;
    let mut probe = probe(&leader).await;
    probe.welcome_with(OURS).await;
    assert!(dead.poll().await.is_none(), "nothing was said there, and it was closed");
    let mut peer = past_probes(&leader).await;
    peer.welcome_with(OURS).await;
    let request = peer.next().await.request();
    assert_eq!(request.job_id, job.id());
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
    client.close().await;
}
