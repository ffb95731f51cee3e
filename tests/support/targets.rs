//! The fuzz targets: plain functions over bytes that must return whatever they are given.
//!
//! `tests/fuzz.rs` drives them on stable with mutated vectors; the crate in `fuzz/` hands the same
//! functions to libFuzzer. They assert what holds for any input; a panic of theirs is a finding.
#![allow(unreachable_pub)]

use chunking::dataset::{Manifest, ManifestBuilder, pack};
use chunking::frame::Trailers;
use chunking::{
    ChunkHead, ChunkPlan, Codec, Decoder, Generation, InboundLimits, Inflater, Kind, Message, Step,
};

use heft::model::{
    CachePutRequest, CachePutResult, ClientConfig, ContentEvent, ContentStream, JobRequest,
    JobResult, JsonModel, ModelError, Shape, WorkerHello,
};

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const ALL: &[Target] = &[
    ("decoder", decoder),
    ("messages", messages),
    ("chunks", chunks),
    ("inflate", inflate),
    ("json", json),
    ("manifest", manifest),
    ("pack", pack),
];

/// A connection's bytes, in one piece and in two, for every way a decoder can start.
pub fn decoder(bytes: &[u8]) {
    let cut = bytes.first().map_or(0, |first| usize::from(*first) % (bytes.len() + 1));
    let starts = [
        Decoder::detecting(InboundLimits::CLASSIC),
        Decoder::detecting(InboundLimits::ANNOUNCED),
        Decoder::speaking(Generation::F0, InboundLimits::CLASSIC),
        Decoder::speaking(Generation::F1, InboundLimits::ANNOUNCED),
        Decoder::speaking(Generation::F2, InboundLimits::CLASSIC),
    ];
    let trailers = [Trailers::Offered, Trailers::Announced, Trailers::Absent, Trailers::Required];
    let checking = trailers.map(|trailers| {
        let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
        decoder.set_trailers(trailers);
        decoder
    });
    for start in starts.into_iter().chain(checking) {
        let whole = drain(&mut start.clone(), bytes).map(|(frames, _)| frames);
        // Cut anywhere, the same frames come out: the second call sees what the first left.
        let mut decoder = start.clone();
        let in_two = drain(&mut decoder, &bytes[..cut]).and_then(|(before, left)| {
            let (after, _) = drain(&mut decoder, &bytes[cut - left..])?;
            Ok(before + after)
        });
        match (whole, in_two) {
            (Ok(whole), Ok(in_two)) => assert_eq!(whole, in_two),
            (Err(_), Err(_)) => {}
            (whole, in_two) => panic!("in one piece {whole:?}, in two {in_two:?}"),
        }
    }
}

/// Reads until the decoder waits or fails; gives the frames that ended and the bytes that were
/// left.
fn drain(decoder: &mut Decoder, bytes: &[u8]) -> Result<(usize, usize), chunking::FrameError> {
    let (mut rest, mut frames) = (bytes, 0);
    loop {
        match decoder.poll(&mut rest)? {
            Step::NeedMore { bytes } => {
                assert!(bytes > rest.len(), "asks for what it has");
                return Ok((frames, rest.len()));
            }
            Step::Head(head) => assert!(head.subject.len() <= bytes.len()),
            Step::Payload(piece) => assert!(!piece.is_empty() && piece.len() <= bytes.len()),
            Step::End { .. } => frames += 1,
        }
    }
}

/// The bytes as the payload of every kind of message; what decodes must survive the way back.
pub fn messages(bytes: &[u8]) {
    for kind in Kind::ALL {
        if let Ok(message) = Message::decode(*kind, bytes) {
            let mut again = Vec::new();
            message.encode(&mut again);
            assert_eq!(Message::decode(*kind, &again).as_ref(), Ok(&message));
        }
    }
    chunking::message::parse_credit(bytes).ok();
}

/// The bytes as the payload of a chunk, for plans that might take it.
pub fn chunks(bytes: &[u8]) {
    let Ok((head, sent)) = ChunkHead::decode(bytes) else { return };
    assert_eq!(head.encode(), bytes[..21]);
    let sent_len = u32::try_from(sent.len()).unwrap_or(u32::MAX);
    let sizes = [0, head.offset.saturating_add(u64::from(head.raw_len)), u64::MAX];
    for (size, chunk_bytes) in
        sizes.into_iter().flat_map(|size| [(size, 4096), (size, 1 << 20), (size, head.raw_len)])
    {
        let Ok(plan) = ChunkPlan::new(size, chunk_bytes) else { continue };
        if let Ok(index) = plan.check(&head, sent_len) {
            assert!(index < plan.count() && plan.len_of(index) == head.raw_len);
            let mut scratch = Vec::new();
            if let Ok(raw) = head.raw(sent, &mut Inflater::new(), &mut scratch) {
                assert_eq!(raw.len(), head.raw_len as usize);
            }
        }
    }
}

/// The bytes as a compressed chunk. The first byte picks the codec and the room.
pub fn inflate(bytes: &[u8]) {
    let Some((first, sent)) = bytes.split_first() else { return };
    let codec = Codec::ALL[usize::from(*first) % 4];
    let mut raw = vec![0; 1 << (usize::from(*first >> 2) % 16)];
    let mut inflater = Inflater::new();
    let once = inflater.inflate(codec, sent, &mut raw);
    assert_eq!(inflater.inflate(codec, sent, &mut raw), once, "the same bytes, the same answer");
}

/// The bytes as each of the models, whole and as a stream.
pub fn json(bytes: &[u8]) {
    let job_request = survives::<JobRequest>(bytes);
    let job_result = survives::<JobResult>(bytes);
    let cache_put = survives::<CachePutRequest>(bytes);
    survives::<CachePutResult>(bytes);
    survives::<ClientConfig>(bytes);
    survives::<WorkerHello>(bytes);
    agrees::<JobRequest>(bytes, Shape::JobRequest, job_request);
    agrees::<JobResult>(bytes, Shape::JobResult, job_result);
    agrees::<CachePutRequest>(bytes, Shape::CachePutRequest, cache_put);
}

/// What parses survives the way back. Says whether it parsed.
fn survives<M: JsonModel + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
    let Ok(model) = M::parse(bytes) else { return false };
    assert_eq!(M::parse(&model.to_json()).as_ref(), Ok(&model));
    true
}

/// The stream takes what the plain reader takes, but for bad base64 in a member that a later one
/// replaces: it has decoded that before it can know. Of a result it takes more: texts that are
/// spelled wrong.
fn agrees<M: JsonModel>(bytes: &[u8], shape: Shape, parsed: bool) {
    let mut stream = ContentStream::new(shape);
    let mut given = 0;
    let mut sink = |event: ContentEvent<'_>| {
        if let ContentEvent::Bytes { bytes, .. } = event {
            given += bytes.len();
        }
    };
    let (front, back) = bytes.split_at(bytes.len() / 2);
    let streamed = stream.push(front, &mut sink).and_then(|()| stream.push(back, &mut sink));
    let streamed =
        streamed.and_then(|()| stream.finish()).and_then(|residue| M::parse(&residue.json));
    assert!(given <= bytes.len(), "more content than there were bytes");
    match streamed {
        Ok(_) => assert!(parsed || shape == Shape::JobResult, "only the stream takes it"),
        Err(ModelError::BadBase64 { .. }) => {}
        Err(error) => assert!(!parsed, "only the stream refuses it: {error}"),
    }
}

/// The bytes as a dataset's manifest, as they are and behind a front that is right. What is taken
/// fits together, and is written back to the same bytes.
pub fn manifest(bytes: &[u8]) {
    let mut right = b"HFMF\x02\0\0\0".to_vec();
    right.extend_from_slice(bytes.get(right.len()..).unwrap_or_default());
    for bytes in [bytes, &right] {
        let Ok(manifest) = Manifest::decode(bytes) else { continue };
        assert_eq!(manifest.encode(), bytes);
        let mut builder = ManifestBuilder::default();
        for file in manifest.files() {
            let mut end = 0;
            for (at, place, piece) in manifest.layout(file) {
                assert_eq!((at, Some(&piece)), (end, manifest.pieces().get(place as usize)));
                end += u64::from(piece.len);
            }
            assert_eq!(end, file.size, "the pieces are the file");
            let pieces = manifest.layout(file).map(|(_, _, piece)| piece).collect();
            builder.file(file.name.as_str(), file.sha256, pieces);
        }
        // Cut in another way it would be the same content.
        assert_eq!(builder.finish().map(|again| again.digest()).as_ref(), Ok(&manifest.digest()));
    }
}

/// The bytes as the end of a pack, as they are and with a footer that is right, for sizes that it
/// might have.
pub fn pack(bytes: &[u8]) {
    let footer = bytes.len().saturating_sub(pack::FOOTER_BYTES);
    let entries = &bytes[..footer];
    let count = u32::try_from(footer / chunking::dataset::Piece::ENTRY_BYTES).unwrap_or(u32::MAX);
    let crc = crc32fast::hash(entries).to_le_bytes();
    let right = [entries, b"HFPK\x02\0\0\0", &count.to_le_bytes(), &crc].concat();
    for tail in [bytes, &right] {
        // What the pieces have together, if they are what the last four bytes of each entry say.
        let lengths = entries.chunks_exact(chunking::dataset::Piece::ENTRY_BYTES);
        let data: u64 = lengths
            .filter_map(|entry| entry.last_chunk::<4>())
            .map(|len| u64::from(u32::from_le_bytes(*len)))
            .sum();
        for size in [0, tail.len() as u64, data + tail.len() as u64, u64::MAX] {
            let Ok(layout) = pack::Layout::from_tail(tail, size) else { continue };
            assert_eq!((layout.size(), layout.tail().as_slice()), (size, tail));
            assert_eq!(layout.data_bytes() + tail.len() as u64, size);
            for (place, piece) in layout.pieces().iter().enumerate() {
                let range = layout.range(place).unwrap_or_default();
                assert_eq!(range.end - range.start, u64::from(piece.len));
                assert_eq!(layout.pieces_in(range), place..place + 1);
            }
        }
    }
}
