//! What a waiter that is blocked for long costs: nothing.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use mori_core::{Completer, Status, StatusCode, wait_all};

use crate::fake::{Polled, in_progress};
use crate::figures::Figures;
use crate::machine::Usage;

/// Three seconds each.
const LONG: Duration = Duration::from_secs(3);

type Wait = Box<dyn FnOnce() -> StatusCode + Send>;

pub(crate) fn blocked(figures: &mut Figures) {
    if figures.quick() {
        return;
    }
    let (single, one) = in_progress();
    let (batch, many): (Vec<Completer>, Vec<Status>) = (0..64).map(|_| in_progress()).unzip();
    let backend = Polled::start();
    let (polled, polled_one) = backend.submit();
    let kinds: [(&str, Vec<Completer>, Wait); 3] = [
        ("idle/blocked_waiter_3s/cpu", vec![single], Box::new(move || one.wait(None))),
        ("idle/blocked_batch_of_64_3s/cpu", batch, Box::new(move || wait_all(&many, None).code())),
        (
            "idle/polled_bounded_3s/cpu",
            vec![polled],
            Box::new(move || polled_one.wait(Duration::from_secs(60))),
        ),
    ];
    for (name, completers, wait) in kinds {
        if !figures.wants(name) {
            continue;
        }
        let (send, receive) = mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let before = Usage::of_thread();
            assert!(wait().is_success());
            send.send(Usage::of_thread().since(before).cpu_us).unwrap();
        });
        let start = Instant::now();
        while start.elapsed() < LONG {
            std::thread::park_timeout(LONG.saturating_sub(start.elapsed()));
        }
        for completer in &completers {
            completer.succeed();
        }
        figures.print(name, receive.recv().unwrap(), "us");
        waiter.join().unwrap();
    }
}
