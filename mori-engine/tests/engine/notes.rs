//! Messages about transfers over a backend that carries none: TCP delivers them, once, when the bytes are in place.

use std::sync::Arc;
use std::time::Duration;

use mori_engine::{
    Access, Capabilities, Engine, ErrorKind, Memory, Notification, Notify, Op, Piece, Status, StatusCode,
    Tag, TcpConfig, TransferOptions,
};

use crate::fake::{ABLE, Fake, Net, introduce, with};

/// Longer than anything here takes, so that a failure is no hang.
const PATIENCE: Duration = Duration::from_secs(60);

const PIECE: [Piece; 1] = [Piece::new(0, 8, 16)];

/// Two engines whose transfers go over a backend without messages, and have TCP beside it.
struct Pair {
    a: Engine,
    b: Engine,
    carrier: Arc<Fake>,
    local: Memory,
    remote: Memory,
}

impl Pair {
    fn new(notifier: bool, room: usize) -> Self {
        let net = Net::default();
        let silent = || net.build("silent", notifier, Capabilities { notify: false, ..ABLE });
        let (carrier, other) = (silent(), silent());
        let engine = |key, fake: &Arc<Fake>| {
            let builder = with(key, [fake]).tcp(TcpConfig::default()).prefer(["silent"]);
            builder.notification_capacity(room).build().unwrap()
        };
        let (a, b) = (engine("a", &carrier), engine("b", &other));
        introduce([&a, &b]);
        let local = a.register_vec(vec![7; 32], Access::READ_WRITE).unwrap();
        let remote = b.allocate(32, Access::READ_WRITE).unwrap();
        Self { a, b, carrier, local, remote }
    }

    fn write(&self, pieces: &[Piece], tag: u64, on_failure: bool) -> Status {
        let notify = Some(Notify { message: b"there".to_vec(), on_failure });
        let options = TransferOptions { tag: Tag(tag), notify, ..TransferOptions::default() };
        self.a.submit(Op::Write, &self.local, &self.remote.desc(), pieces, options)
    }

    fn next(&self) -> Notification {
        self.b.notifications().wait(PATIENCE).unwrap()
    }

    /// Nothing is on its way: what is sent later on the same connections has arrived.
    fn nothing_more(&self) {
        for _ in 0..4 {
            assert!(self.write(&[], 999, false).wait(PATIENCE).is_success());
            assert_eq!(self.next().tag, Tag(999), "one message too many");
        }
        assert!(self.b.notifications().is_empty());
    }

    fn arrived(&self) -> bool {
        let mut bytes = [0; 16];
        self.remote.read_at(8, &mut bytes).unwrap();
        bytes == [7; 16]
    }
}

fn kind(status: &Status) -> ErrorKind {
    match status.wait(PATIENCE) {
        StatusCode::Failure(kind) => kind,
        other => panic!("{other:?}"),
    }
}

fn belongs(message: &Notification, status: &Status) {
    assert_eq!((&message.peer, message.transfer), (&"a".into(), status.id().get()));
    assert_eq!((message.tag, message.message.as_slice()), (status.tag(), b"there".as_slice()));
}

#[test]
fn the_target_is_told_once_and_after_the_bytes() {
    for notifier in [true, false] {
        let pair = Pair::new(notifier, 16);
        pair.carrier.script(|script| script.hold = true);
        let status = pair.write(&PIECE, 5, false);
        assert_eq!(status.wait(Duration::from_millis(1)), StatusCode::InProgress);
        // Long enough for a message that is sent too early.
        assert_eq!(pair.b.notifications().wait(Duration::from_millis(50)), None);
        assert!(!pair.arrived());
        // The carrier is not asked for what it cannot do.
        assert_eq!(pair.carrier.options()[0].notify, None);
        pair.carrier.release();
        // Nobody waits at the submitter.
        let message = pair.next();
        assert!(pair.arrived());
        belongs(&message, &status);
        assert_eq!(message.error, None);
        // A bounded wait ends with the message, not at its end.
        assert!(status.wait(PATIENCE).is_success());
        pair.nothing_more();
        assert_eq!(pair.a.backends()[0].name, "silent");
    }
}

#[test]
fn an_unbounded_wait_ends_with_the_message_too() {
    for notifier in [true, false] {
        let pair = Pair::new(notifier, 16);
        let status = pair.write(&PIECE, 1, false);
        assert!(status.wait(None).is_success(), "{status:?}");
        belongs(&pair.next(), &status);
    }
}

#[test]
fn a_transfer_without_bytes_is_a_message() {
    let pair = Pair::new(true, 16);
    for pieces in [&[][..], &[Piece::new(32, 0, 0)]] {
        let status = pair.write(pieces, 3, false);
        belongs(&pair.next(), &status);
        assert!(status.wait(PATIENCE).is_success());
    }
    pair.nothing_more();
}

#[test]
fn a_failure_is_told_if_that_was_asked_for() {
    for notifier in [true, false] {
        let pair = Pair::new(notifier, 16);
        pair.carrier.script(|script| script.hold = true);
        for on_failure in [false, true] {
            let status = pair.write(&PIECE, 1, on_failure);
            // Cancelling the status that was handed out reaches the carrier.
            status.cancel().unwrap();
            assert_eq!(kind(&status), ErrorKind::Cancelled);
            if on_failure {
                let message = pair.next();
                belongs(&message, &status);
                assert_eq!(message.error.unwrap().kind(), ErrorKind::Cancelled);
            }
            assert!(pair.b.notifications().is_empty());
        }
        pair.carrier.script(|script| script.hold = false);
        pair.nothing_more();
    }
}

#[test]
fn a_message_that_does_not_arrive_fails_the_transfer() {
    let pair = Pair::new(true, 1);
    assert!(pair.write(&PIECE, 1, false).wait(PATIENCE).is_success());
    let status = pair.write(&PIECE, 2, false);
    assert_eq!(kind(&status), ErrorKind::ResourceExhausted);
    assert!(status.message().contains("every byte is in place"), "{status:?}");
    assert_eq!(pair.next().tag, Tag(1));
    pair.nothing_more();

    pair.carrier.script(|script| script.hold = true);
    let status = pair.write(&PIECE, 3, false);
    pair.b.remove_backend("tcp").unwrap();
    pair.carrier.release();
    assert_eq!(kind(&status), ErrorKind::PeerLost, "{status:?}");
    assert!(pair.arrived());
}

#[test]
fn with_nobody_to_tell_the_target_nothing_moves() {
    let pair = Pair::new(true, 16);
    pair.a.remove_backend("tcp").unwrap();
    let status = pair.write(&PIECE, 1, false);
    assert_eq!(kind(&status), ErrorKind::Unsupported);
    assert!(status.message().contains("add the TCP transport"), "{status:?}");
    assert!(!pair.arrived() && pair.carrier.options().is_empty());
    // Without a message it is an ordinary transfer.
    let plain =
        pair.a.submit(Op::Write, &pair.local, &pair.remote.desc(), &PIECE, TransferOptions::default());
    assert!(plain.wait(PATIENCE).is_success() && pair.arrived());
}

#[test]
fn the_end_of_the_engine_ends_a_transfer_with_a_message() {
    for notifier in [true, false] {
        let pair = Pair::new(notifier, 16);
        pair.carrier.script(|script| script.hold = true);
        let status = pair.write(&PIECE, 1, true);
        pair.a.shutdown();
        assert_eq!(kind(&status), ErrorKind::BadState, "{status:?}");
    }
}
