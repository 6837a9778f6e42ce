//! The messages of the control socket. Each is one packet; all integers are little-endian.
//!
//! | byte | message | from | then |
//! |---|---|---|---|
//! | 1 | *hello* | peer | magic (8 bytes), lowest and highest version, 32 random bytes |
//! | 2 | *proof* | peer | proof of the secret (32), instance (16), key (text) |
//! | 3 | *open* | peer | request (8), the region's key (16) |
//! | 4 | *note* | peer | request (8), transfer (8), tag (8), flags, error kind (4), message and error (texts) |
//! | 5 | *found* | peer | the 32 bytes at the place in the target's memory |
//! | 0x81 | *welcome* | target | magic, version, lowest, highest, whether a secret is required, 32 random bytes |
//! | 0x82 | *place* | target | proof of the secret (32), an address (8), instance (16), key (text) |
//! | 0x83 | *refused* | target | error kind (4), text; the connection ends |
//! | 0x84 | *grant* | target | request (8), slot (4), generation (4), address (8), length (8), rights |
//! | 0x85 | *failed* | target | request (8), error kind (4), text |
//! | 0x86 | *done* | target | request (8) |
//! | 0x87 | *resumed* | target | – |
//! | 0x88 | *ready* | target | –; with the shared page as a descriptor |
//!
//! A text is its length (two bytes) and that many bytes. A packet that is longer or shorter than its message is malformed.

use mori_core::{Error, ErrorKind, MAX_NOTIFICATION, Nonce, StatusCode};

/// The longest message that is sent or read.
pub(crate) const MAX_PACKET: usize = 4096;
/// The longest engine key that is carried, in bytes.
pub(crate) const MAX_KEY: usize = 512;
/// The longest error text that is carried, in bytes.
const MAX_TEXT: usize = 1024;

pub(crate) const MAGIC: &[u8; 8] = b"mori-shm";
/// The oldest version that is understood, and the one that is spoken.
pub(crate) const VERSIONS: (u8, u8) = (1, 1);

/// On a note: the transfer failed.
const FAILED: u8 = 1;
/// On a note: remember it, and deliver a failure if the connection ends before the outcome comes.
const ANNOUNCED: u8 = 2;

/// What a message to the target's application is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) transfer: u64,
    pub(crate) tag: u64,
    pub(crate) message: Vec<u8>,
    /// Only announced: the outcome follows.
    pub(crate) announced: bool,
    pub(crate) error: Option<Error>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello { lowest: u8, highest: u8, nonce: Nonce },
    Proof { mac: [u8; 32], instance: [u8; 16], key: String },
    Open { request: u64, key: u128 },
    Note { request: u64, note: Note },
    Found(Nonce),
    Welcome { version: u8, range: (u8, u8), locked: bool, nonce: Nonce },
    Place { mac: [u8; 32], address: u64, instance: [u8; 16], key: String },
    Refused(Error),
    Grant { request: u64, slot: u32, generation: u32, address: u64, length: u64, rights: u8 },
    Failed { request: u64, error: Error },
    Done { request: u64 },
    Resumed,
    Ready,
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        match self {
            Self::Hello { lowest, highest, nonce } => {
                out.push(1);
                out.extend_from_slice(MAGIC);
                out.extend_from_slice(&[*lowest, *highest]);
                out.extend_from_slice(nonce);
            }
            Self::Proof { mac, instance, key } => {
                out.push(2);
                out.extend_from_slice(mac);
                out.extend_from_slice(instance);
                push_bytes(&mut out, cut(key, MAX_KEY).as_bytes());
            }
            Self::Open { request, key } => {
                out.push(3);
                out.extend_from_slice(&request.to_le_bytes());
                out.extend_from_slice(&key.to_le_bytes());
            }
            Self::Note { request, note } => {
                out.push(4);
                out.extend_from_slice(&request.to_le_bytes());
                out.extend_from_slice(&note.transfer.to_le_bytes());
                out.extend_from_slice(&note.tag.to_le_bytes());
                let failed = if note.error.is_some() { FAILED } else { 0 };
                out.push(failed | if note.announced { ANNOUNCED } else { 0 });
                push_message(&mut out, &note.message, note.error.as_ref());
            }
            Self::Found(bytes) => {
                out.push(5);
                out.extend_from_slice(bytes);
            }
            Self::Welcome { version, range, locked, nonce } => {
                out.push(0x81);
                out.extend_from_slice(MAGIC);
                out.extend_from_slice(&[*version, range.0, range.1, u8::from(*locked)]);
                out.extend_from_slice(nonce);
            }
            Self::Place { mac, address, instance, key } => {
                out.push(0x82);
                out.extend_from_slice(mac);
                out.extend_from_slice(&address.to_le_bytes());
                out.extend_from_slice(instance);
                push_bytes(&mut out, cut(key, MAX_KEY).as_bytes());
            }
            Self::Refused(error) => {
                out.push(0x83);
                push_error(&mut out, error);
            }
            Self::Grant { request, slot, generation, address, length, rights } => {
                out.push(0x84);
                out.extend_from_slice(&request.to_le_bytes());
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
                out.extend_from_slice(&address.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
                out.push(*rights);
            }
            Self::Failed { request, error } => {
                out.push(0x85);
                out.extend_from_slice(&request.to_le_bytes());
                push_error(&mut out, error);
            }
            Self::Done { request } => {
                out.push(0x86);
                out.extend_from_slice(&request.to_le_bytes());
            }
            Self::Resumed => out.push(0x87),
            Self::Ready => out.push(0x88),
        }
        out
    }

    /// Reads one packet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`], after which the connection cannot be used any more.
    pub(crate) fn decode(packet: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields(packet);
        let message = Self::read(&mut fields).filter(|_| fields.0.is_empty());
        message.ok_or_else(|| {
            malformed(format!("a message of {} bytes that begins with {:?}", packet.len(), packet.first()))
        })
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(match fields.u8()? {
            1 => {
                let magic: [u8; 8] = fields.bytes()?;
                let hello =
                    Self::Hello { lowest: fields.u8()?, highest: fields.u8()?, nonce: fields.bytes()? };
                (magic == *MAGIC).then_some(hello)?
            }
            2 => Self::Proof { mac: fields.bytes()?, instance: fields.bytes()?, key: fields.text(MAX_KEY)? },
            3 => Self::Open { request: fields.u64()?, key: u128::from_le_bytes(fields.bytes()?) },
            4 => {
                let (request, transfer, tag) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let flags = fields.u8()?;
                let (kind, message) = (fields.u32()?, fields.sized(MAX_NOTIFICATION)?.to_vec());
                let text = fields.text(MAX_TEXT)?;
                let error = (flags & FAILED != 0).then(|| Error::new(error_kind(kind), text));
                let note = Note { transfer, tag, message, announced: flags & ANNOUNCED != 0, error };
                Self::Note { request, note }
            }
            5 => Self::Found(fields.bytes()?),
            0x81 => {
                let magic: [u8; 8] = fields.bytes()?;
                let [version, lowest, highest, locked] = fields.bytes()?;
                let nonce = fields.bytes()?;
                let welcome = Self::Welcome { version, range: (lowest, highest), locked: locked != 0, nonce };
                (magic == *MAGIC).then_some(welcome)?
            }
            0x82 => Self::Place {
                mac: fields.bytes()?,
                address: fields.u64()?,
                instance: fields.bytes()?,
                key: fields.text(MAX_KEY)?,
            },
            0x83 => Self::Refused(fields.error()?),
            0x84 => Self::Grant {
                request: fields.u64()?,
                slot: fields.u32()?,
                generation: fields.u32()?,
                address: fields.u64()?,
                length: fields.u64()?,
                rights: fields.u8()?,
            },
            0x85 => Self::Failed { request: fields.u64()?, error: fields.error()? },
            0x86 => Self::Done { request: fields.u64()? },
            0x87 => Self::Resumed,
            0x88 => Self::Ready,
            _ => return None,
        })
    }
}

/// A note's body: the kind of its error, its message, its error's text.
fn push_message(out: &mut Vec<u8>, message: &[u8], error: Option<&Error>) {
    out.extend_from_slice(&error.map_or(0, |error| error.kind().number()).to_le_bytes());
    push_bytes(out, message);
    push_bytes(out, cut(error.map_or("", Error::message), MAX_TEXT).as_bytes());
}

fn push_error(out: &mut Vec<u8>, error: &Error) {
    out.extend_from_slice(&error.kind().number().to_le_bytes());
    push_bytes(out, cut(error.message(), MAX_TEXT).as_bytes());
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes.get(..usize::from(length)).unwrap_or_default());
}

fn error_kind(number: u32) -> ErrorKind {
    match StatusCode::from_number(number) {
        Some(StatusCode::Failure(kind)) => kind,
        _ => ErrorKind::Transport,
    }
}

/// The error for bytes that do not make sense.
pub(crate) fn malformed(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Malformed, format!("{what}; the peer speaks another protocol or is broken"))
}

/// Reads fields off a packet; every reader answers `None` past the end.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).and_then(|part| part.try_into().ok())
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn sized(&mut self, max: usize) -> Option<&'a [u8]> {
        let length = usize::from(self.bytes().map(u16::from_le_bytes)?);
        if length > max { None } else { self.take(length) }
    }

    fn text(&mut self, max: usize) -> Option<String> {
        std::str::from_utf8(self.sized(max)?).ok().map(str::to_owned)
    }

    fn error(&mut self) -> Option<Error> {
        let kind = self.u32()?;
        Some(Error::new(error_kind(kind), self.text(MAX_TEXT)?))
    }
}

/// The longest beginning of `text` of at most `max` bytes that ends at a character.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> Vec<Message> {
        let error = || Error::new(ErrorKind::NotFound, "no such région");
        let note =
            |error, announced| Note { transfer: 7, tag: u64::MAX, message: vec![1, 2, 3], announced, error };
        vec![
            Message::Hello { lowest: 1, highest: 3, nonce: [4; 32] },
            Message::Proof { mac: [1; 32], instance: [3; 16], key: "zwei – deux".into() },
            Message::Open { request: 9, key: u128::MAX - 4 },
            Message::Note { request: 1, note: note(None, true) },
            Message::Note { request: 2, note: note(Some(error()), false) },
            Message::Found([8; 32]),
            Message::Welcome { version: 1, range: (1, 2), locked: true, nonce: [9; 32] },
            Message::Place { mac: [1; 32], address: 0xdead_beef, instance: [3; 16], key: "b".into() },
            Message::Refused(error()),
            Message::Grant { request: 3, slot: 4, generation: 5, address: 6, length: 7, rights: 3 },
            Message::Failed { request: 3, error: error() },
            Message::Done { request: u64::MAX },
            Message::Resumed,
            Message::Ready,
        ]
    }

    #[test]
    fn messages_go_both_ways_and_other_lengths_are_malformed() {
        for message in every() {
            let packet = message.encode();
            assert!(packet.len() <= MAX_PACKET);
            assert_eq!(Message::decode(&packet).unwrap(), message);
            for length in 0..packet.len() {
                let cut = Message::decode(&packet[..length]);
                assert_eq!(cut.unwrap_err().kind(), ErrorKind::Malformed, "{message:?} cut to {length}");
            }
            let longer = [&packet[..], &[0]].concat();
            assert!(Message::decode(&longer).is_err(), "{message:?} with a byte more");
        }
        assert!(Message::decode(&[0x55; 40]).is_err());
    }

    #[test]
    fn the_longest_texts_fit_a_packet() {
        let long = "é".repeat(5000);
        let error = Error::new(ErrorKind::Transport, long.clone());
        let message = vec![7; MAX_NOTIFICATION];
        let note = Note { transfer: 1, tag: 2, message, announced: false, error: Some(error) };
        let packet = Message::Note { request: 1, note }.encode();
        assert!(packet.len() <= MAX_PACKET && Message::decode(&packet).is_ok());
        let key = Message::Proof { mac: [0; 32], instance: [0; 16], key: long }.encode();
        assert!(Message::decode(&key).is_ok());
    }
}
