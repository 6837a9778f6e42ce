//! The models' side of the door: `loom`'s or `shuttle`'s types behind the product's interface.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::time::Instant;

#[cfg(mori_loom)]
use loom as checker;
#[cfg(not(mori_loom))]
use shuttle as checker;

pub(crate) use checker::sync::atomic::{AtomicIsize, AtomicU32, Ordering};
#[cfg(test)]
pub(crate) use checker::thread;

/// The checker's mutex without poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(checker::sync::Mutex<T>);

/// The guard is an `Option` because the checker's condition variable takes it by value.
pub(crate) struct MutexGuard<'a, T>(Option<checker::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(checker::sync::Mutex::new(value))
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

/// The checker's condition variable, counting its wakes.
#[derive(Debug)]
pub(crate) struct Condvar {
    condvar: checker::sync::Condvar,
    // std's counter on purpose: it is no part of what is modelled.
    wakes: std::sync::atomic::AtomicUsize,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self { condvar: checker::sync::Condvar::new(), wakes: std::sync::atomic::AtomicUsize::new(0) }
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 = guard.0.take().map(|inner| match self.condvar.wait(inner) {
            Ok(inner) => inner,
            Err(poison) => poison.into_inner(),
        });
        self.wakes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// The checkers' timed waits never time out: in a model a manual clock ends the wait, under the lock.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) {
        self.wait(guard);
    }

    pub(crate) fn notify_all(&self) {
        if mutant("wakes_one_waiter") {
            self.condvar.notify_one();
        } else {
            self.condvar.notify_all();
        }
    }

    /// How many sleeps have ended.
    #[cfg(test)]
    pub(crate) fn wakes(&self) -> usize {
        self.wakes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

pub(crate) fn spin_loop() {
    checker::thread::yield_now();
}

/// Whether the protocol is to be broken in the way of this name, for a run that must fail.
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("MORI_MUTANT").ok()).as_deref() == Some(name)
}

/// Runs a model under every schedule that differs, with a bound on forced changes of thread.
#[cfg(all(test, mori_loom))]
pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(4));
    builder.check(body);
}

/// Runs a model under random schedules.
#[cfg(all(test, not(mori_loom)))]
pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(body, 2000);
}
