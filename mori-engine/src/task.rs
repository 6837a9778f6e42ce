//! Runs a future on the threads that wake it: no runtime, no thread of its own.
//!
//! # Protocol
//!
//! `turns` counts the wakes since the last look. Whoever takes it from zero runs the future; a wake that comes meanwhile, on whatever
//! thread, only counts, and the runner goes round again. So no wake is lost and none of them blocks.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::sync;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    turns: AtomicUsize,
    /// None when it is over.
    work: Mutex<Option<Work>>,
}

/// Runs `work` on this thread as far as it goes, and on with each wake.
pub(crate) fn start(work: impl Future<Output = ()> + Send + 'static) {
    Arc::new(Task { turns: AtomicUsize::new(0), work: Mutex::new(Some(Box::pin(work))) }).wake();
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // AcqRel pairs with the exchange below: this runner sees what the last one did, and what came before each wake.
        if self.turns.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut seen = 1;
        loop {
            {
                let mut slot = sync::lock(&self.work);
                let Some(work) = &mut *slot else { return };
                if work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    *slot = None;
                }
            }
            // AcqRel pairs with the addition above: a wake that was counted is seen with what came before it.
            match self.turns.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU32;
    use std::task::Poll;

    use super::*;

    /// A future that leaves its waker in `place` and is done after `needed` looks.
    fn looks(
        needed: u32,
        place: &Arc<Mutex<Option<Waker>>>,
        count: &Arc<AtomicU32>,
    ) -> impl Future<Output = ()> + use<> {
        let (place, count) = (Arc::clone(place), Arc::clone(count));
        poll_fn(move |context| {
            *sync::lock(&place) = Some(context.waker().clone());
            if count.fetch_add(1, Ordering::Relaxed) + 1 < needed { Poll::Pending } else { Poll::Ready(()) }
        })
    }

    #[test]
    fn it_goes_on_with_each_wake_and_is_dropped_at_its_end() {
        let (place, count) = (Arc::default(), Arc::default());
        start(looks(3, &place, &count));
        for looked in [1, 2, 3, 3] {
            assert_eq!(count.load(Ordering::Relaxed), looked);
            let waker = sync::lock(&place).clone();
            waker.into_iter().for_each(Waker::wake);
        }
        assert_eq!(Arc::strong_count(&count), 1, "the future is gone");
    }

    #[test]
    fn a_wake_during_the_run_makes_it_go_round_again() {
        let count = Arc::new(AtomicU32::new(0));
        let looks = Arc::clone(&count);
        start(poll_fn(move |context| {
            context.waker().wake_by_ref();
            if looks.fetch_add(1, Ordering::Relaxed) < 9 { Poll::Pending } else { Poll::Ready(()) }
        }));
        assert_eq!(count.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn no_wake_of_many_threads_is_lost() {
        for _ in 0..200 {
            let (place, count, given) = (Arc::default(), Arc::default(), Arc::new(AtomicU32::new(0)));
            let (seen, given_too) = (Arc::<AtomicU32>::clone(&count), Arc::clone(&given));
            let place_too = Arc::<Mutex<Option<Waker>>>::clone(&place);
            start(poll_fn(move |context| {
                *sync::lock(&place_too) = Some(context.waker().clone());
                seen.store(given_too.load(Ordering::Relaxed), Ordering::Relaxed);
                if given_too.load(Ordering::Relaxed) == 4 { Poll::Ready(()) } else { Poll::Pending }
            }));
            let waker = sync::lock(&place).clone().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        given.fetch_add(1, Ordering::Relaxed);
                        waker.wake_by_ref();
                    });
                }
            });
            assert_eq!(count.load(Ordering::Relaxed), 4, "what came before the last wake was not seen");
        }
    }
}
