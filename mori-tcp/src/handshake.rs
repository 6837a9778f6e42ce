//! The handshake: version, mutual proof of the shared secret, identities; nothing else is accepted before it.
//!
//! Messages are a length (two bytes, little-endian) and that many bytes.
//!
//! 1. initiator → target, *hello*: magic, lowest and highest version, 32 random bytes
//! 2. target → initiator, *challenge*: magic, the version (zero: none in common) and its own range, whether a secret is
//!    required, 32 random bytes
//! 3. initiator → target, *proof*: a keyed hash (HMAC-SHA-256, RFC 2104) over both random strings and the secret's length
//! 4. target → initiator, *accept*: its own keyed hash, over other words so that neither can be echoed; its identity
//! 5. initiator → target, *identity*
//!
//! The target says who it is only after step 3, the initiator only after step 4. A side without a secret uses an empty key,
//! which no configured secret equals. A wrong proof is answered by an empty message and the end of the connection.

use mori_core::{EngineKey, Error, ErrorKind, Nonce, Secret, Side};

use crate::wire::{Fields, malformed, push_text};

const MAGIC: &[u8; 8] = b"mori-tcp";
/// The name that proofs are bound to.
const PROTOCOL: &str = "mori-tcp";
/// The version spoken, and the oldest that is understood.
const VERSION: (u8, u8) = (1, 1);
/// The longest message of a handshake.
const MAX_MESSAGE: usize = 1024;
/// The longest engine key that is carried, in bytes.
pub(crate) const MAX_KEY: usize = 512;

/// Who an engine is: its name and its incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: EngineKey,
    pub(crate) instance: [u8; 16],
}

impl Identity {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.instance.to_vec();
        push_text(&mut bytes, self.key.as_str(), MAX_KEY);
        bytes
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let instance = fields.bytes()?;
        Some(Self { instance, key: EngineKey::from(fields.text()?) })
    }
}

/// A message with its length before it.
fn message(body: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Takes one message off the front of what was received.
///
/// # Errors
///
/// [`ErrorKind::Malformed`] for a message that is longer than any of a handshake.
pub(crate) fn take_message(received: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Error> {
    let Some(length) = Fields(received).u16().map(usize::from) else { return Ok(None) };
    if length > MAX_MESSAGE {
        return Err(malformed(format!("a handshake message of {length} bytes")));
    }
    if received.len() < 2 + length {
        return Ok(None);
    }
    let body = received[2..2 + length].to_vec();
    received.drain(..2 + length);
    Ok(Some(body))
}

/// Step 1.
pub(crate) fn hello(own: &Nonce) -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&[VERSION.0, VERSION.1]);
    body.extend_from_slice(own);
    message(&body)
}

/// Step 2, at the target: the peer's random bytes, the answer, and whether the versions agree.
pub(crate) fn challenge(
    hello: &[u8],
    own: &Nonce,
    secret: Option<&Secret>,
) -> Result<(Nonce, Vec<u8>, bool), Error> {
    let mut fields = Fields(hello);
    let parsed = (fields.bytes::<8>(), fields.u8(), fields.u8(), fields.bytes());
    let (Some(magic), Some(lowest), Some(highest), Some(nonce)) = parsed else {
        return Err(malformed("a hello that is cut off"));
    };
    if magic != *MAGIC {
        return Err(malformed("a hello of something else"));
    }
    let version = if lowest <= VERSION.1 && highest >= VERSION.0 { highest.min(VERSION.1) } else { 0 };
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&[version, VERSION.0, VERSION.1, u8::from(secret.is_some())]);
    body.extend_from_slice(own);
    Ok((nonce, message(&body), version != 0))
}

/// Step 3, at the initiator: the peer's random bytes and the proof.
pub(crate) fn prove(
    challenge: &[u8],
    own: &Nonce,
    secret: Option<&Secret>,
) -> Result<(Nonce, Vec<u8>), Error> {
    let mut fields = Fields(challenge);
    let parsed = (fields.bytes::<8>(), fields.bytes::<4>(), fields.bytes());
    let (Some(magic), Some([version, lowest, highest, locked]), Some(nonce)) = parsed else {
        return Err(malformed("a challenge that is cut off"));
    };
    if magic != *MAGIC {
        return Err(malformed("a challenge of something else"));
    }
    if version == 0 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the peer speaks versions {lowest} to {highest} of the protocol, this side {} to {}; update the older one",
                VERSION.0, VERSION.1
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
    let mac = Secret::prove(secret, PROTOCOL, Side::Initiator, own, &nonce);
    Ok((nonce, message(&mac)))
}

/// Step 4, at the target: checks the proof and answers.
pub(crate) fn accept(
    proof_message: &[u8],
    nonces: (&Nonce, &Nonce),
    secret: Option<&Secret>,
    own: &Identity,
) -> Result<Vec<u8>, Error> {
    if !Secret::verify(secret, PROTOCOL, Side::Initiator, nonces.0, nonces.1, proof_message) {
        return Err(denied("the peer does not know the shared secret"));
    }
    let mut body = Secret::prove(secret, PROTOCOL, Side::Target, nonces.0, nonces.1).to_vec();
    body.extend_from_slice(&own.encode());
    Ok(message(&body))
}

/// What a target answers to a wrong proof instead of step 4.
pub(crate) fn refusal() -> Vec<u8> {
    message(&[])
}

/// Step 5, at the initiator: checks the target's proof, learns who it is, and says who this is.
pub(crate) fn identify(
    accept: &[u8],
    nonces: (&Nonce, &Nonce),
    secret: Option<&Secret>,
    own: &Identity,
) -> Result<(Identity, Vec<u8>), Error> {
    if accept.is_empty() {
        return Err(denied("the peer refuses this side's shared secret"));
    }
    let mut fields = Fields(accept);
    let mac = fields.take(32).ok_or_else(|| malformed("an answer that is cut off"))?;
    if !Secret::verify(secret, PROTOCOL, Side::Target, nonces.0, nonces.1, mac) {
        return Err(denied("the peer does not know the shared secret"));
    }
    let peer = Identity::decode(&mut fields).ok_or_else(|| malformed("an identity that does not decode"))?;
    Ok((peer, message(&own.encode())))
}

/// Step 5, at the target.
pub(crate) fn identified(identity: &[u8]) -> Result<Identity, Error> {
    Identity::decode(&mut Fields(identity)).ok_or_else(|| malformed("an identity that does not decode"))
}

fn denied(what: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("{what}; configure the same secret on both sides"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(message: &[u8]) -> Vec<u8> {
        let mut received = message.to_vec();
        let body = take_message(&mut received).unwrap().unwrap();
        assert!(received.is_empty());
        body
    }

    /// Runs the handshake between two sides with these secrets; returns what each learns, or the first error.
    fn run(initiator: Option<&str>, target: Option<&str>) -> Result<(Identity, Identity), Error> {
        let secret = |text: Option<&str>| text.map(Secret::new);
        let (first, second) = (secret(initiator), secret(target));
        let (first, second) = (first.as_ref(), second.as_ref());
        let one = Identity { key: "one".into(), instance: [1; 16] };
        let two = Identity { key: "zwei – deux".into(), instance: [2; 16] };
        let (ours, theirs) = ([7; 32], [9; 32]);
        let (seen, answer, agreed) = challenge(&body(&hello(&ours)), &theirs, second)?;
        assert!(agreed);
        assert_eq!(seen, ours);
        let (nonce, proof) = prove(&body(&answer), &ours, first)?;
        assert_eq!(nonce, theirs);
        let answer = accept(&body(&proof), (&ours, &theirs), second, &two)?;
        let (target, identity) = identify(&body(&answer), (&ours, &theirs), first, &one)?;
        Ok((target, identified(&body(&identity))?))
    }

    #[test]
    fn both_learn_who_the_other_is() {
        for secret in [None, Some("swordfish")] {
            let (target, initiator) = run(secret, secret).unwrap();
            assert_eq!((target.key.as_str(), target.instance), ("zwei – deux", [2; 16]));
            assert_eq!((initiator.key.as_str(), initiator.instance), ("one", [1; 16]));
        }
    }

    #[test]
    fn any_difference_of_secrets_is_denied() {
        for (one, other) in [(Some("a"), Some("b")), (None, Some("b")), (Some("a"), None)] {
            assert_eq!(run(one, other).unwrap_err().kind(), ErrorKind::AccessDenied, "{one:?} {other:?}");
        }
        assert!(run(Some("a"), Some("a\0")).is_err(), "the hash alone takes both for one");
    }

    #[test]
    fn a_secret_of_zeros_is_not_no_secret() {
        let zeros = Secret::new([0; 16]);
        let without = Secret::prove(None, PROTOCOL, Side::Initiator, &[1; 32], &[2; 32]);
        let own = Identity { key: "two".into(), instance: [2; 16] };
        let refused = accept(&without, (&[1; 32], &[2; 32]), Some(&zeros), &own).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);
    }

    #[test]
    fn a_proof_cannot_be_echoed() {
        let secret = Secret::new(*b"swordfish");
        let nonces = (&[7; 32], &[9; 32]);
        let mut echo = Secret::prove(Some(&secret), PROTOCOL, Side::Initiator, nonces.0, nonces.1).to_vec();
        echo.extend_from_slice(&Identity { key: "x".into(), instance: [0; 16] }.encode());
        let own = Identity { key: "one".into(), instance: [1; 16] };
        assert!(identify(&echo, nonces, Some(&secret), &own).is_err());
    }

    #[test]
    fn other_versions_are_named() {
        let mut hello = body(&hello(&[0; 32]));
        hello[8..10].copy_from_slice(&[9, 12]);
        let (_, answer, agreed) = challenge(&hello, &[0; 32], None).unwrap();
        assert!(!agreed);
        let error = prove(&body(&answer), &[0; 32], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("versions 1 to 1"), "{error}");
    }

    #[test]
    fn cut_messages_are_malformed_and_long_ones_refused() {
        let whole = body(&hello(&[3; 32]));
        for length in 0..whole.len() {
            assert!(challenge(&whole[..length], &[0; 32], None).is_err());
        }
        let (_, answer, _) = challenge(&whole, &[0; 32], None).unwrap();
        let answer = body(&answer);
        for length in 0..answer.len() {
            assert!(prove(&answer[..length], &[0; 32], None).is_err());
        }
        assert!(take_message(&mut vec![0xff, 0xff, 0]).is_err());
        assert_eq!(take_message(&mut vec![5, 0, 1]).unwrap(), None);
    }
}
