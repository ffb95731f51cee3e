//! How serde walks a payload for the reader: it hands out the text of each value and looks into
//! none. Nothing is copied, and a value that is not wanted is skipped without recursion. Only the
//! reader uses it.

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Keeps the values of known names only: what a peer adds costs no memory.
pub(super) struct Members(pub(super) &'static [&'static str]);

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(&'static str, &'de str)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Self::Value = Vec::with_capacity(self.0.len());
        while let Some(name) = map.next_key_seed(Name(self.0))? {
            let Some(name) = name else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = map.next_value::<&RawValue>()?.get();
            match members.iter_mut().find(|(known, _)| *known == name) {
                Some((_, earlier)) => *earlier = value,
                None => members.push((name, value)),
            }
        }
        Ok(members)
    }
}

/// Turns a name into the schema's own, or into `None` if the schema has no such name.
struct Name(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<&'static str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().copied().find(|known| *known == name))
    }
}

/// Keeps the first items up to a limit and counts all of them.
pub(super) struct Items(pub(super) usize);

impl<'de> Visitor<'de> for Items {
    type Value = (Vec<&'de str>, usize);

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut texts, mut items) = (Vec::new(), 0_usize);
        while let Some(value) = list.next_element::<&RawValue>()? {
            items = items.checked_add(1).ok_or_else(|| A::Error::custom("too many items"))?;
            if items <= self.0 {
                texts.push(value.get());
            }
        }
        Ok((texts, items))
    }
}
