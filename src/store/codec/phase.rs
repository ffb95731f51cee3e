//! The codec of where a job stands, of its attempts in earlier runs, and of when things happened
//! to it.

use super::*;

/// Appends the times of a job and of its attempts, if any is known.
pub(super) fn put_times(times: &Times, history: &[AttemptNote], out: &mut Vec<u8>) {
    let is_known = |note: &AttemptNote| note.began.is_some() || note.ended.is_some();
    if *times == Times::default() && !history.iter().any(is_known) {
        return;
    }
    let Times { submitted, assigned } = *times;
    put_u8(tag::TIMES, out);
    let noted = history.iter().flat_map(|note| [note.began, note.ended]);
    for time in [submitted, assigned].into_iter().chain(noted) {
        put_time(time, out);
    }
}

fn put_time(time: Option<Micros>, out: &mut Vec<u8>) {
    put_bool(time.is_some(), out);
    time.iter().for_each(|time| put_u64(time.0, out));
}

fn get_time(reader: &mut Reader<'_>) -> Result<Option<Micros>, CodecError> {
    if reader.bool()? { reader.micros().map(Some) } else { Ok(None) }
}

/// Reads the times of a job and of its attempts, if there are any.
pub(super) fn get_times(reader: &mut Reader<'_>, job: &mut Job) -> Result<(), CodecError> {
    if reader.peek() != Some(tag::TIMES) {
        return Ok(());
    }
    let start = reader.at();
    reader.u8()?;
    job.times = Times { submitted: get_time(reader)?, assigned: get_time(reader)? };
    for note in &mut job.history {
        (note.began, note.ended) = (get_time(reader)?, get_time(reader)?);
    }
    let is_known = |note: &AttemptNote| note.began.is_some() || note.ended.is_some();
    if job.times == Times::default() && !job.history.iter().any(is_known) {
        return Err(CodecError { at: start, what: "times of a job say nothing".to_owned() });
    }
    Ok(())
}

/// Appends the attempts of earlier runs, if there are any.
pub(super) fn put_earlier(earlier: &[EarlierAttempt], out: &mut Vec<u8>) {
    if earlier.is_empty() {
        return;
    }
    put_u8(tag::EARLIER, out);
    put_len(earlier.len(), out);
    for EarlierAttempt { run, attempt, worker, why, began, ended } in earlier {
        put_u32(run.0, out);
        put_u32(attempt.0, out);
        put_uuid(worker.0, out);
        put_u8(why.map_or(tag::WITH_RESULT, attempt_end_tag), out);
        put_time(*began, out);
        put_time(*ended, out);
    }
}

/// Reads the attempts of earlier runs, if there are any.
pub(super) fn get_earlier(reader: &mut Reader<'_>) -> Result<Box<[EarlierAttempt]>, CodecError> {
    if reader.peek() != Some(tag::EARLIER) {
        return Ok(Box::default());
    }
    let start = reader.at();
    reader.u8()?;
    let earlier = reader.list(EARLIER_BYTES_MIN, |reader| {
        let (run, attempt, worker) = (reader.run()?, reader.attempt()?, reader.worker()?);
        let why = match reader.peek() {
            Some(tag::WITH_RESULT) => reader.u8().map(|_| None)?,
            Some(_) | None => Some(get_attempt_end(reader)?),
        };
        let (began, ended) = (get_time(reader)?, get_time(reader)?);
        Ok(EarlierAttempt { run, attempt, worker, why, began, ended })
    })?;
    if earlier.is_empty() {
        let what = "the attempts of earlier runs are none".to_owned();
        return Err(CodecError { at: start, what });
    }
    Ok(earlier.into())
}

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
