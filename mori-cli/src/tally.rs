//! What a replay counts while it runs. Its size does not grow with the length of the trace.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::fetch::FailureKind;

/// Failed requests that are kept with their blocks; of further ones only the number is.
pub const KEPT_FAILURES: usize = 100;

/// Ranges of blocks that a line of text names.
const NAMED_RANGES: usize = 64;

/// Blocks of one request that failed alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureGroup {
    /// In which way.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
    /// Which blocks.
    pub blocks: Vec<u64>,
}

/// A request of which at least one block failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRequest {
    /// Its number in the replay, from 1.
    pub number: u64,
    /// The line of the trace it stands on, from 1.
    pub line: u64,
    /// The blocks that failed, by kind and message.
    pub groups: Vec<FailureGroup>,
}

impl FailedRequest {
    /// Adds a block that failed.
    pub fn add(&mut self, block: u64, kind: FailureKind, message: &str) {
        match self.groups.iter_mut().find(|group| group.kind == kind && group.message == message) {
            Some(group) => group.blocks.push(block),
            None => {
                self.groups.push(FailureGroup { kind, message: message.to_owned(), blocks: vec![block] });
            }
        }
    }

    /// The number of blocks that failed.
    pub fn blocks(&self) -> u64 {
        self.groups.iter().map(|group| group.blocks.len() as u64).sum()
    }
}

impl std::fmt::Display for FailedRequest {
    /// One line for each kind of failure.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, group) in self.groups.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            let (count, blocks) = (group.blocks.len(), block_list(&group.blocks));
            write!(
                f,
                "request {} (line {} of the trace): {count} block{} failed, {}: {blocks}: {}",
                self.number,
                self.line,
                if count == 1 { "" } else { "s" },
                group.kind,
                group.message
            )?;
        }
        Ok(())
    }
}

/// Block ids as text, neighbours joined: `0, 17-19`.
pub fn block_list(blocks: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*block) => *last = *block,
            _ => ranges.push((*block, *block)),
        }
    }
    let named = ranges.iter().take(NAMED_RANGES);
    let mut text: Vec<String> =
        named.map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    if ranges.len() > NAMED_RANGES {
        let more: u64 = ranges.iter().skip(NAMED_RANGES).map(|(a, b)| b - a + 1).sum();
        text.push(format!("and {more} more"));
    }
    text.join(", ")
}

/// The counters of a replay.
#[derive(Debug)]
pub struct Tally {
    /// Requests whose blocks are all there and right.
    pub requests_done: u64,
    /// Requests of which at least one block failed.
    pub requests_failed: u64,
    /// Requests cut short because somebody asked to stop.
    pub requests_interrupted: u64,
    /// Blocks that requests asked for.
    pub blocks_referenced: u64,
    /// Blocks that were in the cache.
    pub blocks_reused: u64,
    /// Blocks that were fetched and, if bytes are verified, right.
    pub blocks_fetched: u64,
    /// Blocks that had to make room for others.
    pub evictions: u64,
    /// Bytes of the fetched blocks.
    pub bytes: u64,
    /// Time spent waiting for blocks.
    pub fetching: Duration,
    /// Time spent looking at their bytes.
    pub verifying: Duration,
    /// Time from the first request to the end.
    pub wall: Duration,
    /// How often the peer was lost.
    pub peers_lost: u64,
    /// How often it was reached again.
    pub reconnects: u64,
    failures: [u64; FailureKind::ALL.len()],
    failed: Vec<FailedRequest>,
    /// Microseconds.
    times: Option<Histogram<u64>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// All zero.
    pub fn new() -> Self {
        Self {
            requests_done: 0,
            requests_failed: 0,
            requests_interrupted: 0,
            blocks_referenced: 0,
            blocks_reused: 0,
            blocks_fetched: 0,
            evictions: 0,
            bytes: 0,
            fetching: Duration::ZERO,
            verifying: Duration::ZERO,
            wall: Duration::ZERO,
            peers_lost: 0,
            reconnects: 0,
            failures: [0; FailureKind::ALL.len()],
            failed: Vec::new(),
            // These bounds are among those that the histogram documents as valid: 1 µs to a day, three digits.
            times: Histogram::new_with_bounds(1, 86_400_000_000, 3).ok(),
        }
    }

    /// Counts a request whose blocks all came, and the time they took.
    pub fn request_done(&mut self, took: Duration) {
        self.requests_done += 1;
        if let Some(times) = &mut self.times {
            times.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
        }
    }

    /// Counts a request of which blocks failed.
    pub fn request_failed(&mut self, request: FailedRequest) {
        self.requests_failed += 1;
        for group in &request.groups {
            self.failures[group.kind as usize] += group.blocks.len() as u64;
        }
        if self.failed.len() < KEPT_FAILURES {
            self.failed.push(request);
        }
    }

    /// Blocks that failed in one way.
    pub fn failures(&self, kind: FailureKind) -> u64 {
        self.failures[kind as usize]
    }

    /// Blocks that failed in any way.
    pub fn blocks_failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// The first [`KEPT_FAILURES`] failed requests.
    pub fn failed_requests(&self) -> &[FailedRequest] {
        &self.failed
    }

    /// The time per request at a quantile from 0 to 1; zero when no request was done.
    pub fn time_at(&self, quantile: f64) -> Duration {
        let micros = self.times.as_ref().filter(|times| !times.is_empty());
        Duration::from_micros(micros.map_or(0, |times| times.value_at_quantile(quantile)))
    }

    /// Bytes for each second of waiting, in 10^9; zero when nothing was fetched.
    pub fn gigabytes_per_second(&self) -> f64 {
        let seconds = self.fetching.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / 1e9 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_lists_join_neighbours_and_end() {
        assert_eq!(block_list(&[]), "");
        assert_eq!(block_list(&[0, 17, 18, 19, 4]), "0, 17-19, 4");
        assert_eq!(block_list(&[u64::MAX, 0]), format!("{}, 0", u64::MAX));
        let scattered: Vec<u64> = (0..100).map(|i| i * 2).collect();
        assert!(block_list(&scattered).ends_with("126, and 36 more"));
    }

    #[test]
    fn failures_are_grouped_counted_and_named() {
        let mut request = FailedRequest { number: 3, line: 9, groups: Vec::new() };
        request.add(5, FailureKind::Late, "slow");
        request.add(6, FailureKind::Late, "slow");
        request.add(7, FailureKind::Refused, "no such key");
        assert_eq!(request.blocks(), 3);
        assert_eq!(
            request.to_string(),
            "request 3 (line 9 of the trace): 2 blocks failed, late: 5-6: slow\n\
             request 3 (line 9 of the trace): 1 block failed, refused: 7: no such key"
        );
        let mut tally = Tally::new();
        tally.request_failed(request);
        assert_eq!(tally.failures(FailureKind::Late), 2);
        assert_eq!(tally.failures(FailureKind::Refused), 1);
        assert_eq!(tally.blocks_failed(), 3);
    }

    #[test]
    fn only_the_first_failed_requests_are_kept() {
        let mut tally = Tally::new();
        for number in 0..KEPT_FAILURES as u64 + 5 {
            tally.request_failed(FailedRequest { number, line: number, groups: Vec::new() });
        }
        assert_eq!(tally.failed_requests().len(), KEPT_FAILURES);
        assert_eq!(tally.requests_failed, KEPT_FAILURES as u64 + 5);
    }

    #[test]
    fn quantiles_come_from_the_recorded_times() {
        let mut tally = Tally::new();
        assert_eq!(tally.time_at(0.5), Duration::ZERO);
        for millis in 1..=100 {
            tally.request_done(Duration::from_millis(millis));
        }
        let close = |quantile, millis: f64| {
            let found = tally.time_at(quantile).as_secs_f64() * 1e3;
            assert!((found - millis).abs() <= millis * 0.01, "{quantile}: {found}");
        };
        close(0.5, 50.0);
        close(0.99, 99.0);
        close(1.0, 100.0);
        tally.request_done(Duration::MAX);
        assert!(tally.time_at(1.0) >= Duration::from_secs(86_000), "what is too long counts as the longest");
    }

    #[test]
    fn kinds_index_their_counters() {
        for (at, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }
}
