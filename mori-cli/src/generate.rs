//! A seeded generator of requests with the statistics of an hour of recorded conversations.
//!
//! The recording behind the numbers has 12,031 requests. What was measured on it, and what the generator does with it:
//!
//! | statistic | recording | generator |
//! |---|---|---|
//! | arrivals | every 3 s (± 1 ms) a Poisson number of requests, mean 10.2 | the same |
//! | prompt, tokens | mean 12,035; quantiles 10/25/50/75/90/99 %: 964, 2,306, 6,909, 15,368, 27,367, 85,401; 891 to 126,195 | first prompts from a quantile table, later ones grow as below |
//! | answer, tokens | mean 343, median 350, at most 2,000 | from a quantile table |
//! | blocks of a request | mean 24.0, at most 247 | follows from the prompts |
//! | first block | one id, 0, common to all requests | the same |
//! | new ids | counted up in order of appearance, shared only as a prefix | the same |
//! | follow-ups (share more than the first block with an earlier request) | 38.7 % | a conversation goes on with a probability that grows with its depth |
//! | time to the follow-up | median 123 s, 90 % within 483 s | from a quantile table |
//! | growth of a prompt | 87 %: by the last answer and a median of 26 tokens, sharing all full blocks; 13 %: the start is kept (median 18 %) and the rest replaced | the same, from quantile tables |
//! | references to blocks seen before | 36.6 % | follows |
//! | blocks used once | 75.8 % | follows |
//! | hit ratio of an LRU cache of 5,000 / 10,000 / 30,000 blocks | 11.0 % / 21.1 % / 32.6 % | follows |
//!
//! [`RECORDED`] holds these numbers as constants, and a test holds 12,031 generated requests of three seeds to them:
//! within 7 % for means, 20 % for quantiles, three percentage points for shares and hit ratios (six for the blocks used
//! once, which the generator has too few of). Not modelled: the slow change of the
//! arrival rate over the hour (144 to 247 requests a minute), and the slight correlation between the lengths of prompt
//! and answer (0.07).
//!
//! The generator runs without end in bounded memory: it remembers the conversations that will go on, some hundreds.

use std::collections::BinaryHeap;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use crate::trace::{BLOCK_TOKENS, Request};

mod tables;

pub use tables::RECORDED;
use tables::*;

/// Time between two groups of arrivals.
const TICK_MS: u64 = 3000;
/// Mean number of requests in a group.
const REQUESTS_PER_TICK: f64 = 10.196;
/// Below this length a first prompt hardly ever goes on.
const ONE_SHOT_TOKENS: u64 = 1024;
/// From this length on a prompt goes on less often.
const LONG_TOKENS: u64 = 30_000;
/// The longest prompt; what would grow beyond it ends its conversation.
const MAX_INPUT_TOKENS: u64 = 126_195;
/// The shortest prompt.
const MIN_INPUT_TOKENS: u64 = 891;

/// An endless iterator of generated requests. Equal seeds give equal requests.
///
/// ```
/// use mori_cli::generate::Generator;
///
/// let a: Vec<_> = Generator::new(7).take(100).collect();
/// let b: Vec<_> = Generator::new(7).take(100).collect();
/// assert_eq!(a, b);
/// ```
#[derive(Debug)]
pub struct Generator {
    rng: Xoshiro256PlusPlus,
    tick: u64,
    left_in_tick: u64,
    timestamp_ms: u64,
    line: u64,
    next_id: u64,
    waiting: BinaryHeap<FollowUp>,
}

/// A conversation that goes on at `due_ms`.
#[derive(Debug, PartialEq, Eq)]
struct FollowUp {
    due_ms: u64,
    /// Settles ties, so that the order does not depend on the heap.
    number: u64,
    depth: usize,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

impl Ord for FollowUp {
    /// Reversed, since the heap gives its greatest first and the earliest is due first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due_ms, other.number).cmp(&(self.due_ms, self.number))
    }
}

impl PartialOrd for FollowUp {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Generator {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Self {
        let mut generator = Self {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            tick: 0,
            left_in_tick: 0,
            timestamp_ms: 0,
            line: 0,
            next_id: 1,
            waiting: BinaryHeap::new(),
        };
        generator.left_in_tick = generator.poisson(REQUESTS_PER_TICK);
        generator
    }

    /// A number in `0.0..1.0`.
    fn unit(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Knuth's product of uniforms: fine for small means.
    fn poisson(&mut self, mean: f64) -> u64 {
        let limit = (-mean).exp();
        let (mut count, mut product) = (0, self.unit());
        while product > limit {
            count += 1;
            product *= self.unit();
        }
        count
    }

    /// Draws from a table of quantiles, linear between its knots.
    fn draw(&mut self, table: &[(f64, f64)]) -> f64 {
        let at = self.unit() * 100.0;
        let right = table.partition_point(|(percent, _)| *percent <= at);
        match (right.checked_sub(1).and_then(|left| table.get(left)), table.get(right)) {
            (Some((p0, v0)), Some((p1, v1))) => v0 + (v1 - v0) * (at - p0) / (p1 - p0),
            (Some((_, value)), None) | (None, Some((_, value))) => *value,
            (None, None) => 0.0,
        }
    }

    fn draw_tokens(&mut self, table: &[(f64, f64)]) -> u64 {
        self.draw(table).round().max(0.0) as u64
    }

    /// Moves on to the next group of arrivals that has any.
    fn advance(&mut self) {
        while self.left_in_tick == 0 {
            self.tick += 1;
            self.left_in_tick = self.poisson(REQUESTS_PER_TICK);
            let early = u64::from(self.unit() < 0.5);
            self.timestamp_ms = self.tick * TICK_MS - early;
        }
        self.left_in_tick -= 1;
    }

    fn fresh_blocks(&mut self, ids: &mut Vec<u64>, input_length: u64) {
        let needed = input_length.div_ceil(BLOCK_TOKENS) as usize;
        while ids.len() < needed {
            ids.push(self.next_id);
            self.next_id += 1;
        }
    }

    fn first_prompt(&mut self) -> (u64, Vec<u64>) {
        let input_length = self.draw_tokens(FIRST_PROMPT);
        let mut ids = vec![0];
        self.fresh_blocks(&mut ids, input_length);
        (input_length, ids)
    }

    /// The prompt after `before`: either it keeps all that was said, or only the start.
    fn next_prompt(&mut self, before: &FollowUp) -> (u64, Vec<u64>) {
        let blocks = before.hash_ids.len();
        let (wanted, kept) = if self.unit() < REWRITE_SHARE && blocks > 2 {
            let kept = (self.draw(REWRITE_KEPT) * blocks as f64).round().clamp(2.0, blocks as f64 - 1.0);
            (kept as u64 * BLOCK_TOKENS + self.draw_tokens(REWRITE_ADDED), kept as usize)
        } else {
            let said = before.input_length + before.output_length;
            let wanted = said as f64 + self.draw(GROWTH);
            (wanted.max(MIN_INPUT_TOKENS as f64) as u64, (before.input_length / BLOCK_TOKENS) as usize)
        };
        let input_length = wanted.min(MAX_INPUT_TOKENS);
        let whole = (input_length / BLOCK_TOKENS) as usize;
        let mut ids: Vec<u64> = before.hash_ids.iter().copied().take(kept.clamp(1, whole.max(1))).collect();
        self.fresh_blocks(&mut ids, input_length);
        (input_length, ids)
    }

    /// Decides whether the request goes on later, and remembers it if so.
    fn plan_follow_up(&mut self, request: &Request, depth: usize) {
        let one_shot = depth == 0 && request.input_length < ONE_SHOT_TOKENS;
        let full = request.input_length + request.output_length >= MAX_INPUT_TOKENS;
        let mut chance = if one_shot { ONE_SHOT_GOES_ON } else { goes_on(depth) };
        if request.input_length >= LONG_TOKENS {
            chance *= LONG_GOES_ON;
        }
        let (roll, gap) = (self.unit(), self.draw_tokens(GAP_MS));
        if roll < chance && !full {
            self.waiting.push(FollowUp {
                due_ms: request.timestamp_ms + gap,
                number: request.line,
                depth: depth + 1,
                input_length: request.input_length,
                output_length: request.output_length,
                hash_ids: request.hash_ids.clone(),
            });
        }
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.advance();
        let due = self.waiting.peek().is_some_and(|next| next.due_ms <= self.timestamp_ms);
        let before = if due { self.waiting.pop() } else { None };
        let ((input_length, hash_ids), depth) = match &before {
            Some(before) => (self.next_prompt(before), before.depth),
            None => (self.first_prompt(), 0),
        };
        let output_length = self.draw_tokens(ANSWER).max(1);
        self.line += 1;
        let request = Request {
            line: self.line,
            timestamp_ms: self.timestamp_ms,
            input_length,
            output_length,
            hash_ids,
        };
        self.plan_follow_up(&request, depth);
        Some(request)
    }
}

#[cfg(test)]
mod tests;
