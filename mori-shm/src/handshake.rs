//! The proofs of the handshake: who knows the secret, and who can read whose memory.
//!
//! 1. peer → target, *hello*, and target → peer, *welcome*: 32 random bytes of each side.
//! 2. peer → target, *proof*: the proof of the shared secret ([`Secret`]) over both.
//! 3. target → peer, *place*, only if that was right: its own proof, and an address in its memory where there are 32 more random bytes.
//! 4. The peer reads those through the kernel, by the process number that the kernel names for the socket, and sends them back:
//!    *found*. That proves to the target that the peer may read its memory: both are on one host, and the system permits it. A
//!    grant then says nothing that the peer could not see anyway.
//! 5. target → peer, *ready*, only if the bytes were right: which proves to the peer that the number means the process at the
//!    other end of the socket. With it comes the shared page.
//!
//! A side without a secret uses an empty key, which no configured secret equals.

use mori_core::{EngineKey, Error, ErrorKind, Nonce, Result, Secret, Side};

use crate::wire::VERSIONS;

/// What a proof is for, so that one of another protocol is none.
const PROTOCOL: &str = "mori-shm";

/// Who an engine is: its name and its incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: EngineKey,
    pub(crate) instance: [u8; 16],
}

/// Fills an array from the system's source of randomness.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if it has none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("the system has no randomness: {error}"))
    })?;
    Ok(bytes)
}

/// The proof that `side` sends.
pub(crate) fn prove(secret: Option<&Secret>, side: Side, peer: &Nonce, target: &Nonce) -> [u8; 32] {
    Secret::prove(secret, PROTOCOL, side, peer, target)
}

/// Checks the proof of `side`.
///
/// # Errors
///
/// [`ErrorKind::AccessDenied`] for a wrong one.
pub(crate) fn verify(
    secret: Option<&Secret>,
    side: Side,
    peer: &Nonce,
    target: &Nonce,
    mac: &[u8; 32],
) -> Result<()> {
    if Secret::verify(secret, PROTOCOL, side, peer, target, mac) {
        Ok(())
    } else {
        Err(denied("the peer does not know the shared secret"))
    }
}

/// Whether two sides can agree on having a secret or none, for a clear answer before the proof.
pub(crate) fn same_lock(ours: bool, theirs: bool) -> Result<()> {
    match (ours, theirs) {
        (false, true) => Err(denied("the peer requires a shared secret, and none is configured here")),
        (true, false) => Err(denied("a shared secret is configured here, and the peer has none")),
        _ => Ok(()),
    }
}

/// The version that both sides speak, out of the other's range.
pub(crate) fn common_version(lowest: u8, highest: u8) -> Option<u8> {
    (lowest <= VERSIONS.1 && highest >= VERSIONS.0).then(|| highest.min(VERSIONS.1))
}

/// The error for sides without a version in common.
pub(crate) fn no_version(theirs: (u8, u8)) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the peer speaks versions {} to {} of the same-host protocol, this side {} to {}; update the older one",
            theirs.0, theirs.1, VERSIONS.0, VERSIONS.1
        ),
    )
}

fn denied(what: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("{what}; configure the same secret on both sides"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_on_the_other_side_will_do() {
        let (peer, target) = ([1; 32], [2; 32]);
        let secrets = [None, Some(Secret::new(*b"a")), Some(Secret::new(*b"b")), Some(Secret::new(*b"a\0"))];
        for (index, one) in secrets.iter().enumerate() {
            let mac = prove(one.as_ref(), Side::Initiator, &peer, &target);
            for (place, other) in secrets.iter().enumerate() {
                let checked = verify(other.as_ref(), Side::Initiator, &peer, &target, &mac);
                assert_eq!(checked.is_ok(), index == place, "{index} {place}");
            }
            assert!(verify(one.as_ref(), Side::Target, &peer, &target, &mac).is_err(), "an echo");
            assert!(
                verify(one.as_ref(), Side::Initiator, &target, &peer, &mac).is_err(),
                "other random bytes"
            );
        }
        assert!(
            same_lock(true, true).is_ok()
                && same_lock(true, false).is_err()
                && same_lock(false, true).is_err()
        );
    }

    #[test]
    fn versions_meet_or_are_named() {
        assert_eq!(common_version(1, 9), Some(1));
        assert_eq!(common_version(0, 0), None);
        assert_eq!(common_version(2, 3), None);
        assert!(no_version((2, 3)).message().contains("versions 2 to 3"));
    }
}
