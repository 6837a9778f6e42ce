//! What a person sees while the program works: a progress bar on a terminal, and a line for each failure.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::replay::Watcher;
use crate::tally::{FailedRequest, Tally, block_list};

/// Writes to standard error: the bar only on a terminal, the lines anywhere.
#[derive(Debug)]
pub struct Screen {
    bar: ProgressBar,
}

impl Screen {
    /// A screen for a replay of so many requests, if that is known.
    pub fn new(requests: Option<u64>) -> Self {
        Self::counting(requests, "requests")
    }

    /// A screen for so many things of one kind, if that is known.
    pub fn counting(count: Option<u64>, things: &str) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(count, ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        let template = match count {
            Some(_) => format!("{{bar:30}} {{pos}}/{{len}} {things}  {{elapsed}}  {{msg}}"),
            None => format!("{{spinner}} {{pos}} {things}  {{elapsed}}  {{msg}}"),
        };
        // The templates are fixed and valid; without one the bar has its own.
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Self { bar }
    }

    /// Writes a line above the bar.
    pub fn line(&self, text: &str) {
        // Nobody may be reading; that is no reason to end a replay.
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr().lock(), "mori: {text}");
        });
    }

    /// Says what is being done.
    pub fn now(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Counts one more as done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watcher for Screen {
    fn request_over(&mut self, tally: &Tally) {
        self.bar.inc(1);
        if !self.bar.is_hidden() {
            let message = format!(
                "{:.2} GB/s, {} blocks fetched, {} reused, {} failed",
                tally.gigabytes_per_second(),
                tally.blocks_fetched,
                tally.blocks_reused,
                tally.blocks_failed()
            );
            self.bar.set_message(message);
        }
    }

    fn failed(&mut self, request: &FailedRequest) {
        for line in request.to_string().lines() {
            self.line(line);
        }
    }

    fn peer_lost(&mut self, peer: &str, request: u64, blocks: &[u64], message: &str) {
        let blocks = block_list(blocks);
        self.line(&format!("lost the peer {peer} in request {request} with the blocks {blocks}: {message}"));
    }

    fn reconnected(&mut self, peer: &str) {
        self.line(&format!("reached the peer {peer} again; reading what is missing"));
    }
}
