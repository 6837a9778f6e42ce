//! Queue pairs.

use std::ptr;

use super::super::error::{Failure, VerbsError, check};
use super::super::sys::{self, Plain, ibv_qp};
use super::completion::{NO_OPERATION, number_as_pointer};
use super::requests::position;
use super::states::{Change, bare};
use super::{
    CompletionQueue, Context, InitAttributes, Object, ProtectionDomain, QueuePairState, RecvList,
    RtrAttributes, RtsAttributes, SendList, fresh_id, not_destroyed,
};

/// What a queue pair is made from.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions<'a> {
    /// Where completions of sends, writes and reads arrive.
    pub send_completions: &'a CompletionQueue,
    /// Where completions of receives arrive; may be the same.
    pub receive_completions: &'a CompletionQueue,
    /// What it must be able to take at least.
    pub capacities: QueuePairCapacities,
    /// Whether every request is signalled, whatever its flags say.
    pub signal_all: bool,
}

/// How much a queue pair takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCapacities {
    /// Outstanding requests of the send queue. One that is not signalled is outstanding until a later signalled one completes.
    pub send_requests: u32,
    /// Outstanding receives.
    pub receive_requests: u32,
    /// Pieces of one request of the send queue.
    pub send_pieces: u32,
    /// Pieces of one receive.
    pub receive_pieces: u32,
    /// Inline bytes of one request.
    pub inline_bytes: u32,
}

/// A list that was posted only in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error} (the first {accepted} of {posted} requests were accepted)")]
pub struct PostError {
    /// How many requests from the list's front were accepted. They are carried out, and complete like any other. A library that
    /// does not say which request it refused counts as having accepted all.
    pub accepted: usize,
    /// How many there were.
    pub posted: usize,
    /// Why the next one was not accepted.
    #[source]
    pub error: VerbsError,
}

impl PostError {
    fn nothing(posted: usize, error: VerbsError) -> Self {
        Self { accepted: 0, posted, error }
    }

    /// Whether the queue was full: `ENOMEM`, or `ENOSPC` and `EAGAIN` of some drivers.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.error.errno(), Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN))
    }
}

/// A reliable connected queue pair. Dropping it destroys it at once: what is outstanding is given up without a completion, and
/// the device no longer touches its memory afterwards.
#[derive(Debug)]
pub struct QueuePair {
    queue: Object<ibv_qp>,
    id: u64,
    number: u32,
    capacities: QueuePairCapacities,
    domain: ProtectionDomain,
    send_completions: CompletionQueue,
    receive_completions: CompletionQueue,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is this value's, its events are acknowledged, and it is destroyed once.
        let code = unsafe { (self.domain.api().ibv_destroy_qp)(self.queue.pointer()) };
        not_destroyed("queue pair", check("ibv_destroy_qp", code));
    }
}

impl QueuePair {
    pub(super) fn create(
        domain: &ProtectionDomain,
        options: &QueuePairOptions<'_>,
    ) -> Result<Self, VerbsError> {
        for completions in [options.send_completions, options.receive_completions] {
            if !completions.context().is_same(domain.context()) {
                let message = "the completion queue is of another open device than the protection domain";
                return Err(VerbsError::Argument(message.to_owned()));
            }
        }
        let wanted = options.capacities;
        let id = fresh_id();
        let mut raw = sys::ibv_qp_init_attr::zeroed();
        raw.qp_context = number_as_pointer(id);
        raw.send_cq = options.send_completions.pointer();
        raw.recv_cq = options.receive_completions.pointer();
        raw.qp_type = sys::IBV_QPT_RC;
        raw.sq_sig_all = i32::from(options.signal_all);
        raw.cap = sys::ibv_qp_cap {
            max_send_wr: wanted.send_requests,
            max_recv_wr: wanted.receive_requests,
            max_send_sge: wanted.send_pieces,
            max_recv_sge: wanted.receive_pieces,
            max_inline_data: wanted.inline_bytes,
        };
        // SAFETY: the domain and the completion queues live and are of one context. The call reads the structure and writes
        // into it what the queue pair really takes.
        let queue = unsafe { (domain.api().ibv_create_qp)(domain.pointer(), &raw mut raw) };
        let Some(queue) = Object::new(queue) else {
            return Err(Failure::last("ibv_create_qp").into());
        };
        // SAFETY: the queue pair lives, and the field does not change.
        let number = unsafe { (*queue.pointer()).qp_num };
        Ok(Self {
            queue,
            id,
            number,
            capacities: QueuePairCapacities {
                send_requests: raw.cap.max_send_wr,
                receive_requests: raw.cap.max_recv_wr,
                send_pieces: raw.cap.max_send_sge,
                receive_pieces: raw.cap.max_recv_sge,
                inline_bytes: raw.cap.max_inline_data,
            },
            domain: domain.clone(),
            send_completions: options.send_completions.clone(),
            receive_completions: options.receive_completions.clone(),
        })
    }

    /// Its number in this process, by which events name it: unique and never used again.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its number on its device, by which the peer and completions name it. Another device may have one with the same, and a
    /// later queue pair may get it again.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it really takes, which may be more than was asked for.
    #[must_use]
    pub fn capacities(&self) -> QueuePairCapacities {
        self.capacities
    }

    /// The protection domain.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// The open device.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Where completions of sends, writes and reads arrive.
    #[must_use]
    pub fn send_completions(&self) -> &CompletionQueue {
        &self.send_completions
    }

    /// Where completions of receives arrive.
    #[must_use]
    pub fn receive_completions(&self) -> &CompletionQueue {
        &self.receive_completions
    }

    fn modify(&self, (mut raw, mask): Change) -> Result<(), VerbsError> {
        // SAFETY: the queue pair lives, and the call reads the attributes that the mask names.
        let code = unsafe {
            (self.domain.api().ibv_modify_qp)(self.queue.pointer(), &raw mut raw, mask.cast_signed())
        };
        Ok(check("ibv_modify_qp", code)?)
    }

    /// From [`Reset`](QueuePairState::Reset) to [`Init`](QueuePairState::Init): receives can be posted from now on.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn to_init(&self, attributes: &InitAttributes) -> Result<(), VerbsError> {
        self.modify(attributes.change())
    }

    /// From [`Init`](QueuePairState::Init) to [`ReadyToReceive`](QueuePairState::ReadyToReceive): the peer is known, and its
    /// messages are taken. On Ethernet the kernel resolves the peer's address here, which may take a second or time out.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn to_ready_to_receive(&self, attributes: &RtrAttributes) -> Result<(), VerbsError> {
        self.modify(attributes.change())
    }

    /// From [`ReadyToReceive`](QueuePairState::ReadyToReceive) to [`ReadyToSend`](QueuePairState::ReadyToSend).
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn to_ready_to_send(&self, attributes: &RtsAttributes) -> Result<(), VerbsError> {
        self.modify(attributes.change())
    }

    /// To [`Error`](QueuePairState::Error), from any state: everything outstanding completes, flushed if it is not done yet.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn to_error(&self) -> Result<(), VerbsError> {
        self.modify(bare(sys::IBV_QPS_ERR))
    }

    /// To [`Reset`](QueuePairState::Reset), from any state: everything outstanding is forgotten. Completions that are in their
    /// queues already may stay there or go.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn reset(&self) -> Result<(), VerbsError> {
        self.modify(bare(sys::IBV_QPS_RESET))
    }

    /// Its state now.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn state(&self) -> Result<QueuePairState, VerbsError> {
        let mut raw = sys::ibv_qp_attr::zeroed();
        let mut made_from = sys::ibv_qp_init_attr::zeroed();
        // SAFETY: the queue pair lives, and the call fills both structures.
        let code = unsafe {
            (self.domain.api().ibv_query_qp)(
                self.queue.pointer(),
                &raw mut raw,
                sys::IBV_QP_STATE.cast_signed(),
                &raw mut made_from,
            )
        };
        check("ibv_query_qp", code)?;
        Ok(QueuePairState::from_number(raw.qp_state))
    }

    /// Posts the list's requests, in their order. The list can be changed and posted again afterwards; the memory that the
    /// requests name is the device's until they complete.
    ///
    /// # Errors
    ///
    /// How many were accepted, and why the next one was not: [`VerbsError::Argument`] before anything is posted for a request
    /// that the queue pair's capacities do not allow; else what the library says, `ENOMEM` for a full queue.
    pub fn post_send(&self, list: &mut SendList) -> Result<(), PostError> {
        const CALL: &str = "ibv_post_send";
        let count = list.len();
        if count == 0 {
            return Ok(());
        }
        let (pieces, inline) = (self.capacities.send_pieces, self.capacities.inline_bytes);
        let first = list.link(pieces, inline).map_err(|error| PostError::nothing(count, error))?;
        // SAFETY: the queue pair and so its context live, and the table of operations does not change.
        let post = unsafe { (*self.context().pointer()).ops.post_send };
        let missing = VerbsError::Unsupported { call: CALL, why: NO_OPERATION };
        let post = post.ok_or_else(|| PostError::nothing(count, missing))?;
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair lives; the list is linked and borrowed exclusively. The library reads the requests, their
        // pieces and inline data during the call only; other memory is the device's to check.
        let code = unsafe { post(self.queue.pointer(), first, &raw mut refused) };
        check(CALL, code).map_err(|failure| PostError {
            accepted: position(first, count, refused),
            posted: count,
            error: failure.into(),
        })
    }

    /// Posts the list's receives, in their order.
    ///
    /// # Errors
    ///
    /// As [`post_send`](QueuePair::post_send).
    pub fn post_receive(&self, list: &mut RecvList) -> Result<(), PostError> {
        const CALL: &str = "ibv_post_recv";
        let count = list.len();
        if count == 0 {
            return Ok(());
        }
        let first =
            list.link(self.capacities.receive_pieces).map_err(|error| PostError::nothing(count, error))?;
        // SAFETY: as in `post_send`.
        let post = unsafe { (*self.context().pointer()).ops.post_recv };
        let missing = VerbsError::Unsupported { call: CALL, why: NO_OPERATION };
        let post = post.ok_or_else(|| PostError::nothing(count, missing))?;
        let mut refused = ptr::null_mut();
        // SAFETY: as in `post_send`.
        let code = unsafe { post(self.queue.pointer(), first, &raw mut refused) };
        check(CALL, code).map_err(|failure| PostError {
            accepted: position(first, count, refused),
            posted: count,
            error: failure.into(),
        })
    }
}
