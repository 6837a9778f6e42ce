//! Targets that break the protocol or lie: the initiator fails clearly, and nothing outside of a transfer's pieces is touched.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::Write;
use std::time::Duration;

use mori_core::{Access, Backend, ErrorKind, Op, Piece, Status, StatusCode};
use mori_tcp::TcpConfig;
use support::play::{Play, config};
use support::raw::{CANCEL, CHUNK, DATA, DONE, FAIL, Frame, LAST, NOTE, PONG, READ, Stage, WRITE};
use support::{Node, bytes, fail, finish, notify, pattern, submit, succeed, until};

const OFFSET: u64 = 100;
const LENGTH: u64 = 1000;

fn transfer(play: &Play, op: Op) -> Status {
    submit(&play.session, op, &[Piece::new(OFFSET, 0, LENGTH)])
}

fn chunk(id: u64, flags: u8, length: usize) -> Frame {
    Frame { flags, payload: pattern(length, 77), ..Frame::new(CHUNK, id) }
}

/// A reason that the target gives: an error's number and words.
fn refusal(id: u64, number: u32, words: &[u8]) -> Frame {
    Frame { count: number, body: words.to_vec(), ..Frame::new(FAIL, id) }
}

/// What is no answer to the request fails it, and ends the connection.
#[test]
fn answers_that_are_none_fail_the_transfer() {
    let whole = usize::try_from(LENGTH).unwrap();
    // What to say to request `id`.
    type Answer = fn(u64, usize) -> Frame;
    let to_reads: [(&str, Answer); 12] = [
        ("more bytes than asked for", |id, whole| chunk(id, LAST, whole + 1)),
        ("many more", |id, _| Frame { payload_length: Some(u64::MAX), ..chunk(id, 0, 10) }),
        ("fewer bytes, said to be all", |id, whole| chunk(id, LAST, whole - 1)),
        ("all bytes, said to be some", |id, whole| chunk(id, 0, whole)),
        ("bytes for another request", |id, whole| chunk(id + 1, LAST, whole)),
        ("an empty chunk", |id, _| chunk(id, 0, 0)),
        ("done", |id, _| Frame::new(DONE, id)),
        ("a failure of another request", |id, _| refusal(id + 7, 12, b"no")),
        ("an endless explanation", |id, _| Frame {
            body_length: Some(5000),
            ..refusal(id, 12, &[b'x'; 5000])
        }),
        ("a request", |id, _| Frame::read(id, 1, 0, 1)),
        ("an unknown kind", |id, _| Frame::new(0x44, id)),
        ("a pong with a body", |_, _| Frame { body: vec![1], ..Frame::new(PONG, 0) }),
    ];
    let to_writes: [(&str, Answer); 4] = [
        ("bytes", |id, whole| chunk(id, LAST, whole)),
        ("done, of another", |id, _| Frame::new(DONE, id + 1)),
        ("data", |id, _| Frame { payload: vec![1], ..Frame::new(DATA, id) }),
        ("a note", |id, _| Frame::note(id, 1, b"hello", 0)),
    ];
    let cases =
        to_reads.iter().map(|case| (Op::Read, case)).chain(to_writes.iter().map(|case| (Op::Write, case)));
    for (op, (what, answer)) in cases {
        let (play, mut raw) = Play::start(config(), 2000);
        let status = transfer(&play, op);
        let request = raw.request().unwrap();
        assert_eq!(request.kind, if op == Op::Read { READ } else { WRITE });
        // The connection may end before everything is sent.
        let _ = raw.socket.write_all(&answer(request.id, whole).bytes());
        let error = fail(&status, ErrorKind::Malformed);
        assert!(error.message().contains("protocol"), "{what}: {error}");
        raw.ended();
        play.untouched_outside(usize::try_from(OFFSET).unwrap(), whole);
        assert_eq!(play.local.pins(), 0, "{what}");
        play.near.backend.shutdown();
    }
}

#[test]
fn garbage_fails_the_transfer() {
    for seed in 0..20 {
        let (play, mut raw) = Play::start(config(), 2000);
        let status = transfer(&play, Op::Read);
        raw.request().unwrap();
        let mut garbage = pattern(3000, seed);
        // No kind that there is.
        garbage[0] |= 0x40;
        let _ = raw.socket.write_all(&garbage);
        fail(&status, ErrorKind::Malformed);
        play.untouched_outside(0, 0);
        assert_eq!(play.local.pins(), 0);
    }
}

#[test]
fn a_connection_that_ends_in_the_middle_of_an_answer_is_a_lost_peer() {
    let whole = usize::try_from(LENGTH).unwrap();
    let answers = [
        chunk(1, LAST, whole).bytes(),
        [chunk(1, 0, 300).bytes(), chunk(1, LAST, whole - 300).bytes()].concat(),
        refusal(1, 12, b"not here").bytes(),
    ];
    for (answer, cut) in answers.iter().flat_map(|answer| {
        [0, 1, 63, 64, 65, 300, answer.len() - 1].map(|cut| (answer, cut.min(answer.len() - 1)))
    }) {
        let (play, mut raw) = Play::start(config(), 2000);
        let status = transfer(&play, Op::Read);
        assert_eq!(raw.request().unwrap().id, 1);
        raw.send(&answer[..cut]);
        drop(raw);
        let error = fail(&status, ErrorKind::PeerLost);
        assert!(error.message().contains("far"), "{error}");
        play.untouched_outside(usize::try_from(OFFSET).unwrap(), whole);
        assert_eq!(play.local.pins(), 0);
    }
}

/// What the target says about a failure arrives: the kind, and its words.
#[test]
fn a_refusal_arrives_with_its_kind_and_words() {
    let (play, mut raw) = Play::start(config(), 2000);
    for kind in ErrorKind::ALL {
        for op in [Op::Read, Op::Write] {
            let status = transfer(&play, op);
            let id = raw.request().unwrap().id;
            raw.frame(&refusal(id, kind.number(), "wörds".as_bytes()));
            let error = fail(&status, kind);
            assert!(error.message().contains("far") && error.message().contains("wörds"), "{error}");
            assert_eq!(play.local.pins(), 0);
        }
    }
    // Numbers that are no failures, and words that are no text.
    for number in [0, 1, 2, 10, 31, 200, u32::MAX] {
        let status = transfer(&play, Op::Read);
        let id = raw.request().unwrap().id;
        raw.frame(&refusal(id, number, &[0xff, 0xfe, b'x']));
        fail(&status, ErrorKind::Transport);
    }
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, LAST, usize::try_from(LENGTH).unwrap()));
    succeed(&status);
}

#[test]
fn a_refusal_in_the_middle_of_the_answer() {
    let (play, mut raw) = Play::start(config(), 2000);
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, 0, 300));
    raw.frame(&refusal(id, ErrorKind::Transport.number(), b"the disk is gone"));
    fail(&status, ErrorKind::Transport);
    play.untouched_outside(100, 300);
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, LAST, 1000));
    succeed(&status);
}

/// S2: a second answer changes nothing, and ends the connection.
#[test]
fn a_second_answer_does_not_change_the_first() {
    let (play, mut raw) = Play::start(config(), 2000);
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, LAST, 1000));
    succeed(&status);
    let content = bytes(&play.local);
    let _ = raw.socket.write_all(&Frame { payload: vec![0xee; 1000], ..chunk(id, LAST, 1000) }.bytes());
    raw.ended();
    assert_eq!(status.code(), StatusCode::Success);
    assert!(bytes(&play.local) == content);
}

/// E1: what comes after the end of a cancelled read is thrown away, and the connection goes on.
#[test]
fn bytes_that_come_after_a_cancelled_read_are_thrown_away() {
    let (play, mut raw) = Play::start(config(), 2000);
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    // One chunk whole, one half.
    raw.frame(&chunk(id, 0, 300));
    let second = chunk(id, 0, 400).bytes();
    raw.send(&second[..200]);
    until("bytes of the second chunk are there", || bytes(&play.local)[400] != pattern(2000, 1)[400]);
    status.cancel().unwrap();
    fail(&status, ErrorKind::Cancelled);
    assert_eq!(play.local.pins(), 0);
    assert_eq!(raw.request().unwrap(), Frame::new(CANCEL, id));
    let marks = pattern(2000, 5);
    play.local.write_at(0, &marks).unwrap();
    raw.send(&second[200..]);
    // A target may have sent everything before it hears of the cancellation, or say that it has stopped.
    for last in [chunk(id, LAST, 300), refusal(9, ErrorKind::Cancelled.number(), b"stopped")] {
        let (status, id) = if last.kind == CHUNK {
            (None, id)
        } else {
            let status = transfer(&play, Op::Read);
            let id = raw.request().unwrap().id;
            status.cancel().unwrap();
            fail(&status, ErrorKind::Cancelled);
            assert_eq!(raw.request().unwrap(), Frame::new(CANCEL, id));
            (Some(status), id)
        };
        raw.frame(&Frame { id, ..last });
        // The next transfer comes after all that on the same connection.
        let next = submit(&play.session, Op::Read, &[Piece::new(0, 0, 1)]);
        let next_id = raw.request().unwrap().id;
        raw.frame(&Frame { payload: marks[..1].to_vec(), ..chunk(next_id, LAST, 1) });
        succeed(&next);
        assert!(bytes(&play.local) == marks);
        assert!(status.is_none_or(|status| status.code() == StatusCode::Failure(ErrorKind::Cancelled)));
    }
}

/// A target that says "done" before it can have the bytes gets no more of them: the caller would use the memory for
/// something else meanwhile.
#[test]
fn a_write_is_not_done_before_it_is_sent() {
    // More than both sides' buffers in the system take.
    let length = 64 << 20;
    let (play, mut raw) = Play::start(config(), length);
    let status = submit(&play.session, Op::Write, &[Piece::new(0, 0, length as u64)]);
    let head = raw.take(64).unwrap();
    assert_eq!(head[0], WRITE);
    raw.frame(&Frame::new(DONE, u64::from_le_bytes(head[8..16].try_into().unwrap())));
    fail(&status, ErrorKind::Malformed);
    assert_eq!(play.local.pins(), 0);
}

/// A refused write gives its memory up at once, although its frame has to be filled.
#[test]
fn a_write_that_is_refused_early_gives_up_its_memory() {
    let length = 64 << 20;
    let large = TcpConfig { chunk_bytes: 32 << 20, ..config() };
    let (play, mut raw) = Play::start(large, length);
    play.local.write_at(0, &vec![1; length]).unwrap();
    let status = submit(&play.session, Op::Write, &[Piece::new(0, 0, length as u64)]);
    let head = raw.take(64).unwrap();
    let id = u64::from_le_bytes(head[8..16].try_into().unwrap());
    raw.frame(&refusal(id, ErrorKind::NotFound.number(), b"stale"));
    fail(&status, ErrorKind::NotFound);
    assert_eq!(play.local.pins(), 0);
    play.local.write_at(0, &vec![2; length]).unwrap();
    // What was sent before is what it was, the rest of the chunk is nothing, and then comes the stop.
    let payload = raw.take(32 << 20).unwrap();
    let ones = payload.iter().take_while(|&&byte| byte == 1).count();
    assert!(
        payload[ones..].iter().all(|&byte| byte == 0),
        "bytes of memory that is in use for something else"
    );
    assert_eq!(raw.request().unwrap(), Frame::new(CANCEL, id));
    // The connection is as good as before.
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, LAST, 1000));
    succeed(&status);
}

/// The same target takes nothing more: it is lost, although no transfer waits for it.
#[test]
fn a_target_that_refuses_and_takes_nothing_more_is_dropped() {
    let length = 64 << 20;
    // One chunk, so that more has to follow the refusal than the system's buffers take.
    let hasty =
        TcpConfig { peer_timeout: Duration::from_millis(500), chunk_bytes: length as u64, ..config() };
    let (play, mut raw) = Play::start(hasty, length);
    let status = submit(&play.session, Op::Write, &[Piece::new(0, 0, length as u64)]);
    let head = raw.take(64).unwrap();
    let id = u64::from_le_bytes(head[8..16].try_into().unwrap());
    raw.frame(&refusal(id, ErrorKind::NotFound.number(), b"stale"));
    fail(&status, ErrorKind::NotFound);
    until("the session is no longer alive", || !play.session.alive());
    assert_eq!(play.local.pins(), 0);
}

/// Slow is not broken: answers that come byte by byte are right.
#[test]
fn an_answer_may_come_byte_by_byte() {
    let (play, mut raw) = Play::start(config(), 2000);
    let status = transfer(&play, Op::Read);
    let id = raw.request().unwrap().id;
    let answer = [chunk(id, 0, 10).bytes(), chunk(id, 0, 1).bytes(), chunk(id, LAST, 989).bytes()].concat();
    for byte in &answer {
        raw.send(&[*byte]);
    }
    succeed(&status);
    let got = bytes(&play.local);
    assert!(got[100..110] == pattern(10, 77)[..] && got[111..1100] == pattern(989, 77)[..]);
    play.untouched_outside(100, 1000);
}

#[test]
fn a_flood_of_pongs_delays_nobody_else() {
    let (play, mut raw) = Play::start(TcpConfig { io_threads: 1, ..config() }, 2000);
    let healthy = Node::new("healthy", config());
    play.near.backend.add_peer(&healthy.desc()).unwrap();
    let (_remote, desc) = healthy.region(1 << 20, Access::READ_WRITE);
    let (local, _) = play.near.region(1 << 20, Access::LOCAL);
    let session = play.near.session(&local, &desc);
    let pongs: Vec<u8> = std::iter::repeat_n(Frame::new(PONG, 0).bytes(), 1000).flatten().collect();
    std::thread::scope(|scope| {
        let socket = raw.socket.try_clone().unwrap();
        let flooding = scope.spawn(move || while (&socket).write_all(&pongs).is_ok() {});
        for _ in 0..50 {
            succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 1 << 20)]));
        }
        raw.socket.shutdown(std::net::Shutdown::Both).unwrap();
        flooding.join().unwrap();
    });
    assert!(raw.take(1).is_none());
}

/// The message of a transfer is confirmed by the target; a target that refuses it fails the transfer.
#[test]
fn a_refused_message_fails_its_transfer() {
    let (play, mut raw) = Play::start(config(), 2000);
    let status = play.session.submit(Op::Read, &[Piece::new(OFFSET, 0, LENGTH)], &notify(1, b"hello", false));
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, LAST, 1000));
    let note = raw.request().unwrap();
    assert_eq!((note.kind, &note.body[2..]), (NOTE, &b"hello"[..]));
    raw.frame(&refusal(note.id, ErrorKind::ResourceExhausted.number(), b"the queue is full"));
    fail(&status, ErrorKind::ResourceExhausted);
    // And one that answers it with bytes is out.
    let status = play.session.submit(Op::Read, &[Piece::new(OFFSET, 0, LENGTH)], &notify(1, b"hello", false));
    let id = raw.request().unwrap().id;
    raw.frame(&chunk(id, LAST, 1000));
    let note = raw.request().unwrap();
    let _ = raw.socket.write_all(&chunk(note.id, LAST, 10).bytes());
    fail(&status, ErrorKind::Malformed);
}

/// The engine that answers is asked who it is.
#[test]
fn another_engine_at_the_address_is_a_lost_peer() {
    let stage = Stage::new("somebody else");
    let near = Node::new("near", config());
    let mut desc = stage.desc();
    desc.key = "far".into();
    near.backend.add_peer(&desc).unwrap();
    let (local, _) = near.region(10, Access::LOCAL);
    let mut memory = stage.memory(10);
    memory.engine_key = "far".into();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The initiator ends the handshake before it says who it is.
            let mut raw = stage.greet();
            assert!(raw.message().is_none());
        });
        let error = near.backend.session(&local, &memory).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert!(error.message().contains("somebody else"), "{error}");
    });
}

/// Whatever a target says in the handshake, the initiator answers with an error within its bound.
#[test]
fn handshakes_that_are_none_fail_clearly() {
    let hello_back = |version: [u8; 4], locked: u8| {
        let mut body = b"mori-tcp".to_vec();
        body.extend_from_slice(&version[..3]);
        body.push(locked);
        body.extend_from_slice(&[3; 32]);
        support::raw::handshake_message(&body)
    };
    let cases: Vec<(&str, Vec<u8>, ErrorKind)> = vec![
        ("garbage", [vec![0xff, 0xff], pattern(100, 1)].concat(), ErrorKind::Malformed),
        ("another service", b"220 ready\r\n".repeat(100), ErrorKind::Malformed),
        ("an empty challenge", support::raw::handshake_message(&[]), ErrorKind::Malformed),
        ("a cut challenge", support::raw::handshake_message(b"mori-tcp"), ErrorKind::Malformed),
        ("no common version", hello_back([0, 3, 9, 0], 0), ErrorKind::Unsupported),
        ("a secret is wanted", hello_back([1, 1, 1, 0], 1), ErrorKind::AccessDenied),
        (
            "a wrong proof",
            [hello_back([1, 1, 1, 0], 0), support::raw::handshake_message(&[1; 80])].concat(),
            ErrorKind::AccessDenied,
        ),
        (
            "a cut proof",
            [hello_back([1, 1, 1, 0], 0), support::raw::handshake_message(&[1; 31])].concat(),
            ErrorKind::Malformed,
        ),
        ("silence", vec![], ErrorKind::PeerLost),
        ("half a challenge", hello_back([1, 1, 1, 0], 0)[..20].to_vec(), ErrorKind::PeerLost),
    ];
    for (what, answer, kind) in cases {
        let stage = Stage::new("far");
        let near = Node::new("near", TcpConfig { connect_timeout: Duration::from_millis(500), ..config() });
        near.backend.add_peer(&stage.desc()).unwrap();
        let (local, _) = near.region(10, Access::LOCAL);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut raw = stage.accept_silent();
                let _ = raw.socket.write_all(&answer);
                raw.ended();
            });
            near.backend.session(&local, &stage.memory(10)).map(drop).unwrap_err()
        });
        assert_eq!(error.kind(), kind, "{what}: {error}");
        assert!(!error.message().is_empty());
        near.backend.shutdown();
        drop(stage);
    }
}

/// A connection that ends in the handshake fails what waits for it.
#[test]
fn transfers_that_wait_for_the_handshake_end_with_it() {
    let (play, raw) = Play::start(config(), 2000);
    drop(raw);
    until("the loss is noticed", || !play.session.alive());
    let status = transfer(&play, Op::Write);
    let mut raw = play.stage.accept_silent();
    raw.message().unwrap();
    assert_eq!(status.code(), StatusCode::InProgress);
    drop(raw);
    fail(&status, ErrorKind::PeerLost);
    assert_eq!(play.local.pins(), 0);
    // The next one connects again.
    let status = transfer(&play, Op::Write);
    let mut raw = play.stage.accept();
    let id = raw.request().unwrap().id;
    raw.frame(&Frame::new(DONE, id));
    assert_eq!(finish(&status), StatusCode::Success);
}
