//! The codec of where a job stands.

use super::*;

pub(super) fn put_phase(phase: &Phase, out: &mut Vec<u8>) {
    match phase {
        Phase::Queued { not_before } => {
            put_u8(tag::QUEUED, out);
            put_u64(not_before.0, out);
        }
        Phase::Leased { worker, attempt, class } => {
            let class = class_tag(*class);
            put_u8(if class.is_some() { tag::LEASED_CLASSIC } else { tag::LEASED }, out);
            put_uuid(worker.0, out);
            put_u32(attempt.0, out);
            out.extend(class);
        }
        Phase::Gathering { left } => {
            put_u8(tag::GATHERING, out);
            put_len(*left, out);
        }
        Phase::Done { at, ending } => {
            put_u8(tag::DONE, out);
            put_u64(at.0, out);
            put_ending(ending, out);
        }
        Phase::Dead { at, why } => {
            put_u8(tag::DEAD, out);
            put_u64(at.0, out);
            put_u8(attempt_end_tag(*why), out);
        }
    }
}

pub(super) fn get_phase(reader: &mut Reader<'_>) -> Result<Phase, CodecError> {
    let start = reader.at();
    Ok(match reader.u8()? {
        tag::QUEUED => Phase::Queued { not_before: reader.micros()? },
        found @ (tag::LEASED | tag::LEASED_CLASSIC) => Phase::Leased {
            worker: reader.worker()?,
            attempt: reader.attempt()?,
            class: get_class(found == tag::LEASED_CLASSIC, reader)?,
        },
        tag::GATHERING => Phase::Gathering { left: reader.number()? },
        tag::DONE => Phase::Done { at: reader.micros()?, ending: get_ending(reader)? },
        tag::DEAD => Phase::Dead { at: reader.micros()?, why: get_attempt_end(reader)? },
        unknown => return Err(unknown_tag(start, "phase of a job", unknown)),
    })
}

pub(super) fn put_ending(ending: &Ending, out: &mut Vec<u8>) {
    match ending {
        Ending::Returned { result, ok, worker } => {
            put_u8(tag::RETURNED, out);
            put_u64(result.0, out);
            put_bool(*ok, out);
            put_uuid(worker.0, out);
        }
        Ending::Cancelled { by } => {
            put_u8(tag::CANCELLED, out);
            put_str(by, out);
        }
        Ending::Gathered { ok } => {
            put_u8(tag::GATHERED, out);
            put_bool(*ok, out);
        }
        Ending::Orphaned => put_u8(tag::ORPHANED, out),
        Ending::Failed { why } => {
            put_u8(tag::FAILED, out);
            put_str(why, out);
        }
    }
}

pub(super) fn get_ending(reader: &mut Reader<'_>) -> Result<Ending, CodecError> {
    let start = reader.at();
    Ok(match reader.u8()? {
        tag::RETURNED => {
            let (result, ok) = (ResultId(reader.u64()?), reader.bool()?);
            Ending::Returned { result, ok, worker: reader.worker()? }
        }
        tag::CANCELLED => Ending::Cancelled { by: reader.str()?.into() },
        tag::GATHERED => Ending::Gathered { ok: reader.bool()? },
        tag::ORPHANED => Ending::Orphaned,
        tag::FAILED => Ending::Failed { why: reader.str()?.into() },
        unknown => return Err(unknown_tag(start, "ending of a job", unknown)),
    })
}
