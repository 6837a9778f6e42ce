//! Descriptors (placeholder while the encoding is written).

use crate::id::EngineKey;

/// What one transport puts into a descriptor: opaque to everybody but that transport's own backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransportBlob {
    /// The transport's name ([`Backend::name`](crate::Backend::name)).
    pub transport: String,
    /// The version of the bytes' layout.
    pub version: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// An engine, as its peers know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineDesc {
    /// The engine's name.
    pub key: EngineKey,
    /// The node's name; engines on one host share it.
    pub node_id: String,
    /// The host's name.
    pub hostname: String,
    /// The address that peers connect to.
    pub host: String,
    /// The port that peers connect to; zero if the engine does not listen.
    pub port: u16,
    /// The process's number.
    pub pid: u32,
    /// One blob for each transport of the engine.
    pub transports: Vec<TransportBlob>,
}

/// A region, as peers know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryDesc {
    /// The engine that owns the region.
    pub engine_key: EngineKey,
    /// The region's number at that engine.
    pub id: u64,
    /// The length in bytes.
    pub size: u64,
    /// One blob for each transport that can carry it.
    pub transports: Vec<TransportBlob>,
}
