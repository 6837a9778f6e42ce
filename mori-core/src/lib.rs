#![doc = include_str!("../README.md")]

mod backend;
mod desc;
mod error;
mod id;
mod memory;
#[cfg(test)]
mod models;
mod notify;
pub mod pack;
#[cfg(feature = "secret")]
mod secret;
mod status;
mod sync;
mod time;
mod transfer;
mod wait;

pub use backend::{Attachment, Backend, BackendContext, BlockOn, Capabilities, Messenger, Session};
pub use desc::{
    CapabilitySet, EngineDesc, MAX_BLOB, MAX_DESCRIPTOR, MAX_DESCRIPTOR_TEXT, MAX_TRANSPORTS, MemoryDesc,
    MemoryKind, TransportBlob,
};
pub use error::{Cause, Error, ErrorKind, Result};
pub use id::{EngineKey, RegionId, Tag, TransferId};
pub use memory::{Access, Location, Pin, Region, Tenant};
pub use notify::{Message, Notification, NotificationQueue, Recv};
#[cfg(feature = "secret")]
pub use secret::{Nonce, Secret, Side};
pub use status::{Completer, Event, Observe, Origin, Status, StatusCode, Transition, Update, transition};
pub use time::{Clock, Deadline, ManualClock, Timeout};
pub use transfer::{MAX_NOTIFICATION, Notify, Op, Piece, TransferOptions, check, merge};
pub use wait::{
    Completion, Gathering, Member, Outcome, Repoll, WaitPolicy, scan, wait_all, wait_any, wait_first_failure,
    wait_some,
};
