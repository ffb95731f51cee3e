//! Reads one JSON object into the members its model knows, as borrowed text, and gives them out
//! typed (M14): names are case-sensitive, unknown members are passed over, of a repeated member the
//! last counts. It never builds a tree and never copies a content before decoding it. The models
//! call it, each with its own `Schema`.

use serde::de::Deserializer as _;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::base64;
use super::fault::{describe, not_utf8, syntax_error, too_deep, too_many_items};
use super::scan::nest_depth;
use super::visit::{Items, Members};
use crate::model::error::{ModelError, Place, count, quote};
use crate::model::limits::NEST_DEPTH_MAX;

/// A model's name and the members it reads.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The model's name as errors show it.
    pub name: &'static str,
    /// The members; any other is passed over.
    pub members: &'static [&'static str],
}

/// A JSON object whose members have been found but not yet looked into.
#[derive(Debug)]
pub struct Object<'a> {
    place: Place,
    members: Vec<(&'static str, &'a str)>,
}

impl<'a> Object<'a> {
    /// Finds the members in a whole payload.
    pub fn parse(schema: Schema, payload: &'a [u8]) -> Result<Self, ModelError> {
        let place = Place::model(schema.name);
        let text = str::from_utf8(payload)
            .map_err(|error| not_utf8(place, payload, error.valid_up_to()))?;
        let depth = nest_depth(text);
        if depth > NEST_DEPTH_MAX {
            return Err(too_deep(place, depth));
        }
        Self::find(schema, place, text)
    }

    fn find(schema: Schema, place: Place, text: &'a str) -> Result<Self, ModelError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let syntax = |error: serde_json::Error| syntax_error(place, text, &error);
        if !text.trim_start().starts_with('{') {
            let found = serde_json::from_str::<&RawValue>(text).map_err(syntax)?;
            return Err(ModelError::NotObject { place, found: describe(found.get()) });
        }
        let members = json.deserialize_map(Members(schema.members)).map_err(syntax)?;
        json.end().map_err(syntax)?;
        Ok(Self { place, members })
    }

    /// The place of a member, for errors that a model makes itself.
    #[must_use]
    pub fn place(&self, member: &'static str) -> Place {
        self.place.member(member)
    }

    /// A member's value; `None` if it is missing or null.
    #[must_use]
    pub fn value(&self, member: &'static str) -> Option<Value<'a>> {
        self.raw(member).filter(|value| !value.is_null())
    }

    fn raw(&self, member: &'static str) -> Option<Value<'a>> {
        let found = self.members.iter().find(|(name, _)| *name == member);
        found.map(|&(_, text)| Value { place: self.place(member), text })
    }

    /// Insists on a value that an accessor did not find.
    pub fn need<T>(
        &self,
        member: &'static str,
        expected: &'static str,
        found: Option<T>,
    ) -> Result<T, ModelError> {
        let place = self.place(member);
        found.ok_or_else(|| match self.raw(member) {
            Some(_) => ModelError::Null { place, expected },
            None => ModelError::Missing { place },
        })
    }

    /// Refuses a null where .NET's type has none; a missing member passes.
    pub fn refuse_null(
        &self,
        member: &'static str,
        expected: &'static str,
    ) -> Result<(), ModelError> {
        match self.raw(member) {
            Some(value) if value.is_null() => {
                Err(ModelError::Null { place: self.place(member), expected })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A string.
    pub fn text(&self, member: &'static str) -> Result<Option<String>, ModelError> {
        self.value(member).map(|value| value.text()).transpose()
    }

    /// A string of at most `bytes_max` bytes.
    pub fn name(
        &self,
        member: &'static str,
        bytes_max: usize,
    ) -> Result<Option<String>, ModelError> {
        self.value(member).map(|value| value.name(bytes_max)).transpose()
    }

    /// A string of one to `bytes_max` bytes that must be there.
    pub fn needed_name(
        &self,
        member: &'static str,
        bytes_max: usize,
    ) -> Result<String, ModelError> {
        let name = self.need(member, "a string", self.name(member, bytes_max)?)?;
        if name.is_empty() {
            Err(ModelError::Empty { place: self.place(member) })
        } else {
            Ok(name)
        }
    }

    /// A Guid in D form.
    pub fn guid(&self, member: &'static str) -> Result<Option<Uuid>, ModelError> {
        self.value(member).map(|value| value.guid()).transpose()
    }

    /// Bytes in base64.
    pub fn bytes(&self, member: &'static str) -> Result<Option<Vec<u8>>, ModelError> {
        self.value(member).map(|value| value.bytes()).transpose()
    }

    /// A whole number of 32 bits.
    pub fn int32(&self, member: &'static str) -> Result<Option<i32>, ModelError> {
        let max = u64::from(i32::MAX.unsigned_abs());
        self.value(member).map(|value| value.whole(i32::MIN.into(), max)).transpose()
    }

    /// A whole number of 64 bits.
    pub fn int64(&self, member: &'static str) -> Result<Option<i64>, ModelError> {
        let max = i64::MAX.unsigned_abs();
        self.value(member).map(|value| value.whole(i64::MIN, max)).transpose()
    }

    /// A whole number from `min` to `max`.
    pub fn whole<T: TryFrom<i128>>(
        &self,
        member: &'static str,
        min: i64,
        max: u64,
    ) -> Result<Option<T>, ModelError> {
        self.value(member).map(|value| value.whole(min, max)).transpose()
    }

    /// `true` or `false`.
    pub fn flag(&self, member: &'static str) -> Result<Option<bool>, ModelError> {
        self.value(member).map(|value| value.flag()).transpose()
    }

    /// A list of at most `items_max` values, nulls among them.
    pub fn list(
        &self,
        member: &'static str,
        items_max: usize,
    ) -> Result<Option<Vec<Value<'a>>>, ModelError> {
        self.value(member).map(|value| value.list(items_max)).transpose()
    }

    /// An object of another model.
    pub fn object(
        &self,
        member: &'static str,
        schema: Schema,
    ) -> Result<Option<Object<'a>>, ModelError> {
        self.value(member).map(|value| value.object(schema)).transpose()
    }
}

/// One JSON value that has been found but not yet read.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    place: Place,
    text: &'a str,
}

impl<'a> Value<'a> {
    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.text == "null"
    }

    /// Reads a string.
    pub fn text(&self) -> Result<String, ModelError> {
        let inner = self.inner("a string")?;
        if !inner.contains('\\') {
            return Ok(inner.to_owned());
        }
        // The escapes were checked when the members were found; only halves of surrogate pairs are
        // left to go wrong.
        serde_json::from_str(self.text)
            .map_err(|_| ModelError::BadText { place: self.place, found: describe(self.text) })
    }

    /// Reads a string of at most `bytes_max` bytes.
    pub fn name(&self, bytes_max: usize) -> Result<String, ModelError> {
        let name = self.text()?;
        if name.len() > bytes_max {
            return Err(ModelError::OverLimit {
                place: self.place,
                value: count(name.len()),
                limit: count(bytes_max),
                unit: "bytes",
                next: "use a shorter one",
            });
        }
        Ok(name)
    }

    /// Reads a Guid in D form; the others that .NET can write are not read by it either.
    pub fn guid(&self) -> Result<Uuid, ModelError> {
        self.inner("a Guid string")?;
        let text = self.text()?;
        // The length leaves only the D form: N has 32 characters, the forms in braces and
        // parentheses 38.
        let guid = if text.len() == 36 { Uuid::try_parse(&text).ok() } else { None };
        guid.ok_or_else(|| ModelError::BadGuid { place: self.place, found: describe(self.text) })
    }

    /// Reads base64, straight from the payload's own text unless something in it is escaped.
    pub fn bytes(&self) -> Result<Vec<u8>, ModelError> {
        let inner = self.inner("a base64 string")?;
        let decoded = if inner.contains('\\') {
            base64::decode(self.text()?.as_bytes())
        } else {
            base64::decode(inner.as_bytes())
        };
        decoded.map_err(|fault| ModelError::BadBase64 {
            place: self.place,
            offset: count(fault.offset),
            reason: fault.reason,
        })
    }

    /// Reads a whole number from `min` to `max`. Like .NET it takes no fraction, no exponent and no
    /// string of digits.
    pub fn whole<T: TryFrom<i128>>(&self, min: i64, max: u64) -> Result<T, ModelError> {
        let digits = self.text.strip_prefix('-').unwrap_or(self.text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.wrong_type("a whole number"));
        }
        let number = self.text.parse::<i128>().ok();
        let in_range = number.filter(|&n| n >= i128::from(min) && n <= i128::from(max));
        in_range.and_then(|n| T::try_from(n).ok()).ok_or_else(|| ModelError::OutOfRange {
            place: self.place,
            found: quote(self.text),
            min,
            max,
        })
    }

    /// Reads `true` or `false`.
    pub fn flag(&self) -> Result<bool, ModelError> {
        match self.text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong_type("true or false")),
        }
    }

    /// Finds the items of a list.
    pub fn list(&self, items_max: usize) -> Result<Vec<Value<'a>>, ModelError> {
        if !self.text.starts_with('[') {
            return Err(self.wrong_type("a list"));
        }
        let mut json = serde_json::Deserializer::from_str(self.text);
        let (texts, items) = json
            .deserialize_seq(Items(items_max))
            .map_err(|error| syntax_error(self.place, self.text, &error))?;
        if items > items_max {
            return Err(too_many_items(self.place, items, items_max));
        }
        let values = texts.into_iter().enumerate();
        Ok(values.map(|(nth, text)| Value { place: self.place.item(nth), text }).collect())
    }

    /// Finds the members of an object of the given model.
    pub fn object(&self, schema: Schema) -> Result<Object<'a>, ModelError> {
        if !self.text.starts_with('{') {
            return Err(self.wrong_type("an object"));
        }
        let nth = self.place.item.or(self.place.nth);
        Object::find(schema, Place { nth, ..Place::model(schema.name) }, self.text)
    }

    /// Where the value stands, for errors that a model makes itself.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// What stands between the quotes, escapes and all.
    fn inner(&self, expected: &'static str) -> Result<&'a str, ModelError> {
        let inner = self.text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inner.ok_or_else(|| self.wrong_type(expected))
    }

    fn wrong_type(&self, expected: &'static str) -> ModelError {
        let place = self.place;
        if self.is_null() {
            return ModelError::Null { place, expected };
        }
        ModelError::WrongType { place, found: describe(self.text), expected }
    }
}
