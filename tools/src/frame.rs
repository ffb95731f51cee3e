//! `heft-tools frame`: the frames of one direction of a connection, for people or as JSON lines.

use anyhow::{Context, bail};
use chunking::message::parse_credit;
use chunking::{ChunkHead, Decoder, Generation, Head, InboundLimits, Kind, Message, Step};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::exit::{Failure, with_codes};

const EXAMPLES: &str = "Examples:
  heft-tools frame capture.bin
  heft-tools frame --hex '09000000 04 04000000 01000000'
  heft-tools frame --json --speaks f2 - < leader-to-worker.bin";

/// What is kept of a payload to be looked at. More than any message of ours has.
const PAYLOAD_KEPT_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a payload without a layout that are shown as hexadecimal.
const PREVIEW_BYTES: usize = 32;

#[derive(clap::Args)]
#[command(after_help = with_codes(EXAMPLES))]
pub(crate) struct Args {
    /// File with the bytes of one direction of a connection; `-` for standard input.
    #[arg(required_unless_present = "hex")]
    file: Option<PathBuf>,

    /// Bytes in hexadecimal; spaces and line ends are skipped.
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    hex: Option<String>,

    /// Generation of the frames (default: detected from the first frame).
    #[arg(long, value_enum, default_value_t = Speaks::First)]
    speaks: Speaks,

    /// Print one JSON object per frame.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Speaks {
    /// Found on the first frame.
    First,
    /// Type, payload.
    F0,
    /// Type, ids, payload.
    F1,
    /// Type, ids, subject, payload.
    F2,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let decoder = match args.speaks {
        Speaks::First => Decoder::detecting(InboundLimits::CLASSIC),
        Speaks::F0 => Decoder::speaking(Generation::F0, InboundLimits::CLASSIC),
        Speaks::F1 => Decoder::speaking(Generation::F1, InboundLimits::CLASSIC),
        Speaks::F2 => Decoder::speaking(Generation::F2, InboundLimits::CLASSIC),
    };
    let source: Box<dyn Read> = match (&args.file, &args.hex) {
        (_, Some(text)) => {
            let bytes = unhex(text).map_err(|error| Failure::Usage(format!("--hex: {error:#}")))?;
            Box::new(io::Cursor::new(bytes))
        }
        (Some(path), None) if path.as_os_str() == "-" => Box::new(io::stdin().lock()),
        (Some(path), None) => {
            Box::new(File::open(path).map_err(|error| Failure::named(path, &error))?)
        }
        (None, None) => bail!("give a file, or bytes with --hex"),
    };
    let mut out = io::stdout().lock();
    show(decoder, source, args.json, &mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// A frame that is being read.
struct Shown {
    offset: u64,
    head: Value,
    kind: Option<Kind>,
    payload: Vec<u8>,
}

fn show(
    mut decoder: Decoder,
    mut source: impl Read,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    let mut offset = 0;
    let mut current: Option<Shown> = None;
    loop {
        let mut input = buffer.as_slice();
        let mut more = false;
        match decoder.poll(&mut input).with_context(|| format!("at byte {offset}"))? {
            Step::Head(head) => current = Some(Shown::new(offset, &head)),
            Step::Payload(piece) => {
                if let Some(shown) = &mut current {
                    let room = PAYLOAD_KEPT_MAX.saturating_sub(shown.payload.len());
                    shown.payload.extend(piece.iter().take(room));
                }
            }
            Step::End { trailing } => {
                if let (Some(shown), Some(generation)) = (current.take(), decoder.generation()) {
                    shown.write(generation, trailing, as_json, out)?;
                }
            }
            Step::NeedMore { .. } => more = true,
        }
        let consumed = buffer.len() - input.len();
        buffer.drain(..consumed);
        offset += consumed as u64;
        if more && source.by_ref().take(256 * 1024).read_to_end(&mut buffer)? == 0 {
            return decoder.finish(&buffer).with_context(|| format!("at byte {offset}"));
        }
    }
}

impl Shown {
    fn new(offset: u64, head: &Head<'_>) -> Self {
        let kind = head.kind().ok();
        let head = json!({
            "code": head.code,
            "kind": kind.map(Kind::name),
            "msg_id": head.msg_id,
            "corr_id": head.corr_id,
            "subject": head.subject,
            "payload_len": head.payload_len,
        });
        Shown { offset, head, kind, payload: Vec::new() }
    }

    fn write(
        self,
        generation: Generation,
        trailing: u32,
        as_json: bool,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let (member, content) = content(self.kind, &self.payload);
        if as_json {
            let mut line = self.head;
            if let Value::Object(members) = &mut line {
                members.insert("offset".to_owned(), self.offset.into());
                members.insert("generation".to_owned(), json!(generation));
                members.insert("trailing".to_owned(), trailing.into());
                members.insert(member.to_owned(), content);
            }
            writeln!(out, "{line}")?;
            return Ok(());
        }
        let text = |name: &str| self.head.get(name).and_then(Value::as_str).unwrap_or_default();
        let code = self.head.get("code").and_then(Value::as_u64).unwrap_or_default();
        let kind = self.kind.map_or("unknown", Kind::name);
        writeln!(out, "@{} {generation} {kind} ({code})", self.offset)?;
        for (label, value) in
            [("msg", text("msg_id")), ("corr", text("corr_id")), ("subject", text("subject"))]
        {
            let is_nil = value.bytes().all(|byte| matches!(byte, b'0' | b'-'));
            if !is_nil {
                writeln!(out, "    {label:<9}{value}")?;
            }
        }
        let length = self.head.get("payload_len").and_then(Value::as_u64).unwrap_or_default();
        if length > 0 {
            writeln!(out, "    {:<9}{length} bytes", "payload")?;
            writeln!(
                out,
                "    {member:<9}{}",
                content.as_str().map_or_else(|| content.to_string(), str::to_owned)
            )?;
        }
        if trailing > 0 {
            writeln!(out, "    {:<9}{trailing} bytes behind the payload, skipped", "trailing")?;
        }
        Ok(())
    }
}

/// What the payload holds, as far as its kind says.
fn content(kind: Option<Kind>, payload: &[u8]) -> (&'static str, Value) {
    match kind {
        Some(Kind::Credit) => match parse_credit(payload) {
            Ok(credit) => ("credit", credit.into()),
            Err(error) => ("error", error.to_string().into()),
        },
        Some(Kind::Chunk) => match ChunkHead::decode(payload) {
            Ok((head, sent)) => {
                let sound = head.check_sent(crc32(sent)).is_ok();
                let value = json!({
                    "offset": head.offset, "raw_len": head.raw_len, "sent_len": sent.len(), "codec": head.codec,
                    "crc_sent": format!("{:08x}", head.crc_sent), "crc_raw": format!("{:08x}", head.crc_raw),
                    "crc_sent_is_right": sound,
                });
                ("chunk", value)
            }
            Err(error) => ("error", error.to_string().into()),
        },
        Some(kind) if kind.code() >= Kind::Welcome.code() => match Message::decode(kind, payload) {
            Ok(message) => ("message", json!(message)),
            Err(error) => ("error", error.to_string().into()),
        },
        Some(_) | None => match str::from_utf8(payload) {
            Ok(text) if !text.chars().any(char::is_control) => ("text", text.into()),
            Ok(_) | Err(_) => ("hex", preview(payload).into()),
        },
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    ChunkHead::plain(0, bytes).crc_sent
}

fn preview(bytes: &[u8]) -> String {
    let shown: Vec<String> =
        bytes.iter().take(PREVIEW_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let more = if bytes.len() > PREVIEW_BYTES { " ..." } else { "" };
    shown.join(" ") + more
}

fn unhex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| {
            let digit = c.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            digit.with_context(|| format!("{c:?} is not a hexadecimal digit"))
        })
        .collect::<Result<_, _>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        bail!(
            "{} hexadecimal digits are not whole bytes: one is missing or too many",
            digits.len()
        );
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}
