//! Takes a large classic payload apart while it arrives, in pieces of any size: contents are
//! decoded and handed out at once, everything else is kept as a small JSON that the ordinary
//! `parse` reads at the end. It never holds more than one piece of content, the residue and a few
//! words of state, however large the payload is. A connection drives it for the frames that are too
//! large to gather (C01, W06).

mod content;
mod shape;
mod text;
mod token;

pub use shape::{ContentEvent, Residue, ResultSlot, Shape};

use super::error::{ModelError, Place, count};
use super::json::fault::{too_deep, too_many_items};
use super::json::scan::plain_run;
use super::limits::{LIST_ITEMS_MAX, NEST_DEPTH_MAX, RESIDUE_BYTES_MAX};
use content::Content;
use shape::{Coding, LISTED};
use text::Text;
use token::{BadEscape, Key, Nest};

/// What the member name just read means for the value after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Plain,
    /// The list whose items have contents.
    List,
    /// A content, if it turns out to be a string.
    Content {
        slot: usize,
        coding: Coding,
    },
}

#[derive(Debug)]
enum State {
    /// A value must come.
    Value,
    /// A value or the end of the list.
    ValueOrEnd,
    /// A name or the end of the object.
    NameOrEnd,
    /// A name must come.
    Name,
    /// Inside a name.
    InName(Key),
    /// The colon after a name.
    Colon,
    /// A comma or the end of what is open.
    CommaOrEnd,
    /// Inside a string that stays in the residue.
    InText { escaped: bool },
    /// Inside a number, `true`, `false` or `null`. Its spelling is left to the residue's reader.
    InScalar,
    /// Inside a content.
    InContent { slot: usize, coding: Coding },
    /// The value is complete; only white space may follow.
    Done,
}

/// The machine. It checks the structure as far as it needs it; the spelling of numbers and
/// literals, UTF-8 and the types of members are checked when the residue is parsed.
///
/// A fault ends it: every later call gives the same error.
#[derive(Debug)]
pub struct ContentStream {
    shape: Shape,
    state: State,
    nest: Nest,
    role: Role,
    /// Whether the list of the shape is open, at depth 2.
    in_list: bool,
    /// Items of that list that have begun.
    items: usize,
    content: Content,
    text: Text,
    residue: Vec<u8>,
    lens: Vec<Option<u64>>,
    offset: u64,
    line: u64,
    line_start: u64,
    fault: Option<ModelError>,
}

impl ContentStream {
    /// A machine for one payload.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            state: State::Value,
            nest: Nest::default(),
            role: Role::Plain,
            in_list: false,
            items: 0,
            content: Content::default(),
            text: Text::default(),
            residue: Vec::new(),
            lens: Vec::new(),
            offset: 0,
            line: 1,
            line_start: 0,
            fault: None,
        }
    }

    /// Takes the next piece of the payload and tells `sink` what it brought.
    pub fn push(
        &mut self,
        piece: &[u8],
        sink: &mut impl FnMut(ContentEvent<'_>),
    ) -> Result<(), ModelError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let walked = self.walk(piece, sink);
        if let Err(fault) = &walked {
            self.fault = Some(fault.clone());
        }
        walked
    }

    /// Ends the payload.
    pub fn finish(self) -> Result<Residue, ModelError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let whole = matches!(self.state, State::Done)
            || (matches!(self.state, State::InScalar) && self.nest.depth() == 0);
        if !whole {
            return Err(self.not_json("the payload ends too early"));
        }
        Ok(Residue { json: self.residue, lens: self.lens })
    }

    fn walk(
        &mut self,
        piece: &[u8],
        sink: &mut impl FnMut(ContentEvent<'_>),
    ) -> Result<(), ModelError> {
        let mut rest = piece;
        while let Some(&byte) = rest.first() {
            let used = match &mut self.state {
                State::InText { .. } => self.in_text(rest)?,
                State::InName(_) => self.in_name(rest)?,
                State::InScalar => self.in_scalar(rest)?,
                &mut State::InContent { slot, coding } => {
                    self.in_content(slot, coding, rest, sink)?
                }
                State::Value
                | State::ValueOrEnd
                | State::NameOrEnd
                | State::Name
                | State::Colon
                | State::CommaOrEnd
                | State::Done => self.structure(byte, sink)?,
            };
            self.offset = self.offset.saturating_add(count(used));
            rest = rest.get(used..).unwrap_or_default();
        }
        // What is decoded does not wait for the next piece, which may be long in coming.
        if let State::InContent { slot, coding } = self.state {
            let mut emit = |bytes: &[u8]| sink(ContentEvent::Bytes { slot, bytes });
            match coding {
                Coding::Base64 => self.content.flush(&mut emit),
                Coding::Text => self.text.flush(&mut emit),
            }
        }
        Ok(())
    }

    /// One byte between strings and scalars.
    fn structure(
        &mut self,
        byte: u8,
        sink: &mut impl FnMut(ContentEvent<'_>),
    ) -> Result<usize, ModelError> {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            if byte == b'\n' {
                self.line = self.line.saturating_add(1);
                self.line_start = self.offset.saturating_add(1);
            }
            self.keep(&[byte])?;
            return Ok(1);
        }
        self.state = match (&self.state, byte) {
            (
                State::Value | State::ValueOrEnd,
                b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n',
            ) => self.begin_value(byte, sink)?,
            (State::ValueOrEnd, b']') => self.close(),
            (State::NameOrEnd | State::Name, b'"') => State::InName(Key::default()),
            (State::NameOrEnd, b'}') => self.close(),
            (State::Colon, b':') => State::Value,
            (State::CommaOrEnd, b',') if self.nest.in_object() => State::Name,
            (State::CommaOrEnd, b',') => State::Value,
            (State::CommaOrEnd, b'}') if self.nest.in_object() => self.close(),
            (State::CommaOrEnd, b']') if !self.nest.in_object() => self.close(),
            (State::Value | State::ValueOrEnd, _) => {
                return Err(self.not_json("a value is expected"));
            }
            (State::NameOrEnd | State::Name, _) => {
                return Err(self.not_json("a member name is expected"));
            }
            (State::Colon, _) => return Err(self.not_json("':' is expected")),
            (State::CommaOrEnd, _) => return Err(self.not_json("',' or an end is expected")),
            (State::Done, _) => return Err(self.not_json("nothing more is expected")),
            (
                State::InName(_) | State::InText { .. } | State::InScalar | State::InContent { .. },
                _,
            ) => {
                return Err(self.not_json("a token is still open"));
            }
        };
        self.keep(&[byte])?;
        Ok(1)
    }

    fn begin_value(
        &mut self,
        byte: u8,
        sink: &mut impl FnMut(ContentEvent<'_>),
    ) -> Result<State, ModelError> {
        if self.in_list && self.nest.depth() == 2 {
            if self.items >= LIST_ITEMS_MAX {
                let list = self.shape.list().unwrap_or_default();
                let place = Place::model(self.shape.model()).member(list);
                return Err(too_many_items(place, self.items.saturating_add(1), LIST_ITEMS_MAX));
            }
            self.items = self.items.saturating_add(1);
        }
        // A role belongs to the value right behind its name, and to nothing inside that value.
        let role = std::mem::replace(&mut self.role, Role::Plain);
        match byte {
            b'{' | b'[' => {
                if self.nest.depth() >= NEST_DEPTH_MAX {
                    let depth = self.nest.depth().saturating_add(1);
                    return Err(too_deep(Place::model(self.shape.model()), depth));
                }
                if byte == b'[' && role == Role::List {
                    self.in_list = true;
                    self.items = 0;
                }
                self.nest.open(byte == b'{');
                Ok(if byte == b'{' { State::NameOrEnd } else { State::ValueOrEnd })
            }
            b'"' => Ok(match role {
                Role::Content { slot, coding } => {
                    match coding {
                        Coding::Base64 => self.content.begin(),
                        Coding::Text => self.text.begin(),
                    }
                    sink(ContentEvent::Begin { slot });
                    State::InContent { slot, coding }
                }
                Role::Plain | Role::List => State::InText { escaped: false },
            }),
            _ => Ok(State::InScalar),
        }
    }

    fn close(&mut self) -> State {
        self.nest.close();
        if self.nest.depth() == 1 {
            self.in_list = false;
        }
        self.after_value()
    }

    fn after_value(&self) -> State {
        if self.nest.depth() == 0 { State::Done } else { State::CommaOrEnd }
    }

    /// The content that a member of this name is where the machine stands.
    fn content_at(&self, key: &Key) -> Option<(usize, Coding)> {
        match self.nest.depth() {
            1 => self.shape.content_beside(|name| key.is(name)),
            3 if self.in_list && key.is(LISTED) => {
                Some((self.items.saturating_sub(1), Coding::Base64))
            }
            _ => None,
        }
    }

    fn in_text(&mut self, rest: &[u8]) -> Result<usize, ModelError> {
        // A `\u` escape needs no state of its own here: hexadecimal digits neither end a string nor
        // escape anything.
        let State::InText { escaped } = &mut self.state else { return Ok(0) };
        let used = if *escaped {
            *escaped = false;
            1
        } else {
            let run = plain_run(rest);
            match rest.get(run) {
                Some(b'"') => {
                    self.state = self.after_value();
                    run.saturating_add(1)
                }
                Some(_) => {
                    *escaped = true;
                    run.saturating_add(1)
                }
                None => run,
            }
        };
        self.keep(rest.get(..used).unwrap_or_default())?;
        Ok(used)
    }

    fn in_name(&mut self, rest: &[u8]) -> Result<usize, ModelError> {
        let State::InName(key) = &mut self.state else { return Ok(0) };
        let taken = match key.take(rest) {
            Ok(taken) => taken,
            Err(bad) => return Err(self.bad_escape(&bad)),
        };
        self.keep(rest.get(..taken.used).unwrap_or_default())?;
        if taken.ended {
            self.name_ended();
        }
        Ok(taken.used)
    }

    fn name_ended(&mut self) {
        let State::InName(key) = &self.state else { return };
        self.role = if let Some((slot, coding)) = self.content_at(key) {
            // Whatever comes now takes the place of an earlier content, be it only a null.
            if let Some(len) = self.lens.get_mut(slot) {
                *len = None;
            }
            Role::Content { slot, coding }
        } else if self.nest.depth() == 1 && self.shape.list().is_some_and(|list| key.is(list)) {
            self.lens.clear();
            Role::List
        } else {
            Role::Plain
        };
        self.state = State::Colon;
    }

    fn in_scalar(&mut self, rest: &[u8]) -> Result<usize, ModelError> {
        let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
        let end = rest.iter().position(ends);
        let used = end.unwrap_or(rest.len());
        self.keep(rest.get(..used).unwrap_or_default())?;
        if end.is_some() {
            self.state = self.after_value();
        }
        Ok(used)
    }

    fn in_content(
        &mut self,
        slot: usize,
        coding: Coding,
        rest: &[u8],
        sink: &mut impl FnMut(ContentEvent<'_>),
    ) -> Result<usize, ModelError> {
        let mut emit = |bytes: &[u8]| sink(ContentEvent::Bytes { slot, bytes });
        let taken = match coding {
            Coding::Base64 => self.content.take(rest, &mut emit),
            Coding::Text => self.text.take(rest, &mut emit).map_err(content::Fault::Escape),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(content::Fault::Escape(bad)) => return Err(self.bad_escape(&bad)),
            Err(content::Fault::Base64 { offset, reason }) => {
                let place = self.shape.content_place(slot);
                return Err(ModelError::BadBase64 { place, offset, reason });
            }
        };
        if taken.ended {
            let len = match coding {
                Coding::Base64 => self.content.len(),
                Coding::Text => self.text.len(),
            };
            if self.lens.len() <= slot {
                self.lens.resize(slot.saturating_add(1), None);
            }
            if let Some(place) = self.lens.get_mut(slot) {
                *place = Some(len);
            }
            sink(ContentEvent::End { slot, len });
            self.keep(b"\"")?;
            self.state = self.after_value();
        }
        Ok(taken.used)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        let len = self.residue.len().saturating_add(bytes.len());
        if len > RESIDUE_BYTES_MAX {
            return Err(ModelError::OverLimit {
                place: Place::model(self.shape.model()),
                value: count(len),
                limit: count(RESIDUE_BYTES_MAX),
                unit: "bytes beside its contents",
                next: "send what is long in it as a file",
            });
        }
        self.residue.extend_from_slice(bytes);
        Ok(())
    }

    fn bad_escape(&mut self, bad: &BadEscape) -> ModelError {
        self.offset = self.offset.saturating_add(count(bad.used));
        self.not_json("an escape that JSON does not have")
    }

    fn not_json(&self, reason: &str) -> ModelError {
        ModelError::NotJson {
            place: Place::model(self.shape.model()),
            line: self.line,
            column: self.offset.saturating_sub(self.line_start).saturating_add(1),
            offset: self.offset,
            reason: reason.to_owned(),
        }
    }
}
