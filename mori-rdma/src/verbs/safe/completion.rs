//! Completion channels, completion queues, and what they deliver.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use super::super::error::{Failure, VerbsError, check};
use super::super::sys::{self, Api, Plain, ibv_comp_channel, ibv_cq, ibv_wc};
use super::{Context, Object, Opcode, WcStatus, clamped, count, fresh_id, not_destroyed};

/// Where completion queues announce that there are completions; a handle, clones are handles to the same one.
///
/// # Protocol
///
/// Arm the queue, poll it until it is empty, and only then wait for the channel's descriptor to become readable: a completion
/// between the polling and the arming is announced by nobody. After an announcement the queue is no longer armed.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Channel>);

#[derive(Debug)]
struct Channel {
    channel: Object<ibv_comp_channel>,
    context: Context,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is this value's, no queue of it is left, and it is destroyed once.
        let code = unsafe { (self.context.api().ibv_destroy_comp_channel)(self.channel.pointer()) };
        not_destroyed("completion channel", check("ibv_destroy_comp_channel", code));
    }
}

impl CompletionChannel {
    pub(super) fn create(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context lives.
        let channel = unsafe { (context.api().ibv_create_comp_channel)(context.pointer()) };
        let Some(channel) = Object::new(channel) else {
            return Err(Failure::last("ibv_create_comp_channel").into());
        };
        let channel = Self(Arc::new(Channel { channel, context: context.clone() }));
        super::unblock(channel.as_fd())?;
        Ok(channel)
    }

    /// Takes the next announcement, if there is one, acknowledges it, and returns the [`id`](CompletionQueue::id) of the queue
    /// that it is of.
    ///
    /// # Errors
    ///
    /// What the library says, for example that the device is gone.
    pub fn next_event(&self) -> Result<Option<u64>, VerbsError> {
        let mut queue = ptr::null_mut();
        let mut id = ptr::null_mut();
        let api = self.0.context.api();
        // SAFETY: the channel lives, and the call writes two pointers; the descriptor does not block.
        let code = unsafe { (api.ibv_get_cq_event)(self.0.channel.pointer(), &raw mut queue, &raw mut id) };
        if let Err(failure) = check("ibv_get_cq_event", code) {
            let none = matches!(failure.errno, libc::EAGAIN | libc::EINTR);
            return if none { Ok(None) } else { Err(failure.into()) };
        }
        // SAFETY: the queue is not destroyed before its event is acknowledged, which happens here, once.
        unsafe { (api.ibv_ack_cq_events)(queue, 1) };
        Ok(Some(id.addr() as u64))
    }
}

impl AsFd for CompletionChannel {
    /// The descriptor that is readable while there are announcements. It does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, and the field does not change.
        let fd = unsafe { (*self.0.channel.pointer()).fd };
        // SAFETY: the descriptor is the channel's and is open as long as it.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// Where completions of queue pairs arrive; a handle, clones are handles to the same one.
///
/// A queue that gets more completions than it has entries overruns: it and its queue pairs are then broken, which an
/// [`AsyncEventKind::CompletionQueueError`](super::AsyncEventKind::CompletionQueueError) says. Never have more signalled
/// requests and receives outstanding than [`capacity`](CompletionQueue::capacity).
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    queue: Object<ibv_cq>,
    id: u64,
    context: Context,
    channel: Option<CompletionChannel>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue is this value's, no queue pair of it is left, its events are acknowledged, and it is destroyed once.
        let code = unsafe { (self.context.api().ibv_destroy_cq)(self.queue.pointer()) };
        not_destroyed("completion queue", check("ibv_destroy_cq", code));
    }
}

impl CompletionQueue {
    pub(super) fn create(
        context: &Context,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<Self, VerbsError> {
        if entries == 0 {
            return Err(VerbsError::Argument("a completion queue has at least one entry".to_owned()));
        }
        if channel.is_some_and(|channel| !channel.0.context.is_same(context)) {
            let message = "the completion channel is of another open device than the completion queue";
            return Err(VerbsError::Argument(message.to_owned()));
        }
        let id = fresh_id();
        let raw_channel = channel.map_or(ptr::null_mut(), |channel| channel.0.channel.pointer());
        // SAFETY: the context and the channel live, and the channel is of the context. The third argument is a number that
        // comes back as it is.
        let queue = unsafe {
            (context.api().ibv_create_cq)(
                context.pointer(),
                clamped(entries),
                number_as_pointer(id),
                raw_channel,
                clamped(vector),
            )
        };
        let Some(queue) = Object::new(queue) else {
            return Err(Failure::last("ibv_create_cq").into());
        };
        Ok(Self(Arc::new(Queue { queue, id, context: context.clone(), channel: channel.cloned() })))
    }

    fn api(&self) -> &Api {
        self.0.context.api()
    }

    pub(super) fn pointer(&self) -> *mut ibv_cq {
        self.0.queue.pointer()
    }

    /// Its number, by which events name it: unique in this process and never used again.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The open device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The channel on which it announces completions when it is armed.
    #[must_use]
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.0.channel.as_ref()
    }

    /// How many completions it holds, which may be more than was asked for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        // SAFETY: the queue lives. The field changes in `resize` only, which is a single aligned number's store in the library;
        // a volatile read of it sees the old or the new one.
        let field = unsafe { &raw const (*self.pointer()).cqe };
        // SAFETY: as above.
        let entries = unsafe { field.read_volatile() };
        count(entries)
    }

    /// Takes completions, oldest first, into the front of `into`, and returns them; none if there are none.
    ///
    /// # Errors
    ///
    /// If the queue is broken, as after an overrun.
    #[inline]
    pub fn poll<'a>(&self, into: &'a mut [WorkCompletion]) -> Result<&'a [WorkCompletion], VerbsError> {
        const CALL: &str = "ibv_poll_cq";
        let most = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue and so its context live, and the table of operations does not change.
        let poll = unsafe { (*self.context().pointer()).ops.poll_cq };
        let poll = poll.ok_or(VerbsError::Unsupported { call: CALL, why: NO_OPERATION })?;
        // SAFETY: the call fills at most as many completions as it is told; a completion is the library's structure.
        let found = unsafe { poll(self.pointer(), most, into.as_mut_ptr().cast::<ibv_wc>()) };
        match usize::try_from(found) {
            Ok(found) => Ok(into.get(..found).unwrap_or(into)),
            // The number is the driver's own; it is no errno.
            Err(_) => Err(Failure {
                call: CALL,
                errno: 0,
                remedy: Some(
                    "the completion queue is broken, probably overrun; make it and its queue pairs anew"
                        .to_owned(),
                ),
            }
            .into()),
        }
    }

    /// Lets the next completion be announced on the channel; with `solicited_only`, the next that the peer marked, or that
    /// failed.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] without a channel, else what the library says.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        const CALL: &str = "ibv_req_notify_cq";
        if self.0.channel.is_none() {
            let message = "the completion queue has no channel to announce anything on; make it with one";
            return Err(VerbsError::Argument(message.to_owned()));
        }
        // SAFETY: as in `poll`.
        let arm = unsafe { (*self.context().pointer()).ops.req_notify_cq };
        let arm = arm.ok_or(VerbsError::Unsupported { call: CALL, why: NO_OPERATION })?;
        // SAFETY: the queue lives.
        let code = unsafe { arm(self.pointer(), i32::from(solicited_only)) };
        Ok(check(CALL, code)?)
    }

    /// Gives it room for at least `entries` completions; those that it holds stay.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] for no entry; else what the library says: many drivers cannot.
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        if entries == 0 {
            return Err(VerbsError::Argument("a completion queue has at least one entry".to_owned()));
        }
        // SAFETY: the queue lives; the library locks for itself.
        let code = unsafe { (self.api().ibv_resize_cq)(self.pointer(), clamped(entries)) };
        Ok(check("ibv_resize_cq", code)?)
    }
}

/// Why an operation of a context's table may be missing.
pub(super) const NO_OPERATION: &str = "the device's driver does not have it";

/// A number that goes through the library as a pointer, and is never used as one.
pub(super) fn number_as_pointer(number: u64) -> *mut std::ffi::c_void {
    // 64-bit only, as the types' layout: no bit is lost.
    ptr::without_provenance_mut(usize::try_from(number).unwrap_or(usize::MAX))
}

/// What became of a work request.
///
/// Of a failed one only [`wr_id`](WorkCompletion::wr_id), [`status`](WorkCompletion::status),
/// [`vendor_error`](WorkCompletion::vendor_error) and [`queue_pair_number`](WorkCompletion::queue_pair_number) mean anything.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(ibv_wc);

impl Default for WorkCompletion {
    fn default() -> Self {
        Self(ibv_wc::zeroed())
    }
}

impl WorkCompletion {
    /// The number that the work request was posted with.
    #[inline]
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended.
    #[inline]
    #[must_use]
    pub fn status(&self) -> WcStatus {
        WcStatus::from_number(self.0.status)
    }

    /// What it was; of a successful one.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode::from_number(self.0.opcode)
    }

    /// How many bytes arrived; of a successful receive or read.
    #[inline]
    #[must_use]
    pub fn byte_length(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate data that came with it, if any did; of a successful receive.
    #[inline]
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & sys::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }

    /// The number of the queue pair on its device. Two devices may have the same, and so may a queue pair that was destroyed.
    #[inline]
    #[must_use]
    pub fn queue_pair_number(&self) -> u32 {
        self.0.qp_num
    }

    /// The driver's own number for a failure.
    #[inline]
    #[must_use]
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("wr_id", &self.wr_id())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("byte_length", &self.byte_length())
            .field("immediate", &self.immediate())
            .field("queue_pair_number", &self.queue_pair_number())
            .field("vendor_error", &self.vendor_error())
            .finish()
    }
}
