//! The program over RDMA where there is none, and over the simulated library: one clear line here, every byte verified there.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use common::{Running, SMALL};

const RDMA: [&str; 2] = ["--transport", "rdma"];

#[test]
fn a_machine_without_the_library_is_told_with_status_2_and_what_to_do() {
    for command in ["replay", "serve"] {
        let args = [&[command], SMALL.as_slice(), &RDMA].concat();
        let ran = Running::start(&args, &[("MORI_VERBS_LIBRARY", "no/such/library.so")]).finish();
        assert_eq!((ran.code(), ran.out.as_str()), (2, ""), "{}", ran.err);
        for part in ["rdma is not available, because", "no/such/library.so", "use --transport tcp"] {
            assert!(ran.err.contains(part), "no {part:?} in {}", ran.err);
        }
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
}

#[test]
fn devices_that_are_not_there_are_told_with_status_2() {
    let simulation = mori_verbs_sim::Simulation::open().expect("the simulation is built with the tests");
    let library = simulation.library().to_str().expect("text").to_owned();
    let environment = [("MORI_VERBS_LIBRARY", library.as_str())];
    for (device, says) in [("nowhere_0", "mori_sim0"), ("a b", "a b")] {
        let args = [&["replay"], SMALL.as_slice(), &RDMA, &["--device", device]].concat();
        let ran = Running::start(&args, &environment).finish();
        assert_eq!((ran.code(), ran.out.as_str()), (2, ""), "{device}: {}", ran.err);
        assert!(ran.err.contains(says), "{device}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{device}: {}", ran.err);
    }
}
