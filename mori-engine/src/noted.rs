//! Messages for the target of a transfer whose backend carries none: another backend of the engine delivers them when the bytes
//! are in place.
//!
//! # Protocol
//!
//! 1. The caller gets a second status of the same transfer ([`Status::sequel`]). Polls, waits and cancelling reach the carrier
//!    by the transfer's number, as with the first one.
//! 2. When the first status is terminal, the message is sent, once, on the thread that completed it: after a success always, after
//!    a failure if the submitter asked for that. A carrier without a notifier is polled by the re-poll thread meanwhile, so that
//!    the target is told also if nobody waits here.
//! 3. The second status ends after the message has: in success when it is in the target's queue, as a failure if it could
//!    not be delivered, and with the carrier's failure if there was one, whatever became of the message.

use std::sync::Arc;

use mori_core::{Error, Message, Messenger, Notify, Status};

use crate::task;

/// Has `messenger` tell the target how `transfer` ended, and returns the status of both together.
pub(crate) fn follow(transfer: Status, messenger: Arc<dyn Messenger>, notify: Notify) -> Status {
    let (completer, status) = transfer.sequel();
    completer.submit();
    task::start(async move {
        let code = (&transfer).await;
        let failure = transfer.error();
        let told = if failure.is_none() || notify.on_failure {
            let message =
                Message { transfer: transfer.id(), tag: transfer.tag(), notify, failure: failure.clone() };
            let sent = messenger.send(&message);
            (&sent).await;
            sent.error()
        } else {
            None
        };
        match (failure, told) {
            (Some(failure), told) => {
                if let Some(error) = told {
                    tracing::debug!(transfer = %transfer.id(), %error, "a failure could not be reported");
                }
                completer.fail(failure);
            }
            (None, Some(error)) => {
                completer.fail(untold(&error));
            }
            (None, None) if code.is_success() => {
                completer.succeed();
            }
            // Never submitted: the carrier broke its contract, and dropping the writer's side says so.
            (None, None) => {}
        }
    });
    status
}

fn untold(error: &Error) -> Error {
    error.context("every byte is in place, but the target could not be told")
}
