//! Takes CachePuts of classic leaders, one after the other.

use super::*;

impl Cache {
    /// A put of a classic leader came.
    pub(in crate::worker) fn on_put(&mut self, corr_id: Uuid, payload: &[u8], out: &mut Exchange) {
        let request = match CachePutRequest::parse(payload) {
            Ok(request) => request,
            Err(error) => {
                return out.push(ack(corr_id, &CachePutResult::failed("", error.to_string())));
            }
        };
        let cache = match CacheId::parse(&request.cache_id) {
            Ok(cache) => cache,
            Err(error) => {
                let result = CachePutResult::failed(&request.cache_id, error.to_string());
                return out.push(ack(corr_id, &result));
            }
        };
        if self.puts.len() >= PUTS_WAITING_MAX {
            let text = format!("{PUTS_WAITING_MAX} puts wait here already: send it again later");
            return out.push(ack(corr_id, &CachePutResult::failed(cache.as_str(), text)));
        }
        self.puts.push_back(Waiting { cache, corr_id, request });
        self.next_put(out);
    }

    pub(super) fn next_put(&mut self, out: &mut Exchange) {
        while self.putting.is_none() {
            let unchecked = |waiting: &Waiting| {
                self.datasets.get(&waiting.cache).is_some_and(|dataset| dataset.seals.is_none())
            };
            // One whose dataset is being checked waits for that.
            let Some(at) = self.puts.iter().position(|waiting| !unchecked(waiting)) else { return };
            let Some(Waiting { cache, corr_id, request }) = self.puts.remove(at) else { return };
            let before = self.donors(&cache).into_iter().next().filter(|donor| {
                self.datasets.get(&cache).is_some_and(|dataset| dataset.version == donor.version)
            });
            let bytes = classic::new_bytes(&request, before.as_ref().map(|donor| &*donor.contents));
            // What is there is the base of the new dataset, and must not go for it.
            self.putting = Some((cache.clone(), 0));
            if let Err(text) = self.make_room(&cache, bytes, out) {
                self.putting = None;
                out.push(ack(corr_id, &CachePutResult::failed(cache.as_str(), text)));
                continue;
            }
            self.putting = Some((cache.clone(), bytes));
            self.run(move |disk| {
                let stored = classic::store(disk, &cache, &request, before.as_ref());
                News::Put(Put { cache, corr_id, stored })
            });
        }
    }

    pub(super) fn on_stored(&mut self, put: Put, out: &mut Exchange) {
        self.putting = None;
        let Put { cache, corr_id, stored } = put;
        match stored {
            Ok(stored) => {
                let result = CachePutResult::stored(cache.as_str(), stored.added, stored.skipped);
                if let Some(made) = stored.dataset {
                    self.put_in(&cache, made.version, made.contents, made.seals, true);
                    self.arrived(&cache, out);
                }
                out.push(ack(corr_id, &result));
            }
            Err(error) => {
                warn!(%cache, "a put failed: {error}");
                out.push(ack(corr_id, &CachePutResult::failed(cache.as_str(), error.to_string())));
            }
        }
    }
}
