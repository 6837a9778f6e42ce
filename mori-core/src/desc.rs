//! Descriptors: what engines tell each other about themselves and about their memory, and its encoding.
//!
//! Descriptors cross between programs that were not built together, so their encoding is an interface. Each is one
//! MessagePack array. Its first fields are those that peers have always read, in their order; this crate's own
//! follow, and the first of those is the format's version. The rules, for both descriptors:
//!
//! 1. The order never changes within a version of the format; new fields are appended. Neither the first fields nor the
//!    place of the version ever change.
//! 2. A reader skips further fields, of whatever type, and fills missing ones with defaults, except the required ones.
//! 3. Numbers are written in their shortest form and read in any; they are of one byte order by MessagePack's own rules.
//! 4. A reader refuses, as [`ErrorKind::Malformed`](crate::ErrorKind::Malformed) and saying where and why: bytes that are cut off or go on after the
//!    array, values of another type or range, text that is not UTF-8, another version, and whatever is longer than the
//!    limits. It never allocates what a length claims, only what is there.
//! 5. What a transport needs beyond that is its own: one opaque blob for each, with a version of the transport's own.

use std::fmt;

use crate::backend::Capabilities;
use crate::error::Result;
use crate::id::EngineKey;
use crate::memory::{Access, Location, Region};
use crate::pack::{Reader, Writer};

/// The format's version. It changes only when a reader of the earlier one would misunderstand.
const FORMAT: u32 = 1;

/// The longest descriptor that is read, in bytes.
pub const MAX_DESCRIPTOR: usize = 1 << 20;

/// The longest text (name, key, address) in a descriptor that is read, in bytes.
pub const MAX_DESCRIPTOR_TEXT: usize = 1 << 16;

/// The longest blob of one transport that is read, in bytes.
pub const MAX_BLOB: usize = 1 << 16;

/// The largest number of transports in a descriptor that is read.
pub const MAX_TRANSPORTS: u32 = 64;

/// What one transport puts into a descriptor: opaque to everybody but that transport's own backends.
///
/// The bytes may hold keys that give access to memory, so `Debug` prints only how many there are.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct TransportBlob {
    /// The transport's name ([`Backend::name`](crate::Backend::name)).
    pub transport: String,
    /// The version of the bytes' layout.
    pub version: u32,
    /// The bytes, at most [`MAX_BLOB`].
    pub bytes: Vec<u8>,
}

impl TransportBlob {
    /// The name, the version and the bytes.
    const FIELDS: u32 = 3;

    fn write_all(blobs: &[Self], writer: &mut Writer) {
        writer.list(u32::try_from(blobs.len()).unwrap_or(u32::MAX));
        for blob in blobs {
            writer.list(Self::FIELDS);
            writer.text(&blob.transport);
            writer.uint(blob.version);
            writer.bytes(&blob.bytes);
        }
    }

    fn read_all(reader: &mut Reader<'_>) -> Result<Vec<Self>> {
        reader.list("transports", MAX_TRANSPORTS, Self::FIELDS, |reader| {
            Ok(Self {
                transport: reader.text("transports: name", MAX_DESCRIPTOR_TEXT)?.to_owned(),
                version: reader.int("transports: version")?,
                bytes: reader.bytes("transports: bytes", MAX_BLOB)?.to_owned(),
            })
        })
    }

    fn find<'a>(blobs: &'a [Self], transport: &str) -> Option<&'a Self> {
        blobs.iter().find(|blob| blob.transport == transport)
    }
}

impl fmt::Debug for TransportBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportBlob")
            .field("transport", &self.transport)
            .field("version", &self.version)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// What an engine can do, by at least one of its transports, as peers learn it: a set of bits.
///
/// A peer uses it for a clear answer before it connects; what a given transport can do, its backends say
/// ([`Capabilities`]). Bits that this version has no name for are kept.
///
/// ```
/// use mori_core::{Capabilities, CapabilitySet};
/// let set = CapabilitySet::from(Capabilities { notify: true, ..Default::default() });
/// assert!(set.contains(CapabilitySet::NOTIFY));
/// assert!(!set.union(CapabilitySet::CANCEL).contains(CapabilitySet::DEVICE_MEMORY));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CapabilitySet(u64);

impl CapabilitySet {
    /// Nothing is known, as from a peer that does not say.
    pub const NONE: Self = Self(0);
    /// Bit 0: host memory.
    pub const HOST_MEMORY: Self = Self(1);
    /// Bit 1: device memory.
    pub const DEVICE_MEMORY: Self = Self(1 << 1);
    /// Bit 2: transfers can be cancelled.
    pub const CANCEL: Self = Self(1 << 2);
    /// Bit 3: transfers may carry a message for this engine.
    pub const NOTIFY: Self = Self(1 << 3);
    /// Bit 4: lost peers are noticed.
    pub const PEER_LOSS: Self = Self(1 << 4);

    /// The set with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// What either of the two has.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether everything in `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl From<Capabilities> for CapabilitySet {
    fn from(capabilities: Capabilities) -> Self {
        // Without `..`, so that a new capability cannot be forgotten here.
        let Capabilities { host_memory, device_memory, cancel, notify, peer_loss } = capabilities;
        let named = [
            (host_memory, Self::HOST_MEMORY),
            (device_memory, Self::DEVICE_MEMORY),
            (cancel, Self::CANCEL),
            (notify, Self::NOTIFY),
            (peer_loss, Self::PEER_LOSS),
        ];
        named.into_iter().filter(|(has, _)| *has).fold(Self::NONE, |set, (_, bit)| set.union(bit))
    }
}

/// An engine, as its peers know it.
///
/// On the wire: `[key, node_id, hostname, host, port, pid, format version, capabilities, transports]`, where
/// `transports` is a list of `[name, version, bytes]`. The first six are required.
///
/// ```
/// use mori_core::{EngineDesc, EngineKey};
/// let desc = EngineDesc { key: EngineKey::from("prefill-0"), port: 7000, ..Default::default() };
/// assert_eq!(EngineDesc::unpack(&desc.pack())?, desc);
/// # Ok::<(), mori_core::Error>(())
/// ```
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
    /// What the engine can do by at least one of its transports.
    pub capabilities: CapabilitySet,
    /// One blob for each transport of the engine; further addresses are in there.
    pub transports: Vec<TransportBlob>,
}

impl EngineDesc {
    const FIELDS: u32 = 9;
    const REQUIRED: u32 = 6;

    /// The bytes that [`EngineDesc::unpack`] reads, here or at a peer. What is longer than the limits
    /// ([`MAX_DESCRIPTOR`] and its relatives) is written all the same, and refused by the reader.
    #[must_use]
    pub fn pack(&self) -> Vec<u8> {
        let mut writer = Writer::array(Self::FIELDS);
        writer.text(self.key.as_str());
        writer.text(&self.node_id);
        writer.text(&self.hostname);
        writer.text(&self.host);
        writer.uint(self.port);
        writer.uint(self.pid);
        writer.uint(FORMAT);
        writer.uint(self.capabilities.bits());
        TransportBlob::write_all(&self.transports, &mut writer);
        writer.into_vec()
    }

    /// Reads a descriptor of this version of the format, or of a peer that writes fewer or further fields.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`](crate::ErrorKind::Malformed), saying which field is wrong and why.
    pub fn unpack(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::open("engine descriptor", bytes, Self::REQUIRED, MAX_DESCRIPTOR)?;
        let mut desc = Self {
            key: EngineKey::from(reader.text("key", MAX_DESCRIPTOR_TEXT)?),
            node_id: reader.text("node_id", MAX_DESCRIPTOR_TEXT)?.to_owned(),
            hostname: reader.text("hostname", MAX_DESCRIPTOR_TEXT)?.to_owned(),
            host: reader.text("host", MAX_DESCRIPTOR_TEXT)?.to_owned(),
            port: reader.int("port")?,
            pid: reader.int("pid")?,
            ..Self::default()
        };
        check_format(&mut reader)?;
        desc.capabilities = CapabilitySet(reader.or(0, |reader| reader.int("capabilities"))?);
        desc.transports = reader.or(Vec::new(), TransportBlob::read_all)?;
        reader.finish()?;
        Ok(desc)
    }

    /// What the transport of this name needs to reach the engine, if the engine has it.
    #[must_use]
    pub fn blob(&self, transport: &str) -> Option<&TransportBlob> {
        TransportBlob::find(&self.transports, transport)
    }
}

/// What kind of memory a descriptor is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// 0, and any number without a meaning here: memory that nothing is known about, and that no route leads to.
    #[default]
    Unknown,
    /// 1: the host's memory.
    Host,
    /// 2: a device's (GPU's) memory.
    Device,
}

impl MemoryKind {
    /// The number that stands for the kind in descriptors.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Host => 1,
            Self::Device => 2,
        }
    }

    /// The kind with this number; [`MemoryKind::Unknown`] for numbers of later versions.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Host,
            2 => Self::Device,
            _ => Self::Unknown,
        }
    }
}

/// A region, as peers know it.
///
/// On the wire: `[engine_key, id, device_id, device_bus_id, address, size, location (1 host, 2 device), ipc_handle (64
/// bytes), numa_node, ipc_offset, fabric_handle (64 bytes), vpod_id, vpod_ppod_id, fabric_offset, fabric_alloc_size,
/// format version, transports, access (bit 0: peers may read, bit 1: peers may write)]`, where `transports` is a list of
/// `[name, version, bytes]`. The first eight are required.
///
/// The bytes and handles may give access to memory: hand a descriptor only to peers that may have it. `Debug` leaves
/// the handles out.
///
/// ```
/// use mori_core::{Access, EngineKey, MemoryDesc, Region};
/// let region = Region::zeroed(4096, Access::READ_ONLY)?;
/// let desc = MemoryDesc::for_region(&EngineKey::from("prefill-0"), &region);
/// let received = MemoryDesc::unpack(&desc.pack())?;
/// assert_eq!(received, desc);
/// assert_eq!(received.size, 4096);
/// assert!(!received.access.remote_write);
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct MemoryDesc {
    /// The engine that owns the region.
    pub engine_key: EngineKey,
    /// The region's number at that engine.
    pub id: u64,
    /// The device's ordinal in its process; -1 for none or unknown.
    pub device_id: i32,
    /// The device's PCI bus id, as in `0000:c1:00.0`; empty for none or unknown.
    pub device_bus_id: String,
    /// The address of the first byte in the owner's address space.
    pub address: u64,
    /// The length in bytes.
    pub size: u64,
    /// What kind of memory it is.
    pub kind: MemoryKind,
    /// The device runtime's handle of the allocation for processes on the same node; zeros for none.
    pub ipc_handle: [u8; MemoryDesc::HANDLE_LENGTH],
    /// The NUMA node; -1 if unknown.
    pub numa_node: i32,
    /// Where the region begins in the allocation of `ipc_handle`, in bytes.
    pub ipc_offset: u64,
    /// The device runtime's handle of the allocation for other nodes on the same device fabric; zeros for none.
    pub fabric_handle: [u8; MemoryDesc::HANDLE_LENGTH],
    /// The device's virtual pod on that fabric; -1 for none.
    pub vpod_id: i32,
    /// The physical pod that the virtual one is part of; empty for none.
    pub vpod_ppod_id: String,
    /// Where the region begins in the allocation of `fabric_handle`, in bytes.
    pub fabric_offset: u64,
    /// The length of the allocation of `fabric_handle`, in bytes.
    pub fabric_alloc_size: u64,
    /// One blob for each transport that can carry the region.
    pub transports: Vec<TransportBlob>,
    /// What peers may do with the region. The owner checks every request itself; this is for a clear answer early. A peer
    /// that does not say grants both.
    pub access: Access,
}

impl Default for MemoryDesc {
    /// Host memory of no size at no address, on an unknown node, with access for peers.
    fn default() -> Self {
        Self {
            engine_key: EngineKey::default(),
            id: 0,
            device_id: -1,
            device_bus_id: String::new(),
            address: 0,
            size: 0,
            kind: MemoryKind::Host,
            ipc_handle: [0; Self::HANDLE_LENGTH],
            numa_node: -1,
            ipc_offset: 0,
            fabric_handle: [0; Self::HANDLE_LENGTH],
            vpod_id: -1,
            vpod_ppod_id: String::new(),
            fabric_offset: 0,
            fabric_alloc_size: 0,
            transports: Vec::new(),
            access: Access::READ_WRITE,
        }
    }
}

impl MemoryDesc {
    /// The length of a handle of device memory, in bytes.
    pub const HANDLE_LENGTH: usize = 64;

    const FIELDS: u32 = 18;
    const REQUIRED: u32 = 8;

    /// What is known of `region` without any transport; the transports' blobs and handles are added to it.
    #[must_use]
    pub fn for_region(engine_key: &EngineKey, region: &Region) -> Self {
        let mut desc = Self {
            engine_key: engine_key.clone(),
            id: region.id().get(),
            address: region.address() as u64,
            size: region.len() as u64,
            access: region.access(),
            ..Self::default()
        };
        match region.location() {
            Location::Host { numa_node } => {
                desc.numa_node = numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1);
            }
            Location::Device { device_id, bus_id } => {
                desc.kind = MemoryKind::Device;
                desc.device_id = i32::try_from(*device_id).unwrap_or(-1);
                desc.device_bus_id.clone_from(bus_id);
            }
        }
        desc
    }

    /// The bytes that [`MemoryDesc::unpack`] reads, here or at a peer. What is longer than the limits
    /// ([`MAX_DESCRIPTOR`] and its relatives) is written all the same, and refused by the reader.
    #[must_use]
    pub fn pack(&self) -> Vec<u8> {
        let mut writer = Writer::array(Self::FIELDS);
        writer.text(self.engine_key.as_str());
        writer.uint(self.id);
        writer.sint(self.device_id);
        writer.text(&self.device_bus_id);
        writer.uint(self.address);
        writer.uint(self.size);
        writer.uint(self.kind.number());
        writer.bytes(&self.ipc_handle);
        writer.sint(self.numa_node);
        writer.uint(self.ipc_offset);
        writer.bytes(&self.fabric_handle);
        writer.sint(self.vpod_id);
        writer.text(&self.vpod_ppod_id);
        writer.uint(self.fabric_offset);
        writer.uint(self.fabric_alloc_size);
        writer.uint(FORMAT);
        TransportBlob::write_all(&self.transports, &mut writer);
        writer.uint(access_bits(self.access));
        writer.into_vec()
    }

    /// Reads a descriptor of this version of the format, or of a peer that writes fewer or further fields.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`](crate::ErrorKind::Malformed), saying which field is wrong and why.
    pub fn unpack(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::open("memory descriptor", bytes, Self::REQUIRED, MAX_DESCRIPTOR)?;
        let mut desc = Self {
            engine_key: EngineKey::from(reader.text("engine_key", MAX_DESCRIPTOR_TEXT)?),
            id: reader.int("id")?,
            device_id: reader.int("device_id")?,
            device_bus_id: reader.text("device_bus_id", MAX_DESCRIPTOR_TEXT)?.to_owned(),
            address: reader.int("address")?,
            size: reader.int("size")?,
            kind: MemoryKind::from_number(reader.int("location")?),
            ipc_handle: reader.array("ipc_handle")?,
            ..Self::default()
        };
        desc.numa_node = reader.or(-1, |reader| reader.int("numa_node"))?;
        desc.ipc_offset = reader.or(0, |reader| reader.int("ipc_offset"))?;
        desc.fabric_handle = reader.or([0; Self::HANDLE_LENGTH], |reader| reader.array("fabric_handle"))?;
        desc.vpod_id = reader.or(-1, |reader| reader.int("vpod_id"))?;
        desc.vpod_ppod_id =
            reader.or("", |reader| reader.text("vpod_ppod_id", MAX_DESCRIPTOR_TEXT))?.to_owned();
        desc.fabric_offset = reader.or(0, |reader| reader.int("fabric_offset"))?;
        desc.fabric_alloc_size = reader.or(0, |reader| reader.int("fabric_alloc_size"))?;
        check_format(&mut reader)?;
        desc.transports = reader.or(Vec::new(), TransportBlob::read_all)?;
        let granted = reader.or(access_bits(Access::READ_WRITE), |reader| reader.int("access"))?;
        desc.access = Access { remote_read: granted & READ != 0, remote_write: granted & WRITE != 0 };
        reader.finish()?;
        Ok(desc)
    }

    /// What the transport of this name needs to reach the region, if it can carry it.
    #[must_use]
    pub fn blob(&self, transport: &str) -> Option<&TransportBlob> {
        TransportBlob::find(&self.transports, transport)
    }

    /// Where the memory is; `None` if the kind of memory is unknown, or the device has no number.
    #[must_use]
    pub fn location(&self) -> Option<Location> {
        match self.kind {
            MemoryKind::Unknown => None,
            MemoryKind::Host => Some(Location::Host { numa_node: u32::try_from(self.numa_node).ok() }),
            MemoryKind::Device => Some(Location::Device {
                device_id: u32::try_from(self.device_id).ok()?,
                bus_id: self.device_bus_id.clone(),
            }),
        }
    }
}

impl fmt::Debug for MemoryDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDesc")
            .field("engine_key", &self.engine_key)
            .field("id", &self.id)
            .field("address", &format_args!("{:#x}", self.address))
            .field("size", &self.size)
            .field("kind", &self.kind)
            .field("device_id", &self.device_id)
            .field("device_bus_id", &self.device_bus_id)
            .field("numa_node", &self.numa_node)
            .field("access", &self.access)
            .field("transports", &self.transports)
            .finish_non_exhaustive()
    }
}

const READ: u64 = 1;
const WRITE: u64 = 1 << 1;

fn access_bits(access: Access) -> u64 {
    let Access { remote_read, remote_write } = access;
    u64::from(remote_read) * READ + u64::from(remote_write) * WRITE
}

/// The version is checked before what comes after it is looked at. Peers that do not write it end before it.
fn check_format(reader: &mut Reader<'_>) -> Result<()> {
    let format = reader.or(u64::from(FORMAT), |reader| reader.int("format version"))?;
    if format == u64::from(FORMAT) {
        return Ok(());
    }
    Err(reader.refuse(format_args!(
        "version {format} is not readable here, only version {FORMAT} is; use releases with the same version on both sides"
    )))
}
