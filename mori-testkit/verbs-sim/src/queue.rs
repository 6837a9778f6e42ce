//! Queue pairs: making, changing, posting.

#![allow(missing_docs, unreachable_pub, reason = "the names, and what they do, are the library's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "as with the real library: pointers are valid for what the call does"
)]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::zeroed;

use crate::call::{code, destroy, give, handle, pointer};
use crate::types::{
    ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, number,
};
use crate::world::{Handle, Pair, Peer, Receive, Request, Slots, World};

/// The number of a device's first queue pair. Devices count each for themselves, and give the lowest number that is free, so
/// that two devices have equal ones and a new queue pair that of an old one.
const FIRST: u32 = 17;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(domain: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer("ibv_create_qp", |world| {
        let Some(context) = world.domains.get(&handle(domain)).map(|domain| domain.context) else {
            return Err(world.stranger("ibv_create_qp", handle(domain)));
        };
        let device = world.context_device("ibv_create_qp", context)?;
        world.alive(device)?;
        // SAFETY: the caller's pointer is valid for the structure.
        let wanted = unsafe { &mut *wanted };
        for queue in [wanted.send_cq, wanted.recv_cq] {
            if world.completions.get(&handle(queue)).is_none_or(|queue| queue.context != context) {
                return Err(world.stranger("ibv_create_qp", handle(queue)));
            }
        }
        let (most, pieces) = (world.config.max_requests, world.config.max_pieces);
        let cap = &mut wanted.cap;
        if cap.max_send_wr > most
            || cap.max_recv_wr > most
            || cap.max_send_sge > pieces
            || cap.max_recv_sge > pieces
            || cap.max_inline_data > world.config.max_inline
        {
            return Err(libc::EINVAL);
        }
        // As real drivers do: a little more than was asked for.
        cap.max_inline_data = cap.max_inline_data.next_multiple_of(32).min(world.config.max_inline);
        let taken =
            |number: u32| world.pairs.values().any(|pair| pair.device == device && pair.number == number);
        let number = (FIRST..).find(|&number| !taken(number)).ok_or(libc::ENOMEM)?;
        // SAFETY: the structure consists of numbers, pointers and locks, for which zero is the initial value.
        let mut raw: ibv_qp = unsafe { zeroed() };
        // SAFETY: the domain is one of this library's.
        raw.context = unsafe { (*domain).context };
        raw.qp_context = wanted.qp_context;
        raw.pd = domain;
        raw.send_cq = wanted.send_cq;
        raw.recv_cq = wanted.recv_cq;
        raw.qp_num = number;
        raw.qp_type = wanted.qp_type;
        let raw = give(raw);
        let pair = Pair {
            context,
            device,
            domain: handle(domain),
            number,
            send_completions: handle(wanted.send_cq),
            receive_completions: handle(wanted.recv_cq),
            capacity: wanted.cap,
            signal_all: wanted.sq_sig_all != 0,
            state: number::RESET,
            port: 0,
            access: 0,
            peer: None,
            rnr_retries: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            sent: Slots::default(),
            received: Slots::default(),
            held: false,
            unacknowledged: 0,
        };
        world.pairs.insert(handle(raw), pair);
        Ok(raw)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    destroy("ibv_destroy_qp", handle(pair), |world| {
        let wanted = handle(pair);
        if !world.pairs.contains_key(&wanted) {
            return Err(world.stranger("ibv_destroy_qp", wanted));
        }
        world.pairs.remove(&wanted);
        world.gone.insert(wanted, "queue pair");
        // A peer that waits for it waits in vain now.
        world.kick();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, to: *mut ibv_qp_attr, mask: c_int) -> c_int {
    code("ibv_modify_qp", |world| {
        let wanted = handle(pair);
        if !world.pairs.contains_key(&wanted) {
            return Err(world.stranger("ibv_modify_qp", wanted));
        }
        // SAFETY: the caller's pointer is valid for the structure.
        let to = unsafe { to.read() };
        world.modify(wanted, &to, mask.cast_unsigned())
    })
}

impl World {
    fn modify(&mut self, handle: Handle, to: &ibv_qp_attr, mask: u32) -> Result<(), i32> {
        let Some(pair) = self.pairs.get(&handle) else { return Err(libc::EINVAL) };
        let (from, device) = (pair.state, pair.device);
        if to.qp_state != number::RESET && to.qp_state != number::ERR {
            self.alive(device)?;
        }
        let needed = match (from, to.qp_state) {
            (_, number::RESET | number::ERR) => number::MASK_STATE,
            (number::RESET | number::INIT, number::INIT) => number::MASK_INIT,
            (number::INIT, number::RTR) => number::MASK_RTR,
            (number::RTR, number::RTS) => number::MASK_RTS,
            (number::RTS, number::RTS) => number::MASK_STATE,
            (from, to) => {
                self.misuse(format!("ibv_modify_qp: there is no way from state {from} to {to}"));
                return Err(libc::EINVAL);
            }
        };
        if mask & needed != needed {
            self.misuse(format!("ibv_modify_qp: attributes {needed:#x} are needed, {mask:#x} were given"));
            return Err(libc::EINVAL);
        }
        if to.qp_state == number::INIT {
            let ports = self.devices.get(device).map_or(0, |device| device.ports.len());
            if to.port_num == 0 || usize::from(to.port_num) > ports {
                return Err(libc::EINVAL);
            }
        }
        if to.qp_state == number::RTR && !self.can_reach(device, to) {
            return Err(libc::EINVAL);
        }
        let Some(pair) = self.pairs.get_mut(&handle) else { return Err(libc::EINVAL) };
        pair.state = to.qp_state;
        match to.qp_state {
            number::INIT => (pair.port, pair.access) = (to.port_num, to.qp_access_flags),
            number::RTR => {
                let gid = (to.ah_attr.is_global != 0).then_some(to.ah_attr.dgid.raw);
                pair.peer = Some(Peer { gid, lid: to.ah_attr.dlid, number: to.dest_qp_num });
            }
            number::RTS => pair.rnr_retries = to.rnr_retry,
            number::RESET => {
                pair.sends.clear();
                pair.receives.clear();
                pair.peer = None;
                pair.sent.retired = pair.sent.posted;
                pair.received.retired = pair.received.posted;
            }
            _ => self.flush(handle),
        }
        self.kick();
        Ok(())
    }

    /// Whether the path's own end is there: a route on Ethernet, from an address that the port has; and the packet's size.
    fn can_reach(&self, device: usize, to: &ibv_qp_attr) -> bool {
        let Some(device) = self.devices.get(device) else { return false };
        let Some(port) = device.ports.get(usize::from(to.ah_attr.port_num).wrapping_sub(1)) else {
            return false;
        };
        let routed = to.ah_attr.is_global != 0;
        let source =
            port.gids.get(usize::from(to.ah_attr.sgid_index)).is_some_and(|line| line.raw != [0; 16]);
        (1..=3).contains(&to.path_mtu) && if routed { source } else { !self.config.ethernet }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    into: *mut ibv_qp_attr,
    _mask: c_int,
    made_from: *mut ibv_qp_init_attr,
) -> c_int {
    code("ibv_query_qp", |world| {
        let Some(found) = world.pairs.get(&handle(pair)) else {
            return Err(world.stranger("ibv_query_qp", handle(pair)));
        };
        // SAFETY: the structures consist of numbers and pointers.
        let (mut raw, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
        raw.qp_state = found.state;
        raw.cap = found.capacity;
        init.cap = found.capacity;
        let device = found.device;
        world.alive(device)?;
        // SAFETY: the caller's pointers are valid for the structures.
        unsafe {
            into.write(raw);
            made_from.write(init);
        }
        Ok(())
    })
}

/// The pieces of a request.
///
/// # Safety
///
/// The list has that many.
unsafe fn pieces(list: *const ibv_sge, count: c_int) -> Vec<ibv_sge> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's promise.
    (0..count).map(|at| unsafe { list.add(at).read() }).collect()
}

impl World {
    /// Takes one request into a send queue.
    fn take_send(&mut self, call: &str, handle: Handle, wr: &ibv_send_wr) -> Result<(), i32> {
        let Some(pair) = self.pairs.get_mut(&handle) else { return Err(self.stranger(call, handle)) };
        if !matches!(pair.state, number::RTS | number::ERR) {
            let state = pair.state;
            self.misuse(format!("{call}: the queue pair is in state {state}, which takes no request"));
            return Err(libc::EINVAL);
        }
        if pair.sent.used() >= u64::from(pair.capacity.max_send_wr) {
            return Err(libc::ENOMEM);
        }
        let count = u32::try_from(wr.num_sge).unwrap_or(u32::MAX);
        // SAFETY: the request has that many pieces.
        let list = unsafe { pieces(wr.sg_list, wr.num_sge) };
        let is_inline = wr.send_flags & number::INLINE != 0;
        let bytes: u64 = list.iter().map(|piece| u64::from(piece.length)).sum();
        let known = matches!(
            wr.opcode,
            number::WR_WRITE | number::WR_WRITE_IMM | number::WR_SEND | number::WR_SEND_IMM | number::WR_READ
        );
        let fits = count <= pair.capacity.max_send_sge.max(1)
            && (!is_inline
                || (bytes <= u64::from(pair.capacity.max_inline_data) && wr.opcode != number::WR_READ));
        if !known || !fits {
            self.misuse(format!("{call}: the queue pair takes no such request"));
            return Err(libc::EINVAL);
        }
        let inline = is_inline.then(|| {
            let mut data = Vec::new();
            for piece in &list {
                let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(piece.addr).unwrap_or(0));
                // SAFETY: inline data is readable during the call.
                data.extend((0..piece.length as usize).map(|at| unsafe { from.add(at).read() }));
            }
            data
        });
        pair.sent.posted += 1;
        let request = Request {
            id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            pieces: list,
            inline,
            remote: (wr.remote_addr, wr.rkey),
            immediate: wr.imm_data,
            sequence: pair.sent.posted,
            expired: false,
            fate: None,
        };
        let failed = pair.state == number::ERR;
        pair.sends.push_back(request);
        if failed {
            self.flush(handle);
        }
        Ok(())
    }

    /// Takes one request into a receive queue.
    fn take_receive(&mut self, call: &str, handle: Handle, wr: &ibv_recv_wr) -> Result<(), i32> {
        let Some(pair) = self.pairs.get_mut(&handle) else { return Err(self.stranger(call, handle)) };
        if pair.state == number::RESET {
            self.misuse(format!("{call}: the queue pair is in state 0, which takes no receive"));
            return Err(libc::EINVAL);
        }
        if pair.received.used() >= u64::from(pair.capacity.max_recv_wr) {
            return Err(libc::ENOMEM);
        }
        if u32::try_from(wr.num_sge).unwrap_or(u32::MAX) > pair.capacity.max_recv_sge {
            self.misuse(format!("{call}: the queue pair takes no such receive"));
            return Err(libc::EINVAL);
        }
        pair.received.posted += 1;
        // SAFETY: the request has that many pieces.
        let list = unsafe { pieces(wr.sg_list, wr.num_sge) };
        pair.receives.push_back(Receive { id: wr.wr_id, pieces: list, sequence: pair.received.posted });
        if pair.state == number::ERR {
            self.flush(handle);
        }
        Ok(())
    }
}

/// Takes a list of requests, one after the other, until one is refused.
fn post<T: Copy>(
    call: &'static str,
    is_send: bool,
    first: *mut T,
    refused: *mut *mut T,
    next: impl Fn(&T) -> *mut T,
    take: impl Fn(&mut World, &T) -> Result<(), i32>,
) -> c_int {
    if !refused.is_null() {
        // SAFETY: the caller's pointer is valid.
        unsafe { refused.write(first) };
    }
    code(call, |world| {
        let partial = world.faults.next_partial(is_send);
        let (mut at, mut taken, mut result) = (first, 0, Ok(()));
        while !at.is_null() {
            // SAFETY: the list's requests are valid for the call.
            let request = unsafe { at.read() };
            result = match partial {
                Some((most, errno)) if taken == most => Err(errno),
                _ => take(world, &request),
            };
            if result.is_err() {
                // SAFETY: the caller's pointer is valid.
                unsafe { refused.write(at) };
                break;
            }
            taken += 1;
            at = next(&request);
        }
        world.kick();
        result
    })
}

/// Through the context's table.
pub(crate) unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    const CALL: &str = "ibv_post_send";
    let take = |world: &mut World, wr: &ibv_send_wr| world.take_send(CALL, handle(pair), wr);
    post(CALL, true, first, refused, |wr| wr.next, take)
}

/// Through the context's table.
pub(crate) unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    const CALL: &str = "ibv_post_recv";
    let take = |world: &mut World, wr: &ibv_recv_wr| world.take_receive(CALL, handle(pair), wr);
    post(CALL, false, first, refused, |wr| wr.next, take)
}
