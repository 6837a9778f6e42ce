//! What the backends of peers tell each other in descriptors, and its encoding.
//!
//! # Layout, version 1
//!
//! Numbers are little-endian; a text is its length in 16 bits and its bytes. The last eight bytes of each blob are a checksum
//! of those before it, so that a damaged blob is refused instead of leading to other bytes. It keeps out no attacker:
//! whoever can open a handle can read and write the whole allocation behind it.
//!
//! - engine: incarnation (16), process (32 bits), lease folder (text);
//! - memory: incarnation (16), key (16), access (8 bits), device (32 bits), bus id (text), offset, size (64 bits each), then
//!   either 0, or 1 and the allocation's number, its length (64 bits each) and its handle (64 bytes).
//!
//! An *incarnation* is random and names one attachment of one backend; a *key* is random and names one registration.

use mori_core::{Access, Error, ErrorKind, Result, TransportBlob};

use crate::hip::Handle;

/// The transport's name.
pub(crate) const NAME: &str = "xgmi";

/// The layout's version.
const VERSION: u32 = 1;

/// 128 random bits.
pub(crate) type Key = [u8; 16];

/// A fresh key.
pub(crate) fn random_key() -> Result<Key> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("the system has no randomness: {error}"))
    })?;
    Ok(key)
}

/// A key as text.
pub(crate) fn hex(key: &Key) -> String {
    use std::fmt::Write;
    key.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// How to reach an engine's backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineBlob {
    pub(crate) incarnation: Key,
    pub(crate) process: u32,
    pub(crate) leases: String,
}

/// An allocation as other processes can open it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Shared {
    /// Unique in the owner's incarnation.
    pub(crate) number: u64,
    pub(crate) length: u64,
    pub(crate) handle: Handle,
}

/// How to reach a region.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct MemoryBlob {
    pub(crate) incarnation: Key,
    pub(crate) key: Key,
    pub(crate) access: Access,
    /// The owner's own number of the device.
    pub(crate) device: u32,
    pub(crate) bus_id: String,
    /// Where the region starts in its allocation.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) shared: Option<Shared>,
}

impl EngineBlob {
    pub(crate) fn pack(&self) -> TransportBlob {
        let mut out = Writer::default();
        out.bytes(&self.incarnation);
        out.bytes(&self.process.to_le_bytes());
        out.text(&self.leases);
        out.finish()
    }

    pub(crate) fn unpack(blob: &TransportBlob) -> Result<Self> {
        let mut from = Reader::open("engine", blob)?;
        let read = Self { incarnation: from.array()?, process: from.u32()?, leases: from.text()? };
        from.finish()?;
        Ok(read)
    }
}

impl MemoryBlob {
    pub(crate) fn pack(&self) -> TransportBlob {
        let mut out = Writer::default();
        out.bytes(&self.incarnation);
        out.bytes(&self.key);
        out.bytes(&[u8::from(self.access.remote_read) | u8::from(self.access.remote_write) << 1]);
        out.bytes(&self.device.to_le_bytes());
        out.text(&self.bus_id);
        out.bytes(&self.offset.to_le_bytes());
        out.bytes(&self.size.to_le_bytes());
        match &self.shared {
            None => out.bytes(&[0]),
            Some(shared) => {
                out.bytes(&[1]);
                out.bytes(&shared.number.to_le_bytes());
                out.bytes(&shared.length.to_le_bytes());
                out.bytes(&shared.handle);
            }
        }
        out.finish()
    }

    pub(crate) fn unpack(blob: &TransportBlob) -> Result<Self> {
        let mut from = Reader::open("memory", blob)?;
        let (incarnation, key) = (from.array()?, from.array()?);
        let [access] = from.array()?;
        let (device, bus_id, offset, size) = (from.u32()?, from.text()?, from.u64()?, from.u64()?);
        let shared = match from.array()? {
            [0] => None,
            [1] => Some(Shared { number: from.u64()?, length: from.u64()?, handle: from.array()? }),
            [other] => {
                return Err(from.refuse(&format!("{other} where 0 or 1 says whether there is a handle")));
            }
        };
        let end = offset.checked_add(size);
        if shared.as_ref().is_some_and(|shared| end.is_none_or(|end| end > shared.length)) {
            return Err(from.refuse("a region that reaches past the end of its allocation"));
        }
        from.finish()?;
        let access = Access { remote_read: access & 1 != 0, remote_write: access & 2 != 0 };
        Ok(Self { incarnation, key, access, device, bus_id, offset, size, shared })
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Longer texts are cut; folders and bus ids are short.
    fn text(&mut self, text: &str) {
        let bytes = text.as_bytes().get(..usize::from(u16::MAX)).unwrap_or(text.as_bytes());
        self.bytes(&u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes());
        self.bytes(bytes);
    }

    fn finish(mut self) -> TransportBlob {
        let sum = checksum(&self.0);
        self.bytes(&sum.to_le_bytes());
        TransportBlob { transport: NAME.to_owned(), version: VERSION, bytes: self.0 }
    }
}

/// FNV-1a over 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(what: &'static str, blob: &'a TransportBlob) -> Result<Self> {
        let closed = Self { what, rest: &[] };
        if blob.version != VERSION {
            return Err(closed.refuse(&format!(
                "version {}, while only version {VERSION} is readable here; use releases with the same version on both sides",
                blob.version
            )));
        }
        let Some((rest, sum)) = blob.bytes.split_last_chunk::<8>() else {
            return Err(closed.refuse("fewer bytes than a checksum has"));
        };
        if checksum(rest) != u64::from_le_bytes(*sum) {
            return Err(closed.refuse("a wrong checksum: it was cut off or changed on the way"));
        }
        Ok(Self { what, rest })
    }

    fn refuse(&self, found: &str) -> Error {
        Error::new(ErrorKind::Malformed, format!("the peer's {NAME} {} blob has {found}", self.what))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk().ok_or_else(|| self.refuse("too few bytes"))?;
        self.rest = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = usize::from(self.array().map(u16::from_le_bytes)?);
        let (text, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.refuse("too few bytes"))?;
        self.rest = rest;
        let text = std::str::from_utf8(text).map_err(|_| self.refuse("a text that is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn finish(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.refuse("bytes after its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> MemoryBlob {
        MemoryBlob {
            incarnation: [1; 16],
            key: [2; 16],
            access: Access::READ_ONLY,
            device: 3,
            bus_id: "0000:c1:00.0".to_owned(),
            offset: 4096,
            size: 100,
            shared: Some(Shared { number: 9, length: 8192, handle: [7; 64] }),
        }
    }

    #[test]
    fn blobs_come_back_as_they_were() {
        let engine = EngineBlob { incarnation: [5; 16], process: 77, leases: "somewhere".to_owned() };
        assert_eq!(EngineBlob::unpack(&engine.pack()).unwrap(), engine);
        for memory in [memory(), MemoryBlob { shared: None, access: Access::LOCAL, ..memory() }] {
            assert!(MemoryBlob::unpack(&memory.pack()).unwrap() == memory);
        }
    }

    #[test]
    fn damage_is_malformed_wherever_it_is() {
        let good = memory().pack();
        for length in 0..good.bytes.len() {
            let cut = TransportBlob { bytes: good.bytes[..length].to_vec(), ..good.clone() };
            assert_eq!(MemoryBlob::unpack(&cut).err().unwrap().kind(), ErrorKind::Malformed);
            for mask in [1, 0x80, 0xff] {
                let mut flipped = good.clone();
                flipped.bytes[length] ^= mask;
                assert_eq!(MemoryBlob::unpack(&flipped).err().unwrap().kind(), ErrorKind::Malformed);
            }
        }
        let later = TransportBlob { version: 2, ..good };
        assert!(MemoryBlob::unpack(&later).err().unwrap().message().contains("version 2"));
    }

    #[test]
    fn a_region_beyond_its_allocation_is_malformed() {
        for (offset, size) in [(8192, 1), (u64::MAX, 100), (0, 8193)] {
            let blob = MemoryBlob { offset, size, ..memory() }.pack();
            assert_eq!(MemoryBlob::unpack(&blob).err().unwrap().kind(), ErrorKind::Malformed);
        }
    }
}
