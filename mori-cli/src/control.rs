//! The control exchange: how a replay learns what a serving process has, before any block moves.
//!
//! One exchange is one connection with one question: *describe* (descriptors of engine and memory, shape of the pool) or
//! *usage* (processor time). It goes:
//!
//! 1. server → client [`Hello`]: version, a random nonce, whether it has a secret.
//! 2. client → server [`Ask`]: a random nonce, the question, and, with a secret, a keyed hash over both nonces and the
//!    question.
//! 3. server → client [`Reply`]: the answer, and, with a secret, a keyed hash over both nonces and the answer.
//!
//! With a secret neither side believes or tells anything before the other has shown that it knows it; the secret itself
//! never travels, and an answer cannot be replayed or changed. A frame is its length (32 bits, little endian, at most
//! [`MAX_FRAME`]) and a MessagePack map. Each side gives the whole exchange one deadline, so that a peer which
//! drips bytes gains nothing.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use mori_engine::Clock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use sha2::Sha256;

use crate::layout::Layout;
use crate::model::Shape;

mod client;
mod server;

pub use client::ask;
pub(crate) use server::knock;
pub use server::{Answers, ControlServer};

/// The version of the exchange; both sides must have the same.
pub const VERSION: u32 = 1;
/// The first field of the greeting.
const MAGIC: &str = "mori-control";
/// The largest frame that either side reads.
pub const MAX_FRAME: u32 = 256 << 10;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 32;

/// A secret that both sides know.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    /// Never the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret from its bytes, as they are.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, to hand on to a transport.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The keyed hash of who speaks, both nonces and what is said. Every part has a length of its own or is last.
    fn hash(&self, who: &[u8; 6], server: &[u8], client: &[u8], said: &[u8]) -> Option<Hmac<Sha256>> {
        let mut hash = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).ok()?;
        for part in [MAGIC.as_bytes(), &VERSION.to_le_bytes(), who] {
            hash.update(part);
        }
        for nonce in [server, client] {
            hash.update(&(nonce.len() as u64).to_le_bytes());
            hash.update(nonce);
        }
        hash.update(said);
        Some(hash)
    }
}

/// The server's greeting.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    magic: String,
    version: u32,
    nonce: ByteBuf,
    secret: bool,
}

/// The client's question.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ask {
    nonce: ByteBuf,
    question: Question,
    proof: Option<ByteBuf>,
}

/// What a client can ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// What do you serve?
    Describe,
    /// How much processor time have you used?
    Usage,
}

/// The server's answer, encoded, with its proof.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    answer: ByteBuf,
    proof: Option<ByteBuf>,
}

/// What a server can answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Question::Describe`].
    Description(Description),
    /// To [`Question::Usage`].
    Usage(Usage),
    /// To a client without the right secret, and to no other.
    Refused,
}

/// What a serving process has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its process id.
    pub pid: u32,
    /// The seed of its pattern, new with each start: it also tells a restarted process from the one before.
    pub seed: u64,
    /// The name of the model, for people.
    pub model: String,
    /// The scale, for people.
    pub scale: u64,
    /// Layers of a block.
    pub layers: u32,
    /// Tensors of a layer.
    pub tensors: u32,
    /// Pieces of a layer.
    pub pieces_per_layer: u32,
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// Blocks of its pool.
    pub slots: u32,
    /// The engine's descriptor, encoded.
    pub engine: ByteBuf,
    /// The pool's descriptor, encoded.
    pub memory: ByteBuf,
    /// Memory for measurements, if it was started with some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<Scratch>,
}

/// Memory of a serving process that is there to be measured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scratch {
    /// Bytes of each of the two regions.
    pub bytes: u64,
    /// The descriptor of the region to read from, encoded. It holds the pattern of [`crate::pattern::Pattern::of_scratch`].
    pub source: ByteBuf,
    /// The descriptor of the region to write to, encoded. Peers may read it, too.
    pub sink: ByteBuf,
    /// The port for raw sockets on the host of the control exchange, if it listens for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_port: Option<u16>,
}

impl Description {
    /// The layout of the pool.
    ///
    /// # Errors
    ///
    /// In words, when the numbers describe no pool.
    pub fn layout(&self) -> Result<Layout, String> {
        let shape = Shape::new(self.layers, self.tensors, self.pieces_per_layer, self.piece_bytes)
            .map_err(|error| error.to_string())?;
        Layout::new(shape, self.slots).map_err(|error| error.to_string())
    }
}

/// What a serving process used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// As in [`Description::seed`].
    pub seed: u64,
    /// Microseconds of processor time since its start.
    pub cpu_micros: u64,
}

/// Why a control exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The name has no address.
    #[error("cannot find the address of {target}: {source}")]
    Resolve {
        /// Host and port as given.
        target: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody accepts connections there.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// Host and port as given.
        target: String,
        /// What the system said.
        source: io::Error,
    },
    /// The exchange was not over at its deadline.
    #[error("{target} did not answer within {bound:?}; is it stopped, or not a mori server?")]
    TimedOut {
        /// Host and port as given.
        target: String,
        /// The bound.
        bound: Duration,
    },
    /// The connection broke.
    #[error("the control connection to {target} broke: {source}")]
    Broken {
        /// Host and port as given.
        target: String,
        /// What the system said.
        source: io::Error,
    },
    /// Who answers there does not speak this protocol.
    #[error("{target} is not a mori server: {what}")]
    Foreign {
        /// Host and port as given.
        target: String,
        /// What it sent.
        what: String,
    },
    /// It speaks another version of it.
    #[error(
        "{target} speaks version {theirs} of the control exchange, this program version {VERSION}; use the same build on both sides"
    )]
    Version {
        /// Host and port as given.
        target: String,
        /// The server's version.
        theirs: u32,
    },
    /// The server has a secret and we have none.
    #[error("{target} requires a secret; give the one that it was started with with --secret-file")]
    SecretNeeded {
        /// Host and port as given.
        target: String,
    },
    /// We have a secret and the server has none, so it cannot prove who it is.
    #[error(
        "{target} has no secret and cannot prove who it is; start it with --secret-file, or leave it out here"
    )]
    NoSecretThere {
        /// Host and port as given.
        target: String,
    },
    /// The two secrets differ.
    #[error("the secret is not the one of {target}")]
    WrongSecret {
        /// Host and port as given.
        target: String,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    NoRandom(String),
}

/// A connection on which frames are read and written up to one deadline.
struct Framed {
    stream: TcpStream,
    clock: Clock,
    deadline: Instant,
}

/// Why a frame did not come or go.
enum FrameError {
    TimedOut,
    Io(io::Error),
    Bad(String),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Io(error),
        }
    }
}

impl Framed {
    fn new(stream: TcpStream, clock: Clock, deadline: Instant) -> Self {
        // Each side sends one small frame at a time and waits; delaying them gains nothing. Failure costs only time.
        let _ = stream.set_nodelay(true);
        Self { stream, clock, deadline }
    }

    fn remaining(&self) -> Result<Duration, FrameError> {
        let left = self.deadline.saturating_duration_since(self.clock.now());
        if left.is_zero() { Err(FrameError::TimedOut) } else { Ok(left) }
    }

    fn read_exactly(&mut self, into: &mut [u8]) -> Result<(), FrameError> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            self.stream.set_read_timeout(Some(self.remaining()?))?;
            match self.stream.read(rest) {
                Ok(0) => return Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T, FrameError> {
        let mut length = [0; 4];
        self.read_exactly(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > MAX_FRAME {
            return Err(FrameError::Bad(format!("a frame of {length} bytes is larger than {MAX_FRAME}")));
        }
        let mut bytes = vec![0; length as usize];
        self.read_exactly(&mut bytes)?;
        decode(&bytes).map_err(FrameError::Bad)
    }

    fn write<T: Serialize>(&mut self, value: &T) -> Result<(), FrameError> {
        let bytes = encode(value).map_err(FrameError::Bad)?;
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= MAX_FRAME);
        let length =
            length.ok_or_else(|| FrameError::Bad(format!("{} bytes do not fit a frame", bytes.len())))?;
        let mut frame = length.to_le_bytes().to_vec();
        frame.extend_from_slice(&bytes);
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(self.remaining()?))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(FrameError::Io(io::ErrorKind::WriteZero.into())),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    rmp_serde::to_vec_named(value).map_err(|error| error.to_string())
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}

fn nonce() -> Result<[u8; NONCE_BYTES], ControlError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| ControlError::NoRandom(error.to_string()))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests;
