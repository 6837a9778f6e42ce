#![doc = include_str!("../README.md")]

mod attached;
mod backends;
mod batch;
mod builder;
mod cache;
mod engine;
mod fd;
mod identity;
mod memory;
mod noted;
mod peers;
mod raw;
mod registry;
mod route;
mod session;
mod sync;
mod task;
mod transfer;

pub use attached::BackendInfo;
#[cfg(any(feature = "tcp", feature = "shm", feature = "xgmi", feature = "rdma"))]
pub use backends::exports::*;
pub use batch::BatchItem;
pub use builder::EngineBuilder;
pub use engine::Engine;
pub use fd::StatusFd;
pub use memory::Memory;
// The engine has a Session of its own; backends implement this one.
pub use mori_core::Session as BackendSession;
pub use mori_core::{
    Access, Attachment, Backend, BackendContext, BlockOn, Capabilities, CapabilitySet, Cause, Clock,
    Completer, Completion, EngineDesc, EngineKey, Error, ErrorKind, Gathering, Location, MAX_NOTIFICATION,
    ManualClock, Member, MemoryDesc, MemoryKind, Message, Messenger, Notification, NotificationQueue, Notify,
    Observe, Op, Origin, Outcome, Piece, Recv, Region, RegionId, Repoll, Result, Status, StatusCode, Tag,
    Timeout, TransferId, TransferOptions, TransportBlob, WaitPolicy, merge, scan, wait_all, wait_any,
    wait_first_failure, wait_some,
};
pub use route::{Considered, RouteReport};
pub use session::Session;
