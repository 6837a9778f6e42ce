//! Frames: the fixed header and what follows it. All integers are little-endian.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0 | kind | see [`Kind`] |
//! | 1 | flags | see [`LAST`] and its neighbours |
//! | 2–3 | – | zero |
//! | 4–7 | body | length of the body that follows the header |
//! | 8–15 | id | the request's number on its connection |
//! | 16–31 | key | the region's key |
//! | 32–39 | a | offset of the first piece; a notification's tag |
//! | 40–47 | b | total length of the pieces; the write that a notification follows |
//! | 48–55 | payload | length of the payload that follows the body |
//! | 56–59 | count | number of pieces; an error's number |
//! | 60–63 | – | zero |
//!
//! A request for one piece carries it in the header (`a`, `b`). One for several carries them in the body, 16 bytes each: offset
//! and length. An error's text, a notification's message are bodies, too.

use mori_core::{Error, ErrorKind};

/// The length of a header.
pub(crate) const HEADER: usize = 64;
/// The length of one piece in a body.
pub(crate) const PIECE: usize = 16;
/// The longest body that is not a list of pieces.
pub(crate) const MAX_TEXT: usize = 4096;

/// On a chunk: the last one of its request.
pub(crate) const LAST: u8 = 1;
/// On a note: remember it, and deliver a failure if the connection breaks before the outcome comes.
pub(crate) const ANNOUNCE: u8 = 2;
/// On a note: the transfer failed; `count` and the text after the message say why.
pub(crate) const FAILED: u8 = 4;
/// On a note: the target is to learn of a failure, too.
pub(crate) const ON_FAILURE: u8 = 8;
/// On a note: it depends on the write `b`, sent just before on the same connection.
pub(crate) const AFTER_WRITE: u8 = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Initiator: send me these pieces.
    Read = 1,
    /// Initiator: put the payload, and what follows in [`Kind::Data`], into these pieces.
    Write = 2,
    /// Initiator: more payload of a write.
    Data = 3,
    /// Initiator: stop that request.
    Cancel = 4,
    /// Initiator: are you there?
    Ping = 5,
    /// Initiator: a notification, or the announcement of one.
    Note = 6,
    /// Target: payload of a read.
    Chunk = 0x81,
    /// Target: the request is done.
    Done = 0x82,
    /// Target: the request failed; the body says why.
    Fail = 0x83,
    /// Target: I am here.
    Pong = 0x85,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Read,
            2 => Self::Write,
            3 => Self::Data,
            4 => Self::Cancel,
            5 => Self::Ping,
            6 => Self::Note,
            0x81 => Self::Chunk,
            0x82 => Self::Done,
            0x83 => Self::Fail,
            0x85 => Self::Pong,
            _ => return None,
        })
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) body: u32,
    pub(crate) id: u64,
    pub(crate) key: u128,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) payload: u64,
    pub(crate) count: u32,
}

impl Header {
    /// A header with everything but its kind and id zero.
    pub(crate) const fn new(kind: Kind, id: u64) -> Self {
        Self { kind, flags: 0, body: 0, id, key: 0, a: 0, b: 0, payload: 0, count: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.body.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.key.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.a.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.b.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.payload.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Reads a header and checks its own consistency; `max_pieces` bounds the body.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Malformed`], after which the connection cannot be used any more.
    pub(crate) fn decode(bytes: &[u8; HEADER], max_pieces: u32) -> Result<Self, Error> {
        let word = |at: usize| u64::from_le_bytes(array(bytes, at));
        let half = |at: usize| u32::from_le_bytes(array(bytes, at));
        let kind =
            Kind::from_byte(bytes[0]).ok_or_else(|| malformed(format!("no frame kind {}", bytes[0])))?;
        if bytes[2..4] != [0; 2] || bytes[60..64] != [0; 4] {
            return Err(malformed("reserved bytes are not zero"));
        }
        let header = Self {
            kind,
            flags: bytes[1],
            body: half(4),
            id: word(8),
            key: u128::from_le_bytes(array(bytes, 16)),
            a: word(32),
            b: word(40),
            payload: word(48),
            count: half(56),
        };
        header.check(max_pieces)?;
        Ok(header)
    }

    fn check(&self, max_pieces: u32) -> Result<(), Error> {
        let body = self.body as usize;
        let good = match self.kind {
            Kind::Read | Kind::Write => {
                let expected = if self.count == 1 { 0 } else { self.count as usize * PIECE };
                self.count >= 1
                    && self.count <= max_pieces
                    && body == expected
                    && (self.kind == Kind::Write || self.payload == 0)
            }
            Kind::Data | Kind::Chunk => body == 0 && self.payload > 0,
            Kind::Cancel | Kind::Ping | Kind::Pong | Kind::Done => body == 0 && self.payload == 0,
            Kind::Note | Kind::Fail => body <= MAX_TEXT && self.payload == 0,
        };
        if good { Ok(()) } else { Err(malformed(format!("a frame that contradicts itself: {self:?}"))) }
    }
}

/// The `N` bytes at `at`; zero where there are none, which callers exclude by the slice's length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

/// The error for bytes that do not make sense.
pub(crate) fn malformed(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Malformed, format!("{what}; the peer speaks another protocol or is broken"))
}

/// A list of pieces as a body.
pub(crate) fn encode_pieces(into: &mut Vec<u8>, pieces: impl Iterator<Item = (u64, u64)>) {
    for (offset, length) in pieces {
        into.extend_from_slice(&offset.to_le_bytes());
        into.extend_from_slice(&length.to_le_bytes());
    }
}

/// The pieces of a body.
pub(crate) fn decode_pieces(body: &[u8]) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
    body.chunks_exact(PIECE)
        .map(|piece| (u64::from_le_bytes(array(piece, 0)), u64::from_le_bytes(array(piece, 8))))
}

/// Reads fields off a byte string; every reader answers `None` past the end.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).and_then(|part| part.try_into().ok())
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    /// A text with its length in two bytes before it.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.u16()?;
        std::str::from_utf8(self.take(usize::from(length))?).ok()
    }
}

/// Appends a text with its length before it; a text that is too long is cut at a character.
pub(crate) fn push_text(into: &mut Vec<u8>, text: &str, max: usize) {
    let text = cut(text, max.min(usize::from(u16::MAX)));
    into.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    into.extend_from_slice(text.as_bytes());
}

/// The longest beginning of `text` of at most `max` bytes that ends at a character.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_go_both_ways() {
        let header = Header {
            kind: Kind::Write,
            flags: 3,
            body: 3 * PIECE as u32,
            id: 0x0102_0304_0506_0708,
            key: u128::MAX - 5,
            a: u64::MAX,
            b: 9,
            payload: 77,
            count: 3,
        };
        assert_eq!(Header::decode(&header.encode(), 3).unwrap(), header);
        assert!(Header::decode(&header.encode(), 2).is_err(), "more pieces than allowed");
    }

    #[test]
    fn contradictions_are_malformed() {
        let read = Header { count: 1, ..Header::new(Kind::Read, 1) };
        let cases = [
            Header { count: 0, ..read },
            Header { payload: 1, ..read },
            Header { body: 16, ..read },
            Header { count: 2, body: 16, ..read },
            Header { payload: 0, ..Header::new(Kind::Data, 1) },
            Header { body: 1, ..Header::new(Kind::Ping, 1) },
            Header { body: MAX_TEXT as u32 + 1, ..Header::new(Kind::Fail, 1) },
            Header { body: u32::MAX, count: u32::MAX, ..read },
        ];
        for case in cases {
            let error = Header::decode(&case.encode(), 1 << 16).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{case:?}");
        }
        let mut bytes = read.encode();
        bytes[0] = 0x55;
        assert!(Header::decode(&bytes, 1).is_err());
        let mut bytes = read.encode();
        bytes[61] = 1;
        assert!(Header::decode(&bytes, 1).is_err());
    }

    #[test]
    fn texts_are_cut_at_characters() {
        assert_eq!(cut("aéb", 2), "a");
        let mut bytes = Vec::new();
        push_text(&mut bytes, "aéb", 3);
        assert_eq!(Fields(&bytes).text(), Some("aé"));
        assert_eq!(Fields(&bytes[..3]).text(), None);
    }
}
