//! Submitting: what is refused, what is passed on, and with what.

use std::time::Duration;

use mori_engine::{
    Access, Capabilities, Engine, ErrorKind, MAX_NOTIFICATION, Memory, MemoryDesc, Notify, Op, Piece, Status,
    Tag, TransferOptions,
};

use crate::fake::{ABLE, Net, introduce, while_opening, with};

const SECOND: Duration = Duration::from_secs(1);

fn options() -> TransferOptions {
    TransferOptions::default()
}

fn message(text: &[u8]) -> TransferOptions {
    TransferOptions { notify: Some(Notify { message: text.to_vec(), on_failure: false }), ..options() }
}

fn kind(status: &Status) -> ErrorKind {
    status.error().unwrap().kind()
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Engine `a` with 100 bytes of its own and a descriptor of 200 bytes at `b`.
fn pair(net: &Net) -> (Engine, Memory, Engine, Memory) {
    let (a, _) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let local = a.register_vec((0..100).collect(), Access::READ_WRITE).unwrap();
    let remote = b.register_vec((100..=255).chain(0..44).collect(), Access::READ_WRITE).unwrap();
    (a, local, b, remote)
}

#[test]
fn bytes_go_where_the_pieces_say() {
    let (a, local, _b, remote) = pair(&Net::default());
    let session = a.session(&local, &remote.desc()).unwrap();
    assert!(session.alive());
    assert_eq!((session.local(), session.remote()), (local.id(), &remote.desc()));
    let pieces = [Piece::new(0, 199, 1), Piece::new(10, 0, 2), Piece::new(99, 100, 1)];
    assert!(session.read_batch(&pieces, options()).is_success());
    let mut expected: Vec<u8> = (0..100).collect();
    (expected[0], expected[10], expected[11], expected[99]) = (43, 100, 101, 200);
    assert_eq!(bytes(&local), expected);
    assert!(session.write_batch(&[Piece::new(10, 5, 2)], options()).is_success());
    assert_eq!(bytes(&remote)[5..7], [100, 101]);
    assert!(session.write(0, 9, 1, options()).is_success());
    assert!(session.read(50, 9, 1, options()).is_success());
    assert_eq!(bytes(&local)[50], 43);
    assert!(a.write(&local, 1, &remote.desc(), 0, 1, options()).is_success());
    assert_eq!(bytes(&remote)[0], 1);
}

#[test]
fn pieces_at_beyond_and_wrapping_past_either_end() {
    let (a, local, _b, remote) = pair(&Net::default());
    let remote = remote.desc();
    let session = a.session(&local, &remote).unwrap();
    let submit = |piece: Piece| {
        [
            session.submit(Op::Read, &[piece], options()),
            a.submit(Op::Write, &local, &remote, &[piece], options()),
        ]
    };
    for good in [Piece::new(0, 0, 100), Piece::new(99, 199, 1), Piece::new(100, 200, 0), Piece::new(0, 0, 0)]
    {
        assert!(submit(good).iter().all(Status::is_success), "{good:?}");
    }
    for bad in [
        Piece::new(1, 0, 100),
        Piece::new(0, 101, 100),
        Piece::new(100, 0, 1),
        Piece::new(0, 200, 1),
        Piece::new(101, 0, 0),
        Piece::new(0, 201, 0),
        Piece::new(u64::MAX, 0, 1),
        Piece::new(0, u64::MAX, 1),
        Piece::new(0, 0, u64::MAX),
        Piece::new(2, 2, u64::MAX - 1),
    ] {
        for status in submit(bad) {
            assert_eq!(kind(&status), ErrorKind::InvalidArgument, "{bad:?}");
            assert!(status.message().contains("out of range"), "{status:?}");
        }
    }
}

/// Within one transfer a bad piece fails all of it, and nothing has moved.
#[test]
fn one_bad_piece_fails_its_transfer_before_anything_moves() {
    let (a, local, _b, remote) = pair(&Net::default());
    let pieces = [Piece::new(0, 0, 50), Piece::new(50, 180, 21)];
    let status = a.submit(Op::Read, &local, &remote.desc(), &pieces, options());
    assert_eq!(kind(&status), ErrorKind::InvalidArgument);
    assert!(status.message().contains("remote side of piece 1"), "{status:?}");
    assert_eq!(bytes(&local), (0..100).collect::<Vec<u8>>());
}

#[test]
fn peers_memory_is_used_as_it_is_granted() {
    let (a, local, b, _) = pair(&Net::default());
    for (access, read, write) in [
        (Access::READ_WRITE, true, true),
        (Access::READ_ONLY, true, false),
        (Access::WRITE_ONLY, false, true),
        (Access::LOCAL, false, false),
    ] {
        let remote = b.allocate(8, access).unwrap().desc();
        for (op, granted) in [(Op::Read, read), (Op::Write, write)] {
            let status = a.submit(op, &local, &remote, &[Piece::new(0, 0, 8)], options());
            assert_eq!(status.is_success(), granted, "{access:?} {op:?}");
            if !granted {
                assert_eq!(kind(&status), ErrorKind::AccessDenied);
            }
        }
    }
    // The engine's own side needs no grant.
    let own = a.allocate(8, Access::LOCAL).unwrap();
    let remote = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    assert!(a.read(&own, 0, &remote, 0, 8, options()).is_success());
}

#[test]
fn no_bytes_succeed_at_once_and_still_carry_a_message() {
    let (a, local, b, remote) = pair(&Net::default());
    let remote = remote.desc();
    assert!(a.submit(Op::Read, &local, &remote, &[], options()).is_success());
    assert!(a.read(&local, 100, &remote, 200, 0, options()).is_success());
    assert!(b.notifications().is_empty());
    let status =
        a.submit(Op::Write, &local, &remote, &[], TransferOptions { tag: Tag(9), ..message(b"go on") });
    assert!(status.is_success(), "{status:?}");
    let notification = b.notifications().poll().unwrap();
    assert_eq!((&notification.peer, notification.tag), (a.key(), Tag(9)));
    assert_eq!(notification.transfer, status.id().get());
    assert_eq!(notification.message, b"go on");
    let status = a.write(&local, 0, &remote, 0, 8, message(&[0; MAX_NOTIFICATION + 1]));
    assert_eq!(kind(&status), ErrorKind::InvalidArgument);
}

#[test]
fn a_full_queue_of_notifications_fails_the_transfer() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let b = with("b", [&net.fake("fake")]).notification_capacity(1).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(8, Access::READ_WRITE).unwrap();
    let remote = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    assert!(a.write(&local, 0, &remote, 0, 8, message(b"1")).is_success());
    assert_eq!(kind(&a.write(&local, 0, &remote, 0, 8, message(b"2"))), ErrorKind::ResourceExhausted);
    assert_eq!(b.notifications().poll_matching(a.key(), Tag(0)).unwrap().message, b"1");
}

/// E2: a transfer's own deadline, else the engine's, else none.
#[test]
fn the_engines_deadline_is_for_transfers_without_one() {
    let net = Net::default();
    let fake = net.fake("fake");
    let a = with("a", [&fake]).default_deadline(SECOND).build().unwrap();
    let (b, plain) = net.engine("b", "fake");
    introduce([&a, &b]);
    let of_a = a.allocate(8, Access::READ_WRITE).unwrap();
    let of_b = b.allocate(8, Access::READ_WRITE).unwrap();
    let own = TransferOptions { deadline: Some(2 * SECOND), ..options() };
    for options in [options(), own.clone()] {
        assert!(a.read(&of_a, 0, &of_b.desc(), 0, 8, options.clone()).is_success());
        assert!(b.read(&of_b, 0, &of_a.desc(), 0, 8, options).is_success());
    }
    let deadlines =
        |options: Vec<TransferOptions>| options.iter().map(|one| one.deadline).collect::<Vec<_>>();
    assert_eq!(deadlines(fake.options()), [Some(SECOND), Some(2 * SECOND)]);
    assert_eq!(deadlines(plain.options()), [None, Some(2 * SECOND)]);
}

#[test]
fn what_a_backend_cannot_do_is_refused_and_a_default_is_left_out() {
    let net = Net::default();
    let weak = || net.build("weak", true, Capabilities { cancel: false, notify: false, ..ABLE });
    let fake = weak();
    let a = with("a", [&fake]).default_deadline(SECOND).build().unwrap();
    let b = with("b", [&weak()]).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(8, Access::READ_WRITE).unwrap();
    let remote = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    let submit = |options| a.write(&local, 0, &remote, 0, 8, options);
    assert!(submit(options()).is_success());
    assert_eq!(fake.options()[0].deadline, None);
    let deadline = TransferOptions { deadline: Some(SECOND), ..options() };
    for (options, word) in [(deadline, "deadlines"), (message(b"x"), "notifications")] {
        let status = submit(options);
        assert_eq!(kind(&status), ErrorKind::Unsupported);
        assert!(status.message().contains("weak") && status.message().contains(word), "{status:?}");
    }
    assert_eq!(fake.count("submit"), 1);
}

#[test]
fn sessions_are_kept_for_the_next_transfer_of_a_pair() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let locals = [(); 2].map(|()| a.allocate(8, Access::READ_WRITE).unwrap());
    let remotes = [(); 2].map(|()| b.allocate(8, Access::READ_WRITE).unwrap().desc());
    for _ in 0..3 {
        for local in &locals {
            for remote in &remotes {
                assert!(a.read(local, 0, remote, 0, 8, options()).is_success());
            }
        }
    }
    assert_eq!((fake.count("session"), fake.count("submit")), (4, 12));
    // A session that is asked for is one of its own.
    let _own = a.session(&locals[0], &remotes[0]).unwrap();
    assert_eq!(fake.count("session"), 5);
}

#[test]
fn the_table_of_sessions_is_bounded() {
    let net = Net::default();
    let fake = net.fake("fake");
    let a = with("a", [&fake]).session_cache(2).build().unwrap();
    let locals = [(); 3].map(|()| a.allocate(8, Access::READ_WRITE).unwrap());
    let remote = a.allocate(8, Access::READ_WRITE).unwrap().desc();
    let read = |index: usize| assert!(a.read(&locals[index], 0, &remote, 0, 8, options()).is_success());
    [0, 1, 0, 1].into_iter().for_each(read);
    assert_eq!(fake.count("session"), 2);
    // The third one takes the place of the one that was used least recently.
    [2, 1, 0].into_iter().for_each(read);
    assert_eq!(fake.count("session"), 4);
}

/// The number alone names nothing: another descriptor with the same number opens a session of its own.
#[test]
fn a_session_is_kept_for_an_equal_descriptor_only() {
    let net = Net::default();
    let (a, local, b, remote) = pair(&net);
    let real = remote.desc();
    assert!(a.read(&local, 0, &real, 0, 8, options()).is_success());
    let mut stale = real.clone();
    if let Some(blob) = stale.transports.first_mut() {
        blob.bytes.reverse();
    }
    assert_eq!(kind(&a.read(&local, 0, &stale, 0, 8, options())), ErrorKind::NotFound);
    let shorter = MemoryDesc { size: 4, ..real.clone() };
    assert_eq!(kind(&a.read(&local, 0, &shorter, 0, 8, options())), ErrorKind::InvalidArgument);
    assert!(a.read(&local, 0, &real, 0, 8, options()).is_success());
    drop(b);
}

/// A session that is being opened while its peer is removed, or its backend, is not kept for the next transfer.
#[test]
fn a_session_opened_too_late_is_not_kept() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let local = a.allocate(8, Access::READ_WRITE).unwrap();
    let remote = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    let read = || a.read(&local, 0, &remote, 0, 8, options());

    let _ = while_opening(&fake, read, || a.remove_peer(b.key()).unwrap());
    assert_eq!(kind(&read()), ErrorKind::BadState, "nobody goes on with a peer that was removed");
    a.add_peer(&b.desc()).unwrap();

    let refused = while_opening(&fake, read, || a.remove_backend("fake").unwrap());
    assert_eq!(kind(&refused), ErrorKind::BadState);
    a.add_backend(net.fake("fake")).unwrap();
    assert!(read().is_success(), "the next transfer runs over the next backend");
}
