//! The program as a user runs it: good runs, and every way to be told off.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use common::{Ran, Serving, file, replay, run, trace};
use serde_json::Value;

const CACHE: [&str; 2] = ["--cache-blocks", "300"];

fn good(ran: &Ran) -> Value {
    assert_eq!(ran.code(), 0, "{}", ran.err);
    assert_eq!(ran.err, "", "no progress bar in a pipe");
    ran.json()
}

#[test]
fn a_generated_trace_is_replayed_with_every_byte_verified() {
    let ran = replay(&["--requests", "40", "--pool-blocks", "100", "--cache-blocks", "300", "--json"]);
    let json = good(&ran);
    assert_eq!(json["outcome"], "ok");
    assert_eq!(json["requests"]["done"], 40);
    assert_eq!(json["failures"]["wrong_bytes"], 0);
    assert_eq!(json["setup"]["block_pieces"], 32);
    assert_eq!(json["setup"]["block_bytes"], 8192);
    let number =
        |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer}"));
    assert_eq!(number("/bytes"), number("/blocks/fetched") * 8192);
    assert_eq!(number("/blocks/referenced"), number("/blocks/fetched") + number("/blocks/reused"));
    assert!(number("/blocks/reused") > 0);
    assert!(json["cpu_seconds"]["serve"].as_f64().expect("known") > 0.0);
}

/// On one host the blocks are copied from one process to the other, unless told otherwise; the report says so.
#[test]
fn the_transport_is_chosen_or_named() {
    for (transport, taken) in [("auto", "shm"), ("shm", "shm"), ("tcp", "tcp")] {
        let ran = replay(&["--requests", "10", "--pool-blocks", "50", "--json", "--transport", transport]);
        let json = good(&ran);
        assert_eq!(json["setup"]["transport"], taken);
        assert_eq!(json["setup"]["detour"], Value::Null);
        assert_eq!(json["failures"]["wrong_bytes"], 0);
    }
    let server = Serving::start(&["--pool-blocks", "50", "--transport", "tcp"]);
    let target = ["--target", server.address.as_str()];
    let ran = run(&[["replay", "--requests", "10"].as_slice(), &target, &["--json"]].concat());
    let json = good(&ran);
    assert_eq!(json["setup"]["transport"], "tcp");
    assert!(json["setup"]["detour"].as_str().expect("a reason").contains("shm"), "{json}");
    let ran = run(&[["replay", "--requests", "10"].as_slice(), &target].concat());
    assert!(ran.out.contains("over tcp") && ran.out.contains("not over shm"), "{}", ran.out);
    let ran = run(&[["replay", "--transport", "shm"].as_slice(), &target].concat());
    assert_ne!(ran.code(), 0, "{}", ran.out);
    assert!(ran.err.contains("shm"), "{}", ran.err);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let blocks = |seed: &str| {
        let ran = replay(&["--requests", "20", "--seed", seed, "--pool-blocks", "50", "--json"]);
        good(&ran)["blocks"].clone()
    };
    assert_eq!(blocks("1"), blocks("1"));
    assert_ne!(blocks("1"), blocks("2"));
}

#[test]
fn without_json_a_table_is_printed() {
    let ran = replay(&["--requests", "5", "--pool-blocks", "50"]);
    assert_eq!(ran.code(), 0, "{}", ran.err);
    for text in [
        "requests done",
        "blocks reused",
        "GB/s",
        "time per request, p99",
        "CPU, serve",
        "everything arrived and was right",
    ] {
        assert!(ran.out.contains(text), "no {text:?} in\n{}", ran.out);
    }
}

#[test]
fn every_model_and_cut_is_moved_right() {
    for model in ["llama-3-8b", "llama-3-70b", "deepseek-v3", "qwen-2.5-7b"] {
        for pieces in ["layer", "tensor"] {
            let args =
                ["--model", model, "--pieces", pieces, "--requests", "5", "--pool-blocks", "50", "--json"];
            // The latent cache is too small for the scale of the other tests.
            let ran = run(&[&["replay", "--scale", "3000"], args.as_slice()].concat());
            assert_eq!(good(&ran)["setup"]["model"], model);
        }
    }
}

#[test]
fn a_cache_smaller_than_a_request_is_served_in_waves() {
    let ran = replay(&["--requests", "20", "--pool-blocks", "500", "--cache-blocks", "3", "--json"]);
    let json = good(&ran);
    assert_eq!(json["requests"]["done"], 20);
    assert!(json["blocks"]["evicted"].as_u64().expect("a number") > 0);
}

#[test]
fn a_cache_can_be_given_in_bytes() {
    let ran = replay(&["--requests", "5", "--pool-blocks", "50", "--cache", "1MiB", "--json"]);
    assert_eq!(good(&ran)["setup"]["cache_blocks"], 128);
    let ran = replay(&["--requests", "5", "--pool-blocks", "50", "--cache", "1KiB"]);
    assert_eq!(ran.code(), 2, "{}", ran.err);
}

#[test]
fn a_trace_file_is_replayed_up_to_the_limit() {
    let trace = trace([0, 1, 2, 0, 1, 3], 0);
    let path = trace.path().to_str().expect("text");
    let json = good(&replay(&["--trace", path, "--pool-blocks", "10", "--json"]));
    assert_eq!((&json["requests"]["done"], &json["blocks"]["reused"]), (&6.into(), &2.into()));
    let json = good(&replay(&["--trace", path, "--requests", "2", "--pool-blocks", "10", "--json"]));
    assert_eq!(json["requests"]["done"], 2);
    assert_eq!(json["setup"]["trace"], path);
}

#[test]
fn bad_traces_end_with_their_own_status_and_name_file_line_and_fault() {
    let good_line = r#"{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}"#;
    for (text, says) in [
        (String::new(), ":1: the trace is empty"),
        ("{}\n".to_owned(), ":1: the field `timestamp` is missing"),
        (format!("{good_line}\n\n"), ":2: the line is blank"),
        (format!("{good_line}\n{}", &good_line[..40]), ":2: the line is cut off"),
        (format!("{good_line}\n{}\n", good_line.replace("[0]", "[0, 1]")), ":2: `hash_ids` has 2 blocks"),
    ] {
        let trace = file(&text);
        let path = trace.path().to_str().expect("text");
        let ran = replay(&["--trace", path, "--pool-blocks", "10", "--json"]);
        assert_eq!(ran.code(), 3, "{text:?}: {}", ran.err);
        assert!(ran.err.contains(&format!("{path}{says}")), "{text:?}: {}", ran.err);
        if text.starts_with(good_line) {
            assert_eq!(ran.json()["requests"]["done"], 1, "what was done before is told");
        }
    }
    let ran = replay(&["--trace", "no/such/file.jsonl"]);
    assert_eq!(ran.code(), 3);
    assert!(ran.err.contains("cannot open the trace no/such/file.jsonl"), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1);
}

#[test]
fn a_wrong_command_line_is_told_on_one_line_with_status_2() {
    for args in [
        &["replay", "--fly"] as &[&str],
        &["replay", "--scale", "0"],
        &["replay", "--scale", "99999999"],
        &["replay", "--scale", "1", "--pool-blocks", "4294967295"],
        &["replay", "--transport", "xgmi", "--device", "first"],
        &["replay", "--secret-file", "no/such/secret"],
        &["serve", "--scale", "0"],
        &["serve", "--scale", "1", "--pool-blocks", "4294967295"],
        &[],
    ] {
        let ran = run(args);
        assert_eq!(ran.code(), 2, "{args:?}: {}", ran.err);
        assert_eq!((ran.err.lines().count(), ran.out.as_str()), (1, ""), "{args:?}: {}", ran.err);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"] as &[&str], &["replay", "--help"], &["serve", "-h"], &["--version"]] {
        let ran = run(args);
        assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{args:?}");
        assert!(ran.out.contains("mori"), "{}", ran.out);
    }
}

#[test]
fn a_target_serves_one_replay_after_the_other_and_decides_the_shape() {
    let server = Serving::start(&["--pool-blocks", "64", "--model", "qwen-2.5-7b"]);
    for _ in 0..3 {
        let ran =
            run(&["replay", "--target", &server.address, "--requests", "10", "--json", CACHE[0], CACHE[1]]);
        let json = good(&ran);
        assert_eq!((&json["setup"]["model"], &json["setup"]["scale"]), (&"qwen-2.5-7b".into(), &8192.into()));
        assert_eq!(json["setup"]["pool_blocks"], 64);
    }
    for (option, value) in [("--model", "deepseek-v3"), ("--scale", "4096"), ("--pieces", "tensor")] {
        let ran = run(&["replay", "--target", &server.address, option, value]);
        assert_eq!(ran.code(), 2, "{}", ran.err);
        assert!(ran.err.contains(option) && ran.err.lines().count() == 1, "{}", ran.err);
    }
}

#[test]
fn several_replays_share_a_target() {
    let server = Serving::start(&["--pool-blocks", "64"]);
    let args = ["--target", &server.address, "--requests", "20", "--json", CACHE[0], CACHE[1]];
    let all: Vec<_> =
        (0..4).map(|_| common::Running::start(&[&["replay"], args.as_slice()].concat(), &[])).collect();
    for running in all {
        good(&running.finish());
    }
}

#[test]
fn a_target_that_is_not_there_has_a_status_of_its_own() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    drop(listener);
    let ran = run(&["replay", "--target", &address]);
    assert_eq!(ran.code(), 7, "{}", ran.err);
    assert!(ran.err.contains(&address) && ran.err.lines().count() == 1, "{}", ran.err);
}

#[test]
fn a_port_in_use_has_a_status_of_its_own() {
    let server = Serving::start(&["--pool-blocks", "4"]);
    let ran = run(&["serve", "--pool-blocks", "4", "--scale", "8192", "--listen", &server.address]);
    assert_eq!(ran.code(), 7, "{}", ran.err);
    assert!(ran.err.contains(&server.address) && ran.err.lines().count() == 1, "{}", ran.err);
}

#[test]
fn a_secret_must_be_the_same_on_both_sides() {
    let (right, wrong) = (file("open sesame\n"), file("close sesame\n"));
    let (right, wrong) = (right.path().to_str().expect("text"), wrong.path().to_str().expect("text"));
    let server = Serving::start(&["--pool-blocks", "16", "--secret-file", right]);
    let replay = |secret: &[&str]| {
        run(&[&["replay", "--target", &server.address, "--requests", "3", "--json"], secret].concat())
    };
    good(&replay(&["--secret-file", right]));
    for (secret, says) in
        [(&["--secret-file", wrong] as &[&str], "the secret is not the one"), (&[], "requires a secret")]
    {
        let ran = replay(secret);
        assert_eq!(ran.code(), 7, "{}", ran.err);
        assert!(ran.err.contains(says), "{}", ran.err);
    }
    good(&replay(&["--secret-file", right]));
    // A server of the replay's own gets the same secret.
    let own = run(&[
        "replay",
        "--scale",
        "8192",
        "--requests",
        "3",
        "--pool-blocks",
        "16",
        "--secret-file",
        right,
        "--json",
    ]);
    good(&own);
}

#[test]
fn ipv6_works_for_control_and_data() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    let server = Serving::start(&["--pool-blocks", "16", "--listen", "[::1]:0"]);
    assert!(server.address.starts_with("[::1]:"));
    good(&run(&["replay", "--target", &server.address, "--requests", "3", "--json"]));
}
