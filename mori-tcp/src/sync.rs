//! The one module that names the locks of this crate.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
