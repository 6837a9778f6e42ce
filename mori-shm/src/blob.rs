//! What descriptors carry for this transport: where an engine listens, and the keys of its regions.

use mori_core::{Error, ErrorKind, Result, TransportBlob};

use crate::wire::{Fields, malformed};

/// The transport's name.
pub(crate) const NAME: &str = "shm";
/// The version of both blobs.
const VERSION: u32 = 1;

/// What an engine descriptor carries: instance (16 bytes), boot id (16), the random part of the socket's name (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineBlob {
    pub(crate) instance: [u8; 16],
    /// The host, and the time since its last start.
    pub(crate) boot: [u8; 16],
    pub(crate) name: [u8; 16],
}

impl EngineBlob {
    pub(crate) fn encode(&self) -> TransportBlob {
        blob([self.instance, self.boot, self.name].concat())
    }

    pub(crate) fn decode(blob: &TransportBlob) -> Result<Self> {
        let mut fields = open(blob)?;
        let mut read = || -> Option<Self> {
            let blob = Self { instance: fields.bytes()?, boot: fields.bytes()?, name: fields.bytes()? };
            fields.0.is_empty().then_some(blob)
        };
        read().ok_or_else(|| malformed("an engine descriptor's shm blob of the wrong length"))
    }

    /// The socket's name in the abstract namespace.
    pub(crate) fn socket(&self) -> Vec<u8> {
        let mut name = b"mori-shm-".to_vec();
        for byte in self.name {
            let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
            name.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        name
    }
}

/// What a memory descriptor carries: the region's key (16 bytes), instance (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBlob {
    pub(crate) key: u128,
    pub(crate) instance: [u8; 16],
}

impl MemoryBlob {
    pub(crate) fn encode(&self) -> TransportBlob {
        blob([self.key.to_le_bytes(), self.instance].concat())
    }

    pub(crate) fn decode(blob: &TransportBlob) -> Result<Self> {
        let mut fields = open(blob)?;
        let mut read = || -> Option<Self> {
            let blob = Self { key: u128::from_le_bytes(fields.bytes()?), instance: fields.bytes()? };
            fields.0.is_empty().then_some(blob)
        };
        read().ok_or_else(|| malformed("a memory descriptor's shm blob of the wrong length"))
    }
}

fn blob(bytes: Vec<u8>) -> TransportBlob {
    TransportBlob { transport: NAME.into(), version: VERSION, bytes }
}

fn open(blob: &TransportBlob) -> Result<Fields<'_>> {
    if blob.version == VERSION {
        return Ok(Fields(&blob.bytes));
    }
    Err(malformed(format!("an shm blob of version {}, where {VERSION} is understood", blob.version)))
}

/// The blob of this transport among several.
pub(crate) fn find(blobs: &[TransportBlob]) -> Result<&TransportBlob> {
    blobs.iter().find(|blob| blob.transport == NAME).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "the peer's descriptor has no shm part; enable the shm backend there")
    })
}

/// This host's boot id, 16 bytes.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if the system does not say.
pub(crate) fn boot_id() -> Result<[u8; 16]> {
    const PLACE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PLACE)
        .map_err(|error| Error::io(ErrorKind::Unavailable, format!("cannot read {PLACE}"), &error))?;
    let text: Vec<char> = text.trim().chars().filter(|letter| *letter != '-').collect();
    let mut id = [0; 16];
    for (byte, digits) in id.iter_mut().zip(text.chunks_exact(2)) {
        let digits: String = digits.iter().collect();
        *byte = u8::from_str_radix(&digits, 16)
            .map_err(|_| Error::new(ErrorKind::Unavailable, format!("{PLACE} holds no boot id")))?;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_go_both_ways_and_other_lengths_are_malformed() {
        let engine = EngineBlob { instance: [1; 16], boot: [2; 16], name: [0xab; 16] };
        let memory = MemoryBlob { key: u128::MAX / 3, instance: [1; 16] };
        assert_eq!(EngineBlob::decode(&engine.encode()).unwrap(), engine);
        assert_eq!(MemoryBlob::decode(&memory.encode()).unwrap(), memory);
        assert!(engine.socket().ends_with(b"abab"));
        for length in (0..48).chain([49]) {
            let wrong = blob(vec![0; length]);
            assert_eq!(EngineBlob::decode(&wrong).unwrap_err().kind(), ErrorKind::Malformed, "{length}");
            assert_eq!(MemoryBlob::decode(&wrong).is_ok(), length == 32, "{length}");
        }
        let other = TransportBlob { version: 2, ..memory.encode() };
        assert!(MemoryBlob::decode(&other).unwrap_err().message().contains("version 2"));
    }

    #[test]
    fn the_boot_id_stays_the_same() {
        let first = boot_id().unwrap();
        assert_ne!(first, [0; 16]);
        assert_eq!(boot_id().unwrap(), first);
    }
}
