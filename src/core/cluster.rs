//! What the state knows of the cluster that it belongs to, and the term of each record.
//!
//! A leader without a cluster has none of it: nothing of this is in its log or its snapshots.

use std::sync::Arc;

use super::ids::{Index, Level, Micros, Node, Term};
use super::members::Members;
use super::record::Record;
use super::state::Applied;

/// The highest level that is known here: all records up to kind 26.
pub const LEVEL_MAX: Level = Level(1);

/// Beginnings of terms that are remembered. The oldest are forgotten: the log is cut long before so
/// many elections.
pub const TERMS_MAX: usize = 4096;

/// The term of all records before the first election.
pub const TERM_FIRST: Term = Term(1);

/// Who leads, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Office {
    pub leader: Node,
    pub at: Micros,
}

/// The part of the state that is about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// None before the cluster was made.
    pub members: Option<Arc<Members>>,
    /// The term of the last [`Record::Term`]; 0 if there was none.
    pub term: Term,
    pub level: Level,
    /// Who took office last.
    pub office: Option<Office>,
}

impl Cluster {
    pub(super) fn begin_term(&mut self, term: Term) -> Applied {
        changed(self.term < term, || self.term = term)
    }

    pub(super) fn set_members(&mut self, next: &Arc<Members>) -> Applied {
        let may_be = match &self.members {
            Some(members) => members.may_become(next),
            None => !next.is_joint(),
        };
        changed(may_be, || self.members = Some(next.clone()))
    }

    pub(super) fn raise_level(&mut self, level: Level) -> Applied {
        changed(self.level < level, || self.level = level)
    }

    pub(super) fn take_office(&mut self, leader: Node, at: Micros) -> Applied {
        self.office = Some(Office { leader, at });
        Applied::Changed
    }

    /// Whether nothing is known: there is no cluster.
    pub fn is_none(&self) -> bool {
        *self == Cluster::default()
    }
}

fn changed(is_new: bool, change: impl FnOnce()) -> Applied {
    if !is_new {
        return Applied::Stale;
    }
    change();
    Applied::Changed
}

/// Which term each record has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// With which record each term began, the oldest first. Never empty.
    begun: Vec<(Index, Term)>,
}

impl Default for Terms {
    /// Those of a log without an election.
    fn default() -> Self {
        Terms { begun: vec![(Index(1), TERM_FIRST)] }
    }
}

impl Terms {
    /// The terms that began with these records, the oldest first. `None` if they are too many,
    /// none, or not in order.
    pub fn restore(begun: Vec<(Index, Term)>) -> Option<Self> {
        let is_first = |(index, term): &(Index, Term)| index.0 > 0 && term.0 > 0;
        let is_in_order =
            begun.is_sorted_by(|before, after| before.0 < after.0 && before.1 < after.1);
        let is_good =
            is_in_order && begun.len() <= TERMS_MAX && begun.first().is_some_and(is_first);
        is_good.then_some(Terms { begun })
    }

    /// The term of a record; of none if it is older than what is remembered. The place before the
    /// first record has term 0.
    pub fn of(&self, index: Index) -> Option<Term> {
        if index == Index(0) {
            return Some(Term(0));
        }
        let behind = self.begun.partition_point(|(begun, _)| *begun <= index);
        self.begun.get(behind.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// The last term.
    pub fn last(&self) -> Term {
        self.begun.last().map_or(TERM_FIRST, |(_, term)| *term)
    }

    /// Where terms began, the oldest first.
    pub fn begun(&self) -> &[(Index, Term)] {
        &self.begun
    }

    /// The record at `index` follows. One in mid-term, or of an earlier term, begins none.
    pub fn note(&mut self, index: Index, record: &Record) {
        let Record::Term { term } = record else { return };
        let is_behind = self.begun.last().is_none_or(|(begun, _)| *begun < index);
        // The first term of a log that never was of one node begins with its first record.
        if self.begun.len() == 1 && self.begun.first().is_some_and(|(begun, _)| *begun == index) {
            if self.last() < *term {
                self.begun = vec![(index, *term)];
            }
            return;
        }
        if is_behind && self.last() < *term {
            self.begun.push((index, *term));
            if self.begun.len() > TERMS_MAX {
                self.begun.remove(0);
            }
        }
    }

    /// The records from `index` on are not any more.
    pub fn cut(&mut self, index: Index) {
        let keep = self.begun.partition_point(|(begun, _)| *begun < index);
        self.begun.truncate(keep);
        if self.begun.is_empty() {
            *self = Terms::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::members::{Member, Role};
    use crate::core::state::State;
    use uuid::Uuid;

    fn term(term: u64) -> Record {
        Record::Term { term: Term(term) }
    }

    #[test]
    fn every_record_has_the_term_that_began_before_it() {
        let mut terms = Terms::default();
        assert_eq!((terms.of(Index(0)), terms.of(Index(9))), (Some(Term(0)), Some(Term(1))));
        terms.note(Index(10), &term(2));
        terms.note(Index(11), &Record::Level { level: Level(1) });
        terms.note(Index(12), &term(2));
        terms.note(Index(20), &term(5));
        terms.note(Index(21), &term(4));
        assert_eq!(
            terms.begun(),
            [(Index(1), Term(1)), (Index(10), Term(2)), (Index(20), Term(5))]
        );
        let of = |index| terms.of(Index(index)).unwrap().0;
        assert_eq!([of(0), of(1), of(9), of(10), of(19), of(20), of(99)], [0, 1, 1, 2, 2, 5, 5]);
        terms.cut(Index(20));
        assert_eq!((terms.last(), terms.of(Index(20))), (Term(2), Some(Term(2))));
        terms.cut(Index(1));
        assert_eq!(terms, Terms::default());
    }

    #[test]
    fn a_log_that_begins_with_an_election_has_no_term_1() {
        let mut terms = Terms::default();
        terms.note(Index(1), &term(2));
        assert_eq!(terms.begun(), [(Index(1), Term(2))]);
        assert_eq!((terms.of(Index(0)), terms.of(Index(1))), (Some(Term(0)), Some(Term(2))));
    }

    #[test]
    fn the_oldest_terms_are_forgotten_and_then_not_known() {
        let mut terms = Terms::default();
        for number in 0..TERMS_MAX as u64 {
            terms.note(Index(10 + number), &term(2 + number));
        }
        assert_eq!(terms.begun().len(), TERMS_MAX);
        assert_eq!(terms.of(Index(9)), None);
        assert_eq!(terms.of(Index(10)), Some(Term(2)));
        assert_eq!(terms.of(Index(0)), Some(Term(0)));
        assert_eq!(Terms::restore(terms.begun().to_vec()), Some(terms.clone()));
        let more = [terms.begun(), &[(Index(1 << 40), Term(1 << 40))]].concat();
        assert_eq!(Terms::restore(more), None);
    }

    #[test]
    fn terms_that_are_not_in_order_are_refused() {
        let restore = |begun: &[(u64, u64)]| {
            let begun = begun.iter().map(|(index, term)| (Index(*index), Term(*term)));
            Terms::restore(begun.collect()).is_some()
        };
        assert!(restore(&[(1, 1)]) && restore(&[(3, 1), (4, 9)]));
        for wrong in [&[][..], &[(0, 1)], &[(1, 0)], &[(1, 1), (1, 2)], &[(1, 2), (2, 2)]] {
            assert!(!restore(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn records_about_the_cluster_change_what_they_name_and_stale_ones_nothing() {
        let members = |nodes: &[u32]| -> Vec<Member> {
            let address = |node| format!("h{node}:1");
            let of = |node: &u32| {
                let dir = Uuid::from_u128((*node).into());
                Member::new(Node(*node), dir, Role::Voter, &address(*node))
            };
            nodes.iter().map(of).collect()
        };
        let mut state = State::default();
        assert!(state.cluster().is_none());
        let mut apply = |record: &Record| state.apply(record);
        let first = Members::new(Uuid::from_u128(7), members(&[0])).unwrap();
        let joint = first.enter(members(&[0, 1])).unwrap();
        let record = |members: &Members| Record::Members { members: members.clone().into() };
        assert_eq!(apply(&record(&joint)), Applied::Stale, "nothing was there to change");
        assert_eq!(apply(&record(&first)), Applied::Changed);
        assert_eq!(apply(&record(&first)), Applied::Stale);
        assert_eq!(apply(&record(&joint.leave().unwrap())), Applied::Stale);
        assert_eq!(apply(&record(&joint)), Applied::Changed);
        assert_eq!(apply(&term(2)), Applied::Changed);
        assert_eq!((apply(&term(2)), apply(&term(1))), (Applied::Stale, Applied::Stale));
        assert_eq!(apply(&Record::Level { level: Level(1) }), Applied::Changed);
        assert_eq!(apply(&Record::Level { level: Level(1) }), Applied::Stale);
        let (leader, at) = (Node(1), Micros(5));
        assert_eq!(apply(&Record::Office { leader, at }), Applied::Changed);
        let before = state.clone();
        assert_eq!(state.apply(&Record::Mark { id: Uuid::from_u128(1) }), Applied::Changed);
        assert_eq!(state, before, "a mark only says where states are compared");
        let office = Some(Office { leader, at });
        let (members, level) = (Some(joint.into()), Level(1));
        assert_eq!(*state.cluster(), Cluster { members, term: Term(2), level, office });
    }
}
