//! A node in this process and one in another, with a session between an area at each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Backend, EngineDesc, Error, MemoryDesc, Notify, Op, Piece, Region, Session, Status, TransferOptions,
};
use mori_rdma::RdmaConfig;

use super::{Node, Peer, config, differs, mark, until};
use crate::guest::{DEVICES, PATIENCE, net, over, patience};

/// One transfer of a batch, and how many of them are under way at a time.
pub(crate) const PIECE: usize = 64 << 10;
pub(crate) const DEPTH: usize = 16;
/// The area on either side.
pub(crate) const LENGTH: usize = PIECE * DEPTH;

/// The name of the peer, also after its restart.
pub(crate) const PEER: &str = "peer";

pub(crate) struct Play {
    pub(crate) node: Node,
    pub(crate) peer: Peer,
    pub(crate) local: Region,
    pub(crate) remote: MemoryDesc,
    pub(crate) session: Arc<dyn Session>,
    seed: usize,
    /// What the kernel held before there was anything.
    before: Vec<String>,
}

impl Play {
    /// On one device each.
    pub(crate) fn new() -> Self {
        Self::with(config(&DEVICES[..1]), &DEVICES[1..])
    }

    pub(crate) fn with(config: RdmaConfig, theirs: &[&str]) -> Self {
        let before = held();
        let mut node = Node::start("here", 1, config).unwrap();
        let mut peer = Peer::spawn();
        let desc = peer.start(PEER, 2, theirs);
        peer.add(&node.desc);
        node.backend.add_peer(&desc).unwrap();
        let (local, _) = node.area(LENGTH).unwrap();
        let remote = peer.area(LENGTH);
        let session = node.backend.session(&local, &remote).unwrap();
        Self { node, peer, local, remote, session, seed: 0, before }
    }

    /// A new process with the peer's name, which nobody knows yet.
    pub(crate) fn successor(&self, instance: u8) -> (Peer, EngineDesc) {
        let mut fresh = Peer::spawn();
        let desc = fresh.start(PEER, instance, &DEVICES[1..]);
        fresh.add(&self.node.desc);
        (fresh, desc)
    }

    /// Puts a process in the peer's place; gives back the one of before and the descriptor of its area.
    pub(crate) fn replace(&mut self, fresh: Peer) -> (Peer, MemoryDesc) {
        let old = std::mem::replace(&mut self.peer, fresh);
        let stale = std::mem::replace(&mut self.remote, self.peer.area(LENGTH));
        (old, stale)
    }

    /// Another session between the areas.
    pub(crate) fn reopen(&mut self) {
        self.session = self.node.backend.session(&self.local, &self.remote).unwrap();
    }

    /// The transfer of a part of the areas.
    pub(crate) fn submit(&self, op: Op, slot: usize, options: &TransferOptions) -> Status {
        let offset = (slot % DEPTH * PIECE) as u64;
        self.session.submit(op, &[Piece::new(offset, offset, PIECE as u64)], options)
    }

    /// As many transfers as a batch has.
    pub(crate) fn batch(&self, op: Op, options: &TransferOptions) -> Vec<Status> {
        (0..DEPTH).map(|slot| self.submit(op, slot, options)).collect()
    }

    /// Keeps a batch under way until a transfer of it fails, and the others have ended as well. Their failures.
    pub(crate) fn until_failure(&self, op: Op) -> Vec<Error> {
        self.keep_going(op, |failures| failures.is_empty())
    }

    /// Keeps a batch under way as long as `more` says so of the failures up to then.
    pub(crate) fn keep_going(&self, op: Op, mut more: impl FnMut(&[Error]) -> bool) -> Vec<Error> {
        let mut under_way = VecDeque::new();
        let mut failures = Vec::new();
        let (mut slots, deadline) = (0.., patience());
        loop {
            while more(&failures) && under_way.len() < DEPTH {
                assert!(!over(deadline), "it never ends; {} have failed", failures.len());
                under_way.push_back(self.submit(op, slots.next().unwrap(), &TransferOptions::default()));
            }
            let Some(first) = under_way.pop_front() else { return failures };
            failures.extend(ended(&first).err());
        }
    }

    /// Moves everything in both directions over the session that there is, and compares it.
    pub(crate) fn moves(&mut self) -> Result<(), Error> {
        for op in [Op::Write, Op::Read] {
            self.seed += 2;
            let (here, there) = (self.seed, self.seed + 1);
            mark(&self.local, 0, LENGTH, here);
            self.peer.mark(0, LENGTH, there);
            let statuses = self.batch(op, &TransferOptions::default());
            let ends: Vec<_> = statuses.iter().map(ended).collect();
            ends.into_iter().collect::<Result<(), Error>>()?;
            let result = match op {
                Op::Write => self.peer.differs(0, LENGTH, here),
                Op::Read => differs(&self.local, 0, LENGTH, there),
            };
            assert_eq!(result, None, "wrong bytes after a {op:?} that succeeded");
        }
        Ok(())
    }

    /// The session works again, and nothing is left over of what was before.
    pub(crate) fn works(&mut self) {
        until("transfers that work", || self.moves().is_ok());
        self.rests();
    }

    /// Nothing is under way on this side, and no queue pair is left over on either.
    pub(crate) fn rests(&mut self) {
        let deadline = patience();
        loop {
            let (stats, serving) = (self.node.backend.stats(), self.peer.passive());
            let held = (stats.transfers, stats.credits_in_use, stats.records, stats.messages, stats.draining);
            if held == (0, 0, 0, 0, 0) && stats.lanes.len() == serving && self.local.pins() == 0 {
                return;
            }
            assert!(!over(deadline), "the peer serves {serving}, and here is held: {stats:?}");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Ends both sides; the kernel holds what it held before them.
    pub(crate) fn end(mut self) {
        self.rests();
        let Self { node, peer, session, before, .. } = self;
        drop(session);
        node.end();
        peer.end();
        given_back(&before);
    }
}

/// What the kernel holds, in an order that does not change when a device is made anew.
pub(crate) fn held() -> Vec<String> {
    let mut lines: Vec<String> = net(&["rdma-resource"]).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The kernel holds as much as it did.
pub(crate) fn given_back(before: &[String]) {
    until("everything is given back", || held() == before);
}

/// How a transfer has ended. One that does not end is a failure.
pub(crate) fn ended(status: &Status) -> Result<(), Error> {
    let code = status.wait(PATIENCE);
    assert!(code.is_terminal(), "a transfer hangs: {}", status.message());
    if code.is_success() { Ok(()) } else { Err(status.error().unwrap()) }
}

/// With a message to the target.
pub(crate) fn told() -> TransferOptions {
    let notify = Notify { message: b"there".to_vec(), on_failure: false };
    TransferOptions { notify: Some(notify), ..TransferOptions::default() }
}
