//! What the demo shows, act by act. Each act checks what it claims.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chunking::DigestKind;
use chunking::digest::{BlobHasher, to_hex};
use tokio::task::JoinSet;

use super::scene::{Scene, heft, write_noise};
use crate::client::dataset::{DatasetSpec, PutReport, Wait, put};
use crate::client::{JobEvent, JobHandle, JobSpec, Options};
use crate::model::{InputFile, JobRequest, JobResult, JobStatus};
use crate::units::ByteSize;

/// The dataset of the demo, and the one file in it.
const DATASET: &str = "demo-model";
const DATASET_FILE: &str = "model.bin";

/// What is changed in the second version of the dataset.
const CHANGED_BYTES: usize = 1 << 20;

/// The digest of a heavy input is checked over its last bytes by the program, over all by heft.
const TAIL_BYTES: u64 = 1 << 20;

/// Small jobs that are on their way at a time.
const SMALL_AT_A_TIME: usize = 8;

/// What the demo shows.
pub(super) enum Act {
    /// A heavy input to a program.
    Input { bytes: u64 },
    /// A dataset on both workers, and a second version of it.
    Dataset { bytes: u64 },
    /// A heavy result.
    Result { bytes: u64 },
    /// A worker is killed while it runs a job.
    KilledWorker,
    /// The leader is killed in the middle of an upload.
    KilledLeader,
    /// Many small jobs.
    Small { jobs: u32 },
}

/// How an act ended.
pub(super) struct ActEnd {
    pub(super) lines: Vec<String>,
    /// Whether what it claims is so.
    pub(super) is_good: bool,
}

/// All acts, in their order.
pub(super) fn all(size: u64, jobs: u32) -> Vec<Act> {
    vec![
        Act::Input { bytes: size },
        Act::Dataset { bytes: size / 4 },
        Act::Result { bytes: size / 10 * 3 },
        Act::KilledWorker,
        Act::KilledLeader,
        Act::Small { jobs },
    ]
}

impl Act {
    pub(super) const LABEL_CHARS: usize = 13;

    pub(super) fn label(&self) -> String {
        let label = match self {
            Act::Input { .. } => "heavy input",
            Act::Dataset { .. } => "dataset",
            Act::Result { .. } => "heavy result",
            Act::KilledWorker => "killed worker",
            Act::KilledLeader => "killed leader",
            Act::Small { .. } => "small jobs",
        };
        format!("{label:<width$}", width = Act::LABEL_CHARS)
    }

    pub(super) fn announcement(&self) -> String {
        match self {
            Act::Input { bytes } => {
                format!("a job with an input of {}", ByteSize(*bytes))
            }
            Act::Dataset { bytes } => {
                format!(
                    "{} that many jobs share, put on both workers ahead of them",
                    ByteSize(*bytes)
                )
            }
            Act::Result { bytes } => format!("a job that makes a file of {}", ByteSize(*bytes)),
            Act::KilledWorker => "a worker dies in the middle of a job (SIGKILL)".to_owned(),
            Act::KilledLeader => "the leader dies in the middle of an upload (SIGKILL)".to_owned(),
            Act::Small { jobs } => format!("{jobs} jobs that do nothing"),
        }
    }

    pub(super) async fn play(&self, scene: &mut Scene) -> anyhow::Result<ActEnd> {
        match self {
            Act::Input { bytes } => input(scene, *bytes).await,
            Act::Dataset { bytes } => dataset(scene, *bytes).await,
            Act::Result { bytes } => result(scene, *bytes).await,
            Act::KilledWorker => killed_worker(scene).await,
            Act::KilledLeader => killed_leader(scene).await,
            Act::Small { jobs } => small(scene, *jobs).await,
        }
    }
}

async fn input(scene: &Scene, bytes: u64) -> anyhow::Result<ActEnd> {
    write_noise(&scene.input(), bytes, 1)?;
    let began = Instant::now();
    let mut job = submit_input(scene).await?;
    let mut sent = None;
    while let Some(event) = job.event().await {
        if let JobEvent::Uploading { done, total } = event
            && done == total
        {
            sent.get_or_insert_with(|| began.elapsed());
        }
    }
    let result = job.wait().await?;
    let sent = sent.unwrap_or_else(|| began.elapsed());
    let is_good = has_read(&result, &scene.input(), bytes)?;
    let lines = vec![
        format!(
            "sent through the leader's disk to a worker in {sent:.1?}, {}; the program ran once \
             all of it was there",
            rate(bytes, sent)
        ),
        format!("the program read the same bytes; result after {:.1?}", began.elapsed()),
    ];
    Ok(ActEnd { lines, is_good })
}

/// A job that reads the heavy input.
async fn submit_input(scene: &Scene) -> anyhow::Result<JobHandle> {
    let spec = JobSpec::from(request("measure", Vec::new())).file("input.bin", scene.input())?;
    Ok(scene.client().submit(spec).await?)
}

/// Whether the program `measure` read this file.
fn has_read(result: &JobResult, path: &Path, bytes: u64) -> anyhow::Result<bool> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let expected = format!("{bytes}\n{}\n", sha256(&tail));
    Ok(result.status == JobStatus::Ok && result.stdout == expected)
}

async fn dataset(scene: &Scene, bytes: u64) -> anyhow::Result<ActEnd> {
    let file = scene.dataset().join(DATASET_FILE);
    fs::create_dir(scene.dataset())?;
    write_noise(&file, bytes, 2)?;
    let first = put_dataset(scene).await?;
    let mut lines = vec![format!(
        "{} sent to the leader once, and from there to {} workers, in {:.1?}",
        ByteSize(first.spread.received),
        first.spread.have(),
        first.took
    )];
    // A second version: one mebibyte in the middle is another one, and begins with this line.
    let line = "version 2\n";
    let mut changed = fs::File::options().write(true).open(&file)?;
    changed.write_all(line.as_bytes())?;
    changed.seek(SeekFrom::Start(bytes / 2))?;
    changed.write_all(&vec![7; CHANGED_BYTES.min(usize::try_from(bytes / 4)?)])?;
    drop(changed);
    let second = put_dataset(scene).await?;
    lines.push(format!(
        "version 2, with 1 MiB changed: {} sent, in {:.1?}",
        ByteSize(second.spread.received),
        second.took
    ));
    let files = vec![InputFile::cached(DATASET_FILE, DATASET)];
    let shown = scene.client().submit(request("first-line", files)).await?.wait().await?;
    let is_new = shown.status == JobStatus::Ok && shown.stdout == line;
    lines.push(format!("a job that names it starts at once and reads {:?}", shown.stdout.trim()));
    // What is sent again depends on where the pieces are cut: a few for each change.
    let is_little = second.spread.received < first.spread.received;
    let is_good = first.enough && second.enough && is_new && is_little;
    Ok(ActEnd { lines, is_good })
}

async fn put_dataset(scene: &Scene) -> anyhow::Result<PutReport> {
    let spec = DatasetSpec::new(DATASET, [scene.dataset()])?.replace(true).wait(Wait::All);
    Ok(put(scene.addr(), spec, &Options::new("demo"), |_| {}).await?)
}

async fn result(scene: &Scene, bytes: u64) -> anyhow::Result<ActEnd> {
    let out = scene.root().join("results");
    let bytes_text = bytes.to_string();
    let began = Instant::now();
    let done = heft()?
        .args(["submit", "-l", scene.addr(), "make", "--progress", "none", "--out"])
        .arg(&out)
        .args(["--", &bytes_text])
        .output()
        .await?;
    let took = began.elapsed();
    let made = out.join("made.bin");
    let mut hasher = BlobHasher::new(DigestKind::Sha256);
    hash_file(&made, &mut hasher).with_context(|| format!("cannot read {}", made.display()))?;
    let said = String::from_utf8_lossy(&done.stdout);
    let is_good = done.status.success() && said.trim() == to_hex(&hasher.finish().bytes);
    fs::remove_dir_all(&out)?;
    Ok(ActEnd {
        lines: vec![format!(
            "made, returned and unpacked in {took:.1?}; the same SHA-256 at both ends"
        )],
        is_good,
    })
}

async fn killed_worker(scene: &mut Scene) -> anyhow::Result<ActEnd> {
    let mut job = scene.client().submit(request("rescued", Vec::new())).await?;
    let by = scene.notes().join("taken/by");
    let victim = loop {
        if let Ok(directory) = fs::read_to_string(&by) {
            let found = scene.worker_at(&directory);
            break found.with_context(|| format!("no worker has its jobs in {directory:?}"))?;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            ended = job.wait() => {
                let JobResult { status, stderr, .. } = ended?;
                bail!("the job ended {} before its worker was killed: {stderr}", status.as_str());
            }
        }
    };
    scene.kill_worker(victim)?;
    let began = Instant::now();
    let result = job.wait().await?;
    let took = began.elapsed();
    let is_other = scene.worker_at(&result.stdout).is_some_and(|worker| worker != victim);
    let is_good = result.status == JobStatus::Ok && is_other;
    scene.restart_worker(victim).await?;
    Ok(ActEnd {
        lines: vec![format!(
            "{victim} was killed; the job ran again on the other worker and ended {} after {took:.1?}",
            result.status.as_str()
        )],
        is_good,
    })
}

async fn killed_leader(scene: &mut Scene) -> anyhow::Result<ActEnd> {
    let bytes = fs::metadata(scene.input())?.len();
    let mut job = submit_input(scene).await?;
    let sent = loop {
        match job.event().await {
            Some(JobEvent::Uploading { done, total }) if done > 0 && done < total => break done,
            Some(JobEvent::Uploading { done, total }) if done == total => break done,
            Some(_) => {}
            None => bail!("the job ended before its input was sent"),
        }
    };
    let down = scene.restart_leader().await?;
    let mut lines = vec![format!(
        "killed after {} of {}; started again on its data directory in {down:.1?}",
        ByteSize(sent),
        ByteSize(bytes)
    )];
    let (mut is_back, mut resumed) = (false, None);
    while let Some(event) = job.event().await {
        if let JobEvent::Reconnecting { .. } = event {
            is_back = true;
        } else if let (JobEvent::Uploading { done, .. }, true) = (event, is_back) {
            resumed.get_or_insert(done);
        }
    }
    let result = job.wait().await?;
    let is_good = has_read(&result, &scene.input(), bytes)?;
    lines.push(match resumed {
        Some(done) => {
            format!("the client went on at {}: what had arrived was not sent again", ByteSize(done))
        }
        None => "all of it had arrived: nothing was sent again".to_owned(),
    });
    lines.push("the program read the same bytes".to_owned());
    Ok(ActEnd { lines, is_good })
}

async fn small(scene: &Scene, jobs: u32) -> anyhow::Result<ActEnd> {
    let began = Instant::now();
    let (mut under_way, mut times, mut submitted) = (JoinSet::new(), Vec::new(), 0);
    let mut all_ok = true;
    while submitted < jobs || !under_way.is_empty() {
        while submitted < jobs && under_way.len() < SMALL_AT_A_TIME {
            let began = Instant::now();
            let mut job = scene.client().submit(request("small", Vec::new())).await?;
            under_way.spawn(async move { (job.wait().await, began.elapsed()) });
            submitted += 1;
        }
        if let Some(ended) = under_way.join_next().await {
            let (result, took) = ended?;
            all_ok &= result?.status == JobStatus::Ok;
            times.push(took);
        }
    }
    let took = began.elapsed();
    times.sort_unstable();
    let at = |percent: usize| {
        let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(place).copied().unwrap_or_default()
    };
    Ok(ActEnd {
        lines: vec![format!(
            "{:.0} jobs/s, {SMALL_AT_A_TIME} at a time, each a process of its own; from submit to \
             result: p50 {:.1?}, p95 {:.1?}, p99 {:.1?}",
            f64::from(jobs) / took.as_secs_f64(),
            at(50),
            at(95),
            at(99)
        )],
        is_good: all_ok,
    })
}

fn request(exec: &str, files: Vec<InputFile>) -> JobRequest {
    JobRequest { exec_name: exec.to_owned(), files, ..JobRequest::default() }
}

fn sha256(bytes: &[u8]) -> String {
    let mut hasher = BlobHasher::new(DigestKind::Sha256);
    hasher.update(bytes, 0);
    to_hex(&hasher.finish().bytes)
}

fn hash_file(path: &Path, hasher: &mut BlobHasher) -> std::io::Result<()> {
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        hasher.update(buffer.get(..read).unwrap_or_default(), 0);
    }
}

/// Bytes in a second, for people.
fn rate(bytes: u64, took: Duration) -> String {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let per_second = u128::from(bytes) * 1_000_000 / u128::from(micros);
    format!("{}/s", ByteSize(u64::try_from(per_second).unwrap_or(u64::MAX)))
}
