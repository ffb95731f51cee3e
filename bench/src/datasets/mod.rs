//! What is measured of datasets: how quickly a dataset gets to many workers, how much of it moves
//! when it changes, and how much jobs have moved that share datasets.

mod content;
pub(crate) mod delta;
pub(crate) mod fanout;
pub(crate) mod locality;
mod pool;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::variant::{Driver, Durability, Variant, Verify};

/// The leader's I/O driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DriverArg {
    /// tokio
    #[default]
    Portable,
    /// io_uring
    Uring,
}

/// What outlives the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DurabilityArg {
    /// nothing
    Memory,
    /// what was acknowledged, the leader's own default
    #[default]
    Disk,
}

/// What all workloads of datasets take.
#[derive(Args, Clone, Debug)]
struct Common {
    /// The leader's driver.
    #[arg(long, value_enum, default_value_t)]
    driver: DriverArg,

    /// What outlives the leader.
    #[arg(long, value_enum, default_value_t)]
    durability: DurabilityArg,

    /// Where all files are, in a directory that is removed at the end. Default: beside this
    /// program.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Print the report as one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

impl Common {
    fn variant(&self) -> Variant {
        Variant {
            driver: match self.driver {
                DriverArg::Portable => Driver::Portable,
                DriverArg::Uring => Driver::Uring,
            },
            verify: Verify::End,
            durability: match self.durability {
                DurabilityArg::Memory => Durability::Memory,
                DurabilityArg::Disk => Durability::Disk,
            },
        }
    }
}

fn warn_of_debug_build() {
    if cfg!(debug_assertions) {
        eprintln!(
            "heft-bench: this is a debug build, its figures mean nothing: use cargo run --release"
        );
    }
}
