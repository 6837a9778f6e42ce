//! Owners of the library's objects. The protocol is in the module above.

mod completion;
mod context;
mod device;
mod domain;
mod numbers;
mod queue;
mod requests;
mod states;

use std::sync::atomic::{AtomicU64, Ordering};

pub use completion::{CompletionChannel, CompletionQueue, WorkCompletion};
pub use context::{AsyncEvent, AsyncEventSource, Context, DeviceAttributes, Gid, GidEntry, PortAttributes};
pub use device::{Device, Verbs};
pub use domain::{MemoryRegion, ProtectionDomain, RegionAccess};
pub use numbers::{
    AsyncEventKind, GidKind, LinkLayer, Mtu, NodeType, Opcode, PortState, QueuePairState, Transport, WcStatus,
};
pub use queue::{PostError, QueuePair, QueuePairCapacities, QueuePairOptions};
pub use requests::{RecvList, RemoteAddress, SendFlags, SendList, Sge};
pub use states::{InitAttributes, Path, Route, RtrAttributes, RtsAttributes};

/// A pointer of the library's that is not null. What it points to may be used by every thread: the library locks for
/// itself.
struct Object<T>(std::ptr::NonNull<T>);

// SAFETY: verbs objects belong to no thread, and every call of the library's may be made by any.
unsafe impl<T> Send for Object<T> {}
// SAFETY: the library's calls may be made by several threads at once; nothing here reads or writes through the pointer but
// fields that never change after the object's creation.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// `None` for null.
    fn new(pointer: *mut T) -> Option<Self> {
        std::ptr::NonNull::new(pointer).map(Self)
    }

    fn pointer(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> std::fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A number for a queue that no other queue of this process has, has had or will have. Never zero.
fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A number as the library takes it; what is beyond its range becomes the largest, which the library refuses.
fn clamped(number: u32) -> std::ffi::c_int {
    std::ffi::c_int::try_from(number).unwrap_or(std::ffi::c_int::MAX)
}

/// A number of the library's that is a count.
fn count(number: std::ffi::c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Logs that something could not be destroyed.
fn not_destroyed(what: &'static str, result: Result<(), super::error::Failure>) {
    if let Err(failure) = result {
        tracing::warn!(%failure, "a {what} could not be destroyed and stays until the process ends");
    }
}

/// Lets reads of a descriptor of the library's return at once when there is nothing to read.
fn unblock(descriptor: std::os::fd::BorrowedFd<'_>) -> Result<(), super::error::VerbsError> {
    let flags = rustix::fs::fcntl_getfl(descriptor);
    let set =
        flags.and_then(|flags| rustix::fs::fcntl_setfl(descriptor, flags | rustix::fs::OFlags::NONBLOCK));
    set.map_err(|errno| super::error::Failure::new("fcntl", errno.raw_os_error()).into())
}
