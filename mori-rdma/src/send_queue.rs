//! The accounting of one send queue: credits, records of what is posted, and what a completion says about them.
//!
//! 1. A credit is taken for each work request before it is posted, and comes back once: when it is known to be complete or to
//!    have failed, or when the device did not accept it.
//! 2. A reliable connection completes in order. So a completion says that everything posted before it is done as well, and one
//!    signalled request at the end of a chain is enough for the chain.
//! 3. A queue that has failed gives a completion for every request that was not done, signalled or not.
//! 4. A completion names its request by numbers of our own ([`WorkId`]): slot, generation and place in the chain. One that
//!    belongs to nothing that is posted is ignored.
//! 5. A chain that the device took only in part may end without a signal. Its credits come back with the next signalled
//!    request, so one has to follow ([`SendQueue::has_silent_tail`]).

use std::collections::VecDeque;
use std::ops::Range;

/// What a work request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One that a send queue's record belongs to.
    Send,
    /// A receive.
    Receive,
}

/// The number that a work request carries and its completion brings back: 1 bit of kind, 23 bits of queue, 16 of slot, 8 of
/// generation, 16 of the place in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    pub(crate) kind: Kind,
    pub(crate) queue: u32,
    pub(crate) slot: u16,
    pub(crate) generation: u8,
    pub(crate) index: u16,
}

/// The largest number of a queue.
pub(crate) const MAX_QUEUE: u32 = (1 << 23) - 1;

impl WorkId {
    pub(crate) fn receive(queue: u32, slot: u16) -> Self {
        Self { kind: Kind::Receive, queue, slot, generation: 0, index: 0 }
    }

    pub(crate) fn to_number(self) -> u64 {
        let kind = u64::from(self.kind == Kind::Receive);
        kind << 63
            | u64::from(self.queue & MAX_QUEUE) << 40
            | u64::from(self.slot) << 24
            | u64::from(self.generation) << 16
            | u64::from(self.index)
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let [_, _, _, slot_high, slot_low, generation, index_high, index_low] = number.to_be_bytes();
        Self {
            kind: if number >> 63 == 1 { Kind::Receive } else { Kind::Send },
            queue: u32::try_from(number >> 40).unwrap_or(0) & MAX_QUEUE,
            slot: u16::from_be_bytes([slot_high, slot_low]),
            generation,
            index: u16::from_be_bytes([index_high, index_low]),
        }
    }
}

/// A chain that is about to be posted, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: u16,
    generation: u8,
}

#[derive(Debug)]
struct Entry<W> {
    work: W,
    count: usize,
    done: usize,
    signalled: bool,
}

#[derive(Debug)]
struct Slot<W> {
    generation: u8,
    entry: Option<Entry<W>>,
}

/// What a completion said about a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress<W> {
    pub(crate) work: W,
    /// The requests of the chain that are done now.
    pub(crate) good: Range<usize>,
    /// The one that has failed.
    pub(crate) bad: Option<usize>,
}

/// One send queue.
#[derive(Debug)]
pub(crate) struct SendQueue<W> {
    number: u32,
    depth: usize,
    used: usize,
    slots: Vec<Slot<W>>,
    free: Vec<u16>,
    /// The slots in the order in which they were posted.
    order: VecDeque<u16>,
}

impl<W: Copy> SendQueue<W> {
    /// The queue of this number, for `depth` work requests.
    pub(crate) fn new(number: u32, depth: usize) -> Self {
        let depth = depth.min(usize::from(u16::MAX));
        Self { number, depth, used: 0, slots: Vec::new(), free: Vec::new(), order: VecDeque::new() }
    }

    /// How many work requests may be posted now.
    pub(crate) fn credits(&self) -> usize {
        self.depth - self.used
    }

    /// How many work requests are posted.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// How many chains are posted.
    pub(crate) fn records(&self) -> usize {
        self.order.len()
    }

    /// Takes credits for a chain of `count` requests and gives it a record; `None` without enough of them.
    pub(crate) fn reserve(&mut self, work: W, count: usize) -> Option<Ticket> {
        if count == 0 || count > self.credits() {
            return None;
        }
        let entry = Entry { work, count, done: 0, signalled: false };
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, entry: None });
                number
            }
        };
        let slot = self.slots.get_mut(usize::from(number))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.entry = Some(entry);
        self.used += count;
        self.order.push_back(number);
        Some(Ticket { slot: number, generation: slot.generation })
    }

    /// The number of request `index` of the chain.
    pub(crate) fn id(&self, ticket: Ticket, index: usize) -> u64 {
        WorkId {
            kind: Kind::Send,
            queue: self.number,
            slot: ticket.slot,
            generation: ticket.generation,
            index: u16::try_from(index).unwrap_or(u16::MAX),
        }
        .to_number()
    }

    /// Says how many requests of the chain that was reserved last the device has accepted. The credits of the others come back.
    pub(crate) fn posted(&mut self, ticket: Ticket, accepted: usize) {
        let Some(slot) = self.slots.get_mut(usize::from(ticket.slot)) else { return };
        let Some(entry) = slot.entry.as_mut().filter(|_| slot.generation == ticket.generation) else {
            return;
        };
        let accepted = accepted.min(entry.count);
        self.used -= entry.count - accepted;
        entry.signalled = accepted == entry.count;
        entry.count = accepted;
        if accepted == 0 {
            slot.entry = None;
            self.free.push(ticket.slot);
            self.order.retain(|&number| number != ticket.slot);
        }
    }

    /// Says what the chain is for, now that only a part of it was accepted.
    pub(crate) fn amend(&mut self, ticket: Ticket, work: W) {
        let slot = self.slots.get_mut(usize::from(ticket.slot));
        if let Some(entry) = slot.and_then(|slot| slot.entry.as_mut()) {
            entry.work = work;
        }
    }

    /// What the chains that are posted are for.
    pub(crate) fn works(&self) -> impl Iterator<Item = W> {
        self.order
            .iter()
            .filter_map(|&number| Some(self.slots.get(usize::from(number))?.entry.as_ref()?.work))
    }

    /// Whether the last request that is posted has no signal, so that nothing will tell of its end.
    pub(crate) fn has_silent_tail(&self) -> bool {
        let last = self.order.back().and_then(|&number| self.slots.get(usize::from(number)));
        last.and_then(|slot| slot.entry.as_ref()).is_some_and(|entry| !entry.signalled)
    }

    /// Takes note of a completion, and says what it means for each chain that it concerns, in order. `false` if it belongs to
    /// nothing that is posted.
    pub(crate) fn complete(&mut self, id: WorkId, good: bool, mut tell: impl FnMut(Progress<W>)) -> bool {
        let index = usize::from(id.index);
        let known = self.slots.get(usize::from(id.slot)).is_some_and(|slot| {
            let entry = slot.entry.as_ref();
            slot.generation == id.generation
                && entry.is_some_and(|entry| (entry.done..entry.count).contains(&index))
        });
        if !known {
            return false;
        }
        while let Some(number) = self.order.front().copied() {
            let last = number == id.slot;
            let Some(slot) = self.slots.get_mut(usize::from(number)) else { break };
            let Some(entry) = slot.entry.as_mut() else { break };
            // Protocol 2: what was posted before is done as well.
            let end = if last { index + 1 } else { entry.count };
            let bad = (last && !good).then_some(index);
            let progress = Progress { work: entry.work, good: entry.done..bad.unwrap_or(end), bad };
            self.used -= end - entry.done;
            entry.done = end;
            if end == entry.count {
                slot.entry = None;
                self.free.push(number);
                self.order.pop_front();
            }
            tell(progress);
            if last {
                break;
            }
        }
        debug_assert_eq!(self.used, self.outstanding(), "a credit was lost or came back twice");
        true
    }

    /// Gives up what is still posted, after the queue was destroyed: each chain with the requests of which nothing is known.
    pub(crate) fn give_up(&mut self, mut tell: impl FnMut(W, Range<usize>)) {
        for number in std::mem::take(&mut self.order) {
            let slot = self.slots.get_mut(usize::from(number));
            if let Some(entry) = slot.and_then(|slot| slot.entry.take()) {
                self.used -= entry.count - entry.done;
                tell(entry.work, entry.done..entry.count);
            }
            self.free.push(number);
        }
        debug_assert_eq!(self.used, 0, "a credit was lost or came back twice");
    }

    fn outstanding(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref()).map(|entry| entry.count - entry.done).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collect(
        queue: &mut SendQueue<u32>,
        (ticket, index): (Ticket, usize),
        good: bool,
    ) -> Option<Vec<Progress<u32>>> {
        let id = queue.id(ticket, index);
        let mut all = Vec::new();
        queue.complete(WorkId::from_number(id), good, |progress| all.push(progress)).then_some(all)
    }

    #[test]
    fn numbers_go_both_ways() {
        for kind in [Kind::Send, Kind::Receive] {
            for (queue, slot, generation, index) in
                [(0, 0, 0, 0), (MAX_QUEUE, 65535, 255, 65535), (5, 258, 7, 513)]
            {
                let id = WorkId { kind, queue, slot, generation, index };
                assert_eq!(WorkId::from_number(id.to_number()), id);
            }
        }
    }

    #[test]
    fn one_completion_ends_everything_before_it() {
        let mut queue = SendQueue::new(1, 10);
        let first = queue.reserve(1, 3).unwrap();
        queue.posted(first, 3);
        let second = queue.reserve(2, 4).unwrap();
        queue.posted(second, 4);
        assert_eq!((queue.credits(), queue.records()), (3, 2));
        assert!(queue.reserve(3, 4).is_none());
        let all = collect(&mut queue, (second, 3), true).unwrap();
        assert_eq!(
            all,
            [Progress { work: 1, good: 0..3, bad: None }, Progress { work: 2, good: 0..4, bad: None },]
        );
        assert_eq!((queue.used(), queue.records()), (0, 0));
        // The same number again belongs to nothing.
        assert_eq!(collect(&mut queue, (second, 3), true), None);
    }

    #[test]
    fn a_failure_names_its_request_and_the_flushes_follow_one_by_one() {
        let mut queue = SendQueue::new(1, 10);
        let ticket = queue.reserve(7, 4).unwrap();
        queue.posted(ticket, 4);
        let all = collect(&mut queue, (ticket, 1), false).unwrap();
        assert_eq!(all, [Progress { work: 7, good: 0..1, bad: Some(1) }]);
        assert_eq!(queue.used(), 2);
        for index in [2, 3] {
            let all = collect(&mut queue, (ticket, index), false).unwrap();
            assert_eq!(all, [Progress { work: 7, good: index..index, bad: Some(index) }]);
        }
        assert_eq!((queue.used(), queue.records()), (0, 0));
    }

    #[test]
    fn what_the_device_does_not_accept_costs_nothing() {
        let mut queue = SendQueue::new(1, 4);
        let none = queue.reserve(1, 3).unwrap();
        queue.posted(none, 0);
        assert_eq!((queue.used(), queue.records()), (0, 0));
        let part = queue.reserve(2, 3).unwrap();
        queue.posted(part, 2);
        assert!(queue.has_silent_tail());
        assert_eq!(queue.used(), 2);
        let next = queue.reserve(3, 1).unwrap();
        queue.posted(next, 1);
        assert!(!queue.has_silent_tail());
        let all = collect(&mut queue, (next, 0), true).unwrap();
        assert_eq!(all.iter().map(|progress| progress.good.len()).sum::<usize>(), 3);
        assert_eq!(queue.used(), 0);
    }

    #[test]
    fn a_queue_that_is_gone_gives_everything_back() {
        let mut queue = SendQueue::new(1, 8);
        for work in 0..2 {
            let ticket = queue.reserve(work, 3).unwrap();
            queue.posted(ticket, 3);
        }
        let mut all = Vec::new();
        queue.give_up(|work, range| all.push((work, range)));
        assert_eq!(all, [(0, 0..3), (1, 0..3)]);
        assert_eq!((queue.used(), queue.records()), (0, 0));
    }

    proptest! {
        /// A device that accepts some, completes in order, fails at some point and flushes the rest: every request is
        /// accounted for once, and the credits are all there at the end.
        #[test]
        fn credits_are_conserved(
            chains in prop::collection::vec((1_usize..6, 0_usize..7), 1..40),
            depth in 6_usize..20,
            fail_at in 0_usize..80,
        ) {
            let mut queue = SendQueue::new(3, depth);
            // What the device holds: the number of each request, and whether it tells of its end.
            let mut device: VecDeque<(u64, bool)> = VecDeque::new();
            let (mut accepted, mut told, mut carried) = (0, 0, 0);
            let mut chains = chains.into_iter().enumerate().peekable();
            while chains.peek().is_some() || !device.is_empty() {
                while let Some(&(work, (count, takes))) = chains.peek() {
                    let Some(ticket) = queue.reserve(work, count) else { break };
                    chains.next();
                    let takes = takes.min(count);
                    for index in 0..takes {
                        device.push_back((queue.id(ticket, index), index + 1 == count));
                    }
                    queue.posted(ticket, takes);
                    accepted += takes;
                }
                let mut count = |progress: Progress<usize>| {
                    told += progress.good.len() + usize::from(progress.bad.is_some());
                };
                match device.pop_front() {
                    Some((id, signalled)) => {
                        carried += 1;
                        let good = carried < fail_at;
                        if signalled || !good || device.is_empty() {
                            prop_assert!(queue.complete(WorkId::from_number(id), good, &mut count));
                        }
                    }
                    None => continue,
                }
            }
            prop_assert_eq!(told, accepted);
            prop_assert_eq!((queue.used(), queue.records()), (0, 0));
        }
    }
}
