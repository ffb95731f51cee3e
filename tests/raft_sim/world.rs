//! A world: nodes, the links between them, and what goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chunking::Kind;
use chunking::message::{InstallSnapshot, VoteAnswer, VoteFlags};
use heft::consensus::members::{votes, votes_alone};
use heft::consensus::planted::Planted;
use heft::consensus::raft::{Body, Office, Output, PeerMessage, Refused, Role, Waits, Write};
use heft::core::ids::{Index, Node, Term};
use heft::core::members::{Member, Members, Role as MemberRole};
use uuid::Uuid;

use super::coverage::{Coverage, Seen};
use super::disk::{Content, Op, Saved};
use super::history::{History, mix};
use super::node::SimNode;

/// Units of time in a tick.
pub(crate) const TICK: u64 = 4;
const FAULTS_END: u64 = 300 * TICK;
const WORLD_END: u64 = FAULTS_END + 400 * TICK;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len() as u64) as usize).copied()
    }
}

/// What is under way.
enum Event {
    Message {
        from: Node,
        to: Node,
        kind: Kind,
        payload: Arc<[u8]>,
    },
    Synced {
        node: Node,
        life: u64,
        written: u64,
        number: u64,
    },
    /// The data of a snapshot is there, or does not come.
    Fetched {
        node: Node,
        life: u64,
        from: Node,
        offer: InstallSnapshot,
        is_whole: bool,
    },
    Installed {
        leader: Node,
        life: u64,
        to: Node,
        is_there: bool,
    },
}

/// How bad the world is: one in so many.
struct Weather {
    loss: u64,
    repeat: u64,
    delay: u64,
    sync: u64,
    crash: u64,
    cut: u64,
    pause: u64,
    late_apply: bool,
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) time: u64,
    pub(crate) nodes: BTreeMap<Node, SimNode>,
    pub(crate) history: History,
    pub(crate) coverage: Coverage,
    pub(crate) planted: Planted,
    events: BTreeMap<(u64, u64), Event>,
    event: u64,
    cuts: BTreeSet<(Node, Node)>,
    weather: Weather,
    /// How often an operator does something, and a client proposes: one in so many units.
    pub(crate) changes: u64,
    proposals: u64,
    compactions: u64,
    pub(crate) records: u64,
    has_large: bool,
}

type Done = Result<(), String>;

pub(crate) fn member(node: Node, dir: Uuid, role: MemberRole) -> Member {
    Member::new(node, dir, role, &format!("node{node}:5000"))
}

impl World {
    pub(crate) fn new(seed: u64, planted: Planted) -> Self {
        let mut random = Random(mix(seed ^ 0x5eed));
        let mut any = |from: &[u64]| random.pick(from).unwrap_or(1);
        let weather = Weather {
            loss: any(&[3, 10, 30, 1000]),
            repeat: any(&[10, 100, 1000]),
            delay: any(&[2, 6, 30]),
            sync: any(&[1, 6, 40]),
            crash: any(&[60, 200, 600, 5000]),
            cut: any(&[60, 200, 2000]),
            pause: any(&[100, 400, 5000]),
            late_apply: any(&[0, 0, 1]) == 1,
        };
        let (changes, proposals) = (any(&[20, 40, 100, 2000]), any(&[2, 6, 30]));
        let (compactions, has_large) = (any(&[10, 40, 1000]), any(&[0; 31]) == 1);
        let has_large = has_large || seed % 32 == 7;
        // Many changes, and power that goes often: nodes start again with members of long ago.
        let (weather, changes) = match seed % 8 {
            3 => (Weather { crash: 40, late_apply: true, ..weather }, 8),
            _ => (weather, changes),
        };
        let mut world = World {
            random,
            time: 0,
            nodes: BTreeMap::new(),
            history: History::default(),
            coverage: Coverage::default(),
            planted,
            events: BTreeMap::new(),
            event: 0,
            cuts: BTreeSet::new(),
            weather,
            changes,
            proposals,
            compactions,
            records: 0,
            has_large,
        };
        if seed.is_multiple_of(4) {
            world.convert()
        } else {
            world.found(1 + seed % 7)
        }
        world
    }

    pub(crate) fn dir(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.random.next(), self.random.next())
    }

    fn record(&mut self, large: bool) -> Body {
        self.records += 1;
        let mut bytes = self.records.to_le_bytes().to_vec();
        if large {
            bytes.resize(chunking::limits::APPEND_BYTES_MAX + 70_000, 7);
        }
        Body::Record(bytes.into())
    }

    /// A cluster of that many, all fresh.
    fn found(&mut self, count: u64) {
        let nodes = (0..count as u32).map(Node);
        let list: Vec<Member> =
            nodes.map(|node| member(node, self.dir(), MemberRole::Voter)).collect();
        let members = Members::new(Uuid::from_u128(5), list.clone()).unwrap();
        let mut content = Content::empty();
        content.vote.term = Term(1);
        self.log(&mut content, Body::Members(Arc::new(members)));
        content.applied = content.last();
        self.history.founded(&content);
        for Member { node, dir, .. } in list {
            self.history.number(node).unwrap();
            self.nodes.insert(node, SimNode::new(node, dir, content.clone()));
        }
    }

    /// A leader that had no cluster: its log has term 1, and may begin behind a snapshot without
    /// members.
    fn convert(&mut self) {
        self.coverage.saw(Seen::Converted);
        let mut content = Content::empty();
        content.vote.term = Term(1);
        if self.random.one_in(2) {
            let (index, term, digest) = (Index(1 + self.random.below(50)), Term(1), 99);
            content.base = (index, term);
            content.saved = Saved { index, term, members: None, digest };
        }
        for _ in 0..self.random.below(20) {
            let body = self.record(false);
            self.log(&mut content, body);
        }
        let (node, dir) = (Node(0), self.dir());
        let list = vec![member(node, dir, MemberRole::Voter)];
        let members = Members::new(Uuid::from_u128(5), list).unwrap();
        self.log(&mut content, Body::Members(Arc::new(members)));
        content.applied = content.last();
        self.history.founded(&content);
        self.history.number(node).unwrap();
        self.nodes.insert(node, SimNode::new(node, dir, content));
    }

    fn log(&mut self, content: &mut Content, body: Body) {
        let (index, term) = (content.last().next(), Term(1));
        content.entries.push(heft::consensus::raft::Entry { index, term, body });
    }

    pub(crate) fn run(mut self) -> Result<Coverage, String> {
        let all: Vec<Node> = self.nodes.keys().copied().collect();
        for node in all {
            self.start(node)?;
        }
        while self.time < FAULTS_END {
            self.faults()?;
            if self.random.one_in(self.changes) {
                self.operate()?;
            }
            if self.random.one_in(self.proposals) {
                self.propose_somewhere()?;
            }
            if self.random.one_in(self.compactions) {
                self.compact_somewhere();
            }
            self.step()?;
        }
        self.quiet()?;
        Ok(self.coverage)
    }

    /// The faults are over: all members have to agree soon.
    fn quiet(&mut self) -> Done {
        self.cuts.clear();
        self.weather =
            Weather { loss: u64::MAX, repeat: u64::MAX, delay: 2, sync: 1, ..self.calm() };
        let down: Vec<Node> = self.down();
        for node in down {
            self.start(node)?;
        }
        let mut last = None;
        while self.time < WORLD_END {
            self.step()?;
            // One record more, as soon as somebody leads.
            if last.is_none() || self.time.is_multiple_of(40 * TICK) {
                last = self.propose_somewhere()?.or(last);
            }
            if last.is_some_and(|last| self.all_agree(last)) {
                return Ok(());
            }
        }
        let states: Vec<String> = self
            .nodes
            .values()
            .map(|node| {
                let status = node.raft.as_ref().map(|raft| raft.status());
                format!("{} applied {}: {status:?}", node.node, node.applied)
            })
            .collect();
        Err(format!("no agreement after the faults; last {last:?}\n{}", states.join("\n")))
    }

    fn calm(&self) -> Weather {
        let never = u64::MAX;
        let (loss, repeat, crash, cut, pause) = (never, never, never, never, never);
        Weather { loss, repeat, delay: 2, sync: 1, crash, cut, pause, late_apply: false }
    }

    fn all_agree(&self, last: Index) -> bool {
        let newest = self.nodes.values().max_by_key(|node| node.applied);
        let Some(members) = newest.and_then(|node| node.members.clone()) else { return false };
        !members.is_joint()
            && members.incoming().iter().all(|member| {
                let node = &self.nodes[&member.node];
                node.applied >= last && node.applied == self.history.last()
            })
    }

    fn down(&self) -> Vec<Node> {
        self.nodes.values().filter(|node| node.raft.is_none()).map(|node| node.node).collect()
    }

    pub(crate) fn start(&mut self, node: Node) -> Done {
        let entropy = self.random.next();
        let planted = self.planted;
        let it = self.nodes.get_mut(&node).unwrap();
        it.start(entropy, planted)?;
        let state = (it.digest, it.members.as_ref());
        if it.applied.0 > 0 && self.history.at(it.applied).is_some() {
            self.history.agrees(node, it.applied, state)?;
        }
        self.pump(node)
    }

    fn faults(&mut self) -> Done {
        let all: Vec<Node> = self.nodes.keys().copied().collect();
        if self.random.one_in(self.weather.crash)
            && let Some(node) = self.random.pick(&all)
        {
            self.crash(node);
        }
        if self.random.one_in(30)
            && let Some(node) = self.random.pick(&self.down())
        {
            self.start(node)?;
        }
        if self.random.one_in(self.weather.cut) {
            let (one, other) = (self.random.pick(&all).unwrap(), self.random.pick(&all).unwrap());
            self.cuts.insert((one, other));
            if self.random.one_in(2) {
                self.cuts.insert((other, one));
            }
            if self.random.one_in(4) {
                self.cuts.extend(all.iter().map(|node| (one, *node)));
            }
        }
        if self.random.one_in(100) {
            self.cuts.clear();
        }
        if self.random.one_in(self.weather.pause) {
            let node = self.random.pick(&all).unwrap();
            let until = self.time + self.random.below(60 * TICK);
            self.nodes.get_mut(&node).unwrap().paused_until = until;
            self.coverage.saw(Seen::Paused);
        }
        if self.random.one_in(400)
            && let Some(leader) = self.leader()
            && let Some(to) = self.random.pick(&all)
        {
            let raft = self.nodes.get_mut(&leader).unwrap().raft.as_mut().unwrap();
            drop(raft.transfer(to));
            self.pump(leader)?;
        }
        Ok(())
    }

    /// The power of a node goes.
    pub(crate) fn crash(&mut self, node: Node) {
        let it = self.nodes.get_mut(&node).unwrap();
        if it.raft.take().is_none() {
            return;
        }
        let unsynced = it.disk.unsynced().len() as u64;
        let kept = if self.random.one_in(2) { 0 } else { self.random.below(unsynced + 1) };
        for op in it.disk.unsynced().skip(kept as usize) {
            match op {
                Op::Append(_) => self.coverage.saw(Seen::TailLost),
                Op::Vote(_) => self.coverage.saw(Seen::VoteLost),
                _ => {}
            }
        }
        it.disk.crash(kept);
        it.office = None;
    }

    /// A node that leads and takes records, as it thinks.
    pub(crate) fn leader(&mut self) -> Option<Node> {
        let leading = |node: &&SimNode| matches!(node.office, Some(Office::Leading { .. }));
        let leading: Vec<Node> =
            self.nodes.values().filter(leading).map(|node| node.node).collect();
        let time = self.time;
        let node = self.random.pick(&leading)?;
        (self.nodes[&node].paused_until <= time).then_some(node)
    }

    fn propose_somewhere(&mut self) -> Result<Option<Index>, String> {
        let Some(leader) = self.leader() else { return Ok(None) };
        let large = self.has_large && self.random.one_in(40);
        let body = self.record(large);
        self.propose(leader, body)
    }

    pub(crate) fn propose(&mut self, leader: Node, body: Body) -> Result<Option<Index>, String> {
        let raft = self.nodes.get_mut(&leader).unwrap().raft.as_mut().unwrap();
        let index = raft.propose(body).ok();
        self.pump(leader)?;
        Ok(index)
    }

    fn compact_somewhere(&mut self) {
        let all: Vec<Node> = self.nodes.keys().copied().collect();
        let node = self.random.pick(&all).unwrap();
        self.compact(node);
    }

    fn compact(&mut self, node: Node) {
        let keep_back = self.random.below(4);
        let it = self.nodes.get_mut(&node).unwrap();
        let Some(saved) = it.saved().filter(|saved| saved.index > it.disk.now.base.0) else {
            return;
        };
        let Some(raft) = &mut it.raft else { return };
        // What consensus knows to be applied, and nothing that is on its way to it.
        if raft.status().applied < saved.index {
            return;
        }
        let keep = Index(saved.index.0.saturating_sub(keep_back) + 1);
        raft.compact(saved.offer().unwrap(), keep);
        it.disk.write(Op::Compact(saved, keep));
        it.needs_snapshot = false;
        self.coverage.saw(Seen::Compacted);
    }

    /// One unit of time.
    fn step(&mut self) -> Done {
        self.time += 1;
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= self.time
        {
            let event = entry.remove();
            self.happens(event)?;
        }
        let all: Vec<Node> = self.nodes.keys().copied().collect();
        for node in all {
            let entropy = self.random.next();
            let it = self.nodes.get_mut(&node).unwrap();
            if it.paused_until > self.time || !(self.time + u64::from(node.0)).is_multiple_of(TICK)
            {
                continue;
            }
            let Some(raft) = &mut it.raft else { continue };
            let before = it.office;
            raft.tick(entropy);
            if it.members.as_ref().is_some_and(|members| votes_alone(members, node)) {
                self.coverage.saw(Seen::LoneVoter);
            }
            self.pump(node)?;
            self.apply(node)?;
            if self.nodes[&node].needs_snapshot {
                self.compact(node);
            }
            let after = self.nodes[&node].office;
            if let (Some(Office::Leading { term }), Some(Office::Looking { term: now })) =
                (before, after)
                && term == now
            {
                self.coverage.saw(Seen::QuorumLost);
            }
            if after.is_some_and(|office| matches!(office, Office::Leading { .. })) {
                self.finish_change(node)?;
            }
        }
        Ok(())
    }

    fn later(&mut self, delay: u64, event: Event) {
        self.event += 1;
        self.events.insert((self.time + delay, self.event), event);
    }

    fn happens(&mut self, event: Event) -> Done {
        let node = match &event {
            Event::Message { to: node, .. }
            | Event::Synced { node, .. }
            | Event::Fetched { node, .. }
            | Event::Installed { leader: node, .. } => *node,
        };
        let Some(it) = self.nodes.get_mut(&node) else { return Ok(()) };
        if it.paused_until > self.time {
            let delay = it.paused_until - self.time;
            self.later(delay, event);
            return Ok(());
        }
        let Some(raft) = &mut it.raft else { return Ok(()) };
        match event {
            Event::Message { from, kind, payload, .. } => {
                let message = PeerMessage::decode(kind, &payload).map_err(|e| e.to_string())?;
                if matches!(message, PeerMessage::TimeoutNow(_)) {
                    it.was_chosen = true;
                }
                let taken = raft.heard(from, &message);
                self.heard(node, &message, taken)?;
            }
            Event::Synced { life, written, number, .. } => {
                if life != it.life {
                    return Ok(());
                }
                it.disk.sync(written);
                raft.synced(number);
            }
            Event::Fetched { life, from, offer, is_whole, .. } => {
                let mut is_there = false;
                if life == it.life {
                    it.is_fetching = false;
                    is_there = is_whole && raft.fetched(from, &offer).is_ok();
                }
                self.tell_installed(from, node, is_there);
            }
            Event::Installed { life, to, is_there, .. } => {
                if life == it.life {
                    raft.installed(to, is_there);
                }
            }
        }
        self.pump(node)
    }

    fn tell_installed(&mut self, leader: Node, to: Node, is_there: bool) {
        let life = self.nodes[&leader].life;
        if !is_there {
            self.coverage.saw(Seen::SnapshotFailed);
        }
        let delay = 1 + self.random.below(self.weather.delay);
        self.later(delay, Event::Installed { leader, life, to, is_there });
    }

    fn heard(&mut self, node: Node, message: &PeerMessage, taken: Result<(), Refused>) -> Done {
        match message {
            PeerMessage::VoteResp(vote) if vote.answer == VoteAnswer::Refused => {
                let pre = vote.flags.has(VoteFlags::PRE);
                self.coverage.saw(if pre { Seen::PreVoteRefused } else { Seen::VoteRefused });
            }
            PeerMessage::VoteResp(vote) if vote.flags.has(VoteFlags::PRE) => {
                self.coverage.saw(Seen::PreVoteGranted);
            }
            PeerMessage::Piece(_) => self.coverage.saw(Seen::Ahead),
            _ => {}
        }
        match taken {
            Ok(()) | Err(Refused::NotItsLeader { .. }) => Ok(()),
            Err(Refused::Content(heft::consensus::raft::ConvertError::NoPieces { .. })) => Ok(()),
            Err(Refused::Removed { .. }) => {
                self.coverage.saw(Seen::Ghost);
                Ok(())
            }
            Err(refused) => Err(format!("node {node} refuses {message:?}: {refused}")),
        }
    }

    /// Carries out what a node's consensus wants, and tells it what was applied.
    pub(crate) fn pump(&mut self, node: Node) -> Done {
        loop {
            while let Some(output) = {
                let Some(raft) = &mut self.nodes.get_mut(&node).unwrap().raft else {
                    return Ok(());
                };
                raft.poll_output()
            } {
                self.carry_out(node, output)?;
            }
            let it = self.nodes.get_mut(&node).unwrap();
            let raft = it.raft.as_mut().unwrap();
            let (status, now) = (raft.status(), &it.disk.now);
            if status.last != now.last() {
                return Err(format!(
                    "node {node}: the log ends at {}, the disk at {}",
                    status.last,
                    now.last()
                ));
            }
            if !self.weather.late_apply {
                self.apply_all(node)?;
            }
            let it = self.nodes.get_mut(&node).unwrap();
            let Some((index, changed)) = it.to_report.pop_front() else { return Ok(()) };
            it.raft.as_mut().unwrap().applied(index, changed.as_ref());
        }
    }

    fn carry_out(&mut self, node: Node, output: Output) -> Done {
        match output {
            Output::Write(write) => self.write(node, write),
            Output::Send { to, message } => self.send(node, to, &message),
            Output::Commit(entries) => {
                let disks: Vec<(Node, &Content)> =
                    self.nodes.values().map(|node| (node.node, &node.disk.durable)).collect();
                let mut now: Vec<Arc<Members>> = Vec::new();
                for raft in self.nodes.values().filter_map(|node| node.raft.as_ref()) {
                    now.extend(raft.members().filter(|members| !now.contains(members)).cloned());
                }
                let raft = self.nodes[&node].raft.as_ref().unwrap();
                let by = raft.status().office.term();
                for entry in &entries {
                    self.history.commits(entry, &disks, now.clone(), by)?;
                }
                self.nodes.get_mut(&node).unwrap().to_apply.extend(entries);
                Ok(())
            }
            Output::Office(office) => self.office(node, office),
            Output::Install { to, offer } => {
                self.send(node, to, &PeerMessage::Install(offer))?;
                // Whatever becomes of it, the leader hears something in the end.
                let life = self.nodes[&node].life;
                let event = Event::Installed { leader: node, life, to, is_there: false };
                self.later(60 * TICK, event);
                Ok(())
            }
            Output::SnapshotWanted => {
                self.nodes.get_mut(&node).unwrap().needs_snapshot = true;
                self.coverage.saw(Seen::SnapshotWanted);
                Ok(())
            }
            Output::Fetch { from, offer } => {
                let delay = 1 + self.random.below(15 * TICK);
                let is_whole = !self.random.one_in(6);
                let it = self.nodes.get_mut(&node).unwrap();
                if it.is_fetching {
                    return Ok(());
                }
                it.is_fetching = true;
                let life = it.life;
                self.later(delay, Event::Fetched { node, life, from, offer, is_whole });
                Ok(())
            }
            Output::Stop(damage) => Err(format!("node {node} stops: {damage}")),
        }
    }

    fn write(&mut self, node: Node, write: Write) -> Done {
        let Write { number, vote, snapshot, entries, waits } = write;
        let it = self.nodes.get_mut(&node).unwrap();
        if let Some(vote) = vote {
            it.disk.write(Op::Vote(vote));
        }
        if let Some(snapshot) = snapshot {
            let (index, term, members) = (snapshot.index, snapshot.term, snapshot.members);
            let known = self.history.at(index).ok_or("a snapshot of what is not committed")?;
            if known.term != term || known.members.as_ref() != Some(&members) {
                return Err(format!(
                    "node {node} gets a snapshot {index} with another term or other members"
                ));
            }
            let digest = known.digest;
            it.digest = digest;
            it.applied = index;
            it.members = Some(members.clone());
            it.to_apply.retain(|entry| entry.index > index);
            it.to_report.clear();
            it.disk.write(Op::Install(Saved { index, term, members: Some(members), digest }));
            self.coverage.saw(Seen::Snapshot);
        }
        if let Some(first) = entries.first() {
            if first.index <= it.disk.now.last() {
                self.coverage.saw(Seen::ConflictRepaired);
            }
            if first.index <= it.applied {
                return Err(format!("node {node} cuts off the applied record {}", first.index));
            }
            let mut before = it.disk.now.term(Index(first.index.0 - 1));
            for entry in &entries {
                if before.is_some_and(|before| before > entry.term) {
                    return Err(format!("node {node}: terms go down at record {}", entry.index));
                }
                self.history.logs(entry, before)?;
                before = Some(entry.term);
            }
            it.disk.write(Op::Append(entries));
        }
        if waits == Waits::ForSync {
            let (life, written) = (it.life, it.disk.written());
            let delay = 1 + self.random.below(self.weather.sync);
            let ends = (self.time + delay).max(it.sync_ends);
            it.sync_ends = ends;
            let delay = ends - self.time;
            self.later(delay, Event::Synced { node, life, written, number });
        }
        Ok(())
    }

    fn send(&mut self, from: Node, to: Node, message: &PeerMessage) -> Done {
        match message {
            PeerMessage::VoteResp(vote)
                if vote.answer == VoteAnswer::Granted && !vote.flags.has(VoteFlags::PRE) =>
            {
                self.history.votes(from, Term(vote.term), to)?;
            }
            PeerMessage::RequestVote(vote) if !vote.flags.has(VoteFlags::PRE) => {
                self.history.votes(from, Term(vote.term), from)?;
            }
            PeerMessage::TimeoutNow(_) => {
                let (last, target) = (self.nodes[&from].disk.now.last(), &self.nodes[&to].disk);
                if target.now.last() < last {
                    return Err(format!("node {to} is to lead, and lacks records up to {last}"));
                }
            }
            _ => {}
        }
        if message.ends() != (from, to) {
            return Err(format!("node {from} sends to {to}: {message:?}"));
        }
        if self.cuts.contains(&(from, to)) {
            if !self.cuts.contains(&(to, from)) {
                self.coverage.saw(Seen::OneWayCut);
            }
            return Ok(());
        }
        let mut payload = Vec::new();
        message.encode(&mut payload);
        let (kind, payload): (_, Arc<[u8]>) = (message.kind(), payload.into());
        if self.random.one_in(self.weather.loss) {
            return Ok(());
        }
        let copies = 1 + u64::from(self.random.one_in(self.weather.repeat));
        if copies > 1 {
            self.coverage.saw(Seen::Repeated);
        }
        for _ in 0..copies {
            let delay = 1 + self.random.below(self.weather.delay);
            let payload = payload.clone();
            self.later(delay, Event::Message { from, to, kind, payload });
        }
        Ok(())
    }

    fn office(&mut self, node: Node, office: Office) -> Done {
        let it = self.nodes.get_mut(&node).unwrap();
        let led = it.leads();
        it.office = Some(office);
        let term = office.term();
        if !it.leads() {
            return Ok(());
        }
        self.history.leads(term, node, it.life)?;
        if it.raft.as_ref().unwrap().status().role != Role::Leader {
            return Err(format!("node {node} says that it leads, and does not"));
        }
        self.history.is_complete(term, node, &it.disk.now)?;
        if !led {
            if it.was_chosen {
                self.coverage.saw(Seen::Transferred);
            }
            if it.members.as_ref().is_some_and(|members| members.is_joint()) {
                self.coverage.saw(Seen::NewLeaderJoint);
            }
        }
        it.was_chosen = false;
        Ok(())
    }

    /// Applies some of what is committed.
    fn apply(&mut self, node: Node) -> Done {
        if self.weather.late_apply && !self.nodes[&node].to_apply.is_empty() {
            self.coverage.saw(Seen::AppliedLate);
            if self.random.one_in(2) {
                return Ok(());
            }
        }
        self.apply_all(node)?;
        self.pump(node)
    }

    fn apply_all(&mut self, node: Node) -> Done {
        while let Some(entry) = self.nodes.get_mut(&node).unwrap().to_apply.pop_front() {
            let it = self.nodes.get_mut(&node).unwrap();
            let before = it.members.clone();
            if entry.index != it.applied.next() {
                return Err(format!("node {node} applies {} behind {}", entry.index, it.applied));
            }
            let changed = it.apply(&entry);
            it.disk.write(Op::Applied(entry.index));
            let report = changed.is_some() || it.to_apply.is_empty();
            if report {
                it.to_report.push_back((entry.index, changed.clone()));
            }
            if let (Some(before), Some(after)) = (before, changed) {
                self.changed(node, &before, &after);
            }
            let it = &self.nodes[&node];
            let state = (it.digest, it.members.as_ref());
            self.history.applies(node, &entry, state)?;
        }
        Ok(())
    }

    fn changed(&mut self, node: Node, before: &Members, after: &Members) {
        let saw = &mut self.coverage;
        saw.saw(if after.is_joint() { Seen::JointEntered } else { Seen::JointLeft });
        if after.is_joint() {
            let role = |node| after.incoming().iter().find(|m| m.node == node).map(|m| m.role);
            let promoted =
                |old: &Member| !old.is_voter() && role(old.node) == Some(MemberRole::Voter);
            let promotes = before.incoming().iter().any(promoted);
            for old in before.incoming() {
                match (old.role, role(old.node)) {
                    (MemberRole::Learner, Some(MemberRole::Voter)) => saw.saw(Seen::Promoted),
                    (MemberRole::Voter, Some(MemberRole::Learner)) => saw.saw(Seen::Demoted),
                    (_, None) if promotes => saw.saw(Seen::Replaced),
                    (_, None) => saw.saw(Seen::Removed),
                    _ => {}
                }
            }
        } else if self.nodes[&node].leads() && !votes(after, node) {
            saw.saw(Seen::LeaderRemoved);
        }
        let voters = after.incoming().iter().filter(|member| member.is_voter()).count();
        if voters == 7 {
            saw.saw(Seen::SevenVoters);
        }
        let is_learner = after.member(node).is_some_and(|member| !member.is_voter());
        if is_learner {
            saw.saw(Seen::LearnerApplied);
        }
    }
}
