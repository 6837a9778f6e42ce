//! A secret that two engines share, and the proof that both know it: for transports whose peers connect over a network.
//!
//! Each side sends a [`Nonce`]; each then proves that it knows the secret by a keyed hash (HMAC-SHA-256, RFC 2104) over both
//! nonces, the protocol's name, its own [`Side`] and the secret's length. The sides hash different words, so that neither proof can be
//! echoed; with the length, no secret equals another that the hash would pad to the same key, nor no secret at all. A side
//! without a secret proves the empty one.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{Error, ErrorKind, Result};

/// A secret that both sides share; never printed.
///
/// ```
/// use mori_core::{Secret, Side};
/// let (secret, initiator, target) = (Secret::new(*b"sixteen or more!"), [1; 32], [2; 32]);
/// let proof = Secret::prove(Some(&secret), "example", Side::Initiator, &initiator, &target);
/// assert!(Secret::verify(Some(&secret), "example", Side::Initiator, &initiator, &target, &proof));
/// assert!(!Secret::verify(Some(&secret), "example", Side::Target, &initiator, &target, &proof));
/// assert!(!Secret::verify(None, "example", Side::Initiator, &initiator, &target, &proof));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

/// 32 random bytes that a side contributes to a handshake, so that no earlier proof fits.
pub type Nonce = [u8; 32];

/// Whose proof it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that opened the connection.
    Initiator,
    /// The side that accepted it.
    Target,
}

impl Side {
    const fn word(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Target => "target",
        }
    }
}

impl Secret {
    /// A secret of these bytes. Use at least 16 random ones: whoever can record a handshake can try guesses at leisure.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into().into_boxed_slice())
    }

    /// Whether it has no bytes, which a configuration refuses: none at all says it better.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A fresh nonce.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the system has no randomness.
    pub fn nonce() -> Result<Nonce> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the system has no randomness: {error}"))
        })?;
        Ok(nonce)
    }

    /// The proof of `side` in `protocol` over both nonces; of the empty secret if there is none.
    #[must_use]
    pub fn prove(
        secret: Option<&Self>,
        protocol: &str,
        side: Side,
        initiator: &Nonce,
        target: &Nonce,
    ) -> [u8; 32] {
        Self::hash(secret, protocol, side, initiator, target).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of `side`; takes the same time for every wrong one.
    #[must_use]
    pub fn verify(
        secret: Option<&Self>,
        protocol: &str,
        side: Side,
        initiator: &Nonce,
        target: &Nonce,
        proof: &[u8],
    ) -> bool {
        Self::hash(secret, protocol, side, initiator, target).verify_slice(proof).is_ok()
    }

    fn hash(
        secret: Option<&Self>,
        protocol: &str,
        side: Side,
        initiator: &Nonce,
        target: &Nonce,
    ) -> Hmac<Sha256> {
        let key = secret.map_or(&[] as &[u8], |secret| &secret.0);
        // An HMAC takes keys of every length, so the fallback is never used; it keeps this free of panics.
        let mut mac =
            Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| Hmac::<Sha256>::new(&Default::default()));
        mac.update(protocol.as_bytes());
        mac.update(side.word().as_bytes());
        mac.update(&(key.len() as u64).to_le_bytes());
        mac.update(initiator);
        mac.update(target);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCES: (Nonce, Nonce) = ([1; 32], [2; 32]);

    fn prove(secret: Option<&Secret>) -> [u8; 32] {
        Secret::prove(secret, "test", Side::Initiator, &NONCES.0, &NONCES.1)
    }

    fn accepts(secret: Option<&Secret>, proof: &[u8]) -> bool {
        Secret::verify(secret, "test", Side::Initiator, &NONCES.0, &NONCES.1, proof)
    }

    #[test]
    fn any_difference_of_secrets_is_seen() {
        let secrets = [
            None,
            Some(Secret::new(*b"a")),
            Some(Secret::new(*b"a\0")),
            Some(Secret::new([0; 16])),
            Some(Secret::new([])),
        ];
        for (index, one) in secrets.iter().enumerate() {
            for (other_index, other) in secrets.iter().enumerate() {
                // An empty secret is none; configurations refuse it.
                let same = index == other_index || index % 4 == 0 && other_index % 4 == 0;
                assert_eq!(accepts(one.as_ref(), &prove(other.as_ref())), same, "{index} {other_index}");
            }
        }
    }

    #[test]
    fn a_proof_fits_one_handshake_one_protocol_and_one_side() {
        let secret = Secret::new(*b"swordfish");
        let proof = prove(Some(&secret));
        let verify =
            |protocol, side, one, other| Secret::verify(Some(&secret), protocol, side, one, other, &proof);
        assert!(verify("test", Side::Initiator, &NONCES.0, &NONCES.1));
        assert!(!verify("tests", Side::Initiator, &NONCES.0, &NONCES.1));
        assert!(!verify("test", Side::Target, &NONCES.0, &NONCES.1));
        assert!(!verify("test", Side::Initiator, &NONCES.1, &NONCES.0));
        assert!(!accepts(Some(&secret), &proof[..31]));
    }

    #[test]
    fn a_secret_is_never_printed() {
        let printed = format!("{:?}", Secret::new(*b"swordfish"));
        assert!(!printed.contains("swordfish") && !printed.contains("115, 119"), "{printed}");
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(Secret::nonce().unwrap(), Secret::nonce().unwrap());
    }
}
