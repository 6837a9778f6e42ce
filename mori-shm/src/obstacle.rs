//! Why there is no way between two processes, in a form for programs and for people.

use std::fmt;

use mori_core::{Cause, Error, ErrorKind};

/// What stands between this process and a peer's memory.
///
/// [`ShmBackend::obstacle`](crate::ShmBackend::obstacle) says it for a peer; the error of a route has the same words. Another
/// transport carries the transfers meanwhile, if the engine has one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The system has no such calls.
    NotLinux,
    /// The system refuses to copy between processes at all, even within this one.
    NoCalls {
        /// The system's number.
        errno: i32,
    },
    /// The peer runs on another host, or this one has been started anew since.
    OtherHost,
    /// Nobody listens where the peer's descriptor says.
    NobodyThere,
    /// The two run as different users.
    OtherUser {
        /// The user of this process.
        ours: u32,
        /// The user of the peer.
        theirs: u32,
    },
    /// The peer has no number in this process's PID namespace.
    OtherPidNamespace,
    /// The system does not let this process at the peer's memory.
    NotPermitted {
        /// `kernel.yama.ptrace_scope`, where there is one.
        yama: Option<u32>,
        /// The system's number.
        errno: i32,
    },
    /// The peer does not let this process in, or is another one than it says.
    Refused(String),
    /// The peer is there and does not answer; it may be stopped.
    Silent,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinux => f.write_str("copying between processes needs Linux"),
            Self::NoCalls { errno } => write!(
                f,
                "the system refuses process_vm_readv even within one process ({}); a filter of system calls may be in the way",
                words(*errno)
            ),
            Self::OtherHost => f.write_str("the peer runs on another host, or before this host's last start"),
            Self::NobodyThere => f.write_str(
                "nobody listens at the peer's local address: it has ended, or is in another network namespace (container)",
            ),
            Self::OtherUser { ours, theirs } => write!(
                f,
                "the peer runs as user {theirs}, this process as user {ours}; run both as the same user"
            ),
            Self::OtherPidNamespace => f.write_str(
                "the peer is in a PID namespace (container) that this process cannot see into; let the two share one",
            ),
            Self::NotPermitted { yama: Some(scope @ 1..), errno } => write!(
                f,
                "the system does not let this process at the peer's memory ({}), with kernel.yama.ptrace_scope at {scope}; {}",
                words(*errno),
                match scope {
                    1 => "set the peer's `tracers` to `Anyone`, or the scope to 0",
                    2 => "give this process CAP_SYS_PTRACE, or set the scope to 0",
                    _ => "set the scope to 0, which takes a restart of the host",
                }
            ),
            Self::NotPermitted { errno, .. } => write!(
                f,
                "the system does not let this process at the peer's memory ({}); run both as the same user with the same \
                 capabilities, or give this one CAP_SYS_PTRACE",
                words(*errno)
            ),
            Self::Refused(why) => write!(f, "the peer refuses: {why}"),
            Self::Silent => f.write_str("the peer does not answer; it may be stopped or very busy"),
        }
    }
}

fn words(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

impl Obstacle {
    /// The error that a route or a session ends with because of it.
    #[must_use]
    pub fn error(&self) -> Error {
        let (kind, errno) = match self {
            Self::NobodyThere => (ErrorKind::PeerLost, None),
            Self::Silent => (ErrorKind::TimedOut, None),
            Self::OtherUser { .. } | Self::Refused(_) => (ErrorKind::AccessDenied, None),
            Self::NotPermitted { errno, .. } => (ErrorKind::AccessDenied, Some(*errno)),
            Self::NoCalls { errno } => (ErrorKind::Unavailable, Some(*errno)),
            Self::NotLinux | Self::OtherHost | Self::OtherPidNamespace => (ErrorKind::Unavailable, None),
        };
        match errno {
            None => Error::new(kind, self.to_string()),
            Some(number) => {
                Error::with_cause(kind, self.to_string(), Cause { domain: "errno", number: number.into() })
            }
        }
    }
}

/// What this host says about copies between processes, without any peer.
///
/// ```
/// let facts = mori_shm::HostFacts::look();
/// println!("{facts}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostFacts {
    /// What stands in the way of every peer, if anything does.
    pub obstacle: Option<Obstacle>,
    /// `kernel.yama.ptrace_scope`, where there is one: 0 leaves processes of one user alone, 1 lets in ancestors and whom a
    /// process allows, 2 asks for `CAP_SYS_PTRACE`, 3 lets nobody in.
    pub yama: Option<u32>,
}

impl HostFacts {
    /// Looks. Costs two system calls.
    #[must_use]
    pub fn look() -> Self {
        Self { obstacle: obstacle(), yama: yama() }
    }
}

impl fmt::Display for HostFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.obstacle, self.yama) {
            (Some(obstacle), _) => write!(f, "not available: {obstacle}"),
            (None, None) => f.write_str("available; the system has no Yama restrictions"),
            (None, Some(scope)) => write!(f, "available; kernel.yama.ptrace_scope is {scope}"),
        }
    }
}

/// Yama's scope, where there is one.
pub(crate) fn yama() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

#[cfg(target_os = "linux")]
fn obstacle() -> Option<Obstacle> {
    let word = Box::new(0x6d6f_7269_u64.to_le_bytes());
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let error = crate::sys::peek::<8>(own, word.as_ptr().expose_provenance() as u64).err()?;
    Some(Obstacle::NoCalls { errno: error.raw_os_error().unwrap_or(0) })
}

#[cfg(not(target_os = "linux"))]
fn obstacle() -> Option<Obstacle> {
    Some(Obstacle::NotLinux)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_says_what_to_do() {
        let denied = |yama| Obstacle::NotPermitted { yama, errno: 1 };
        for (obstacle, kind, says) in [
            (Obstacle::OtherHost, ErrorKind::Unavailable, "another host"),
            (Obstacle::NobodyThere, ErrorKind::PeerLost, "network namespace"),
            (Obstacle::OtherUser { ours: 1, theirs: 2 }, ErrorKind::AccessDenied, "as user 2"),
            (Obstacle::OtherPidNamespace, ErrorKind::Unavailable, "PID namespace"),
            (denied(Some(1)), ErrorKind::AccessDenied, "ptrace_scope at 1; set the peer's `tracers`"),
            (denied(Some(2)), ErrorKind::AccessDenied, "CAP_SYS_PTRACE"),
            (denied(Some(0)), ErrorKind::AccessDenied, "same user"),
            (denied(None), ErrorKind::AccessDenied, "same user"),
            (Obstacle::Silent, ErrorKind::TimedOut, "stopped"),
            (Obstacle::Refused("no".into()), ErrorKind::AccessDenied, "refuses: no"),
            (Obstacle::NoCalls { errno: 38 }, ErrorKind::Unavailable, "filter"),
        ] {
            let error = obstacle.error();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(says), "{error}");
        }
        assert_eq!(denied(None).error().cause(), Some(Cause { domain: "errno", number: 1 }));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_host_can_copy() {
        let facts = HostFacts::look();
        assert_eq!(facts.obstacle, None, "{facts}");
    }
}
