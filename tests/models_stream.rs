//! The content stream, rule by rule (C01, W06, M14): what it hands out, what it leaves, what it
//! refuses. `models_properties.rs` holds it against the ordinary reader.

// clippy.toml excuses test functions; their helpers stand outside of them.
#![allow(clippy::expect_used, clippy::panic)]

use heft::model::limits::{CONTENT_PIECE_BYTES_MAX, LIST_ITEMS_MAX, RESIDUE_BYTES_MAX};
use heft::model::{ContentEvent, ContentStream, JobRequest, JsonModel, ModelError, Residue, Shape};

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Begin(usize),
    Bytes(usize, Vec<u8>),
    End(usize, u64),
}

fn stream(
    shape: Shape,
    payload: &[u8],
    piece_bytes: usize,
) -> (Vec<Seen>, Result<Residue, ModelError>) {
    let mut stream = ContentStream::new(shape);
    let mut seen = Vec::new();
    for piece in payload.chunks(piece_bytes) {
        let pushed = stream.push(piece, &mut |event| match event {
            ContentEvent::Begin { slot } => seen.push(Seen::Begin(slot)),
            ContentEvent::End { slot, len } => seen.push(Seen::End(slot, len)),
            ContentEvent::Bytes { slot, bytes } => match seen.last_mut() {
                Some(Seen::Bytes(last, held)) if *last == slot => held.extend_from_slice(bytes),
                Some(_) | None => seen.push(Seen::Bytes(slot, bytes.to_vec())),
            },
        });
        if let Err(error) = pushed {
            return (seen, Err(error));
        }
    }
    (seen, stream.finish())
}

/// Streams the payload whole, and byte by byte, which must make no difference.
fn both(shape: Shape, payload: &str) -> (Vec<Seen>, Result<Residue, ModelError>) {
    let whole = stream(shape, payload.as_bytes(), usize::MAX);
    assert_eq!(stream(shape, payload.as_bytes(), 1), whole, "{payload}");
    whole
}

fn residue(shape: Shape, payload: &str) -> (Vec<Seen>, String, Vec<Option<u64>>) {
    let (seen, residue) = both(shape, payload);
    let residue = residue.unwrap_or_else(|error| panic!("{error}: {payload}"));
    (seen, String::from_utf8(residue.json).expect("the payload is UTF-8"), residue.lens)
}

#[test]
fn contents_are_handed_out_and_leave_empty_strings() {
    let (seen, json, lens) = residue(
        Shape::JobRequest,
        r#"{"ExecName":"e","Files":[{"Name":"a","Content":"QUJD"},{"Name":"b","Content":"QQ=="}]}"#,
    );
    let expected = [
        Seen::Begin(0),
        Seen::Bytes(0, b"ABC".to_vec()),
        Seen::End(0, 3),
        Seen::Begin(1),
        Seen::Bytes(1, b"A".to_vec()),
        Seen::End(1, 1),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        json,
        r#"{"ExecName":"e","Files":[{"Name":"a","Content":""},{"Name":"b","Content":""}]}"#
    );
    assert_eq!(lens, [Some(3), Some(1)]);
}

#[test]
fn each_shape_has_its_own_contents() {
    let lists = r#""Entries":[{"Content":"QUJD"}],"Files":[{"Content":"QUJD"}]"#;
    let text = format!(r#"{{"OutputArchive":"QUJD",{lists},"Content":"QUJD"}}"#);
    let text = text.as_str();
    let (_, json, _) = residue(Shape::JobRequest, text);
    assert_eq!(json, text.replace(r#""Files":[{"Content":"QUJD""#, r#""Files":[{"Content":"""#));
    let (_, json, _) = residue(Shape::CachePutRequest, text);
    assert_eq!(
        json,
        text.replace(r#""Entries":[{"Content":"QUJD""#, r#""Entries":[{"Content":"""#)
    );
    let (_, json, lens) = residue(Shape::JobResult, text);
    assert_eq!(json, text.replace(r#""OutputArchive":"QUJD""#, r#""OutputArchive":"""#));
    assert_eq!(lens, [Some(3)]);
}

#[test]
fn members_of_the_same_name_elsewhere_are_left_alone() {
    for text in [
        r#"{"Files":{"Content":"QUJD"}}"#,
        r#"{"Files":[[{"Content":"QUJD"}]]}"#,
        r#"{"Files":[{"Blob":{"Content":"QUJD"}},"Content"]}"#,
        r#"{"x":{"Files":[{"Content":"QUJD"}]}}"#,
        r#"[{"Files":[{"Content":"QUJD"}]}]"#,
        r#"{"Files":[{"content":"QUJD","Contents":"QUJD","Conten":"QUJD","ContentContentContent":"QUJD"}]}"#,
        r#"{"Files":"x","y":[{"Content":"QUJD"}]}"#,
        r#"{"Files":[{"Content":["QUJD"]},{"Content":{"Content":"QUJD"}}]}"#,
    ] {
        let (seen, json, lens) = residue(Shape::JobRequest, text);
        assert_eq!((seen, json.as_str(), lens), (vec![], text, vec![]));
    }
    let text = r#"{"OutputArchiveX":"QUJD","OutputArchiv":"QUJD","x":{"OutputArchive":"QUJD"}}"#;
    let (seen, json, lens) = residue(Shape::JobResult, text);
    assert_eq!((seen, json.as_str(), lens), (vec![], text, vec![]));
}

#[test]
fn a_null_content_stays_null_and_an_empty_one_is_handed_out() {
    let text = r#"{"Files":[{"Content":null},{"Content":""}]}"#;
    let (seen, json, lens) = residue(Shape::JobRequest, text);
    assert_eq!(seen, [Seen::Begin(1), Seen::End(1, 0)]);
    assert_eq!((json.as_str(), lens), (text, vec![None, Some(0)]));
}

#[test]
fn slots_count_every_item_of_the_list() {
    let (seen, ..) = residue(Shape::JobRequest, r#"{"Files":[1,null,[],{},{"Content":"QUJD"}]}"#);
    assert_eq!(seen.first(), Some(&Seen::Begin(4)));
}

#[test]
fn escaped_names_and_characters_mean_the_same() {
    let text = r#"{"\u0046iles":[{"Cont\u0065nt":"\u0051\u0055JD\u002b\/\/\u002B"}]}"#;
    let (seen, json, _) = residue(Shape::JobRequest, text);
    assert_eq!(
        seen,
        [Seen::Begin(0), Seen::Bytes(0, vec![b'A', b'B', b'C', 0xFB, 0xFF, 0xFE]), Seen::End(0, 6)]
    );
    assert_eq!(json, r#"{"\u0046iles":[{"Cont\u0065nt":""}]}"#);
}

#[test]
fn a_repeated_content_begins_its_slot_anew() {
    let (seen, _, lens) =
        residue(Shape::JobResult, r#"{"OutputArchive":"QUJD","OutputArchive":"QQ=="}"#);
    assert_eq!(seen.last(), Some(&Seen::End(0, 1)));
    assert_eq!(seen.iter().filter(|seen| **seen == Seen::Begin(0)).count(), 2);
    assert_eq!(lens, [Some(1)]);

    let (_, _, lens) =
        residue(Shape::JobResult, r#"{"OutputArchive":"QUJD","OutputArchive":null}"#);
    assert_eq!(lens, [None]);
}

#[test]
fn a_repeated_list_voids_the_contents_of_the_first() {
    let first = r#""Files":[{"Content":"QUJD"},{"Content":"QUJD"}]"#;
    for (second, left) in [
        (r#""Files":[{"Content":"QQ=="}]"#, vec![Some(1)]),
        (r#""Files":[]"#, vec![]),
        (r#""Files":null"#, vec![]),
        (r#""files":[]"#, vec![Some(3), Some(3)]),
    ] {
        let (_, _, lens) = residue(Shape::JobRequest, &format!("{{{first},{second}}}"));
        assert_eq!(lens, left, "{second}");
    }
}

/// What a result's texts are handed out as.
fn texts(payload: &str) -> (Vec<u8>, Vec<u8>) {
    let (seen, ..) = residue(Shape::JobResult, payload);
    let mut texts = (Vec::new(), Vec::new());
    for seen in seen {
        match seen {
            Seen::Begin(1) => texts.0.clear(),
            Seen::Begin(2) => texts.1.clear(),
            Seen::Bytes(1, bytes) => texts.0.extend_from_slice(&bytes),
            Seen::Bytes(2, bytes) => texts.1.extend_from_slice(&bytes),
            Seen::Begin(_) | Seen::Bytes(..) | Seen::End(..) => {}
        }
    }
    texts
}

#[test]
fn what_a_program_printed_is_handed_out_as_utf8() {
    let text = r#"{"Status":"OK","Stdout":"a\u00e9\ud83d\ude00\n\\\"","OutputArchive":"QQ==","Stderr":"日\/"}"#;
    let (seen, json, lens) = residue(Shape::JobResult, text);
    assert_eq!(json, r#"{"Status":"OK","Stdout":"","OutputArchive":"","Stderr":""}"#);
    let (stdout, stderr) = ("aé😀\n\\\"", "日/");
    assert_eq!(lens, [Some(1), Some(stdout.len() as u64), Some(stderr.len() as u64)]);
    assert_eq!(seen.first(), Some(&Seen::Begin(1)));
    assert_eq!(texts(text), (stdout.into(), stderr.into()));
    // Elsewhere the names mean nothing.
    let text = r#"{"x":{"Stdout":"a"},"stdout":"b","Stderr":null}"#;
    assert_eq!(residue(Shape::JobResult, text), (vec![], text.to_owned(), vec![]));
    let text = r#"{"Stdout":"a","Files":[{"Stdout":"b"}]}"#;
    assert_eq!(residue(Shape::JobRequest, text), (vec![], text.to_owned(), vec![]));
}

#[test]
fn half_of_a_surrogate_pair_in_what_was_printed_is_marked_and_costs_no_result() {
    for (escaped, read) in [
        (r"\ud83d", "\u{FFFD}"),
        (r"\ude00", "\u{FFFD}"),
        (r"\ud83dx", "\u{FFFD}x"),
        (r"\ud83d\n", "\u{FFFD}\n"),
        (r"\ud83d\ud83d\ude00", "\u{FFFD}😀"),
        (r"\ude00\ud83d", "\u{FFFD}\u{FFFD}"),
    ] {
        let (stdout, _) = texts(&format!(r#"{{"Stdout":"{escaped}"}}"#));
        assert_eq!(str::from_utf8(&stdout), Ok(read), "{escaped}");
    }
    let error = stream(Shape::JobResult, br#"{"Stdout":"\x"}"#, 3).1.unwrap_err();
    assert!(matches!(error, ModelError::NotJson { offset: 12, .. }), "{error}");
}

#[test]
fn of_a_repeated_text_the_last_counts() {
    let (_, json, lens) =
        residue(Shape::JobResult, r#"{"Stdout":"long one","Stdout":"x","Stderr":"y"}"#);
    assert_eq!(
        (json.as_str(), lens),
        (r#"{"Stdout":"","Stdout":"","Stderr":""}"#, vec![None, Some(1), Some(1)])
    );
    assert_eq!(texts(r#"{"Stdout":"long one","Stdout":"x"}"#).0, b"x");
    let (_, _, lens) = residue(Shape::JobResult, r#"{"Stdout":"long one","Stdout":null}"#);
    assert_eq!(lens, [None, None]);
}

#[test]
fn a_long_text_leaves_nothing_behind_and_comes_in_bounded_pieces() {
    let payload = format!(r#"{{"Stdout":"{}","Stderr":""}}"#, r"ab\u65e5\n".repeat(1 << 20));
    let mut stream = ContentStream::new(Shape::JobResult);
    let (mut largest, mut sum) = (0, 0);
    for piece in payload.as_bytes().chunks(1_000_003) {
        let pushed = stream.push(piece, &mut |event| {
            if let ContentEvent::Bytes { bytes, .. } = event {
                largest = largest.max(bytes.len());
                sum += bytes.len();
            }
        });
        assert_eq!(pushed, Ok(()));
    }
    assert_eq!((largest, sum), (CONTENT_PIECE_BYTES_MAX, 6 << 20));
    assert_eq!(stream.finish().unwrap().json, br#"{"Stdout":"","Stderr":""}"#);
}

#[test]
fn strings_that_stay_may_hold_anything() {
    let text =
        r#"{"ExecName":"e","Stdout":"\"}],\\\u0022\ud83d\ude00 {\"Files\":[ 日本","Files":[ ]}"#;
    let (seen, json, _) = residue(Shape::JobRequest, text);
    assert_eq!((seen, json.as_str()), (vec![], text));
}

#[test]
fn what_is_not_base64_is_refused_with_its_place() {
    for (content, bad_at) in [
        ("QUJDQ", 5),
        ("QUJDQQ=", 7),
        ("QUJD-_-_", 4),
        ("QUJD\\nQUJD", 4),
        ("QUJD\\u00e9QUJD", 4),
        ("QUJDé", 4),
        ("QUJDQ=QU", 5),
        ("====", 0),
    ] {
        let text = format!(r#"{{"Files":[{{}},{{"Content":"{content}"}}]}}"#);
        for piece_bytes in [usize::MAX, 1] {
            let error = stream(Shape::JobRequest, text.as_bytes(), piece_bytes).1.unwrap_err();
            let ModelError::BadBase64 { place, offset, .. } = &error else {
                panic!("{error}: {text}")
            };
            assert_eq!(place.to_string(), r#"InputFile [1] member "Content""#);
            assert_eq!(*offset, bad_at, "{error}: {text}");
        }
    }
}

#[test]
fn nothing_may_follow_the_padding() {
    for tail in ["QUJD", "Q", "=", "===="] {
        let text = format!(r#"{{"OutputArchive":"QUJDQQ=={tail}"}}"#);
        for piece_bytes in [usize::MAX, 24, 26, 1] {
            let error = stream(Shape::JobResult, text.as_bytes(), piece_bytes).1.unwrap_err();
            assert!(matches!(error, ModelError::BadBase64 { .. }), "{error}: {text}");
        }
    }
}

#[test]
fn broken_structure_is_refused_where_it_breaks() {
    for (text, bad_at) in [
        ("", 0),
        ("{", 1),
        (r#"{"Files":[{"Content":"QUJD"#, 26),
        (r#"{"a" 1}"#, 5),
        (r#"{"a":1,}"#, 7),
        ("[1,]", 3),
        ("[1}", 2),
        ("{}{}", 2),
        (r#"{"a\x":1}"#, 4),
        (r#"{"OutputArchive":"QUJD\u00z"}"#, 26),
        ("x", 0),
    ] {
        for piece_bytes in [usize::MAX, 1] {
            let error = stream(Shape::JobResult, text.as_bytes(), piece_bytes).1.unwrap_err();
            let ModelError::NotJson { offset, line, column, .. } = error else {
                panic!("{error}: {text}")
            };
            assert_eq!((offset, line, column), (bad_at, 1, bad_at + 1), "{text}");
        }
    }
}

#[test]
fn spelling_is_left_to_the_reader_of_the_residue() {
    let (_, json, _) = residue(Shape::JobRequest, r#"{"ExecName":"e","Priority":tru}"#);
    assert!(matches!(JobRequest::parse(json.as_bytes()), Err(ModelError::NotJson { .. })));
}

#[test]
fn a_fault_ends_the_stream_for_good() {
    let mut stream = ContentStream::new(Shape::JobResult);
    let first = stream.push(b"{]", &mut |_| {}).unwrap_err();
    assert_eq!(stream.push(b"}", &mut |_| {}), Err(first.clone()));
    assert_eq!(stream.finish(), Err(first));
}

#[test]
fn nesting_is_bounded_as_in_the_reader() {
    let deep =
        |levels: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert!(stream(Shape::JobRequest, deep(64).as_bytes(), 7).1.is_ok());
    let error = stream(Shape::JobRequest, deep(65).as_bytes(), 7).1.unwrap_err();
    assert!(matches!(error, ModelError::OverLimit { value: 65, limit: 64, .. }), "{error}");
}

#[test]
fn the_list_is_bounded_as_in_the_reader() {
    let files = |items: usize| format!(r#"{{"Files":[{}]}}"#, vec!["{}"; items].join(","));
    assert!(stream(Shape::JobRequest, files(LIST_ITEMS_MAX).as_bytes(), 4096).1.is_ok());
    let error =
        stream(Shape::JobRequest, files(LIST_ITEMS_MAX + 1).as_bytes(), 4096).1.unwrap_err();
    assert!(matches!(error, ModelError::OverLimit { unit: "items", .. }), "{error}");
}

#[test]
fn what_remains_is_bounded() {
    let text = |bytes: usize| format!(r#"{{"x":"{}"}}"#, "a".repeat(bytes - 8));
    assert!(stream(Shape::JobRequest, text(RESIDUE_BYTES_MAX).as_bytes(), 65_536).1.is_ok());
    let error =
        stream(Shape::JobRequest, text(RESIDUE_BYTES_MAX + 1).as_bytes(), 65_536).1.unwrap_err();
    let ModelError::OverLimit { limit, .. } = error else { panic!("{error}") };
    assert_eq!(limit, 4 * 1024 * 1024);
}

#[test]
fn pieces_of_content_are_bounded_and_a_large_content_leaves_nothing_behind() {
    let quads = 4 * 1024 * 1024;
    let payload = format!(r#"{{"OutputArchive":"{}","JobId":null}}"#, "AAEC".repeat(quads));
    let mut stream = ContentStream::new(Shape::JobResult);
    let (mut largest, mut sum) = (0, 0);
    for piece in payload.as_bytes().chunks(1_000_003) {
        let pushed = stream.push(piece, &mut |event| {
            if let ContentEvent::Bytes { bytes, .. } = event {
                largest = largest.max(bytes.len());
                sum += bytes.len();
            }
        });
        assert_eq!(pushed, Ok(()));
    }
    assert_eq!((largest, sum), (CONTENT_PIECE_BYTES_MAX, quads * 3));
    let residue = stream.finish().unwrap();
    assert_eq!(residue.json, br#"{"OutputArchive":"","JobId":null}"#);
    assert_eq!(residue.len_of(0), Some(3 * 4 * 1024 * 1024));
    assert_eq!(residue.len_of(1), None);
}

#[test]
fn what_is_decoded_is_handed_out_with_its_piece() {
    let mut stream = ContentStream::new(Shape::JobResult);
    let mut got = Vec::new();
    let pushed = stream.push(br#"{"OutputArchive":"QUJDQUJ"#, &mut |event| {
        if let ContentEvent::Bytes { bytes, .. } = event {
            got.extend_from_slice(bytes);
        }
    });
    assert_eq!((pushed, got), (Ok(()), b"ABC".to_vec()));
}
