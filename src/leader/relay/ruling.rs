//! The end of a blob's way here: whether all of it came, and whether it is what its sender says. Once that is ruled it is final:
//! a job was taken or a set is kept because of it. Only who checks a full digest can bring it into doubt.

use chunking::message::{Done, Reason, Verdict};

use super::blob::{FileRoom, Seal, Up};
use super::{BlobId, Out, Relay, Says, is_from};
use crate::core::ids::ConnId;
use crate::store::blobs::DiskOp;

/// Done frames in a row that bring nothing new before a sender is taken to be broken.
const IDLE_ROUNDS_MAX: u32 = 8;

impl Relay {
    /// Who brings a blob says that all of it was sent.
    pub(in crate::leader) fn done(&mut self, conn: ConnId, id: BlobId, done: &Done) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| is_from(blob, conn)) else {
            return self.abort(conn, id, Reason::UNKNOWN, "no such transfer is under way");
        };
        if !blob.seen.is_complete() {
            let held = blob.seen.held_count();
            blob.idle_rounds = if held > blob.seen_at_done { 0 } else { blob.idle_rounds + 1 };
            blob.seen_at_done = held;
            if blob.idle_rounds > IDLE_ROUNDS_MAX {
                let text = format!(
                    "{} of {} chunks did not come whole in {IDLE_ROUNDS_MAX} rounds",
                    blob.plan.count() - held,
                    blob.plan.count()
                );
                return self.fail(id, Reason::BAD_CHUNK, text);
            }
            let again = blob.seen.missing();
            // All that was sent has come; the rest of the window was spent on what could not be recognised.
            let written_off = blob.up.as_mut().map_or(0, Up::write_off);
            self.unpromise(conn, written_off);
            self.look_at_held(conn);
            self.say(conn, id, Says::Verdict(Verdict::Resend(again)));
            self.make_hungry(id);
            return self.pump();
        }
        if let Some(ruled) = blob.contradicts(&done.digest) {
            // Others count on it: what is here stays, whatever this peer says of it now.
            tracing::warn!(blob = %id, %ruled, says = %done.digest, "a second digest of a blob that is whole is refused");
            let text =
                format!("the blob is whole and has the digest {ruled}, and this one is {}", done.digest);
            let failed = Verdict::Failed { reason: Reason::CONFLICT, text: text.as_str().into() };
            return self.say(conn, id, Says::Verdict(failed));
        }
        if !blob.digest_fits(&done.digest) {
            blob.wrong_digests += 1;
            if blob.wrong_digests > 1 {
                let text = format!("the digest {} is not that of the bytes that came, twice", done.digest);
                return self.fail(id, Reason::BAD_DIGEST, text);
            }
            tracing::warn!(blob = %id, digest = %done.digest, "the digest is wrong: asking for all of it again");
            return self.again_from_the_start(id);
        }
        blob.doubted = false;
        self.parts.forget(id);
        let is_new = blob.digest.replace(done.digest).is_none();
        if self.config.durable && blob.seal != Seal::Set {
            // Who brought it hears when it is certain.
            self.want_seal(id);
        } else if is_new || self.config.durable {
            // One of an earlier life may be whole, and its job not taken yet.
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
        if self.config.durable && std::mem::take(&mut blob.on_disk) {
            // So that nothing of the old is taken for the new, also after a crash.
            blob.file = FileRoom::Unmade;
            self.out.push_back(Out::Disk(DiskOp::Remove { blob: id }));
        }
        let (all, up, is_let_in) = (blob.seen.missing(), blob.up.as_ref(), blob.reserved.is_some());
        let conn = up.map(|up| up.conn);
        if is_let_in {
            self.charge(id);
        }
        if let Some(conn) = conn {
            self.say(conn, id, Says::Verdict(Verdict::Resend(all)));
        }
        self.make_hungry(id);
        self.pump();
    }

    /// What a blob hashes to has to be said again, if another connection than the last brings it from now on: it may bring other
    /// bytes under the same id.
    pub(in crate::leader) fn doubt_before(&mut self, conn: ConnId, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id).filter(|blob| !is_from(blob, conn)) {
            blob.doubted |= blob.digest.is_some();
        }
    }
}
