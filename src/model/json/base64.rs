//! The one base64 engine: standard alphabet, padding always written and always wanted, stray bits
//! in the last character let through as .NET does (M14). It knows nothing of JSON. The reader, the
//! writer and the content stream use it.

use std::sync::LazyLock;

use base64::engine::general_purpose::{GeneralPurposeConfig, PAD};
use base64::{DecodeError, DecodeSliceError, Engine};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Fastest = base64::engine::Simd;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Fastest = base64::engine::GeneralPurpose;

const FORM: GeneralPurposeConfig = PAD.with_decode_allow_trailing_bits(true);

// The engine asks the processor what it can do; once is enough.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static ENGINE: LazyLock<Fastest> = LazyLock::new(|| Fastest::standard(FORM));
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static ENGINE: LazyLock<Fastest> =
    LazyLock::new(|| Fastest::new(&base64::alphabet::STANDARD, FORM));

/// Why a text is not base64, and how many of its characters were good.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Characters before the fault.
    pub(crate) offset: usize,
    /// What is wrong there.
    pub(crate) reason: String,
}

/// Appends `bytes` to `out` as base64.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    ENGINE.encode_string(bytes, out);
}

/// Decodes a whole text.
pub(crate) fn decode(text: &[u8]) -> Result<Vec<u8>, Fault> {
    ENGINE.decode(text).map_err(|error| fault(&error, text.len()))
}

/// Decodes whole quads into `out`, which must have room for three bytes a quad, and says how many
/// bytes came out.
pub(crate) fn decode_into(quads: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
    ENGINE.decode_slice(quads, out).map_err(|error| match error {
        DecodeSliceError::DecodeError(error) => fault(&error, quads.len()),
        DecodeSliceError::OutputSliceTooSmall => {
            Fault { offset: 0, reason: format!("no room to decode {} characters", quads.len()) }
        }
    })
}

fn fault(error: &DecodeError, len: usize) -> Fault {
    match *error {
        DecodeError::InvalidByte(offset, byte) => bad_byte(offset, byte),
        DecodeError::InvalidLastSymbol { offset, symbol, .. } => bad_byte(offset, symbol),
        DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => missing_padding(len),
    }
}

/// The fault of a character that base64 does not have, or not there.
pub(crate) fn bad_byte(offset: usize, byte: u8) -> Fault {
    let reason = if byte == b'=' {
        "misplaced '='".to_owned()
    } else {
        format!("'{}'", byte.escape_ascii())
    };
    Fault { offset, reason }
}

/// The fault of a text that stops inside a quad.
pub(crate) fn missing_padding(len: usize) -> Fault {
    Fault { offset: len, reason: "missing padding".to_owned() }
}
