//! `mori bench` as a user runs it: every option, with small sizes and few transfers.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use std::path::Path;

use common::{Ran, Running, SMALL, Serving, children, file, run, state, until};
use mori_hip_sim::client::Simulation;
use rustix::process::Signal;
use serde_json::Value;

/// Few transfers of little memory, once.
const FEW: [&str; 8] = ["--iterations", "20", "--warm-up", "0", "--repeat", "1", "--total", "1MiB"];
/// Two rows for each direction.
const ROWS: [&str; 4] = ["--sizes", "8,4KiB", "--batches", "1"];

fn bench(args: &[&str]) -> Ran {
    run(&[&["bench"], FEW.as_slice(), args].concat())
}

/// The rows of a good run.
fn rows(ran: &Ran) -> Vec<Value> {
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{}", ran.out);
    let json = ran.json();
    assert_eq!(
        (&json["outcome"], &json["exit_status"], &json["reason"]),
        (&"ok".into(), &0.into(), &"".into())
    );
    json["rows"].as_array().expect("rows").clone()
}

fn numbers(rows: &[Value], field: &str) -> Vec<u64> {
    rows.iter().map(|row| row[field].as_u64().unwrap_or_else(|| panic!("{field} in {row}"))).collect()
}

#[test]
fn sizes_and_batches_are_lists_and_ranges_and_the_total_bounds_them() {
    let ran = bench(&["--sizes", "8..512:8,64KiB", "--batches", "1,32", "--op", "read", "--json"]);
    let rows = rows(&ran);
    assert_eq!(numbers(&rows, "size"), [8, 64, 512, 65_536, 8, 64, 512]);
    assert_eq!(numbers(&rows, "batch"), [1, 1, 1, 1, 32, 32, 32]);
    assert_eq!(ran.json()["rows_left_out"], 1, "32 pieces of 64 KiB are more than a mebibyte");
    assert!(rows.iter().all(|row| row["op"] == "read" && row["layout"] == "scattered"));
    assert!(numbers(&rows, "transfers").iter().all(|count| *count == 20));
    for row in &rows {
        for pointer in [
            "/gb_per_s/max",
            "/gb_per_s/avg",
            "/latency_us/min",
            "/latency_us/avg",
            "/latency_us/p50",
            "/latency_us/p99",
            "/repetitions/0/gb_per_s",
            "/repetitions/0/p50_us",
        ] {
            let value = row.pointer(pointer).and_then(Value::as_f64);
            assert!(value.is_some_and(|value| value > 0.0), "{pointer} in {row}");
        }
        assert!(row["cpu_seconds"]["far"].is_number() && row["raw"].is_null(), "{row}");
    }
}

#[test]
fn directions_and_layouts_are_rows_of_their_own() {
    let args = ["--sizes", "512", "--batches", "1,16", "--layout", "both", "--op", "both", "--json"];
    let rows = rows(&bench(&args));
    let of = |row: &Value| {
        let text = |field: &str| row[field].as_str().expect("text").to_owned();
        (text("op"), text("layout"), row["batch"].as_u64().expect("a number"))
    };
    let scattered = |op: &str, batch| (op.to_owned(), "scattered".to_owned(), batch);
    let contiguous = |op: &str| (op.to_owned(), "contiguous".to_owned(), 16);
    let found: Vec<_> = rows.iter().map(of).collect();
    let mut wanted =
        vec![scattered("read", 1), scattered("read", 16), scattered("write", 1), scattered("write", 16)];
    wanted.extend([contiguous("read"), contiguous("write")]);
    assert_eq!(found, wanted);
}

#[test]
fn every_byte_is_verified_in_both_directions_and_layouts() {
    let args = ["--sizes", "8,5000,64KiB", "--batches", "1,16", "--layout", "both", "--verify", "--json"];
    let ran = bench(&args);
    assert_eq!(rows(&ran).len(), 2 * (3 + 3 + 3));
    assert_eq!(ran.json()["setup"]["verified"], true);
}

#[test]
fn several_workers_keep_several_transfers_in_flight() {
    let args =
        ["--depth", "4", "--workers", "3", "--connections", "3", "--threads", "1", "--verify", "--json"];
    let ran = bench(&[ROWS.as_slice(), &args].concat());
    assert_eq!(numbers(&rows(&ran), "transfers"), [20; 4]);
    let setup = &ran.json()["setup"];
    for (field, value) in [("depth", 4), ("workers", 3), ("connections", 3), ("threads", 1)] {
        assert_eq!(setup[field], value, "{field}");
    }
}

#[test]
fn repetitions_have_fresh_processes_and_are_summed_up() {
    let args = ["bench", "--time", "0.02", "--warm-up", "0.01", "--repeat", "3", "--total", "1MiB", "--json"];
    let ran = run(&[args.as_slice(), &ROWS].concat());
    for row in rows(&ran) {
        assert_eq!(row["repetitions"].as_array().map(Vec::len), Some(3));
        assert!(row["transfers"].as_u64() >= Some(3), "{row}");
    }
    assert_eq!(ran.json()["setup"]["seconds"], 0.02);
}

#[test]
fn transfers_go_through_the_engine_when_no_session_is_wanted() {
    let ran = bench(&[ROWS.as_slice(), &["--no-session", "--verify", "--timeout", "20", "--json"]].concat());
    assert_eq!(rows(&ran).len(), 4);
    assert_eq!(ran.json()["setup"]["sessions"], false);
}

#[test]
fn a_quick_sweep_has_few_rows_once() {
    let ran = run(&["bench", "--quick", "--iterations", "2", "--json"]);
    let rows = rows(&ran);
    assert_eq!(numbers(&rows, "size"), [4096, 65_536, 1_048_576].repeat(4));
    assert_eq!(ran.json()["setup"]["repeat"], 1);
}

#[test]
fn a_table_for_people_and_files_for_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (csv, svg) = (path("rows.csv"), path("rows.svg"));
    let ran = bench(&[ROWS.as_slice(), &["--baseline", "--csv", &csv, "--plot", &svg]].concat());
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "no progress bar in a pipe");
    for name in
        ["MsgSize", "BatchSize", "TotalSize", "Max BW", "Avg BW", "Min Lat", "Avg Lat", "p99", "Of raw"]
    {
        assert!(ran.out.contains(name), "no {name} in\n{}", ran.out);
    }
    let csv = std::fs::read_to_string(csv).expect("written");
    assert_eq!(csv.lines().count(), 5, "{csv}");
    assert!(csv.starts_with("op,layout,msg_size,batch_size,total_size,"), "{csv}");
    let svg = std::fs::read_to_string(svg).expect("written");
    assert!(svg.contains("read, raw sockets") && svg.trim_end().ends_with("</svg>"));
    // What cannot be written is told before the sweep.
    for option in ["--csv", "--plot"] {
        let ran = bench(&[option, "/no/such/folder/file"]);
        assert_eq!((ran.code(), ran.out.as_str()), (2, ""));
        assert!(ran.err.contains("cannot write /no/such/folder/file"), "{}", ran.err);
    }
}

#[test]
fn the_baseline_answers_small_pieces_and_streams_the_others() {
    let ran = bench(&["--sizes", "4KiB,128KiB", "--batches", "1,8", "--baseline", "--json"]);
    for row in rows(&ran) {
        let raw = &row["raw"];
        let single = row["batch"] == 1 && row["size"] == 4096;
        assert_eq!(raw["shape"], if single { "round_trip" } else { "stream" }, "{row}");
        assert_eq!(raw["latency_us"].is_object(), single, "{row}");
        for pointer in ["/gb_per_s/avg", "/ratio", "/cpu_seconds/per_gb"] {
            assert!(raw.pointer(pointer).and_then(Value::as_f64) > Some(0.0), "{pointer} in {row}");
        }
    }
    assert_eq!(ran.json()["setup"]["baseline"], "sockets");
}

#[test]
fn a_target_is_measured_with_its_secret_and_lives_on() {
    let secret = file("open sesame\n");
    let secret = ["--secret-file", secret.path().to_str().expect("text")];
    let serve = ["--scratch", "1MiB", "--raw-listen", "127.0.0.1:0", "--pool-blocks", "1"];
    let server = Serving::start(&[serve.as_slice(), &secret].concat());
    for _ in 0..2 {
        let args = ["--target", &server.address, "--baseline", "--verify", "--peer-timeout", "20", "--json"];
        let ran = bench(&[ROWS.as_slice(), &args, &secret].concat());
        assert_eq!(rows(&ran).len(), 4);
        let peer = ran.json()["setup"]["peer"].as_str().expect("text").to_owned();
        assert_eq!(peer, format!("{} (process {})", server.address, server.running.pid()));
    }
    let ran = bench(&[ROWS.as_slice(), &["--target", &server.address]].concat());
    assert_eq!(ran.code(), 7, "without the secret: {}", ran.err);
}

#[test]
fn a_target_without_what_is_needed_is_told_what_to_do() {
    let without = Serving::start(&["--pool-blocks", "1"]);
    let small = Serving::start(&["--pool-blocks", "1", "--scratch", "64KiB"]);
    for (target, further, says) in [
        (&without.address, &[] as &[&str], "start it with --scratch 1048576"),
        (&small.address, &[], "give --total 65536 here"),
        (&small.address, &["--total", "64KiB", "--baseline"], "--raw-listen"),
    ] {
        let mut args = vec!["bench", "--iterations", "1", "--target", target];
        args.extend(if further.is_empty() { &["--total", "1MiB"] } else { further });
        let ran = run(&args);
        assert_eq!((ran.code(), ran.out.as_str()), (7, ""), "{}", ran.err);
        assert!(ran.err.contains(says) && ran.err.lines().count() == 1, "{}", ran.err);
    }
    let ran = bench(&["--target", "127.0.0.1:1"]);
    assert_eq!(ran.code(), 7, "{}", ran.err);
}

#[test]
fn what_is_wrong_is_told_on_one_line_with_status_2() {
    for (args, says) in [
        (&["--sizes", "0"] as &[&str], "sizes are 1 to 1GiB"),
        (&["--sizes", "8..4"], "smaller"),
        (&["--batches", "40000"], "1 to 32768"),
        (&["--op", "fly"], "fly"),
        (&["--layout", "heap"], "heap"),
        (&["--depth", "0"], "0"),
        (&["--workers", "65"], "65"),
        (&["--repeat", "0"], "0"),
        (&["--time", "0"], "seconds"),
        (&["--warm-up", "-1"], "-1"),
        (&["--iterations", "5", "--time", "1"], "cannot be used with"),
        (&["--fault", "flood"], "flood"),
        (&["--fault", "stop", "--target", "a:1"], "cannot be used with"),
        (&["--fault", "stop", "--plot", "x.svg"], "cannot be used with"),
        (&["--total", "64", "--sizes", "65"], "raise --total"),
        (&["--secret-file", "no/such/file"], "cannot read the secret"),
        (&["--transport", "pigeon"], "the transports are"),
        (&["--transport", "xgmi", "--baseline"], "no --baseline for xgmi"),
        (&["--quick", "compare", "a", "b"], "cannot be used with"),
        (&["compare", "a"], "AFTER"),
        (&["compare", "a", "b", "--threshold", "x"], "percent"),
        (&["compare", "no/such/a", "no/such/b"], "cannot read no/such/a"),
        (&["compare", "/dev/null", "/dev/null"], "no result of mori bench --json"),
    ] {
        let ran = run(&[&["bench"], args].concat());
        assert_eq!((ran.code(), ran.out.as_str()), (2, ""), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
        assert!(ran.err.starts_with("mori: ") && ran.err.lines().count() == 1, "{args:?}: {}", ran.err);
    }
    let ran = run(&["serve", "--raw-listen", "127.0.0.1:0"]);
    assert_eq!(ran.code(), 2, "raw sockets need scratch memory: {}", ran.err);
}

#[test]
fn two_results_are_compared() {
    let ran = bench(&[ROWS.as_slice(), &["--json"]].concat());
    rows(&ran);
    let slower = {
        let mut json = ran.json();
        json["rows"][0]["gb_per_s"]["avg"] =
            (json["rows"][0]["gb_per_s"]["avg"].as_f64().expect("known") / 2.0).into();
        json.to_string()
    };
    let (before, after) = (file(&ran.out), file(&slower));
    let [before, after] = [&before, &after].map(|file| file.path().to_str().expect("text"));
    let same = run(&["bench", "compare", before, before, "--threshold", "0"]);
    assert_eq!(same.code(), 0, "{}", same.err);
    assert!(same.out.contains("0 of 4 rows got worse"), "{}", same.out);
    let worse = run(&["bench", "compare", before, after]);
    assert_eq!(worse.code(), 9, "{}", worse.err);
    assert!(worse.out.contains("bandwidth") && worse.out.contains("1 of 4 rows got worse"), "{}", worse.out);
    let json = run(&["bench", "compare", before, after, "--threshold", "60", "--json"]);
    assert_eq!(json.code(), 9, "half is worse by 100 %: {}", json.err);
    assert_eq!(json.json()["worse"], 1);
    let tolerant = run(&["bench", "compare", before, after, "--threshold", "101", "--json"]);
    assert_eq!((tolerant.code(), &tolerant.json()["worse"]), (0, &0.into()));
}

#[test]
fn an_interrupt_ends_a_sweep_with_what_was_measured_and_without_the_child() {
    let args = ["bench", "--op", "read", "--sizes", "8,16", "--batches", "1", "--total", "1MiB"];
    let further = ["--time", "0.05", "--warm-up", "0", "--repeat", "1000", "--json"];
    let running = Running::start(&[args.as_slice(), &further].concat(), &[]);
    let pid = running.pid();
    until("its child runs", || !children(pid).is_empty());
    let before = children(pid);
    // The second repetition has another child, so the first one is over then.
    until("the second child runs", || children(pid).iter().any(|child| !before.contains(child)));
    let child = children(pid);
    running.signal(Signal::INT);
    let ran = running.finish();
    assert_eq!(ran.code(), 130, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["outcome"], json["rows"].as_array().map(Vec::len)), (&"interrupted".into(), Some(2)));
    assert!(ran.err.contains("interrupted before the end"), "{}", ran.err);
    assert!(child.iter().all(|pid| matches!(state(*pid), None | Some('Z'))));
}

#[test]
fn a_target_that_dies_ends_the_sweep_with_a_status_of_its_own() {
    let server = Serving::start(&["--scratch", "1MiB", "--pool-blocks", "1"]);
    let args = ["bench", "--op", "read", "--sizes", "8", "--batches", "1", "--total", "1MiB", "--time", "60"];
    let log = [("MORI_LOG", "mori_cli=info,error")];
    let mut running = Running::start(&[args.as_slice(), &["--target", &server.address]].concat(), &log);
    running.hear("connected");
    server.kill();
    let ran = running.finish();
    assert_eq!((ran.code(), ran.out.as_str()), (5, ""), "no row was over: {}", ran.err);
}

/// The reports of a run with faults.
fn faults(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code(), 0, "{}\n{}", ran.err, ran.out);
    ran.json()["faults"].as_array().expect("faults").clone()
}

#[test]
fn broken_transfers_leave_no_late_byte() {
    let args =
        ["bench", "--fault", "stop,kill", "--fault", "cut,cancel", "--total", "64MiB", "--peer-timeout", "1"];
    let ran = run(&[args.as_slice(), &["--json"]].concat());
    assert_eq!(ran.err, "", "what is meant to happen is no warning: {}", ran.out);
    let faults = faults(&ran);
    assert_eq!(faults.len(), 10, "stop is ended by the deadline and by a cancel, in both directions");
    for fault in &faults {
        let of_dead_memory = fault["fault"] == "kill" && fault["op"] == "write";
        assert_eq!(fault["late_bytes"], if of_dead_memory { Value::Null } else { 0.into() }, "{fault}");
        assert_eq!(fault["works_after"], true, "{fault}");
        assert_ne!(fault["status"], "success", "{fault}");
        assert!(fault["seconds_to_end"].as_f64() < Some(60.0), "{fault}");
        if fault["op"] == "read" {
            let arrived = fault["arrived_bytes"].as_u64().expect("counted");
            assert!(arrived > 0 && arrived < 64 << 20, "{fault}");
        }
    }
}

#[test]
fn one_fault_in_one_direction_is_a_table_of_one_row() {
    let ran = run(&["bench", "--fault", "cancel", "--op", "read", "--total", "64MiB"]);
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""));
    for text in ["Late bytes", "cancelled", "Works"] {
        assert!(ran.out.contains(text), "no {text} in\n{}", ran.out);
    }
}

#[test]
fn copies_between_processes_are_measured_beside_bare_ones() {
    let args = ["--transport", "shm", "--sizes", "4KiB,128KiB", "--batches", "1,8", "--threads", "3"];
    let ran = bench(&[args.as_slice(), &["--baseline", "--verify", "--json"]].concat());
    for row in rows(&ran) {
        let raw = &row["raw"];
        let single = row["batch"] == 1 && row["size"] == 4096;
        assert_eq!(raw["shape"], if single { "round_trip" } else { "stream" }, "{row}");
        assert!(raw["ratio"].as_f64() > Some(0.0), "{row}");
    }
    let setup = &ran.json()["setup"];
    assert_eq!((&setup["transport"], &setup["baseline"]), (&"shm".into(), &"copies".into()));
}

#[test]
fn copies_between_processes_leave_no_late_byte() {
    let args = ["--transport", "shm", "--fault", "stop,cut", "--op", "read", "--total", "64MiB", "--json"];
    let ran = run(&[&["bench"], args.as_slice()].concat());
    assert_eq!(ran.err, "", "{}", ran.out);
    for fault in faults(&ran) {
        let applies = fault["fault"] != "cut";
        assert_eq!(fault["late_bytes"], if applies { 0.into() } else { Value::Null }, "{fault}");
        assert_eq!(fault["works_after"], true, "{fault}");
    }
}

/// Runs a measurement on the simulated HIP runtime.
fn over_xgmi(args: &[&str]) -> Ran {
    let library = Simulation::find().expect("the simulation is built with the tests");
    let environment = [("MORI_HIP_LIBRARY", library.to_str().expect("text")), ("MORI_HIP_SIM", "devices=4")];
    Running::start(&[&["bench", "--transport", "xgmi"], args].concat(), &environment).finish()
}

#[test]
fn device_memory_is_measured_and_verified() {
    let args = ["--device", "1", "--peer-device", "2", "--verify", "--json"];
    let ran = over_xgmi(&[FEW.as_slice(), &ROWS, &args].concat());
    assert_eq!(rows(&ran).len(), 4);
    assert_eq!(ran.json()["setup"]["memory"], "simulated device 1 (51a0:02:00.0), no GPU");
}

#[test]
fn faults_that_a_transport_does_not_have_are_told() {
    let ran = over_xgmi(&["--fault", "cut", "--total", "1MiB", "--json"]);
    for fault in faults(&ran) {
        assert_eq!(
            (&fault["status"], &fault["late_bytes"]),
            (&"does not apply".into(), &Value::Null),
            "{fault}"
        );
        assert!(fault["note"].as_str().expect("text").contains("no connection"), "{fault}");
    }
}

#[test]
fn a_serving_process_with_scratch_memory_still_serves_replays() {
    let server = Serving::start(&["--scratch", "1MiB", "--pool-blocks", "50"]);
    let ran =
        run(&[&["replay", "--requests", "5", "--json", "--target", &server.address], &SMALL[..0]].concat());
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""));
    assert!(Path::new("/proc").join(server.running.pid().to_string()).exists());
}
