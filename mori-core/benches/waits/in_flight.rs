//! Many statuses that another thread completes while they are waited for.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use mori_core::{Completer, Repoll, Status, Timeout, WaitPolicy, wait_all};

use crate::fake::{Polled, in_progress};
use crate::figures::{Figures, nanos};
use crate::machine::{self, Usage};
use crate::single::places;
use crate::terminal::COUNTS;

/// The order in which they are completed.
#[derive(Clone, Copy, Debug)]
enum Order {
    Forward,
    Reversed,
    Random,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::Forward => "in_order",
            Self::Reversed => "reversed",
            Self::Random => "random",
        }
    }

    /// A small generator of its own: the same orders in every run.
    fn arrange(self, completers: &mut [Completer], seed: u64) {
        match self {
            Self::Forward => {}
            Self::Reversed => completers.reverse(),
            Self::Random => {
                let mut state = seed | 1;
                for last in (1..completers.len()).rev() {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    completers.swap(last, (state % (last as u64 + 1)) as usize);
                }
            }
        }
    }
}

/// How they are waited for.
#[derive(Clone, Copy, Debug)]
enum Way {
    Together,
    /// The yardstick: a wait for one after the other.
    OneByOne,
}

pub(crate) fn many(figures: &mut Figures) {
    let all = machine::processors();
    for (cpus, waiter, writer) in places(&all) {
        for count in COUNTS {
            for order in [Order::Forward, Order::Reversed, Order::Random] {
                let name = format!("many/in_flight/{}/{count}/{cpus}", order.name());
                measure(figures, &name, count, order, Way::Together, (waiter, writer));
            }
            let name = format!("many/in_flight/yardstick_one_by_one/{count}/{cpus}");
            measure(figures, &name, count, Order::Forward, Way::OneByOne, (waiter, writer));
        }
    }
    machine::bind(&all);
}

fn measure(figures: &Figures, name: &str, count: usize, order: Order, way: Way, at: (usize, usize)) {
    if !figures.wants(name) {
        return;
    }
    let (batches, incoming) = mpsc::channel::<Vec<Completer>>();
    let (numbers, number) = mpsc::channel();
    let waiter = machine::thread_number();
    let writing = std::thread::spawn(move || {
        machine::bind(&[at.1]);
        numbers.send(machine::thread_number()).unwrap();
        for batch in incoming {
            // All of them are in flight, and waited for, when the first one is completed. On one processor it is enough to
            // let the waiter go first; asking the system whether it sleeps takes longer than the wait.
            if at.0 == at.1 {
                std::thread::yield_now();
            } else {
                machine::until_asleep(waiter);
            }
            for completer in &batch {
                completer.succeed();
            }
            // Dropping them is not part of what is measured on two processors, and little of it on one.
            drop(batch);
        }
    });
    let writer = number.recv().unwrap();
    machine::bind(&[at.0]);
    let (mut walls, mut cpus, mut sleeps) = (Vec::new(), Vec::new(), Vec::new());
    for sample in 0..figures.samples(if count > 1024 { 31 } else { 101 }) {
        let (mut completers, statuses): (Vec<Completer>, Vec<Status>) =
            (0..count).map(|_| in_progress()).unzip();
        order.arrange(&mut completers, sample as u64 + 1);
        machine::until_asleep(writer);
        let (used, start) = (Usage::of_thread(), Instant::now());
        let process = Usage::of_process();
        batches.send(completers).unwrap();
        match way {
            Way::Together => assert!(wait_all(&statuses, None).is_success()),
            Way::OneByOne => {
                for status in &statuses {
                    assert!(status.wait(None).is_success());
                }
            }
        }
        walls.push(nanos(start) / 1e3);
        cpus.push(Usage::of_process().since(process).cpu_us);
        sleeps.push(Usage::of_thread().since(used).sleeps);
    }
    drop(batches);
    writing.join().unwrap();
    figures.median(&format!("{name}/wall"), &mut walls, "us");
    figures.median(&format!("{name}/cpu"), &mut cpus, "us");
    figures.median(&format!("{name}/waiter_sleeps"), &mut sleeps, "switches");
}

/// 64 members that only polls complete.
pub(crate) fn polled(figures: &mut Figures) {
    const MEMBERS: usize = 64;
    let backend = Polled::start();
    let (running, statuses): (Vec<Completer>, Vec<Status>) = (0..MEMBERS).map(|_| backend.submit()).unzip();
    figures.time("polled/zero_timeout_64", 500, || wait_all(&statuses, Timeout::Poll));
    let name = "polled/bounded_1ms_64";
    if figures.wants(name) {
        let (mut late, mut polls) = (Vec::new(), Vec::new());
        for _ in 0..figures.samples(101) {
            let (before, start) = (backend.polls(), Instant::now());
            wait_all(&statuses, Duration::from_millis(1));
            late.push(nanos(start) / 1e3 - 1e3);
            polls.push((backend.polls() - before) as f64);
        }
        figures.median(&format!("{name}/overshoot"), &mut late, "us");
        figures.median(&format!("{name}/polls"), &mut polls, "polls");
    }
    drop(running);
    let name = "polled/back_off_64";
    if figures.wants(name) {
        let policy = WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT };
        let (mut walls, mut polls) = (Vec::new(), Vec::new());
        for _ in 0..figures.samples(101) {
            let (completers, statuses): (Vec<Completer>, Vec<Status>) =
                (0..MEMBERS).map(|_| backend.submit()).unzip();
            let (before, start) = (backend.polls(), Instant::now());
            // The first poll of each finds nothing.
            let all = std::thread::scope(|scope| {
                let waiter = scope.spawn(|| policy.wait_all(&statuses, Duration::from_secs(10)).is_success());
                while backend.polls() - before < MEMBERS as u64 {
                    std::thread::yield_now();
                }
                backend.finish(completers);
                waiter.join().unwrap()
            });
            assert!(all);
            walls.push(nanos(start) / 1e3);
            polls.push((backend.polls() - before) as f64);
        }
        figures.median(&format!("{name}/wall"), &mut walls, "us");
        figures.median(&format!("{name}/polls"), &mut polls, "polls");
    }
}
