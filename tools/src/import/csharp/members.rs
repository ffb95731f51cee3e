//! JSON objects of the C# system as their members lie in the text: names in any case (PE10, M16),
//! values not read before they are needed. A payload of megabytes in one of them costs nothing
//! until then.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::time::parse_iso;

#[derive(Debug)]
pub(super) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &'de RawValue>()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

impl<'a> Members<'a> {
    /// Reads an object that fills the text.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| explain(&error))
    }

    /// The object that a member is. An empty one if it is not there.
    pub(super) fn object(&self, name: &str) -> Result<Members<'a>, String> {
        match self.get(name) {
            Some(value) => read(name, value),
            None => Ok(Members(Vec::new())),
        }
    }

    /// The list that a member is. An empty one if it is not there.
    pub(super) fn list(&self, name: &str) -> Result<Vec<&'a RawValue>, String> {
        self.get(name).map_or(Ok(Vec::new()), |value| read(name, value))
    }

    /// All members, as they lie there.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The value of a member: the one that is spelled so, or else the last one that differs in case
    /// only. Null is none.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let spelled = self.0.iter().rev().find(|(known, _)| known == name);
        let found = spelled
            .or_else(|| self.0.iter().rev().find(|(known, _)| known.eq_ignore_ascii_case(name)));
        found.map(|(_, value)| *value).filter(|value| value.get() != "null")
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, String> {
        self.get(name).map(|value| read(name, value)).transpose()
    }

    pub(super) fn guid(&self, name: &str) -> Result<Option<Uuid>, String> {
        self.text(name)?.map(|text| guid(name, &text)).transpose()
    }

    /// A number from 0; what is less is 0.
    pub(super) fn count(&self, name: &str) -> Result<Option<u32>, String> {
        let number: Option<i64> = self.get(name).map(|value| read(name, value)).transpose()?;
        Ok(number.map(|number| u32::try_from(number.max(0)).unwrap_or(u32::MAX)))
    }

    /// A moment, in microseconds since 1970.
    pub(super) fn moment(&self, name: &str) -> Result<Option<i64>, String> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        parse_iso(&text).map(Some).ok_or_else(|| {
            format!(
                "\"{name}\" is {}, which is not a moment such as 2025-10-19T12:34:56.1234567Z",
                quote(&text)
            )
        })
    }

    /// Bytes, which stand there in base64.
    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        STANDARD
            .decode(text)
            .map(Some)
            .map_err(|error| format!("\"{name}\" is not base64: {error}"))
    }
}

/// Reads a value.
pub(super) fn read<'a, T: Deserialize<'a>>(name: &str, value: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(value.get()).map_err(|error| format!("\"{name}\": {}", explain(&error)))
}

pub(super) fn guid(name: &str, text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|_| format!("\"{name}\" is {}, which is not a Guid", quote(text)))
}

/// What a parser says, without where: that is counted from the start of a piece that nobody knows.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

/// The start of a text, so that an error stays a line.
fn quote(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let more = if text.chars().nth(CHARS_MAX).is_some() { "..." } else { "" };
    format!(
        "\"{}\"{more}",
        text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pe10_m16_names_are_taken_in_any_case_and_the_exact_one_first() {
        let members =
            Members::parse(br#"{"JobId":"a","jobId":"b","JOBID":"c","ClientId":null,"n":-3}"#)
                .unwrap();
        assert_eq!(members.text("jobId").unwrap().as_deref(), Some("b"));
        assert_eq!(
            members.text("jobid").unwrap().as_deref(),
            Some("c"),
            "the last, where none is exact"
        );
        assert_eq!(members.text("clientId").unwrap(), None);
        assert_eq!(members.text("nothing").unwrap(), None);
        assert_eq!(members.count("N").unwrap(), Some(0));
    }

    #[test]
    fn pe05_a_value_of_the_wrong_kind_is_named() {
        let members = Members::parse(
            br#"{"at":"yesterday","jobId":7,"rawPayload":"%%","list":{},"attempt":"x"}"#,
        )
        .unwrap();
        assert!(members.moment("at").unwrap_err().contains("\"yesterday\", which is not a moment"));
        assert!(members.guid("jobId").unwrap_err().contains("\"jobId\": invalid type"));
        assert!(members.bytes("rawPayload").unwrap_err().contains("not base64"));
        assert!(members.list("list").is_err() && members.count("attempt").is_err());
        for text in ["", "[]", "3", "{\"a\":}", "{\"a\":1} x", "{\"a\"", "\u{feff}{}"] {
            assert!(Members::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn pe05_deep_nesting_is_refused_or_passed_over_and_never_followed() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        if let Ok(members) = Members::parse(deep.as_bytes()) {
            assert!(members.text("a").is_err());
        }
    }
}
