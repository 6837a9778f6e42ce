//! The only door to locks, condition variables and atomics: `parking_lot` and `std` in the product, `loom`
//! in the models.
//!
//! The switch is the project's own cfg, `mori_loom`, so that a downstream `--cfg loom` does not reach this
//! crate. Both sides offer the same small interface (guards without poisoning, a wait that takes the guard by
//! reference); everything above is written against that.

#[cfg(not(mori_loom))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};
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
    }

    /// Tells the processor that this is a busy wait.
    pub(crate) fn spin_loop() {
        std::hint::spin_loop();
    }
}

#[cfg(mori_loom)]
mod real {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    pub(crate) use loom::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

    /// loom's mutex behind the product's interface: no poisoning.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// The guard is an `Option` because loom's condition variable takes it by value.
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(|poison| poison.into_inner())))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            match &self.0 {
                Some(guard) => guard,
                None => unreachable!("a guard is only empty inside a wait"),
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match &mut self.0 {
                Some(guard) => guard,
                None => unreachable!("a guard is only empty inside a wait"),
            }
        }
    }

    /// loom's condition variable behind the product's interface.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = guard.0.take().map(|inner| match self.0.wait(inner) {
                Ok(inner) => inner,
                Err(poison) => poison.into_inner(),
            });
        }

        /// loom's timed wait never times out: in a model a manual clock ends the wait, under the lock.
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) {
            self.wait(guard);
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    pub(crate) fn spin_loop() {
        loom::thread::yield_now();
    }
}

pub(crate) use real::*;
