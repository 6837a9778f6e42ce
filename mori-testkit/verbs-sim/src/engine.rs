//! What happens to posted requests: bytes move, completions arrive, queue pairs fail.

use std::ptr;

use crate::types::{ibv_sge, ibv_wc, number};
use crate::world::{Entry, Event, Handle, Pair, Receive, Request, World};

/// How far a request gets.
enum Outcome {
    /// It is done; so many bytes.
    Done(u64),
    /// It failed with this status, and with it the queue pair.
    Failed(u32),
    /// It waits for the peer.
    Waiting,
}

/// A range of memory that a key allowed.
type Range = (*mut u8, usize);

impl World {
    /// Carries out what can be carried out, on every queue pair, until nothing moves any more.
    pub(crate) fn advance(&mut self) {
        let mut pairs: Vec<Handle> = self.pairs.keys().copied().collect();
        pairs.sort_unstable();
        loop {
            let mut moved = false;
            for &pair in &pairs {
                moved |= self.advance_one(pair);
            }
            if !moved {
                return;
            }
        }
    }

    /// Works on one send queue; says whether something moved.
    fn advance_one(&mut self, handle: Handle) -> bool {
        let mut moved = false;
        while let Some(pair) = self.pairs.get(&handle) {
            if self.held || pair.held || pair.state != number::RTS || self.alive(pair.device).is_err() {
                break;
            }
            let Some(request) = pair.sends.front().cloned() else { break };
            let fate = request.fate.unwrap_or_else(|| self.faults.next_status());
            if let Some(first) = self.pairs.get_mut(&handle).and_then(|pair| pair.sends.front_mut()) {
                first.fate = Some(fate);
            }
            let outcome = match fate {
                Some(status) => Outcome::Failed(status),
                None => self.execute(handle, &request),
            };
            if matches!(outcome, Outcome::Waiting) {
                break;
            }
            moved = true;
            let Some(pair) = self.pairs.get_mut(&handle) else { break };
            pair.sends.pop_front();
            match outcome {
                Outcome::Done(bytes) => {
                    if pair.signal_all || request.flags & number::SIGNALED != 0 {
                        self.complete_send(handle, &request, number::WC_SUCCESS, bytes);
                    }
                }
                Outcome::Failed(status) => {
                    self.complete_send(handle, &request, status, 0);
                    self.fail(handle);
                }
                Outcome::Waiting => {}
            }
        }
        moved
    }

    /// Carries one request out.
    fn execute(&mut self, handle: Handle, request: &Request) -> Outcome {
        let Some(pair) = self.pairs.get(&handle) else { return Outcome::Waiting };
        let (device, domain, port) = (pair.device, pair.domain, pair.port);
        if !self.port_is_up(device, port) {
            return Outcome::Failed(number::WC_LOC_QP_OP);
        }
        let needed = if request.opcode == number::WR_READ { number::LOCAL_WRITE } else { 0 };
        let mut local = Vec::new();
        if let Some(bytes) = &request.inline {
            local.push((bytes.as_ptr().cast_mut(), bytes.len()));
        } else {
            for piece in &request.pieces {
                let Some(range) = self.local_range(device, domain, piece, needed) else {
                    return Outcome::Failed(number::WC_LOC_PROT);
                };
                local.push(range);
            }
        }
        let length: u64 = local.iter().map(|&(_, length)| length as u64).sum();
        if length > u64::from(self.config.max_message) {
            return Outcome::Failed(number::WC_LOC_LEN);
        }
        let Some(peer) = self.peer_of(handle) else {
            let over = self.config.impatient || request.expired;
            return if over { Outcome::Failed(number::WC_RETRY_EXC) } else { Outcome::Waiting };
        };
        if self.pairs.get(&peer).is_some_and(|peer| peer.held) {
            return Outcome::Waiting;
        }
        let receives = matches!(request.opcode, number::WR_SEND | number::WR_SEND_IMM | number::WR_WRITE_IMM);
        if receives && self.pairs.get(&peer).is_none_or(|peer| peer.receives.is_empty()) {
            let retries = self.pairs.get(&handle).map_or(0, |pair| pair.rnr_retries);
            let over = retries != 7 && (self.config.impatient || request.expired);
            return if over { Outcome::Failed(number::WC_RNR_EXC) } else { Outcome::Waiting };
        }
        match request.opcode {
            number::WR_READ => self.read(peer, request, &local, length),
            number::WR_WRITE => self.write(peer, request, &local, length),
            number::WR_WRITE_IMM => match self.write(peer, request, &local, length) {
                Outcome::Done(bytes) => {
                    self.deliver(peer, request, None, length);
                    Outcome::Done(bytes)
                }
                other => other,
            },
            _ => self.send(peer, request, &local, length),
        }
    }

    fn read(&mut self, peer: Handle, request: &Request, local: &[Range], length: u64) -> Outcome {
        let Some(from) = self.remote_range(peer, request.remote, length, number::REMOTE_READ) else {
            return self.refuse(peer, number::EVENT_QP_ACCESS_ERR, number::WC_REM_ACCESS);
        };
        let mut at = from.0;
        for &(to, count) in local {
            copy(at, to, count);
            at = at.wrapping_add(count);
        }
        Outcome::Done(length)
    }

    fn write(&mut self, peer: Handle, request: &Request, local: &[Range], length: u64) -> Outcome {
        let Some(to) = self.remote_range(peer, request.remote, length, number::REMOTE_WRITE) else {
            return self.refuse(peer, number::EVENT_QP_ACCESS_ERR, number::WC_REM_ACCESS);
        };
        scatter(local, &[to]);
        Outcome::Done(length)
    }

    fn send(&mut self, peer: Handle, request: &Request, local: &[Range], length: u64) -> Outcome {
        let Some(pair) = self.pairs.get(&peer) else { return Outcome::Waiting };
        let (device, domain) = (pair.device, pair.domain);
        let Some(receive) = pair.receives.front().cloned() else { return Outcome::Waiting };
        let mut ranges = Vec::new();
        for piece in &receive.pieces {
            let Some(range) = self.local_range(device, domain, piece, number::LOCAL_WRITE) else {
                return self.spoil(peer, number::WC_LOC_PROT);
            };
            ranges.push(range);
        }
        let room: u64 = ranges.iter().map(|&(_, length)| length as u64).sum();
        if room < length {
            return self.spoil(peer, number::WC_LOC_LEN);
        }
        scatter(local, &ranges);
        self.deliver(peer, request, Some(()), length);
        Outcome::Done(length)
    }

    /// Completes the peer's first receive with what a send, or a write with immediate data, brought.
    fn deliver(&mut self, peer: Handle, request: &Request, sent: Option<()>, length: u64) {
        let Some(pair) = self.pairs.get_mut(&peer) else { return };
        let Some(receive) = pair.receives.pop_front() else { return };
        let opcode = if sent.is_some() { number::OP_RECV } else { number::OP_RECV_IMM };
        let mut wc = completion(receive.id, number::WC_SUCCESS, opcode, pair.number, length);
        if matches!(request.opcode, number::WR_SEND_IMM | number::WR_WRITE_IMM) {
            wc.wc_flags = number::FLAG_IMM;
            wc.imm_data = request.immediate;
        }
        let solicited = request.flags & number::SOLICITED != 0;
        self.complete_receive(peer, &receive, wc, solicited);
    }

    /// The peer's first receive fails, and with it the peer's queue pair; the sender is told.
    fn spoil(&mut self, peer: Handle, status: u32) -> Outcome {
        if let Some(pair) = self.pairs.get_mut(&peer)
            && let Some(receive) = pair.receives.pop_front()
        {
            let wc = completion(receive.id, status, number::OP_RECV, pair.number, 0);
            self.complete_receive(peer, &receive, wc, true);
        }
        self.refuse(peer, number::EVENT_QP_REQ_ERR, number::WC_REM_INV_REQ)
    }

    /// The peer's queue pair fails over a request, with an event; the request fails with `status`.
    fn refuse(&mut self, peer: Handle, event: u32, status: u32) -> Outcome {
        self.pair_event(peer, event);
        self.fail(peer);
        Outcome::Failed(status)
    }

    fn port_is_up(&self, device: usize, port: u8) -> bool {
        let device = self.devices.get(device).filter(|device| !device.dead);
        device
            .and_then(|device| device.ports.get(usize::from(port).wrapping_sub(1)))
            .is_some_and(|port| port.up)
    }

    /// The queue pair that another is connected to, if it is there, ready, connected back, and its port up.
    fn peer_of(&self, handle: Handle) -> Option<Handle> {
        let pair = self.pairs.get(&handle)?;
        let (device, port) = self.address(pair)?;
        if !self.port_is_up(device, port) {
            return None;
        }
        let number = pair.peer?.number;
        let found = self.pairs.iter().find(|(_, other)| {
            other.device == device
                && other.number == number
                && other.port == port
                && matches!(other.state, number::RTR | number::RTS)
                && other.peer.is_some_and(|back| back.number == pair.number)
                && self.address(other) == Some((pair.device, pair.port))
        });
        found.map(|(&handle, _)| handle)
    }

    /// The device and the port that a queue pair's path leads to.
    fn address(&self, pair: &Pair) -> Option<(usize, u8)> {
        let peer = pair.peer?;
        for (at, device) in self.devices.iter().enumerate() {
            for (port, of) in (1..).zip(&device.ports) {
                let there = match peer.gid {
                    Some(gid) => of.gids.iter().any(|line| line.raw == gid),
                    None => of.lid == peer.lid,
                };
                if there {
                    return Some((at, port));
                }
            }
        }
        None
    }

    /// The bytes that a piece of a work request names, if its key allows it.
    fn local_range(&self, device: usize, domain: Handle, piece: &ibv_sge, needed: u32) -> Option<Range> {
        if piece.length == 0 {
            return Some((ptr::null_mut(), 0));
        }
        let found = self.regions.values().find(|region| {
            region.device == device && region.domain == domain && region.local_key == piece.lkey
        });
        let region = found.filter(|region| region.access & needed == needed)?;
        region.range(piece.addr, u64::from(piece.length))
    }

    /// The bytes that a request names at its peer, if the key, the region and the queue pair allow it.
    fn remote_range(&self, peer: Handle, remote: (u64, u32), length: u64, needed: u32) -> Option<Range> {
        let pair = self.pairs.get(&peer)?;
        if pair.access & needed != needed {
            return None;
        }
        if length == 0 {
            return Some((ptr::null_mut(), 0));
        }
        let found = self.regions.values().find(|region| {
            region.device == pair.device && region.domain == pair.domain && region.remote_key == remote.1
        });
        let region = found.filter(|region| region.access & needed == needed)?;
        region.range(remote.0, length)
    }

    /// A queue pair fails: everything that is posted comes back flushed, signalled or not.
    pub(crate) fn fail(&mut self, handle: Handle) {
        let Some(pair) = self.pairs.get_mut(&handle) else { return };
        if pair.state != number::RESET {
            pair.state = number::ERR;
        }
        self.flush(handle);
    }

    /// Completes everything that is posted as flushed.
    pub(crate) fn flush(&mut self, handle: Handle) {
        let Some(pair) = self.pairs.get_mut(&handle) else { return };
        let sends = std::mem::take(&mut pair.sends);
        let receives = std::mem::take(&mut pair.receives);
        let pair_number = pair.number;
        for request in &sends {
            self.complete_send(handle, request, number::WC_FLUSH, 0);
        }
        for receive in &receives {
            let wc = completion(receive.id, number::WC_FLUSH, number::OP_RECV, pair_number, 0);
            self.complete_receive(handle, receive, wc, true);
        }
    }

    fn complete_send(&mut self, handle: Handle, request: &Request, status: u32, length: u64) {
        let Some(pair) = self.pairs.get(&handle) else { return };
        let opcode = match request.opcode {
            number::WR_READ => number::OP_READ,
            number::WR_WRITE | number::WR_WRITE_IMM => number::OP_WRITE,
            _ => number::OP_SEND,
        };
        let wc = completion(request.id, status, opcode, pair.number, length);
        let to = pair.send_completions;
        let entry = Entry { wc, pair: handle, is_send: true, sequence: request.sequence };
        self.push(to, entry, status != number::WC_SUCCESS);
    }

    fn complete_receive(&mut self, handle: Handle, receive: &Receive, wc: ibv_wc, solicited: bool) {
        let Some(pair) = self.pairs.get(&handle) else { return };
        let to = pair.receive_completions;
        let entry = Entry { wc, pair: handle, is_send: false, sequence: receive.sequence };
        self.push(to, entry, solicited || wc.status != number::WC_SUCCESS);
    }

    /// A completion arrives in its queue, or overruns it.
    fn push(&mut self, to: Handle, entry: Entry, solicited: bool) {
        let Some(queue) = self.completions.get_mut(&to) else { return };
        if queue.broken {
            return;
        }
        if queue.entries.len() >= queue.capacity {
            self.overrun(to);
            return;
        }
        queue.entries.push_back(entry);
        if queue.armed.is_some_and(|only_solicited| solicited || !only_solicited) && !self.withheld {
            self.announce(to);
        }
    }

    /// A completion queue overruns: it is broken, and so are its queue pairs.
    pub(crate) fn overrun(&mut self, handle: Handle) {
        let Some(queue) = self.completions.get_mut(&handle) else { return };
        queue.broken = true;
        let context = queue.context;
        self.event(context, Event { kind: number::EVENT_CQ_ERR, element: handle });
        let users: Vec<Handle> = self
            .pairs
            .iter()
            .filter(|(_, pair)| pair.send_completions == handle || pair.receive_completions == handle)
            .map(|(&pair, _)| pair)
            .collect();
        for pair in users {
            self.pair_event(pair, number::EVENT_QP_FATAL);
            self.fail(pair);
        }
    }
}

/// Copies what lies in some ranges, one after the other, into others.
fn scatter(from: &[Range], to: &[Range]) {
    let mut to = to.iter().copied();
    let (mut into, mut room) = to.next().unwrap_or((ptr::null_mut(), 0));
    for &(mut bytes, mut left) in from {
        while left > 0 {
            if room == 0 {
                match to.next() {
                    Some(next) => (into, room) = next,
                    None => return,
                }
                continue;
            }
            let count = left.min(room);
            copy(bytes, into, count);
            (bytes, left) = (bytes.wrapping_add(count), left - count);
            (into, room) = (into.wrapping_add(count), room - count);
        }
    }
}

/// Copies as the device would.
fn copy(from: *const u8, to: *mut u8, count: usize) {
    if count > 0 {
        // SAFETY: both ranges are inside registered memory, which its owner keeps while it is registered, or in the request's
        // own inline bytes. That the program itself looks at them meanwhile is its own affair, as with a device.
        unsafe { ptr::copy(from, to, count) };
    }
}

/// A completion of these.
fn completion(id: u64, status: u32, opcode: u32, pair: u32, length: u64) -> ibv_wc {
    ibv_wc {
        wr_id: id,
        status,
        opcode,
        // A driver's own number, so that tests see it kept.
        vendor_err: if status == number::WC_SUCCESS { 0 } else { 0x5100 + status },
        byte_len: u32::try_from(length).unwrap_or(u32::MAX),
        imm_data: 0,
        qp_num: pair,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}
