//! The program over XGMI, on the simulated HIP runtime: two processes, the memory of simulated devices, every byte verified.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use common::{Ran, Running, SMALL, Serving, trace};
use mori_hip_sim::client::Simulation;

const XGMI: [&str; 2] = ["--transport", "xgmi"];

/// The simulated runtime's library.
fn library() -> String {
    let library = Simulation::find().expect("the simulation is built with the tests");
    library.to_str().expect("text").to_owned()
}

/// Runs a replay over the simulation, set up as `machine` says.
fn replay(machine: &str, args: &[&str]) -> Ran {
    let args = [&["replay"], SMALL.as_slice(), &XGMI, &["--json"], args].concat();
    Running::start(&args, &[("MORI_HIP_LIBRARY", &library()), ("MORI_HIP_SIM", machine)]).finish()
}

#[test]
fn blocks_move_between_two_processes_with_every_byte_verified() {
    let args = ["--requests", "40", "--pool-blocks", "100", "--cache-blocks", "300"];
    for (machine, further, device) in [
        ("devices=2", &[] as &[&str], "simulated device 0 (51a0:01:00.0), no GPU"),
        ("devices=1", &[], "simulated device 0 (51a0:01:00.0), no GPU"),
        (
            "devices=4 peers=1-3",
            &["--device", "3", "--pool-device", "1", "--pieces", "tensor"],
            "simulated device 3 (51a0:04:00.0), no GPU",
        ),
    ] {
        let ran = replay(machine, &[args.as_slice(), further].concat());
        assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{machine}");
        let json = ran.json();
        assert_eq!((&json["outcome"], &json["requests"]["done"]), (&"ok".into(), &40.into()));
        let setup = &json["setup"];
        assert_eq!((&setup["transport"], &setup["verified"]), (&"xgmi".into(), &true.into()));
        // A simulation is called one.
        assert_eq!(setup["memory"], device);
        let fetched = json["blocks"]["fetched"].as_u64().expect("a number");
        assert!(fetched > 0 && json["bytes"] == fetched * 8192, "{json}");
        assert!(json["cpu_seconds"]["serve"].as_f64().expect("known") > 0.0);
    }
}

#[test]
fn a_target_serves_and_a_restarted_one_is_found_again() {
    let library = library();
    let environment = [("MORI_HIP_LIBRARY", library.as_str()), ("MORI_LOG", "mori_cli=info,error")];
    let serve = |args: &[&str]| {
        let args = [&XGMI, &["--device", "1"], args].concat();
        Serving::start_in(&args, &[("MORI_HIP_LIBRARY", library.as_str())])
    };
    let server = serve(&["--pool-blocks", "64"]);
    let address = server.address.clone();
    // By the trace's clock this takes two seconds and a half at least, so the server dies in the middle.
    let trace = trace((0..500).map(|at| at % 97), 5);
    let path = trace.path().to_str().expect("text");
    let args = ["replay", "--trace", path, "--speed", "1", "--target", &address, "--keep-going", "--json"];
    let args = [args.as_slice(), &XGMI, &["--cache-blocks", "10"]].concat();
    let mut replay = Running::start(&args, &environment);
    replay.hear("connected");
    server.kill();
    replay.hear("lost the peer");
    let again = serve(&["--pool-blocks", "33", "--listen", &address]);
    replay.hear("reached the peer");
    let ran = replay.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["requests"]["done"], &json["reconnects"]), (&500.into(), &1.into()), "{}", ran.err);
    assert_eq!(json["setup"]["pool_blocks"], 33);
    drop(again);
}

#[test]
fn a_machine_without_a_device_is_told_with_status_2_and_what_to_do() {
    for command in ["replay", "serve"] {
        let args = [&[command], SMALL.as_slice(), &XGMI].concat();
        let environment = [("MORI_HIP_LIBRARY", &*library()), ("MORI_HIP_SIM", "devices=0")];
        let ran = Running::start(&args, &environment).finish();
        assert_eq!((ran.code(), ran.out.as_str()), (2, ""), "{}", ran.err);
        for part in ["xgmi is not available, because", "finds no device", "use --transport tcp"] {
            assert!(ran.err.contains(part), "no {part:?} in {}", ran.err);
        }
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
}

#[test]
fn a_machine_without_a_runtime_is_told_what_was_looked_for() {
    let args = [&["replay", "--requests", "1"], SMALL.as_slice(), &XGMI].concat();
    let ran = Running::start(&args, &[("MORI_HIP_LIBRARY", "no/such/library.so")]).finish();
    if ran.code() == 0 {
        println!("skipped: this machine has a HIP runtime and a device");
        return;
    }
    assert_eq!((ran.code(), ran.out.as_str(), ran.err.lines().count()), (2, "", 1), "{}", ran.err);
    assert!(ran.err.contains("the transport xgmi is not available, because"), "{}", ran.err);
    let looked_for = ["no/such/library.so", "libamdhip64.so.7", "MORI_HIP_LIBRARY"];
    let no_library = looked_for.iter().all(|name| ran.err.contains(name));
    assert!(no_library || ran.err.contains("finds no device"), "{}", ran.err);
}

#[test]
fn what_does_not_fit_xgmi_is_a_wrong_command_line() {
    for (machine, args, says) in [
        ("devices=2", &["--device", "2"] as &[&str], "there is no device 2"),
        ("devices=2 memory=1000000", &["--pool-blocks", "1"], "raise --scale"),
    ] {
        let ran = replay(machine, args);
        assert_eq!((ran.code(), ran.out.as_str()), (2, ""), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
    }
    let environment = [("MORI_HIP_LIBRARY", &*library())];
    let args = [&["serve", "--data-listen", "127.0.0.1:0"], SMALL.as_slice(), &XGMI].concat();
    let ran = Running::start(&args, &environment).finish();
    assert_eq!(ran.code(), 2, "{}", ran.err);
    assert!(ran.err.contains("--data-listen is of no use"), "{}", ran.err);
}

#[test]
fn devices_that_do_not_reach_each_other_have_no_route() {
    let ran = replay("devices=2 peers=none", &["--requests", "1", "--pool-blocks", "4"]);
    assert_eq!(ran.code(), 7, "{}", ran.err);
    assert!(ran.err.contains("there is no peer access between them"), "{}", ran.err);
}
