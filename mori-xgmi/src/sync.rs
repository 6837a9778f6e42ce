//! Locks without poisoning: a thread that panics while it holds one leaves consistent data, because every change below
//! such a lock is a single insertion, removal or assignment.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
