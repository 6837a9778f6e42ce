//! One status: sizes, reading, waiting, updating, waking.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;

use mori_core::{Completer, Error, ErrorKind, Outcome, Status, Tag};

use crate::fake::in_progress;
use crate::figures::{Figures, nanos};
use crate::machine;

pub(crate) fn sizes(figures: &mut Figures) {
    figures.print("size/status_handle", size_of::<Status>() as f64, "bytes");
    figures.print("size/completer_handle", size_of::<Completer>() as f64, "bytes");
    figures.print("size/outcome", size_of::<Outcome>() as f64, "bytes");
    let (bytes, blocks) = machine::taken(in_progress);
    figures.print("size/status_on_the_heap", bytes as f64, "bytes");
    figures.print("size/blocks_per_status", blocks as f64, "blocks");
}

pub(crate) fn terminal_wait(figures: &mut Figures) {
    let status = Status::succeeded(Tag(0));
    figures.time("single/terminal_wait", 10_000, || black_box(&status).wait(None));
    figures.time("single/code", 10_000, || black_box(&status).code());
    let (_completer, running) = in_progress();
    figures.time("single/code_in_progress", 10_000, || black_box(&running).code());
    let failed = Status::failed(Tag(0), Error::new(ErrorKind::Transport, "link down"));
    figures.time("single/terminal_wait_failed", 10_000, || black_box(&failed).wait(None));
    figures.time("single/error_of_failed", 1_000, || black_box(&failed).error());
}

pub(crate) fn life(figures: &mut Figures) {
    figures.time("single/create_succeed_drop", 1_000, || {
        let (completer, status) = in_progress();
        completer.succeed();
        status.code()
    });
}

pub(crate) fn updates(figures: &mut Figures) {
    figures
        .time_over("single/succeed_without_waiter", 1_000, in_progress, |(completer, _)| completer.succeed());
    figures.time_over(
        "single/succeed_after_a_wait",
        1_000,
        || {
            let pair = in_progress();
            // A bound that has run out leaves the mark of a waiter.
            pair.1.wait(std::time::Duration::from_nanos(1));
            pair
        },
        |(completer, _)| completer.succeed(),
    );
    figures.time_over(
        "single/fail_without_waiter",
        1_000,
        || (in_progress(), Some(Error::new(ErrorKind::Transport, "link down"))),
        |((completer, _), error)| error.take().map(|error| completer.fail(error)),
    );
    figures.time_over("single/ignored_update", 1_000, in_progress, |(completer, _)| completer.submit());
}

/// A waiter that sleeps: what the update costs its thread, and how long until the waiter runs.
pub(crate) fn wake(figures: &mut Figures) {
    if !figures.wants("single/wake") {
        return;
    }
    let all = machine::processors();
    for (name, waiter, writer) in places(&all) {
        let (statuses, incoming) = mpsc::channel::<Status>();
        let (outgoing, woken) = mpsc::channel::<Instant>();
        let (numbers, number) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            machine::bind(&[waiter]);
            numbers.send(machine::thread_number()).unwrap();
            for status in incoming {
                assert!(status.wait(None).is_success());
                outgoing.send(Instant::now()).unwrap();
            }
        });
        let thread = number.recv().unwrap();
        machine::bind(&[writer]);
        let mut updates = Vec::new();
        let mut latencies = Vec::new();
        for _ in 0..figures.samples(1_001) {
            let (completer, status) = in_progress();
            machine::until_asleep(thread);
            statuses.send(status).unwrap();
            // Asleep in the channel it may be for a moment still; then it takes the status and sleeps on that.
            std::thread::yield_now();
            machine::until_asleep(thread);
            let start = Instant::now();
            completer.succeed();
            updates.push(nanos(start));
            latencies.push(woken.recv().unwrap().saturating_duration_since(start).as_secs_f64() * 1e9);
        }
        drop(statuses);
        waiting.join().unwrap();
        machine::bind(&all);
        figures.median(&format!("single/wake/update_with_waiter/{name}"), &mut updates, "ns");
        figures.median(&format!("single/wake/latency/{name}"), &mut latencies, "ns");
    }
}

/// Processors for a waiter and a writer: one for both, and two if there are two.
pub(crate) fn places(all: &[usize]) -> Vec<(&'static str, usize, usize)> {
    match *all {
        [] => Vec::new(),
        [one] => vec![("one_cpu", one, one)],
        [one, two, ..] => vec![("one_cpu", one, one), ("two_cpus", one, two)],
    }
}
