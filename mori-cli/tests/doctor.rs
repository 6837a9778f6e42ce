//! `mori doctor`: what it finds on any machine, and with a peer.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use std::net::TcpListener;

use common::{Ran, Running, Serving, file, run};
use mori_hip_sim::client::Simulation;
use rustix::process::Signal;
use serde_json::Value;

fn doctor(args: &[&str], environment: &[(&str, &str)]) -> Ran {
    Running::start(&[&["doctor"], args].concat(), environment).finish()
}

/// The finding of that name in a section of the JSON.
fn finding<'a>(list: &'a Value, section: &str, what: &str) -> &'a Value {
    let list = list.as_array().expect("a list");
    let found = list.iter().find(|finding| finding["section"] == section && finding["what"] == what);
    found.unwrap_or_else(|| panic!("nothing on {what} of {section} in {list:?}"))
}

#[test]
fn every_section_is_told_and_what_is_absent_says_why_and_what_to_do() {
    let nowhere =
        [("MORI_HIP_LIBRARY", "/nowhere/libamdhip64.so"), ("MORI_VERBS_LIBRARY", "/nowhere/libibverbs.so.1")];
    let ran = doctor(&[], &nowhere);
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{}", ran.out);
    for heading in ["host", "shm", "tcp", "rdma", "xgmi"] {
        assert!(ran.out.lines().any(|line| line == heading), "{heading}: {}", ran.out);
    }
    let library = ran.out.lines().find(|line| line.contains("HIP library")).expect("told");
    assert!(
        library.contains("not available, because") && library.contains("/nowhere/libamdhip64.so"),
        "{library}"
    );
    assert!(ran.out.contains("-> on a machine with AMD GPUs, install ROCm's runtime"), "{}", ran.out);
    let library = ran.out.lines().find(|line| line.contains("verbs library")).expect("told");
    assert!(
        library.contains("not available, because") && library.contains("/nowhere/libibverbs.so.1"),
        "{library}"
    );
    assert!(ran.out.contains("-> on a machine with RDMA devices, install rdma-core"), "{}", ran.out);
}

#[test]
fn json_is_one_object_with_a_verdict_for_each_finding() {
    let ran = doctor(&["--json"], &[]);
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""));
    let json = ran.json();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert!(json["peer"].is_null());
    let findings = &json["findings"];
    assert_eq!(finding(findings, "tcp", "transfer to self")["verdict"], "ok");
    assert!(!finding(findings, "host", "memory")["found"].as_str().expect("text").is_empty());
    for one in findings.as_array().expect("a list") {
        if one["verdict"] == "absent" {
            assert_ne!((&one["found"], &one["advice"]), (&"".into(), &"".into()), "{one}");
        }
    }
}

#[test]
fn a_simulation_is_told_as_one() {
    let library = Simulation::find().expect("the simulation is built with the tests");
    let library = library.to_str().expect("text");
    let ran = doctor(&["--json"], &[("MORI_HIP_LIBRARY", library), ("MORI_HIP_SIM", "devices=3 peers=0-1")]);
    let json = ran.json();
    let found =
        |what: &str| finding(&json["findings"], "xgmi", what)["found"].as_str().expect("text").to_owned();
    assert!(found("HIP library").contains("a simulation"));
    assert!(found("device 0").contains("no GPU") && found("device 0").contains("reaches 1, not 2"));
    assert!(found("device 2").contains("does not reach 0, 1"));
}

#[test]
fn devices_of_a_verbs_library_are_told_with_their_ports() {
    let library = mori_verbs_sim::client::Simulation::find().expect("the simulation is built with the tests");
    let ran = doctor(&["--json"], &[("MORI_VERBS_LIBRARY", library.to_str().expect("text"))]);
    assert_eq!(ran.code(), 0);
    let json = ran.json();
    let findings = json["findings"].as_array().expect("a list");
    let of = |prefix: &str| {
        let found = |finding: &&Value| {
            finding["section"] == "rdma"
                && finding["what"].as_str().is_some_and(|what| what.starts_with(prefix))
        };
        findings.iter().filter(found).collect::<Vec<_>>()
    };
    assert!(of("device ").len() >= 2, "{findings:?}");
    for port in of("port ") {
        assert_eq!(port["verdict"], "ok");
        assert!(port["found"].as_str().expect("text").contains("MTU"), "{port}");
    }
    assert_eq!((of("port ").len(), of("GIDs ").len()), (of("device ").len(), of("device ").len()));
}

#[test]
fn a_peer_is_read_from_over_each_transport_that_it_offers() {
    let server = Serving::start(&["--pool-blocks", "200"]);
    let ran = doctor(&["--json", "--peer", &server.address, "--timeout", "60"], &[]);
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{}", ran.out);
    let json = ran.json();
    let peer = &json["peer"];
    assert_eq!((&peer["usable"], &peer["target"]), (&true.into(), &server.address.as_str().into()));
    for transport in ["shm", "tcp"] {
        assert_eq!(finding(&peer["steps"], "peer", transport)["verdict"], "ok", "{peer}");
    }
    let xgmi = finding(&peer["steps"], "peer", "xgmi");
    assert_eq!(xgmi["verdict"], "absent");
    assert!(xgmi["found"].as_str().expect("text").contains("start it with --transport xgmi"), "{xgmi}");
    let reads = peer["reads"].as_array().expect("a list");
    let sizes: Vec<_> = reads.iter().map(|read| read["bytes"].as_u64().expect("a number")).collect();
    assert_eq!(sizes, [8, 64 << 10, 1 << 20].repeat(2));
    assert!(reads.iter().all(|read| read["micros"].as_f64().expect("a number") > 0.0));
    assert!(peer["route"].as_str().expect("text").contains("over shm"), "{peer}");

    let ran = doctor(&["--peer", &server.address], &[]);
    assert_eq!(ran.code(), 0);
    assert!(ran.out.contains("\nroute\n") && ran.out.contains("64 KiB in"), "{}", ran.out);
}

#[test]
fn a_peer_with_devices_is_read_from_over_xgmi() {
    let library = Simulation::find().expect("the simulation is built with the tests");
    let environment = [("MORI_HIP_LIBRARY", library.to_str().expect("text"))];
    let server = Serving::start_in(&["--transport", "xgmi", "--pool-blocks", "200"], &environment);
    let ran = doctor(&["--json", "--peer", &server.address], &environment);
    assert_eq!(ran.code(), 0, "{}", ran.out);
    let json = ran.json();
    let peer = &json["peer"];
    assert_eq!(finding(&peer["steps"], "peer", "xgmi")["verdict"], "ok", "{peer}");
    assert!(peer["route"].as_str().expect("text").contains("over xgmi"), "{peer}");
}

#[test]
fn a_peer_that_is_not_there_is_told_with_the_step_that_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = listener.local_addr().expect("an address").to_string();
    let free = {
        let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
        gone.local_addr().expect("an address").to_string()
    };
    for (target, says) in [
        (free.as_str(), "cannot connect to"),
        (silent.as_str(), "did not answer within 500ms"),
        ("no-such-host.invalid:1", "no-such-host.invalid:1"),
        ("nonsense", "nonsense"),
    ] {
        let ran = doctor(&["--json", "--peer", target, "--timeout", "0.5"], &[]);
        assert_eq!(ran.code(), 7, "{target}: {}", ran.out);
        let json = ran.json();
        let answer = finding(&json["peer"]["steps"], "peer", "answer");
        assert!(answer["found"].as_str().expect("text").contains(says), "{target}: {answer}");
        assert!(answer["advice"].as_str().expect("text").contains("mori serve"), "{answer}");
        assert_eq!(json["peer"]["usable"], false);
    }
}

#[test]
fn a_peer_that_is_stopped_is_told_within_the_bound() {
    let server = Serving::start(&["--pool-blocks", "4"]);
    server.running.signal(Signal::STOP);
    let ran = doctor(&["--peer", &server.address, "--timeout", "0.5"], &[]);
    server.running.signal(Signal::CONT);
    assert_eq!(ran.code(), 7);
    assert!(ran.out.contains("did not answer within 500ms"), "{}", ran.out);
}

#[test]
fn a_secret_is_needed_where_the_peer_has_one() {
    let (right, wrong) = (file("open sesame"), file("open barley"));
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("text").to_owned();
    let server = Serving::start(&["--pool-blocks", "4", "--secret-file", &path(&right)]);
    for (secret, code, says) in [
        (Some(path(&right)), 0, "over shm"),
        (Some(path(&wrong)), 7, "the secret is not the one"),
        (None, 7, "requires a secret"),
    ] {
        let mut args = vec!["--peer", server.address.as_str()];
        if let Some(secret) = &secret {
            args.extend(["--secret-file", secret]);
        }
        let ran = doctor(&args, &[]);
        assert_eq!(ran.code(), code, "{}", ran.out);
        assert!(ran.out.contains(says), "{}", ran.out);
    }
}

#[test]
fn what_is_wrong_with_the_command_line_is_one_line() {
    for args in [
        &["--timeout", "3"] as &[&str],
        &["--secret-file", "x"],
        &["--peer"],
        &["--peer", "a:1", "--timeout", "0"],
        &["--peer", "a:1", "--secret-file", "no/such/file"],
        &["stray"],
    ] {
        let ran = run(&[&["doctor"], args].concat());
        assert_eq!((ran.code(), ran.err.lines().count()), (2, 1), "{args:?}: {}", ran.err);
    }
}
