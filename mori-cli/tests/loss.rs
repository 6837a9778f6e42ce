//! Servers that die, stop, come back or lie, and replays that are interrupted.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use common::{GUARD, Running, Serving, children, signal_pid, state, trace, until};
use rustix::process::Signal;

/// Options that keep timeouts out of the picture: what is found is found by other means.
const PATIENT: [&str; 4] = ["--peer-timeout", "600", "--timeout", "600"];

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("text")
}

/// A replay of a target that reads block after block until something happens.
fn endless(target: &str, further: &[&str]) -> Running {
    let args = ["--target", target, "--requests", "100000000", "--cache-blocks", "300", "--json"];
    // The target decides the scale, so the small one of the other tests is not given.
    let args = [&["replay"], args.as_slice(), further].concat();
    let mut replay = Running::start(&args, &[("MORI_LOG", "mori_cli=info,error")]);
    replay.hear("connected");
    replay
}

#[test]
fn a_killed_server_is_named_with_the_requests_and_blocks_that_failed() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let address = server.address.clone();
    let replay = endless(&address, &PATIENT);
    server.kill();
    let ran = replay.finish();
    assert_eq!(ran.code(), 5, "{}", ran.err);
    let json = ran.json();
    assert_eq!(json["outcome"], "peer_lost");
    assert_eq!((&json["peers_lost"], &json["reconnects"]), (&1.into(), &0.into()));
    let failed = &json["failed_requests"][0];
    assert_eq!(failed["failures"][0]["kind"], "peer_lost");
    assert!(!failed["failures"][0]["blocks"].as_array().expect("a list").is_empty());
    let line = ran.err.lines().find(|line| line.contains("lost the peer")).expect("said at once");
    assert!(line.contains(&address), "{line}");
    assert!(line.contains(&format!("in request {} with the blocks ", failed["request"])), "{line}");
}

#[test]
fn told_to_keep_going_a_replay_survives_a_restart_of_its_target() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let address = server.address.clone();
    // By the trace's clock this takes two seconds and a half at least, so the server dies in the middle.
    let trace = trace((0..500).map(|at| at % 97), 5);
    let args =
        ["replay", "--trace", path(&trace), "--speed", "1", "--target", &address, "--keep-going", "--json"];
    let args = [args.as_slice(), &["--cache-blocks", "10"], &PATIENT].concat();
    let mut replay = Running::start(&args, &[("MORI_LOG", "mori_cli=info,error")]);
    replay.hear("connected");
    server.kill();
    replay.hear("lost the peer");
    let again = Serving::start(&["--pool-blocks", "33", "--listen", &address]);
    replay.hear("reached the peer");
    let ran = replay.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["requests"]["done"], &json["blocks"]["failed"]), (&500.into(), &0.into()));
    assert_eq!((&json["peers_lost"], &json["reconnects"]), (&1.into(), &1.into()));
    assert_eq!(json["setup"]["pool_blocks"], 33);
    drop(again);
}

#[test]
fn told_to_keep_going_a_replay_starts_its_own_server_again() {
    let trace = trace(0..400, 5);
    let args = ["--trace", path(&trace), "--speed", "1", "--keep-going", "--pool-blocks", "64", "--json"];
    let mut replay = Running::replay(&args);
    replay.hear("connected");
    let server = children(replay.pid());
    assert_eq!(server.len(), 1);
    signal_pid(server[0], Signal::KILL);
    replay.hear("reached the peer");
    let ran = replay.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
    assert_eq!(ran.json()["requests"]["done"], 400);
    until("the killed server is gone", || state(server[0]).is_none());
}

#[test]
fn a_server_that_comes_back_with_other_blocks_is_not_used() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let address = server.address.clone();
    let mut replay = endless(&address, &["--keep-going"]);
    server.kill();
    replay.hear("lost the peer");
    let _other = Serving::start(&["--pool-blocks", "64", "--model", "deepseek-v3", "--listen", &address]);
    let ran = replay.finish();
    assert_eq!(ran.code(), 7, "{}", ran.err);
    assert!(ran.err.contains("it now serves blocks of 61 layers"), "{}", ran.err);
}

#[test]
fn a_server_that_does_not_come_back_ends_the_replay() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let replay = endless(&server.address.clone(), &["--keep-going", "--reconnect-timeout", "0.3"]);
    server.kill();
    let ran = replay.finish();
    assert_eq!(ran.code(), 5, "{}", ran.err);
    assert!(ran.err.contains("not there again within 300ms"), "{}", ran.err);
}

#[test]
fn a_stopped_server_that_goes_on_fails_nothing() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let trace = trace(0..300, 5);
    let args = ["replay", "--trace", path(&trace), "--speed", "1", "--target", &server.address, "--json"];
    let mut replay =
        Running::start(&[&args, PATIENT.as_slice()].concat(), &[("MORI_LOG", "mori_cli=info,error")]);
    replay.hear("connected");
    for _ in 0..20 {
        server.running.signal(Signal::STOP);
        until("it stops", || state(server.running.pid()) == Some('T'));
        server.running.signal(Signal::CONT);
    }
    let ran = replay.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
    assert_eq!(ran.json()["requests"]["done"], 300);
}

#[test]
fn a_server_stopped_for_good_is_lost_at_the_peer_timeout() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    // Copies between processes go on while the server is stopped.
    let args = ["--peer-timeout", "0.3", "--timeout", "600", "--transport", "tcp"];
    let replay = endless(&server.address, &args);
    server.running.signal(Signal::STOP);
    let ran = replay.finish();
    assert_eq!(ran.code(), 5, "{}", ran.err);
    assert!(ran.err.contains("silent"), "{}", ran.err);
}

#[test]
fn a_stopped_server_delays_no_copies_between_processes() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    // The first request comes a second after the connection, so all of them find the server stopped.
    let text = r#"{"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [5]}"#;
    let trace = common::file(text);
    let args = ["replay", "--trace", path(&trace), "--speed", "1", "--target", &server.address, "--json"];
    let mut replay = Running::start(&args, &[("MORI_LOG", "mori_cli=info,error")]);
    replay.hear("connected");
    server.running.signal(Signal::STOP);
    until("it stops", || state(server.running.pid()) == Some('T'));
    let ran = replay.finish();
    assert_eq!(ran.code(), 0, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["setup"]["transport"], &json["requests"]["done"]), (&"shm".into(), &1.into()));
}

#[test]
fn requests_to_a_stopped_server_are_late_at_their_bound_and_the_replay_goes_on() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    // The first request comes a second after the connection, so all of them find the server stopped.
    let text = r#"{"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [ID]}"#;
    let text: Vec<String> = ["5", "6"].map(|id| text.replace("ID", id)).into();
    let trace = common::file(&text.join("\n"));
    let args = ["replay", "--trace", path(&trace), "--speed", "1", "--target", &server.address, "--json"];
    // Copies between processes go on while the server is stopped.
    let tcp = ["--timeout", "0.2", "--peer-timeout", "600", "--transport", "tcp"];
    let args = [args.as_slice(), &tcp].concat();
    let mut replay = Running::start(&args, &[("MORI_LOG", "mori_cli=info,error")]);
    replay.hear("connected");
    server.running.signal(Signal::STOP);
    let ran = replay.finish();
    assert_eq!(ran.code(), 6, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["requests"]["failed"], &json["failures"]["late"]), (&2.into(), &2.into()));
    assert_eq!(json["failed_requests"][1]["failures"][0]["blocks"][0], 6);
    assert_eq!(json["cpu_seconds"]["serve"], serde_json::Value::Null, "it does not answer");
}

#[test]
fn an_interrupt_prints_what_was_done_and_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut replay = Running::replay(&["--requests", "100000000", "--pool-blocks", "64", "--json"]);
        replay.hear("connected");
        let server = children(replay.pid());
        assert_eq!(server.len(), 1);
        replay.signal(signal);
        let ran = replay.finish();
        assert_eq!(ran.code(), 130, "{}", ran.err);
        assert_eq!(ran.json()["outcome"], "interrupted");
        assert_eq!(state(server[0]), None, "the server was waited for");
    }
}

#[test]
fn an_interrupt_reaches_a_replay_that_waits_for_its_peer() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let mut replay = endless(&server.address.clone(), &["--keep-going", "--reconnect-timeout", "600"]);
    server.kill();
    replay.hear("lost the peer");
    replay.signal(Signal::INT);
    let ran = replay.finish();
    assert_eq!(ran.code(), 130, "{}", ran.err);
}

#[test]
fn an_interrupt_reaches_a_replay_that_waits_for_blocks_or_for_the_clock() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let replay = endless(&server.address, &PATIENT);
    server.running.signal(Signal::STOP);
    until("it stops", || state(server.running.pid()) == Some('T'));
    replay.signal(Signal::INT);
    assert_eq!(replay.finish().code(), 130);
    server.running.signal(Signal::CONT);

    let day = GUARD.as_millis() as u64 * 1000;
    let trace = trace([1, 2, 3], day);
    let mut replay =
        Running::replay(&["--trace", path(&trace), "--speed", "1", "--pool-blocks", "64", "--json"]);
    replay.hear("connected");
    replay.signal(Signal::INT);
    assert_eq!(replay.finish().code(), 130);
}

#[test]
fn the_server_of_a_killed_replay_ends_with_it() {
    let mut replay = Running::replay(&["--requests", "100000000", "--pool-blocks", "64"]);
    replay.hear("connected");
    let server = children(replay.pid());
    assert_eq!(server.len(), 1);
    drop(replay);
    until("the server ends", || state(server[0]).is_none_or(|state| state == 'Z'));
}

#[test]
fn a_server_ends_well_on_a_signal_and_with_its_input() {
    for signal in [Signal::INT, Signal::TERM] {
        let server = Serving::start(&["--pool-blocks", "4"]);
        server.running.signal(signal);
        assert_eq!(server.running.finish().code(), 0);
    }
    // Standard input of the tests' children is at its end from the start.
    let ran = common::run(&["serve", "--scale", "8192", "--pool-blocks", "4", "--exit-with-parent"]);
    assert_eq!(ran.code(), 0, "{}", ran.err);
}
