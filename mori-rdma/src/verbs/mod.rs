//! RDMA verbs behind a safe interface: the only module of this crate with `unsafe` code, and the only one that names the
//! library.
//!
//! # Layers
//!
//! `sys` has the library's types and the table of its functions, `loader` opens the library at run time, and what this
//! module exports are owners of the library's objects with safe methods. Code above names no symbol and no raw pointer.
//!
//! # Protocol
//!
//! 1. The library is opened at run time and never unmapped again. Every owner holds the table of its functions, directly or
//!    through its parents.
//! 2. Owners hold their parents: a queue pair its protection domain and its completion queues, a completion queue its
//!    channel, all of them the context, the context the device list. So nothing is destroyed before what was made from it,
//!    in whatever order the handles are dropped. [`Context`], [`ProtectionDomain`], [`CompletionChannel`] and
//!    [`CompletionQueue`] are handles, clones stand for the same object; [`MemoryRegion`] and [`QueuePair`] have one owner,
//!    and dropping it destroys them at once.
//! 3. Dropping never panics, and waits at most for a thread that is just taking an event of the same queue. What cannot be
//!    destroyed is logged. Memory whose
//!    registration cannot be taken back is never given back either, because the device may still write to it.
//! 4. Memory is owned by its registration: a [`MemoryRegion`] holds a handle of its [`Region`](mori_core::Region), whose bytes
//!    stay allocated, and unborrowed, while a handle lives. A work request names memory by numbers (address, length,
//!    key), and the device checks them against its registrations when it carries the request out. So a wrong number makes a
//!    failed completion or reaches another registered region, never memory that is not there for peers. The one exception,
//!    inline data, which the library reads from the address itself, is taken as a slice and copied.
//! 5. Events are acknowledged where they are taken, so that destroying a queue never waits for somebody who forgot. An event
//!    names its queue by a number of this module's ([`QueuePair::id`], [`CompletionQueue::id`]), unique in the process and
//!    never used again, so that equal queue pair numbers of two devices and late events confuse nobody.
//! 6. Every method may be called from several threads at once. None of them waits, but those that talk to the kernel
//!    (creating, changing, destroying, asking) take as long as the kernel does, which for a device that is gone or a
//!    neighbour that does not answer may be a second.
//!
//! # Example
//!
//! ```
//! use mori_core::{Access, Region};
//! use mori_rdma::verbs::{RegionAccess, Verbs};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let verbs = match Verbs::load(None) {
//!     Ok(verbs) => verbs,
//!     Err(error) => {
//!         println!("{error}");
//!         return Ok(());
//!     }
//! };
//! for device in verbs.devices()? {
//!     let context = device.open()?;
//!     let domain = context.protection_domain()?;
//!     let memory = domain.register(&Region::zeroed(4096, Access::READ_WRITE)?, RegionAccess::REMOTE)?;
//!     println!("{}: remote key {:#x}", device.name(), memory.remote_key());
//! }
//! # Ok(())
//! # }
//! ```

mod error;
#[cfg(all(test, feature = "ibverbs"))]
mod layout;
mod loader;
mod safe;
mod sys;

pub use error::{Failure, VerbsError};
pub use loader::VARIABLE as LIBRARY_VARIABLE;
pub use safe::{
    AsyncEvent, AsyncEventKind, AsyncEventSource, CompletionChannel, CompletionQueue, Context, Device,
    DeviceAttributes, Gid, GidEntry, GidKind, InitAttributes, LinkLayer, MemoryRegion, Mtu, NodeType, Opcode,
    Path, PortAttributes, PortState, PostError, ProtectionDomain, QueuePair, QueuePairCapacities,
    QueuePairOptions, QueuePairState, RecvList, RegionAccess, RemoteAddress, Route, RtrAttributes,
    RtsAttributes, SendFlags, SendList, Sge, Transport, Verbs, WcStatus, WorkCompletion,
};
