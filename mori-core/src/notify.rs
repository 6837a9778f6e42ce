//! The queue of messages that peers' transfers leave for this engine's application.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorKind, Result};
use crate::id::{EngineKey, Tag, TransferId};
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Deadline, Sleeper, Timeout};
use crate::transfer::Notify;

/// What a target learns about a peer's transfer: that all its bytes are in place, or that it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The engine that submitted the transfer.
    pub peer: EngineKey,
    /// The transfer's number at that engine.
    pub transfer: u64,
    /// The tag that the submitter gave the transfer.
    pub tag: Tag,
    /// The submitter's message.
    pub message: Vec<u8>,
    /// `None` when every byte is in place; why the transfer failed otherwise.
    pub error: Option<Error>,
}

/// A message about a transfer that another backend carries, for the engine at its other end; see
/// [`Messenger`](crate::Messenger).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The transfer's number.
    pub transfer: TransferId,
    /// Its tag.
    pub tag: Tag,
    /// What its submitter wants to be told.
    pub notify: Notify,
    /// Why the transfer failed; `None` when every byte is in place.
    pub failure: Option<Error>,
}

/// A bounded queue of notifications; a handle, clones are handles to the same queue.
///
/// Each notification is taken by one reader, exactly once. When the queue is full, a further transfer that carries a message
/// fails at its submitter as [`ErrorKind::ResourceExhausted`]; nothing is dropped silently.
///
/// ```
/// use mori_core::{EngineKey, Notification, NotificationQueue, Tag};
/// use std::time::Duration;
/// let queue = NotificationQueue::new(16);
/// assert_eq!(queue.wait(Duration::from_millis(1)), None);
/// let message =
///     Notification { peer: EngineKey::from("decode"), transfer: 1, tag: Tag(7), message: b"ready".to_vec(), error: None };
/// queue.push(message.clone())?;
/// assert_eq!(queue.poll(), Some(message));
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone)]
pub struct NotificationQueue(Arc<Inner>);

struct Inner {
    capacity: usize,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Notification>,
    closed: bool,
    wakers: Vec<Waker>,
}

impl Sleeper for Inner {
    fn look_again(&self) {
        let _state = self.state.lock();
        self.arrived.notify_all();
    }
}

impl NotificationQueue {
    /// An empty queue for at most `capacity` notifications.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let state = Mutex::new(State::default());
        Self(Arc::new(Inner { capacity, state, arrived: Condvar::new() }))
    }

    /// Appends a notification and wakes the readers. For backends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] when the queue is full, [`ErrorKind::BadState`] when it is closed.
    pub fn push(&self, notification: Notification) -> Result<()> {
        let wakers = {
            let mut state = self.0.state.lock();
            if state.closed {
                return Err(Error::new(ErrorKind::BadState, "the target's engine is shut down"));
            }
            if state.queue.len() >= self.0.capacity {
                return Err(Error::new(
                    ErrorKind::ResourceExhausted,
                    format!(
                        "the target's notification queue is full ({} messages); its application must take them faster",
                        self.0.capacity
                    ),
                ));
            }
            state.queue.push_back(notification);
            self.0.arrived.notify_all();
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The oldest notification, if there is one. Never blocks.
    #[must_use]
    pub fn poll(&self) -> Option<Notification> {
        self.0.state.lock().queue.pop_front()
    }

    /// The oldest notification from `peer` with `tag`, if there is one. Never blocks; the others stay where they are.
    #[must_use]
    pub fn poll_matching(&self, peer: &EngineKey, tag: Tag) -> Option<Notification> {
        let mut state = self.0.state.lock();
        let place = state.queue.iter().position(|entry| entry.tag == tag && entry.peer == *peer)?;
        state.queue.remove(place)
    }

    /// The oldest notification, waiting for one if there is none. `None` when `timeout` runs out, or when the queue is closed
    /// and empty.
    #[must_use]
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Option<Notification> {
        self.wait_with(timeout, &Clock::system())
    }

    /// Like [`NotificationQueue::wait`], on another clock.
    #[must_use]
    pub fn wait_with(&self, timeout: impl Into<Timeout>, clock: &Clock) -> Option<Notification> {
        let deadline = match timeout.into() {
            Timeout::Unbounded => Deadline::Never,
            Timeout::Poll => return self.poll(),
            Timeout::Within(bound) => clock.deadline(bound),
        };
        clock.enroll(|| {
            let weak: Weak<Inner> = Arc::downgrade(&self.0);
            weak
        });
        let mut state = self.0.state.lock();
        loop {
            if let Some(notification) = state.queue.pop_front() {
                return Some(notification);
            }
            if state.closed || (deadline != Deadline::Never && deadline.passed(clock.now())) {
                return None;
            }
            clock.sleep(&self.0.arrived, &mut state, deadline);
        }
    }

    /// The oldest notification as a future; `None` when the queue is closed and empty.
    pub fn recv(&self) -> Recv {
        Recv(self.clone())
    }

    /// How many notifications wait to be taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.state.lock().queue.len()
    }

    /// Whether none waits to be taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the queue: what is in it can still be taken, nothing comes after it, and readers are released.
    pub fn close(&self) {
        let wakers = {
            let mut state = self.0.state.lock();
            state.closed = true;
            self.0.arrived.notify_all();
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for NotificationQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotificationQueue")
            .field("capacity", &self.0.capacity)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The future of [`NotificationQueue::recv`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Recv(NotificationQueue);

impl Future for Recv {
    type Output = Option<Notification>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Notification>> {
        let mut state = self.0.0.state.lock();
        if let Some(notification) = state.queue.pop_front() {
            return Poll::Ready(Some(notification));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
