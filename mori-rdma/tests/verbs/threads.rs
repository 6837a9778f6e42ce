//! Several threads on the same objects.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mori_rdma::verbs::{SendFlags, SendList, WcStatus, WorkCompletion};

use crate::support::{CAPACITIES, End, Sim};

#[test]
fn threads_share_a_queue_pair_and_its_completions() {
    const EACH: u64 = 500;
    let sim = Sim::new();
    sim.set("progress", "thread").unwrap();
    let (a, b) = End::couple(&sim);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let mut list = SendList::new();
                let mut next = 0;
                while next < EACH {
                    list.clear();
                    let id = thread * EACH + next;
                    list.write(id, &[a.sge(thread, 1)], b.remote(id % 4000), SendFlags::SIGNALED);
                    match a.pair.post_send(&mut list) {
                        Ok(()) => next += 1,
                        Err(error) => {
                            assert!(error.is_full(), "{error}");
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        for _ in 0..2 {
            let (a, done) = (&a, &done);
            scope.spawn(move || {
                let mut buffer = [WorkCompletion::default(); 8];
                while done.load(Ordering::Relaxed) < 3 * EACH {
                    let some = a.queue.poll(&mut buffer).unwrap();
                    assert!(some.iter().all(|wc| wc.status() == WcStatus::Success));
                    done.fetch_add(some.len() as u64, Ordering::Relaxed);
                    if some.is_empty() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 3 * EACH);
}

#[test]
fn a_sleeper_is_woken_by_a_completion_on_another_thread() {
    let sim = Sim::new();
    sim.set("progress", "thread").unwrap();
    let (a, b) = End::couple(&sim);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut list = SendList::new();
            for id in 0..u64::from(CAPACITIES.send_requests) {
                list.clear();
                list.write(id, &[a.sge(0, 1)], b.remote(0), SendFlags::SIGNALED);
                a.pair.post_send(&mut list).unwrap();
            }
        });
        let mut seen = 0;
        while seen < CAPACITIES.send_requests as usize {
            a.queue.arm(false).unwrap();
            let now = a.poll().len();
            seen += now;
            if now == 0 {
                let mut polled = [rustix::event::PollFd::new(&a.channel, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut polled, None).unwrap();
                while a.channel.next_event().unwrap().is_some() {}
            }
        }
    });
}

#[test]
fn queues_are_destroyed_while_another_thread_takes_their_events() {
    let sim = Sim::new();
    let context = sim.open(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                while context.next_event().unwrap().is_some() {}
                std::thread::yield_now();
            }
        });
        for _ in 0..300 {
            let end = End::new(&context);
            end.pair.to_init(&crate::support::init()).unwrap();
            sim.kill_pair("mori_sim0", end.pair.number()).unwrap();
            sim.overrun("mori_sim0").unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}
