//! The machine alone: events in, actions out, and a leader that only keeps books.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::wildcard_enum_match_arm)]

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use chunking::dataset::{Manifest, ManifestBuilder, Piece, sha256};
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    Have, Lacking, Name, Open, OpenFlags, Pack, PieceList, Purpose, Put, PutFlags, Reason, SetEntry, SetList,
    SetState,
};
use chunking::{Bitmap, Codec, Digest, DigestKind};

use super::classic_put::put_of;
use super::put::{CLIENT_WAIT, PUTS_MAX};
use super::*;
use crate::answers::ask::{self, Ask, Question};
use crate::core::dataset::TARGET_NONE;
use crate::core::ids::JobId;
use crate::core::names::SafeName;
use crate::leader::pack_maker::Made;
use crate::leader::submit::RefusalText;
use crate::model::{CachePutResult, JsonModel};

const GRACE: Duration = Duration::from_secs(600);
const ALL: &str = "job.assign.>";

const CLIENT: ConnId = ConnId(1);
const CLASSIC: ConnId = ConnId(2);

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn number(id: Uuid) -> u128 {
    id.as_u128()
}

fn cache(text: &str) -> CacheId {
    CacheId::parse(text).unwrap()
}

fn name(text: &str) -> Name {
    Name::try_from(text.to_owned()).unwrap()
}

/// A set of files with one piece each, the bytes of their texts.
fn manifest(files: &[(&str, &str)]) -> Manifest {
    let mut builder = ManifestBuilder::default();
    for (name, text) in files {
        builder.file(*name, sha256(text.as_bytes()), vec![Piece::of(text.as_bytes())]);
    }
    builder.finish().unwrap()
}

fn layout(texts: &[&str]) -> Layout {
    Layout::new(texts.iter().map(|text| Piece::of(text.as_bytes())).collect()).unwrap()
}

fn lack(count: u32, places: &[u32], bytes: u64) -> Lack {
    let mut lacking = Bitmap::new(count);
    places.iter().for_each(|place| {
        lacking.insert(*place);
    });
    Lack { what: Lacking::Pieces, bytes, pieces: lacking.held() }
}

struct KnownWorker {
    name: String,
    patterns: Vec<String>,
    datasets: bool,
}

#[derive(Clone, Copy)]
struct KnownBlob {
    bytes: u64,
    has_arrived: bool,
}

/// The books that the rest of a leader keeps.
#[derive(Default)]
struct Books {
    sets: BTreeMap<CacheId, Arc<Dataset>>,
    removed: HashSet<CacheId>,
    workers: BTreeMap<WorkerId, KnownWorker>,
    pairs: BTreeMap<WorkerId, WorkerId>,
    staged_jobs: HashSet<JobId>,
    staged: HashMap<CacheId, JobId>,
    blobs: HashMap<BlobId, KnownBlob>,
    got: HashSet<(ConnId, BlobId)>,
    left: HashSet<ConnId>,
}

impl Facts for Books {
    fn dataset(&self, cache: &CacheId) -> Option<Arc<Dataset>> {
        self.sets.get(cache).cloned()
    }
    fn datasets(&self) -> Box<dyn Iterator<Item = &Arc<Dataset>> + '_> {
        Box::new(self.sets.values())
    }
    fn dataset_count(&self) -> usize {
        self.sets.len()
    }
    fn is_removed(&self, cache: &CacheId) -> bool {
        self.removed.contains(cache)
    }
    fn worker(&self, worker: WorkerId) -> Option<WorkerFacts<'_>> {
        let KnownWorker { name, patterns, datasets } = self.workers.get(&worker)?;
        Some(WorkerFacts { id: worker, name, patterns, datasets: *datasets })
    }
    fn workers(&self) -> Box<dyn Iterator<Item = WorkerFacts<'_>> + '_> {
        Box::new(self.workers.keys().filter_map(|worker| self.worker(*worker)))
    }
    fn pairs(&self) -> Vec<(WorkerId, WorkerId)> {
        self.pairs.iter().map(|(worker, agent)| (*worker, *agent)).collect()
    }
    fn agent_of(&self, worker: WorkerId) -> Option<WorkerId> {
        self.pairs.get(&worker).copied()
    }
    fn served_by(&self, agent: WorkerId) -> Vec<WorkerId> {
        self.pairs.iter().filter(|(_, of)| **of == agent).map(|(worker, _)| *worker).collect()
    }
    fn staged_for(&self, cache: &CacheId) -> Option<JobId> {
        self.staged.get(cache).copied()
    }
    fn names_its_inputs(&self, job: JobId) -> bool {
        self.staged_jobs.contains(&job)
    }
    fn can_lose_its_inputs(&self, _: JobId) -> bool {
        true
    }
    fn is_draining(&self) -> bool {
        false
    }
    fn is_connected(&self, conn: ConnId) -> bool {
        !self.left.contains(&conn)
    }
    fn peer_name(&self, conn: ConnId) -> String {
        format!("connection {conn}")
    }
    fn knows_blob(&self, blob: BlobId) -> bool {
        self.blobs.contains_key(&blob)
    }
    fn has_arrived(&self, blob: BlobId) -> bool {
        self.blobs.get(&blob).is_some_and(|blob| blob.has_arrived)
    }
    fn blob_bytes(&self, blob: BlobId) -> u64 {
        self.blobs.get(&blob).map_or(0, |blob| blob.bytes)
    }
    fn bytes_here(&self, blob: BlobId) -> u64 {
        self.blobs.get(&blob).filter(|blob| blob.has_arrived).map_or(0, |blob| blob.bytes)
    }
    fn has_got(&self, conn: ConnId, blob: BlobId) -> bool {
        self.got.contains(&(conn, blob))
    }
    fn spool(&self) -> (u64, u64) {
        (0, 1 << 30)
    }
    fn too_many_blobs(&self, _: usize) -> Option<RefusalText> {
        None
    }
}

/// A machine, and a leader that does what it says and notes it.
struct Bench {
    sets: Datasets,
    books: Books,
    now: Micros,
    /// Sets that are to be committed.
    proposed: Vec<Arc<Dataset>>,
    done: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let (books, proposed, done) = (Books::default(), Vec::new(), Vec::new());
        Bench { sets: Datasets::new(GRACE), books, now: Micros(1), proposed, done }
    }

    /// Gives what was done about an event.
    fn on(&mut self, event: DatasetEvent) -> Vec<String> {
        self.handle(event);
        std::mem::take(&mut self.done)
    }

    fn handle(&mut self, event: DatasetEvent) {
        self.sets.handle(self.now, &self.books, event);
        while let Some(action) = self.sets.poll() {
            self.done.extend(brief(&action));
            match action {
                DatasetAction::Expect { blob, open, .. } => {
                    self.books.blobs.insert(blob, KnownBlob { bytes: open.size, has_arrived: false });
                }
                DatasetAction::KeepManifest { blob, bytes, .. } => {
                    self.books.blobs.insert(blob, KnownBlob { bytes: bytes.len() as u64, has_arrived: true });
                    self.handle(DatasetEvent::Arrived { blob });
                }
                DatasetAction::Forget { blob } => {
                    self.books.blobs.remove(&blob);
                }
                DatasetAction::Tell(Event::PutDataset { dataset }) => self.proposed.push(dataset),
                DatasetAction::Tell(Event::Staged { job, dataset }) => {
                    self.books.staged.insert(dataset.cache.clone(), job);
                    self.proposed.push(dataset);
                }
                DatasetAction::Tell(Event::RemoveDataset { cache }) => {
                    if let Some(dataset) = self.books.sets.remove(&cache) {
                        self.books.removed.insert(cache);
                        self.handle(DatasetEvent::Removed { dataset });
                    }
                }
                DatasetAction::Pair { worker, agent } => {
                    match agent {
                        Some(agent) => self.books.pairs.insert(worker, agent),
                        None => self.books.pairs.remove(&worker),
                    };
                    self.handle(DatasetEvent::AgentChanged { worker, agent });
                }
                _ => {}
            }
        }
    }

    /// What was proposed is committed.
    fn commit(&mut self) -> Vec<String> {
        for dataset in std::mem::take(&mut self.proposed) {
            let replaced = self.books.sets.insert(dataset.cache.clone(), dataset.clone());
            self.handle(DatasetEvent::Kept { dataset, replaced });
        }
        std::mem::take(&mut self.done)
    }

    fn put(&mut self, request: u128, of: &Manifest, generation: u128, target: &str) -> Vec<String> {
        let put = put_of(&cache("set"), of, id(generation), &name(target));
        self.on(DatasetEvent::Put { conn: CLIENT, request: id(request), put })
    }

    fn replace(&mut self, request: u128, of: &Manifest, generation: u128, target: &str) -> Vec<String> {
        let flags = PutFlags::REPLACE;
        let put = Put { flags, ..put_of(&cache("set"), of, id(generation), &name(target)) };
        self.on(DatasetEvent::Put { conn: CLIENT, request: id(request), put })
    }

    fn open(&mut self, request: u128, blob: u128, size: u64) -> Vec<String> {
        let open = Open {
            purpose: Purpose::Dataset,
            codec: Codec::None,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::default(),
            chunk_bytes: CHUNK_BYTES_MAX,
            size,
            owner: id(request),
            attempt: 0,
            name: Name::default(),
        };
        self.on(DatasetEvent::Opened { conn: CLIENT, blob: id(blob), open })
    }

    fn arrives(&mut self, blob: u128) -> Vec<String> {
        self.books.blobs.get_mut(&id(blob)).unwrap().has_arrived = true;
        self.on(DatasetEvent::Arrived { blob: id(blob) })
    }

    fn manifest_read(&mut self, blob: u128, manifest: &Manifest) -> Vec<String> {
        let result = Ok(Looked::Manifest(Box::new(manifest.clone())));
        self.on(DatasetEvent::Looked { blob: id(blob), result })
    }

    fn pack_checked(&mut self, blob: u128, texts: &[&str]) -> Vec<String> {
        let result = Ok(Looked::Pack(Arc::new(layout(texts))));
        self.on(DatasetEvent::Looked { blob: id(blob), result })
    }

    fn announce(&mut self, request: u128, pack: u128, texts: &[&str]) -> Vec<String> {
        let says = Pack { pieces: PieceList::new(layout(texts).pieces().to_vec()) };
        self.on(DatasetEvent::PackAnnounced { conn: CLIENT, pack: id(pack), request: id(request), says })
    }

    /// The manifest of a put comes.
    fn bring_manifest(&mut self, request: u128, blob: u128, manifest: &Manifest) -> Vec<String> {
        self.open(request, blob, 100);
        self.arrives(blob);
        self.manifest_read(blob, manifest)
    }

    /// A pack of a put comes, and is good.
    fn bring_pack(&mut self, request: u128, pack: u128, texts: &[&str]) -> Vec<String> {
        self.announce(request, pack, texts);
        self.open(request, pack, layout(texts).size());
        self.arrives(pack);
        self.pack_checked(pack, texts)
    }

    /// Keeps a set of one pack, for nobody.
    fn keep(&mut self, manifest: &Manifest, generation: u128, pack: u128, texts: &[&str]) {
        self.put(generation, manifest, generation, TARGET_NONE);
        self.bring_manifest(generation, generation, manifest);
        self.bring_pack(generation, pack, texts);
        self.commit();
    }

    /// A heft worker joins, and says what it has.
    fn worker(&mut self, n: u64, has: &[(&str, Digest)]) -> Vec<String> {
        let (worker, conn) = (worker(n), ConnId(n));
        let known = KnownWorker { name: String::new(), patterns: vec![ALL.to_owned()], datasets: true };
        self.books.workers.insert(worker, known);
        self.handle(DatasetEvent::WorkerJoined { conn, worker, host: None, kind: WorkerKind::Ours });
        let sets = has.iter().map(|(set, digest)| SetEntry {
            state: SetState::Held,
            digest: *digest,
            cache_id: name(set),
            text: "".into(),
        });
        let have = Have { anew: 1, budget: 1 << 30, used: 0, sets: SetList::new(sets.collect()) };
        self.on(DatasetEvent::WorkerHas { conn, worker, have })
    }

    /// A classic worker joins.
    fn classic_worker(&mut self, n: u64, host: IpAddr) -> Vec<String> {
        let (worker, conn) = (worker(n), ConnId(n));
        let known = KnownWorker { name: String::new(), patterns: vec![ALL.to_owned()], datasets: false };
        self.books.workers.insert(worker, known);
        self.on(DatasetEvent::WorkerJoined { conn, worker, host: Some(host), kind: WorkerKind::Classic })
    }

    fn lacks(&mut self, n: u64, generation: u128, lack: Lack) -> Vec<String> {
        let (worker, conn, generation) = (worker(n), ConnId(n), id(generation));
        self.on(DatasetEvent::WorkerLacks { conn, worker, generation, lack })
    }

    fn acks(&mut self, n: u64, to: u128, result: CachePutResult) -> Vec<String> {
        self.on(DatasetEvent::WorkerAcked { worker: worker(n), to: id(to), result })
    }

    fn ask(&mut self, verb: ask::Verb, question: Question) -> Vec<String> {
        self.on(DatasetEvent::Asked { by: Asked { conn: CLIENT, verb, id: id(77) }, question })
    }

    fn after(&mut self, span: Duration) -> Vec<String> {
        self.now = self.now.plus(span);
        self.on(DatasetEvent::Tick)
    }
}

fn worker(n: u64) -> WorkerId {
    WorkerId(id(n.into()))
}

/// What an action is, in a line. What the disk and the scheduler hear on the way is left out.
fn brief(action: &DatasetAction) -> Option<String> {
    Some(match action {
        DatasetAction::Say { conn, says, .. } => match says {
            Says::Lack(lack) => format!("to {conn}: you lack {:?}, {} bytes", lack.what, lack.bytes),
            Says::Spread(spread) => format!(
                "to {conn}: {:?}, {} of {} have it, {} missing",
                spread.stage,
                spread.ok + spread.skipped,
                spread.targets,
                spread.missing
            ),
            Says::Hold(hold) => {
                let counts =
                    if hold.flags.has(chunking::message::HoldFlags::COMMITTED) { "" } else { " soon" };
                format!("to {conn}: hold {}{counts}", hold.cache_id.as_str())
            }
            Says::Release(release) => format!("to {conn}: release {}", release.cache_id.as_str()),
            Says::Pack(pack) => format!("to {conn}: a pack of {}", pack.pieces.as_slice().len()),
            Says::Inspect(inspect) => format!("to {conn}: inspect {}", inspect.cache_id.as_str()),
        },
        DatasetAction::Refuse { conn, refusal, .. } => format!("to {conn}: refused, {}", refusal.text()),
        DatasetAction::CacheAck { conn, result, .. } => {
            format!("to {conn}: {} {}", result.status.as_str(), result.message)
        }
        DatasetAction::AskClassic { conn } => format!("to {conn}: do you know CachePut?"),
        DatasetAction::SendSet { conn, .. } => format!("to {conn}: the set in one frame"),
        DatasetAction::Answer { answer: Ok(answer), .. } => format!("answer {answer}"),
        DatasetAction::Answer { answer: Err(text), .. } => format!("no answer: {text}"),
        DatasetAction::Tell(Event::PutDataset { dataset } | Event::Staged { dataset, .. }) => {
            format!("commit {}", dataset.cache)
        }
        DatasetAction::Tell(Event::RemoveDataset { cache }) => format!("remove {cache}"),
        DatasetAction::Tell(_) => return None,
        DatasetAction::Pair { worker, agent } => {
            let agent = agent.map(|agent| number(agent.0));
            format!("pair {} with {agent:?}", number(worker.0))
        }
        DatasetAction::NotStaged { why, .. } => format!("not staged: {why}"),
        DatasetAction::Accept { conn, blob, .. } => format!("to {conn}: bring {}", number(*blob)),
        DatasetAction::TurnAway { conn, blob } => format!("to {conn}: {} is not expected", number(*blob)),
        DatasetAction::KeepManifest { blob, .. } => format!("keep {}", number(*blob)),
        DatasetAction::Attach { conn, blob, .. } => format!("to {conn}: blob {}", number(*blob)),
        DatasetAction::Detach { conn, blob } => format!("no more of {} to {conn}", number(*blob)),
        DatasetAction::Look { blob, .. } => format!("look at {}", number(*blob)),
        DatasetAction::Forget { blob } => format!("forget {}", number(*blob)),
        DatasetAction::Expect { .. } | DatasetAction::Settle { .. } => return None,
    })
}

fn stored(added: u64, skipped: u64) -> CachePutResult {
    CachePutResult::stored("set", added, skipped)
}

#[test]
fn a_put_brings_its_manifest_then_what_lacks_and_is_committed_when_every_piece_is_checked() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    assert_eq!(bench.put(9, &two, 10, TARGET_NONE), ["to 1: you lack Manifest, 0 bytes"]);
    assert_eq!(bench.open(9, 10, 100), ["to 1: bring 10"]);
    assert_eq!(bench.arrives(10), ["look at 10"]);
    assert_eq!(bench.manifest_read(10, &two), ["to 1: you lack Pieces, 8 bytes"]);
    assert!(bench.announce(9, 20, &["one"]).is_empty());
    assert_eq!(bench.open(9, 20, layout(&["one"]).size()), ["to 1: bring 20"]);
    assert_eq!(bench.arrives(20), ["look at 20"]);
    assert_eq!(bench.pack_checked(20, &["one"]), ["to 1: you lack Pieces, 5 bytes"]);
    assert_eq!(bench.bring_pack(9, 21, &["three"]), ["to 1: you lack Nothing, 0 bytes", "commit set"]);
    assert_eq!(
        bench.commit(),
        ["to 1: Stored, 0 of 0 have it, 0 missing", "to 1: Over, 0 of 0 have it, 0 missing"]
    );
    assert_eq!(bench.books.sets[&cache("set")].packs, [id(20), id(21)]);
}

#[test]
fn what_was_not_announced_is_not_taken_and_a_bad_pack_is_asked_for_again_so_often() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.put(9, &one, 10, TARGET_NONE);
    assert_eq!(bench.open(9, 11, 100), ["to 1: 11 is not expected"]);
    assert_eq!(bench.open(8, 10, 100), ["to 1: 10 is not expected"], "of another request");
    bench.bring_manifest(9, 10, &one);
    let size = layout(&["one"]).size();
    assert_eq!(bench.open(9, 20, size), ["to 1: 20 is not expected"], "its list was not said");
    for pack in [20, 21, 22] {
        bench.announce(9, pack, &["one"]);
        assert_eq!(bench.open(9, pack, size + 1), [format!("to 1: {pack} is not expected")]);
        bench.open(9, pack, size);
        bench.arrives(pack);
        let bad = DatasetEvent::Looked { blob: id(pack), result: Err("a piece is damaged".to_owned()) };
        let done = bench.on(bad);
        assert_eq!(done[0], format!("forget {pack}"));
        match pack {
            22 => {
                assert!(done[1].starts_with("to 1: refused, what came is not what was announced"), "{done:?}")
            }
            _ => assert_eq!(done[1..], ["to 1: you lack Pieces, 3 bytes"]),
        }
    }
    assert!(bench.books.blobs.is_empty(), "the manifest went, too");
}

#[test]
fn other_content_under_an_id_is_refused_unless_it_replaces_it() {
    let (mut bench, old, new) = (Bench::new(), manifest(&[("a", "one")]), manifest(&[("a", "two")]));
    bench.keep(&old, 10, 20, &["one"]);
    let refused = bench.put(9, &new, 11, TARGET_NONE);
    assert!(refused[0].starts_with("to 1: refused, dataset set is there with other content"), "{refused:?}");
    bench.replace(9, &new, 11, TARGET_NONE);
    bench.bring_manifest(9, 11, &new);
    bench.bring_pack(9, 21, &["two"]);
    let done = bench.commit();
    assert_eq!(done[..2], ["forget 10", "forget 20"], "the blobs of the old one go");
    assert!(bench.books.has_arrived(id(21)));
}

#[test]
fn a_set_goes_to_workers_as_it_comes_and_its_putter_hears_of_each() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    assert!(bench.worker(100, &[]).is_empty());
    bench.put(9, &two, 10, ALL);
    let done = bench.bring_manifest(9, 10, &two);
    assert_eq!(done, ["to 1: you lack Pieces, 8 bytes", "to 100: hold set soon", "to 100: blob 10"]);
    assert!(bench.lacks(100, 10, lack(2, &[0, 1], 8)).is_empty(), "nothing of it is on its way yet");
    bench.announce(9, 20, &["one", "three"]);
    let opened = bench.open(9, 20, layout(&["one", "three"]).size());
    assert_eq!(opened, ["to 100: a pack of 2", "to 100: blob 20", "to 1: bring 20"]);
    bench.arrives(20);
    bench.pack_checked(20, &["one", "three"]);
    assert_eq!(bench.commit(), ["to 1: Stored, 0 of 1 have it, 1 missing", "to 100: hold set"]);
    let done = bench.acks(100, 10, stored(2, 0));
    let said = ["no more of 20 to 100", "no more of 10 to 100", "to 1: OK added=2"];
    assert_eq!(done[..3], said);
    assert_eq!(done[3..], ["to 1: Over, 1 of 1 have it, 0 missing"]);
}

#[test]
fn a_worker_that_lacks_pieces_gets_the_packs_that_have_them_and_no_others() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    bench.put(9, &two, 10, ALL);
    bench.bring_manifest(9, 10, &two);
    bench.bring_pack(9, 20, &["one"]);
    bench.bring_pack(9, 21, &["three"]);
    bench.commit();
    assert_eq!(bench.worker(100, &[]), ["to 100: hold set", "to 100: blob 10"]);
    assert_eq!(bench.lacks(100, 10, lack(2, &[1], 5)), ["to 100: a pack of 1", "to 100: blob 21"]);
    let taken = DatasetEvent::PartTaken { conn: ConnId(100), worker: Some(worker(100)), blob: id(21) };
    assert_eq!(bench.on(taken), ["no more of 21 to 100"]);
    bench.acks(100, 10, stored(2, 0));
    // One that has it already is left alone.
    assert!(bench.worker(101, &[("set", two.digest())]).is_empty());
}

#[test]
fn a_set_that_lost_a_part_at_the_leader_fails_at_workers_and_is_mended_by_a_put() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.put(9, &one, 10, ALL);
    bench.bring_manifest(9, 10, &one);
    bench.bring_pack(9, 20, &["one"]);
    bench.commit();
    bench.worker(100, &[]);
    bench.lacks(100, 10, lack(1, &[0], 3));
    let done = bench.on(DatasetEvent::Failed { blob: id(20), text: "cannot be read".to_owned() });
    assert_eq!(done, ["to 100: release set", "no more of 20 to 100", "no more of 10 to 100"]);
    assert!(bench.books.knows_blob(id(20)), "what a set that is kept needs may be read another time");
    bench.put(8, &one, 11, ALL);
    bench.bring_manifest(8, 11, &one);
    bench.bring_pack(8, 21, &["one"]);
    let done = bench.commit();
    assert!(done.contains(&"to 100: hold set".to_owned()), "{done:?}");
}

#[test]
fn a_put_that_breaks_off_goes_on_where_it_was_and_ends_if_its_client_does_not_come_back() {
    let (mut bench, two) = (Bench::new(), manifest(&[("a", "one"), ("b", "three")]));
    bench.worker(100, &[]);
    bench.put(9, &two, 10, ALL);
    bench.bring_manifest(9, 10, &two);
    bench.bring_pack(9, 20, &["one"]);
    bench.announce(9, 21, &["three"]);
    let opened = bench.open(9, 21, layout(&["three"]).size());
    assert!(bench.on(DatasetEvent::Closed { conn: CLIENT }).is_empty());
    // It comes back, and opens the pack again, of which the relay knows what came.
    assert_eq!(bench.put(9, &two, 10, ALL), ["to 1: you lack Pieces, 5 bytes"]);
    assert!(bench.announce(9, 21, &["three"]).is_empty());
    assert_eq!(bench.open(9, 21, layout(&["three"]).size()), opened);
    assert!(bench.on(DatasetEvent::Closed { conn: CLIENT }).is_empty());
    assert!(bench.after(CLIENT_WAIT / 2).is_empty(), "it is waited for");
    let left = bench.after(CLIENT_WAIT);
    assert_eq!(left, ["forget 21", "no more of 10 to 100", "to 100: release set", "forget 10"]);
    // What came whole stays for a while, for whoever brings the rest.
    assert_eq!(bench.put(8, &two, 11, ALL), ["to 1: you lack Manifest, 0 bytes"]);
    assert_eq!(bench.bring_manifest(8, 11, &two)[0], "to 1: you lack Pieces, 5 bytes");
    // Another put of the same set need not wait for a client that is away.
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    assert_eq!(bench.put(7, &two, 12, ALL).last().unwrap(), "to 1: you lack Manifest, 0 bytes");
}

#[test]
fn puts_of_clients_that_are_away_keep_nobody_from_putting() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let put = |bench: &mut Bench, number: u64| {
        let (conn, to) = (ConnId(1000 + number), u128::from(number));
        let put = put_of(&cache(&format!("set{number}")), &one, id(1000 + to), &name(TARGET_NONE));
        let said = bench.on(DatasetEvent::Put { conn, request: id(2000 + to), put });
        (conn, said)
    };
    let most = u64::try_from(PUTS_MAX).unwrap();
    for number in 0..most {
        let (conn, said) = put(&mut bench, number);
        assert!(said[0].contains("you lack Manifest"), "{said:?}");
        if number > 0 {
            bench.on(DatasetEvent::Closed { conn });
        }
    }
    for number in most..2 * most - 1 {
        let (_, said) = put(&mut bench, number);
        assert!(said.last().unwrap().contains("you lack Manifest"), "{number}: {said:?}");
    }
    let (_, said) = put(&mut bench, 2 * most);
    assert!(said.last().unwrap().contains("puts are under way"), "all are here: {said:?}");
}

#[test]
fn packs_that_no_set_has_go_after_a_while_and_those_that_others_need_stay() {
    let mut bench = Bench::new();
    let two = manifest(&[("a", "one"), ("b", "three")]);
    let begin = |bench: &mut Bench| {
        bench.put(9, &two, 10, TARGET_NONE);
        bench.bring_manifest(9, 10, &two);
        bench.bring_pack(9, 20, &["one"]);
    };
    begin(&mut bench);
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    assert_eq!(bench.after(CLIENT_WAIT), ["forget 10"]);
    assert!(bench.after(GRACE / 2).is_empty());
    assert_eq!(bench.after(GRACE), ["forget 20"]);
    begin(&mut bench);
    assert!(bench.after(2 * GRACE).is_empty(), "a put under way needs it");
    bench.on(DatasetEvent::Closed { conn: CLIENT });
    assert_eq!(bench.after(CLIENT_WAIT), ["forget 10", "forget 20"]);

    let shares = manifest(&[("a", "one"), ("c", "four")]);
    bench.keep(&two, 10, 22, &["one", "three"]);
    let put = put_of(&cache("other"), &shares, id(11), &name(TARGET_NONE));
    bench.on(DatasetEvent::Put { conn: CLIENT, request: id(8), put });
    bench.bring_manifest(8, 11, &shares);
    bench.bring_pack(8, 23, &["four"]);
    bench.commit();
    let removed = bench.books.sets.remove(&cache("set")).unwrap();
    assert_eq!(bench.on(DatasetEvent::Removed { dataset: removed }), ["forget 10"], "22 is the other's, too");
    let removed = bench.books.sets.remove(&cache("other")).unwrap();
    assert_eq!(bench.on(DatasetEvent::Removed { dataset: removed }), ["forget 11", "forget 22", "forget 23"]);
    assert!(bench.books.blobs.is_empty());
}

#[test]
fn packs_of_an_earlier_life_count_when_they_are_read_and_loose_ones_when_they_are_checked() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.keep(&one, 10, 20, &["one"]);
    let Bench { books, now, .. } = bench;
    let mut bench = Bench { books, now, ..Bench::new() };
    let loose = id(21);
    bench.books.blobs.insert(loose, KnownBlob { bytes: 100, has_arrived: true });
    for (blob, part) in
        [(id(10), RestoredPart::Manifest), (id(20), RestoredPart::Pack), (loose, RestoredPart::LoosePack)]
    {
        bench.on(DatasetEvent::Restored { blob, part });
    }
    bench.on(DatasetEvent::RestoredAll);
    let is_for = |bench: &mut Bench| bench.worker(100, &[]);
    assert!(is_for(&mut bench).is_empty(), "the set is for nobody");
    assert!(bench.pack_checked(20, &["one"]).is_empty());
    assert_eq!(bench.pack_checked(21, &["three"]), ["look at 21"], "its list alone proves nothing");
    let two = manifest(&[("a", "one"), ("b", "three")]);
    bench.replace(9, &two, 11, TARGET_NONE);
    assert_eq!(bench.bring_manifest(9, 11, &two), ["to 1: you lack Pieces, 5 bytes"]);
    bench.pack_checked(21, &["three"]);
    let again = bench.replace(9, &two, 11, TARGET_NONE);
    assert_eq!(again, ["to 1: you lack Nothing, 0 bytes", "commit set"]);
}

/// A put of a classic client whose contents are in a pack.
fn came(key: u128, generation: u128, pack: u128, files: &[(&str, &str)]) -> DatasetEvent {
    let made =
        |text: &str| Made { sha256: sha256(text.as_bytes()), pieces: vec![Piece::of(text.as_bytes())] };
    let of = |(name, text): &(&str, &str)| (SafeName::parse_in_set(name).unwrap(), made(text));
    let texts: Vec<&str> = files.iter().map(|(_, text)| *text).collect();
    let came = Came {
        conn: CLASSIC,
        request: id(99),
        key: id(key),
        generation: id(generation),
        cache: cache("set"),
        target: ALL.to_owned(),
        files: files.iter().map(of).collect(),
        entries: files.len() as u64,
        packs: vec![id(pack)],
    };
    DatasetEvent::ClassicCame { came, packs: vec![(id(pack), layout(&texts))] }
}

#[test]
fn a_classic_clients_put_becomes_a_set_and_the_next_adds_files_to_it() {
    let mut bench = Bench::new();
    bench.worker(100, &[]);
    for pack in [20, 21] {
        bench.books.blobs.insert(id(pack), KnownBlob { bytes: 100, has_arrived: true });
    }
    let done = bench.on(came(5, 10, 20, &[("a", "one")]));
    assert_eq!(done, ["look at 20", "keep 10", "look at 10"]);
    bench.manifest_read(10, &manifest(&[("a", "one")]));
    assert_eq!(bench.pack_checked(20, &["one"]), ["commit set"], "no client of ours hears of what lacks");
    assert_eq!(bench.commit(), ["to 100: hold set"]);
    assert_eq!(bench.acks(100, 10, stored(1, 0)), ["no more of 10 to 100", "to 2: OK added=1"]);

    // The file that is there is not overwritten; the answer counts what this client sent.
    bench.on(came(6, 11, 21, &[("a", "other"), ("b", "three")]));
    let both = manifest(&[("a", "one"), ("b", "three")]);
    bench.manifest_read(11, &both);
    bench.pack_checked(21, &["other", "three"]);
    bench.commit();
    assert_eq!(bench.books.sets[&cache("set")].digest, both.digest().bytes);
    let done = bench.acks(100, 11, stored(2, 0));
    assert_eq!(done.last().unwrap(), "to 2: OK added=1, skipped=1");
}

#[test]
fn a_classic_client_that_left_is_not_waited_for_and_its_set_is_kept() {
    let mut bench = Bench::new();
    bench.books.blobs.insert(id(20), KnownBlob { bytes: 100, has_arrived: true });
    bench.on(came(5, 10, 20, &[("a", "one")]));
    bench.books.left.insert(CLASSIC);
    assert!(bench.on(DatasetEvent::Closed { conn: CLASSIC }).is_empty());
    bench.manifest_read(10, &manifest(&[("a", "one")]));
    assert_eq!(bench.pack_checked(20, &["one"]), ["commit set"]);
    assert!(bench.commit().is_empty());
    assert!(bench.sets.puts.is_empty() && bench.books.has_arrived(id(10)));
}

#[test]
fn a_classic_worker_shows_that_it_knows_cache_put_and_gets_the_set_in_one_frame() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let host = IpAddr::from(Ipv4Addr::LOCALHOST);
    bench.put(9, &one, 10, ALL);
    bench.bring_manifest(9, 10, &one);
    bench.bring_pack(9, 20, &["one"]);
    bench.commit();
    assert_eq!(bench.classic_worker(200, host), ["to 200: do you know CachePut?"]);
    assert_eq!(bench.acks(200, 77, CachePutResult::stored(".", 0, 0)), ["look at 20"]);
    assert!(bench.sets.knows_cache_put(worker(200)));
    let found = Ok(vec![(Piece::of(b"one"), b"one".to_vec())]);
    let read = Ok(Looked::Pieces { reader: id(10), found });
    let done = bench.on(DatasetEvent::Looked { blob: id(20), result: read });
    assert_eq!(done, ["to 200: the set in one frame"]);
    bench.acks(200, 10, stored(1, 0));
    assert!(bench.sets.workers[&worker(200)].held.contains_key(&cache("set")));
    // One that never answers is asked nothing more.
    bench.classic_worker(201, host);
    bench.after(Duration::from_secs(5));
    assert!(!bench.sets.workers[&worker(201)].classic.as_ref().unwrap().may_know());
}

#[test]
fn inputs_of_a_job_become_a_set_for_the_agent_beside_its_worker() {
    let mut bench = Bench::new();
    let host = IpAddr::from(Ipv4Addr::LOCALHOST);
    bench.classic_worker(200, host);
    let agent = KnownWorker { name: String::new(), patterns: Vec::new(), datasets: true };
    bench.books.workers.insert(worker(100), agent);
    let kind = WorkerKind::Agent { only: None };
    let (conn, agent, host) = (ConnId(100), worker(100), Some(host));
    let done = bench.on(DatasetEvent::WorkerJoined { conn, worker: agent, host, kind });
    assert_eq!(done, ["pair 200 with Some(100)", "to 200: do you know CachePut?"]);
    let have = Have { anew: 1, budget: 1 << 30, used: 0, sets: SetList::default() };
    bench.on(DatasetEvent::WorkerHas { conn, worker: agent, have });

    let (job, one) = (JobId(id(7)), manifest(&[("a", "one")]));
    let staged = |bench: &mut Bench, key: u128| {
        bench.books.blobs.insert(id(20), KnownBlob { bytes: 100, has_arrived: true });
        let inputs = StagedInputs { job, key: id(key), generation: id(10), manifest: one.clone() };
        let packs = vec![(id(20), layout(&["one"]))];
        assert_eq!(bench.on(DatasetEvent::Staged { inputs, packs }), ["look at 20", "keep 10", "look at 10"]);
        bench.manifest_read(10, &one);
        bench.pack_checked(20, &["one"])
    };
    let set = CacheId::of_inputs(job);
    bench.books.staged_jobs.insert(job);
    assert_eq!(staged(&mut bench, 5), [format!("commit {set}")]);
    assert!(bench.commit().is_empty(), "nobody gets it unasked");
    let wanted = DatasetEvent::AgentWanted { agent, cache: set.clone() };
    assert_eq!(bench.on(wanted), [format!("to 100: hold {set}"), "to 100: blob 10".to_owned()]);
    let removed = bench.books.sets.remove(&set).unwrap();
    bench.on(DatasetEvent::Removed { dataset: removed });

    // One whose job has ended meanwhile goes as soon as it is kept.
    bench.books.staged_jobs.clear();
    staged(&mut bench, 6);
    assert_eq!(bench.commit(), [format!("remove {set}"), "forget 10".to_owned(), "forget 20".to_owned()]);

    assert_eq!(bench.on(DatasetEvent::Closed { conn }), ["pair 200 with None"]);
}

#[test]
fn inputs_whose_pack_the_disk_does_not_give_are_not_staged() {
    let mut bench = Bench::new();
    bench.books.blobs.insert(id(20), KnownBlob { bytes: 100, has_arrived: true });
    let manifest = manifest(&[("a", "one")]);
    let inputs =
        StagedInputs { job: JobId(id(7)), key: id(5), generation: id(10), manifest: manifest.clone() };
    bench.on(DatasetEvent::Staged { inputs, packs: vec![(id(20), layout(&["one"]))] });
    bench.manifest_read(10, &manifest);
    let bad = DatasetEvent::Looked { blob: id(20), result: Err("it is damaged".to_owned()) };
    let done = bench.on(bad);
    assert_eq!(done[..2], ["forget 20", "forget 10"]);
    assert!(done[2].starts_with("not staged: the leader's disk did not keep all of it"), "{done:?}");
}

#[test]
fn a_worker_that_refuses_a_part_ends_its_push_and_its_putter_hears_why() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    bench.worker(100, &[]);
    bench.keep(&one, 10, 20, &["one"]);
    bench.put(9, &one, 11, ALL);
    bench.commit();
    bench.lacks(100, 10, lack(1, &[0], 3));
    let (worker, reason, text) = (worker(100), Reason::DISK_FULL, "no room".to_owned());
    let done = bench.on(DatasetEvent::PartRefused { worker, blob: id(20), reason, text });
    assert_eq!(done[done.len() - 2..], ["to 1: FAILED no room", "to 1: Over, 0 of 1 have it, 0 missing"]);
    assert!(bench.after(GRACE).is_empty(), "it is not pushed again unasked");
}

#[test]
fn a_put_is_over_at_its_deadline() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let timed = Put { deadline_ms: 1000, ..put_of(&cache("set"), &one, id(10), &name(TARGET_NONE)) };
    bench.on(DatasetEvent::Put { conn: CLIENT, request: id(9), put: timed });
    assert_eq!(bench.sets.next_deadline(), Some(bench.now.plus(Duration::from_secs(1))));
    assert_eq!(bench.after(Duration::from_secs(1)), ["to 1: refused, the time for the put is over"]);
    assert!(bench.sets.puts.is_empty());
}

#[test]
fn a_classic_put_is_checked_before_its_contents_count() {
    let bench = Bench::new();
    let put = |json: &str| crate::model::CachePutRequest::parse(&Bytes::from(json.to_owned())).unwrap();
    let check = |json: &str, subject: &str| bench.sets.check_classic(&bench.books, &put(json), subject);
    let good = r#"{"CacheId":"set","Entries":[{"Name":"a","Content":""}]}"#;
    assert_eq!(check(good, "cache.put").unwrap().target, ALL);
    assert_eq!(check(good, "cache.put.job.assign.gpu").unwrap().target, "job.assign.gpu");
    let none = r#"{"CacheId":"set","Entries":[]}"#;
    assert!(check(none, "cache.put").unwrap_err().contains("has no files"));
}

#[test]
fn questions_are_answered_at_once_or_when_those_that_know_have_spoken() {
    let (mut bench, one) = (Bench::new(), manifest(&[("a", "one")]));
    let cache_id = || "set".to_owned();
    let rm = || Question::DatasetRm(ask::DatasetRm { cache_id: cache_id() });
    let unknown = bench.ask(ask::DatasetRm::VERB, rm());
    assert_eq!(unknown, ["no answer: no dataset set is kept here: `heft dataset HOST:PORT ls` lists them"]);
    bench.keep(&one, 10, 20, &["one"]);
    bench.worker(100, &[("set", one.digest())]);

    let verify = Question::DatasetVerify(ask::DatasetVerify { cache_id: cache_id() });
    let asked = bench.ask(ask::DatasetVerify::VERB, verify);
    assert_eq!(asked, ["look at 10", "look at 20", "to 100: inspect set"]);
    assert!(bench.manifest_read(10, &one).is_empty());
    assert!(bench.pack_checked(20, &["one"]).is_empty(), "the worker has said nothing");
    let done = bench.acks(100, 77, stored(0, 1));
    assert!(done[0].starts_with(r#"answer {"packs_bad":[],"packs_good":2,"workers":[{"#), "{done:?}");

    let done = bench.ask(ask::DatasetRm::VERB, rm());
    assert_eq!(done[0], "remove set", "{done:?}");
    assert!(done.iter().any(|line| line.starts_with(r#"answer {"bytes":"#)), "{done:?}");
}
