//! What can be configured, and what a configuration must satisfy.

use std::time::Duration;

use mori_core::{Error, ErrorKind, Secret};

/// Configuration of a [`TcpBackend`](crate::TcpBackend).
///
/// ```
/// use mori_tcp::TcpConfig;
/// use std::time::Duration;
/// let config = TcpConfig { bind: "[::1]:0".into(), peer_timeout: Duration::from_secs(3), ..TcpConfig::default() };
/// assert_eq!(config.connections, 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Where to listen: `address:port` or `name:port`, port 0 for a free one. The default is loopback only.
    pub bind: String,
    /// The host that peers are told to connect to, if it is another than the one that is listened on: a name or an
    /// address, without a port. Needed when `bind` is unspecified (`0.0.0.0`, `[::]`) and the machine's name does
    /// not resolve at the peers.
    pub advertise: Option<String>,
    /// Connections to each peer; large transfers are striped over them. 1 to 64.
    pub connections: usize,
    /// Threads that move bytes, for all peers together. 1 to 64.
    pub io_threads: usize,
    /// A secret that a peer must know before anything else is accepted, in both directions. The connection is not
    /// encrypted.
    pub secret: Option<Secret>,
    /// The longest time that connecting may take, name look-up and handshake included.
    pub connect_timeout: Duration,
    /// After this long without a sign of life, a peer with transfers in progress is lost (contract E4).
    pub peer_timeout: Duration,
    /// Transfers of at least twice this many bytes are striped; no stripe is smaller.
    pub stripe_bytes: u64,
    /// A payload is sent in chunks of at most this many bytes; a cancelled transfer ends at a chunk's end.
    pub chunk_bytes: u64,
    /// How long a thread that has just moved bytes keeps looking for more before it sleeps. Saves the wake-up, which
    /// costs tens of microseconds, at the price of processor time. Zero switches it off.
    pub busy_window: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            bind: "127.0.0.1:0".into(),
            advertise: None,
            connections: 2,
            io_threads: 2,
            secret: None,
            connect_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(10),
            stripe_bytes: 256 << 10,
            chunk_bytes: 1 << 20,
            busy_window: Duration::from_micros(50),
        }
    }
}

/// The longest timeout that is taken; longer ones may be none that the clock can express.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The most pieces of one request; a transfer with more is sent as several.
pub(crate) const MAX_PIECES: u32 = 1 << 16;

impl TcpConfig {
    /// Says what is wrong with the configuration, if anything is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`], naming the field and what it may be.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, format!("TcpConfig: {what}")));
        if !(1..=64).contains(&self.connections) {
            return wrong("connections must be 1 to 64");
        }
        if !(1..=64).contains(&self.io_threads) {
            return wrong("io_threads must be 1 to 64");
        }
        if self.connect_timeout.is_zero() || self.connect_timeout > LONGEST {
            return wrong("connect_timeout must be greater than zero, and at most a year");
        }
        if !(Duration::from_millis(10)..=LONGEST).contains(&self.peer_timeout) {
            return wrong("peer_timeout must be 10 ms to a year");
        }
        if self.stripe_bytes == 0 {
            return wrong("stripe_bytes must be greater than zero");
        }
        if !(4096..=1 << 30).contains(&self.chunk_bytes) {
            return wrong("chunk_bytes must be 4 KiB to 1 GiB");
        }
        if self.busy_window > Duration::from_millis(10) {
            return wrong("busy_window must be at most 10 ms");
        }
        if self.secret.as_ref().is_some_and(Secret::is_empty) {
            return wrong("the secret must not be empty; leave it out to have none");
        }
        Ok(())
    }

    /// How often a thread with something in flight looks at its clock.
    pub(crate) fn tick(&self) -> Duration {
        (self.peer_timeout / 8).clamp(Duration::from_millis(2), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_good_and_each_wrong_field_is_named() {
        let good = TcpConfig::default();
        good.check().unwrap();
        for (bad, name) in [
            (TcpConfig { connections: 0, ..good.clone() }, "connections"),
            (TcpConfig { io_threads: 65, ..good.clone() }, "io_threads"),
            (TcpConfig { connect_timeout: Duration::ZERO, ..good.clone() }, "connect_timeout"),
            (TcpConfig { connect_timeout: Duration::MAX, ..good.clone() }, "connect_timeout"),
            (TcpConfig { peer_timeout: Duration::ZERO, ..good.clone() }, "peer_timeout"),
            (TcpConfig { peer_timeout: Duration::MAX, ..good.clone() }, "peer_timeout"),
            (TcpConfig { stripe_bytes: 0, ..good.clone() }, "stripe_bytes"),
            (TcpConfig { chunk_bytes: 1, ..good.clone() }, "chunk_bytes"),
            (TcpConfig { busy_window: Duration::from_secs(1), ..good.clone() }, "busy_window"),
            (TcpConfig { secret: Some(Secret::new([])), ..good.clone() }, "secret"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let config = TcpConfig { secret: Some(Secret::new(*b"swordfish")), ..TcpConfig::default() };
        assert!(!format!("{config:?}").contains("swordfish"));
        assert!(!format!("{config:?}").contains("115, 119"));
    }
}
