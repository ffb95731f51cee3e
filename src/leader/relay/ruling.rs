//! Decides whether a blob is complete and correct. The decision is final, because a job was
//! accepted or a dataset stored on its basis; only a receiver that checks a full digest can dispute
//! it.

use chunking::message::{Done, Reason, Verdict};
use chunking::{Digest, DigestKind};

use super::blob::Up;
use super::on_disk::Seal;
use super::{BlobId, Out, Relay, Says};
use crate::core::ids::ConnId;
use crate::store::blobs::DiskOp;
use crate::wire::Receiving;

/// Done frames in a row that bring nothing new before a sender is taken to be broken.
const IDLE_ROUNDS_MAX: u32 = 8;

/// What a blob hashes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    #[default]
    No,
    Ruled(Digest),
    /// The receiver that checked the digest requested chunks again, or the blob has another sender:
    /// the sender has to repeat the digest.
    Doubted(Digest),
}

/// What is ruled of a blob, and how often that was in vain.
#[derive(Clone, Debug, Default)]
pub(super) struct Ruling {
    known: Known,
    /// Times in a row that nothing new had come when it was said to be done.
    idle_rounds: u32,
    /// Chunks that had come the last time.
    held_at_done: u32,
}

/// What follows from Done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ruled {
    /// Chunks are missing.
    Missing,
    /// Others count on this digest.
    Conflict(Digest),
    /// The digest is wrong, for the first time: all has to come again.
    Wrong,
    /// It cannot be had from this sender.
    Failed(Reason, String),
    /// It is right.
    Right {
        /// Nothing was ruled before.
        is_new: bool,
    },
}

impl Ruling {
    /// A blob that is known to be whole.
    pub(super) fn of(digest: Option<Digest>) -> Self {
        Ruling { known: digest.map_or(Known::No, Known::Ruled), ..Ruling::default() }
    }

    pub(super) fn digest(&self) -> Option<Digest> {
        match self.known {
            Known::No => None,
            Known::Ruled(digest) | Known::Doubted(digest) => Some(digest),
        }
    }

    pub(super) fn is_doubted(&self) -> bool {
        matches!(self.known, Known::Doubted(_))
    }

    /// What was ruled has to be said again: only Done ends the doubt.
    pub(super) fn doubt(&mut self) {
        self.known = self.digest().map_or(Known::No, Known::Doubted);
    }

    /// All of the blob has to come again.
    pub(super) fn begin_anew(&mut self) {
        (self.known, self.held_at_done) = (Known::No, 0);
    }

    /// A sender says that all was sent of a blob with a digest of this kind.
    pub(super) fn on_done(
        &mut self,
        came: &mut Receiving,
        kind: DigestKind,
        said: Digest,
    ) -> Ruled {
        if !came.is_complete() {
            let held = came.held().held_count();
            self.idle_rounds = if held > self.held_at_done { 0 } else { self.idle_rounds + 1 };
            self.held_at_done = held;
            if self.idle_rounds <= IDLE_ROUNDS_MAX {
                return Ruled::Missing;
            }
            let (missing, count) = (came.missing_count(), came.plan().count());
            let text = format!(
                "{missing} of {count} chunks are still missing or damaged after {IDLE_ROUNDS_MAX} \
                 rounds"
            );
            return Ruled::Failed(Reason::BAD_CHUNK, text);
        }
        // As far as a leader can say: full ones are checked at the ends.
        let is_full = said.kind != DigestKind::ChunkList;
        let fits = said.kind == kind && (is_full || came.chunk_list() == said);
        // Chunks that were asked for again may have changed with their source: those make another
        // chunk list.
        if let Known::Ruled(ruled) = self.known
            && ruled != said
            && (is_full || !fits)
        {
            return Ruled::Conflict(ruled);
        }
        if !fits && came.is_wrong_again() {
            let text =
                format!("the digest {said} does not match the received bytes, for the second time");
            return Ruled::Failed(Reason::BAD_DIGEST, text);
        }
        if !fits {
            return Ruled::Wrong;
        }
        let is_new = self.known == Known::No;
        self.known = Known::Ruled(said);
        Ruled::Right { is_new }
    }
}

impl Relay {
    /// The sender says that all of the blob was sent.
    pub(in crate::leader) fn done(&mut self, conn: ConnId, id: BlobId, done: &Done) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.is_from(conn)) else {
            return self.abort(conn, id, Reason::UNKNOWN, "no such transfer is under way");
        };
        let said = done.digest;
        match blob.ruling.on_done(&mut blob.came, blob.open.digest, said) {
            Ruled::Missing => {
                let again = blob.came.missing();
                // All that was sent has come; the rest of the window was spent on what could not be
                // recognised.
                let written_off = blob.up.as_mut().map_or(0, Up::write_off);
                self.unpromise(conn, written_off);
                self.look_at_held(conn);
                self.say(conn, id, Says::Verdict(Verdict::Resend(again)));
                self.make_hungry(id);
                self.pump();
            }
            Ruled::Failed(reason, text) => self.fail(id, reason, text),
            Ruled::Conflict(ruled) => {
                // Others count on it: what is here stays, whatever this peer says of it now.
                tracing::warn!(blob = %id, %ruled, says = %said, "a second digest of a blob that is whole is refused");
                let text = format!(
                    "the blob is complete with the digest {ruled}; the new digest {said} differs"
                );
                let failed =
                    Verdict::Failed { reason: Reason::CONFLICT, text: text.as_str().into() };
                self.say(conn, id, Says::Verdict(failed));
            }
            Ruled::Wrong => {
                tracing::warn!(blob = %id, digest = %said, "the digest is wrong: asking for all of it again");
                self.again_from_the_start(id);
            }
            Ruled::Right { is_new } => self.is_right(conn, id, is_new),
        }
    }

    /// All of a blob has come, and is what its sender says.
    fn is_right(&mut self, conn: ConnId, id: BlobId, is_new: bool) {
        self.parts.forget(id);
        if let Some(up) = self.up(conn, id) {
            up.asked_again = false;
        }
        let is_sealed = self.blobs.get(&id).is_some_and(|blob| blob.disk.seal == Seal::Set);
        if self.config.durable && !is_sealed {
            // The sender is told when the blob is durable.
            self.want_seal(id);
        } else if is_new || self.config.durable {
            // One of a previous run may be whole, and its job not taken yet.
            self.arrived(id);
        } else {
            self.say(conn, id, Says::Verdict(Verdict::Ok));
        }
        self.feed(id);
    }

    /// All of a blob has to come again: at once, or when who brings it is back.
    pub(super) fn again_from_the_start(&mut self, id: BlobId) {
        self.drop_all_stored(id);
        self.parts.forget(id);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        blob.begin_anew();
        if self.config.durable && blob.disk.remove() {
            // So that nothing of the old is taken for the new, also after a crash.
            self.out.push_back(Out::Disk(DiskOp::Remove { blob: id }));
        }
        let (all, conn) = (blob.came.missing(), blob.up.as_ref().map(|up| up.conn));
        if blob.chunks.reserved().is_some() {
            self.charge(id);
        }
        if let Some(conn) = conn {
            self.say(conn, id, Says::Verdict(Verdict::Resend(all)));
        }
        self.make_hungry(id);
        self.pump();
    }

    /// What a blob hashes to has to be said again, if another connection than the last brings it
    /// from now on: it may bring other bytes under the same id.
    pub(in crate::leader) fn doubt_before(&mut self, conn: ConnId, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id).filter(|blob| !blob.is_from(conn)) {
            blob.ruling.doubt();
        }
    }
}

#[cfg(test)]
mod tests {
    use chunking::ChunkPlan;

    use super::*;
    use crate::transitions::{Event, State, assert_table};

    /// A blob of two chunks.
    #[derive(Debug)]
    struct Machine(Ruling, Receiving, Option<Ruled>);

    fn machine(chunks: u32) -> Machine {
        let mut came = Receiving::new(ChunkPlan::new(2 * 4096, 4096).unwrap());
        (0..chunks).for_each(|index| assert!(came.insert(index, index)));
        Machine(Ruling::default(), came, None)
    }

    fn ruled() -> Machine {
        let mut machine = machine(2);
        done(&mut machine);
        Machine(machine.0, machine.1, None)
    }

    fn doubted() -> Machine {
        let mut machine = ruled();
        machine.0.doubt();
        machine
    }

    fn tell(Machine(ruling, came, ruled): &mut Machine, said: Digest) {
        *ruled = Some(ruling.on_done(came, DigestKind::ChunkList, said));
    }

    fn done(machine: &mut Machine) {
        let mut whole = machine.1.clone();
        (0..2).for_each(|index| {
            whole.insert(index, index);
        });
        tell(machine, whole.chunk_list());
    }

    fn name(Machine(ruling, came, ruled): &Machine) -> String {
        let known = match ruling.known {
            Known::No => "",
            Known::Ruled(_) => "ruled, ",
            Known::Doubted(_) => "doubted, ",
        };
        let answer = match ruled {
            None => "",
            Some(Ruled::Missing) => ": missing",
            Some(Ruled::Conflict(_)) => ": conflict",
            Some(Ruled::Wrong) => ": wrong",
            Some(Ruled::Failed(..)) => ": failed",
            Some(Ruled::Right { is_new: true }) => ": right",
            Some(Ruled::Right { is_new: false }) => ": right as before",
        };
        format!("{known}{} here{answer}", came.held().held_count())
    }

    #[test]
    fn transition_table_ruling() {
        let states: [State<Machine>; 5] = [
            ("1 here", || machine(1)),
            ("2 here", || machine(2)),
            ("ruled, 2 here", ruled),
            ("doubted, 2 here", doubted),
            ("ruled, 1 here", || {
                let mut machine = ruled();
                machine.1.remove(1);
                machine
            }),
        ];
        let events: [Event<Machine>; 7] = [
            ("the last chunk comes", |machine| {
                machine.1.insert(1, 1);
            }),
            ("another last chunk comes", |machine| {
                machine.1.remove(1);
                machine.1.insert(1, 7);
            }),
            ("done", done),
            ("done, wrong digest", |machine| {
                tell(machine, Digest { kind: DigestKind::ChunkList, bytes: [7; 32] });
            }),
            ("done, full digest", |machine| {
                tell(machine, Digest { kind: DigestKind::Sha256, bytes: [7; 32] });
            }),
            ("doubted", |machine| machine.0.doubt()),
            ("all comes again", |Machine(ruling, came, _)| {
                ruling.begin_anew();
                came.begin_anew();
            }),
        ];
        assert_table("src/leader/relay/ruling.transitions.txt", &states, &events, name);
    }

    /// Says Done until the answer is another one than the first; gives how often that came, and the
    /// other one.
    fn say_done_again(machine: &mut Machine, digest: impl Fn(&mut Machine)) -> (u32, Reason) {
        digest(machine);
        let (mut times, first) = (1, machine.2.clone());
        loop {
            digest(machine);
            match &machine.2 {
                Some(Ruled::Failed(reason, _)) => return (times, *reason),
                again => assert_eq!(*again, first),
            }
            times += 1;
        }
    }

    #[test]
    fn a_sender_is_broken_that_brings_nothing_new_and_says_done_again_and_again() {
        let mut machine = machine(1);
        assert_eq!(
            say_done_again(&mut machine, done),
            (9, Reason::BAD_CHUNK),
            "the first one brought a chunk"
        );
        machine.1.remove(0);
        done(&mut machine);
        assert!(matches!(machine.2, Some(Ruled::Failed(..))), "fewer than before are not news");
        machine.1.insert(1, 1);
        assert_eq!(say_done_again(&mut machine, done), (9, Reason::BAD_CHUNK));
    }

    #[test]
    fn a_digest_that_is_wrong_twice_is_wrong_for_good() {
        let wrong = Digest { kind: DigestKind::ChunkList, bytes: [7; 32] };
        let mut machine = machine(2);
        let found = say_done_again(&mut machine, |machine| tell(machine, wrong));
        assert_eq!(found, (1, Reason::BAD_DIGEST));
        done(&mut machine);
        assert_eq!(machine.2, Some(Ruled::Right { is_new: true }));
    }
}
