//! What comes in over the control socket and is not what it should be, and memory that is not what it was.

#![allow(clippy::unwrap_used, clippy::panic, clippy::undocumented_unsafe_blocks, reason = "helpers of tests")]

mod support;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Access, Backend, EngineDesc, ErrorKind, MemoryDesc, Op, Piece, Region, Session, TransferOptions,
};
use support::child::config;
use support::relay::{connect, fresh_name, listen, receive, send, socket_name};
use support::{Engine, bytes_of, transfer, until};

/// The socket that an engine listens on.
fn address(engine: &Engine) -> Vec<u8> {
    socket_name(&engine.desc.transports[0].bytes[32..48])
}

fn hello() -> Vec<u8> {
    let mut hello = vec![1];
    hello.extend_from_slice(b"mori-shm");
    hello.extend_from_slice(&[1, 1]);
    hello.extend_from_slice(&[7; 32]);
    hello
}

/// Two engines of this process, and a session from one to the other.
fn pair(mode: &str) -> (Engine, Engine, Region, Region, Arc<dyn Session>) {
    let (one, other) =
        (Engine::join("one", config(mode, "-")).unwrap(), Engine::join("other", config(mode, "-")).unwrap());
    one.backend.add_peer(&other.desc).unwrap();
    let (local, _) = one.memory(1 << 20).unwrap();
    let (remote, desc) = other.memory(1 << 20).unwrap();
    let session = one.backend.session(&local, &desc).unwrap();
    (one, other, local, remote, session)
}

fn works(session: &dyn Session) {
    transfer(session, Op::Write, &[Piece::new(0, 0, 1 << 20)]).unwrap();
}

/// Whether the other end closes, after whatever it has to say.
fn is_closed(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 8192];
    while receive(socket, &mut buffer).is_some() {}
    true
}

#[test]
fn packets_that_make_no_sense_end_their_connection_only() {
    let (_one, other, _local, _remote, session) = pair("default");
    let mut long = hello();
    long.resize(5000, 0);
    let mut foreign = hello();
    foreign[1] = b'x';
    let mut open = vec![3];
    open.extend_from_slice(&[0; 24]);
    let proof = {
        let mut proof = vec![2];
        proof.extend_from_slice(&[0; 32 + 16]);
        proof.extend_from_slice(&[1, 0, b'a']);
        proof
    };
    let garbage: &[&[&[u8]]] = &[
        &[&[0xff; 100]],
        &[&[1]],
        &[&long],
        &[&foreign],
        &[&open],
        &[&[0x88]],
        &[&hello(), &hello()],
        &[&hello(), &open],
        &[&hello(), &proof],
    ];
    for packets in garbage {
        let socket = connect(&address(&other)).unwrap();
        for packet in *packets {
            send(&socket, packet, None);
        }
        assert!(is_closed(&socket));
        works(&*session);
    }
}

#[test]
fn a_version_that_nobody_speaks_is_named() {
    let (_one, other, ..) = pair("default");
    let socket = connect(&address(&other)).unwrap();
    let mut hello = hello();
    hello[9..11].copy_from_slice(&[8, 9]);
    send(&socket, &hello, None);
    let mut buffer = [0; 8192];
    let (length, _) = receive(&socket, &mut buffer).unwrap();
    assert_eq!((buffer[0], buffer[9], length), (0x81, 0, 45), "a welcome without a version");
    assert!(is_closed(&socket));
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let (_one, other, _local, _remote, session) = pair("default");
    let silent: Vec<OwnedFd> = (0..300).map(|_| connect(&address(&other)).unwrap()).collect();
    works(&*session);
    let third = Engine::join("third", config("default", "-")).unwrap();
    third.backend.add_peer(&other.desc).unwrap();
    let (local, _) = third.memory(64).unwrap();
    let (_, desc) = other.memory(64).unwrap();
    let session = third.backend.session(&local, &desc).unwrap();
    transfer(&*session, Op::Read, &[Piece::new(0, 0, 64)]).unwrap();
    // All of them are turned away, the oldest first, the others when their time is up.
    silent.iter().for_each(|socket| assert!(is_closed(socket)));
}

/// A target that answers a hello with these packets.
fn false_target(answers: Vec<(Vec<u8>, Option<OwnedFd>)>) -> (EngineDesc, MemoryDesc) {
    let name = fresh_name();
    let listener = listen(&socket_name(&name)).unwrap();
    std::thread::spawn(move || {
        while let Ok(socket) = rustix::net::accept(&listener) {
            let mut buffer = [0; 8192];
            for (packet, descriptor) in &answers {
                if receive(&socket, &mut buffer).is_none() || !send(&socket, packet, descriptor.as_ref()) {
                    break;
                }
            }
            // Until the other side has had enough.
            is_closed(&socket);
        }
    });
    let real = Engine::join("false", config("default", "-")).unwrap();
    let (_, memory) = real.memory(64).unwrap();
    let mut desc = real.desc.clone();
    desc.transports[0].bytes[32..48].copy_from_slice(&name);
    (desc, memory)
}

#[test]
fn a_target_that_makes_no_sense_is_no_route() {
    let mut welcome = vec![0x81];
    welcome.extend_from_slice(b"mori-shm");
    welcome.extend_from_slice(&[1, 1, 1, 0]);
    welcome.extend_from_slice(&[3; 32]);
    let mut locked = welcome.clone();
    locked[12] = 1;
    let place = {
        let mut place = vec![0x82];
        place.extend_from_slice(&[0; 32 + 8 + 16]);
        place.extend_from_slice(&[0, 0]);
        place
    };
    let page =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None);
    let lies = [
        (vec![(vec![0xff; 50], None)], ErrorKind::Malformed),
        (vec![(vec![0x86; 9], None)], ErrorKind::Malformed),
        (vec![(vec![0x88], Some(page.unwrap()))], ErrorKind::Malformed),
        (vec![(locked, None)], ErrorKind::AccessDenied),
        (vec![(welcome.clone(), None), (vec![0x87], None)], ErrorKind::Malformed),
        (vec![(welcome.clone(), None), (place, None)], ErrorKind::AccessDenied),
        (vec![(welcome, None)], ErrorKind::TimedOut),
    ];
    for (answers, kind) in lies {
        let here = Engine::join("here", config("default", "-")).unwrap();
        let (desc, memory) = false_target(answers);
        here.backend.add_peer(&desc).unwrap();
        let (local, _) = here.memory(64).unwrap();
        let error = here.backend.route(&local, &memory).unwrap_err();
        // A welcome that is answered by nothing at all: the target waits for a proof, and so do we.
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn memory_that_is_gone_fails_the_transfer_and_says_where() {
    for mode in ["default", "threads"] {
        let (one, other, _local, _remote, session) = pair(mode);
        let length = 64 << 10;
        let map = || unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0)
        };
        let hole = map();
        let region = unsafe {
            Region::from_raw(hole.cast(), length, mori_core::Location::HOST, Access::READ_WRITE).unwrap()
        };
        let desc = other.register(&region).unwrap();
        let (local, _) = one.memory(length).unwrap();
        let holed = one.backend.session(&local, &desc).unwrap();
        transfer(&*holed, Op::Read, &[Piece::new(0, 0, length as u64)]).unwrap();
        // The second half goes, behind everybody's back.
        unsafe { libc::munmap(hole.wrapping_byte_add(length / 2), length / 2) };
        for op in [Op::Read, Op::Write] {
            transfer(&*holed, op, &[Piece::new(0, 0, length as u64 / 2)]).unwrap();
            let error =
                transfer(&*holed, op, &[Piece::new(0, 0, 64), Piece::new(64, 40_000, 64)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
            assert_eq!(error.cause().unwrap().number, i64::from(libc::EFAULT));
            assert!(error.message().contains("remote offset 40000"), "{error}");
        }
        works(&*session);
        unsafe { libc::munmap(hole, length / 2) };
    }
}

#[test]
fn a_fork_of_the_process_may_not_use_the_engine() {
    let (_one, _other, local, _remote, session) = pair("default");
    works(&*session);
    // The child does no more than one submission, and ends without running what the test program would at its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = session.submit(Op::Read, &[Piece::new(0, 0, 64)], &TransferOptions::default());
        let refused = status.error().is_some_and(|error| error.kind() == ErrorKind::BadState);
        unsafe { libc::_exit(if refused { 33 } else { 34 }) };
    }
    let mut how = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut how, 0) }, child);
    assert!(libc::WIFEXITED(how) && libc::WEXITSTATUS(how) == 33, "the child ended as {how:#x}");
    works(&*session);
    assert_eq!(bytes_of(&local).len(), 1 << 20);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    let own = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("mori-shm"))
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().filter(own).count()
}

/// In a process of its own, since it counts what the whole process has.
#[test]
fn what_is_opened_is_closed() {
    if std::env::var_os("MORI_SHM_TEST_ALONE").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone
            .args(["--exact", "what_is_opened_is_closed", "--test-threads=1"])
            .env("MORI_SHM_TEST_ALONE", "1");
        assert!(alone.output().unwrap().status.success());
        return;
    }
    let count = |rounds: usize| {
        for _ in 0..rounds {
            let (one, other, local, _remote, session) = pair("threads");
            works(&*session);
            for round in 0..4 {
                let (fleeting, desc) = other.memory(4096).unwrap();
                let session = one.backend.session(&local, &desc).unwrap();
                transfer(&*session, Op::Read, &[Piece::new(0, 0, 4096)]).unwrap();
                fleeting.close(None, &mori_core::Clock::system()).unwrap();
                other.backend.deregister(fleeting.id());
                if round == 2 {
                    one.backend.remove_peer(&"other".into());
                    one.backend.add_peer(&other.desc).unwrap();
                }
            }
            // A thread names itself when it starts.
            until("the threads run", || threads() == 2 + 2 * config("threads", "-").threads);
            one.backend.shutdown();
            other.backend.shutdown();
            until("the threads are gone", || threads() == 0);
        }
        descriptors()
    };
    let before = count(1);
    assert_eq!(count(10), before, "descriptors stay open");
}

#[test]
fn suspending_leaves_nobody_inside_and_resuming_lets_all_go_on() {
    let (_one, other, _local, remote, session) = pair("threads");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    works(&*session);
                }
            });
        }
        for round in 0..50_u8 {
            other.backend.suspend(Duration::from_secs(10)).unwrap();
            let mark = vec![round; 1 << 20];
            remote.write_at(0, &mark).unwrap();
            for _ in 0..3 {
                assert!(bytes_of(&remote) == mark, "somebody copies while all are suspended");
            }
            other.backend.resume();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
