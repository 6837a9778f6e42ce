//! Statuses for event loops: a file descriptor that becomes readable (contract F2).

use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use mori_core::{Error, ErrorKind, Gathering, Outcome, Result, Status, scan};
use rustix::event::{EventfdFlags, eventfd};

/// A file descriptor that becomes readable when a status, or a batch of them, is terminal, and stays readable.
///
/// Give it to `poll`, `epoll` or an event loop; do not read from it. Transfers on backends that need polling are polled
/// meanwhile by a thread of the library's own. Dropping it closes the descriptor and cancels nothing.
///
/// A status that was never submitted is not waited for.
///
/// ```
/// use mori_engine::{Status, StatusFd, Tag};
/// use rustix::event::{PollFd, PollFlags, Timespec, poll};
/// let done = StatusFd::new(&Status::succeeded(Tag(1)))?;
/// let mut polled = [PollFd::new(&done, PollFlags::IN)];
/// let ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
/// assert_eq!(ready, 1);
/// assert!(done.outcome().is_success());
/// # Ok::<(), mori_engine::Error>(())
/// ```
pub struct StatusFd {
    bell: Arc<Bell>,
    members: Arc<[Status]>,
    /// Holds the subscriptions; polled once, and given back when it is dropped.
    _gathering: Gathering<Arc<[Status]>>,
}

impl StatusFd {
    /// Readable when `status` is terminal.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] if the process may open no further file.
    pub fn new(status: &Status) -> Result<Self> {
        Self::all(std::slice::from_ref(status))
    }

    /// Readable when every member is terminal.
    ///
    /// # Errors
    ///
    /// As [`StatusFd::new`].
    pub fn all(members: &[Status]) -> Result<Self> {
        Self::gather(members, Gathering::all)
    }

    /// Readable when every member is terminal or one has failed.
    ///
    /// # Errors
    ///
    /// As [`StatusFd::new`].
    pub fn first_failure(members: &[Status]) -> Result<Self> {
        Self::gather(members, Gathering::first_failure)
    }

    /// Readable when `count` members are terminal, or all of them if there are fewer.
    ///
    /// # Errors
    ///
    /// As [`StatusFd::new`].
    pub fn some(members: &[Status], count: usize) -> Result<Self> {
        Self::gather(members, |members| Gathering::some(members, count))
    }

    fn gather(
        members: &[Status],
        gathering: impl FnOnce(Arc<[Status]>) -> Gathering<Arc<[Status]>>,
    ) -> Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let members: Arc<[Status]> = members.into();
        let mut gathering = gathering(Arc::clone(&members));
        let waker = Waker::from(Arc::clone(&bell));
        // One poll leaves the waker, which rings once, or finds that there is nothing to wait for.
        if Pin::new(&mut gathering).poll(&mut Context::from_waker(&waker)).is_ready() {
            bell.ring();
        }
        Ok(Self { bell, members, _gathering: gathering })
    }

    /// Where the members stand now. Calls into no backend.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        scan(&self.members)
    }

    /// The members, in the order in which they were given.
    #[must_use]
    pub fn members(&self) -> &[Status] {
        &self.members
    }
}

impl AsFd for StatusFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}

impl AsRawFd for StatusFd {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.fd.as_raw_fd()
    }
}

impl fmt::Debug for StatusFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusFd")
            .field("fd", &self.as_raw_fd())
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

/// A counter of the kernel's that is readable while it is not zero.
struct Bell {
    fd: OwnedFd,
}

impl Bell {
    fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        match eventfd(0, flags) {
            Ok(fd) => Ok(Self { fd }),
            Err(errno) => Err(Error::io(
                ErrorKind::ResourceExhausted,
                "cannot open a file descriptor for a status; close some or raise the limit",
                &errno.into(),
            )),
        }
    }

    fn ring(&self) {
        // The counter starts at zero and a bell rings at most twice, so the one error that a write can give, a counter that is
        // full, does not happen; if it did, the descriptor would be readable all the same.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
