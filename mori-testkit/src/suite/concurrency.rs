//! Many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mori_core::{Clock, Op, Piece, Session, Status, StatusCode, TransferOptions, wait_any};

use super::cases;
use super::fixture::{Area, Bench, Link, PATIENT, Peer, Random, Running, pattern, same};
use crate::check::{CaseResult, Doing, Problem, ensure};
use crate::harness::Node;

cases! {
    "Backend, Threads" many_threads_on_one_session,
    "Backend, Threads" many_threads_on_sessions_of_their_own,
    "W7" many_threads_wait_for_many_transfers,
    "Backend, Threads" many_peers_at_once,
    "Backend::register" registering_while_transfers_run,
    "Session" sessions_come_and_go_while_transfers_run,
    "E1, Threads" [Cancel] waits_polls_and_cancellations_race,
}

const THREADS: u64 = 8;
const SLOT: u64 = 4096;

/// What a thread needs to move bytes on its own: a session, and both ends of it.
#[derive(Clone)]
struct Way {
    session: Arc<dyn Session>,
    near: End,
    far: End,
}

#[derive(Clone)]
struct End {
    node: Arc<dyn Node>,
    area: Area,
}

impl End {
    fn new(peer: &Peer, area: &Area) -> Self {
        Self { node: Arc::clone(&peer.node), area: area.clone() }
    }

    fn store(&self, start: u64, bytes: &[u8]) -> CaseResult {
        self.node.store(&self.area.region, start, bytes).doing("filling memory")
    }

    fn holds(&self, start: u64, expected: &[u8]) -> CaseResult {
        let mut found = vec![0; expected.len()];
        self.node.load(&self.area.region, start, &mut found).doing("looking at memory")?;
        same(&found, expected)
    }
}

impl Way {
    /// A way between fresh areas.
    fn between(from: &Peer, to: &Peer, length: usize) -> CaseResult<Self> {
        let (near, far) = (from.area(length)?, to.area(length)?);
        let session = from.session(&near, &far)?;
        Ok(Self { session, near: End::new(from, &near), far: End::new(to, &far) })
    }

    fn of(link: &Link) -> Self {
        let session = Arc::clone(&link.session);
        Self { session, near: End::new(&link.a, &link.local), far: End::new(&link.b, &link.remote) }
    }

    /// Writes and reads one slot of both areas again and again, and compares its bytes every time.
    fn work(&self, seed: u64, rounds: u64, slot: u64, bound: Duration) -> CaseResult {
        let (start, mut random) = (slot * SLOT, Random::new(seed));
        for round in 0..rounds {
            let bytes = pattern(random.next(), 4096);
            // The bytes go there by a write, the near copy is wiped, and they come back by a read.
            self.near.store(start, &bytes)?;
            for op in [Op::Write, Op::Read] {
                let at = 1 + random.below(SLOT - 1);
                let pieces = [Piece::new(start, start, at), Piece::new(start + at, start + at, SLOT - at)];
                let status = self.session.submit(op, &pieces, &TransferOptions::default());
                let code = status.wait_with(bound, &PATIENT);
                ensure!(code.is_success(), "round {round}: {op:?} ended as {code}: {}", status.message());
                if op == Op::Write {
                    self.far.holds(start, &bytes).doing(format!("round {round}, at the target"))?;
                    self.near.store(start, &[0; 4096])?;
                }
            }
            self.near.holds(start, &bytes).doing(format!("round {round}, back at the submitter"))?;
        }
        Ok(())
    }
}

fn join_all(bench: &Bench, threads: Vec<Running<CaseResult>>) -> CaseResult {
    threads.into_iter().try_for_each(|thread| thread.join(bench.bounds.case)?)
}

fn many_threads_on_one_session(bench: &Bench) -> CaseResult {
    let link = bench.link(usize::try_from(THREADS * SLOT).unwrap_or(usize::MAX))?;
    let bound = bench.bounds.transfer;
    let threads = (0..THREADS)
        .map(|slot| {
            let way = Way::of(&link);
            bench.spawn("a thread on a shared session", move || way.work(slot, 50, slot, bound))
        })
        .collect::<CaseResult<_>>()?;
    join_all(bench, threads)
}

fn many_threads_on_sessions_of_their_own(bench: &Bench) -> CaseResult {
    let (a, b) = bench.pair()?;
    let bound = bench.bounds.transfer;
    let threads = (0..THREADS)
        .map(|seed| {
            let way = Way::between(&a, &b, 4096)?;
            bench.spawn("a thread on a session of its own", move || way.work(seed, 50, 0, bound))
        })
        .collect::<CaseResult<_>>()?;
    join_all(bench, threads)
}

fn many_threads_wait_for_many_transfers(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 16)?;
    for round in 0..10 {
        let statuses: Vec<Status> =
            (0..64).map(|slot| link.submit(Op::Read, &[Piece::new(slot * 100, slot * 100, 100)])).collect();
        let statuses = Arc::new(statuses);
        let threads = (0..6)
            .map(|index| {
                let statuses = Arc::clone(&statuses);
                let bound = bench.bounds.transfer;
                bench.spawn("a thread that waits for many", move || {
                    match index % 3 {
                        0 => {
                            let outcome = PATIENT.wait_all(&statuses, bound);
                            ensure!(outcome.is_success(), "a waiter for all was told {:?}", outcome.code());
                        }
                        1 => {
                            let any = wait_any(&statuses, bound);
                            ensure!(any.is_some(), "a waiter for any was told that none has ended");
                        }
                        _ => {
                            for status in statuses.iter().rev() {
                                let code = status.wait_with(bound, &PATIENT);
                                ensure!(code.is_success(), "a waiter for one was told {code}");
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect::<CaseResult<_>>()?;
        join_all(bench, threads).doing(format!("round {round}"))?;
    }
    Ok(())
}

fn many_peers_at_once(bench: &Bench) -> CaseResult {
    let hub = bench.peer("hub")?;
    let spokes: Vec<Peer> =
        (0..6).map(|index| bench.peer(&format!("spoke{index}"))).collect::<CaseResult<_>>()?;
    let mut threads = Vec::new();
    for (seed, spoke) in (0..).zip(&spokes) {
        hub.meet(spoke)?;
        spoke.meet(&hub)?;
        // The hub uses each spoke, and each spoke uses the hub.
        for (from, to) in [(&hub, spoke), (spoke, &hub)] {
            let (way, bound) = (Way::between(from, to, 4096)?, bench.bounds.transfer);
            threads
                .push(bench.spawn("a thread with a peer of its own", move || way.work(seed, 20, 0, bound))?);
        }
    }
    join_all(bench, threads)
}

/// Runs transfers on a thread of its own for as long as `meanwhile` takes.
fn under_traffic(bench: &Bench, meanwhile: impl FnOnce(&Peer, &Peer) -> CaseResult) -> CaseResult {
    let link = bench.link(4096)?;
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = bench.spawn("a thread with transfers", {
        let (way, bound, stop) = (Way::of(&link), bench.bounds.transfer, Arc::clone(&stop));
        move || {
            let mut seed = 0;
            while !stop.load(Ordering::Relaxed) {
                way.work(seed, 5, 0, bound)?;
                seed += 1;
            }
            Ok(())
        }
    })?;
    let done = meanwhile(&link.a, &link.b);
    stop.store(true, Ordering::Relaxed);
    traffic.join(bench.bounds.transfer)??;
    done
}

fn registering_while_transfers_run(bench: &Bench) -> CaseResult {
    under_traffic(bench, |a, b| {
        for seed in 0..40 {
            let (near, far) = (a.area(1000)?, b.area(1000)?);
            let expected = b.fill(&far, seed)?;
            let session = a.session(&near, &far)?;
            let status = session.submit(Op::Read, &[Piece::new(0, 0, 1000)], &TransferOptions::default());
            bench.succeed(&status)?;
            a.holds(&near, &expected, "in a region registered under traffic")?;
            for (peer, area) in [(a, &near), (b, &far)] {
                area.region
                    .close(bench.bounds.prompt, &Clock::system())
                    .doing("closing a region that is quiet")?;
                peer.backend.deregister(area.region.id());
            }
        }
        Ok(())
    })
}

fn sessions_come_and_go_while_transfers_run(bench: &Bench) -> CaseResult {
    under_traffic(bench, |a, b| {
        let (near, far) = (a.area(1000)?, b.area(1000)?);
        for _ in 0..100 {
            let session = a.session(&near, &far)?;
            let status = session.submit(Op::Write, &[Piece::new(0, 0, 1000)], &TransferOptions::default());
            drop(session);
            bench.succeed(&status)?;
        }
        Ok(())
    })
}

fn waits_polls_and_cancellations_race(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 18)?;
    for round in 0..20 {
        let op = if round % 2 == 0 { Op::Read } else { Op::Write };
        let status = link.whole(op);
        let calls: [fn(&Status) -> StatusCode; 4] = [
            |status| status.wait(None),
            |status| status.wait_with(Duration::from_secs(60), &PATIENT),
            Status::poll,
            |status| {
                // It may have ended; what counts is how all the others see it.
                let _ = status.cancel();
                status.code()
            },
        ];
        let threads: Vec<Running<StatusCode>> = calls
            .into_iter()
            .map(|call| {
                let status = status.clone();
                bench.spawn("a racing thread", move || call(&status))
            })
            .collect::<CaseResult<_>>()?;
        let end = bench.finish(&status)?;
        ensure!(
            matches!(end, StatusCode::Success | StatusCode::Failure(mori_core::ErrorKind::Cancelled)),
            "a cancelled transfer ended as {end}"
        );
        for thread in threads {
            let code = thread.join(bench.bounds.transfer)?;
            if code.is_terminal() && code != end {
                return Err(Problem::new(format!("one thread saw {code}, another {end}")));
            }
        }
    }
    link.check(bench, Op::Read, &[Piece::new(0, 0, 1 << 18)])
}
