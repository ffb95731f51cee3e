//! One node that hears what the test says; whole clusters are in `tests/raft_sim.rs`.

use chunking::message::{
    AppendEntries, AppendOutcome, AppendResp, AppendSays, EntryKind, EntryList, LogEntry,
    MembersBytes, RequestVote, TimeoutNow, Trouble, VoteAnswer, VoteFlags, VoteResp,
};
use uuid::Uuid;

use super::messages::{from_engine, members_bytes, stored, to_engine};
use super::*;
use crate::core::members::{Member, Role as MemberRole};

fn members(nodes: std::ops::Range<u32>) -> Arc<Members> {
    let list = nodes.map(|node| {
        let dir = Uuid::from_u128(u128::from(node) + 1);
        Member::new(Node(node), dir, MemberRole::Voter, &format!("h{node}:5000"))
    });
    Arc::new(Members::new(Uuid::from_u128(9), list.collect()).unwrap())
}

fn entry(index: u64, term: u64) -> Entry {
    let (index, term) = (Index(index), Term(term));
    Entry { index, term, body: Body::Record(bytes::Bytes::from_static(b"a record")) }
}

/// Node 0 of so many. Its log has the members and `records` more, of term 1.
struct One {
    raft: Raft,
    said: Vec<Output>,
}

impl One {
    fn new(nodes: u32, records: u64) -> Self {
        let members = members(0..nodes);
        let first = Entry { index: Index(1), term: Term(1), body: Body::Members(members.clone()) };
        let entries =
            [first].into_iter().chain((2..2 + records).map(|index| entry(index, 1))).collect();
        let start = Start {
            node: Node(0),
            vote: Vote { term: Term(1), node: None },
            base: (Index(0), Term(0)),
            offer: None,
            entries,
            applied: Index(1),
            members: Some(members),
            pace: Pace::USUAL,
            entropy: 5,
            planted: Planted::default(),
        };
        One { raft: Raft::start(start).unwrap(), said: Vec::new() }
    }

    /// A disk and a state that are done at once.
    fn settle(&mut self) {
        while let Some(output) = self.raft.poll_output() {
            match &output {
                Output::Write(write) => self.raft.synced(write.number),
                Output::Commit(entries) => {
                    for entry in entries {
                        let changed = match &entry.body {
                            Body::Members(next) => {
                                let now = self.raft.members();
                                let follows = now.is_none_or(|now| now.may_become(next));
                                follows.then(|| next.clone())
                            }
                            Body::Term | Body::Record(_) => None,
                        };
                        self.raft.applied(entry.index, changed.as_ref());
                    }
                }
                Output::Send { .. }
                | Output::Office(_)
                | Output::Install { .. }
                | Output::SnapshotWanted
                | Output::Fetch { .. }
                | Output::Stop(_) => {}
            }
            self.said.push(output);
        }
    }

    fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.raft.tick(3);
            self.settle();
        }
    }

    fn hears(&mut self, message: PeerMessage) -> Result<(), Refused> {
        let heard = self.raft.heard(message.ends().0, &message);
        self.settle();
        heard
    }

    fn office(&self) -> Office {
        self.raft.status().office
    }

    /// Node 0 stands for election, and node 1 votes for it.
    fn elect(&mut self) {
        self.ticks(20);
        let term = self.raft.engine.raft.term;
        let vote = |term, flags| {
            let (from, to, answer, commit, commit_term) = (1, 0, VoteAnswer::Granted, 0, 0);
            PeerMessage::VoteResp(VoteResp { from, to, term, answer, flags, commit, commit_term })
        };
        self.hears(vote(term + 1, VoteFlags::PRE)).unwrap();
        self.hears(vote(term + 1, VoteFlags(0))).unwrap();
        assert_eq!(self.raft.status().role, Role::Leader);
    }
}

fn append(term: u64, prev: (u64, u64), terms: &[u64], commit: u64) -> AppendEntries {
    let entries = terms.iter().map(|term| LogEntry {
        kind: EntryKind::Record,
        term: *term,
        bytes: b"another".to_vec(),
    });
    AppendEntries {
        says: AppendSays::Append,
        from: 1,
        to: 0,
        term,
        prev_index: prev.0,
        prev_term: prev.1,
        commit,
        round: 0,
        sent: 0,
        trouble: Trouble::default(),
        blobs_low: 0,
        entries: EntryList(entries.collect()),
    }
}

fn heartbeat(term: u64, commit: u64) -> AppendEntries {
    AppendEntries { says: AppendSays::Heartbeat, ..append(term, (0, 0), &[], commit) }
}

fn taken(term: u64, index: u64) -> AppendResp {
    AppendResp {
        says: AppendSays::Append,
        from: 1,
        to: 0,
        term,
        outcome: AppendOutcome::Taken,
        index,
        hint: 0,
        hint_term: 0,
        commit: 0,
        round: 0,
        echo: 0,
        applied: 0,
        trouble: Trouble::default(),
        lacking: 0,
    }
}

fn refused(heard: Result<(), Refused>) -> &'static str {
    match heard {
        Err(Refused::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lone_voter_leads_when_its_vote_is_on_the_disk_and_not_before() {
    let mut one = One::new(1, 0);
    let mut writes = Vec::new();
    for _ in 0..40 {
        one.raft.tick(1);
        while let Some(output) = one.raft.poll_output() {
            if let Output::Write(write) = output {
                writes.push(write);
                continue;
            }
            assert!(matches!(output, Output::Office(Office::Looking { .. })), "{output:?}");
        }
    }
    assert_eq!(writes.len(), 1, "vote and first record together");
    assert_eq!(writes[0].vote, Some(Vote { term: Term(2), node: Some(Node(0)) }));
    assert_eq!(writes[0].entries[0].body, Body::Term);
    assert_eq!(one.raft.propose(entry(0, 0).body), Err(NotTaken::TermNotBegun));
    one.raft.synced(writes[0].number);
    one.settle();
    assert_eq!(one.office(), Office::Leading { term: Term(2) });
    assert_eq!(one.raft.propose(entry(0, 0).body), Ok(Index(3)));
    one.settle();
    assert_eq!(one.raft.status().applied, Index(3));
}

#[test]
fn a_vote_leaves_when_it_is_on_the_disk() {
    let mut one = One::new(3, 0);
    let vote = RequestVote {
        from: 2,
        to: 0,
        term: 2,
        last_index: 1,
        last_term: 1,
        commit: 1,
        commit_term: 1,
        flags: VoteFlags(0),
    };
    one.raft.heard(Node(2), &PeerMessage::RequestVote(vote)).unwrap();
    let outputs: Vec<Output> = std::iter::from_fn(|| one.raft.poll_output()).collect();
    let [Output::Write(write), Output::Office(_)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(write.vote, Some(Vote { term: Term(2), node: Some(Node(2)) }));
    one.raft.synced(write.number);
    let Some(Output::Send { to, message: PeerMessage::VoteResp(resp) }) = one.raft.poll_output()
    else {
        panic!("an answer");
    };
    assert_eq!((to, resp.answer, resp.term), (Node(2), VoteAnswer::Granted, 2));
}

#[test]
fn what_no_honest_node_says_is_refused_with_the_field() {
    let mut one = One::new(3, 3);
    let most = crate::consensus::limits::NUMBER_MAX;
    let mut says = |message: AppendEntries| refused(one.hears(PeerMessage::Append(message)));
    assert_eq!(says(append(0, (4, 1), &[], 1)), "term");
    assert_eq!(says(append(most + 1, (4, 1), &[], 1)), "term");
    assert_eq!(says(append(3, (4, 0), &[], 1)), "prev_term", "0 would fit anywhere");
    assert_eq!(says(append(3, (0, 1), &[], 1)), "prev_term");
    assert_eq!(says(append(3, (most + 1, 1), &[], 1)), "prev_index");
    assert_eq!(says(append(3, (4, 1), &[], u64::MAX)), "commit");
    assert_eq!(says(append(3, (4, 1), &[3, 2], 1)), "entries", "terms go down");
    assert_eq!(says(append(3, (4, 1), &[4], 1)), "entries", "a term behind the leader's");
    assert_eq!(says(append(3, (4, 5), &[], 1)), "prev_term");
    assert_eq!(says(AppendEntries { round: 1, ..append(3, (4, 1), &[], 1) }), "round");
    assert_eq!(says(AppendEntries { prev_index: 1, ..heartbeat(3, 1) }), "prev_index");
    let mut resp = |message| refused(one.hears(PeerMessage::AppendResp(message)));
    assert_eq!(resp(taken(1, u64::MAX)), "index");
    assert_eq!(resp(AppendResp { hint: u64::MAX, ..taken(1, 0) }), "hint");
    one.elect();
    let heard = one.hears(PeerMessage::AppendResp(taken(2, 6)));
    assert_eq!(refused(heard), "index", "more than the leader has");
    let heard = one.hears(PeerMessage::Append(append(2, (4, 1), &[], 1)));
    assert!(matches!(heard, Err(Refused::SecondLeader { .. })), "{heard:?}");
    let other = PeerMessage::TimeoutNow(TimeoutNow { from: 1, to: 2, term: 2 });
    assert!(matches!(one.raft.heard(Node(1), &other), Err(Refused::Ends { .. })));
    let mine = PeerMessage::TimeoutNow(TimeoutNow { from: 1, to: 0, term: 2 });
    assert!(matches!(one.raft.heard(Node(2), &mine), Err(Refused::Ends { .. })));
    assert!(matches!(one.hears(mine), Err(Refused::NotItsLeader { .. })));
}

#[test]
fn a_node_that_lost_what_it_acknowledged_stops_for_good() {
    let mut one = One::new(3, 3);
    let heard = one.hears(PeerMessage::Append(heartbeat(2, 5)));
    let damage = Damage::Lost { last: Index(4), said: Index(5) };
    assert_eq!(heard, Err(Refused::Stopped(damage.clone())));
    assert_eq!(one.said, [Output::Stop(damage.clone())]);
    one.ticks(100);
    assert_eq!(one.said.len(), 1, "not even a vote");
    assert_eq!(one.raft.propose(entry(0, 0).body), Err(NotTaken::Stopped(damage)));
}

#[test]
fn a_leader_with_another_committed_record_stops_this_node() {
    let mut one = One::new(3, 3);
    one.hears(PeerMessage::Append(append(2, (4, 1), &[], 4))).unwrap();
    let heard = one.hears(PeerMessage::Append(append(3, (2, 1), &[2], 4)));
    let damage = Damage::Conflict { index: Index(3), leader: Node(1) };
    assert_eq!(heard, Err(Refused::Stopped(damage)));
}

#[test]
fn records_wait_within_their_limits() {
    let mut one = One::new(3, 0);
    one.elect();
    one.hears(PeerMessage::AppendResp(taken(2, 2))).unwrap();
    assert_eq!(one.office(), Office::Leading { term: Term(2) });
    assert_eq!(one.raft.propose(Body::Term), Err(NotTaken::Empty));
    assert_eq!(one.raft.propose(Body::Record(bytes::Bytes::new())), Err(NotTaken::Empty));
    let (bytes, limit) = (PROPOSED_BYTES_MAX + 1, PROPOSED_BYTES_MAX);
    let large = Body::Record(vec![1; bytes].into());
    assert_eq!(one.raft.propose(large), Err(NotTaken::TooLarge { bytes, limit }));
    for _ in 0..UNCOMMITTED_RECORDS_MAX {
        one.raft.propose(entry(0, 0).body).unwrap();
        one.settle();
        one.said.clear();
    }
    let (value, limit) = (UNCOMMITTED_RECORDS_MAX, UNCOMMITTED_RECORDS_MAX);
    let busy = NotTaken::Busy { what: "records", value, limit };
    assert_eq!(one.raft.propose(entry(0, 0).body), Err(busy));
}

#[test]
fn a_change_of_members_is_one_step_at_a_time() {
    let mut one = One::new(3, 0);
    one.elect();
    one.hears(PeerMessage::AppendResp(taken(2, 2))).unwrap();
    let now = members(0..3);
    let next =
        |nodes| Body::Members(Arc::new(now.enter(members(nodes).incoming().to_vec()).unwrap()));
    assert_eq!(one.raft.propose(Body::Members(now.clone())), Err(NotTaken::NotAStep));
    assert_eq!(one.raft.propose(next(0..3)), Err(NotTaken::NotAStep), "it changes nothing");
    assert_eq!(one.raft.propose(next(0..4)), Ok(Index(3)));
    assert_eq!(one.raft.propose(next(0..5)), Err(NotTaken::ChangeUnderWay));
    one.settle();
    assert!(!one.raft.has_to_leave(), "it is not committed");
    one.hears(PeerMessage::AppendResp(taken(2, 3))).unwrap();
    assert!(one.raft.has_to_leave());
    let left = Arc::new(one.raft.members().unwrap().leave().unwrap());
    assert_eq!(one.raft.propose(Body::Members(left.clone())), Ok(Index(4)));
    one.settle();
    one.hears(PeerMessage::AppendResp(taken(2, 4))).unwrap();
    assert!(!one.raft.members().unwrap().is_joint() || one.raft.status().committed < Index(4));
    let addresses = left.incoming().to_vec();
    assert_eq!(left.readdress(addresses).map(|same| same == *left), Ok(true));
}

#[test]
fn a_message_is_the_same_behind_the_wire() {
    let index = Index(7);
    let message = |kind: ::raft::eraftpb::MessageType| {
        let mut made = ::raft::eraftpb::Message { from: 1, to: 3, term: 4, ..Default::default() };
        made.set_msg_type(kind);
        made
    };
    use ::raft::eraftpb::MessageType as Type;
    let mut all = Vec::new();
    let mut made = message(Type::MsgAppend);
    (made.index, made.log_term, made.commit) = (7, 3, 6);
    let bodies = [Body::Term, entry(0, 0).body, Body::Members(members(0..3))];
    let entries = bodies
        .into_iter()
        .zip(8..)
        .map(|(body, index)| stored(&Entry { index: Index(index), term: Term(4), body }));
    made.set_entries(entries.collect::<Vec<_>>().into());
    all.push(made);
    let mut made = message(Type::MsgHeartbeat);
    (made.commit, made.context) = (6, bytes::Bytes::from_static(&[9, 0, 0, 0, 0, 0, 0, 0]));
    all.push(made);
    for kind in [Type::MsgAppendResponse, Type::MsgHeartbeatResponse] {
        for reject in [false, true] {
            let mut made = message(kind);
            (made.index, made.commit, made.reject) = (7, 6, reject);
            (made.reject_hint, made.log_term) = if reject { (5, 2) } else { (0, 0) };
            all.push(made);
        }
    }
    for kind in [Type::MsgRequestVote, Type::MsgRequestPreVote] {
        let mut made = message(kind);
        (made.index, made.log_term, made.commit, made.commit_term) = (7, 3, 6, 2);
        all.push(made.clone());
        made.context = bytes::Bytes::from_static(b"CampaignTransfer");
        all.push(made);
    }
    for kind in [Type::MsgRequestVoteResponse, Type::MsgRequestPreVoteResponse] {
        let mut made = message(kind);
        (made.reject, made.commit, made.commit_term) = (true, 6, 2);
        all.push(made);
    }
    let mut made = message(Type::MsgSnapshot);
    let snapshot = Snapshot { index, term: Term(3), members: members(0..3) };
    made.set_snapshot(log::engine_snapshot(&snapshot));
    all.push(made);
    all.push(message(Type::MsgTimeoutNow));
    for made in all {
        let (to, sent) = from_engine(made.clone(), Index(5)).unwrap();
        let [sent] = &sent[..] else { panic!("one message") };
        assert_eq!((to, sent.ends(), sent.term()), (Node(2), (Node(0), Node(2)), Term(4)));
        let mut payload = Vec::new();
        sent.encode(&mut payload);
        let read = PeerMessage::decode(sent.kind(), &payload).unwrap();
        assert_eq!(&read, sent);
        assert_eq!(to_engine(&read, |_, _| None).unwrap(), made);
    }
    for local in [Type::MsgPropose, Type::MsgReadIndex, Type::MsgTransferLeader] {
        assert!(matches!(from_engine(message(local), index), Err(ConvertError::NoFrame { .. })));
    }
}

#[test]
fn a_large_record_goes_ahead_in_pieces_and_is_whole_behind_them() {
    let len = 2 * chunking::limits::APPEND_BYTES_MAX + 5;
    let bytes: bytes::Bytes = (0..len).map(|at| at.to_le_bytes()[0]).collect();
    let body = Body::Record(bytes.clone());
    let mut made = ::raft::eraftpb::Message { from: 2, to: 1, term: 4, ..Default::default() };
    made.set_msg_type(::raft::eraftpb::MessageType::MsgAppend);
    (made.index, made.log_term) = (7, 4);
    let one = stored(&Entry { index: Index(8), term: Term(4), body });
    made.set_entries(vec![one].into());
    let (_, sent) = from_engine(made.clone(), Index(0)).unwrap();
    assert_eq!(sent.len(), 4, "three pieces, and the append");
    let mut ahead = Ahead::default();
    let (append, pieces) = sent.split_last().unwrap();
    let gone = to_engine(append, |index, term| ahead.whole(Node(1), index, term));
    assert_eq!(gone, Err(ConvertError::NoPieces { index: Index(8) }));
    for message in pieces {
        let PeerMessage::Piece(piece) = message else { panic!("{message:?}") };
        ahead.take(Node(1), piece);
        ahead.take(Node(1), &Piece { offset: 7, ..piece.clone() });
    }
    assert_eq!(ahead.whole(Node(2), Index(8), Term(4)), None, "of another node");
    let whole = to_engine(append, |index, term| ahead.whole(Node(1), index, term));
    assert_eq!(whole, Ok(made));
    ahead.drop_up_to(Index(8));
    assert_eq!(ahead.whole(Node(1), Index(8), Term(4)), None);
}

#[test]
fn a_log_that_does_not_fit_together_is_refused_at_the_start() {
    let start = |entries: Vec<Entry>, applied| Start {
        node: Node(0),
        vote: Vote::default(),
        base: (Index(4), Term(2)),
        offer: None,
        entries,
        applied: Index(applied),
        members: None,
        pace: Pace::USUAL,
        entropy: 1,
        planted: Planted::default(),
    };
    let error = |start| Raft::start(start).err().unwrap();
    let (expected, found) = (Index(5), Index(6));
    assert_eq!(error(start(vec![entry(6, 2)], 4)), StartError::Gap { expected, found });
    let (index, before, found) = (Index(5), Term(2), Term(1));
    assert_eq!(error(start(vec![entry(5, 1)], 4)), StartError::Terms { index, before, found });
    let (applied, first, last) = (Index(6), Index(5), Index(5));
    assert_eq!(error(start(vec![entry(5, 2)], 6)), StartError::Applied { applied, first, last });
    assert!(Raft::start(start(vec![entry(5, 2)], 5)).is_ok());
}

#[test]
fn a_node_does_not_stand_while_a_snapshot_is_on_its_way_to_the_disk() {
    let mut one = One::new(3, 0);
    let offer = InstallSnapshot {
        from: 1,
        to: 0,
        term: 2,
        transfer: Uuid::nil(),
        index: 9,
        index_term: 1,
        bytes: 0,
        blobs: 0,
        members: MembersBytes(members_bytes(&members(0..3)).to_vec()),
    };
    one.hears(PeerMessage::Install(offer.clone())).unwrap();
    assert!(matches!(one.said.pop(), Some(Output::Fetch { .. })));
    one.raft.fetched(Node(1), &offer).unwrap();
    let mut write = None;
    while let Some(output) = one.raft.poll_output() {
        if let Output::Write(one) = output {
            write = Some(one);
        }
    }
    let write = write.unwrap();
    assert_eq!(write.snapshot.map(|snapshot| snapshot.index), Some(Index(9)));
    one.said.clear();
    one.ticks(100);
    one.hears(PeerMessage::TimeoutNow(TimeoutNow { from: 1, to: 0, term: 2 })).unwrap();
    assert_eq!(one.said, []);
    one.raft.synced(write.number);
    one.settle();
    assert_eq!(one.raft.status().applied, Index(9));
    one.said.clear();
    one.ticks(20);
    assert_eq!(one.raft.status().role, Role::PreCandidate);
}

#[test]
fn of_two_changes_in_a_log_the_first_is_known_to_be_committed() {
    let now = members(0..3);
    let enter = Arc::new(now.enter(members(0..4).incoming().to_vec()).unwrap());
    let leave = Arc::new(enter.leave().unwrap());
    let changes = [(1, now.clone()), (3, enter), (5, leave)];
    let entries = (1..7).map(|index| match changes.iter().find(|(at, _)| *at == index) {
        Some((_, members)) => Entry { body: Body::Members(members.clone()), ..entry(index, 1) },
        None => entry(index, 1),
    });
    let start = Start {
        node: Node(0),
        vote: Vote { term: Term(1), node: None },
        base: (Index(0), Term(0)),
        offer: None,
        entries: entries.collect(),
        applied: Index(1),
        members: Some(now),
        pace: Pace::USUAL,
        entropy: 1,
        planted: Planted::default(),
    };
    let mut one = One { raft: Raft::start(start).unwrap(), said: Vec::new() };
    assert_eq!(one.raft.status().committed, Index(3), "it does not stand with members of before");
    one.ticks(1);
    assert!(one.raft.members().unwrap().is_joint());
}

/// Messages of small numbers, so that many of them nearly fit.
fn any_message(random: &mut impl FnMut(u64) -> u64) -> PeerMessage {
    let (from, to, term) = (1 + u32::try_from(random(2)).unwrap(), 0, random(6));
    match random(8) {
        0 | 1 => {
            let terms: Vec<u64> = (0..random(4)).map(|_| random(6)).collect();
            let prev = (random(9), random(4));
            PeerMessage::Append(AppendEntries { from, ..append(term, prev, &terms, random(9)) })
        }
        2 => PeerMessage::Append(AppendEntries { from, ..heartbeat(term, random(6)) }),
        3 => {
            let outcome = match random(2) {
                0 => AppendOutcome::Taken,
                _ => AppendOutcome::Rejected,
            };
            let says = if random(3) == 0 { AppendSays::Heartbeat } else { AppendSays::Append };
            let (hint, hint_term) = (random(9), random(4));
            let resp = taken(term, random(9));
            PeerMessage::AppendResp(AppendResp { says, from, outcome, hint, hint_term, ..resp })
        }
        4 => {
            let (last_index, last_term, commit) = (random(9), random(5), random(9));
            let (commit_term, flags) = (random(5), VoteFlags(u16::try_from(random(4)).unwrap()));
            PeerMessage::RequestVote(RequestVote {
                from,
                to,
                term,
                last_index,
                last_term,
                commit,
                commit_term,
                flags,
            })
        }
        5 => {
            let answer = if random(4) == 0 { VoteAnswer::Refused } else { VoteAnswer::Granted };
            let flags = VoteFlags(u16::try_from(random(2)).unwrap());
            let (commit, commit_term) = (random(9), random(5));
            PeerMessage::VoteResp(VoteResp { from, to, term, answer, flags, commit, commit_term })
        }
        6 => {
            let count = u32::try_from(1 + random(4)).unwrap();
            PeerMessage::Install(InstallSnapshot {
                from,
                to,
                term,
                transfer: Uuid::nil(),
                index: random(12),
                index_term: random(4),
                bytes: 0,
                blobs: 0,
                members: MembersBytes(members_bytes(&members(0..count)).to_vec()),
            })
        }
        _ => PeerMessage::TimeoutNow(TimeoutNow { from, to, term }),
    }
}

#[test]
fn nothing_that_a_peer_says_makes_the_engine_panic() {
    let mut stopped = 0;
    for seed in 0..3_000u64 {
        let mut state = seed;
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            (state >> 33) % limit
        };
        let mut one = One::new(3, random(5));
        for _ in 0..60 {
            match random(6) {
                0 => one.ticks(usize::try_from(random(25)).unwrap()),
                1 if matches!(one.office(), Office::Leading { .. }) => {
                    drop(one.raft.propose(entry(0, 0).body));
                }
                _ => drop(one.hears(any_message(&mut random))),
            }
            one.settle();
            for output in std::mem::take(&mut one.said) {
                if let Output::Fetch { from, offer } = output {
                    drop(one.raft.fetched(from, &offer));
                    one.settle();
                }
            }
        }
        stopped += u32::from(one.raft.stopped().is_some());
    }
    assert!(stopped > 100, "{stopped}: some were told what is not true");
}
