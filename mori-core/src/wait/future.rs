//! Statuses and batches as futures (contract F1): waker-based, with no runtime of their own.
//!
//! A future subscribes like a waiter for many and leaves a waker instead of sleeping. Dropping it takes the
//! subscription back and cancels nothing. Members whose backend has no notifier are polled by the re-poll thread as long
//! as a future waits for them.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::many::{Gate, Outcome, Until, scan};
use super::repoll;
use crate::status::{Observe, Status, StatusCode};

/// The future of one status; resolves to its terminal code, or to *init* at once if it was never submitted.
///
/// ```
/// # use mori_core::{Status, Tag};
/// # async fn example(status: Status) {
/// let code = (&status).await;
/// assert!(code.is_terminal());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Completion(Gathering<[Status; 1]>);

impl Future for Completion {
    type Output = StatusCode;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<StatusCode> {
        Pin::new(&mut self.0).poll(context).map(|outcome| outcome.code())
    }
}

impl IntoFuture for &Status {
    type Output = StatusCode;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        Completion(Gathering::all([self.clone()]))
    }
}

impl IntoFuture for Status {
    type Output = StatusCode;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        Completion(Gathering::all([self]))
    }
}

/// The future of a batch; resolves to the batch's outcome when every member is terminal (or never submitted).
///
/// ```
/// # use mori_core::{Gathering, Status};
/// # async fn example(statuses: Vec<Status>) {
/// let outcome = Gathering::all(statuses).await;
/// assert!(outcome.all_quiet());
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Gathering<L: AsRef<[Status]>> {
    members: L,
    until: Until,
    gate: Option<Arc<Gate>>,
}

impl<L: AsRef<[Status]>> Gathering<L> {
    /// Resolves when every member is terminal.
    pub fn all(members: L) -> Self {
        Self { members, until: Until::All, gate: None }
    }

    /// Resolves when every member is terminal or one has failed.
    pub fn first_failure(members: L) -> Self {
        Self { members, until: Until::FirstFailure, gate: None }
    }

    /// Resolves when `count` members are terminal, or all of them if there are fewer.
    pub fn some(members: L, count: usize) -> Self {
        Self { members, until: Until::Some(count), gate: None }
    }

    fn subscribe(&mut self) -> Arc<Gate> {
        let mut terminal = 0;
        let mut failed = false;
        let mut pending = Vec::new();
        for status in self.members.as_ref() {
            match status.code() {
                StatusCode::InProgress => pending.push(status.clone()),
                StatusCode::Init => {}
                code => {
                    terminal += 1;
                    failed |= code.is_failure();
                }
            }
        }
        let needed = self.until.needed(terminal, failed, pending.len());
        let gate = Gate::over(&pending, needed, self.until);
        pending.retain(|status| !status.has_notifier() && !status.code().is_terminal());
        repoll::watch(pending, &gate);
        gate
    }
}

impl<L: AsRef<[Status]> + Unpin> Future for Gathering<L> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let gate = match &self.gate {
            Some(gate) => Arc::clone(gate),
            None => {
                let gate = self.subscribe();
                self.gate = Some(Arc::clone(&gate));
                gate
            }
        };
        if gate.arm(context.waker()) { Poll::Ready(scan(self.members.as_ref())) } else { Poll::Pending }
    }
}

impl<L: AsRef<[Status]>> Drop for Gathering<L> {
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let observer: Arc<dyn Observe> = gate;
        for status in self.members.as_ref() {
            if !status.code().is_terminal() {
                status.unsubscribe(&observer);
            }
        }
    }
}

impl<L: AsRef<[Status]>> std::fmt::Debug for Gathering<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathering")
            .field("members", &self.members.as_ref().len())
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}
