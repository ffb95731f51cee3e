//! What jobs do: a program whose output follows from its input and arguments, so that a result is
//! right or wrong byte by byte.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use chunking::DigestKind;
use chunking::digest::to_hex;
use uuid::Uuid;

use crate::blobs::{self, MIB};
use crate::plan::Seeded;
use crate::procs::write_program;

/// Bytes that inputs and made files are slices of.
const NOISE_BYTES: usize = 48 * MIB;

/// What every worker has under this name.
pub const EXEC: &str = "work";

/// Bytes that a test shares with the programs that jobs run.
pub struct Material {
    pub noise: Vec<u8>,
    /// The same in a file.
    noise_path: PathBuf,
    text: Vec<u8>,
    text_path: PathBuf,
}

impl Material {
    pub fn new(dir: &Path) -> Material {
        let noise = blobs::noise(NOISE_BYTES);
        let text: Vec<u8> = noise.iter().take(4 * MIB).map(|byte| b'a' + byte % 26).collect();
        let (noise_path, text_path) = (dir.join("noise"), dir.join("text"));
        std::fs::write(&noise_path, &noise).unwrap();
        std::fs::write(&text_path, &text).unwrap();
        Material { noise, noise_path, text, text_path }
    }

    /// Writes the program: it sleeps, says what its inputs hash to, makes a file, prints, and ends
    /// as it is told.
    pub fn install(&self, exe_dir: &Path) {
        let script = format!(
            r#"[ "$1" = 0 ] || sleep "$1"
for f in in*; do if [ -f "$f" ]; then sha256sum "$f" || exit 8; fi; done
if [ "$3" -gt 0 ]; then
    tail -c +$(($2 + 1)) {noise} | head -c "$3" > made.bin || {{ echo "cannot write made.bin" >&2; exit 9; }}
    sha256sum made.bin || exit 8
fi
[ "$4" = 0 ] || head -c "$4" {text}
exit "$5""#,
            noise = self.noise_path.display(),
            text = self.text_path.display()
        );
        std::fs::create_dir_all(exe_dir).unwrap();
        write_program(&exe_dir.join(EXEC), &script);
    }
}

/// An input: a name and a slice of the noise.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: String,
    pub start: usize,
    pub len: usize,
}

impl Input {
    pub fn bytes<'a>(&self, material: &'a Material) -> &'a [u8] {
        &material.noise[self.start..self.start + self.len]
    }
}

#[derive(Clone, Debug)]
pub struct Work {
    pub job: Uuid,
    pub inputs: Vec<Input>,
    pub sleep_ms: u64,
    pub start: usize,
    pub made: usize,
    pub printed: usize,
    pub exit: i32,
}

/// How heavy jobs may be.
#[derive(Clone, Copy, Debug)]
pub enum Weight {
    /// What fits a frame of the older system.
    Light,
    Any,
    /// An input of up to 40 MiB.
    HeavyInput,
    /// A result of up to 20 MiB.
    HeavyResult,
}

impl Work {
    pub fn plan(random: &mut Seeded, weight: Weight) -> Work {
        let total = match (weight, random.below(100)) {
            (Weight::HeavyInput, _) => random.between(24 * MIB, 40 * MIB),
            (_, 0..12) => 0,
            (_, 12..65) | (Weight::Light, _) => random.between(1, 64 << 10),
            (_, 65..85) => random.between(64 << 10, 3 * MIB),
            (_, 85..97) => random.between(3 * MIB, 8 * MIB),
            (_, _) => random.between(8 * MIB, 24 * MIB),
        };
        let made = match (weight, random.below(100)) {
            (Weight::HeavyResult, _) => random.between(12 * MIB, 20 * MIB),
            (_, 0..50) => 0,
            (_, 50..80) | (Weight::Light, _) => random.between(1, 64 << 10),
            (_, 80..94) => random.between(64 << 10, 3 * MIB),
            (_, _) => random.between(3 * MIB, 8 * MIB),
        };
        let printed = match (weight, random.below(100)) {
            (_, 0..80) => 0,
            (_, 80..95) | (Weight::Light, _) => random.between(1, 64 << 10),
            (_, _) => random.between(MIB, 3 * MIB),
        };
        let sleep_ms = match random.below(10) {
            0..6 => 0,
            6..9 => 100 + random.below(400),
            _ => 500 + random.below(1500),
        };
        let parts = 1 + random.between(0, 2);
        let inputs = (0..parts)
            .map(|part| {
                // The first has most of it.
                let len = if part == 0 { total - total / 4 * (parts - 1) } else { total / 4 };
                Input {
                    name: format!("in{part}.bin"),
                    start: random.between(0, NOISE_BYTES - len),
                    len,
                }
            })
            .collect();
        Work {
            job: random.uuid(),
            inputs,
            sleep_ms,
            start: random.between(0, NOISE_BYTES - made),
            made,
            printed,
            exit: if random.below(12) == 0 { 3 } else { 0 },
        }
    }

    pub fn args(&self) -> Vec<String> {
        let sleep = if self.sleep_ms == 0 {
            "0".to_owned()
        } else {
            format!("{:.3}", self.sleep_ms as f64 / 1e3)
        };
        vec![
            sleep,
            self.start.to_string(),
            self.made.to_string(),
            self.printed.to_string(),
            self.exit.to_string(),
        ]
    }

    /// Whether a program given this work prints that. A classic worker makes no file of an empty
    /// input.
    fn prints(&self, material: &Material, stdout: &[u8]) -> bool {
        let made = self.made(material);
        let made = (!made.is_empty()).then_some(("made.bin", made));
        let expected = |with_empty: bool| {
            let inputs =
                self.inputs.iter().map(|input| (input.name.as_str(), input.bytes(material)));
            let inputs = inputs.filter(|(_, bytes)| with_empty || !bytes.is_empty());
            let lines =
                inputs.chain(made).map(|(name, bytes)| format!("{}  {name}\n", sha256(bytes)));
            [lines.collect::<String>().as_bytes(), &material.text[..self.printed]].concat()
        };
        stdout == expected(true) || stdout == expected(false)
    }

    fn made<'a>(&self, material: &'a Material) -> &'a [u8] {
        &material.noise[self.start..self.start + self.made]
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    to_hex(&blobs::digest(bytes, DigestKind::Sha256).bytes)
}

/// A result as a client got it.
pub struct Got {
    pub is_ok: bool,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// The file that the program made, if its client got it.
    pub made: Option<Vec<u8>>,
}

/// What became of a job in the eyes of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The result that follows from its input.
    Right,
    /// It says that it failed, and why.
    Failed(String),
    /// The leader did not take it, and said why.
    Refused(String),
    /// Anything else, which is a defect.
    Wrong(String),
}

impl Got {
    pub fn judge(&self, work: &Work, material: &Material) -> End {
        let prints = work.prints(material, &self.stdout);
        if self.is_ok != (work.exit == 0) || !self.is_ok && !prints {
            return match self.is_ok {
                true => End::Wrong("OK, where the program ends with 3".to_owned()),
                false if self.stderr.trim().is_empty() => {
                    End::Wrong("FAILED without a reason".to_owned())
                }
                false => End::Failed(self.stderr.clone()),
            };
        }
        if !prints {
            let shown =
                String::from_utf8_lossy(&self.stdout[..self.stdout.len().min(400)]).into_owned();
            return End::Wrong(format!("it printed {} bytes: {shown:?}", self.stdout.len()));
        }
        match &self.made {
            Some(made) if made == work.made(material) => End::Right,
            Some(made) => {
                End::Wrong(format!("made.bin has {} bytes, and not the right ones", made.len()))
            }
            None if work.made == 0 || !self.is_ok => End::Right,
            None => End::Wrong(format!("made.bin did not come; it says {:?}", self.stderr)),
        }
    }
}

/// The file `made.bin` of an archive.
pub fn made_in(archive: &[u8]) -> Option<Vec<u8>> {
    let mut zip = zip::ZipArchive::new(Cursor::new(archive)).ok()?;
    let mut entry = zip.by_name("made.bin").ok()?;
    let mut made = Vec::new();
    entry.read_to_end(&mut made).ok()?;
    Some(made)
}
