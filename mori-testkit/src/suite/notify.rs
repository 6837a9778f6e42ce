//! Messages to the target: once, after all bytes.

use std::collections::HashMap;

use mori_core::{
    Access, ErrorKind, MAX_NOTIFICATION, Notification, Notify, Op, Piece, Session, Status, StatusCode, Tag,
    TransferOptions,
};

use super::cases;
use super::fixture::{Area, Bench, Link, PATIENT, Peer, same};
use crate::check::{CaseResult, Doing, Problem, ensure};

cases! {
    "Notification" [Notify] a_write_is_notified_once_after_its_bytes,
    "Notification" [Notify] a_read_is_notified_once,
    "Notification" [Notify] a_batch_is_notified_once_after_all_its_pieces,
    "Session::submit" [Notify] an_empty_transfer_delivers_its_message,
    "MAX_NOTIFICATION" [Notify] messages_of_every_length_up_to_the_limit,
    "Notify::on_failure" [Notify] a_failure_is_notified_only_if_asked_for,
    "NotificationQueue" [Notify] a_full_queue_fails_the_transfer_at_its_submitter,
    "Notification" [Notify] many_messages_each_arrive_once,
    "Notification" [Notify] transfers_without_a_message_notify_nobody,
    "E1, Notification" [Notify, Cancel, Hold] a_cancelled_transfer_reports_no_success,
}

fn options(tag: u64, message: &[u8], on_failure: bool) -> TransferOptions {
    TransferOptions {
        tag: Tag(tag),
        notify: Some(Notify { message: message.to_vec(), on_failure }),
        ..TransferOptions::default()
    }
}

/// Takes the next message at `peer`. A submitter without notifier is asked for progress meanwhile.
fn next(bench: &Bench, peer: &Peer, statuses: &[&Status]) -> CaseResult<Notification> {
    let mut found = None;
    bench.until(bench.bounds.transfer, "a message arrives", || {
        for status in statuses.iter().filter(|status| !status.has_notifier()) {
            status.poll();
        }
        found = peer.inbox.poll();
        found.is_some()
    })?;
    found.ok_or_else(|| Problem::new("no message has arrived"))
}

/// Wants a message to be the one that belongs to this transfer of `from`.
fn belongs(notification: &Notification, from: &Peer, status: &Status, message: &[u8]) -> CaseResult {
    ensure!(notification.peer == from.key, "the message is said to be from {}", notification.peer);
    ensure!(
        notification.transfer == status.id().get(),
        "the message names transfer {}, not {}",
        notification.transfer,
        status.id()
    );
    ensure!(
        notification.tag == status.tag(),
        "the message has tag {}, not {}",
        notification.tag,
        status.tag()
    );
    ensure!(
        notification.message == message,
        "{} bytes of message instead of {}, or other ones",
        notification.message.len(),
        message.len()
    );
    Ok(())
}

fn nothing_more(bench: &Bench, peer: &Peer) -> CaseResult {
    bench.settled(|| match peer.inbox.poll() {
        None => Ok(()),
        Some(notification) => Err(Problem::new(format!("one message too many: {notification:?}"))),
    })
}

fn once_after_the_bytes(bench: &Bench, op: Op, pieces: &[Piece], length: usize) -> CaseResult {
    let link = bench.link(length)?;
    for round in 0..10 {
        let mut local = link.a.fill(&link.local, round)?;
        let mut remote = link.b.fill(&link.remote, !round)?;
        super::fixture::apply(op, pieces, &mut local, &mut remote)?;
        let message = format!("message {round}");
        let status = link.session.submit(op, pieces, &options(round, message.as_bytes(), false));
        let notification = next(bench, &link.b, &[&status])?;
        // Looked at before anything else: what the target sees when it learns of the transfer.
        let seen = link.b.bytes(&link.remote)?;
        ensure!(notification.error.is_none(), "a success was notified as {:?}", notification.error);
        belongs(&notification, &link.a, &status, message.as_bytes())?;
        same(&seen, &remote).doing("at the target, when the message was there")?;
        bench.succeed(&status)?;
        link.a.holds(&link.local, &local, "at the submitter")?;
    }
    nothing_more(bench, &link.b)?;
    nothing_more(bench, &link.a).doing("at the submitter")
}

fn a_write_is_notified_once_after_its_bytes(bench: &Bench) -> CaseResult {
    let length = 1 << 20;
    once_after_the_bytes(bench, Op::Write, &[Piece::new(0, 0, length)], 1 << 20)
}

fn a_read_is_notified_once(bench: &Bench) -> CaseResult {
    let length = 1 << 20;
    once_after_the_bytes(bench, Op::Read, &[Piece::new(0, 0, length)], 1 << 20)
}

fn a_batch_is_notified_once_after_all_its_pieces(bench: &Bench) -> CaseResult {
    let pieces: Vec<Piece> = (0..500).map(|index| Piece::new(index * 64, (499 - index) * 64, 60)).collect();
    once_after_the_bytes(bench, Op::Write, &pieces, 32_000)
}

fn an_empty_transfer_delivers_its_message(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    for op in [Op::Read, Op::Write] {
        for pieces in [&[][..], &[Piece::new(64, 0, 0)]] {
            let status = link.session.submit(op, pieces, &options(1, b"no bytes", false));
            let notification = next(bench, &link.b, &[&status])?;
            belongs(&notification, &link.a, &status, b"no bytes")?;
            bench.succeed(&status)?;
        }
    }
    nothing_more(bench, &link.b)
}

fn messages_of_every_length_up_to_the_limit(bench: &Bench) -> CaseResult {
    let link = bench.link(64)?;
    for length in [0, 1, 2, 127, 128, 255, 256, 1000, 1023, MAX_NOTIFICATION] {
        let message = super::fixture::pattern(length as u64, length);
        let status =
            link.session.submit(Op::Write, &[Piece::new(0, 0, 64)], &options(u64::MAX, &message, true));
        let notification = next(bench, &link.b, &[&status])?;
        belongs(&notification, &link.a, &status, &message).doing(format!("a message of {length} bytes"))?;
        bench.succeed(&status)?;
    }
    Ok(())
}

fn a_failure_is_notified_only_if_asked_for(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let mut lie = link.remote.desc.clone();
    lie.size *= 2;
    let session = link.a.session_to(&link.local, &lie)?;
    let beyond = [Piece::new(0, 0, 16), Piece::new(16, 8000, 8)];
    for op in [Op::Read, Op::Write] {
        let silent = session.submit(op, &beyond, &options(1, b"not wanted", false));
        bench.fail(&silent, &[ErrorKind::InvalidArgument])?;
        nothing_more(bench, &link.b).doing("a failure that was not asked for")?;
        let told = session.submit(op, &beyond, &options(2, b"wanted", true));
        bench.fail(&told, &[ErrorKind::InvalidArgument])?;
        let notification = next(bench, &link.b, &[&told])?;
        belongs(&notification, &link.a, &told, b"wanted")?;
        ensure!(notification.error.is_some(), "a failure was notified as a success");
        nothing_more(bench, &link.b)?;
    }
    Ok(())
}

fn a_full_queue_fails_the_transfer_at_its_submitter(bench: &Bench) -> CaseResult {
    let a = bench.peer("a")?;
    let b = Peer::start(bench.node()?, bench.key("small"), 2)?;
    a.meet(&b)?;
    b.meet(&a)?;
    let (local, remote) = (a.area(64)?, b.area(64)?);
    let session = a.session(&local, &remote)?;
    let submit = |tag| session.submit(Op::Write, &[Piece::new(0, 0, 64)], &options(tag, b"m", false));
    // One after the other: transfers that run at the same time may end in any order.
    for tag in [1, 2] {
        bench.succeed(&submit(tag))?;
    }
    bench.fail(&submit(3), &[ErrorKind::ResourceExhausted]).doing("a message for a full queue")?;
    // What is in the queue stays there, and room makes the next one arrive.
    for tag in [1, 2] {
        let notification = next(bench, &b, &[])?;
        ensure!(notification.tag == Tag(tag), "the queue holds tag {}, not {tag}", notification.tag);
    }
    bench.succeed(&submit(4))?;
    ensure!(next(bench, &b, &[])?.tag == Tag(4), "another message than the last one is in the queue");
    Ok(())
}

fn many_messages_each_arrive_once(bench: &Bench) -> CaseResult {
    let (a, c) = (bench.peer("a")?, bench.peer("c")?);
    let b = Peer::start(bench.node()?, bench.key("b"), 1000)?;
    let mut sent: HashMap<u64, Tag> = HashMap::new();
    let mut statuses = Vec::new();
    let remote = b.area(4096)?;
    let mut keep: Vec<(Area, std::sync::Arc<dyn Session>)> = Vec::new();
    for peer in [&a, &c] {
        peer.meet(&b)?;
        b.meet(peer)?;
        let local = peer.area(4096)?;
        let session = peer.session(&local, &remote)?;
        for tag in 0..200 {
            let op = if tag % 2 == 0 { Op::Read } else { Op::Write };
            let status =
                session.submit(op, &[Piece::new(tag, tag, 100)], &options(tag, &tag.to_le_bytes(), false));
            sent.insert(status.id().get(), Tag(tag));
            statuses.push(status);
        }
        keep.push((local, session));
    }
    let outcome = PATIENT.wait_all(&statuses, bench.bounds.transfer);
    ensure!(outcome.is_success(), "400 transfers with messages end as {:?}", outcome.code());
    for _ in 0..statuses.len() {
        let notification = next(bench, &b, &[])?;
        match sent.remove(&notification.transfer) {
            Some(tag) => {
                ensure!(tag == notification.tag, "the message of {tag} came with {}", notification.tag);
            }
            None => {
                return Err(Problem::new(format!("a message came twice, or from nowhere: {notification:?}")));
            }
        }
    }
    nothing_more(bench, &b)
}

fn transfers_without_a_message_notify_nobody(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for op in [Op::Read, Op::Write] {
        bench.succeed(&link.whole(op))?;
        bench.succeed(&link.submit(op, &[]))?;
    }
    let closed = link.b.area_for(64, Access::READ_ONLY)?;
    let session = link.a.session_to(&link.local, &closed.desc);
    if let Ok(session) = session {
        bench.finish(&session.submit(Op::Write, &[Piece::new(0, 0, 64)], &TransferOptions::default()))?;
    }
    nothing_more(bench, &link.b)?;
    nothing_more(bench, &link.a)
}

fn a_cancelled_transfer_reports_no_success(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 20)?;
    let Link { session, a, b, .. } = &link;
    b.node.hold();
    let statuses: Vec<Status> = (0..8)
        .map(|tag| {
            session.submit(Op::Write, &[Piece::new(0, 0, 1 << 20)], &options(tag, b"done", tag % 2 == 0))
        })
        .collect();
    for status in &statuses {
        a.backend.cancel(status.id()).doing("cancelling")?;
    }
    PATIENT.wait_all(&statuses, bench.bounds.settle);
    b.node.release();
    let outcome = PATIENT.wait_all(&statuses, bench.bounds.transfer);
    ensure!(outcome.all_quiet(), "cancelled transfers are still running: {outcome:?}");
    bench.settled(|| Ok(()))?;
    let mut told: HashMap<u64, bool> = HashMap::new();
    while let Some(notification) = b.inbox.poll() {
        let twice = told.insert(notification.transfer, notification.error.is_none());
        ensure!(twice.is_none(), "transfer {} was notified twice", notification.transfer);
    }
    for status in &statuses {
        let success = told.get(&status.id().get()).copied();
        match status.code() {
            StatusCode::Success => ensure!(success == Some(true), "a success was notified as {success:?}"),
            code => {
                ensure!(success != Some(true), "a transfer that ended as {code} was notified as a success");
            }
        }
    }
    Ok(())
}
