//! `heft leader`: the broker.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use chunking::limits::{CHUNK_BYTES_MAX, CLASSIC_INBOUND_BODY_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::core::Config;
use crate::core::choose::Policy;
use crate::driver::{Choice, Descriptors, Driver, Options, SpinMode, Storage};
use crate::fs::own_dir::{Part, check_part};
use crate::leader::{LeaderConfig, RelayConfig, Verify};
use crate::store::blobs::{BLOBS, SPOOL};
use crate::store::format::CONSENSUS;
use crate::store::space::Reserve;
use crate::units::{ByteSize, Span};
use crate::wire::{SILENCE_MIN, Tuning};

use super::exit::{PANICKED, Unavailable, Usage};
use super::{print, say};

const EXAMPLES: &str = "Examples:
  heft leader 5000
  heft leader 0                                  a free port, printed at startup
  heft leader 5000 --policy sticky --lease 10s
  heft leader 5000 --listen 10.0.0.1 --insecure
  heft leader 5000 --data /var/lib/heft --spool-max 500GiB
  heft leader 5000 --durability memory           nothing survives a restart; large jobs are faster

Acknowledged work is on disk beneath --data; the next leader with that directory resumes it.

Exit codes: 0 stopped on request, 2 invalid command line, 3 cannot bind the port, or the data
directory or a system limit prevents startup, 101 a defect in heft.";

/// Bytes of small jobs that may wait on disk, by default. In memory it is what [`LeaderConfig`]
/// says.
const PAYLOAD_BYTES_ON_DISK: u64 = 16 << 30;

/// The defaults of the configuration as the flags show them.
struct Defaults {
    config: LeaderConfig,
    lease: String,
    worker_grace: String,
    input_wait: String,
    result_ttl: String,
    blob_grace: String,
    result_max: String,
    spool_max: String,
    buffers: String,
    classic_inbound_max: String,
    data: String,
}

static DEFAULTS: LazyLock<Defaults> = LazyLock::new(|| {
    let (config, options) = (LeaderConfig::default(), Options::default());
    let size = |bytes: u64| ByteSize(bytes).to_string().replace(' ', "");
    let (broker, relay) = (&config.broker, &config.relay);
    Defaults {
        lease: time(broker.lease),
        worker_grace: time(broker.worker_grace),
        input_wait: time(broker.input_wait),
        result_ttl: time(broker.result_ttl),
        blob_grace: time(config.blob_grace),
        result_max: size(config.result_bytes_max),
        spool_max: size(relay.spool_bytes_max),
        buffers: size((relay.buffers as u64).saturating_mul(CHUNK_BYTES_MAX.into())),
        classic_inbound_max: options.classic_inbound_max.to_string(),
        data: options.data.display().to_string(),
        config,
    }
});

/// A time as flags show it: up to a minute in seconds.
fn time(time: Duration) -> String {
    match time.as_secs() {
        secs @ 1..=60 if time.subsec_nanos() == 0 => format!("{secs}s"),
        _ => Span(time).to_string(),
    }
}

/// Fewer buffers would not fill two windows and leave room for reading back.
const BUFFERS_MIN: usize = 16;

/// The room of one chunk: with less nothing could ever wait.
const SPOOL_BYTES_MIN: u64 = CHUNK_BYTES_MAX as u64;

/// What survives a restart of the leader (`--durability`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Durability {
    /// Everything acknowledged; it is synced to disk first.
    #[default]
    Disk,
    /// Nothing.
    Memory,
}

/// The I/O driver (`--driver`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum DriverChoice {
    /// io_uring if available, otherwise portable.
    #[default]
    Auto,
    /// io_uring; fail if it is not available.
    Uring,
    /// The driver for any system.
    Portable,
}

impl From<DriverChoice> for Choice {
    fn from(choice: DriverChoice) -> Choice {
        match choice {
            DriverChoice::Auto => Choice::Auto,
            DriverChoice::Uring => Choice::Uring,
            DriverChoice::Portable => Choice::Portable,
        }
    }
}

/// Who checks a chunk that is forwarded at once (`--verify`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum VerifyChoice {
    /// Only the receiver, which requests a bad chunk again.
    #[default]
    End,
    /// The leader too, before it forwards the chunk.
    Hop,
}

impl From<VerifyChoice> for Verify {
    fn from(choice: VerifyChoice) -> Verify {
        match choice {
            VerifyChoice::End => Verify::End,
            VerifyChoice::Hop => Verify::Hop,
        }
    }
}

/// A worker beats six times in a lease: with less than this a pause of the machine would cost it
/// its jobs.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// A segment has room for a few of the largest jobs.
const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// Run a leader: accept jobs from clients and assign them to workers
#[derive(clap::Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct LeaderArgs {
    /// Port to listen on; 0 picks a free port.
    port: u16,

    /// Address to listen on. An address reachable from other machines requires --insecure: there is
    /// no TLS and no access control yet.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDR")]
    listen: IpAddr,

    /// Allow listening beyond this machine without TLS and access control: anyone who can reach the
    /// port can run jobs.
    #[arg(long)]
    insecure: bool,

    /// Scheduling policy: locality, least-load, credit-first, round-robin, sticky or load-score.
    /// Locality considers the datasets a job names, and is least-load for a job without datasets;
    /// the other policies ignore datasets.
    #[arg(long, default_value_t = DEFAULTS.config.broker.policy)]
    policy: Policy,

    /// Time a heft worker keeps a job without a heartbeat.
    #[arg(long, default_value = DEFAULTS.lease.as_str(), value_name = "TIME")]
    lease: Span,

    /// Time a heft worker may be disconnected before its jobs are requeued.
    #[arg(long, default_value = DEFAULTS.worker_grace.as_str(), value_name = "TIME")]
    worker_grace: Span,

    /// Silence, without even a keepalive, after which a heft peer considers its connection to the
    /// leader dead and reconnects; the leader waits a quarter longer for the peer.
    #[arg(long, default_value_t = Span(DEFAULTS.config.silence), value_name = "TIME")]
    silence: Span,

    /// Deliveries of a job before it goes to the dead-letter queue.
    #[arg(long, default_value_t = DEFAULTS.config.broker.attempts_max, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,

    /// Requeue jobs that a classic worker does not answer within 1 s, doubling to 30 s, as the
    /// older system does.
    #[arg(long)]
    classic_ack_timeout: bool,

    /// What survives a restart: everything acknowledged, which is synced to disk first, or nothing.
    #[arg(long, value_enum, default_value_t, env = "HEFT_DURABILITY", value_name = "WHAT")]
    durability: Durability,

    /// Data directory; created if missing. With --durability memory it only holds waiting large
    /// inputs and results, in `DIR/spool`, which is created on first use and removed with the
    /// leader.
    #[arg(long, default_value = DEFAULTS.data.as_str(), value_name = "DIR", env = "HEFT_DATA")]
    data: PathBuf,

    /// Accept a data directory that another user owns or can write to; such a user can redirect the
    /// leader's files.
    #[arg(long)]
    allow_shared_dirs: bool,

    /// Node number; a data directory belongs to one node.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    node: i32,

    /// Size of a log segment. After four segments a snapshot is made and obsolete files are
    /// removed.
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    log_segment: ByteSize,

    /// Time orphaned blob files are kept before they are removed; their sender may still resume.
    #[arg(long, default_value = DEFAULTS.blob_grace.as_str(), value_name = "TIME")]
    blob_grace: Span,

    /// Maximum bytes of large inputs and results at the leader, in memory and beneath --data.
    /// Beyond it senders wait until workers take data or jobs end.
    #[arg(long, default_value = DEFAULTS.spool_max.as_str(), value_name = "SIZE")]
    spool_max: ByteSize,

    /// Disk space of --data reserved for the log, so that jobs can end and be cancelled when
    /// uploads fill the rest. Uploads of large files wait before it is used; results may use half
    /// of it. Default: 256MiB, or a tenth of the file system if that is less.
    #[arg(long, value_name = "SIZE")]
    disk_reserve: Option<ByteSize>,

    /// Memory for chunks in transit, in buffers of 1 MiB.
    #[arg(long, default_value = DEFAULTS.buffers.as_str(), value_name = "SIZE")]
    buffers: ByteSize,

    /// Largest SubmitJob or AckJob of a classic peer, received as a stream; at most 2 GiB less one
    /// byte.
    #[arg(long, default_value = DEFAULTS.classic_inbound_max.as_str(), value_name = "SIZE")]
    classic_inbound_max: ByteSize,

    /// Who checks the CRC of a chunk that is forwarded at once: only the receiver (the chunk then
    /// stays in the kernel where possible), or the leader too. Stored chunks are always checked by
    /// the leader.
    #[arg(long, value_enum, default_value_t, env = "HEFT_VERIFY", value_name = "WHERE")]
    verify: VerifyChoice,

    /// Time a job with missing inputs waits for its disconnected client.
    #[arg(long, default_value = DEFAULTS.input_wait.as_str(), value_name = "TIME")]
    input_wait: Span,

    /// Time jobs wait for other workers if no connected one has their program: after a restart of
    /// the leader, after a worker left, and for jobs that were there before their workers; then
    /// they fail.
    #[arg(long, default_value = "60s", value_name = "TIME")]
    placement_wait: Span,

    /// Maximum bytes of unfinished jobs, without large inputs; more jobs are refused. Default: 1GiB
    /// in memory, 16GiB on disk.
    #[arg(long, value_name = "SIZE")]
    payload_max: Option<ByteSize>,

    /// Maximum bytes of stored results; beyond it the oldest is removed.
    #[arg(long, default_value = DEFAULTS.result_max.as_str(), value_name = "SIZE")]
    result_max: ByteSize,

    /// Time results are kept.
    #[arg(long, default_value = DEFAULTS.result_ttl.as_str(), value_name = "TIME")]
    result_ttl: Span,

    /// Time to wait for running jobs on SIGTERM or Ctrl-C.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    drain: Span,

    /// I/O driver: uring (Linux) or portable. auto uses io_uring if available; the log shows the
    /// choice.
    #[arg(long, value_enum, default_value_t, env = "HEFT_DRIVER", value_name = "DRIVER")]
    driver: DriverChoice,

    /// Time to poll before sleeping: auto, off, or a time such as 50us, at most 1ms. Polling makes
    /// small jobs faster and costs processor time while they flow; auto stops where it does not pay
    /// off or the processors are busy.
    #[arg(long, default_value_t = SpinMode::Auto, value_name = "HOW")]
    spin: SpinMode,

    /// TCP congestion control. Default: cubic for peers on this machine, the system default for
    /// others.
    #[arg(long, value_name = "NAME", value_parser = super::congestion)]
    tcp_congestion: Option<String>,
}

/// Runs it until it is told to stop.
pub fn run(args: &LeaderArgs) -> anyhow::Result<ExitCode> {
    if !args.listen.is_loopback() && !args.insecure {
        return Err(Usage(format!(
            "--listen {} accepts connections from other machines, and heft has no TLS and no \
             access control yet: add --insecure if the network is trusted",
            args.listen
        ))
        .into());
    }
    end_on_panic();
    let descriptors = Descriptors::raise().map_err(Unavailable)?;
    let driver = Driver::choose(args.driver.into()).map_err(Unavailable)?;
    info!("{driver}; {descriptors}");
    let served = driver.run(serve(args, &driver));
    served.map_err(|error| {
        Unavailable(format!("cannot start the driver {}: {error}", driver.name()))
    })?
}

/// A panic anywhere ends the process, as a crash does. If it ended one task or thread alone, the
/// rest would go on with what that one left half done, and wait for it for ever when told to stop.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        say(
            "this is a defect in heft; the leader exits. With --durability disk, all acknowledged \
             work is kept: restart the leader with the same --data, and please report the lines \
             above",
        );
        std::process::exit(PANICKED.into());
    }));
}

/// Where the data directory is, without links, so that one that is made to lead elsewhere later is
/// of no effect. Refuses one in which other users could lead files elsewhere, or have prepared what
/// this leader would use.
fn data_dir(args: &LeaderArgs) -> Result<PathBuf, Usage> {
    if args.allow_shared_dirs {
        return Ok(args.data.clone());
    }
    let not_safe = |error| super::not_safe("data", "--data", &args.data, &error);
    let data = super::check_own("data", "--data", &args.data)?;
    for (name, part) in [
        (CONSENSUS, Part::Directory),
        (BLOBS, Part::Directory),
        (SPOOL, Part::Directory),
        ("lock", Part::File),
    ] {
        check_part(&data.join(name), part).map_err(not_safe)?;
    }
    Ok(data)
}

/// Opens the data directory, if there is to be one.
fn storage(args: &LeaderArgs) -> anyhow::Result<Storage> {
    let segment = args.log_segment.0;
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment) {
        return Err(Usage(format!(
            "--log-segment {} is out of range: give {} to {}",
            args.log_segment,
            ByteSize(SEGMENT_BYTES_MIN),
            ByteSize(SEGMENT_BYTES_MAX)
        ))
        .into());
    }
    match args.durability {
        Durability::Memory => {
            crate::driver::spool::check(&args.data).map_err(|error| Usage(error.to_string()))?;
            if args.data.join(CONSENSUS).exists() {
                warn!(
                    "{} holds jobs of a durable leader; they are neither read nor changed: start \
                     without --durability memory to resume them",
                    args.data.display()
                );
            }
            Ok(Storage::Memory)
        }
        Durability::Disk => {
            let storage = Storage::open(&args.data, args.node, segment).map_err(Unavailable)?;
            // The directory may have been created by somebody else since it was checked.
            data_dir(args)?;
            if let Some(found) = storage.found() {
                info!("{found}");
            }
            Ok(storage)
        }
    }
}

/// Buffers of one chunk each.
fn buffers(args: &LeaderArgs) -> usize {
    usize::try_from(args.buffers.0 / u64::from(CHUNK_BYTES_MAX)).unwrap_or(usize::MAX)
}

/// Bytes of memory that this machine has, if it says so.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Refuses what no leader could work with, before anything is made.
fn check_limits(args: &LeaderArgs) -> anyhow::Result<()> {
    if args.spool_max.0 < SPOOL_BYTES_MIN {
        return Err(Usage(format!(
            "--spool-max {} is too small: give at least 1 MiB",
            args.spool_max
        ))
        .into());
    }
    if buffers(args) < BUFFERS_MIN {
        return Err(Usage(format!(
            "--buffers {} is too small for two windows: give at least {BUFFERS_MIN} MiB",
            args.buffers
        ))
        .into());
    }
    if let Some(memory) = memory_bytes().filter(|memory| args.buffers.0 > *memory) {
        return Err(Usage(format!(
            "--buffers {} is more than this machine has: give at most {}, and leave some for everything else",
            args.buffers,
            ByteSize(memory)
        ))
        .into());
    }
    if args.silence.0 < SILENCE_MIN {
        return Err(Usage(format!(
            "--silence {} is too short and would drop healthy connections: give at least {}",
            args.silence,
            Span(SILENCE_MIN)
        ))
        .into());
    }
    if args.lease.0 < LEASE_MIN {
        return Err(Usage(format!(
            "--lease {} is too short and would drop healthy workers: give at least {}",
            args.lease,
            Span(LEASE_MIN)
        ))
        .into());
    }
    Ok(())
}

async fn serve(args: &LeaderArgs, driver: &Driver) -> anyhow::Result<ExitCode> {
    check_limits(args)?;
    let args = &LeaderArgs { data: data_dir(args)?, ..args.clone() };
    let storage = storage(args)?;
    let addr = SocketAddr::new(args.listen, args.port);
    let listener = TcpListener::bind(addr).await.map_err(|error| {
        Unavailable(format!(
            "cannot listen on {addr}: {error}; is another leader running there? `heft leader 0` takes a free port"
        ))
    })?;
    let broker = Config {
        policy: args.policy,
        lease: args.lease.0,
        worker_grace: args.worker_grace.0,
        attempts_max: args.attempts,
        classic_ack_timeout: args.classic_ack_timeout,
        result_ttl: args.result_ttl.0,
        input_wait: args.input_wait.0,
        placement_wait: args.placement_wait.0,
        ..Config::default()
    };
    let local = listener.local_addr()?;
    let host = if local.ip().is_unspecified() { "HOST".to_owned() } else { local.ip().to_string() };
    let relay = RelayConfig {
        verify: args.verify.into(),
        buffers: buffers(args),
        spool_bytes_max: args.spool_max.0,
        durable: args.durability == Durability::Disk,
        disk_reserve: args.disk_reserve.map_or(Reserve::Auto, |size| Reserve::Bytes(size.0)),
        ..RelayConfig::default()
    };
    let (durability, payload_max) = match args.durability {
        Durability::Disk => ("disk", PAYLOAD_BYTES_ON_DISK),
        Durability::Memory => {
            ("memory: nothing outlives this leader", LeaderConfig::default().payload_bytes_max)
        }
    };
    let heartbeat =
        (args.lease.0 / 6).min(args.silence.0 / 4).min(LeaderConfig::default().heartbeat);
    let config = LeaderConfig {
        broker,
        payload_bytes_max: args.payload_max.map_or(payload_max, |size| size.0),
        blob_grace: args.blob_grace.0,
        result_bytes_max: args.result_max.0,
        heartbeat,
        silence: args.silence.0,
        relay,
        address: format!("{host}:{}", local.port()),
        driver: driver.name(),
    };
    let tuning = Tuning { congestion: args.tcp_congestion.clone() };
    let most = u64::from(CLASSIC_INBOUND_BODY_BYTES_MAX);
    let least = u64::from(FRAME_BODY_BYTES_MAX);
    let classic_inbound_max = match u32::try_from(args.classic_inbound_max.0) {
        Ok(bytes) if (least..=most).contains(&u64::from(bytes)) => bytes,
        Ok(_) | Err(_) => {
            return Err(Usage(format!(
                "--classic-inbound-max {} is out of range: give {least} to {most} bytes",
                args.classic_inbound_max
            ))
            .into());
        }
    };
    let options = Options {
        tuning,
        data: args.data.clone(),
        classic_inbound_max,
        spin: args.spin,
        drain: args.drain.0,
        ..Options::default()
    };
    // The address is announced only when the leader knows its jobs.
    let prepared = storage.into_leader(config);
    let line = format!(
        "heft leader listening on {local} (driver {}, durability {durability}, data {}, spool up to {})\n",
        driver.name(),
        args.data.display(),
        args.spool_max
    );
    // Failing to print the start line is not fatal.
    if let Err(error) = print(line.as_bytes()) {
        warn!("{error}; it said: {}", line.trim_end());
    }

    let stop = Rc::new(Notify::new());
    let serving = driver.serve(listener, prepared, options, stop.clone());
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => served.map_err(|error| Unavailable(error.to_string()))?,
        () = super::stop_signal() => {
            info!("stopping: no new jobs; running jobs have {} to finish", args.drain);
            stop.notify_one();
            serving.await.map_err(|error| Unavailable(error.to_string()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        leader: LeaderArgs,
    }

    #[test]
    fn flags_have_the_defaults_of_the_configuration_and_show_them_as_people_write_them() {
        let command = Cli::command();
        let shown = |flag: &str| {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
            arg.get_default_values()[0].to_str().unwrap().to_owned()
        };
        for (flag, text) in [
            ("policy", "locality"),
            ("lease", "30s"),
            ("worker-grace", "5s"),
            ("silence", "20s"),
            ("attempts", "6"),
            ("data", "heft-data"),
            ("blob-grace", "10m"),
            ("spool-max", "64GiB"),
            ("buffers", "48MiB"),
            ("classic-inbound-max", "2147483647"),
            ("input-wait", "60s"),
            ("result-max", "1GiB"),
            ("result-ttl", "1h"),
        ] {
            assert_eq!(shown(flag), text, "--{flag}");
        }
        let args = Cli::try_parse_from(["leader", "0"]).unwrap().leader;
        let config = LeaderConfig::default();
        assert_eq!(args.lease.0, config.broker.lease);
        assert_eq!(args.input_wait.0, config.broker.input_wait);
        assert_eq!(args.spool_max.0, config.relay.spool_bytes_max);
        assert_eq!(buffers(&args), config.relay.buffers);
        assert_eq!(args.blob_grace.0, config.blob_grace);
    }

    /// Runs itself as another process, which is to end.
    #[test]
    fn a_panic_in_a_task_of_either_driver_ends_the_process_with_a_message() {
        const NAME: &str = "cli::leader::tests::a_panic_in_a_task_of_either_driver_ends_the_process_with_a_message";
        const DRIVER: &str = "HEFT_TEST_PANICS_ON";
        let drivers = [Choice::Portable, Choice::Uring];
        if let Ok(name) = std::env::var(DRIVER) {
            let choice = drivers.into_iter().find(|choice| choice.to_string() == name).unwrap();
            end_on_panic();
            let waits = async {
                tokio::task::spawn_local(async { panic!("a task's own") });
                tokio::time::sleep(Duration::from_secs(20)).await;
            };
            Driver::choose(choice).unwrap().run(waits).unwrap();
            return;
        }
        for choice in drivers.into_iter().filter(|choice| Driver::choose(*choice).is_ok()) {
            let mut itself = std::process::Command::new(std::env::current_exe().unwrap());
            itself.args([NAME, "--exact", "--nocapture"]).env(DRIVER, choice.to_string());
            let ended = itself.output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(
                said.contains("a task's own") && said.contains("a defect in heft"),
                "{choice}: {said}"
            );
            assert_eq!(ended.status.code(), Some(101), "{choice}: {said}");
        }
    }
}
