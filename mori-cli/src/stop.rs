//! A request to stop, from a signal or from the program itself.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A flag that can be waited for. Clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// A flag that nobody has set yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag at the first SIGINT or SIGTERM. A second SIGINT ends the process at once.
    ///
    /// # Errors
    ///
    /// When the handlers or the thread that waits for the signals cannot be set up.
    pub fn watch_signals(&self) -> io::Result<()> {
        let armed = Arc::new(AtomicBool::new(false));
        let status = i32::from(crate::exit::Exit::Interrupted.number());
        // The order matters: a first signal must find the flag unset, and only then set it.
        signal_hook::flag::register_conditional_shutdown(SIGINT, status, Arc::clone(&armed))?;
        signal_hook::flag::register(SIGINT, armed)?;
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let stop = self.clone();
        std::thread::Builder::new().name("mori-signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                stop.ask();
            }
        })?;
        Ok(())
    }

    /// Sets the flag and wakes everybody who waits for it.
    pub fn ask(&self) {
        *self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.changed.notify_all();
    }

    /// Whether the flag is set.
    pub fn asked(&self) -> bool {
        *self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the flag is set, at most for `bound`; says whether it is set.
    pub fn wait(&self, bound: Duration) -> bool {
        let asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, _) = self
            .inner
            .changed
            .wait_timeout_while(asked, bound, |asked| !*asked)
            .unwrap_or_else(PoisonError::into_inner);
        *asked
    }

    /// Waits until the flag is set.
    pub fn wait_for_good(&self) {
        let asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let _asked =
            self.inner.changed.wait_while(asked, |asked| !*asked).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_released_by_the_flag() {
        let stop = Stop::new();
        assert!(!stop.wait(Duration::ZERO));
        let waiter = std::thread::spawn({
            let stop = stop.clone();
            move || stop.wait_for_good()
        });
        stop.ask();
        waiter.join().expect("released");
        assert!(stop.asked());
        assert!(stop.wait(Duration::MAX));
    }

    #[test]
    fn a_signal_sets_the_flag() {
        let stop = Stop::new();
        stop.watch_signals().expect("handlers");
        signal_hook::low_level::raise(SIGTERM).expect("raised");
        assert!(stop.wait(Duration::from_secs(60)));
    }
}
