//! Tests of the dataset machine alone: events in, actions out, against a stub leader.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::wildcard_enum_match_arm)]

mod classic;
mod puts;
mod workers;

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use chunking::dataset::{Manifest, ManifestBuilder, Piece, sha256};
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    DatasetEntry, DatasetList, DatasetState, Have, Lacking, Name, Open, OpenFlags, Pack, PieceList,
    Purpose, Put, PutFlags, Reason,
};
use chunking::{Bitmap, Codec, Digest, DigestKind};

use super::classic_put::put_of;
use super::put::{CLIENT_WAIT, PUTS_MAX, PUTS_OF_CONN_MAX};
use super::*;
use crate::answers::ask::{self, Ask, Question};
use crate::core::dataset::TARGET_NONE;
use crate::core::ids::JobId;
use crate::core::names::SafeName;
use crate::leader::pack_writer::PackedFile;
use crate::leader::refusal_text::RefusalText;
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

/// A dataset of files with one piece each, the bytes of their texts.
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
    datasets: BTreeMap<CacheId, Arc<Dataset>>,
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
        self.datasets.get(cache).cloned()
    }
    fn datasets(&self) -> Box<dyn Iterator<Item = &Arc<Dataset>> + '_> {
        Box::new(self.datasets.values())
    }
    fn dataset_count(&self) -> usize {
        self.datasets.len()
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
    datasets: Datasets,
    books: Books,
    now: Micros,
    /// Datasets that are to be committed.
    proposed: Vec<Arc<Dataset>>,
    /// What the scheduler knows of who holds what: a content, and what is missing of it.
    holding: BTreeMap<(WorkerId, CacheId), ([u8; 32], u64)>,
    done: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let (books, proposed, done) = (Books::default(), Vec::new(), Vec::new());
        Bench {
            datasets: Datasets::new(GRACE),
            books,
            now: Micros(1),
            proposed,
            holding: BTreeMap::new(),
            done,
        }
    }

    /// Gives what was done about an event.
    fn on(&mut self, event: DatasetEvent) -> Vec<String> {
        self.handle(event);
        std::mem::take(&mut self.done)
    }

    fn handle(&mut self, event: DatasetEvent) {
        self.datasets.handle(self.now, &self.books, event);
        while let Some(action) = self.datasets.poll() {
            self.done.extend(brief(&action));
            match action {
                DatasetAction::Expect { blob, open, .. } => {
                    self.books
                        .blobs
                        .insert(blob, KnownBlob { bytes: open.size, has_arrived: false });
                }
                DatasetAction::KeepManifest { blob, bytes, .. } => {
                    self.books
                        .blobs
                        .insert(blob, KnownBlob { bytes: bytes.len() as u64, has_arrived: true });
                    self.handle(DatasetEvent::Arrived { blob });
                }
                DatasetAction::Forget { blob } => {
                    self.books.blobs.remove(&blob);
                }
                DatasetAction::Tell(Event::Holding { worker, cache, digest, missing }) => {
                    self.holding.insert((worker, cache), (digest, missing));
                }
                DatasetAction::Tell(Event::NotHolding { worker, cache }) => {
                    self.holding.remove(&(worker, cache));
                }
                DatasetAction::Tell(Event::HoldsNothing { worker }) => {
                    self.holding.retain(|(holder, _), _| *holder != worker);
                }
                DatasetAction::Tell(Event::PutDataset { dataset }) => self.proposed.push(dataset),
                DatasetAction::Tell(Event::Staged { job, dataset }) => {
                    self.books.staged.insert(dataset.cache.clone(), job);
                    self.proposed.push(dataset);
                }
                DatasetAction::Tell(Event::RemoveDataset { cache }) => {
                    if let Some(dataset) = self.books.datasets.remove(&cache) {
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
            let replaced = self.books.datasets.insert(dataset.cache.clone(), dataset.clone());
            self.handle(DatasetEvent::Kept { dataset, replaced });
        }
        std::mem::take(&mut self.done)
    }

    fn put(&mut self, request: u128, of: &Manifest, version: u128, target: &str) -> Vec<String> {
        let put = put_of(&cache("set"), of, id(version), &name(target));
        self.on(DatasetEvent::Put { conn: CLIENT, request: id(request), put })
    }

    fn replace(
        &mut self,
        request: u128,
        of: &Manifest,
        version: u128,
        target: &str,
    ) -> Vec<String> {
        let flags = PutFlags::REPLACE;
        let put = Put { flags, ..put_of(&cache("set"), of, id(version), &name(target)) };
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
        let result = Ok(Verified::Manifest(Box::new(manifest.clone())));
        self.on(DatasetEvent::Verified { blob: id(blob), result })
    }

    fn pack_checked(&mut self, blob: u128, texts: &[&str]) -> Vec<String> {
        let result = Ok(Verified::Pack(Arc::new(layout(texts))));
        self.on(DatasetEvent::Verified { blob: id(blob), result })
    }

    fn announce(&mut self, request: u128, pack: u128, texts: &[&str]) -> Vec<String> {
        let says = Pack { pieces: PieceList::new(layout(texts).pieces().to_vec()) };
        self.on(DatasetEvent::PackAnnounced {
            conn: CLIENT,
            pack: id(pack),
            request: id(request),
            says,
        })
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

    /// Keeps a dataset of one pack, for nobody.
    fn keep(&mut self, manifest: &Manifest, version: u128, pack: u128, texts: &[&str]) {
        self.put(version, manifest, version, TARGET_NONE);
        self.bring_manifest(version, version, manifest);
        self.bring_pack(version, pack, texts);
        self.commit();
    }

    /// A heft worker joins, and says what it has.
    fn worker(&mut self, n: u64, has: &[(&str, Digest)]) -> Vec<String> {
        let (worker, conn) = (worker(n), ConnId(n));
        let known =
            KnownWorker { name: String::new(), patterns: vec![ALL.to_owned()], datasets: true };
        self.books.workers.insert(worker, known);
        self.handle(DatasetEvent::WorkerJoined {
            conn,
            worker,
            host: None,
            kind: WorkerKind::Ours,
        });
        let datasets = has.iter().map(|(dataset, digest)| DatasetEntry {
            state: DatasetState::Held,
            digest: *digest,
            cache_id: name(dataset),
            text: "".into(),
        });
        let have = Have {
            anew: 1,
            budget: 1 << 30,
            used: 0,
            datasets: DatasetList::new(datasets.collect()),
        };
        self.on(DatasetEvent::WorkerHas { conn, worker, have })
    }

    /// A classic worker joins.
    fn classic_worker(&mut self, n: u64, host: IpAddr) -> Vec<String> {
        let (worker, conn) = (worker(n), ConnId(n));
        let known =
            KnownWorker { name: String::new(), patterns: vec![ALL.to_owned()], datasets: false };
        self.books.workers.insert(worker, known);
        self.on(DatasetEvent::WorkerJoined {
            conn,
            worker,
            host: Some(host),
            kind: WorkerKind::Classic,
        })
    }

    fn lacks(&mut self, n: u64, version: u128, lack: Lack) -> Vec<String> {
        let (worker, conn, version) = (worker(n), ConnId(n), id(version));
        self.on(DatasetEvent::WorkerLacks { conn, worker, version, lack })
    }

    fn acks(&mut self, n: u64, to: u128, result: CachePutResult) -> Vec<String> {
        self.on(DatasetEvent::WorkerAcked { worker: worker(n), to: id(to), result })
    }

    /// What jobs find of the dataset at a worker.
    fn holding(&self, n: u64) -> Option<([u8; 32], u64)> {
        self.holding.get(&(worker(n), cache("set"))).copied()
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
            Says::Lack(lack) => {
                format!("to {conn}: you lack {:?}, {} bytes", lack.what, lack.bytes)
            }
            Says::Spread(spread) => format!(
                "to {conn}: {:?}, {} of {} have it, {} missing",
                spread.stage,
                spread.ok + spread.skipped,
                spread.targets,
                spread.missing
            ),
            Says::Hold(hold) => {
                let counts = if hold.flags.has(chunking::message::HoldFlags::COMMITTED) {
                    ""
                } else {
                    " soon"
                };
                format!("to {conn}: hold {}{counts}", hold.cache_id.as_str())
            }
            Says::Release(release) => format!("to {conn}: release {}", release.cache_id.as_str()),
            Says::Pack(pack) => format!("to {conn}: a pack of {}", pack.pieces.as_slice().len()),
            Says::Inspect(inspect) => format!("to {conn}: inspect {}", inspect.cache_id.as_str()),
        },
        DatasetAction::Refuse { conn, refusal, .. } => {
            format!("to {conn}: refused, {}", refusal.text())
        }
        DatasetAction::CacheAck { conn, result, .. } => {
            format!("to {conn}: {} {}", result.status.as_str(), result.message)
        }
        DatasetAction::AskClassic { conn } => format!("to {conn}: do you know CachePut?"),
        DatasetAction::SendDataset { conn, .. } => format!("to {conn}: the dataset in one frame"),
        DatasetAction::Answer { answer: Ok(answer), .. } => format!("answer {answer}"),
        DatasetAction::Answer { answer: Err(failure), .. } => {
            format!("no answer: {}", failure.error)
        }
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
        DatasetAction::TurnAway { conn, blob } => {
            format!("to {conn}: {} is not expected", number(*blob))
        }
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
