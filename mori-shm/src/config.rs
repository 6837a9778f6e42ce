//! What can be configured, and what a configuration must satisfy.

use std::time::Duration;

use mori_core::{Error, ErrorKind, Secret};

/// Which processes this one lets copy from and to its memory where the system's Yama module restricts that to a process's
/// ancestors (`kernel.yama.ptrace_scope` is 1). Elsewhere it means nothing.
///
/// Whoever is let in may also trace this process as a debugger does, which is why it is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracers {
    /// Nobody is let in. Peers reach this process over another transport.
    Nobody,
    /// A peer that has connected, runs as the same user and knows the secret, if there is one. The system keeps one such
    /// permission for a process, so it goes to one peer at a time; others are told why they have no route.
    #[default]
    Peer,
    /// Every process of the same user, from the moment the backend is attached.
    Anyone,
}

/// Configuration of a [`ShmBackend`](crate::ShmBackend).
///
/// ```
/// use mori_shm::ShmConfig;
/// let config = ShmConfig { threads: 4, ..ShmConfig::default() };
/// config.check()?;
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Threads that copy, for all peers together. 1 to 64; by default two, or one on a machine with one processor.
    pub threads: usize,
    /// A secret that a peer must know before anything else is accepted, in both directions.
    pub secret: Option<Secret>,
    /// Transfers of at most this many bytes, in at most [`inline_pieces`](ShmConfig::inline_pieces) pieces and without a
    /// message, are copied by the submitting thread itself: `submit` then takes as long as the copy (about 20 µs for
    /// 64 KiB of memory that is in use, ten times that for pages that are touched for the first time). At most 1 MiB; zero
    /// switches it off.
    pub inline_bytes: u64,
    /// See [`inline_bytes`](ShmConfig::inline_bytes). At most 1024.
    pub inline_pieces: usize,
    /// A copying thread moves at most this many bytes at a time; a transfer that is stopped, and a region that is taken
    /// back, wait for one such step. 4 KiB to 1 GiB.
    pub chunk_bytes: u64,
    /// How long a copying thread that has just worked looks for more before it sleeps. Zero switches it off; at most 10 ms.
    pub busy_window: Duration,
    /// The longest time that connecting to a peer may take, and opening a region of its.
    pub connect_timeout: Duration,
    /// A peer that owes an answer and gives no sign of life for this long is lost (contract E4).
    pub peer_timeout: Duration,
    /// How long taking a region back waits for a peer that is in the middle of a copy (contract E3). Such a copy takes
    /// a millisecond, unless the peer is stopped in it.
    pub drain: Duration,
    /// Who may copy where the system leaves the choice to this process.
    pub tracers: Tracers,
}

impl Default for ShmConfig {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            threads: processors.min(2),
            secret: None,
            inline_bytes: 64 << 10,
            inline_pieces: 32,
            chunk_bytes: 4 << 20,
            busy_window: Duration::from_micros(50),
            connect_timeout: Duration::from_secs(2),
            peer_timeout: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            tracers: Tracers::default(),
        }
    }
}

/// The longest timeout that is taken; longer ones may be none that the clock can express.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl ShmConfig {
    /// Says what is wrong with the configuration, if anything is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`], naming the field and what it may be.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, format!("ShmConfig: {what}")));
        if !(1..=64).contains(&self.threads) {
            return wrong("threads must be 1 to 64");
        }
        if self.inline_bytes > 1 << 20 {
            return wrong("inline_bytes must be at most 1 MiB");
        }
        if self.inline_pieces > 1024 {
            return wrong("inline_pieces must be at most 1024");
        }
        if !(4096..=1 << 30).contains(&self.chunk_bytes) {
            return wrong("chunk_bytes must be 4 KiB to 1 GiB");
        }
        if self.busy_window > Duration::from_millis(10) {
            return wrong("busy_window must be at most 10 ms");
        }
        let timeouts = [
            ("connect_timeout", self.connect_timeout),
            ("peer_timeout", self.peer_timeout),
            ("drain", self.drain),
        ];
        for (name, timeout) in timeouts {
            if !(Duration::from_millis(1)..=LONGEST).contains(&timeout) {
                return wrong(&format!("{name} must be 1 ms to a year"));
            }
        }
        if self.secret.as_ref().is_some_and(|secret| secret.is_empty()) {
            return wrong("the secret must not be empty; leave it out to have none");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_good_and_each_wrong_field_is_named() {
        let good = ShmConfig::default();
        good.check().unwrap();
        for (bad, name) in [
            (ShmConfig { threads: 0, ..good.clone() }, "threads"),
            (ShmConfig { inline_bytes: 2 << 20, ..good.clone() }, "inline_bytes"),
            (ShmConfig { inline_pieces: 1025, ..good.clone() }, "inline_pieces"),
            (ShmConfig { chunk_bytes: 1, ..good.clone() }, "chunk_bytes"),
            (ShmConfig { busy_window: Duration::from_secs(1), ..good.clone() }, "busy_window"),
            (ShmConfig { connect_timeout: Duration::ZERO, ..good.clone() }, "connect_timeout"),
            (ShmConfig { peer_timeout: Duration::MAX, ..good.clone() }, "peer_timeout"),
            (ShmConfig { drain: Duration::ZERO, ..good.clone() }, "drain"),
            (ShmConfig { secret: Some(Secret::new([])), ..good.clone() }, "secret"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let config = ShmConfig { secret: Some(Secret::new(*b"swordfish")), ..ShmConfig::default() };
        assert!(!format!("{config:?}").contains("swordfish"));
        assert!(!format!("{config:?}").contains("115, 119"));
    }
}
