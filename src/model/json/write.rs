//! Writes JSON exactly as System.Text.Json does by default (M13): no spaces, nulls written, every
//! character that is not plain ASCII or that HTML knows escaped in upper-case hexadecimal, base64
//! not escaped at all. It never fails and never reorders. The models call it, each for its own
//! members.

use uuid::Uuid;

use super::JsonModel;
use super::base64;

/// Writes one object: the braces, and between them what `fill` writes.
pub fn object(out: &mut String, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
    out.push('{');
    fill(&mut ObjectWriter { out, empty: true });
    out.push('}');
}

/// Writes the members of one object.
///
/// The text is pure ASCII, so the `String` underneath becomes the frame's bytes without another
/// look.
#[derive(Debug)]
pub struct ObjectWriter<'o> {
    out: &'o mut String,
    empty: bool,
}

impl ObjectWriter<'_> {
    /// A string.
    pub fn text(&mut self, member: &'static str, value: &str) {
        self.member(member);
        string(self.out, value);
    }

    /// A string, or null.
    pub fn text_or_null(&mut self, member: &'static str, value: Option<&str>) {
        match value {
            Some(value) => self.text(member, value),
            None => self.null(member),
        }
    }

    /// A string, or nothing at all.
    pub fn text_if_some(&mut self, member: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(member, value);
        }
    }

    /// A Guid in lower-case D form.
    pub fn guid(&mut self, member: &'static str, value: Uuid) {
        self.member(member);
        self.out.push('"');
        self.out.push_str(value.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        self.out.push('"');
    }

    /// Bytes in base64.
    pub fn bytes(&mut self, member: &'static str, value: &[u8]) {
        self.member(member);
        self.out.push('"');
        base64::encode(value, self.out);
        self.out.push('"');
    }

    /// Bytes in base64, or null.
    pub fn bytes_or_null(&mut self, member: &'static str, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bytes(member, value),
            None => self.null(member),
        }
    }

    /// A whole number.
    pub fn whole(&mut self, member: &'static str, value: impl Into<i128>) {
        self.member(member);
        self.out.push_str(&value.into().to_string());
    }

    /// A whole number, or nothing at all.
    pub fn whole_if_some(&mut self, member: &'static str, value: Option<impl Into<i128>>) {
        if let Some(value) = value {
            self.whole(member, value);
        }
    }

    /// `true`, or nothing at all.
    pub fn flag_if_set(&mut self, member: &'static str, value: bool) {
        if value {
            self.member(member);
            self.out.push_str("true");
        }
    }

    /// A list of strings.
    pub fn texts(&mut self, member: &'static str, values: &[String]) {
        self.list(member, values, |out, value| string(out, value));
    }

    /// A list of models.
    pub fn models<M: JsonModel>(&mut self, member: &'static str, values: &[M]) {
        self.list(member, values, |out, value| object(out, |inner| value.write(inner)));
    }

    /// A model, or nothing at all.
    pub fn model_if_some<M: JsonModel>(&mut self, member: &'static str, value: Option<&M>) {
        if let Some(value) = value {
            self.member(member);
            object(self.out, |inner| value.write(inner));
        }
    }

    fn list<T>(&mut self, member: &'static str, values: &[T], each: impl Fn(&mut String, &T)) {
        self.member(member);
        self.out.push('[');
        for (nth, value) in values.iter().enumerate() {
            if nth > 0 {
                self.out.push(',');
            }
            each(self.out, value);
        }
        self.out.push(']');
    }

    fn null(&mut self, member: &'static str) {
        self.member(member);
        self.out.push_str("null");
    }

    /// A member's name. Ours are plain letters, so nothing in it needs an escape.
    fn member(&mut self, name: &'static str) {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = false;
        self.out.push('"');
        self.out.push_str(name);
        self.out.push_str("\":");
    }
}

fn string(out: &mut String, value: &str) {
    out.push('"');
    for run in value.split_inclusive(is_escaped) {
        let mut plain = run.chars();
        match plain.next_back().filter(|&last| is_escaped(last)) {
            Some(last) => {
                out.push_str(plain.as_str());
                escape(out, last);
            }
            None => out.push_str(run),
        }
    }
    out.push('"');
}

fn is_escaped(c: char) -> bool {
    !matches!(c, ' '..='~') || matches!(c, '"' | '&' | '\'' | '+' | '<' | '>' | '\\' | '`')
}

fn escape(out: &mut String, c: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\t' => out.push_str("\\t"),
        '\n' => out.push_str("\\n"),
        '\u{c}' => out.push_str("\\f"),
        '\r' => out.push_str("\\r"),
        _ => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str("\\u");
                for shift in [12, 8, 4, 0] {
                    let digit =
                        char::from_digit(u32::from((*unit >> shift) & 0xF), 16).unwrap_or('0');
                    out.push(digit.to_ascii_uppercase());
                }
            }
        }
    }
}
