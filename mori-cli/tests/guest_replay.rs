//! Replays over the guest's two RDMA devices, between two processes, every byte verified. Elsewhere the test is skipped by name.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use common::{Ran, Running, SMALL, Serving};
use rustix::process::Signal;

const DEVICES: [&str; 2] = ["rxea", "rxeb"];

/// Whether the guest's devices are here. Where they have to be, their absence is a failure.
fn in_the_guest() -> bool {
    let there = DEVICES.iter().all(|name| std::path::Path::new("/sys/class/infiniband").join(name).exists());
    assert!(there || std::env::var_os("RDMA_REQUIRED").is_none(), "the guest's devices are missing");
    if !there {
        println!("skipped without the guest of `cargo xtask rdma-guest`: there is no device {DEVICES:?}");
    }
    there
}

fn verified(ran: &Ran, requests: u64) {
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""));
    let json = ran.json();
    assert_eq!((&json["outcome"], &json["requests"]["done"]), (&"ok".into(), &requests.into()));
    let setup = &json["setup"];
    assert_eq!((&setup["transport"], &setup["verified"]), (&"rdma".into(), &true.into()));
    let fetched = json["blocks"]["fetched"].as_u64().expect("a number");
    assert!(fetched > 0 && json["bytes"] == fetched * 8192, "{json}");
}

fn replay(args: &[&str]) -> Running {
    let common = ["replay", "--transport", "rdma", "--device", DEVICES[0], "--json"];
    Running::start(&[common.as_slice(), &SMALL, args].concat(), &[])
}

#[test]
fn blocks_move_between_two_devices_with_every_byte_verified() {
    if !in_the_guest() {
        return;
    }
    let args =
        ["--requests", "12", "--pool-blocks", "100", "--cache-blocks", "300", "--pool-device", DEVICES[1]];
    for further in [["--connections", "1"], ["--pieces", "tensor"]] {
        verified(&replay(&[args.as_slice(), &further].concat()).finish(), 12);
    }
}

#[test]
fn a_running_server_serves_one_replay_after_the_other() {
    if !in_the_guest() {
        return;
    }
    let serving = Serving::start(&["--transport", "rdma", "--device", DEVICES[1], "--pool-blocks", "64"]);
    for _ in 0..2 {
        verified(&replay(&["--requests", "8", "--target", &serving.address]).finish(), 8);
    }
    serving.running.signal(Signal::TERM);
    let ran = serving.running.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
}
