//! What messages to a target, and its answers, look like on a queue pair.
//!
//! Both have fixed places: a message is at most [`NOTE`] bytes long, an answer at most [`ANSWER`]. They come from a peer, so every field
//! is checked. All numbers are little-endian.

use mori_core::{Error, ErrorKind, MAX_NOTIFICATION, Result};

use crate::flow::Message;

/// The longest text of an error that a message carries.
const MAX_TEXT: usize = 512;
const HEAD: usize = 36;
/// Room for a message: head, message, text of the failure.
pub(crate) const NOTE: usize = 1600;
/// Room for an answer: head and text of the refusal.
pub(crate) const ANSWER: usize = 256;
const ANSWER_HEAD: usize = 24;

const MAGIC: u32 = 0x316e_726d;
const ANSWER_MAGIC: u32 = 0x3161_726d;

const _: () = assert!(HEAD + MAX_NOTIFICATION + MAX_TEXT <= NOTE);

/// A message as the target reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) slot: u16,
    pub(crate) transfer: u64,
    pub(crate) tag: u64,
    pub(crate) message: Vec<u8>,
    pub(crate) error: Option<Error>,
}

/// What the target says to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) slot: u16,
    pub(crate) transfer: u64,
    pub(crate) result: Result<()>,
}

/// A text of at most `most` bytes, cut between characters.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The kind of an error as a number; 0 for none.
fn number(error: Option<&Error>) -> u32 {
    error.map_or(0, |error| error.kind().number())
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("{what} from a peer does not decode"))
}

pub(crate) fn encode(message: &Message<'_>) -> Vec<u8> {
    let text = message.error.map_or("", |error| cut(error.message(), MAX_TEXT));
    let body = message.message.get(..MAX_NOTIFICATION).unwrap_or(message.message);
    let mut bytes = Vec::with_capacity(NOTE);
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&number(message.error).to_le_bytes());
    bytes.extend_from_slice(&message.transfer.to_le_bytes());
    bytes.extend_from_slice(&message.tag.to_le_bytes());
    bytes.extend_from_slice(&message.slot.to_le_bytes());
    for length in [body.len(), text.len()] {
        bytes.extend_from_slice(&u16::try_from(length).unwrap_or(0).to_le_bytes());
    }
    bytes.resize(HEAD, 0);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Numbers from the front of some bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// The error that a number and a text stand for.
fn error(number: u32, text: &[u8]) -> Option<Error> {
    let kind = if number == 0 { return None } else { ErrorKind::from_number(number) };
    Some(Error::new(kind.unwrap_or(ErrorKind::Transport), String::from_utf8_lossy(text)))
}

impl Note {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(bytes);
        let mut read = || {
            if fields.u32()? != MAGIC {
                return None;
            }
            let kind = fields.u32()?;
            let (transfer, tag, slot) = (fields.u64()?, fields.u64()?, fields.u16()?);
            let (length, text) = (usize::from(fields.u16()?), usize::from(fields.u16()?));
            if length > MAX_NOTIFICATION || text > MAX_TEXT {
                return None;
            }
            fields.take(HEAD - 30)?;
            let message = fields.take(length)?.to_vec();
            let error = error(kind, fields.take(text)?);
            Some(Self { slot, transfer, tag, message, error })
        };
        read().ok_or_else(|| malformed("a message"))
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> [u8; ANSWER] {
        let error = self.result.as_ref().err();
        let text = error.map_or("", |error| cut(error.message(), ANSWER - ANSWER_HEAD));
        let mut bytes = Vec::with_capacity(ANSWER);
        bytes.extend_from_slice(&ANSWER_MAGIC.to_le_bytes());
        bytes.extend_from_slice(&number(error).to_le_bytes());
        bytes.extend_from_slice(&self.transfer.to_le_bytes());
        bytes.extend_from_slice(&self.slot.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
        bytes.resize(ANSWER_HEAD, 0);
        bytes.extend_from_slice(text.as_bytes());
        let mut whole = [0; ANSWER];
        whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        whole
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(bytes);
        let mut read = || {
            if fields.u32()? != ANSWER_MAGIC {
                return None;
            }
            let kind = fields.u32()?;
            let (transfer, slot, text) = (fields.u64()?, fields.u16()?, usize::from(fields.u16()?));
            fields.take(ANSWER_HEAD - 20)?;
            let result = error(kind, fields.take(text)?).map_or(Ok(()), Err);
            Some(Self { slot, transfer, result })
        };
        read().ok_or_else(|| malformed("an answer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_both_ways() {
        let failure = Error::new(ErrorKind::Cancelled, "grüße ".repeat(200));
        for length in [0, 1, MAX_NOTIFICATION] {
            for error in [None, Some(&failure)] {
                let message = vec![7; length];
                let sent = Message { id: 1, slot: 9, transfer: u64::MAX, tag: 3, message: &message, error };
                let bytes = encode(&sent);
                assert!(bytes.len() <= NOTE);
                let note = Note::decode(&bytes).unwrap();
                assert_eq!((note.slot, note.transfer, note.tag), (9, u64::MAX, 3));
                assert_eq!(note.message, message);
                assert_eq!(note.error.as_ref().map(Error::kind), error.map(Error::kind));
                for cut in 0..bytes.len() {
                    assert!(Note::decode(&bytes[..cut]).is_err(), "cut to {cut} bytes");
                }
            }
        }
    }

    #[test]
    fn answers_go_both_ways() {
        for result in [Ok(()), Err(Error::new(ErrorKind::ResourceExhausted, "x".repeat(500)))] {
            let answer = Answer { slot: 3, transfer: 5, result };
            let back = Answer::decode(&answer.encode()).unwrap();
            assert_eq!((back.slot, back.transfer, back.result.is_ok()), (3, 5, answer.result.is_ok()));
        }
        assert!(Answer::decode(&[0xff; ANSWER]).is_err());
        assert!(Note::decode(&[0xff; NOTE]).is_err());
    }
}
