use super::*;
use chunking::Decoder;
use chunking::frame::Trailers;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

fn summed(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let frame = OutFrame::new(kind, payload.to_vec());
    let (head, trailer) = frame.encoded(Some(crc32fast::hash(payload))).unwrap();
    [&head[..], payload, &trailer].concat()
}

#[tokio::test]
async fn checksums_begin_behind_the_welcome_and_are_missed_and_compared_from_then_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, tuning) = (listener.local_addr().unwrap(), Tuning::default());
    let (link, leader) = tokio::join!(connect(addr, &tuning), listener.accept());
    let ((mut reader, writer), (mut leader, _)) = (link.unwrap(), leader.unwrap());
    // A classic frame on either side of a Welcome that comes late.
    writer.send(OutFrame::new(Kind::HelloClient, &b"hello"[..])).await.unwrap();
    let (early, _) = OutFrame::new(Kind::Result, Bytes::new()).encoded(None).unwrap();
    leader.write_all(&early).await.unwrap();
    leader.write_all(&summed(Kind::Welcome, b"welcome")).await.unwrap();
    let mut next = async || match reader.next().await {
        Ok(Some(Item::Frame(frame))) => Ok(frame.kind()),
        Ok(Some(Item::Chunk(_)) | None) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(next().await, Ok(Some(Kind::Result)));
    assert_eq!(next().await, Ok(Some(Kind::Welcome)));
    writer.send(OutFrame::new(Kind::SubmitJob, &b"a job"[..])).await.unwrap();
    leader.write_all(&summed(Kind::Result, b"a result")).await.unwrap();
    assert_eq!(next().await, Ok(Some(Kind::Result)));

    let (mut came, mut kinds) = (Vec::new(), Vec::new());
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    decoder.set_trailers(Trailers::Announced);
    while kinds.len() < 3 {
        leader.read_buf(&mut came).await.unwrap();
        let mut rest = &came[..];
        while let Some(frame) = decoder.poll_frame(&mut rest).unwrap() {
            kinds.push((frame.head.kind().unwrap(), frame.payload_crc.is_some()));
        }
        came = rest.to_vec();
    }
    assert_eq!(kinds, [(Kind::HelloClient, false), (Kind::Welcome, true), (Kind::SubmitJob, true)]);

    let mut damaged = summed(Kind::Result, b"a result");
    damaged[50] ^= 4;
    leader.write_all(&damaged).await.unwrap();
    let error = next().await.unwrap_err();
    assert!(error.contains("a frame was damaged on the way: as Result"), "{error}");
}

#[tokio::test]
async fn a_leader_without_checksums_is_sent_none() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, tuning) = (listener.local_addr().unwrap(), Tuning::default());
    let (link, leader) = tokio::join!(connect(addr, &tuning), listener.accept());
    let ((mut reader, writer), (mut leader, _)) = (link.unwrap(), leader.unwrap());
    let (welcome, _) = OutFrame::new(Kind::Welcome, Bytes::new()).encoded(None).unwrap();
    leader.write_all(&welcome).await.unwrap();
    assert!(matches!(reader.next().await, Ok(Some(Item::Frame(_)))));
    let frame = OutFrame::new(Kind::SubmitJob, &b"a job"[..]);
    let expected = [&frame.encoded(None).unwrap().0[..], b"a job"].concat();
    writer.send(frame).await.unwrap();
    let mut came = vec![0; expected.len() + 4];
    leader.read_exact(&mut came[..expected.len()]).await.unwrap();
    assert_eq!(came[..expected.len()], expected);
    // What has one all the same is not what was sent.
    leader.write_all(&summed(Kind::Result, b"a result")).await.unwrap();
    assert!(matches!(reader.next().await, Err(LinkError::Frame(error)) if error.is_damage()));
}

async fn pair() -> (LinkReader, LinkWriter, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, tuning) = (listener.local_addr().unwrap(), Tuning::default());
    let (link, leader) = tokio::join!(connect(addr, &tuning), listener.accept());
    let ((reader, writer), (leader, _)) = (link.unwrap(), leader.unwrap());
    (reader, writer, leader)
}

#[tokio::test]
async fn an_idle_leader_with_checksums_and_without_keepalive_is_not_taken_for_one_that_takes_nothing()
 {
    let (mut reader, writer, mut leader) = pair().await;
    leader.write_all(&summed(Kind::Welcome, b"welcome")).await.unwrap();
    assert!(matches!(reader.next().await, Ok(Some(Item::Frame(_)))));
    assert!(!writer.queue_locked().pieces.is_empty(), "what goes out with the first frame");
    let stall = Duration::from_millis(100);
    let watch = end_if_stalled(Arc::downgrade(&writer.0), stall);
    assert!(tokio::time::timeout(4 * stall, watch).await.is_err(), "it was given up");
}

#[tokio::test]
async fn a_leader_that_takes_nothing_is_given_up_when_it_sends_nothing_either() {
    let (mut reader, writer, mut leader) = pair().await;
    let floods = tokio::spawn({
        let (writer, frame) = (writer.clone(), OutFrame::new(Kind::SubmitJob, vec![0; 1 << 20]));
        async move { while writer.send(frame.clone()).await.is_ok() {} }
    });
    let reads = tokio::spawn(async move { while let Ok(Some(_)) = reader.next().await {} });
    let stall = Duration::from_millis(600);
    let mut watch = std::pin::pin!(end_if_stalled(Arc::downgrade(&writer.0), stall));
    let (answer, _) = OutFrame::new(Kind::Result, Bytes::new()).encoded(None).unwrap();
    for _ in 0..40 {
        leader.write_all(&answer).await.unwrap();
        let early = tokio::time::timeout(stall / 12, watch.as_mut()).await;
        assert!(early.is_err(), "it was given up while it sent something");
    }
    watch.await;
    reads.await.unwrap();
    floods.await.unwrap();
}

#[tokio::test]
async fn who_writes_to_a_connection_that_nobody_reads_any_more_is_not_held_up_by_it() {
    let (reader, writer, _leader) = pair().await;
    let floods = tokio::spawn(async move {
        let frame = OutFrame::new(Kind::SubmitJob, vec![0; 1 << 20]);
        while writer.send(frame.clone()).await.is_ok() {}
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(reader);
    tokio::time::timeout(WRITE_STALL_TIMEOUT / 3, floods).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_frame_has_its_time_anew_when_we_had_no_buffer_for_it() {
    let (mut reader, _writer, mut leader) = pair().await;
    let window = Duration::from_millis(800);
    reader.pulse = Pulse::with_window(window);
    let head = ChunkHead::plain(0, b"data").frame_head(Uuid::from_u128(1), 4).unwrap();
    let mut held = Vec::new();
    for _ in 0..BUFFERS_MAX {
        leader.write_all(&[&head[..], b"data"].concat()).await.unwrap();
        held.push(reader.next().await.unwrap().unwrap());
    }
    // It begins, and is waited for; then there is no room for it, for longer than it may take.
    let next = tokio::spawn(async move { reader.next().await.map(|_| ()) });
    leader.write_all(&head[..10]).await.unwrap();
    tokio::time::sleep(window / 8).await;
    leader.write_all(&head[10..]).await.unwrap();
    tokio::time::sleep(window + window / 4).await;
    drop(held);
    tokio::time::sleep(window / 3).await;
    leader.write_all(b"data").await.unwrap();
    next.await.unwrap().unwrap();
}
