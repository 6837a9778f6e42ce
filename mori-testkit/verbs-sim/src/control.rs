//! The exported control function: a line of text in, text out.

use std::ffi::{CStr, c_char};
use std::fmt::Write;

use crate::types::number;
use crate::world::{Gid, Handle, World, world};

/// Takes a command, writes the answer and a zero into `out`, and returns the answer's length, or the negative length of what is
/// wrong with the command. An answer that is longer than `capacity - 1` bytes is not written; ask again with more room.
///
/// # Safety
///
/// `command` ends in a zero byte; `out` is valid for `capacity` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mori_verbs_sim_control(
    command: *const c_char,
    out: *mut c_char,
    capacity: usize,
) -> isize {
    // SAFETY: the caller's promise.
    let command = unsafe { CStr::from_ptr(command) }.to_string_lossy();
    let (answer, sign) = match obey(&mut world(), &command) {
        Ok(answer) => (answer, 1),
        Err(wrong) => (wrong, -1),
    };
    if answer.len() < capacity {
        // SAFETY: there is room for the answer and its zero.
        unsafe {
            std::ptr::copy_nonoverlapping(answer.as_ptr().cast(), out, answer.len());
            out.add(answer.len()).write(0);
        }
    }
    sign * isize::try_from(answer.len()).unwrap_or(isize::MAX)
}

fn number<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

fn obey(world: &mut World, command: &str) -> Result<String, String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        ["set", key, value] => world.config.set(key, value)?,
        ["fault", name, nth, errno] => world.faults.add_call(name, number(nth)?, number(errno)?),
        ["status", nth, status] => world.faults.add_status(number(nth)?, number(status)?),
        ["partial", "send", taken, errno] => world.faults.add_partial(true, number(taken)?, number(errno)?),
        ["partial", "receive", taken, errno] => {
            world.faults.add_partial(false, number(taken)?, number(errno)?);
        }
        ["clear"] => return Ok(world.faults.clear().to_string()),
        ["hold"] => world.held = true,
        ["release"] => {
            world.held = false;
            world.kick();
        }
        ["hold", device, pair] => hold(world, device, pair, true)?,
        ["release", device, pair] => hold(world, device, pair, false)?,
        ["withhold"] => world.withheld = true,
        ["deliver"] => deliver(world),
        ["expire"] => expire(world),
        ["port", device, port, state] => change_port(world, device, port, state)?,
        ["gid", device, port, index, gid] => change_gid(world, device, port, index, gid)?,
        ["kill", "device", device] => kill_device(world, device)?,
        ["kill", "pair", device, pair] => {
            let pair = find_pair(world, device, pair)?;
            world.pair_event(pair, number::EVENT_QP_FATAL);
            world.fail(pair);
        }
        ["revive", device] => {
            let at = find_device(world, device)?;
            world.devices[at].dead = false;
        }
        ["overrun", device] => overrun(world, device)?,
        ["reset"] => world.reset(),
        ["forgive"] => world.misuse.clear(),
        ["report"] => return Ok(report(world)),
        _ => return Err(format!("there is no command {command:?}")),
    }
    Ok(String::new())
}

/// A device by its name or its number.
fn find_device(world: &mut World, text: &str) -> Result<usize, String> {
    world.settle();
    let by_number = text.parse::<usize>().ok().filter(|&at| at < world.devices.len());
    by_number
        .or_else(|| world.devices.iter().position(|device| device.name == text))
        .ok_or_else(|| format!("there is no device {text}"))
}

fn find_pair(world: &mut World, device: &str, pair: &str) -> Result<Handle, String> {
    let device = find_device(world, device)?;
    let wanted: u32 = number(pair)?;
    let found = world.pairs.iter().find(|(_, pair)| pair.device == device && pair.number == wanted);
    found.map(|(&handle, _)| handle).ok_or_else(|| format!("the device has no queue pair {pair}"))
}

fn hold(world: &mut World, device: &str, pair: &str, held: bool) -> Result<(), String> {
    let handle = find_pair(world, device, pair)?;
    if let Some(pair) = world.pairs.get_mut(&handle) {
        pair.held = held;
    }
    world.kick();
    Ok(())
}

/// Completions that were withheld are seen, and announced.
fn deliver(world: &mut World) {
    world.withheld = false;
    let waiting =
        world.completions.iter().filter(|(_, queue)| queue.armed.is_some() && !queue.entries.is_empty());
    let waiting: Vec<Handle> = waiting.map(|(&handle, _)| handle).collect();
    for handle in waiting {
        world.announce(handle);
    }
}

/// What waits for its peer has waited for long enough.
fn expire(world: &mut World) {
    for pair in world.pairs.values_mut() {
        if let Some(first) = pair.sends.front_mut() {
            first.expired = true;
        }
    }
    world.kick();
}

fn change_port(world: &mut World, device: &str, port: &str, state: &str) -> Result<(), String> {
    let at = find_device(world, device)?;
    let wanted: usize = number(port)?;
    let up = match state {
        "up" => true,
        "down" => false,
        _ => return Err(format!("a port is up or down, not {state}")),
    };
    let found = world.devices[at].ports.get_mut(wanted.wrapping_sub(1));
    found.ok_or_else(|| format!("the device has no port {port}"))?.up = up;
    let kind = if up { number::EVENT_PORT_ACTIVE } else { number::EVENT_PORT_ERR };
    world.device_event(at, kind, wanted);
    world.kick();
    Ok(())
}

fn change_gid(world: &mut World, device: &str, port: &str, index: &str, gid: &str) -> Result<(), String> {
    let at = find_device(world, device)?;
    let wanted: usize = number(port)?;
    let index: usize = number(index)?;
    let raw = match gid {
        "none" => [0; 16],
        text => number::<std::net::Ipv6Addr>(text)?.octets(),
    };
    let found = world.devices[at].ports.get_mut(wanted.wrapping_sub(1));
    let port = found.ok_or_else(|| format!("the device has no port {port}"))?;
    let line = port.gids.get_mut(index).ok_or_else(|| format!("the port's table has no line {index}"))?;
    *line = Gid { raw, ..*line };
    world.device_event(at, number::EVENT_GID_CHANGE, wanted);
    Ok(())
}

fn kill_device(world: &mut World, device: &str) -> Result<(), String> {
    let at = find_device(world, device)?;
    world.devices[at].dead = true;
    world.device_event(at, number::EVENT_DEVICE_FATAL, 0);
    let pairs = world.pairs.iter().filter(|(_, pair)| pair.device == at).map(|(&handle, _)| handle);
    for pair in pairs.collect::<Vec<_>>() {
        world.fail(pair);
    }
    world.kick();
    Ok(())
}

/// Every completion queue of a device overruns.
fn overrun(world: &mut World, device: &str) -> Result<(), String> {
    let at = find_device(world, device)?;
    let of = |context: &Handle| world.contexts.get(context).is_some_and(|open| open.device == at);
    let queues = world.completions.iter().filter(|(_, queue)| of(&queue.context)).map(|(&handle, _)| handle);
    for queue in queues.collect::<Vec<_>>() {
        world.overrun(queue);
    }
    Ok(())
}

fn report(world: &World) -> String {
    let mut text = String::new();
    let lives = [
        ("lists", world.lists.len()),
        ("contexts", world.contexts.len()),
        ("domains", world.domains.len()),
        ("regions", world.regions.len()),
        ("channels", world.channels.len()),
        ("completions", world.completions.len()),
        ("pairs", world.pairs.len()),
    ];
    for (what, count) in lives {
        let _ = writeln!(text, "live {what} {count}");
    }
    for (name, count) in &world.calls {
        let _ = writeln!(text, "call {name} {count}");
    }
    let queued: usize = world.pairs.values().map(|pair| pair.sends.len()).sum();
    let receives: usize = world.pairs.values().map(|pair| pair.receives.len()).sum();
    let unpolled: usize = world.completions.values().map(|queue| queue.entries.len()).sum();
    for (what, count) in [("sends", queued), ("receives", receives), ("unpolled", unpolled)] {
        let _ = writeln!(text, "queued {what} {count}");
    }
    for what in &world.misuse {
        let _ = writeln!(text, "misuse {what}");
    }
    text
}
