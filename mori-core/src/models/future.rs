//! Futures (F1): polling, wakers and dropping, against updates.

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::{FAILED, error, in_progress};
use crate::status::StatusCode;
use crate::sync::{Condvar, Mutex, model, thread};
use crate::wait::Gathering;

/// Counts its wakes. std's counter, read after the waking thread was joined: it is no part of what is modelled.
struct Woken(AtomicUsize);

impl Woken {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0)))
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// F1: the future is either ready when it is polled, or its waker is woken.
#[test]
fn future_and_update() {
    model(|| {
        let (completer, status) = in_progress();
        let woken = Woken::new();
        let writer = thread::spawn(move || completer.succeed());
        let mut future = pin!(status.into_future());
        let waker = Waker::from(woken.clone());
        let first = future.as_mut().poll(&mut Context::from_waker(&waker));
        writer.join().unwrap();
        match first {
            Poll::Ready(code) => assert_eq!(code, StatusCode::Success),
            Poll::Pending => {
                assert_eq!(woken.times(), 1);
                let again = future.as_mut().poll(&mut Context::from_waker(&waker));
                assert_eq!(again, Poll::Ready(StatusCode::Success));
            }
        }
    });
}

/// F1: the waker of the last poll is the one that is woken.
#[test]
fn the_waker_is_replaced() {
    model(|| {
        let (completer, status) = in_progress();
        let (old, new) = (Woken::new(), Woken::new());
        let mut future = pin!(status.into_future());
        let waker = Waker::from(old.clone());
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let writer = thread::spawn(move || completer.fail(error("link down")));
        let waker = Waker::from(new.clone());
        let second = future.as_mut().poll(&mut Context::from_waker(&waker));
        writer.join().unwrap();
        match second {
            Poll::Ready(code) => assert_eq!(code, FAILED),
            Poll::Pending => assert_eq!((old.times(), new.times()), (0, 1)),
        }
    });
}

/// F1: a batch is ready, or woken, once all are terminal.
#[test]
fn a_batch_and_its_updates() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let woken = Woken::new();
        let writers = [first, second].map(|completer| thread::spawn(move || completer.succeed()));
        let mut future = pin!(Gathering::all([one, two]));
        let waker = Waker::from(woken.clone());
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        for writer in writers {
            writer.join().unwrap();
        }
        match polled {
            Poll::Ready(outcome) => assert!(outcome.is_success()),
            Poll::Pending => assert_eq!(woken.times(), 1),
        }
    });
}

/// F1, A3: a batch that wakes its task is read off as it is, whichever of the writers woke it.
#[test]
fn a_batch_that_is_woken_is_terminal() {
    model(|| {
        let (first, one) = in_progress();
        let (second, two) = in_progress();
        let writers = [first, second].map(|completer| thread::spawn(move || completer.succeed()));
        assert!(block_on(Gathering::all([one, two])).is_success());
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// Sleeps between the polls of a future, in a way that the model knows.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    #[derive(Default)]
    struct Sleep(Mutex<bool>, Condvar);
    impl Wake for Sleep {
        fn wake(self: Arc<Self>) {
            *self.0.lock() = true;
            self.1.notify_all();
        }
    }
    let sleep = Arc::new(Sleep::default());
    let waker = Waker::from(Arc::clone(&sleep));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut woken = sleep.0.lock();
        while !std::mem::take(&mut *woken) {
            sleep.1.wait(&mut woken);
        }
    }
}

/// F1: dropping the future while its status ends cancels nothing and disturbs nobody.
#[test]
fn dropping_the_future_cancels_nothing() {
    model(|| {
        let (completer, status) = in_progress();
        let mut future = Box::pin((&status).into_future());
        let waker = Waker::from(Woken::new());
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let writer = thread::spawn(move || completer.succeed().applied());
        drop(future);
        assert_eq!(status.wait(None), StatusCode::Success);
        assert!(writer.join().unwrap());
    });
}
