//! Devices and contexts: the functions that list, open and ask them.

#![allow(missing_docs, unreachable_pub, reason = "the names, and what they do, are the library's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "as with the real library: pointers are valid for what the call does"
)]

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr;

use crate::call::{close, code, give, handle, pipe, pointer, set_errno};
use crate::types::{
    ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_port_attr, number,
    verbs_context,
};
use crate::world::{Context, Device, Gid, Handle, Port, World, world};

/// The GUID of the first device; it spells the project's name.
const GUID: u64 = 0x6d6f_7269_0000_0000;
/// How many lines a port's table has.
const TABLE: usize = 8;

impl World {
    /// Makes as many devices as the configuration asks for.
    pub(crate) fn settle(&mut self) {
        while self.devices.len() < self.config.devices {
            let at = self.devices.len();
            let name = format!("mori_sim{at}");
            // SAFETY: the structure consists of numbers and pointers.
            let mut raw: ibv_device = unsafe { zeroed() };
            raw.node_type = 1;
            write_text(&mut raw.name, &name);
            write_text(&mut raw.dev_name, &format!("uverbs{at}"));
            write_text(&mut raw.ibdev_path, &format!("{}/{name}", self.config.sysfs));
            let ports = (1..=self.config.ports).map(|port| new_port(at, port, self.config.ethernet));
            let ports = ports.collect();
            let next_key = 0x1000 * u32::try_from(at + 1).unwrap_or(1);
            self.devices.push(Device { raw: handle(give(raw)), name, ports, dead: false, next_key });
        }
    }

    fn device_of(&mut self, call: &str, raw: *mut ibv_device) -> Result<usize, i32> {
        let wanted = handle(raw);
        match self.devices.iter().position(|device| device.raw == wanted) {
            Some(at) => Ok(at),
            None => Err(self.stranger(call, wanted)),
        }
    }

    /// The device of an open context.
    pub(crate) fn context_device(&mut self, call: &str, context: Handle) -> Result<usize, i32> {
        match self.contexts.get(&context) {
            Some(open) => Ok(open.device),
            None => Err(self.stranger(call, context)),
        }
    }
}

fn new_port(device: usize, port: u8, ethernet: bool) -> Port {
    let low = u8::try_from(device).unwrap_or(u8::MAX);
    let mut local = [0; 16];
    local[..2].copy_from_slice(&[0xfe, 0x80]);
    local[14..].copy_from_slice(&[low, port]);
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 99, low, port]);
    let gids = if ethernet {
        vec![
            Gid { raw: local, kind: 1 },
            Gid { raw: local, kind: 2 },
            Gid { raw: mapped, kind: 1 },
            Gid { raw: mapped, kind: 2 },
        ]
    } else {
        vec![Gid { raw: local, kind: 0 }]
    };
    let lid = if ethernet { 0 } else { u16::from(low) * 16 + u16::from(port) };
    Port { up: true, lid, gids }
}

fn write_text(into: &mut [c_char], text: &str) {
    let room = into.len().saturating_sub(1);
    for (to, from) in into.iter_mut().zip(text.bytes().take(room)) {
        *to = from.cast_signed();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer("ibv_get_device_list", |world| {
        if !world.config.kernel {
            return Err(libc::ENOSYS);
        }
        world.settle();
        let shown = world.devices.iter().take(world.config.devices).filter(|device| !device.dead);
        let mut array: Vec<*mut ibv_device> =
            shown.map(|device| ptr::with_exposed_provenance_mut(device.raw)).collect();
        if !count.is_null() {
            // SAFETY: the caller's pointer is valid for a number.
            unsafe { count.write(c_int::try_from(array.len()).unwrap_or(c_int::MAX)) };
        }
        array.push(ptr::null_mut());
        let array = Vec::leak(array).as_mut_ptr();
        world.lists.insert(handle(array));
        Ok(array)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let _ = code("ibv_free_device_list", |world| {
        if world.lists.remove(&handle(list)) {
            world.gone.insert(handle(list), "device list");
            return Ok(());
        }
        Err(world.stranger("ibv_free_device_list", handle(list)))
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // The device's structure is never freed.
    pointer("ibv_get_device_name", |world| {
        world.device_of("ibv_get_device_name", device)?;
        // SAFETY: the device is one of this library's.
        Ok(unsafe { (&raw mut (*device).name).cast::<c_char>() })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let mut world = world();
    let found =
        world.enter("ibv_get_device_guid").and_then(|()| world.device_of("ibv_get_device_guid", device));
    found.map_or(0, |at| (GUID + at as u64).to_be())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer("ibv_open_device", |world| {
        let at = world.device_of("ibv_open_device", device)?;
        if world.devices[at].dead {
            return Err(libc::ENODEV);
        }
        let pipe = pipe()?;
        // SAFETY: the structure consists of numbers, pointers and locks, for which zero is the initial value.
        let mut outer: verbs_context = unsafe { zeroed() };
        outer.query_port = Some(query_port);
        outer.sz = size_of::<verbs_context>();
        let context = &mut outer.context;
        context.device = device;
        context.async_fd = pipe.0;
        context.cmd_fd = -1;
        context.num_comp_vectors = world.config.vectors;
        context.abi_compat = ptr::without_provenance_mut::<c_void>(usize::MAX);
        let ops: &mut ibv_context_ops = &mut context.ops;
        ops.poll_cq = Some(crate::completion::poll_cq);
        ops.req_notify_cq = Some(crate::completion::req_notify_cq);
        ops.post_send = Some(crate::queue::post_send);
        ops.post_recv = Some(crate::queue::post_recv);
        let outer = give(outer);
        // SAFETY: the structure was just made.
        let context = unsafe { &raw mut (*outer).context };
        let open = Context { device: at, pipe, events: VecDeque::new() };
        world.contexts.insert(handle(context), open);
        Ok(context)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    code("ibv_close_device", |world| {
        let wanted = handle(context);
        if !world.contexts.contains_key(&wanted) {
            return Err(world.stranger("ibv_close_device", wanted));
        }
        let in_use = world.domains.values().any(|domain| domain.context == wanted)
            || world.channels.values().any(|channel| channel.context == wanted)
            || world.completions.values().any(|queue| queue.context == wanted);
        if in_use {
            world.misuse("ibv_close_device: something that was made from the context is left".to_owned());
            return Err(libc::EBUSY);
        }
        if let Some(open) = world.contexts.remove(&wanted) {
            close(open.pipe);
        }
        world.gone.insert(wanted, "context");
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    code("ibv_query_device", |world| {
        let device = world.context_device("ibv_query_device", handle(context))?;
        world.alive(device)?;
        // SAFETY: the structure consists of numbers.
        let mut raw: ibv_device_attr = unsafe { zeroed() };
        write_text(&mut raw.fw_ver, "0.simulated");
        let large = 1 << 16;
        raw.node_guid = (GUID + device as u64).to_be();
        raw.max_mr_size = world.config.memory;
        raw.page_size_cap = 0xffff_f000;
        raw.max_qp = large;
        raw.max_qp_wr = c_int::try_from(world.config.max_requests).unwrap_or(c_int::MAX);
        raw.max_sge = c_int::try_from(world.config.max_pieces).unwrap_or(c_int::MAX);
        raw.max_sge_rd = raw.max_sge;
        raw.max_cq = large;
        raw.max_cqe = world.config.max_completions;
        raw.max_mr = large;
        raw.max_pd = large;
        raw.max_qp_rd_atom = 16;
        raw.max_qp_init_rd_atom = 16;
        raw.phys_port_cnt = u8::try_from(world.devices[device].ports.len()).unwrap_or(u8::MAX);
        // SAFETY: the caller's pointer is valid for the structure.
        unsafe { into.write(raw) };
        Ok(())
    })
}

impl World {
    fn port_attributes(&mut self, context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, i32> {
        let at = self.context_device("ibv_query_port", handle(context))?;
        self.alive(at)?;
        let of = self.devices[at].ports.get(usize::from(port).wrapping_sub(1)).ok_or(libc::EINVAL)?;
        // SAFETY: the structure consists of numbers.
        let mut raw: ibv_port_attr = unsafe { zeroed() };
        raw.state = if of.up { number::PORT_ACTIVE } else { number::PORT_DOWN };
        raw.phys_state = if of.up { 5 } else { 3 };
        raw.max_mtu = 5;
        raw.active_mtu = 3;
        raw.gid_tbl_len = c_int::try_from(TABLE).unwrap_or(c_int::MAX);
        raw.max_msg_sz = self.config.max_message;
        raw.lid = of.lid;
        raw.active_width = 2;
        raw.active_speed = 32;
        raw.link_layer = if self.config.ethernet { 2 } else { 1 };
        Ok(raw)
    }
}

/// The way that the header's inline function takes: it knows how much the caller has room for.
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut c_void,
    length: usize,
) -> c_int {
    code("ibv_query_port", |world| {
        let raw = world.port_attributes(context, port)?;
        let count = length.min(size_of::<ibv_port_attr>());
        // SAFETY: the caller has room for `length` bytes.
        unsafe { ptr::copy_nonoverlapping((&raw const raw).cast::<u8>(), into.cast(), count) };
        Ok(())
    })
}

/// The way of old programs: without the wire's kind, which came later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, into: *mut c_void) -> c_int {
    code("ibv_query_port", |world| {
        let raw = world.port_attributes(context, port)?;
        let count = std::mem::offset_of!(ibv_port_attr, link_layer);
        // SAFETY: the caller has room for the old structure.
        unsafe { ptr::copy_nonoverlapping((&raw const raw).cast::<u8>(), into.cast(), count) };
        Ok(())
    })
}

impl World {
    fn gid_line(&self, device: usize, port: u8, index: usize) -> Option<ibv_gid_entry> {
        let of = self.devices.get(device)?.ports.get(usize::from(port).wrapping_sub(1))?;
        let line = of.gids.get(index).filter(|line| line.raw != [0; 16])?;
        Some(ibv_gid_entry {
            gid: ibv_gid { raw: line.raw },
            gid_index: u32::try_from(index).ok()?,
            port_num: u32::from(port),
            gid_type: line.kind,
            ndev_ifindex: u32::try_from(device).ok()? + 2,
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    into: *mut ibv_gid_entry,
    _flags: u32,
    size: usize,
) -> c_int {
    code("ibv_query_gid_ex", |world| {
        let device = world.context_device("ibv_query_gid_ex", handle(context))?;
        world.alive(device)?;
        let port = u8::try_from(port).map_err(|_| libc::EINVAL)?;
        if size != size_of::<ibv_gid_entry>() || index as usize >= TABLE {
            return Err(libc::EINVAL);
        }
        let line = world.gid_line(device, port, index as usize).ok_or(libc::ENODATA)?;
        // SAFETY: the caller's pointer is valid for the structure.
        unsafe { into.write(line) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    into: *mut ibv_gid_entry,
    most: usize,
    _flags: u32,
    size: usize,
) -> isize {
    let mut found = 0;
    let code = code("ibv_query_gid_table", |world| {
        let device = world.context_device("ibv_query_gid_table", handle(context))?;
        world.alive(device)?;
        if size != size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let ports = u8::try_from(world.devices[device].ports.len()).unwrap_or(u8::MAX);
        for port in 1..=ports {
            for line in (0..TABLE).filter_map(|index| world.gid_line(device, port, index)) {
                if found == most {
                    return Err(libc::EINVAL);
                }
                // SAFETY: the caller has room for `most` lines.
                unsafe { into.add(found).write(line) };
                found += 1;
            }
        }
        Ok(())
    });
    if code == 0 { found.cast_signed() } else { -(code as isize) }
}

/// Takes the next event, waiting for one unless the descriptor does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    into: *mut crate::types::ibv_async_event,
) -> c_int {
    match crate::events::next(handle(context)) {
        Ok(event) => {
            // SAFETY: the caller's pointer is valid for the structure.
            unsafe { into.write(event) };
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut crate::types::ibv_async_event) {
    // SAFETY: the caller's pointer is valid for the structure.
    let event = unsafe { event.read() };
    crate::events::acknowledge(event);
}
