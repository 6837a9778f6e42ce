//! Time as the replay sees it: a clock from the start of the run, and waiting that a stop cuts short.

use std::time::{Duration, Instant};

use mori_engine::Clock;

use crate::stop::Stop;

/// The clock of a run. A trait, so that tests of the replay need no real time.
pub trait Pace {
    /// Time since the start of the run.
    fn now(&self) -> Duration;

    /// Waits until `point` has come, or somebody asks to stop; says whether to stop.
    fn wait_until(&self, point: Duration) -> bool;

    /// Whether somebody asked to stop.
    fn stopped(&self) -> bool;
}

/// The real clock.
#[derive(Debug)]
pub struct RealPace {
    clock: Clock,
    start: Instant,
    stop: Stop,
}

impl RealPace {
    /// A clock that starts now and listens to `stop`.
    pub fn new(stop: Stop) -> Self {
        let clock = Clock::system();
        Self { start: clock.now(), clock, stop }
    }
}

impl Pace for RealPace {
    fn now(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.start)
    }

    fn wait_until(&self, point: Duration) -> bool {
        self.stop.wait(point.saturating_sub(self.now()))
    }

    fn stopped(&self) -> bool {
        self.stop.asked()
    }
}
