//! What can go wrong, with the call's name, the errno and its text, and what to do about it.

use std::fmt;
use std::io;

use mori_core::{Cause, Error, ErrorKind};

/// Which numbering a [`Cause`] that comes from a call belongs to.
const DOMAIN: &str = "errno";

/// Why something of the verbs library's could not be had or done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// No library could be opened.
    #[error(
        "no usable verbs library; install rdma-core (libibverbs1), or name one in {variable}. Tried: {tried}"
    )]
    NoLibrary {
        /// The environment variable that names a library.
        variable: &'static str,
        /// What was tried, each with the reason.
        tried: String,
    },
    /// The library lacks a function without which nothing works.
    #[error(
        "{library} has no symbol {symbol}; rdma-core 32 or later is needed, or another library in {variable}"
    )]
    MissingSymbol {
        /// The library, as it was looked for.
        library: String,
        /// The symbol.
        symbol: &'static str,
        /// The environment variable that names a library.
        variable: &'static str,
    },
    /// The library or the device's driver has no such function. Do without it.
    #[error("{call} is not there: {why}")]
    Unsupported {
        /// The function.
        call: &'static str,
        /// What lacks it.
        why: &'static str,
    },
    /// An argument that is refused before the library sees it.
    #[error("{0}")]
    Argument(String),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] Failure),
}

/// A call of the library's that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// The errno; 0 if the library gave none.
    pub errno: i32,
    /// What to do about it, where that is known.
    pub remedy: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == 0 {
            write!(f, "{} failed without an errno", self.call)?;
        } else {
            let text = io::Error::from_raw_os_error(self.errno);
            match errno_name(self.errno) {
                Some(name) => write!(f, "{} failed with {name}: {text}", self.call)?,
                None => write!(f, "{} failed: {text}", self.call)?,
            }
        }
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl Failure {
    /// The failure of `call` with this errno, with the remedy for it.
    pub(super) fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno, remedy: remedy(call, errno) }
    }

    /// The failure of `call`, which left its number in the thread's errno. Must be made right after the call.
    pub(super) fn last(call: &'static str) -> Self {
        Self::new(call, io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The errno's name, such as `ENOMEM`, if it is among those that this library's calls return.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        errno_name(self.errno)
    }
}

/// What a call that returns an errno, or -1 with the thread's errno, or a negative errno, returned. Must be called right
/// after it.
pub(super) fn check(call: &'static str, code: i32) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        -1 => Err(Failure::last(call)),
        code => Err(Failure::new(call, code.saturating_abs())),
    }
}

impl VerbsError {
    /// The errno, if a call failed with one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call(failure) if failure.errno != 0 => Some(failure.errno),
            _ => None,
        }
    }

    /// The kind of error that this is for callers of a transport.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoLibrary { .. } | Self::MissingSymbol { .. } => ErrorKind::Unavailable,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Argument(_) => ErrorKind::InvalidArgument,
            Self::Call(failure) => match failure.errno {
                libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOSPC => {
                    ErrorKind::ResourceExhausted
                }
                libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => ErrorKind::Unsupported,
                libc::EINVAL | libc::EFAULT | libc::ENODATA => ErrorKind::InvalidArgument,
                libc::EBUSY => ErrorKind::Busy,
                libc::ETIMEDOUT => ErrorKind::TimedOut,
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN => {
                    ErrorKind::Transport
                }
                libc::EACCES | libc::EPERM | libc::ENODEV | libc::ENOENT | libc::ENXIO => {
                    ErrorKind::Unavailable
                }
                _ => ErrorKind::Device,
            },
        }
    }
}

impl From<VerbsError> for Error {
    fn from(error: VerbsError) -> Self {
        let (kind, message) = (error.kind(), error.to_string());
        match error.errno() {
            Some(errno) => {
                Self::with_cause(kind, message, Cause { domain: DOMAIN, number: i64::from(errno) })
            }
            None => Self::new(kind, message),
        }
    }
}

/// What to do about a failure that has a usual reason.
fn remedy(call: &str, errno: i32) -> Option<String> {
    let text = match (call, errno) {
        ("ibv_reg_mr" | "ibv_reg_mr_iova2" | "ibv_reg_dmabuf_mr", libc::ENOMEM | libc::EAGAIN) => {
            return Some(format!(
                "registered memory is locked memory, and this process may lock {}; raise the limit (`ulimit -l unlimited`, \
                 memlock in /etc/security/limits.conf, LimitMEMLOCK= of a systemd service, `--ulimit memlock=-1` of a container), \
                 or register less",
                memory_limit()
            ));
        }
        ("ibv_reg_mr" | "ibv_reg_mr_iova2", libc::EFAULT) => {
            "the range is not mapped, is not writable, or is a device's memory that the driver cannot reach; for the latter \
             register a dmabuf, or load the driver's peer memory module"
        }
        ("ibv_reg_mr" | "ibv_reg_mr_iova2" | "ibv_reg_dmabuf_mr", libc::EINVAL) => {
            "the access or the range is not among those that the device takes; a dmabuf's offset and its address must agree \
             within a page"
        }
        ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP | libc::ENOSYS) => {
            "the kernel or the device's driver registers no dmabuf; load the driver's peer memory module instead"
        }
        ("ibv_open_device" | "ibv_create_comp_channel", libc::EMFILE | libc::ENFILE) => {
            "the limit of open files is reached; raise it (`ulimit -n`)"
        }
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "this user may not open the device; check the permissions of /dev/infiniband/uverbs*"
        }
        ("ibv_open_device", libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "the device is gone, or /dev/infiniband is missing here (a container has to be given it)"
        }
        ("ibv_create_qp", libc::ENOMEM | libc::EINVAL) => {
            "the queues are larger than the device takes, or it has no queue pair left; ask for fewer or smaller ones, and see \
             the limit of locked memory (`ulimit -l`)"
        }
        ("ibv_create_cq", libc::ENOMEM | libc::EINVAL) => {
            "the queue is longer than the device takes, or it has none left; ask for fewer or shorter ones, and see the limit \
             of locked memory (`ulimit -l`)"
        }
        ("ibv_modify_qp", libc::ETIMEDOUT) => {
            "the peer's address did not resolve in time; check that the link is up and the peer answers, and try again"
        }
        ("ibv_modify_qp", libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "there is no route to the peer's address from this device's; check the addresses, the routes and the GID's index"
        }
        (_, libc::EIO) => "the device or its driver failed, or the device is gone; see the kernel's log",
        _ => return None,
    };
    Some(text.to_owned())
}

/// How much memory this process may lock, in words.
fn memory_limit() -> String {
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        None => {
            "without a limit of its own (so it is the device's table or the machine's memory that is full)"
                .to_owned()
        }
        Some(bytes) => format!("{} KiB", bytes / 1024),
    }
}

/// The names of the numbers that the library's calls return.
fn errno_name(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::E2BIG => "E2BIG",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        libc::ENOSYS => "ENOSYS",
        libc::ENODATA => "ENODATA",
        libc::EPROTO => "EPROTO",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETDOWN => "ENETDOWN",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ENOBUFS => "ENOBUFS",
        libc::ENOTCONN => "ENOTCONN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EHOSTDOWN => "EHOSTDOWN",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ECANCELED => "ECANCELED",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_its_call_number_name_and_text() {
        let failure = Failure::new("ibv_alloc_pd", libc::ENOMEM);
        assert_eq!(failure.name(), Some("ENOMEM"));
        let text = failure.to_string();
        for part in ["ibv_alloc_pd", "ENOMEM", "Cannot allocate memory", "os error 12"] {
            assert!(text.contains(part), "{text}");
        }
        let error = Error::from(VerbsError::from(failure));
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(error.cause(), Some(Cause { domain: "errno", number: 12 }));
    }

    #[test]
    fn a_full_memory_limit_is_named_with_the_way_to_raise_it() {
        for call in ["ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr"] {
            let text = Failure::new(call, libc::ENOMEM).to_string();
            assert!(text.contains("ulimit -l") && text.contains("may lock"), "{text}");
        }
    }

    #[test]
    fn numbers_come_in_three_ways() {
        assert_eq!(check("call", 0), Ok(()));
        assert_eq!(check("call", libc::EBUSY).unwrap_err().errno, libc::EBUSY);
        assert_eq!(check("call", -libc::EINVAL).unwrap_err().errno, libc::EINVAL);
        assert_eq!(check("call", i32::MIN).unwrap_err().errno, i32::MAX);
    }

    #[test]
    fn a_number_without_a_name_and_no_number_have_a_text_all_the_same() {
        assert!(Failure::new("call", 9999).to_string().contains("9999"));
        assert_eq!(Failure::new("call", 0).to_string(), "call failed without an errno");
    }
}
