//! Completion channels and completion queues.

#![allow(missing_docs, unreachable_pub, reason = "the names, and what they do, are the library's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "as with the real library: pointers are valid for what the call does"
)]

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;

use crate::call::{close, code, destroy, give, handle, pipe, pointer, put, set_errno, take};
use crate::types::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};
use crate::world::{Channel, Completions, Handle, World, acknowledged, world};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer("ibv_create_comp_channel", |world| {
        let device = world.context_device("ibv_create_comp_channel", handle(context))?;
        world.alive(device)?;
        let pipe = pipe()?;
        let channel = give(ibv_comp_channel { context, fd: pipe.0, refcnt: 0 });
        world.channels.insert(handle(channel), Channel { context: handle(context), pipe });
        Ok(channel)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    code("ibv_destroy_comp_channel", |world| {
        let wanted = handle(channel);
        if world.completions.values().any(|queue| queue.channel == Some(wanted)) {
            world.misuse("ibv_destroy_comp_channel: a completion queue of the channel is left".to_owned());
            return Err(libc::EBUSY);
        }
        let Some(channel) = world.channels.remove(&wanted) else {
            return Err(world.stranger("ibv_destroy_comp_channel", wanted));
        };
        close(channel.pipe);
        world.gone.insert(wanted, "completion channel");
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer("ibv_create_cq", |world| {
        let device = world.context_device("ibv_create_cq", handle(context))?;
        world.alive(device)?;
        let channel_handle = (!channel.is_null()).then(|| handle(channel));
        if let Some(wanted) = channel_handle
            && world.channels.get(&wanted).is_none_or(|channel| channel.context != handle(context))
        {
            return Err(world.stranger("ibv_create_cq", wanted));
        }
        if entries < 1
            || entries > world.config.max_completions
            || vector < 0
            || vector >= world.config.vectors
        {
            return Err(libc::EINVAL);
        }
        // SAFETY: the structure consists of numbers, pointers and locks, for which zero is the initial value.
        let mut raw: ibv_cq = unsafe { zeroed() };
        raw.context = context;
        raw.channel = channel;
        raw.cq_context = user;
        raw.cqe = entries;
        let raw = give(raw);
        let queue = Completions {
            context: handle(context),
            channel: channel_handle,
            capacity: usize::try_from(entries).unwrap_or(1),
            entries: VecDeque::new(),
            armed: None,
            broken: false,
            unacknowledged: 0,
            unacknowledged_async: 0,
        };
        world.completions.insert(handle(raw), queue);
        Ok(raw)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int {
    code("ibv_resize_cq", |world| {
        let most = world.config.max_completions;
        let Some(found) = world.completions.get_mut(&handle(queue)) else {
            return Err(world.stranger("ibv_resize_cq", handle(queue)));
        };
        let wanted = usize::try_from(entries).unwrap_or(0);
        if wanted == 0 || wanted < found.entries.len() || entries > most {
            return Err(libc::EINVAL);
        }
        found.capacity = wanted;
        // SAFETY: the queue is one of this library's.
        unsafe { (&raw mut (*queue).cqe).write_volatile(entries) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    destroy("ibv_destroy_cq", handle(queue), |world| {
        let wanted = handle(queue);
        if !world.completions.contains_key(&wanted) {
            return Err(world.stranger("ibv_destroy_cq", wanted));
        }
        let used =
            |pair: &crate::world::Pair| pair.send_completions == wanted || pair.receive_completions == wanted;
        if world.pairs.values().any(used) {
            world.misuse("ibv_destroy_cq: a queue pair of the completion queue is left".to_owned());
            return Err(libc::EBUSY);
        }
        world.completions.remove(&wanted);
        world.gone.insert(wanted, "completion queue");
        Ok(())
    })
}

impl World {
    /// A completion queue announces on its channel, and is armed no longer.
    pub(crate) fn announce(&mut self, handle: Handle) {
        let Some(queue) = self.completions.get_mut(&handle) else { return };
        queue.armed = None;
        let Some(channel) = queue.channel.and_then(|channel| self.channels.get(&channel)) else { return };
        if !put(channel.pipe.1, handle) {
            self.misuse("nobody reads the announcements of a completion channel".to_owned());
        }
    }
}

/// Takes the next announcement, waiting for one unless the descriptor does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    match next(handle(channel)) {
        Ok(found) => {
            let found: *mut ibv_cq = ptr::with_exposed_provenance_mut(found);
            // SAFETY: the caller's pointers are valid, and the queue is one of this library's.
            unsafe {
                queue.write(found);
                user.write((*found).cq_context);
            }
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn next(channel: Handle) -> Result<Handle, i32> {
    let end = {
        let mut world = world();
        world.enter("ibv_get_cq_event")?;
        match world.channels.get(&channel) {
            Some(channel) => channel.pipe.0,
            None => return Err(world.stranger("ibv_get_cq_event", channel)),
        }
    };
    loop {
        // Not under the lock: the descriptor may block.
        let queue = take(end)?;
        // An announcement of a queue that was destroyed meanwhile is none.
        if let Some(found) = world().completions.get_mut(&queue) {
            found.unacknowledged += 1;
            return Ok(queue);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    let mut world = world();
    let _ = world.enter("ibv_ack_cq_events");
    match world.completions.get_mut(&handle(queue)) {
        Some(found) if found.unacknowledged >= count => {
            found.unacknowledged -= count;
            acknowledged();
        }
        Some(_) => world.misuse("ibv_ack_cq_events: more events were acknowledged than taken".to_owned()),
        None => {
            world.stranger("ibv_ack_cq_events", handle(queue));
        }
    }
}

/// Through the context's table.
pub(crate) unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    let mut found = 0;
    let code = code("ibv_poll_cq", |world| {
        let withheld = world.withheld;
        let Some(from) = world.completions.get_mut(&handle(queue)) else {
            return Err(world.stranger("ibv_poll_cq", handle(queue)));
        };
        if from.broken && from.entries.is_empty() {
            return Err(libc::EOVERFLOW);
        }
        if withheld {
            return Ok(());
        }
        let count = usize::try_from(most).unwrap_or(0).min(from.entries.len());
        let entries: Vec<_> = from.entries.drain(..count).collect();
        for entry in entries {
            // SAFETY: the caller has room for as many as it says.
            unsafe { into.add(found).write(entry.wc) };
            found += 1;
            if let Some(pair) = world.pairs.get_mut(&entry.pair) {
                let slots = if entry.is_send { &mut pair.sent } else { &mut pair.received };
                slots.retired = slots.retired.max(entry.sequence);
            }
        }
        Ok(())
    });
    if code == 0 { c_int::try_from(found).unwrap_or(c_int::MAX) } else { -code }
}

/// Through the context's table.
pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    code("ibv_req_notify_cq", |world| {
        let Some(found) = world.completions.get_mut(&handle(queue)) else {
            return Err(world.stranger("ibv_req_notify_cq", handle(queue)));
        };
        let device = found.context;
        // Armed for any completion stays so when somebody asks for less.
        let less = solicited_only != 0 && found.armed != Some(false);
        found.armed = Some(less);
        let device = world.context_device("ibv_req_notify_cq", device)?;
        world.alive(device)
    })
}
