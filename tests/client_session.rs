//! The client against a leader that follows the test's script: announced and classic mode,
//! refusals, reconnects, redirects, questions (SPEC 1M, C07, C23).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/leader.rs"]
mod leader;

use chunking::message::{
    AnswerStatus, Body, Cancel, Features, LimitId, Progress, Reason, Received, Refused, Stage,
    Standing,
};
use chunking::{Generation, Head, Kind};
use heft::answers::ask::{self, Which};
use heft::client::{
    Client, ClientError, JobError, JobEvent, JobHandle, LinkState, Mode, MultiClient, Options,
    Policy,
};
use heft::core::retry::Backoff;
use heft::model::{JobRequest, JobResult, JobStatus};
use leader::{FEATURES, FakeLeader, PATIENCE, calc, ok, options};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

fn classic() -> Options {
    Options { welcome_wait: Duration::from_millis(20), ..options() }
}

fn refusal(reason: Reason) -> Refused {
    Refused {
        reason,
        value: 9,
        limit: 4,
        hop: "worker w-3".to_owned().try_into().unwrap(),
        text: "too much".into(),
    }
}

async fn end(job: &mut JobHandle) -> Result<JobResult, JobError> {
    timeout(PATIENCE, job.wait()).await.expect("an end in time")
}

/// The next news that are not about the connection.
async fn event(job: &mut JobHandle) -> JobEvent {
    timeout(PATIENCE, job.event()).await.expect("news in time").expect("news")
}

#[tokio::test]
async fn an_announced_client_hears_that_its_job_was_taken_how_far_it_is_and_its_result() {
    let leader = FakeLeader::start().await;
    let options = Options { desired: 7, ..options() };
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    assert_eq!(peer.hello.subject, "clientA");
    let config = peer.hello.config();
    assert_eq!((config.client_id.as_str(), config.desired_parallelism), ("clientA", 7));
    let heft = config.heft.unwrap();
    let transfers = ["transfers", "gzip", "brotli", "zstd"];
    assert_eq!(heft.features[..4], transfers);
    let rest = [
        "submit-answers",
        "progress",
        "cancel",
        "ask",
        "datasets",
        "redirects",
        "checksums",
        "receipts",
        "keepalive",
        "pieces",
        "follow",
    ];
    assert_eq!(heft.features[4..], rest);
    let LinkState::Up { mode: Mode::Announced { software, .. }, .. } = client.state() else {
        panic!()
    };
    assert_eq!(software, "fake 1");

    let mut job = client.submit(calc()).await.unwrap();
    let submit = peer.next().await;
    let request = submit.request();
    assert_eq!((submit.subject.as_str(), submit.msg_id), ("job.submit.calcA", job.id()));
    assert_eq!(request.client_id, "clientA");
    peer.submitted(job.id(), Standing::Queued, 3).await;
    let progress = Progress {
        run: 1,
        attempt: 1,
        stage: Stage::Running,
        done: 1,
        total: 2,
        text: "half".into(),
    };
    peer.message(job.id(), &progress).await;
    peer.result(&ok(&request, "42\n")).await;

    let sent = JobEvent::Sent { leader: leader.address.clone(), again: false };
    assert_eq!(event(&mut job).await, sent);
    assert_eq!(
        event(&mut job).await,
        JobEvent::Submitted { standing: Standing::Queued, run: 1, ahead: 3 }
    );
    let half = JobEvent::Progress {
        attempt: 1,
        stage: Stage::Running,
        done: 1,
        total: 2,
        text: "half".to_owned(),
    };
    assert_eq!(event(&mut job).await, half);
    assert_eq!(job.event().await, None);
    assert_eq!(end(&mut job).await.unwrap().stdout, "42\n");
    assert_eq!(
        end(&mut job).await,
        Err(JobError::Closed { job: job.id() }),
        "it is given out once"
    );
    client.close().await;
    assert!(peer.poll().await.is_none());
}

#[tokio::test]
async fn a_leader_that_takes_receipts_hears_of_every_result_the_program_has_and_of_no_other() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) = tokio::join!(Client::connect(&leader.address, &options), async {
        let mut peer = leader.accept().await;
        peer.welcome_with(FEATURES.with(Features::RECEIPTS)).await;
        peer
    });
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    // One that is another's, of the same name.
    let stranger = JobResult::new(Uuid::from_u128(77), "clientA", "calcA", JobStatus::Ok);
    peer.result(&stranger).await;
    peer.submitted(job.id(), Standing::Queued, 0).await;
    peer.result(&ok(&request, "42\n")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "42\n");
    let receipt = peer.next().await;
    assert_eq!((receipt.kind(), receipt.msg_id), (Kind::Received, job.id()));
    assert_eq!(Received::decode(&receipt.payload).unwrap(), Received { run: 1 });
    // The leader did not hear that, and sends the result again.
    peer.result(&ok(&request, "42\n")).await;
    let again = peer.next().await;
    assert_eq!((again.kind(), again.msg_id), (Kind::Received, job.id()));
    client.close().await;
    assert!(peer.poll().await.is_none());
}

#[tokio::test]
async fn w23_without_a_welcome_the_client_falls_back_to_classic_mode() {
    let leader = FakeLeader::start().await;
    let options = Options { connect_wait: Some(Duration::from_millis(100)), ..classic() };
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    assert_eq!(
        client.state(),
        LinkState::Up { leader: leader.address.clone(), mode: Mode::Classic }
    );
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    peer.result(&ok(&request, "stock")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "stock");
    let refused = client.ask(&ask::Status {}).await.unwrap_err();
    assert_eq!(
        refused,
        ClientError::NotSupported { leader: leader.address.clone(), feature: "ask" }
    );
    assert!(!refused.is_retryable());

    // It was only slow: from its Welcome on it is a heft leader.
    peer.welcome().await;
    let mut slow = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    peer.result(&ok(&request, "")).await;
    end(&mut slow).await.unwrap();
    let answer = async {
        let ask = peer.next().await;
        peer.answer(&ask, AnswerStatus::Whole, &json!({"jobs": {}})).await;
    };
    assert_eq!(
        tokio::join!(client.ask(&ask::Status {}), answer).0.unwrap().json,
        json!({"jobs": {}})
    );
}

#[tokio::test]
async fn w23_a_question_waits_for_the_welcome_of_a_leader_that_seems_classic() {
    let leader = FakeLeader::start().await;
    let options = classic();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    assert!(matches!(client.state(), LinkState::Up { mode: Mode::Classic, .. }));
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        peer.welcome().await;
        let ask = peer.next().await;
        peer.answer(&ask, AnswerStatus::Whole, &json!({"jobs": {}})).await;
    };
    assert_eq!(
        tokio::join!(client.ask(&ask::Status {}), late).0.unwrap().json,
        json!({"jobs": {}})
    );
}

#[tokio::test]
async fn a_refusal_carries_reason_value_limit_and_hop() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await;
    peer.refused(job.id(), refusal(Reason::TOO_LARGE)).await;
    let Err(JobError::Refused { job: id, refusal }) = end(&mut job).await else { panic!() };
    assert_eq!(
        (id, refusal.reason, refusal.value, refusal.limit),
        (job.id(), Reason::TOO_LARGE, 9, 4)
    );
    assert_eq!(refusal.to_string(), "too-large at worker w-3, 9 where 4 is the limit: too much");
}

#[tokio::test]
async fn a_job_rides_out_a_leader_that_goes_away_and_keeps_its_id() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let mut done = client.submit(calc()).await.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    peer.next().await;
    peer.result(&ok(&request, "before")).await;
    assert_eq!(end(&mut done).await.unwrap().stdout, "before");
    drop(peer);

    let mut peer = leader.welcome().await;
    let again = peer.next().await.request();
    assert_eq!(again.job_id, job.id(), "only what is unfinished, under the same id");
    peer.submitted(job.id(), Standing::Running, 0).await;
    peer.result(&ok(&again, "after")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "after");
    let mut news = Vec::new();
    while let Some(event) = job.event().await {
        news.push(event);
    }
    assert!(matches!(&news[0], JobEvent::Sent { again: false, .. }), "{news:?}");
    assert!(matches!(&news[1], JobEvent::Reconnecting { .. }), "{news:?}");
    assert!(matches!(&news[2], JobEvent::Sent { again: true, .. }), "{news:?}");
    assert!(
        matches!(&news[3], JobEvent::Submitted { standing: Standing::Running, .. }),
        "{news:?}"
    );
}

#[tokio::test]
async fn dd04_a_classic_leader_gets_the_same_id_again_and_the_job_is_told_that_its_result_may_be_lost()
 {
    let leader = FakeLeader::start().await;
    let options = classic();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await;
    drop(peer);
    let mut peer = leader.accept().await;
    let request = peer.next().await.request();
    assert_eq!(request.job_id, job.id());
    let lost = JobEvent::ResultMayBeLost { leader: leader.address.clone() };
    while event(&mut job).await != lost {}
    peer.result(&ok(&request, "still here")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "still here");
}

#[tokio::test]
async fn who_cancels_a_job_at_a_classic_leader_hears_that_it_goes_on() {
    let leader = FakeLeader::start().await;
    let options = classic();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.accept());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    job.cancel("not needed").await;
    let told = "classic leader, which cannot cancel jobs";
    let is_said =
        |event: &JobEvent| matches!(event, JobEvent::Waiting { text, .. } if text.contains(told));
    while !is_said(&event(&mut job).await) {}
    peer.result(&ok(&request, "done all the same")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "done all the same");
}

#[tokio::test]
async fn c07_the_first_result_wins_and_late_or_strange_ones_are_dropped() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    let stranger = JobResult::new(Uuid::new_v4(), "clientB", "calcA", JobStatus::Ok);
    peer.result(&stranger).await;
    peer.send(Kind::Heartbeat, Uuid::nil(), Uuid::nil(), "", b"\x01").await;
    peer.send(Kind::Submitted, job.id(), job.id(), "", b"").await;
    peer.result(&ok(&request, "first")).await;
    peer.result(&ok(&request, "second")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "first");
    let mut next = client.submit(calc()).await.unwrap();
    let request = peer.next().await.request();
    peer.result(&ok(&request, "unharmed")).await;
    assert_eq!(end(&mut next).await.unwrap().stdout, "unharmed");
}

#[tokio::test]
async fn m19_a_raw_job_travels_and_returns_as_it_is() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let mut job = client.submit_raw("groupA", &b"\x00\xffraw"[..]).await.unwrap();
    let submit = peer.next().await;
    assert_eq!((submit.subject.as_str(), submit.msg_id), ("groupA", job.id()));
    assert_eq!(submit.payload, b"\x00\xffraw");
    peer.send(Kind::Result, job.id(), job.id(), "", b"\xfe").await;
    assert_eq!(&timeout(PATIENCE, job.wait_raw()).await.unwrap().unwrap()[..], b"\xfe");

    let mut odd = client.submit(calc()).await.unwrap();
    peer.next().await;
    peer.send(Kind::Result, odd.id(), odd.id(), "", b"no json").await;
    assert!(matches!(end(&mut odd).await, Err(JobError::BadResult { .. })));
}

#[tokio::test]
async fn rd02_a_redirect_is_followed_at_once_with_the_jobs() {
    let (follower, leader) = (FakeLeader::start().await, FakeLeader::start().await);
    // A back-off that no test would wait for: following a redirect must not use it.
    let slow = Backoff { first: 6 * PATIENCE, max: 6 * PATIENCE, jitter_percent: 0 };
    let options = Options { backoff: slow, ..options() };
    let client = Client::start(&follower.address, &options).unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let mut peer = follower.accept().await;
    let elsewhere = json!({"leader": leader.address}).to_string();
    peer.send(Kind::NotLeader, Uuid::nil(), Uuid::nil(), "", elsewhere.as_bytes()).await;
    let mut peer = leader.welcome().await;
    let request = peer.next().await.request();
    peer.result(&ok(&request, "here")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "here");
    assert!(matches!(client.state(), LinkState::Up { leader: at, .. } if at == leader.address));
}

#[tokio::test]
async fn rd02_a_follower_without_a_leader_and_a_ring_of_redirects_end_in_the_back_off() {
    let leader = FakeLeader::start().await;
    let client = Client::start(&leader.address, &options()).unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    let mut peer = leader.accept().await;
    peer.send(Kind::NotLeader, Uuid::nil(), Uuid::nil(), "", br#"{"leader":null}"#).await;
    let itself = json!({"leader": leader.address}).to_string();
    for _ in 0..heft::peer::REDIRECTS_MAX + 2 {
        let mut peer = leader.accept().await;
        peer.send(Kind::NotLeader, Uuid::nil(), Uuid::nil(), "", itself.as_bytes()).await;
    }
    let mut peer = leader.welcome().await;
    let request = peer.next().await.request();
    peer.result(&ok(&request, "at last")).await;
    assert_eq!(end(&mut job).await.unwrap().stdout, "at last");
}

#[tokio::test]
async fn a_leader_that_is_stopping_does_not_get_the_job_and_the_next_one_does() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await;
    peer.refused(job.id(), refusal(Reason::DRAINING)).await;
    drop(peer);
    let mut peer = leader.welcome().await;
    let request = peer.next().await.request();
    assert_eq!(request.job_id, job.id());
    peer.result(&ok(&request, "")).await;
    end(&mut job).await.unwrap();
}

#[tokio::test]
async fn an_answer_in_several_parts_is_gathered_and_an_error_is_an_error() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let script = async {
        let ask = peer.next().await;
        assert_eq!((ask.subject.as_str(), ask.question()), ("dlq.ls", json!({"limit": 3})));
        let first = json!({"jobs": [{"job_id": "a", "attempts": 6}, {"job_id": "b"}]});
        peer.answer(&ask, AnswerStatus::MoreFollows, &first).await;
        peer.answer(&ask, AnswerStatus::Whole, &json!({"jobs": [{"job_id": "c"}], "more": true}))
            .await;
        let ask = peer.next().await;
        peer.answer(&ask, AnswerStatus::Error, &json!({"error": "no job c"})).await;
        let ask = peer.next().await;
        peer.answer(&ask, AnswerStatus::Whole, &json!([1])).await;
    };
    let questions = async {
        let page = client.ask(&ask::DlqLs { limit: Some(3), after: None }).await.unwrap().answer;
        let ids: Vec<&str> = page.jobs.iter().map(|job| job.job_id.as_str()).collect();
        assert_eq!((ids, page.jobs[0].attempts, page.more), (vec!["a", "b", "c"], 6, true));
        let refused =
            client.ask(&ask::DlqRequeue { which: Which::One(Uuid::nil()) }).await.unwrap_err();
        assert_eq!(refused, ClientError::Answered("no job c".to_owned()));
        assert!(matches!(client.ask(&ask::Status {}).await, Err(ClientError::BadAnswer { .. })));
    };
    timeout(PATIENCE, async { tokio::join!(script, questions) }).await.unwrap();
}

#[tokio::test]
async fn a_question_whose_connection_ends_fails_and_may_be_asked_again() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let script = async {
        peer.next().await;
        drop(peer);
        let mut peer = leader.welcome().await;
        let ask = peer.next().await;
        peer.answer(&ask, AnswerStatus::Whole, &json!({"purged": 2})).await;
        peer
    };
    let questions = async {
        let purge = ask::DlqPurge { which: Which::All };
        let lost = client.ask(&purge).await.unwrap_err();
        assert!(
            matches!(&lost, ClientError::Disconnected { .. }) && lost.is_retryable(),
            "{lost:?}"
        );
        assert_eq!(client.ask(&purge).await.unwrap().answer.purged, 2);
    };
    timeout(PATIENCE, async { tokio::join!(script, questions) }).await.unwrap();
}

#[tokio::test]
async fn cancelling_is_told_to_the_leader_and_again_after_a_reconnect() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, mut peer) =
        tokio::join!(Client::connect(&leader.address, &options), leader.welcome());
    let client = client.unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    peer.next().await;
    job.cancel("not needed").await;
    let cancel = peer.next().await;
    assert_eq!((cancel.kind(), cancel.msg_id), (Kind::Cancel, job.id()));
    assert_eq!(Cancel::decode(&cancel.payload).unwrap().text.as_str(), "not needed");
    drop(peer);
    let mut peer = leader.welcome().await;
    let request = peer.next().await.request();
    assert_eq!(peer.next().await.kind(), Kind::Cancel);
    let mut cancelled = ok(&request, "");
    cancelled.status = JobStatus::Failed;
    cancelled.stderr = "cancelled".to_owned();
    peer.result(&cancelled).await;
    assert_eq!(end(&mut job).await.unwrap().stderr, "cancelled");
    assert!(!client.cancel(job.id(), "too late").await);
}

#[tokio::test]
async fn a_job_that_no_leader_has_seen_is_cancelled_on_the_spot() {
    let unreachable = Client::start("127.0.0.1:1", &options()).unwrap();
    let mut job = unreachable.submit(calc()).await.unwrap();
    assert!(unreachable.cancel(job.id(), "never mind").await);
    assert_eq!(end(&mut job).await, Err(JobError::CancelledUnsent { job: job.id() }));
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_it_is_taken() {
    let client = Client::start("127.0.0.1:1", &options()).unwrap();
    let room = 4_194_304 - 39 - "g".len();
    let kept = client.submit_raw("g", vec![0; room]).await.unwrap();
    let over = client.submit_raw("g", vec![0; room + 1]).await.unwrap_err();
    assert_eq!(over, ClientError::TooLarge { bytes: 4_194_305, limit: 4_194_304 });
    let subject = "s".repeat(65_536);
    let long = client.submit_raw(&subject, vec![]).await.unwrap_err();
    assert_eq!(long, ClientError::SubjectTooLong { bytes: 65_536, limit: 65_535 });
    let twice = JobRequest { job_id: kept.id(), ..calc() };
    assert_eq!(client.submit(twice).await.unwrap_err(), ClientError::JobIdInUse(kept.id()));
    assert!(matches!(Client::start("nowhere", &options()), Err(ClientError::BadAddress(_))));
    let long_id = Options::new("c".repeat(4_097));
    assert!(matches!(
        Client::start("127.0.0.1:1", &long_id),
        Err(ClientError::ClientIdTooLong { .. })
    ));
}

#[tokio::test]
async fn a_leader_that_cannot_be_reached_is_said_after_the_wait() {
    let options = Options { connect_wait: Some(Duration::from_millis(50)), ..options() };
    let error = Client::connect("127.0.0.1:1", &options).await.unwrap_err();
    let ClientError::Unreachable { leader, waited_ms, .. } = &error else { panic!("{error:?}") };
    assert_eq!((leader.as_str(), *waited_ms), ("127.0.0.1:1", 50));
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_client_that_is_closed_ends_its_jobs() {
    let client = Client::start("127.0.0.1:1", &options()).unwrap();
    let mut job = client.submit(calc()).await.unwrap();
    client.close().await;
    assert_eq!(end(&mut job).await, Err(JobError::Closed { job: job.id() }));
    assert_eq!(client.submit(calc()).await.unwrap_err(), ClientError::Closed);
}

#[tokio::test]
async fn cl03_several_leaders_get_jobs_in_turn_and_their_results_are_one_stream() {
    let (left, right) = (FakeLeader::start().await, FakeLeader::start().await);
    let leaders = [left.address.clone(), right.address.clone()];
    let options = Options { desired: 5, policy: Policy::RoundRobin, ..options() };
    let mut client = MultiClient::start(&leaders, &options).unwrap();
    let (mut left, mut right) = tokio::join!(left.welcome(), right.welcome());
    assert_eq!(left.hello.config().desired_parallelism, 3, "CP06");
    assert_eq!(right.hello.config().desired_parallelism, 2, "CP06");
    while client.states().iter().any(|state| !state.is_up()) {
        tokio::task::yield_now().await;
    }
    let mut sent = [client.send(calc()).await.unwrap(), client.send(calc()).await.unwrap()];
    let (first, second) = (left.next().await.request(), right.next().await.request());
    assert_eq!([first.job_id, second.job_id], sent);
    right.result(&ok(&second, "right")).await;
    left.result(&ok(&first, "left")).await;
    let mut got = Vec::new();
    for _ in 0..2 {
        let (job, result) = timeout(PATIENCE, client.next()).await.unwrap().unwrap();
        assert_eq!(result.unwrap().job_id, job);
        got.push(job);
    }
    got.sort_unstable();
    sent.sort_unstable();
    assert_eq!(got, sent);
}

#[tokio::test]
async fn cl07_jobs_of_a_leader_that_stays_away_go_to_another_under_the_same_id() {
    let (left, right) = (FakeLeader::start().await, FakeLeader::start().await);
    let leaders = [left.address.clone(), right.address.clone()];
    let options = Options { grace: Duration::from_millis(20), ..options() };
    let mut client = MultiClient::start(&leaders, &options).unwrap();
    let mut gone = left.welcome().await;
    while !client.states()[0].is_up() {
        tokio::task::yield_now().await;
    }
    // The other is not up yet: it is up once it has welcomed.
    let job = client.send(calc()).await.unwrap();
    assert_eq!(gone.next().await.request().job_id, job);
    drop((gone, left));
    let mut right = right.welcome().await;
    let request = right.next().await.request();
    assert_eq!(request.job_id, job);
    right.result(&ok(&request, "moved")).await;
    let (ended, result) = timeout(PATIENCE, client.next()).await.unwrap().unwrap();
    assert_eq!((ended, result.unwrap().stdout.as_str()), (job, "moved"));
}

#[tokio::test]
async fn cl08_the_very_first_connect_is_tried_again_too() {
    let taken = FakeLeader::start().await;
    let address = taken.address.clone();
    drop(taken);
    let mut client = MultiClient::start(std::slice::from_ref(&address), &options()).unwrap();
    let job = client.send(calc()).await.unwrap();
    while !matches!(client.states()[0], LinkState::Down { .. }) {
        tokio::task::yield_now().await;
    }
    let late = FakeLeader::start_at(&address).await;
    let mut peer = late.welcome().await;
    let request = peer.next().await.request();
    peer.result(&ok(&request, "")).await;
    assert_eq!(timeout(PATIENCE, client.next()).await.unwrap().unwrap().0, job);
}

#[tokio::test]
async fn a_client_whose_hello_came_as_another_says_it_again() {
    let leader = FakeLeader::start().await;
    let options = options();
    let (client, peer) = tokio::join!(Client::connect(&leader.address, &options), async {
        let mut peer = leader.accept().await;
        peer.welcome_limited(FEATURES, &[(LimitId::HELLO_CRC32, 1)]).await;
        assert!(peer.poll().await.is_none(), "it takes no answer to what it did not say");
        let mut peer = leader.accept().await;
        let head = Head {
            msg_id: peer.hello.msg_id,
            subject: &peer.hello.subject,
            payload_len: u32::try_from(peer.hello.payload.len()).unwrap(),
            ..Head::new(Kind::HelloClient)
        };
        let crc = head.checksum(Generation::F2, crc32fast::hash(&peer.hello.payload)).unwrap();
        peer.welcome_limited(FEATURES, &[(LimitId::HELLO_CRC32, crc.into())]).await;
        peer
    });
    let client = client.unwrap();
    assert!(matches!(client.state(), LinkState::Up { mode: Mode::Announced { .. }, .. }));
    client.close().await;
    drop(peer);
}
