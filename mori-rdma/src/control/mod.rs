//! The control plane: what engines tell each other over TCP so that their queue pairs can meet.
//!
//! It knows nothing of verbs. The data path implements [`Service`] and asks through [`Link`]; everything here is numbers and
//! names. One thread watches every socket, both the connections that peers have made to this engine and the links that it has
//! made to peers; calls of the service run on a few threads of their own, since they may block.
//!
//! # Rules
//!
//! 1. Everything that comes in is untrusted: a frame's length is checked before its body is taken in, every body is decoded
//!    with limits, every connection has a deadline for its handshake and for each frame that it has begun.
//! 2. No peer delays another: reading, decoding and writing happen in bounded turns; of one connection at most one call of
//!    the service runs at a time, of one address at most half of those that may run, and a connection that asks faster than
//!    it is answered is not read meanwhile.
//! 3. Calls for one connection run in the order of its messages, and [`Service::closed`] comes last.
//! 4. With a secret configured, nothing is spoken but the own protocol, and nothing is answered before the proof.
//! 5. A link's close is the sign that the peer's process is gone. A peer whose process is stopped keeps its links, since
//!    its system goes on to acknowledge; a peer whose host is gone or cut off loses them within the peer timeout.
//!
//! # Two protocols
//!
//! Existing peers speak frames of one byte type and a 32-bit big-endian length, with MessagePack arrays as bodies
//! ([`message`]): a request and its answer, one at a time. The own protocol has the same frames, other types, a handshake
//! with versions and the proof of a secret, numbered requests, and answers that say why something failed. It begins with a
//! type that existing peers refuse; then the link speaks theirs, unless a secret is configured or the peer is known to speak
//! the own one.
//!
//! A connection of an existing peer may end after each exchange, so its end means nothing by itself. A link to such a peer
//! connects anew then; it is lost when that fails.

mod accepted;
mod dialed;
mod handshake;
mod link;
mod message;
mod pool;
mod server;
mod stream;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

pub(crate) use link::Link;
pub(crate) use server::{Server, Target};

use mori_core::{EngineKey, Error, MemoryKind, Result, Secret};

/// What can be configured of the control plane.
#[derive(Clone, Debug)]
pub(crate) struct ControlConfig {
    /// Where to listen: `address:port` or `name:port`, port 0 for a free one.
    pub(crate) bind: String,
    /// What peers must know, in both directions.
    pub(crate) secret: Option<Secret>,
    /// After this long without a sign of life from its system, a peer is lost. At least 10 ms.
    pub(crate) peer_timeout: Duration,
    /// The longest time that a handshake, and a frame once it has begun, may take.
    pub(crate) frame_timeout: Duration,
    /// The most connections that are served at a time, and the most of one address.
    pub(crate) max_connections: (usize, usize),
    /// The most connections that have not completed the handshake; when there is one more, the oldest ends.
    pub(crate) max_greeting: usize,
    /// The most threads for calls of the service. They end when there is nothing to do.
    pub(crate) workers: usize,
    /// How long an address that speaks only the protocol of existing peers is remembered.
    pub(crate) remember_legacy: Duration,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            bind: "127.0.0.1:0".into(),
            secret: None,
            peer_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(5),
            max_connections: (4096, 1024),
            max_greeting: 512,
            workers: 8,
            remember_legacy: Duration::from_secs(600),
        }
    }
}

/// Who an engine is: its name and its incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: EngineKey,
    pub(crate) instance: [u8; 16],
}

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The own one: incarnations, retiring, failure notes.
    Own,
    /// That of existing peers: nothing but endpoints and regions.
    Legacy,
}

/// The engine at the other end. With [`Protocol::Legacy`] the key is what the peer says without proof, and there is no
/// incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) key: EngineKey,
    pub(crate) instance: Option<[u8; 16]>,
    pub(crate) address: IpAddr,
}

impl Peer {
    /// Which protocol it speaks here.
    pub(crate) fn protocol(&self) -> Protocol {
        if self.instance.is_some() { Protocol::Own } else { Protocol::Legacy }
    }
}

/// The number of a connection that a peer has made to this engine; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// The number of a link that this engine has made to a peer; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId(pub(crate) u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One end of a queue pair, as the other end must know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The first packet sequence number that it sends.
    pub(crate) psn: u32,
    /// The queue pair's number; unique on its device only.
    pub(crate) qpn: u32,
    pub(crate) port: u8,
    /// Zero on Ethernet.
    pub(crate) lid: u16,
    pub(crate) gid: [u8; 16],
    pub(crate) mac: [u8; 6],
    /// The path MTU as verbs number it, 1 (256 bytes) to 5 (4096). Zero: unknown, as with existing peers.
    pub(crate) mtu: u8,
    /// How many reads it serves at a time. Zero: unknown, as with existing peers.
    pub(crate) rd_atomic: u8,
}

/// Where the memory of one side of a transfer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topo {
    /// The GPU's number, -1 for none.
    pub(crate) device: i32,
    pub(crate) location: MemoryKind,
    /// The NUMA node, -1 if unknown.
    pub(crate) numa: i32,
}

/// What an initiator tells a target of a lane that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointRequest {
    /// The initiator's side.
    pub(crate) local: Topo,
    /// The target's side.
    pub(crate) remote: Topo,
    /// The index of the target's device.
    pub(crate) device: u32,
    /// The initiator's end.
    pub(crate) endpoint: Endpoint,
    /// -1 for none.
    pub(crate) nic_rank: i32,
    /// -1 for none.
    pub(crate) rail: i32,
    /// The initiator's own number of the lane, unique on its link; retiring and notes name the lane by it. Zero with
    /// existing peers.
    pub(crate) lane: u64,
}

/// How to reach a region through one device.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RegionKeys {
    pub(crate) address: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) length: u64,
}

impl fmt::Debug for RegionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys give access to memory.
        f.debug_struct("RegionKeys")
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// A transfer with a message for its target has failed, and its lane cannot tell the target any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureNote {
    pub(crate) lane: u64,
    /// The transfer's number at the initiator.
    pub(crate) transfer: u64,
    pub(crate) tag: u64,
    /// The submitter's message, at most [`mori_core::MAX_NOTIFICATION`] bytes.
    pub(crate) message: Vec<u8>,
    /// Why the transfer failed. Its kind and its text are carried, the text cut to 2 KiB.
    pub(crate) error: Error,
}

/// What the control plane asks of the data path.
///
/// Calls come from the control plane's threads. Those about a connection come one at a time and in the order of its messages;
/// those about different connections come at the same time. They may block, but with a bound: about a second is fine. A panic
/// is caught and answered as a failure. An error's kind and text reach the peer that asked, if it speaks the own protocol;
/// one that does not finds its connection closed.
///
/// The control plane holds the service weakly. When it is gone, requests are refused.
pub(crate) trait Service: Send + Sync {
    /// A peer wants to be connected with: makes the passive end for its endpoint, ready to receive.
    fn register_endpoint(
        &self,
        connection: ConnectionId,
        peer: &Peer,
        request: &EndpointRequest,
    ) -> Result<Endpoint>;

    /// A peer wants to know the keys of region `memory` for `device`, an index among this engine's devices.
    fn region(&self, peer: &Peer, device: u32, memory: u64) -> Result<RegionKeys>;

    /// A peer wants the passive end of one of its lanes to be quiet: when this returns, no byte that came over it lands any
    /// more. A lane that is not known (any more) is quiet. Own protocol only.
    fn retire_endpoint(&self, connection: ConnectionId, lane: u64) -> Result<()>;

    /// A peer's transfer has failed, and its target is to learn of it. Own protocol only.
    fn note_failure(&self, connection: ConnectionId, peer: &Peer, note: FailureNote);

    /// The connection has ended; the last call for it. With the own protocol, drop the passive ends that were made over it.
    /// With [`Protocol::Legacy`] it says nothing about the process, which may connect for each exchange; what was made over
    /// it stays until the engine is removed, replaced or registers again. Called only for connections on which something was
    /// asked.
    fn closed(&self, connection: ConnectionId, peer: &Peer);

    /// Initiator's side: the link has ended, and this side has not closed it. Called once. It may come before the caller of
    /// [`Server::connect`] has stored the link.
    fn link_lost(&self, link: LinkId, cause: &Error);
}
