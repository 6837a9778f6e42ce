//! The handshake of the own protocol: version, mutual proof of the shared secret, identities; nothing else is accepted
//! before it.
//!
//! Every step is a frame; the bodies are MessagePack arrays.
//!
//! 1. initiator → target, *hello*: `["mori-rdma", lowest, highest version, 32 random bytes]`
//! 2. target → initiator, *challenge*: `["mori-rdma", the version (zero: none in common), lowest, highest, whether a secret is
//!    required, 32 random bytes]`
//! 3. initiator → target, *proof*: `[32 bytes]`
//! 4. target → initiator, *accept*: `[32 bytes of its own proof, incarnation, engine key]`
//! 5. initiator → target, *identity*: `[incarnation, engine key]`
//!
//! Instead of 2 or 4, a target may send a *refusal*: `[error's number, text]`. The target says who it is only after step 3, the
//! initiator only after step 4. A side without a secret proves the empty one.

use mori_core::pack::{Reader, Writer};
use mori_core::{EngineKey, Error, ErrorKind, Nonce, Result, Secret, Side};

use super::Identity;
use super::message::{Frame, MAX_KEY, frame, kind, malformed, read_error, write_error};

/// The name that hellos begin with and that proofs are bound to.
const PROTOCOL: &str = "mori-rdma";
/// The oldest version that is understood, and the one that is spoken.
const VERSIONS: (u32, u32) = (1, 1);
/// The longest message of a handshake.
const MAX_MESSAGE: usize = 4096;

/// The random bytes of the two sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nonces {
    pub(super) initiator: Nonce,
    pub(super) target: Nonce,
}

impl Nonces {
    fn prove(&self, secret: Option<&Secret>, side: Side) -> [u8; 32] {
        Secret::prove(secret, PROTOCOL, side, &self.initiator, &self.target)
    }

    fn verify(&self, secret: Option<&Secret>, side: Side, proof: &[u8]) -> Result<()> {
        if Secret::verify(secret, PROTOCOL, side, &self.initiator, &self.target, proof) {
            return Ok(());
        }
        Err(denied("the peer does not know the shared secret"))
    }
}

fn denied(what: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("{what}; configure the same secret on both sides"))
}

fn open<'a>(expected: u8, frame: &'a Frame, required: u32) -> Result<Reader<'a>> {
    if frame.kind != expected {
        return Err(malformed(format!(
            "a frame of type {:#04x} in the handshake, where {expected:#04x} comes",
            frame.kind
        )));
    }
    Reader::open("handshake", &frame.body, required, MAX_MESSAGE)
}

fn magic(reader: &mut Reader<'_>) -> Result<()> {
    if reader.text("protocol", PROTOCOL.len())? == PROTOCOL {
        Ok(())
    } else {
        Err(malformed("another protocol's handshake"))
    }
}

fn write_identity(writer: &mut Writer, identity: &Identity) {
    writer.bytes(&identity.instance);
    writer.text(identity.key.as_str());
}

fn read_identity(reader: &mut Reader<'_>) -> Result<Identity> {
    let instance = reader.array("incarnation")?;
    Ok(Identity { instance, key: EngineKey::from(reader.text("engine key", MAX_KEY)?) })
}

/// Step 1.
pub(super) fn hello(own: &Nonce) -> Vec<u8> {
    let mut writer = Writer::array(4);
    writer.text(PROTOCOL);
    writer.uint(VERSIONS.0);
    writer.uint(VERSIONS.1);
    writer.bytes(own);
    frame(kind::HELLO, &writer.into_vec())
}

/// Step 2, at the target: both sides' random bytes, the answer, and whether the versions agree.
pub(super) fn challenge(
    hello: &Frame,
    own: Nonce,
    secret: Option<&Secret>,
) -> Result<(Nonces, Vec<u8>, bool)> {
    let mut reader = open(kind::HELLO, hello, 4)?;
    magic(&mut reader)?;
    let (lowest, highest): (u32, u32) = (reader.int("lowest version")?, reader.int("highest version")?);
    let initiator = reader.array("random bytes")?;
    reader.finish()?;
    let agreed = lowest <= VERSIONS.1 && highest >= VERSIONS.0 && lowest <= highest;
    let mut writer = Writer::array(6);
    writer.text(PROTOCOL);
    writer.uint(if agreed { highest.min(VERSIONS.1) } else { 0 });
    writer.uint(VERSIONS.0);
    writer.uint(VERSIONS.1);
    writer.uint(u8::from(secret.is_some()));
    writer.bytes(&own);
    Ok((Nonces { initiator, target: own }, frame(kind::CHALLENGE, &writer.into_vec()), agreed))
}

/// Step 3, at the initiator: both sides' random bytes and the proof.
pub(super) fn prove(challenge: &Frame, own: Nonce, secret: Option<&Secret>) -> Result<(Nonces, Vec<u8>)> {
    let mut reader = open(kind::CHALLENGE, challenge, 6)?;
    magic(&mut reader)?;
    let version: u32 = reader.int("version")?;
    let (lowest, highest): (u32, u32) = (reader.int("lowest version")?, reader.int("highest version")?);
    let locked: u8 = reader.int("whether a secret is required")?;
    let target = reader.array("random bytes")?;
    reader.finish()?;
    if version < VERSIONS.0 || version > VERSIONS.1 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the peer speaks versions {lowest} to {highest} of the control protocol, this side {} to {}; update the \
                 older one",
                VERSIONS.0, VERSIONS.1
            ),
        ));
    }
    match (secret.is_some(), locked != 0) {
        (false, true) => {
            return Err(denied("the peer requires a shared secret, and none is configured here"));
        }
        (true, false) => return Err(denied("a shared secret is configured here, and the peer has none")),
        _ => {}
    }
    let nonces = Nonces { initiator: own, target };
    let mut writer = Writer::array(1);
    writer.bytes(&nonces.prove(secret, Side::Initiator));
    Ok((nonces, frame(kind::PROOF, &writer.into_vec())))
}

/// Step 4, at the target: checks the proof and answers.
pub(super) fn accept(
    proof: &Frame,
    nonces: &Nonces,
    secret: Option<&Secret>,
    own: &Identity,
) -> Result<Vec<u8>> {
    let mut reader = open(kind::PROOF, proof, 1)?;
    nonces.verify(secret, Side::Initiator, reader.bytes("proof", 32)?)?;
    reader.finish()?;
    let mut writer = Writer::array(3);
    writer.bytes(&nonces.prove(secret, Side::Target));
    write_identity(&mut writer, own);
    Ok(frame(kind::ACCEPT, &writer.into_vec()))
}

/// What a target sends instead of step 2 or 4.
pub(super) fn refusal(why: &Error) -> Vec<u8> {
    let mut writer = Writer::array(2);
    write_error(&mut writer, why);
    frame(kind::REFUSAL, &writer.into_vec())
}

/// The error that a refusal carries, if the frame is one.
pub(super) fn refused(frame: &Frame) -> Result<Option<Error>> {
    if frame.kind != kind::REFUSAL {
        return Ok(None);
    }
    let mut reader = open(kind::REFUSAL, frame, 2)?;
    let error = read_error(&mut reader)?;
    reader.finish()?;
    Ok(Some(error.context("the peer refuses the connection")))
}

/// Step 5, at the initiator: checks the target's proof, learns who it is, and says who this is.
pub(super) fn identify(
    accept: &Frame,
    nonces: &Nonces,
    secret: Option<&Secret>,
    own: &Identity,
) -> Result<(Identity, Vec<u8>)> {
    let mut reader = open(kind::ACCEPT, accept, 3)?;
    nonces.verify(secret, Side::Target, reader.bytes("proof", 32)?)?;
    let peer = read_identity(&mut reader)?;
    reader.finish()?;
    let mut writer = Writer::array(2);
    write_identity(&mut writer, own);
    Ok((peer, frame(kind::IDENTITY, &writer.into_vec())))
}

/// Step 5, at the target.
pub(super) fn identified(identity: &Frame) -> Result<Identity> {
    let mut reader = open(kind::IDENTITY, identity, 2)?;
    let peer = read_identity(&mut reader)?;
    reader.finish()?;
    Ok(peer)
}
