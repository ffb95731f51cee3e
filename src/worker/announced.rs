//! Decides when a worker looks which programs it has, and what it tells the leader of them: all of
//! them in its hello, and anew when something has changed or the leader asks.
//!
//! A leader goes by what it was told last, and asks before it fails a job for want of its program.
//! So an answer says what a look found that began after the question. It has no I/O and no clock;
//! the session looks, and sends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chunking::message::{Name, ProgramList, Programs, ProgramsSay};
use tokio::time::Instant;
use uuid::Uuid;

use super::handler::ProgramListing;
use super::limits::{PROGRAMS_ASKS_MAX, PROGRAMS_LOOK, PROGRAMS_LOOK_TIMES};
use crate::model::limits::{PROGRAM_NAME_BYTES_MAX, PROGRAMS_BYTES_MAX, PROGRAMS_LISTED_MAX};
use crate::peer::OutFrame;

/// What was found last, for the hello of the next connection.
#[derive(Clone, Debug)]
pub(super) struct ForHello(Arc<Mutex<Greeting>>);

#[derive(Debug)]
struct Greeting {
    listing: Option<ProgramListing>,
    /// The mark of what the last hello said.
    said: Option<u64>,
}

impl ForHello {
    /// Makes a hello with the programs that were found last; `hello` says whether they are in it.
    pub(super) fn make(
        &self,
        hello: impl FnOnce(Option<&[String]>) -> (OutFrame, bool),
    ) -> OutFrame {
        let mut greeting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = greeting.listing.as_ref().and_then(|listing| listing.names.as_deref());
        let unlisted = greeting.listing.is_some() && names.is_none();
        let (frame, is_in) = hello(names);
        // A hello without programs lists none, as is meant where none are listed.
        let mark = greeting.listing.as_ref().map(|listing| listing.mark);
        greeting.said = mark.filter(|_| is_in || unlisted);
        frame
    }

    fn said(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).said
    }

    fn set(&self, listing: ProgramListing) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).listing = Some(listing);
    }
}

/// What the leader was told.
#[derive(Debug)]
pub(super) struct Announced {
    /// What was found last; none for a handler that says nothing of programs.
    listing: Option<ProgramListing>,
    for_hello: ForHello,
    /// Whether a leader is there that wants to know.
    is_wanted: bool,
    /// The mark of what it was told on this connection.
    told: Option<u64>,
    /// Its questions: those that the look under way answers, and those that came since it began.
    asked: Vec<Uuid>,
    asked_since: Vec<Uuid>,
    looking: bool,
    /// When it is looked again.
    due: Option<Instant>,
}

impl Announced {
    pub(super) fn new(listing: Option<ProgramListing>) -> Self {
        let listing = listing.map(sound);
        let greeting = Greeting { listing: listing.clone(), said: None };
        Announced {
            listing,
            for_hello: ForHello(Arc::new(Mutex::new(greeting))),
            is_wanted: false,
            told: None,
            asked: Vec::new(),
            asked_since: Vec::new(),
            looking: false,
            due: None,
        }
    }

    pub(super) fn for_hello(&self) -> ForHello {
        self.for_hello.clone()
    }

    /// When it is to be looked again, if nothing happens before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.looking)
    }

    /// A leader is there, which wants to know or does not.
    pub(super) fn on_leader(&mut self, wants: bool, now: Instant) -> Option<OutFrame> {
        self.is_wanted = wants && self.listing.is_some();
        if !self.is_wanted {
            return None;
        }
        self.told = self.for_hello.said();
        // Something may have changed since the hello was made.
        self.due = Some(now);
        self.tell(Uuid::nil())
    }

    pub(super) fn on_lost(&mut self) {
        (self.is_wanted, self.told, self.due) = (false, None, None);
        self.asked.clear();
        self.asked_since.clear();
    }

    /// The leader asks.
    pub(super) fn on_asked(&mut self, question: Uuid, now: Instant) -> Option<OutFrame> {
        if self.listing.is_none() {
            return Some(frame(ProgramsSay::Unlisted, Vec::new(), question));
        }
        if self.asked_since.len() < PROGRAMS_ASKS_MAX {
            self.asked_since.push(question);
        }
        self.due = Some(now);
        None
    }

    /// A job was handed back for want of its program: the leader may not know yet.
    pub(super) fn on_missing(&mut self, now: Instant) {
        if self.is_wanted {
            self.due = Some(now);
        }
    }

    /// Whether it is to be looked now. Then [`Announced::on_looked`] follows.
    pub(super) fn begin_look(&mut self, now: Instant) -> bool {
        if !self.is_wanted || self.next_due().is_none_or(|due| due > now) {
            return false;
        }
        self.asked.append(&mut self.asked_since);
        self.looking = true;
        self.due = None;
        true
    }

    /// What a look found, if it ended well, and how long it took.
    pub(super) fn on_looked(
        &mut self,
        found: Option<ProgramListing>,
        took: Duration,
        now: Instant,
    ) -> Vec<OutFrame> {
        self.looking = false;
        if let Some(found) = found.map(sound) {
            self.for_hello.set(found.clone());
            self.listing = Some(found);
        }
        let next = now + PROGRAMS_LOOK.max(took.saturating_mul(PROGRAMS_LOOK_TIMES));
        let is_asked = !self.asked_since.is_empty();
        self.due = self.is_wanted.then_some(if is_asked { now } else { next });
        let mut asked = std::mem::take(&mut self.asked).into_iter();
        if !self.is_wanted {
            return Vec::new();
        }
        let first = asked.next();
        let news = self.tell(first.unwrap_or(Uuid::nil()));
        let same = |question| frame(ProgramsSay::Same, Vec::new(), question);
        let first = news.or_else(|| first.map(same));
        first.into_iter().chain(asked.map(same)).collect()
    }

    /// Tells what was found, if that is not what was told.
    fn tell(&mut self, question: Uuid) -> Option<OutFrame> {
        let listing = self.listing.as_ref().filter(|listing| Some(listing.mark) != self.told)?;
        self.told = Some(listing.mark);
        let names = listing.names.as_ref().map(|names| {
            names.iter().filter_map(|name| Name::try_from(name.clone()).ok()).collect()
        });
        Some(match names {
            Some(names) => frame(ProgramsSay::Are, names, question),
            None => frame(ProgramsSay::Unlisted, Vec::new(), question),
        })
    }
}

fn frame(say: ProgramsSay, names: Vec<Name>, question: Uuid) -> OutFrame {
    let programs = Programs { say, names: ProgramList::new(names) };
    OutFrame { corr_id: question, ..OutFrame::message(Uuid::nil(), &programs) }
}

/// A listing as it can be told: a handler of others may list what is too much.
fn sound(listing: ProgramListing) -> ProgramListing {
    let is_sound = |names: &Vec<String>| {
        let bytes = names.iter().map(|name| (name.len() + size_of::<Box<str>>()) as u64);
        names.len() <= PROGRAMS_LISTED_MAX
            && bytes.sum::<u64>() <= PROGRAMS_BYTES_MAX
            && names.iter().all(|name| (1..=PROGRAM_NAME_BYTES_MAX).contains(&name.len()))
    };
    ProgramListing { names: listing.names.filter(is_sound), ..listing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::Kind;
    use chunking::message::Body;

    fn listing(names: &[&str], mark: u64) -> ProgramListing {
        ProgramListing { names: Some(names.iter().map(ToString::to_string).collect()), mark }
    }

    fn hello(announced: &Announced, fits: bool) -> Option<Vec<String>> {
        let mut seen = None;
        announced.for_hello().make(|names| {
            seen = names.map(<[String]>::to_vec);
            (OutFrame::new(Kind::HelloWorker, Vec::new()), fits && names.is_some())
        });
        seen
    }

    fn said(frame: &OutFrame) -> (ProgramsSay, Vec<String>, Uuid) {
        let Programs { say, names } = Programs::decode(&frame.payload).unwrap();
        let names = names.as_slice().iter().map(|name| name.as_str().to_owned()).collect();
        (say, names, frame.corr_id)
    }

    #[test]
    fn what_the_hello_said_is_not_said_again_and_what_did_not_fit_in_is() {
        let now = Instant::now();
        let mut announced = Announced::new(Some(listing(&["calcA"], 7)));
        assert_eq!(hello(&announced, true), Some(vec!["calcA".to_owned()]));
        assert!(announced.on_leader(true, now).is_none());
        assert!(announced.begin_look(now), "it may have changed meanwhile");
        assert!(announced.on_looked(Some(listing(&["calcA"], 7)), Duration::ZERO, now).is_empty());
        announced.on_lost();
        assert!(!announced.begin_look(now), "nobody wants to know");
        hello(&announced, false);
        let told = announced.on_leader(true, now).unwrap();
        assert_eq!(said(&told), (ProgramsSay::Are, vec!["calcA".into()], Uuid::nil()));
        // An older leader is told nothing.
        announced.on_lost();
        hello(&announced, true);
        assert!(announced.on_leader(false, now).is_none() && !announced.begin_look(now));
    }

    #[test]
    fn changes_are_told_unasked_and_looks_take_a_small_part_of_the_time() {
        let start = Instant::now();
        let mut announced = Announced::new(Some(listing(&[], 1)));
        hello(&announced, true);
        announced.on_leader(true, start);
        assert!(announced.begin_look(start) && !announced.begin_look(start));
        let took = Duration::from_millis(100);
        let frames = announced.on_looked(Some(listing(&["new"], 2)), took, start);
        assert_eq!(
            frames.iter().map(said).collect::<Vec<_>>(),
            [(ProgramsSay::Are, vec!["new".into()], Uuid::nil())]
        );
        assert_eq!(announced.next_due(), Some(start + Duration::from_secs(5)));
        let later = start + Duration::from_secs(5);
        assert!(!announced.begin_look(start) && announced.begin_look(later));
        // The names are the same, and something was replaced.
        let frames = announced.on_looked(Some(listing(&["new"], 3)), Duration::ZERO, later);
        assert_eq!(frames.len(), 1);
        assert_eq!(announced.next_due(), Some(later + PROGRAMS_LOOK));
        announced.on_missing(later);
        assert!(announced.begin_look(later));
        let unlisted = ProgramListing { names: None, mark: 4 };
        let frames = announced.on_looked(Some(unlisted), Duration::ZERO, later);
        assert_eq!(said(&frames[0]).0, ProgramsSay::Unlisted);
        assert_eq!(hello(&announced, true), None);
    }

    #[test]
    fn a_question_is_answered_by_a_look_that_began_after_it() {
        let now = Instant::now();
        let [first, second, third] = [1, 2, 3].map(Uuid::from_u128);
        let mut announced = Announced::new(Some(listing(&["a"], 1)));
        hello(&announced, true);
        announced.on_leader(true, now);
        assert!(announced.begin_look(now));
        // The look under way may have passed what is asked for.
        assert!(announced.on_asked(first, now).is_none());
        assert!(announced.on_looked(Some(listing(&["a"], 1)), Duration::ZERO, now).is_empty());
        assert!(announced.begin_look(now), "at once");
        announced.on_asked(second, now);
        announced.on_asked(third, now);
        let frames = announced.on_looked(Some(listing(&["a"], 1)), Duration::ZERO, now);
        assert_eq!(
            frames.iter().map(said).collect::<Vec<_>>(),
            [(ProgramsSay::Same, vec![], first)]
        );
        assert!(announced.begin_look(now));
        let frames = announced.on_looked(Some(listing(&["a", "b"], 2)), Duration::ZERO, now);
        let expected = [
            (ProgramsSay::Are, vec!["a".into(), "b".into()], second),
            (ProgramsSay::Same, vec![], third),
        ];
        assert_eq!(frames.iter().map(said).collect::<Vec<_>>(), expected);
        // A look that failed answers with what is known.
        announced.on_asked(first, now);
        assert!(announced.begin_look(now));
        let frames = announced.on_looked(None, Duration::ZERO, now);
        assert_eq!(said(&frames[0]), (ProgramsSay::Same, vec![], first));
    }

    #[test]
    fn a_handler_that_says_nothing_of_programs_is_not_looked_at_and_too_much_is_not_told() {
        let now = Instant::now();
        let mut announced = Announced::new(None);
        assert_eq!(hello(&announced, true), None);
        assert!(announced.on_leader(true, now).is_none() && !announced.begin_look(now));
        let answer = announced.on_asked(Uuid::from_u128(1), now).unwrap();
        assert_eq!(said(&answer), (ProgramsSay::Unlisted, vec![], Uuid::from_u128(1)));
        for too_much in [
            vec!["x".to_owned(); PROGRAMS_LISTED_MAX + 1],
            vec!["x".repeat(PROGRAM_NAME_BYTES_MAX + 1)],
            vec!["x".repeat(200); 999],
            vec![String::new()],
        ] {
            let listing = ProgramListing { names: Some(too_much), mark: 1 };
            assert_eq!(hello(&Announced::new(Some(listing)), true), None);
        }
    }

    #[test]
    fn questions_that_are_kept_are_bounded() {
        let now = Instant::now();
        let mut announced = Announced::new(Some(listing(&["a"], 1)));
        hello(&announced, true);
        announced.on_leader(true, now);
        for number in 0..10_000 {
            announced.on_asked(Uuid::from_u128(number), now);
        }
        assert!(announced.begin_look(now));
        let frames = announced.on_looked(None, Duration::ZERO, now);
        assert_eq!(frames.len(), PROGRAMS_ASKS_MAX);
    }
}
