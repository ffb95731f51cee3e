mod cluster;

use super::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn job_id() -> impl Strategy<Value = JobId> {
    uuid().prop_map(JobId)
}

fn worker_id() -> impl Strategy<Value = WorkerId> {
    uuid().prop_map(WorkerId)
}

fn run() -> impl Strategy<Value = Run> {
    any::<u32>().prop_map(Run)
}

fn attempt() -> impl Strategy<Value = Attempt> {
    any::<u32>().prop_map(Attempt)
}

fn micros() -> impl Strategy<Value = Micros> {
    any::<u64>().prop_map(Micros)
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "\\PC{0,20}".prop_map(Arc::from)
}

fn client() -> impl Strategy<Value = ClientId> {
    text().prop_map(ClientId)
}

fn key() -> impl Strategy<Value = RoutingKey> {
    let spelled = (
        "(job|JOB|Job)\\.(assign|Assign)",
        "[a-zA-Zé0-9]{1,8}(\\.[a-z]{1,4}){0,3}|job\\.submit\\.x|>x|a\\*",
    );
    spelled.prop_map(|(head, tail)| routing_key(&format!("{head}.{tail}"), None).unwrap())
}

fn why() -> impl Strategy<Value = AttemptEnd> {
    proptest::sample::select(vec![
        AttemptEnd::TimedOut,
        AttemptEnd::WorkerLost,
        AttemptEnd::NotHeld,
        AttemptEnd::ResultLost,
        AttemptEnd::GivenUp,
        AttemptEnd::InputsStalled,
        AttemptEnd::DiskFull,
        AttemptEnd::InputsBad,
        AttemptEnd::NoDirectory,
        AttemptEnd::Stopped,
        AttemptEnd::NoProgram,
    ])
}

fn inputs() -> impl Strategy<Value = Inputs> {
    prop_oneof![Just(Inputs::Here), Just(Inputs::Expected)]
}

fn cache() -> impl Strategy<Value = CacheId> {
    "(s|é)[a-z. -]{0,9}[a-z0-9]".prop_map(|id| CacheId::parse(&id).unwrap())
}

fn dataset() -> impl Strategy<Value = Dataset> {
    let sizes = (any::<u64>(), any::<u32>());
    (cache(), uuid(), any::<[u8; 32]>(), sizes, text(), vec(uuid(), 0..4), micros()).prop_map(
        |(cache, version, digest, (bytes, files), target, packs, at)| Dataset {
            cache,
            version,
            digest,
            bytes,
            files,
            target,
            packs,
            at,
        },
    )
}

fn file_names() -> impl Strategy<Value = FileNames> {
    prop_oneof![Just(FileNames::Plain), Just(FileNames::Folders), Just(FileNames::Flattened)]
}

fn submission() -> impl Strategy<Value = Submission> {
    let who = (job_id(), client(), key(), text());
    let what = (any::<i64>(), any::<bool>(), any::<u64>(), any::<[u8; 32]>());
    let flags = (any::<bool>(), any::<bool>(), file_names());
    (who, what, inputs(), flags, (vec(cache(), 0..3), option::of("\\PC{1,9}"))).prop_map(
        |(
            (job, client, key, exec),
            (priority, to_all, size, fingerprint),
            inputs,
            (needs_transfers, require_worker, names),
            (datasets, tag),
        )| Submission {
            job,
            client,
            key,
            exec,
            priority,
            to_all,
            size,
            fingerprint,
            inputs,
            needs_transfers,
            require_worker,
            datasets,
            names,
            tag: tag.map(Arc::from),
        },
    )
}

fn class() -> impl Strategy<Value = WorkerClass> {
    prop_oneof![
        Just(WorkerClass::Leasing),
        Just(WorkerClass::Classic),
        Just(WorkerClass::OneAtATime)
    ]
}

fn record() -> impl Strategy<Value = Record> {
    let of_run = || (job_id(), run());
    prop_oneof![
        (micros(), submission()).prop_map(|(at, job)| Record::Announce { at, job }),
        (micros(), submission(), vec((job_id(), worker_id()), 0..4), any::<bool>())
            .prop_map(|(at, job, children, kept)| Record::Enqueue { at, job, children, kept }),
        (of_run(), option::of(micros()), attempt(), worker_id(), class()).prop_map(
            |((job, run), at, attempt, worker, class)| {
                Record::Assign { at, job, run, attempt, worker, class }
            }
        ),
        (of_run(), micros(), worker_id(), any::<u64>(), any::<bool>()).prop_map(
            |((job, run), at, worker, result, ok)| Record::Ack {
                at,
                job,
                run,
                worker,
                result: ResultId(result),
                ok
            }
        ),
        (of_run(), option::of(micros()), attempt(), why(), any::<bool>(), micros()).prop_map(
            |((job, run), at, attempt, why, counts, not_before)| Record::Requeue {
                at,
                job,
                run,
                attempt,
                why,
                counts,
                not_before
            }
        ),
        (of_run(), micros(), attempt(), why())
            .prop_map(|((job, run), at, attempt, why)| Record::Dlq { at, job, run, attempt, why }),
        (of_run(), micros(), text()).prop_map(|((job, run), at, by)| Record::Cancel {
            at,
            job,
            run,
            by
        }),
        of_run().prop_map(|(job, run)| Record::Withdraw { job, run }),
        (of_run(), micros(), text()).prop_map(|((job, run), at, why)| Record::Fail {
            at,
            job,
            run,
            why
        }),
        (of_run(), micros()).prop_map(|((job, run), at)| Record::Orphan { at, job, run }),
        of_run().prop_map(|(job, run)| Record::Revive { job, run }),
        of_run().prop_map(|(job, run)| Record::Forget { job, run }),
        of_run().prop_map(|(job, run)| Record::DropInputs { job, run }),
        of_run().prop_map(|(job, run)| Record::Delivered { job, run }),
        (client(), any::<u32>()).prop_map(|(client, cap)| Record::Cap { client, cap }),
        dataset().prop_map(|dataset| Record::Dataset { dataset: Arc::new(dataset) }),
        (job_id(), dataset())
            .prop_map(|(job, dataset)| Record::Stage { job, dataset: Arc::new(dataset) }),
        (cache(), uuid()).prop_map(|(cache, version)| Record::DatasetGone { cache, version }),
        cluster::record(),
    ]
}

fn attached() -> impl Strategy<Value = Attached> {
    (any::<bool>(), vec(uuid(), 0..3), vec(any::<u8>(), 0..60)).prop_map(
        |(from_ours, blobs, payload)| Attached { from_ours, blobs, payload: payload.into() },
    )
}

fn phase() -> impl Strategy<Value = Phase> {
    let ending = prop_oneof![
        (any::<u64>(), any::<bool>(), worker_id()).prop_map(|(result, ok, worker)| {
            Ending::Returned { result: ResultId(result), ok, worker }
        }),
        text().prop_map(|by| Ending::Cancelled { by }),
        any::<bool>().prop_map(|ok| Ending::Gathered { ok }),
        Just(Ending::Orphaned),
        text().prop_map(|why| Ending::Failed { why }),
    ];
    prop_oneof![
        1 => micros().prop_map(|not_before| Phase::Queued { not_before }),
        1 => (worker_id(), attempt(), class()).prop_map(|(worker, attempt, class)| Phase::Leased { worker, attempt, class }),
        1 => (0_usize..1000).prop_map(|left| Phase::Gathering { left }),
        5 => (micros(), ending).prop_map(|(at, ending)| Phase::Done { at, ending }),
        1 => (micros(), why()).prop_map(|(at, why)| Phase::Dead { at, why }),
    ]
}

fn job() -> impl Strategy<Value = Job> {
    let note = (attempt(), worker_id(), why(), option::of(micros()), option::of(micros()))
        .prop_map(|(attempt, worker, why, began, ended)| AttemptNote {
            attempt,
            worker,
            why,
            began,
            ended,
        });
    let earlier = (run(), attempt(), worker_id(), option::of(why()), option::of(micros()))
        .prop_map(|(run, attempt, worker, why, began)| {
            let ended = began.map(|began| Micros(began.0.saturating_add(1)));
            EarlierAttempt { run, attempt, worker, why, began, ended }
        });
    let attempts = (vec(note, 0..4), vec(earlier, 0..3));
    let times = (option::of(micros()), option::of(micros()))
        .prop_map(|(submitted, assigned)| Times { submitted, assigned });
    let numbers = (any::<u64>(), run(), attempt(), any::<u32>());
    let inputs = prop_oneof![
        Just(InputsState::Announced),
        Just(InputsState::PassedOn),
        Just(InputsState::Kept),
        Just(InputsState::Dropped),
    ];
    let flags = (any::<bool>(), any::<bool>(), inputs, times);
    let family = (option::of((job_id(), worker_id())), vec(job_id(), 0..4));
    (submission(), numbers, flags, attempts, family, phase()).prop_map(
        |(
            of,
            (seq, run, attempt, spent),
            (staged, delivered, inputs, times),
            (history, earlier),
            (child_of, children),
            phase,
        )| {
            let mut job = Job {
                submission: Submission { require_worker: false, ..of },
                seq,
                inputs,
                run,
                attempt,
                spent,
                history,
                earlier: earlier.into(),
                child_of,
                children,
                delivered,
                times,
                phase,
            };
            if staged && job.inputs == InputsState::Kept && job.submission.needs_transfers {
                job.stage(CacheId::of_inputs(job.id()));
            }
            job
        },
    )
}

fn written(record: &Record, attached: Option<&Attached>) -> Vec<u8> {
    let mut out = Vec::new();
    put_entry(record, attached, &mut out);
    out
}

/// Keys are equal whatever their case; the spelling has to come back, too.
fn spelling(record: &Record) -> Option<&str> {
    if let Record::Announce { job, .. } | Record::Enqueue { job, .. } = record {
        return Some(job.key.as_str());
    }
    None
}

proptest! {
    #[test]
    fn entries_come_back(record in record(), attached in option::of(attached()), before in vec(any::<u8>(), 0..9)) {
        let mut out = before.clone();
        let placed = put_entry(&record, attached.as_ref(), &mut out);
        let bytes = &out[before.len()..];
        let entry = get_entry(bytes, &mut Names::default()).unwrap();
        prop_assert_eq!(spelling(&entry.record), spelling(&record));
        prop_assert_eq!(&entry.record, &record);
        prop_assert_eq!(entry.attached.is_some(), attached.is_some());
        prop_assert_eq!(placed.is_some(), attached.is_some());
        if let (Some(read), Some(put), Some((range, crc))) = (entry.attached, attached, placed) {
            prop_assert_eq!((read.from_ours, &read.blobs), (put.from_ours, &put.blobs));
            prop_assert_eq!(&bytes[read.payload.clone()], &put.payload[..]);
            prop_assert_eq!(read.payload.start + before.len()..read.payload.end + before.len(), range);
            prop_assert_eq!((read.crc, crc), (crc, crc32fast::hash(&put.payload)));
        }
    }

    #[test]
    fn every_cut_of_an_entry_is_an_error(record in record(), attached in option::of(attached())) {
        let bytes = written(&record, attached.as_ref());
        for end in 0..bytes.len() {
            let error = get_entry(&bytes[..end], &mut Names::default()).unwrap_err();
            prop_assert!(error.at <= end, "{error} is behind the cut at {end}");
        }
    }

    #[test]
    fn what_follows_an_entry_is_an_error(record in record(), attached in option::of(attached()), more in any::<u8>()) {
        let mut bytes = written(&record, attached.as_ref());
        let end = bytes.len();
        bytes.push(more);
        let error = get_entry(&bytes, &mut Names::default()).unwrap_err();
        prop_assert_eq!(error.to_string(), format!("at byte {end}: 1 bytes are left over behind the entry"));
    }

    #[test]
    fn jobs_come_back_one_after_the_other(jobs in vec(job(), 1..4)) {
        let mut out = Vec::new();
        jobs.iter().for_each(|job| put_job(job, &mut out));
        let (mut reader, mut names) = (Reader::new(&out), Names::default());
        for job in &jobs {
            let read = get_job(&mut reader, &mut names).unwrap();
            prop_assert_eq!(read.submission.key.as_str(), job.submission.key.as_str());
            prop_assert_eq!(&read, job);
        }
        prop_assert!(reader.is_empty());
        prop_assert_eq!(reader.at(), out.len());
    }

    #[test]
    fn every_cut_of_a_job_is_an_error(job in job()) {
        let mut bytes = Vec::new();
        put_job(&job, &mut bytes);
        for end in 0..bytes.len() {
            prop_assert!(get_job(&mut Reader::new(&bytes[..end]), &mut Names::default()).is_err());
        }
    }

    /// What is read is what would have been written: two spellings of one entry do not exist.
    #[test]
    fn changed_bytes_are_refused_or_mean_what_they_say(
        record in record(),
        attached in option::of(attached()),
        at in any::<proptest::sample::Index>(),
        to in any::<u8>(),
    ) {
        let mut bytes = written(&record, attached.as_ref());
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(entry) = get_entry(&bytes, &mut Names::default()) {
            let attached = entry.attached.as_ref().map(|read| Attached {
                from_ours: read.from_ours,
                blobs: read.blobs.clone(),
                payload: bytes[read.payload.clone()].to_vec().into(),
            });
            let again = written(&entry.record, attached.as_ref());
            let is_crc = entry.attached.is_some_and(|read| (read.payload.start - 4..read.payload.end).contains(&at));
            prop_assert!(again == bytes || is_crc);
        }
    }

    #[test]
    fn random_bytes_are_read_without_a_panic(first in 0_u8..27, rest in vec(any::<u8>(), 0..300)) {
        let bytes = [vec![first], rest].concat();
        drop(get_entry(&bytes, &mut Names::default()));
        drop(get_job(&mut Reader::new(&bytes), &mut Names::default()));
    }
}

fn sample_job() -> Submission {
    Submission {
        job: JobId(Uuid::from_u128(0xA1)),
        client: "c".into(),
        key: routing_key("job.assign.Calc", None).unwrap(),
        exec: "Calc".into(),
        priority: -2,
        to_all: false,
        size: 5,
        fingerprint: [0x0F; 32],
        inputs: Inputs::Expected,
        needs_transfers: true,
        require_worker: false,
        datasets: Vec::new(),
        names: FileNames::Plain,
        tag: None,
    }
}

fn sample_cache(id: &str) -> CacheId {
    CacheId::parse(id).unwrap()
}

fn sample_dataset() -> Dataset {
    Dataset {
        cache: sample_cache("set"),
        version: Uuid::from_u128(0xF6),
        digest: [0x1E; 32],
        bytes: 0x0102_0304,
        files: 3,
        target: "none".into(),
        packs: vec![Uuid::from_u128(0xF7)],
        at: Micros(7),
    }
}

fn sample_entries() -> Vec<(Record, Option<Attached>)> {
    let (job, run, attempt) = (JobId(Uuid::from_u128(0xA1)), Run(2), Attempt(3));
    let (worker, at) = (WorkerId(Uuid::from_u128(0xB2)), Micros(0x0001_0000_0000_0001));
    let payload = |text: &'static str, from_ours| Attached {
        from_ours,
        blobs: vec![Uuid::from_u128(0xD4)],
        payload: text.as_bytes().to_vec().into(),
    };
    let child = (JobId(Uuid::from_u128(0xC3)), worker);
    let assign = |at, class| Record::Assign { at, job, run, attempt, worker, class };
    let (why, not_before) = (AttemptEnd::WorkerLost, Micros(7));
    let requeue = |at| Record::Requeue { at, job, run, attempt, why, counts: true, not_before };
    vec![
        (Record::Announce { at, job: sample_job() }, Some(payload("hello", true))),
        (
            Record::Enqueue {
                at,
                job: Submission { to_all: true, inputs: Inputs::Here, ..sample_job() },
                children: vec![child],
                kept: true,
            },
            Some(payload("", false)),
        ),
        (assign(None, WorkerClass::Leasing), None),
        (
            Record::Ack { at, job, run, worker, result: ResultId(9), ok: true },
            Some(payload("{}", false)),
        ),
        (requeue(None), None),
        (Record::Dlq { at, job, run, attempt, why: AttemptEnd::InputsBad }, None),
        (Record::Cancel { at, job, run, by: "é".into() }, None),
        (Record::Withdraw { job, run }, None),
        (Record::Fail { at, job, run, why: "no".into() }, None),
        (Record::Orphan { at, job, run }, None),
        (Record::Revive { job, run }, None),
        (Record::Forget { job, run }, None),
        (Record::DropInputs { job, run }, None),
        (Record::Delivered { job, run }, None),
        (Record::Cap { client: "c".into(), cap: 4 }, None),
        (Record::Dataset { dataset: Arc::new(sample_dataset()) }, None),
        (
            Record::Stage {
                job: JobId(Uuid::from_u128(0xA1)),
                dataset: Arc::new(sample_dataset()),
            },
            None,
        ),
        (Record::DatasetGone { cache: sample_cache("set"), version: Uuid::from_u128(0xF6) }, None),
        (
            Record::Enqueue {
                at,
                job: Submission {
                    datasets: vec![sample_cache("a"), sample_cache("b")],
                    ..sample_job()
                },
                children: Vec::new(),
                kept: false,
            },
            None,
        ),
        (assign(None, WorkerClass::Classic), None),
        (assign(None, WorkerClass::OneAtATime), None),
        (assign(Some(at), WorkerClass::Leasing), None),
        (assign(Some(at), WorkerClass::Classic), None),
        (requeue(Some(at)), None),
        (
            Record::Enqueue {
                at,
                job: Submission {
                    inputs: Inputs::Here,
                    datasets: vec![sample_cache("a")],
                    tag: Some("night".into()),
                    ..sample_job()
                },
                children: Vec::new(),
                kept: true,
            },
            None,
        ),
    ]
}

fn sample_jobs() -> Vec<Job> {
    let job = Job {
        submission: Submission { require_worker: false, ..sample_job() },
        seq: 8,
        inputs: InputsState::Announced,
        run: Run(2),
        attempt: Attempt(3),
        spent: 1,
        history: vec![AttemptNote {
            attempt: Attempt(1),
            worker: WorkerId(Uuid::from_u128(0xB2)),
            why: AttemptEnd::TimedOut,
            began: None,
            ended: None,
        }],
        earlier: Box::default(),
        child_of: Some((JobId(Uuid::from_u128(0xC3)), WorkerId(Uuid::from_u128(0xB2)))),
        children: vec![JobId(Uuid::from_u128(0xE5))],
        delivered: true,
        times: Times::default(),
        phase: Phase::Queued { not_before: Micros(7) },
    };
    let at = Micros(7);
    let worker = WorkerId(Uuid::from_u128(0xB2));
    let endings = [
        Ending::Returned { result: ResultId(9), ok: false, worker },
        Ending::Cancelled { by: "x".into() },
        Ending::Gathered { ok: true },
        Ending::Orphaned,
        Ending::Failed { why: "no".into() },
    ];
    let mut phases = vec![
        Phase::Queued { not_before: at },
        Phase::Leased { worker, attempt: Attempt(3), class: WorkerClass::Leasing },
        Phase::Gathering { left: 1 },
        Phase::Dead { at, why: AttemptEnd::DiskFull },
    ];
    phases.extend(endings.map(|ending| Phase::Done { at, ending }));
    let classes = [WorkerClass::Classic, WorkerClass::OneAtATime];
    phases.extend(classes.map(|class| Phase::Leased { worker, attempt: Attempt(3), class }));
    phases.into_iter().map(|phase| Job { phase, ..job.clone() }).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// The format is what lies on disks. If this fails, the version of the files has to change, and old
/// ones still to be read.
#[test]
fn entries_lie_on_the_disk_in_exactly_these_bytes() {
    let golden = [
        concat!(
            "010001000000000001000000000000000000000000000000a100000001630000000f6a6f622e61737369676e2e",
            "43616c630000000443616c63fffffffffffffffe0000000000000000050f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f020100010100000001000000000000000000000000000000d400000005",
            "3610a68668656c6c6f"
        ),
        concat!(
            "020001000000000001000000000000000000000000000000a100000001630000000f6a6f622e61737369676e2e",
            "43616c630000000443616c63fffffffffffffffe0100000000000000050f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f01010000000001000000000000000000000000000000c3000000000000",
            "000000000000000000b201010000000001000000000000000000000000000000d40000000000000000"
        ),
        "03000000000000000000000000000000a10000000200000003000000000000000000000000000000b200",
        concat!(
            "04000000000000000000000000000000a1000000020001000000000001000000000000000000000000000000b2",
            "000000000000000901010000000001000000000000000000000000000000d400000002a3a6bf437b7d"
        ),
        "05000000000000000000000000000000a100000002000000030201000000000000000700",
        "06000000000000000000000000000000a1000000020001000000000001000000030800",
        "07000000000000000000000000000000a100000002000100000000000100000002c3a900",
        "08000000000000000000000000000000a10000000200",
        "09000000000000000000000000000000a1000000020001000000000001000000026e6f00",
        "0a000000000000000000000000000000a100000002000100000000000100",
        "0b000000000000000000000000000000a10000000200",
        "0c000000000000000000000000000000a10000000200",
        "1a000000000000000000000000000000a10000000200",
        "0d000000000000000000000000000000a10000000200",
        "0e00000001630000000400",
        concat!(
            "0f00000003736574000000000000000000000000000000f61e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e",
            "1e1e1e1e1e1e1e1e1e1e1e00000000010203040000000300000004",
            "6e6f6e6500000001000000000000000000000000000000f7000000000000000700"
        ),
        concat!(
            "11000000000000000000000000000000a100000003736574000000000000000000000000000000f61e1e1e1e1e1e1e",
            "1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e000000000102030400000003000000046e6f6e650000",
            "0001000000000000000000000000000000f7000000000000000700"
        ),
        "1000000003736574000000000000000000000000000000f600",
        concat!(
            "020001000000000001000000000000000000000000000000a100000001630000000f6a6f622e61737369676e2e",
            "43616c630000000443616c63fffffffffffffffe0000000000000000050f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0400000002000000016100000001620100000000000000"
        ),
        "12000000000000000000000000000000a10000000200000003000000000000000000000000000000b20100",
        "12000000000000000000000000000000a10000000200000003000000000000000000000000000000b20200",
        concat!(
            "13000000000000000000000000000000a10000000200000003000000000000000000000000000000b203",
            "000100000000000100"
        ),
        concat!(
            "13000000000000000000000000000000a10000000200000003000000000000000000000000000000b201",
            "000100000000000100"
        ),
        concat!(
            "14000000000000000000000000000000a1000000020000000302010000000000000007",
            "000100000000000100"
        ),
        concat!(
            "020001000000000001000000000000000000000000000000a100000001630000000f6a6f622e61737369676e2e",
            "43616c630000000443616c63fffffffffffffffe0000000000000000050f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f00000001000000016100000005",
            "6e69676874010000000000",
            "0100"
        ),
    ];
    let found: Vec<String> = sample_entries()
        .iter()
        .map(|(record, attached)| hex(&written(record, attached.as_ref())))
        .collect();
    assert_eq!(found, golden);
    // The first fourteen are of before there were datasets, the first twenty of before assignments
    // and requeues had a moment and jobs a tag.
    for (bytes, (record, _)) in golden.iter().zip(sample_entries()) {
        assert_eq!(get_entry(&unhex(bytes), &mut Names::default()).unwrap().record, record);
    }
}

#[test]
fn a_job_that_names_datasets_differs_from_one_of_before_by_its_kind_of_inputs_alone() {
    let plain = sample_jobs().swap_remove(0);
    let mut named = plain.clone();
    named.submission.datasets = vec![sample_cache("a")];
    let (mut before, mut after) = (Vec::new(), Vec::new());
    put_job(&plain, &mut before);
    put_job(&named, &mut after);
    let at = before.iter().zip(&after).position(|(before, after)| before != after).unwrap();
    assert_eq!((before[at], after[at]), (2, 4), "inputs by transfer, without and with datasets");
    assert_eq!(after[at + 1..at + 10], [0, 0, 0, 1, 0, 0, 0, 1, b'a']);
    assert_eq!(before[at + 1..], after[at + 10..]);
    assert_eq!(get_job(&mut Reader::new(&after), &mut Names::default()).unwrap(), named);

    let none = [&after[..=at], &[0, 0, 0, 0], &before[at + 1..]].concat();
    let error = get_job(&mut Reader::new(&none), &mut Names::default()).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (at + 1, "a job that names datasets names none"));
    let mut bad = after.clone();
    bad[at + 9] = b'/';
    let error = get_job(&mut Reader::new(&bad), &mut Names::default()).unwrap_err();
    assert_eq!(error.at, at + 5);
    assert!(error.what.starts_with("invalid cache id: \"/\": it holds '/'"), "{error}");
}

#[test]
fn jobs_lie_on_the_disk_in_exactly_these_bytes() {
    let head = concat!(
        "000000000000000000000000000000a100000001630000000f6a6f622e61737369676e2e43616c630000000443",
        "616c63fffffffffffffffe000000000000000800000000000000050f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
        "0f0f0f0f0f0f0f0f0f0f0f0f0f0f00020100010000000200000003000000010000000100000001000000000000",
        "000000000000000000b20101000000000000000000000000000000c3000000000000000000000000000000b200",
        "000001000000000000000000000000000000e501"
    );
    let phases = [
        "010000000000000007",
        "02000000000000000000000000000000b200000003",
        "0300000001",
        "05000000000000000707",
        "04000000000000000701000000000000000900000000000000000000000000000000b2",
        "040000000000000007020000000178",
        "0400000000000000070301",
        "04000000000000000704",
        "04000000000000000705000000026e6f",
        "06000000000000000000000000000000b20000000301",
        "06000000000000000000000000000000b20000000302",
    ];
    let mut found = Vec::new();
    for job in sample_jobs() {
        let mut bytes = Vec::new();
        put_job(&job, &mut bytes);
        let text = hex(&bytes);
        found.push(text.strip_prefix(head).unwrap().to_owned());
        assert_eq!(get_job(&mut Reader::new(&bytes), &mut Names::default()).unwrap(), job);
    }
    assert_eq!(found, phases);
}

#[test]
fn a_job_of_which_no_time_is_known_is_as_it_was_before_there_were_any() {
    let untimed = sample_jobs().swap_remove(0);
    let (began, ended) = (Some(Micros(3)), None);
    let mut timed =
        Job { times: Times { submitted: Some(Micros(2)), assigned: None }, ..untimed.clone() };
    timed.history[0] = AttemptNote { began, ended, ..timed.history[0] };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    put_job(&untimed, &mut before);
    put_job(&timed, &mut after);
    let phase = before.len() - 9;
    let times = "07".to_owned() + "010000000000000002" + "00" + "010000000000000003" + "00";
    assert_eq!(after, [&before[..phase], &unhex(&times), &before[phase..]].concat());
    assert_eq!(get_job(&mut Reader::new(&before), &mut Names::default()).unwrap(), untimed);
    assert_eq!(get_job(&mut Reader::new(&after), &mut Names::default()).unwrap(), timed);
    let nothing = [&before[..phase], &[7, 0, 0, 0, 0], &before[phase..]].concat();
    let error = get_job(&mut Reader::new(&nothing), &mut Names::default()).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (phase, "times of a job say nothing"));
}

#[test]
fn a_job_of_one_run_is_as_it_was_before_attempts_of_earlier_runs_were_kept() {
    let first = sample_jobs().swap_remove(0);
    let worker = WorkerId(Uuid::from_u128(0xB2));
    let one = EarlierAttempt {
        run: Run(1),
        attempt: Attempt(2),
        worker,
        why: None,
        began: Some(Micros(3)),
        ended: None,
    };
    let other = EarlierAttempt { why: Some(AttemptEnd::DiskFull), began: None, ..one };
    let again = Job { earlier: [one, other].into(), ..first.clone() };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    put_job(&first, &mut before);
    put_job(&again, &mut after);
    let at = before.len() - 9;
    let who = "00000001".to_owned() + "00000002" + "000000000000000000000000000000b2";
    let earlier = ["0800000002", &who, "00", "010000000000000003", "00", &who, "07", "00", "00"];
    assert_eq!(after, [&before[..at], &unhex(&earlier.concat()), &before[at..]].concat());
    assert_eq!(get_job(&mut Reader::new(&after), &mut Names::default()).unwrap(), again);
    let none = [&before[..at], &[8, 0, 0, 0, 0], &before[at..]].concat();
    let error = get_job(&mut Reader::new(&none), &mut Names::default()).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (at, "the attempts of earlier runs are none"));
}

#[test]
fn a_job_with_a_tag_differs_from_one_without_by_its_kind_of_inputs_alone() {
    let plain = sample_jobs().swap_remove(0);
    let mut tagged = plain.clone();
    tagged.submission.tag = Some("t".into());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    put_job(&plain, &mut before);
    put_job(&tagged, &mut after);
    let at = before.iter().zip(&after).position(|(before, after)| before != after).unwrap();
    assert_eq!((before[at], after[at]), (2, 14));
    assert_eq!(after, [&before[..at], &[14, 0, 0, 0, 1, b't'], &before[at + 1..]].concat());
    assert_eq!(get_job(&mut Reader::new(&after), &mut Names::default()).unwrap(), tagged);
    let empty = [&before[..at], &[14, 0, 0, 0, 0], &before[at + 1..]].concat();
    let error = get_job(&mut Reader::new(&empty), &mut Names::default()).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (at + 1, "a job that has a tag has none"));
}

/// Zeros are what a disk gives where nothing was written.
#[test]
fn zeros_are_no_entry() {
    let error = get_entry(&[0; 64], &mut Names::default()).unwrap_err();
    assert_eq!(error.to_string(), "at byte 0: 0 is not a known record");
}

#[test]
fn an_unknown_tag_is_named_with_its_place() {
    let mut bytes = written(&sample_entries()[5].0, None);
    let at = bytes.len() - 2;
    bytes[at] = 200;
    let error = get_entry(&bytes, &mut Names::default()).unwrap_err();
    assert_eq!(error.to_string(), "at byte 33: 200 is not a known end of an attempt");
    assert_eq!(at, 33);
}

#[test]
fn a_count_that_the_bytes_cannot_hold_is_refused_before_memory_is_asked_for() {
    let (record, attached) = sample_entries().swap_remove(3);
    let mut bytes = written(&record, attached.as_ref());
    let count = bytes.len() - 2 - 4 - 4 - 16 - 4;
    bytes[count..count + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    let error = get_entry(&bytes, &mut Names::default()).unwrap_err();
    assert_eq!(error.at, count);
    assert!(error.what.starts_with("4294967295 items of at least 16 bytes"), "{error}");
}

#[test]
fn a_text_that_is_no_routing_key_is_refused() {
    let good = written(&Record::Announce { at: Micros(1), job: sample_job() }, None);
    let place = good.windows(15).position(|bytes| bytes == b"job.assign.Calc").unwrap();
    for (text, what) in [
        (b"job.submit.Calc", "the text is not a routing key: it would be job.assign.Calc"),
        (b"job.assign..alc", "the text is not a routing key: it would be job.assign.alc"),
        (
            b"xxx.assign.Calc",
            "the text is not a routing key: it would be job.assign.xxx.assign.Calc",
        ),
    ] {
        let mut bytes = good.clone();
        bytes[place..place + 15].copy_from_slice(text);
        let error = get_entry(&bytes, &mut Names::default()).unwrap_err();
        assert_eq!((error.at, error.what.as_str()), (place - 4, what));
    }
    let mut bytes = good;
    bytes[place] = 0xFF;
    let error = get_entry(&bytes, &mut Names::default()).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (place, "the text of 15 bytes is not UTF-8"));
}

#[test]
fn names_that_repeat_are_held_once_and_keep_their_spelling() {
    let mut names = Names::default();
    let mut read = |key: &str| {
        let job = Submission { key: routing_key(key, None).unwrap(), ..sample_job() };
        let entry = get_entry(&written(&Record::Announce { at: Micros(1), job }, None), &mut names)
            .unwrap();
        let Record::Announce { job, .. } = entry.record else { panic!("not what was written") };
        job
    };
    let (first, second, other) =
        (read("job.assign.calc"), read("job.assign.calc"), read("job.assign.CALC"));
    assert!(Arc::ptr_eq(&first.client.0, &second.client.0));
    assert!(Arc::ptr_eq(&first.exec, &second.exec));
    assert_eq!(first.key.as_str().as_ptr(), second.key.as_str().as_ptr());
    assert_eq!((other.key.as_str(), &other.key), ("job.assign.CALC", &first.key));
}
