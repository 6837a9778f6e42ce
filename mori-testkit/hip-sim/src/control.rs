//! The exported control function: a line of text in, text out.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::lock;
use crate::world::{CURRENT, World, world};

/// Takes a command, writes the answer and a zero into `out`, and returns the answer's length, or the negative length of what is
/// wrong with the command. An answer that is longer than `capacity - 1` bytes is not written; ask again with more room.
///
/// # Safety
///
/// `command` ends in a zero byte; `out` is valid for `capacity` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mori_hip_sim_control(
    command: *const c_char,
    out: *mut c_char,
    capacity: usize,
) -> isize {
    // SAFETY: the caller's promise.
    let command = unsafe { CStr::from_ptr(command) }.to_string_lossy();
    let (answer, sign) = match obey(world(), &command) {
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

fn obey(world: &World, command: &str) -> Result<String, String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let code = |text: &str| text.parse::<i32>().map_err(|error| format!("{text}: {error}"));
    match words[..] {
        ["set", key, value] => lock(&world.config).set(key, value)?,
        ["fault", name, nth, with] => world.faults.add_call(name, number(nth)?, code(with)?),
        ["async", nth, with] => world.faults.add_copy(number(nth)?, code(with)?),
        ["clear"] => return Ok(world.faults.clear().to_string()),
        ["hold", address] => hold(world, number(address)?, true)?,
        ["release", address] => hold(world, number(address)?, false)?,
        ["device"] => return Ok(CURRENT.get().to_string()),
        ["device", device] => CURRENT.set(code(device)?),
        ["trace", "on"] => *lock(&world.trace) = Some(Vec::new()),
        ["trace", "off"] => {
            return Ok(lock(&world.trace).take().unwrap_or_default().join("\n"));
        }
        ["forgive"] => lock(&world.misuse).clear(),
        ["report"] => return Ok(report(world)),
        _ => return Err(format!("there is no command {command:?}")),
    }
    Ok(String::new())
}

fn hold(world: &World, address: u64, held: bool) -> Result<(), String> {
    let address = usize::try_from(address).map_err(|error| error.to_string())?;
    let found = lock(&world.blocks).find(address, 1);
    let (block, _) = found.ok_or_else(|| format!("nothing is allocated at {address:#x}"))?;
    world.change_hold(|| block.held.store(held, Ordering::Relaxed));
    Ok(())
}

fn report(world: &World) -> String {
    let mut text = String::new();
    let (allocations, mappings) = lock(&world.blocks).count();
    let (streams, events) = {
        let objects = lock(&world.objects);
        (objects.streams.len(), objects.events.len())
    };
    let lives =
        [("allocations", allocations), ("mappings", mappings), ("streams", streams), ("events", events)];
    for (what, count) in lives {
        let _ = writeln!(text, "live {what} {count}");
    }
    for (name, count) in &*lock(&world.calls) {
        let _ = writeln!(text, "call {name} {count}");
    }
    for what in &*lock(&world.misuse) {
        let _ = writeln!(text, "misuse {what}");
    }
    text
}
