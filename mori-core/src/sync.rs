//! The only door to locks, condition variables and atomics: `parking_lot` and `std` in the product, `loom` or
//! `shuttle` in the models.
//!
//! The switches are the project's own, `mori_loom` and `mori_shuttle`, so that a downstream `--cfg loom` does not
//! reach this crate. All sides offer the same small interface (guards without poisoning, a wait that takes the guard by
//! reference); everything above is written against that.

#[cfg(any(mori_loom, mori_shuttle))]
mod modelled;

#[cfg(any(mori_loom, mori_shuttle))]
pub(crate) use modelled::*;
#[cfg(not(any(mori_loom, mori_shuttle)))]
pub(crate) use real::*;

#[cfg(not(any(mori_loom, mori_shuttle)))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};
    #[cfg(test)]
    pub(crate) use std::thread;
    use std::time::Instant;

    pub(crate) use parking_lot::{Mutex, MutexGuard};

    /// A condition variable; its waits may end without reason, callers loop.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(guard);
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) {
            self.0.wait_until(guard, deadline);
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// How many sleeps have ended; counted in models only.
        #[cfg(test)]
        #[expect(clippy::unused_self, reason = "the models' side of the interface counts")]
        pub(crate) fn wakes(&self) -> usize {
            0
        }
    }

    /// Tells the processor that this is a busy wait.
    pub(crate) fn spin_loop() {
        std::hint::spin_loop();
    }

    /// Whether the protocol is to be broken in the way of this name: never, outside of the models.
    #[inline(always)]
    pub(crate) const fn mutant(_name: &str) -> bool {
        false
    }

    /// Runs a model as an ordinary test: on real threads, some times over.
    #[cfg(test)]
    pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
        for _ in 0..100 {
            body();
        }
    }
}
