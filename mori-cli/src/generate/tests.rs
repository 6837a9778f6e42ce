//! The generator against the recorded statistics, and its promises.

use proptest::prelude::*;

use super::*;
use crate::trace::TraceReader;
use crate::trace_stats::{TraceStats, lru_hit_ratio};

fn close(what: &str, seed: u64, found: f64, wanted: f64, by: f64) {
    assert!(
        (found - wanted).abs() <= by,
        "seed {seed}: {what} is {found}, recorded {wanted}, allowed ± {by}"
    );
}

#[test]
fn generated_requests_have_the_recorded_statistics() {
    for seed in [0, 1, 42] {
        let trace: Vec<_> = Generator::new(seed).take(RECORDED.requests as usize).collect();
        let stats = TraceStats::of(&trace);
        let relative = |what, found, wanted: f64, by| close(what, seed, found, wanted, wanted * by);
        relative("requests per second", stats.requests_per_second, RECORDED.requests_per_second, 0.07);
        relative("input mean", stats.input_mean, RECORDED.input_mean, 0.07);
        relative("output mean", stats.output_mean, RECORDED.output_mean, 0.07);
        relative("blocks mean", stats.blocks_mean, RECORDED.blocks_mean, 0.07);
        relative("dispersion", stats.arrival_dispersion, RECORDED.arrival_dispersion, 0.2);
        for at in 0..6 {
            let (found, wanted) = (stats.input_quantiles[at] as f64, RECORDED.input_quantiles[at] as f64);
            relative("an input quantile", found, wanted, 0.2);
            let (found, wanted) = (stats.output_quantiles[at] as f64, RECORDED.output_quantiles[at] as f64);
            relative("an output quantile", found, wanted, 0.2);
        }
        close("reuse ratio", seed, stats.reuse_ratio, RECORDED.reuse_ratio, 0.03);
        close("follow-ups", seed, stats.follow_up_share, RECORDED.follow_up_share, 0.03);
        close("used once", seed, stats.used_once_share, RECORDED.used_once_share, 0.06);
        close("hottest block", seed, stats.hottest_block_share, RECORDED.hottest_block_share, 0.0);
        assert!(stats.input_max <= RECORDED.input_max);
        for (blocks, recorded) in [(5_000, 0.110), (10_000, 0.211), (30_000, 0.326)] {
            close("LRU hit ratio", seed, lru_hit_ratio(&trace, blocks), recorded, 0.03);
        }
    }
}

#[test]
fn memory_stays_bounded_over_many_requests() {
    let mut generator = Generator::new(3);
    for _ in 0..100_000 {
        generator.next();
        assert!(generator.waiting.len() < 2_000, "{}", generator.waiting.len());
    }
}

#[test]
fn different_seeds_differ() {
    let take = |seed| Generator::new(seed).take(20).collect::<Vec<_>>();
    assert_ne!(take(1), take(2));
}

#[test]
fn new_ids_count_up_from_zero() {
    let mut next = 0;
    for id in Generator::new(5).take(500).flat_map(|request| request.hash_ids) {
        assert!(id <= next, "{id} comes before {next}");
        next = next.max(id + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn generated_requests_pass_for_a_trace(seed in any::<u64>()) {
        let trace: Vec<_> = Generator::new(seed).take(400).collect();
        let text: String = trace
            .iter()
            .map(|r| {
                format!(
                    "{{\"timestamp\":{},\"input_length\":{},\"output_length\":{},\"hash_ids\":{:?}}}\n",
                    r.timestamp_ms, r.input_length, r.output_length, r.hash_ids
                )
            })
            .collect();
        let read: Vec<_> = TraceReader::new("generated", text.as_bytes()).collect::<Result<_, _>>().expect("valid");
        prop_assert_eq!(read, trace);
    }
}
