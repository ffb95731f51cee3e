use super::*;
use crate::peer::PROBE_BACKOFF;
use bytes::Bytes;
use chunking::message::LimitId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

const MS: Duration = Duration::from_millis(1);
const WELCOME_WAIT: Duration = Duration::from_millis(50);

fn encoded(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    let head = chunking::Head { payload_len: len, ..chunking::Head::new(kind) };
    let mut out = Vec::new();
    head.append(chunking::Generation::F2, &mut out).unwrap();
    [&out[..], payload].concat()
}

fn welcome(features: Features) -> Vec<u8> {
    let limits = [(LimitId::HEARTBEAT_MS, 100), (LimitId::SILENCE_MS, 60_000)];
    let (leader, software) = (Uuid::from_u128(1), "test".to_owned().try_into().unwrap());
    let welcome = Welcome { leader, software, features, limits: limits.into_iter().collect() };
    let mut payload = Vec::new();
    welcome.encode(&mut payload);
    encoded(Kind::Welcome, &payload)
}

/// An uplink whose hello has been read.
async fn greeted(signs: OwnSigns) -> (Uplink, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Settings {
        leader: listener.local_addr().unwrap().to_string(),
        tuning: Tuning::default(),
        connect_max: Duration::from_secs(10),
        patience: Patience {
            wait: WELCOME_WAIT,
            wait_max: 1000 * WELCOME_WAIT,
            probe: PROBE_BACKOFF,
        },
        backoff: Backoff::CONNECT,
        signs,
    };
    let mut uplink = Uplink::new(settings, || OutFrame::new(Kind::HelloClient, &b"hello"[..]));
    let (news, accepted) = tokio::join!(uplink.next(|| false), listener.accept());
    assert!(matches!(news, News::Greeted), "{news:?}");
    let (mut leader, _) = accepted.unwrap();
    let mut hello = vec![0; encoded(Kind::HelloClient, b"hello").len()];
    leader.read_exact(&mut hello).await.unwrap();
    (uplink, leader)
}

#[tokio::test]
async fn half_a_welcome_is_waited_for_and_makes_no_leader_a_classic_one() {
    let (mut uplink, mut leader) = greeted(OwnSigns::Keepalives).await;
    let welcome = welcome(Features::default());
    // First too little to see what it is, then too little to be whole.
    for (from, to) in [(0, 3), (3, welcome.len() - 1)] {
        leader.write_all(&welcome[from..to]).await.unwrap();
        let early = timeout(3 * WELCOME_WAIT, uplink.next(|| false)).await;
        assert!(early.is_err(), "{early:?}");
    }
    leader.write_all(&welcome[welcome.len() - 1..]).await.unwrap();
    let news = uplink.next(|| false).await;
    assert!(matches!(news, News::Welcome(_)), "{news:?}");
}

#[tokio::test]
async fn half_of_another_frame_is_no_half_welcome() {
    let (mut uplink, mut leader) = greeted(OwnSigns::Heartbeats).await;
    let put = encoded(Kind::CachePut, &[0; 1000]);
    leader.write_all(&put[..500]).await.unwrap();
    let news = uplink.next(|| false).await;
    assert!(matches!(news, News::Classic), "{news:?}");
    leader.write_all(&put[500..]).await.unwrap();
    let news = uplink.next(|| false).await;
    assert!(matches!(&news, News::Frame(frame) if frame.payload.len() == 1000), "{news:?}");
}

#[tokio::test]
async fn a_welcome_that_cannot_be_read_ends_the_connection() {
    let (mut uplink, mut leader) = greeted(OwnSigns::Heartbeats).await;
    leader.write_all(&encoded(Kind::Welcome, b"?")).await.unwrap();
    let news = uplink.next(|| false).await;
    assert!(matches!(&news, News::Lost { why, .. } if why.contains("cannot be read")), "{news:?}");
}

#[tokio::test]
async fn keepalives_are_sent_unless_heartbeats_show_that_the_peer_lives() {
    let with_leases = Features::KEEPALIVE.with(Features::LEASES);
    for (signs, features, sends) in [
        (OwnSigns::Keepalives, with_leases, true),
        (OwnSigns::Heartbeats, with_leases, false),
        // Where no heartbeats are known, a worker has to show it so.
        (OwnSigns::Heartbeats, Features::KEEPALIVE, true),
    ] {
        let (mut uplink, mut leader) = greeted(signs).await;
        leader.write_all(&welcome(features)).await.unwrap();
        assert!(matches!(uplink.next(|| false).await, News::Welcome(_)));
        let quiet = timeout(500 * MS, uplink.next(|| false)).await;
        assert!(quiet.is_err(), "{quiet:?}");
        let mut came = vec![0; 64];
        let read = leader.try_read(&mut came).unwrap_or(0);
        assert_eq!(read > 0, sends, "{signs:?} {features:?}");
    }
}

#[tokio::test]
async fn what_came_before_a_broken_connection_ended_is_read_and_a_redirect_in_it_is_followed() {
    let (mut uplink, mut leader) = greeted(OwnSigns::Heartbeats).await;
    let named = br#"{"leader":"127.0.0.1:9"}"#;
    let frames = [encoded(Kind::Result, b"a result"), encoded(Kind::NotLeader, named)].concat();
    leader.write_all(&frames).await.unwrap();
    uplink.broke("it took nothing".to_owned());
    assert!(uplink.is_ending() && uplink.writer().is_none());
    let news = uplink.next(|| false).await;
    assert!(
        matches!(&news, News::Frame(frame) if frame.payload == Bytes::from_static(b"a result")),
        "{news:?}"
    );
    let news = uplink.next(|| false).await;
    assert!(matches!(news, News::Lost { retry_in: Duration::ZERO, .. }), "{news:?}");
    assert_eq!(uplink.address(), "127.0.0.1:9");
}
