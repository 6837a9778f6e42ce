//! Messages to the target: once for each transfer, after all its bytes, and of its failure if that is asked for.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use mori_core::{
    Access, Backend, Error, ErrorKind, MAX_NOTIFICATION, Message, Notification, Notify, Op, Origin, Piece,
    Status, StatusCode, Tag, TransferOptions,
};
use mori_tcp::TcpConfig;
use support::relay::Way;
use support::{Link, Node, PATIENCE, bytes, fail, finish, notify, pair, pattern, submit, succeed, until};

fn config() -> TcpConfig {
    TcpConfig {
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        stripe_bytes: 64 << 10,
        chunk_bytes: 64 << 10,
        ..TcpConfig::default()
    }
}

fn next(node: &Node) -> Notification {
    node.notifications.wait(PATIENCE).unwrap()
}

/// Wants nothing more to arrive: whatever was under way came before a transfer on each connection.
fn nothing_more(link: &Link) {
    for _ in 0..4 {
        succeed(&link.session.submit(Op::Read, &[Piece::new(0, 0, 1)], &notify(999, b"last", false)));
        let last = next(&link.far);
        assert_eq!(last.message, b"last", "one message too many: {last:?}");
    }
    assert!(link.far.notifications.is_empty());
}

fn belongs(message: &Notification, status: &Status, text: &[u8]) {
    assert_eq!(message.peer, "near".into());
    assert_eq!(message.transfer, status.id().get());
    assert_eq!(message.tag, status.tag());
    assert_eq!(message.message, text);
}

/// Once, whatever the transfer is made of: one request, several connections, several requests, nothing at all.
#[test]
fn a_message_comes_once_and_after_all_bytes() {
    let link = Link::new(&config(), 4 << 20);
    let scattered: Vec<Piece> = (0..70_000).map(|at| Piece::new(at * 50, at * 50 + 7, 20)).collect();
    let batches: Vec<Vec<Piece>> = vec![
        vec![Piece::new(3, 5, 1000)],
        vec![Piece::new(0, 0, 4 << 20)],
        scattered,
        vec![Piece::new(0, 0, 0)],
        vec![],
    ];
    for (round, on_failure) in [false, true, false, true].into_iter().enumerate() {
        for (number, pieces) in batches.iter().enumerate() {
            let op = if round < 2 { Op::Write } else { Op::Read };
            let content = pattern(4 << 20, (round * 10 + number) as u64);
            link.local.write_at(0, &content).unwrap();
            let options = notify(number as u64, b"all there", on_failure);
            let status = link.session.submit(op, pieces, &options);
            let message = next(&link.far);
            if op == Op::Write {
                // The message, not the status, is what the target's application goes by.
                let got = bytes(&link.remote);
                for piece in pieces {
                    let (local, remote, length) =
                        (piece.local as usize, piece.remote as usize, piece.length as usize);
                    assert!(got[remote..remote + length] == content[local..local + length]);
                }
            }
            succeed(&status);
            belongs(&message, &status, b"all there");
            assert_eq!(message.error, None);
            nothing_more(&link);
        }
    }
}

/// Messages of every length that is allowed, also none, and bytes that are no text.
#[test]
fn messages_of_every_length() {
    let link = Link::new(&config(), 100);
    for length in [0, 1, 2, 255, 256, 1000, MAX_NOTIFICATION - 1, MAX_NOTIFICATION] {
        for op in [Op::Read, Op::Write] {
            let text = pattern(length, 3);
            let status = link.session.submit(op, &[Piece::new(0, 0, 100)], &notify(u64::MAX, &text, true));
            succeed(&status);
            belongs(&next(&link.far), &status, &text);
        }
    }
    nothing_more(&link);
}

/// A transfer without a message says nothing.
#[test]
fn transfers_without_a_message_say_nothing() {
    let link = Link::new(&config(), 1 << 20);
    link.works();
    fail(&submit(&link.session, Op::Read, &[Piece::new(0, 1 << 20, 1)]), ErrorKind::InvalidArgument);
    nothing_more(&link);
}

/// A failure is told if that was asked for, with its kind and words; else nothing is.
#[test]
fn a_failure_is_told_if_asked_for() {
    let link = Link::new(&config(), 1 << 20);
    let beyond = Piece::new(0, 1 << 20, 1);
    let late = Piece::new(0, 1, 1 << 20);
    for op in [Op::Read, Op::Write] {
        for pieces in [vec![beyond], vec![Piece::new(0, 0, 10), beyond], vec![late]] {
            let status = link.session.submit(op, &pieces, &notify(1, b"quiet", false));
            fail(&status, ErrorKind::InvalidArgument);
            nothing_more(&link);
            let status = link.session.submit(op, &pieces, &notify(2, b"loud", true));
            fail(&status, ErrorKind::InvalidArgument);
            let message = next(&link.far);
            belongs(&message, &status, b"loud");
            let error = message.error.unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("out of range"), "{error}");
            nothing_more(&link);
        }
    }
    // Words of any length and in any script arrive as far as there is room, and only whole characters.
    let text = pattern(MAX_NOTIFICATION, 1);
    let status = link.session.submit(Op::Read, &[beyond], &notify(3, &text, true));
    fail(&status, ErrorKind::InvalidArgument);
    belongs(&next(&link.far), &status, &text);
}

/// E1: a cancelled transfer is told as cancelled if that was asked for, and never as done; both sides tell the same story.
#[test]
fn e1_both_sides_of_a_cancelled_transfer_tell_the_same_story() {
    let link = Link::new(&config(), 1 << 20);
    let mut stories = [0, 0];
    for round in 0..200 {
        let op = if round % 2 == 0 { Op::Write } else { Op::Read };
        let length = if round % 4 < 2 { 100 } else { 1 << 20 };
        let way = if op == Op::Read { Way::Down } else { Way::Up };
        if round % 3 == 0 {
            link.relay.allow(way, round * 2000);
        }
        let on_failure = round % 5 != 0;
        let status =
            link.session.submit(op, &[Piece::new(0, 0, length)], &notify(round, b"story", on_failure));
        if round % 7 > 0 {
            let _ = status.wait(Duration::from_micros(round * 5));
        }
        status.cancel().unwrap();
        link.relay.flow();
        match finish(&status) {
            StatusCode::Success => {
                let message = next(&link.far);
                belongs(&message, &status, b"story");
                assert_eq!(message.error, None, "round {round}");
                stories[0] += 1;
            }
            code => {
                assert_eq!(code, StatusCode::Failure(ErrorKind::Cancelled));
                if on_failure {
                    let message = next(&link.far);
                    belongs(&message, &status, b"story");
                    assert_eq!(message.error.unwrap().kind(), ErrorKind::Cancelled, "round {round}");
                }
                stories[1] += 1;
            }
        }
        if round % 20 == 0 {
            nothing_more(&link);
        }
    }
    nothing_more(&link);
    assert!(stories[1] > 0, "nothing was cancelled: {stories:?}");
    assert_eq!(link.local.pins(), 0);
}

/// E2: a transfer past its deadline is told as cancelled, with the words of its status.
#[test]
fn e2_a_deadline_is_told() {
    let link = Link::new(&config(), 1 << 20);
    link.relay.allow(Way::Down, 1000);
    let options = TransferOptions { deadline: Some(Duration::from_millis(100)), ..notify(4, b"late", true) };
    let status = link.session.submit(Op::Read, &[Piece::new(0, 0, 1 << 20)], &options);
    let message = next(&link.far);
    link.relay.flow();
    let error = fail(&status, ErrorKind::Cancelled);
    belongs(&message, &status, b"late");
    assert_eq!(message.error.unwrap().message(), error.message());
    nothing_more(&link);
}

/// The initiator is shut down, or cut off, in the middle of transfers: the target learns of each once, if that was asked for.
#[test]
fn e4_the_target_learns_that_an_initiator_died() {
    for shut_down in [false, true] {
        for op in [Op::Read, Op::Write] {
            let link = Link::new(&TcpConfig { connections: 1, ..config() }, 4 << 20);
            let way = if op == Op::Read { Way::Down } else { Way::Up };
            link.relay.allow(way, 200_000);
            let statuses: Vec<Status> = (0..10)
                .map(|tag| {
                    let (text, on_failure) = (format!("{tag}"), tag % 2 == 0);
                    let options = notify(tag, text.as_bytes(), on_failure);
                    link.session.submit(op, &[Piece::new(0, 0, 4 << 20)], &options)
                })
                .collect();
            link.relay.wait_held(way);
            until("the target has begun", || link.remote.pins() > 0);
            if shut_down {
                link.near.backend.shutdown();
            }
            link.relay.cut();
            let mut told: HashMap<u64, Notification> = HashMap::new();
            let reached: Vec<Notification> = {
                // What had not been announced yet when the end came is not known at the target; the first of a batch is.
                let first = next(&link.far);
                std::iter::once(first)
                    .chain(std::iter::from_fn(|| link.far.notifications.wait(Duration::from_millis(300))))
                    .collect()
            };
            for message in reached {
                assert!(told.insert(message.transfer, message).is_none(), "told twice");
            }
            for status in &statuses {
                let code = finish(status);
                assert!(code.is_failure());
                let Some(message) = told.remove(&status.id().get()) else { continue };
                belongs(&message, status, status.tag().to_string().as_bytes());
                assert_eq!(message.tag.0 % 2, 0, "asked not to be told");
                assert_eq!(message.error.unwrap().kind(), ErrorKind::PeerLost);
            }
            assert!(told.is_empty(), "{told:?}");
        }
    }
}

/// Nothing is dropped silently: when the queue is full, the transfer fails at its submitter, and the next works when there is room.
#[test]
fn a_full_queue_fails_the_transfer_at_its_submitter() {
    let near = Node::new("near", config());
    let far = Node::with_queue("far", config(), 3).unwrap();
    let link = Link::between(near, far, 1 << 20);
    for op in [Op::Write, Op::Read] {
        for length in [0, 100, 1 << 20] {
            let send = |tag| link.session.submit(op, &[Piece::new(0, 0, length)], &notify(tag, b"x", false));
            // One after the other, since several connections keep no order.
            let accepted: Vec<Status> = (0..3).map(send).inspect(succeed).collect();
            let error = fail(&send(3), ErrorKind::ResourceExhausted);
            assert!(error.message().contains("queue is full (3 messages)"), "{error}");
            // Bytes without a message go on.
            succeed(&link.whole(op));
            assert_eq!(link.far.notifications.poll().unwrap().transfer, accepted[0].id().get());
            succeed(&send(4));
            let tags: Vec<Tag> =
                std::iter::from_fn(|| link.far.notifications.poll()).map(|message| message.tag).collect();
            assert_eq!(tags, [Tag(1), Tag(2), Tag(4)]);
        }
    }
    // A queue that is closed is none.
    link.far.notifications.close();
    let status = link.session.submit(Op::Write, &[Piece::new(0, 0, 1)], &notify(5, b"x", false));
    fail(&status, ErrorKind::BadState);
    assert_eq!(link.local.pins(), 0);
}

/// From many threads over many connections, each once.
#[test]
fn many_messages_each_come_once() {
    let (near, far) = pair(&TcpConfig { connections: 3, ..config() });
    let count = 200;
    let threads = 4;
    std::thread::scope(|scope| {
        let mut expected = HashMap::new();
        let submitting: Vec<_> = (0..threads)
            .map(|thread| {
                let (near, far) = (&near, &far);
                scope.spawn(move || {
                    let (local, _) = near.region(200_000, Access::LOCAL);
                    let (remote, desc) = far.region(200_000, Access::READ_WRITE);
                    let session = near.session(&local, &desc);
                    let statuses: Vec<Status> = (0..count)
                        .map(|at| {
                            let op = if at % 2 == 0 { Op::Read } else { Op::Write };
                            let length = [0, 10, 200_000][at as usize % 3];
                            let options = notify(thread * 1000 + at, b"once", at % 4 == 0);
                            session.submit(op, &[Piece::new(0, 0, length)], &options)
                        })
                        .collect();
                    statuses.iter().for_each(succeed);
                    (statuses, remote)
                })
            })
            .collect();
        let mut got = HashMap::new();
        for _ in 0..count * threads {
            let message = next(&far);
            assert_eq!(message.error, None);
            assert!(got.insert(message.transfer, message.tag).is_none(), "twice: {message:?}");
        }
        for thread in submitting {
            let (statuses, _remote) = thread.join().unwrap();
            expected.extend(statuses.iter().map(|status| (status.id().get(), status.tag())));
        }
        assert_eq!(got, expected);
    });
    assert!(far.notifications.is_empty());
    until("everything is quiet", || near.notifications.is_empty());
}

/// What another backend has carried is told over this one: once, with its number, its tag and how it ended.
#[test]
fn transfers_of_other_backends_are_told() {
    let link = Link::new(&config(), 100);
    let messenger = link.near.backend.messenger(&"far".into()).unwrap();
    for (number, failure) in
        [(1, None), (2, Some(Error::new(ErrorKind::Device, "the device failed"))), (3, None)]
    {
        // A transfer of nobody's, for its number.
        let (_completer, other) = Status::pair(Origin { tag: Tag(number), ..Origin::detached() });
        let notify = Notify { message: b"carried".to_vec(), on_failure: failure.is_some() };
        let message = Message { transfer: other.id(), tag: other.tag(), notify, failure: failure.clone() };
        let sent = messenger.send(&message);
        // The message is delivered, whatever it says.
        succeed(&sent);
        assert_eq!(sent.id(), other.id());
        let told = next(&link.far);
        belongs(&told, &other, b"carried");
        assert_eq!(told.error.map(|error| error.kind()), failure.map(|failure| failure.kind()));
    }
    nothing_more(&link);

    assert_eq!(link.near.backend.messenger(&"stranger".into()).unwrap_err().kind(), ErrorKind::NotFound);
    let notify = Notify { message: Vec::new(), on_failure: false };
    let (_completer, other) = Status::pair(Origin::detached());
    let message = Message { transfer: other.id(), tag: other.tag(), notify, failure: None };
    link.far.backend.shutdown();
    fail(&messenger.send(&message), ErrorKind::PeerLost);
    link.near.backend.shutdown();
    fail(&messenger.send(&message), ErrorKind::BadState);
    assert_eq!(link.near.backend.messenger(&"far".into()).unwrap_err().kind(), ErrorKind::BadState);
}
