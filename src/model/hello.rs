//! What a peer says of itself when it connects: a client's wish for parallel jobs (M04, CP01-CP03),
//! a worker's patterns, and the announcement by which heft peers know each other. It never decides
//! what to make of an announcement. Clients and workers write it, leaders read it.

use super::error::ModelError;
use super::json::{JsonModel, Object, ObjectWriter, Schema};
use super::limits::{
    FEATURES_MAX, NAME_BYTES_MAX, PATTERNS_MAX, PROGRAM_NAME_BYTES_MAX, PROGRAMS_LISTED_MAX,
    SUBJECT_BYTES_MAX,
};

/// How heft calls itself to other peers.
pub const SOFTWARE: &str = concat!("heft ", env!("CARGO_PKG_VERSION"));

/// How many jobs of one client may run at a time when it names no number of its own (CP02).
pub const CLIENT_CAP_DEFAULT: u32 = 4;

/// A client's cap that is none: as many of its jobs run as workers take.
pub const UNCAPPED: u32 = u32::MAX;

/// The most jobs a worker may run at a time: its heartbeat has to list them.
const PARALLEL_MAX: u64 = chunking::limits::HEARTBEAT_JOBS_MAX as u64;

/// What a heft peer can do. Classic peers pass over it (M14), so sending it is always safe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The version of the protocol it speaks.
    pub version: u32,
    /// What it can do beyond that version's minimum.
    pub features: Vec<String>,
    /// What it calls itself in logs.
    pub name: Option<String>,
}

impl JsonModel for Announcement {
    const SCHEMA: Schema = Schema { name: "Heft", members: &["Version", "Features", "Name"] };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        let version = object.whole("Version", 0, i32::MAX.unsigned_abs().into())?;
        Ok(Self {
            version: object.need("Version", "a whole number", version)?,
            features: read_names(object, "Features", FEATURES_MAX, NAME_BYTES_MAX)?,
            name: object.name("Name", NAME_BYTES_MAX)?,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.whole("Version", self.version);
        object.texts("Features", &self.features);
        object.text_if_some("Name", self.name.as_deref());
    }
}

/// The payload of HelloClient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The client, as in the frame's subject.
    pub client_id: String,
    /// How many jobs it wants to have running at a time.
    pub desired_parallelism: i32,
    /// Ours: the client's cap, which counts instead of the wish; 0 for none.
    pub cap: Option<u32>,
    /// Ours: what the client can do.
    pub heft: Option<Announcement>,
}

impl ClientConfig {
    /// The client's cap. The wish counts only if it names the client that the frame's subject names
    /// (CP03), and never gives less than one job (CP02). A cap of heft's own counts before it.
    #[must_use]
    pub fn cap_for(&self, subject: &str) -> u32 {
        if self.client_id != subject {
            return CLIENT_CAP_DEFAULT;
        }
        match self.cap {
            Some(0) => return UNCAPPED,
            Some(cap) => return cap,
            None => {}
        }
        u32::try_from(self.desired_parallelism).unwrap_or(1).max(1)
    }

    /// The cap that a whole HelloClient asks for; the default if its payload cannot be read (CP03).
    #[must_use]
    pub fn cap_of_hello(payload: &[u8], subject: &str) -> u32 {
        Self::parse(payload).map_or(CLIENT_CAP_DEFAULT, |config| config.cap_for(subject))
    }
}

impl JsonModel for ClientConfig {
    const SCHEMA: Schema = Schema {
        name: "ClientConfig",
        members: &["ClientId", "DesiredParallelism", "Cap", "Heft"],
    };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        object.refuse_null("DesiredParallelism", "a whole number")?;
        let heft = object.object("Heft", Announcement::SCHEMA)?;
        Ok(Self {
            client_id: object.name("ClientId", SUBJECT_BYTES_MAX)?.unwrap_or_default(),
            // .NET would read 0; a peer that leaves the member out states no wish, and that is what
            // the default is for.
            desired_parallelism: object
                .int32("DesiredParallelism")?
                .unwrap_or(CLIENT_CAP_DEFAULT.cast_signed()),
            cap: object.whole("Cap", 0, u32::MAX.into())?,
            heft: heft.map(|heft| Announcement::read(&heft)).transpose()?,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("ClientId", &self.client_id);
        object.whole("DesiredParallelism", self.desired_parallelism);
        object.whole_if_some("Cap", self.cap);
        object.model_if_some("Heft", self.heft.as_ref());
    }
}

/// The payload that our worker puts into HelloWorker; a classic worker's is empty (T10), which is
/// no `WorkerHello`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerHello {
    /// What the worker can do.
    pub heft: Announcement,
    /// The subjects it subscribes to beside the one in the frame (S21).
    pub patterns: Vec<String>,
    /// How many jobs it runs at a time.
    pub max_parallel: Option<u32>,
    /// Whether it keeps a cache and takes no jobs (C01).
    pub cache_only: bool,
    /// The id of the classic worker on the same host that it keeps its cache for.
    pub cache_for: Option<String>,
    /// Whether it takes payloads that are not a JobRequest (M19).
    pub raw: bool,
    /// Tells its process from another one that was started under the same id.
    pub instance: Option<String>,
    /// All programs that it has, if it lists them.
    pub programs: Option<Vec<String>>,
}

impl JsonModel for WorkerHello {
    const SCHEMA: Schema = Schema {
        name: "WorkerHello",
        members: &[
            "Heft",
            "Patterns",
            "MaxParallel",
            "CacheOnly",
            "CacheFor",
            "Raw",
            "Instance",
            "Programs",
        ],
    };

    fn read(object: &Object<'_>) -> Result<Self, ModelError> {
        let heft =
            object.need("Heft", "an object", object.object("Heft", Announcement::SCHEMA)?)?;
        Ok(Self {
            heft: Announcement::read(&heft)?,
            patterns: read_names(object, "Patterns", PATTERNS_MAX, SUBJECT_BYTES_MAX)?,
            max_parallel: object.whole("MaxParallel", 1, PARALLEL_MAX)?,
            cache_only: object.flag("CacheOnly")?.unwrap_or_default(),
            cache_for: object.name("CacheFor", NAME_BYTES_MAX)?,
            raw: object.flag("Raw")?.unwrap_or_default(),
            instance: object.name("Instance", NAME_BYTES_MAX)?,
            programs: object
                .list("Programs", PROGRAMS_LISTED_MAX)?
                .map(|items| items.iter().map(|item| item.name(PROGRAM_NAME_BYTES_MAX)).collect())
                .transpose()?,
        })
    }

    fn write(&self, object: &mut ObjectWriter<'_>) {
        object.model_if_some("Heft", Some(&self.heft));
        object.texts("Patterns", &self.patterns);
        object.whole_if_some("MaxParallel", self.max_parallel);
        object.flag_if_set("CacheOnly", self.cache_only);
        object.text_if_some("CacheFor", self.cache_for.as_deref());
        object.flag_if_set("Raw", self.raw);
        object.text_if_some("Instance", self.instance.as_deref());
        if let Some(programs) = &self.programs {
            object.texts("Programs", programs);
        }
    }
}

fn read_names(
    object: &Object<'_>,
    member: &'static str,
    items_max: usize,
    bytes_max: usize,
) -> Result<Vec<String>, ModelError> {
    let items = object.list(member, items_max)?.unwrap_or_default();
    items.iter().map(|item| item.name(bytes_max)).collect()
}
