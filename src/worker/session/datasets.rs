//! Connects a session to its cache: passes frames and news in, and carries out what follows for
//! jobs.

use std::sync::Arc;

use chunking::message::{Body, Features, Hold, Inspect, Pack, Release};
use chunking::{Kind, MessageError};
use tracing::info;
use uuid::Uuid;

use super::Session;
use crate::peer::InFrame;
use crate::worker::cache::{Cache, News, Step};
use crate::worker::exchange::Exchange;
use crate::worker::handler::{Handler, Job};
use crate::worker::job_table::Inputs;

impl<H: Handler> Session<H> {
    /// A frame about datasets.
    pub(super) fn on_dataset_frame(&mut self, frame: &InFrame) -> Result<(), MessageError> {
        let InFrame { payload, msg_id, corr_id, .. } = frame;
        match frame.kind() {
            Some(Kind::Hold) => {
                let hold = Hold::decode(payload)?;
                self.with_cache(|cache, out| cache.on_hold(*msg_id, &hold, out));
            }
            Some(Kind::Pack) => {
                let pack = Pack::decode(payload)?;
                self.with_cache(|cache, _| cache.on_pack(*msg_id, *corr_id, pack));
            }
            Some(Kind::Release) => {
                let release = Release::decode(payload)?;
                self.with_cache(|cache, out| cache.on_release(*msg_id, &release, out));
            }
            Some(Kind::Inspect) => {
                let inspect = Inspect::decode(payload)?;
                self.with_cache(|cache, out| {
                    cache.on_inspect(*msg_id, inspect.cache_id.as_str(), out)
                });
            }
            Some(Kind::CachePut) => {
                // Relayed with the request's id in CorrId (T06).
                let request = if corr_id.is_nil() { *msg_id } else { *corr_id };
                self.with_cache(|cache, out| cache.on_put(request, payload, out));
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    /// How the inputs of a job come that was assigned.
    pub(super) fn inputs_of(&mut self, job: &Arc<Job>) -> Inputs {
        let knows = |wanted: Features| self.leader.is_some_and(|features| features.has(wanted));
        let (by_transfer, sends_datasets) =
            (knows(Features::TRANSFERS), knows(Features::DATASETS.with(Features::LEASES)));
        let transfers =
            by_transfer.then(|| self.receptions.assign(job, &mut self.exchange)).flatten();
        let waits = match &mut self.cache {
            Some(cache) => cache.assign(job, sends_datasets, &mut self.exchange),
            None => false,
        };
        match (transfers, waits) {
            (None, false) => Inputs::Inside,
            (None, true) => Inputs::Datasets,
            (Some(true), _) | (Some(false), true) => Inputs::Coming,
            (Some(false), false) => Inputs::Here,
        }
    }

    /// What jobs needed that are gone is free.
    pub(super) fn free_datasets(&mut self) {
        if let Some(cache) = &mut self.cache {
            for job in cache.jobs() {
                if !self.table.is_under_way(job) {
                    cache.on_job_gone(job, &mut self.exchange);
                }
            }
        }
    }

    /// The datasets that a job needed are free, unless it is still here.
    pub(super) fn free_datasets_of(&mut self, job: Uuid) {
        if let Some(cache) = &mut self.cache
            && !self.table.is_under_way(job)
        {
            cache.on_job_gone(job, &mut self.exchange);
        }
    }

    pub(super) fn on_cache_news(&mut self, news: News) {
        if let Some(cache) = &mut self.cache {
            cache.on_news(news, &mut self.exchange);
        }
        self.take_cache_steps();
    }

    /// Has a frame or chunk of a dataset dealt with.
    pub(super) fn with_cache(&mut self, feed: impl FnOnce(&mut Cache, &mut Exchange)) {
        if let Some(cache) = &mut self.cache {
            feed(cache, &mut self.exchange);
        }
        self.take_cache_steps();
    }

    fn take_cache_steps(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        for step in cache.steps() {
            match step {
                Step::Ready(job) if !self.receptions.lacks(job) => self.table.on_received(job),
                // The rest of its inputs is to come.
                Step::Ready(_) => {}
                Step::GiveBack { job, text } => {
                    info!(%job, "given back: {text}");
                    self.table.on_unfit(job, &text);
                }
            }
        }
    }
}
