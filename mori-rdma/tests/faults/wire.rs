//! The wire is cut, silent or lossy, and comes back.

use std::process::Command;
use std::time::Duration;

use mori_core::{Error, ErrorKind, Op, TransferOptions};

use super::play::{Play, ended};
use super::{config, until, within};
use crate::guest::{DEVICES, net, net_begun};

/// The device gives up two seconds to a few seconds after the wire is silent; the rest is for the emulation.
const NOTICED: Duration = Duration::from_secs(20);
/// A path that works again is tried again within a second; resolving an address takes up to one more.
const REPAIRED: Duration = Duration::from_secs(20);
/// What `ibv_wc_status` calls a request that was given back because another one had failed.
const FLUSHED: i64 = 5;

/// The failures tell of the wire, and not of the flush that followed.
fn say_why(failures: &[Error]) {
    assert!(!failures.is_empty());
    for error in failures {
        let known = [ErrorKind::PeerLost, ErrorKind::Transport, ErrorKind::Device].contains(&error.kind());
        let of_the_port = error.message().contains("device rxea: port");
        // What waited for the way to be made anew has the reason why that fails.
        let of_the_way = error.message().contains("connecting device rxea with engine peer");
        let of_a_request = error.cause().is_some_and(|cause| {
            cause.domain == "ibv_wc_status" && cause.number != FLUSHED && cause.number > 0
        });
        assert!(known && (of_the_port || of_a_request || of_the_way), "{error:?}");
    }
}

/// Cuts the wire under a batch; with the wire back, the same session works.
fn cut(disturbance: &str, op: Op) {
    let mut play = Play::new();
    let failures = within(NOTICED, "noticing it", || {
        let mut command = net_begun(&[disturbance]);
        let failures = play.until_failure(op);
        assert!(command.wait().unwrap().success());
        failures
    });
    say_why(&failures);
    play.rests();
    // Nothing has changed yet: what is tried meanwhile fails as well, and as clearly.
    within(NOTICED, "failing meanwhile", || {
        let error = ended(&play.submit(op, 0, &TransferOptions::default())).unwrap_err();
        assert!(error.message().len() > 20, "{error:?}");
    });
    net(&["heal"]);
    within(REPAIRED, "the repair", || play.works());
    assert!(play.session.alive());
    play.end();
}

pub(crate) fn the_peers_link_goes_down_under_writes() {
    cut("cut-remote", Op::Write);
}

pub(crate) fn the_own_link_goes_down_under_reads() {
    cut("cut-local", Op::Read);
}

pub(crate) fn a_black_hole_swallows_writes() {
    cut("black-hole", Op::Write);
}

/// The second device reaches the peer without the wire.
pub(crate) fn the_other_device_carries_on() {
    let mut play = Play::with(config(&DEVICES), &DEVICES[1..]);
    let devices = |play: &Play| -> Vec<String> {
        let mut devices: Vec<String> =
            play.node.backend.stats().lanes.into_iter().map(|lane| lane.device).collect();
        devices.sort();
        devices
    };
    until("a lane on either device", || devices(&play) == DEVICES);
    let failures = within(NOTICED, "going another way", || {
        let mut command = net_begun(&["black-hole"]);
        let mut cut = false;
        play.keep_going(Op::Write, |_| {
            cut |= command.try_wait().unwrap().is_some();
            !cut || devices(&play).contains(&DEVICES[0].to_owned())
        })
    });
    assert!(failures.is_empty(), "{failures:?}");
    play.moves().unwrap();
    net(&["heal"]);
    let failures =
        within(REPAIRED, "coming back", || play.keep_going(Op::Read, |_| devices(&play) != DEVICES));
    assert!(failures.is_empty(), "{failures:?}");
    play.works();
    play.end();
}

/// Shorter than the device's patience, which is two seconds.
pub(crate) fn a_short_black_hole_recovers_by_itself() {
    let mut play = Play::new();
    let script = "tc qdisc add dev va root netem loss 100%; sleep 0.3; tc qdisc del dev va root";
    let mut hole = Command::new("bash").args(["-c", script]).spawn().unwrap();
    let failures =
        within(NOTICED, "recovering", || play.keep_going(Op::Write, |_| hole.try_wait().unwrap().is_none()));
    assert!(failures.is_empty(), "{failures:?}");
    assert!(hole.wait().unwrap().success());
    play.moves().unwrap();
    play.end();
}

pub(crate) fn a_lossy_wire_loses_no_transfer() {
    let mut play = Play::new();
    net(&["loss", "2"]);
    within(REPAIRED, "moving over a lossy wire", || play.moves().unwrap());
    net(&["heal"]);
    play.end();
}
