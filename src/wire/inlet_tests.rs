use super::*;
use crate::wire::Pool;
use chunking::Head;

const ID: Uuid = Uuid::from_u128(7);

fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let payload_len = u32::try_from(payload.len()).unwrap();
    Head { msg_id: ID, payload_len, ..Head::new(kind) }.append(Generation::F2, &mut out).unwrap();
    [out, payload.to_vec()].concat()
}

fn chunk(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let head = ChunkHead::plain(offset, bytes);
    let sent_len = u32::try_from(bytes.len()).unwrap();
    [head.frame_head(ID, sent_len).unwrap().to_vec(), bytes.to_vec()].concat()
}

/// Everything that comes out of a stream that is read in pieces of these sizes, over and over.
fn read(stream: &[u8], pieces: &[usize], take: bool) -> Vec<String> {
    let pool = Pool::new(2);
    let mut inlet = Inlet::detecting(InboundLimits::CLASSIC);
    inlet.stream_over(100_000);
    let (mut rest, mut seen, mut bulk) = (stream, Vec::new(), 0);
    let mut pieces = pieces.iter().cycle();
    loop {
        let came = match inlet.poll().unwrap() {
            Step::Read => {
                if rest.is_empty() {
                    break;
                }
                let mut wanted = (*pieces.next().unwrap()).min(rest.len());
                let mut got = 0;
                for mut room in inlet.room() {
                    let part = wanted.min(room.len());
                    room[..part].copy_from_slice(&rest[..part]);
                    rest = &rest[part..];
                    wanted -= part;
                    got += part;
                }
                assert!(got > 0, "there is always room");
                inlet.filled(got);
                continue;
            }
            Step::Frame(_, frame) => {
                format!("{} {}", frame.head.kind().unwrap(), frame.payload.len())
            }
            Step::Chunk(start) => {
                match take {
                    true if start.head.offset == 0 => inlet.take_unchecked(pool.take().unwrap()),
                    true => inlet.take(pool.take().unwrap()),
                    false => inlet.skip(),
                }
                format!("chunk at {} of {}", start.head.offset, start.sent_len)
            }
            Step::Came(chunk) => {
                let crc = crc32fast::hash(&chunk.bytes);
                assert!(chunk.crc.is_none_or(|made| made == crc));
                format!("came {} {}", chunk.bytes.len(), chunk.head.check_sent(crc).is_ok())
            }
            Step::Bulk(_, head) => format!("bulk of {}", head.payload_len),
            Step::Piece(piece) => {
                bulk += piece.len();
                continue;
            }
            Step::BulkEnd => format!("bulk was {}", std::mem::take(&mut bulk)),
        };
        seen.push(came);
    }
    inlet.finish().unwrap();
    assert_eq!(pool.in_use(), 0);
    seen
}

#[test]
fn chunks_frames_and_large_frames_come_apart_however_they_are_cut() {
    let noise = crate::noise::noise(300_000, 1);
    let mut broken = chunk(1 << 20, &noise[..70_000]);
    broken[64 + 5] ^= 1;
    let stream = [
        frame(Kind::HelloWorker, b""),
        frame(Kind::Heartbeat, &noise[..5000]),
        chunk(0, &noise),
        chunk(3 << 20, b"x"),
        frame(Kind::Done, &noise[..34]),
        broken,
        frame(Kind::Chunk, b"no head"),
        frame(Kind::AckJob, &noise[..250_000]),
        frame(Kind::AckJob, b"small"),
    ]
    .concat();
    let expected = [
        "HelloWorker 0",
        "Heartbeat 5000",
        "chunk at 0 of 300000",
        "came 300000 true",
        "chunk at 3145728 of 1",
        "came 1 true",
        "Done 34",
        "chunk at 1048576 of 70000",
        "came 70000 false",
        "Chunk 7",
        "bulk of 250000",
        "bulk was 250000",
        "AckJob 5",
    ];
    for pieces in [&[1usize, 63, 64, 65][..], &[100_000], &[7, 5000, 300_000, 2], &[usize::MAX]] {
        assert_eq!(read(&stream, pieces, true), expected, "{pieces:?}");
        let skipped: Vec<&str> =
            expected.into_iter().filter(|line| !line.starts_with("came")).collect();
        assert_eq!(read(&stream, pieces, false), skipped, "{pieces:?}");
    }
}

#[test]
fn a_chunk_longer_than_a_buffer_passes_by() {
    let head = ChunkHead { raw_len: 3 << 20, ..ChunkHead::plain(0, b"") };
    let long = [head.frame_head(ID, 3 << 20).unwrap().to_vec(), vec![1; 3 << 20]].concat();
    let stream = [frame(Kind::HelloWorker, b""), long, frame(Kind::Credit, b"")].concat();
    let seen = read(&stream, &[100_000], true);
    assert_eq!(seen, ["HelloWorker 0", "chunk at 0 of 3145728", "Credit 0"]);
}

fn feed(inlet: &mut Inlet, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut room = inlet.room();
        let len = room[0].len().min(bytes.len());
        room[0][..len].copy_from_slice(&bytes[..len]);
        bytes = &bytes[len..];
        inlet.filled(len);
    }
}

#[test]
fn who_passes_a_chunk_on_reads_it_and_leaves_off_where_it_likes() {
    let noise: Vec<u8> = (0..100_000u32).map(|at| at.to_le_bytes()[1]).collect();
    let credit = frame(Kind::Credit, b"");
    // What the caller reads of it: all, a part, nothing.
    for passed in [100_000u32, 60_000, 1000] {
        let pool = Pool::new(1);
        let mut front = pool.take().unwrap();
        let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED);
        let wire = chunk(0, &noise);
        feed(&mut inlet, &wire[..64 + 1000]);
        let Step::Chunk(start) = inlet.poll().unwrap() else { panic!() };
        assert_eq!(inlet.begin_splice(&mut front), 1000, "what is here already");
        assert_eq!(front[..1000], noise[..1000]);
        // The caller reads up to here; the rest comes by way of the inlet and is dropped.
        inlet.end_splice(passed);
        let rest = &wire[64 + passed as usize..];
        for piece in rest.chunks(4096) {
            assert!(matches!(inlet.poll().unwrap(), Step::Read));
            feed(&mut inlet, piece);
        }
        assert!(matches!(inlet.poll().unwrap(), Step::Read));
        assert_eq!(inlet.room()[0].len(), CHUNK_FRAME_HEAD_BYTES, "another chunk is likely");
        feed(&mut inlet, &credit);
        let Step::Frame(_, frame) = inlet.poll().unwrap() else { panic!("{passed}") };
        assert_eq!(frame.head.kind().unwrap(), Kind::Credit);
        assert_eq!((start.sent_len, pool.bytes_copied()), (100_000, 1000));
    }
}

#[test]
fn what_is_here_of_a_chunk_that_breaks_off_can_be_kept_but_not_of_one_that_was_passed_on() {
    let noise: Vec<u8> = (0..100_000u32).map(|at| at.to_le_bytes()[1]).collect();
    let wire = chunk(0, &noise);
    let pool = Pool::new(1);
    let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    assert_eq!(inlet.cut(), None);
    feed(&mut inlet, &wire[..64 + 1000]);
    let Step::Chunk(start) = inlet.poll().unwrap() else { panic!() };
    assert_eq!(inlet.cut(), None, "nobody took it");
    inlet.take(pool.take().unwrap());
    feed(&mut inlet, &wire[64 + 1000..64 + 70_000]);
    let part = inlet.cut().unwrap();
    assert_eq!((part.transfer, part.head, part.sent_len), (ID, start.head, 100_000));
    assert_eq!(part.bytes(), &noise[..70_000]);
    drop(inlet);
    let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    feed(&mut inlet, &wire[..64]);
    let Step::Chunk(_) = inlet.poll().unwrap() else { panic!() };
    let mut buffer = pool.take().unwrap();
    inlet.begin_splice(&mut buffer);
    assert_eq!(inlet.cut(), None);
    inlet.take_rest(buffer, 10_000, 40_000);
    assert_eq!(inlet.cut(), None, "its front is elsewhere");
}

#[test]
fn between_chunks_nothing_of_a_chunk_is_read_anywhere_but_into_its_buffer() {
    let noise: Vec<u8> = (0..200_000u32).map(|at| at.to_le_bytes()[1]).collect();
    // Frames of all sizes between chunks: shorter than a chunk's head, a little longer, and long
    // ones.
    let parts = [
        frame(Kind::Open, &noise[..80]),
        chunk(0, &noise),
        frame(Kind::Credit, &noise[..4]),
        chunk(1 << 20, &noise),
        frame(Kind::Heartbeat, &noise[..30]),
        frame(Kind::SubmitJob, &noise[..150_000]),
        frame(Kind::Credit, &noise[..4]),
        chunk(2 << 20, &noise),
        chunk(3 << 20, &noise[..1]),
        frame(Kind::Done, &noise[..34]),
    ];
    let stream = parts.concat();
    let pool = Pool::new(1);
    let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    inlet.expect_chunks(true);
    let (mut rest, mut came) = (stream.as_slice(), 0);
    loop {
        match inlet.poll().unwrap() {
            Step::Read if rest.is_empty() => break,
            Step::Read => {
                // All that is asked for is there at once.
                let mut got = 0;
                for mut room in inlet.room() {
                    let part = rest.len().min(room.len());
                    room[..part].copy_from_slice(&rest[..part]);
                    rest = &rest[part..];
                    got += part;
                }
                inlet.filled(got);
            }
            Step::Frame(..) => inlet.expect_chunks(true),
            Step::Chunk(_) => inlet.take(pool.take().unwrap()),
            Step::Came(chunk) => {
                assert!(chunk.head.check_sent(chunk.crc()).is_ok());
                came += 1;
            }
            Step::Bulk(..) | Step::Piece(_) | Step::BulkEnd => panic!("nothing is that large"),
        }
    }
    inlet.finish().unwrap();
    assert_eq!((came, pool.bytes_copied()), (4, 0));
}

#[test]
fn the_rest_of_a_chunk_is_read_behind_what_was_not_passed_on_yet() {
    let noise: Vec<u8> = (0..100_000u32).map(|at| at.to_le_bytes()[1]).collect();
    let pool = Pool::new(1);
    let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    let wire = chunk(0, &noise);
    feed(&mut inlet, &wire[..64]);
    let Step::Chunk(_) = inlet.poll().unwrap() else { panic!() };
    let mut buffer = pool.take().unwrap();
    assert_eq!(inlet.begin_splice(&mut buffer), 0);
    // 70,000 bytes were read by the caller, and the last 10,000 of them are still in its hands.
    buffer.room(0..10_000).unwrap().copy_from_slice(&noise[60_000..70_000]);
    inlet.take_rest(buffer, 10_000, 40_000);
    for piece in wire[64 + 70_000..].chunks(7000) {
        assert!(matches!(inlet.poll().unwrap(), Step::Read));
        feed(&mut inlet, piece);
    }
    let Step::Came(chunk) = inlet.poll().unwrap() else { panic!() };
    assert_eq!(chunk.bytes, noise[60_000..]);
    assert_eq!(chunk.crc, None);
    assert!(matches!(inlet.poll().unwrap(), Step::Read));
    inlet.finish().unwrap();
}
