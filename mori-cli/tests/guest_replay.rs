//! Replays over the guest's two RDMA devices, between two processes, every byte verified. Elsewhere the test is skipped by name.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests tell by failing, and say why they are skipped"
)]

mod common;

use common::{Ran, Running, SMALL, Serving};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::Signal;

const DEVICES: [&str; 2] = ["rxea", "rxeb"];

fn main() {
    let mut arguments = Arguments::from_args();
    // They share the wire.
    arguments.test_threads = Some(1);
    let there = |name: &&str| std::path::Path::new("/sys/class/infiniband").join(name).exists();
    let missing = DEVICES.iter().find(|name| !there(name));
    // Where the devices have to be, their absence is a failure of the tests.
    let skipped = missing.is_some() && std::env::var_os("RDMA_REQUIRED").is_none();
    if let Some(name) = missing.filter(|_| skipped) {
        eprintln!("skipped without the guest of `cargo xtask rdma-guest`: there is no device {name}");
    }
    let trial = |(name, test): (&str, fn())| {
        let run = move || std::panic::catch_unwind(test).map_err(|_| Failed::without_message());
        Trial::test(name, run).with_ignored_flag(skipped)
    };
    let tests: [(&str, fn()); 2] = [
        (
            "blocks_move_between_two_devices_with_every_byte_verified",
            blocks_move_between_two_devices_with_every_byte_verified,
        ),
        (
            "a_running_server_serves_one_replay_after_the_other",
            a_running_server_serves_one_replay_after_the_other,
        ),
    ];
    libtest_mimic::run(&arguments, tests.map(trial).into()).exit();
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

fn blocks_move_between_two_devices_with_every_byte_verified() {
    let args =
        ["--requests", "12", "--pool-blocks", "100", "--cache-blocks", "300", "--pool-device", DEVICES[1]];
    for further in [["--connections", "1"], ["--pieces", "tensor"]] {
        verified(&replay(&[args.as_slice(), &further].concat()).finish(), 12);
    }
}

fn a_running_server_serves_one_replay_after_the_other() {
    let serving = Serving::start(&["--transport", "rdma", "--device", DEVICES[1], "--pool-blocks", "64"]);
    for _ in 0..2 {
        verified(&replay(&["--requests", "8", "--target", &serving.address]).finish(), 8);
    }
    serving.running.signal(Signal::TERM);
    let ran = serving.running.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
}
