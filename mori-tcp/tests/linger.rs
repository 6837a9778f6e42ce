//! A waiting thread that reads the answer itself in its busy window (W8), and gives the connection back.
//!
//! The tests call the hook directly. It asks whether the wait is over for the first time when the connection is the calling
//! thread's already, so a target that answers in that very question is read by that thread.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::cell::Cell;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use mori_core::{Backend, ErrorKind, Observe, Op, Piece, Status, StatusCode};
use mori_tcp::{TcpBackend, TcpConfig};
use support::play::{self, Play};
use support::raw::{CHUNK, Frame, LAST, Raw};
use support::{Link, bytes, fail, pattern, submit, succeed, until};

const LENGTH: usize = 1000;

/// One connection and the longest window, so that a slow machine does not end it.
fn config() -> TcpConfig {
    TcpConfig { busy_window: Duration::from_millis(10), ..play::config() }
}

/// A read of everything, and its request as the target has it.
fn read(play: &Play, raw: &mut Raw) -> (Status, Frame) {
    let status = submit(&play.session, Op::Read, &[Piece::new(0, 0, LENGTH as u64)]);
    let request = raw.request().unwrap();
    (status, request)
}

fn answer(request: &Frame, seed: u64) -> Vec<u8> {
    Frame { flags: LAST, payload: pattern(LENGTH, seed), ..Frame::new(CHUNK, request.id) }.bytes()
}

/// How often something is tried that the I/O thread may do first: it looks at a connection of its own accord, too.
const TRIES: u64 = 100;

/// Lingers on `status`, and runs `then` when the connection is this thread's, until the status is over.
fn linger(backend: &TcpBackend, status: &Status, then: impl FnOnce()) {
    let then = Cell::new(Some(then));
    // The window may pass on a machine that is busy with something else.
    while status.code() == StatusCode::InProgress {
        backend.linger(status.id(), &|| {
            if let Some(then) = then.take() {
                then();
            }
            status.code() != StatusCode::InProgress
        });
    }
}

/// Remembers which thread told it, and runs what it is given there.
struct Seen {
    thread: Mutex<Option<ThreadId>>,
    then: Box<dyn Fn() + Send + Sync>,
}

impl Seen {
    fn of(status: &Status, then: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let seen = Arc::new(Self { thread: Mutex::default(), then: Box::new(then) });
        assert!(status.subscribe(Arc::<Self>::clone(&seen)));
        seen
    }

    fn here(&self) -> bool {
        *self.thread.lock().unwrap() == Some(std::thread::current().id())
    }
}

impl Observe for Seen {
    fn on_terminal(&self, _: StatusCode) {
        *self.thread.lock().unwrap() = Some(std::thread::current().id());
        (self.then)();
    }
}

#[test]
fn the_waiting_thread_reads_the_answer_itself() {
    let (play, mut raw) = Play::start(config(), LENGTH);
    let here = (0..TRIES).filter(|round| {
        let (status, request) = read(&play, &mut raw);
        let seen = Seen::of(&status, || {});
        linger(&play.near.backend, &status, || raw.send(&answer(&request, *round)));
        assert!(status.is_success());
        assert!(bytes(&play.local) == pattern(LENGTH, *round));
        seen.here()
    });
    let here = here.count();
    assert!(here > 50, "the waiting thread has read {here} answers of {TRIES}");
}

#[test]
fn a_window_of_zero_reads_nothing() {
    let (play, mut raw) = Play::start(TcpConfig { busy_window: Duration::ZERO, ..config() }, LENGTH);
    let (status, request) = read(&play, &mut raw);
    play.near.backend.linger(status.id(), &|| unreachable!("there is no window to ask in"));
    raw.send(&answer(&request, 3));
    succeed(&status);
}

/// W5, S7: wherever in an answer the wait ends, the rest reaches its transfer with nobody waiting.
#[test]
fn what_comes_after_the_wait_is_read_by_the_io_thread() {
    let (play, mut raw) = Play::start(config(), LENGTH);
    for cut in [0, 1, 63, 64, 65, 300, LENGTH, LENGTH + 63] {
        let (status, request) = read(&play, &mut raw);
        let whole = answer(&request, cut as u64);
        let looks = Cell::new(0);
        play.near.backend.linger(status.id(), &|| {
            if looks.get() == 0 {
                (&raw.socket).write_all(&whole[..cut]).unwrap();
            }
            looks.set(looks.get() + 1);
            looks.get() > 20
        });
        assert!(looks.get() > 0, "the connection was not to be had");
        raw.send(&whole[cut..]);
        // Looks only, so that no other wait reads it.
        until("the end of the read", || status.code().is_terminal());
        assert!(status.is_success(), "cut at {cut}: {status:?}");
        assert!(bytes(&play.local) == pattern(LENGTH, cut as u64));
    }
}

/// S7: what was read ahead for others is not forgotten when the connection goes back.
#[test]
fn answers_to_others_that_came_along_reach_them() {
    for count in [2, 3, 40] {
        let (play, mut raw) = Play::start(config(), LENGTH);
        let reads: Vec<_> = (0..count).map(|_| read(&play, &mut raw)).collect();
        let all: Vec<u8> = reads.iter().flat_map(|(_, request)| answer(request, 7)).collect();
        linger(&play.near.backend, &reads[0].0, || raw.send(&all));
        until("the end of all", || reads.iter().all(|(status, _)| status.code().is_terminal()));
        assert!(reads.iter().all(|(status, _)| status.is_success()));
    }
}

/// E4: the end of the connection is noticed by whoever reads it.
#[test]
fn a_peer_that_goes_away_meanwhile_is_lost_at_once() {
    let (play, mut raw) = Play::start(config(), LENGTH);
    let (status, request) = read(&play, &mut raw);
    let (other, _) = read(&play, &mut raw);
    let half = answer(&request, 1)[..500].to_vec();
    let mut raw = Some(raw);
    linger(&play.near.backend, &status, || {
        if let Some(mut raw) = raw.take() {
            raw.send(&half);
        }
    });
    for status in [&status, &other] {
        fail(status, ErrorKind::PeerLost);
    }
    assert_eq!(play.local.pins(), 0);
}

#[test]
fn nonsense_meanwhile_ends_the_connection_and_is_read_no_further() {
    let (play, mut raw) = Play::start(config(), LENGTH);
    let (status, request) = read(&play, &mut raw);
    let mut bytes = Frame::new(0x44, 1).bytes();
    bytes.extend_from_slice(&answer(&request, 1));
    linger(&play.near.backend, &status, || {
        let _ = raw.socket.write_all(&bytes);
    });
    fail(&status, ErrorKind::Malformed);
    raw.ended();
    play.untouched_outside(0, 0);
}

/// E1: a stop that another thread asks for gets its turn while this one reads.
#[test]
fn a_transfer_is_cancelled_while_a_thread_lingers_on_it() {
    let (play, mut raw) = Play::start(config(), LENGTH);
    for _ in 0..20 {
        let (status, _) = read(&play, &mut raw);
        linger(&play.near.backend, &status, || status.cancel().unwrap());
        fail(&status, ErrorKind::Cancelled);
    }
}

/// An observer runs on the thread that reads. It may shut everything down there, and nothing waits for itself.
#[test]
fn an_observer_on_the_waiting_thread_shuts_the_backend_down() {
    let mut tries = 0..TRIES;
    let here = tries.any(|_| {
        let (play, mut raw) = Play::start(config(), LENGTH);
        let (status, request) = read(&play, &mut raw);
        let (other, _) = read(&play, &mut raw);
        let backend = Arc::clone(&play.near.backend);
        let seen = Seen::of(&status, move || backend.shutdown());
        linger(&play.near.backend, &status, || raw.send(&answer(&request, 1)));
        assert!(status.is_success());
        fail(&other, ErrorKind::BadState);
        play.near.backend.shutdown();
        seen.here()
    });
    assert!(here, "the I/O thread was first each time");
}

/// A panic of an observer leaves the connection as usable as before.
#[test]
fn an_observer_that_panics_on_the_waiting_thread_breaks_nothing() {
    let (play, mut raw) = Play::start(config(), LENGTH);
    let mut tries = 0..TRIES;
    let here = tries.any(|_| {
        let (status, request) = read(&play, &mut raw);
        let seen = Seen::of(&status, || std::panic::resume_unwind(Box::new("of no use")));
        linger(&play.near.backend, &status, || raw.send(&answer(&request, 1)));
        assert!(status.is_success());
        seen.here()
    });
    assert!(here, "the I/O thread was first each time");
    let (status, request) = read(&play, &mut raw);
    raw.send(&answer(&request, 2));
    succeed(&status);
}

/// Many threads wait on the same few connections: each transfer ends, and every byte is right.
#[test]
fn many_threads_linger_on_the_same_connections() {
    let link =
        Link::new(&TcpConfig { busy_window: Duration::from_micros(20), ..TcpConfig::default() }, 1 << 16);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let link = &link;
            scope.spawn(move || {
                for round in 0..300 {
                    let length = [8, 500, 4600, 8000][(thread + round) % 4];
                    let offset = (thread * 8192) as u64;
                    succeed(&submit(&link.session, Op::Read, &[Piece::new(offset, offset, length)]));
                }
            });
        }
    });
    link.works();
}
