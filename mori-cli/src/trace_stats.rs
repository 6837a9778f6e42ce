//! Statistics of a trace: the yardstick that the generator is held to, and a look at what a trace holds.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;

use lru::LruCache;

use crate::trace::Request;

/// What a trace looks like as a load on a decode node.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceStats {
    /// Requests.
    pub requests: u64,
    /// Requests for each second between the first and the last timestamp.
    pub requests_per_second: f64,
    /// Variance over mean of the number of requests that share a timestamp's 3-second slot; 1 is a Poisson process.
    pub arrival_dispersion: f64,
    /// Mean tokens of a prompt.
    pub input_mean: f64,
    /// Quantiles of the tokens of a prompt: 10, 25, 50, 75, 90, 99 %.
    pub input_quantiles: [u64; 6],
    /// The longest prompt in tokens.
    pub input_max: u64,
    /// Mean tokens of an answer.
    pub output_mean: f64,
    /// Quantiles of the tokens of an answer: 10, 25, 50, 75, 90, 99 %.
    pub output_quantiles: [u64; 6],
    /// Mean blocks of a request.
    pub blocks_mean: f64,
    /// Share of the block references that name a block seen before: the hit ratio of a cache without bound.
    pub reuse_ratio: f64,
    /// Share of the requests that continue an earlier one: they share more than the very first block with it.
    pub follow_up_share: f64,
    /// Share of the blocks that are used exactly once.
    pub used_once_share: f64,
    /// Requests that use the block that most requests use, as a share of all.
    pub hottest_block_share: f64,
}

impl TraceStats {
    /// Measures a trace. Its memory grows with the number of distinct blocks.
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Self {
        let mut uses: HashMap<u64, u64> = HashMap::new();
        let mut slots: HashMap<u64, u64> = HashMap::new();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let (mut references, mut follow_ups) = (0_u64, 0_u64);
        let (mut first_ms, mut last_ms) = (None, 0);
        for request in requests {
            let shared = request.hash_ids.iter().take_while(|id| uses.contains_key(id)).count();
            follow_ups += u64::from(shared > 1);
            for id in &request.hash_ids {
                *uses.entry(*id).or_default() += 1;
            }
            references += request.hash_ids.len() as u64;
            *slots.entry(request.timestamp_ms.saturating_add(1500) / 3000).or_default() += 1;
            inputs.push(request.input_length);
            outputs.push(request.output_length);
            first_ms.get_or_insert(request.timestamp_ms);
            last_ms = request.timestamp_ms;
        }
        let count = inputs.len() as u64;
        let seconds = last_ms.saturating_sub(first_ms.unwrap_or(0)) as f64 / 1000.0;
        Self {
            requests: count,
            requests_per_second: ratio(count as f64, seconds),
            arrival_dispersion: dispersion(slots.values().copied()),
            input_mean: mean(&inputs),
            input_quantiles: quantiles(&mut inputs),
            input_max: inputs.last().copied().unwrap_or(0),
            output_mean: mean(&outputs),
            output_quantiles: quantiles(&mut outputs),
            blocks_mean: ratio(references as f64, count as f64),
            reuse_ratio: ratio(references.saturating_sub(uses.len() as u64) as f64, references as f64),
            follow_up_share: ratio(follow_ups as f64, count as f64),
            used_once_share: ratio(uses.values().filter(|n| **n == 1).count() as f64, uses.len() as f64),
            hottest_block_share: ratio(uses.values().copied().max().unwrap_or(0) as f64, count as f64),
        }
    }
}

/// The share of block references that a least-recently-used cache of `blocks` blocks answers; zero for a cache of no
/// blocks.
pub fn lru_hit_ratio<'a>(requests: impl IntoIterator<Item = &'a Request>, blocks: usize) -> f64 {
    let Some(capacity) = NonZeroUsize::new(blocks) else { return 0.0 };
    let mut cache = LruCache::new(capacity);
    let (mut hits, mut all) = (0_u64, 0_u64);
    for id in requests.into_iter().flat_map(|request| &request.hash_ids) {
        hits += u64::from(cache.put(*id, ()).is_some());
        all += 1;
    }
    ratio(hits as f64, all as f64)
}

/// The number of different blocks that the requests name.
pub fn distinct_blocks<'a>(requests: impl IntoIterator<Item = &'a Request>) -> u64 {
    requests.into_iter().flat_map(|request| &request.hash_ids).collect::<HashSet<_>>().len() as u64
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn mean(values: &[u64]) -> f64 {
    ratio(values.iter().map(|v| *v as f64).sum(), values.len() as f64)
}

fn dispersion(counts: impl Iterator<Item = u64> + Clone) -> f64 {
    let n = counts.clone().count() as f64;
    let mean = ratio(counts.clone().map(|c| c as f64).sum(), n);
    let variance = ratio(counts.map(|c| (c as f64 - mean).powi(2)).sum(), n);
    ratio(variance, mean)
}

/// Sorts the values and takes the quantiles that [`TraceStats`] documents.
fn quantiles(values: &mut [u64]) -> [u64; 6] {
    values.sort_unstable();
    [10, 25, 50, 75, 90, 99].map(|percent| {
        let at = (values.len() * percent / 100).min(values.len().saturating_sub(1));
        values.get(at).copied().unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(timestamp_ms: u64, input_length: u64, hash_ids: &[u64]) -> Request {
        Request { line: 1, timestamp_ms, input_length, output_length: 2, hash_ids: hash_ids.to_vec() }
    }

    #[test]
    fn an_empty_trace_has_zero_everywhere() {
        let stats = TraceStats::of(&[]);
        assert_eq!(stats.requests, 0);
        assert_eq!((stats.reuse_ratio, stats.input_mean, stats.requests_per_second), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_small_trace_is_measured_by_hand() {
        let trace = [
            request(0, 600, &[0, 1]),
            request(0, 600, &[0, 2]),
            request(3000, 1100, &[0, 1, 3]),
            request(6000, 100, &[0]),
        ];
        let stats = TraceStats::of(&trace);
        assert_eq!(stats.requests, 4);
        assert!((stats.reuse_ratio - 0.5).abs() < 1e-9, "8 references, 4 blocks");
        assert!((stats.follow_up_share - 0.25).abs() < 1e-9, "only the third continues another");
        assert!((stats.used_once_share - 0.5).abs() < 1e-9, "blocks 2 and 3 of 0..=3");
        assert!((stats.hottest_block_share - 1.0).abs() < 1e-9);
        assert!((stats.requests_per_second - 4.0 / 6.0).abs() < 1e-9);
        assert_eq!(stats.input_quantiles, [100, 600, 600, 1100, 1100, 1100]);
        assert_eq!(stats.input_max, 1100);
        assert_eq!(distinct_blocks(&trace), 4);
    }

    #[test]
    fn the_lru_ratio_sees_eviction() {
        let trace = [request(0, 1, &[1]), request(0, 1, &[2]), request(0, 1, &[1]), request(0, 1, &[1])];
        assert!((lru_hit_ratio(&trace, 1) - 0.25).abs() < 1e-9);
        assert!((lru_hit_ratio(&trace, 2) - 0.5).abs() < 1e-9);
        assert_eq!(lru_hit_ratio(&trace, 0), 0.0);
    }
}
