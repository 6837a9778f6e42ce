//! Descriptors and threads: what comes also goes. The counts are the process's, so they are taken in one of their own.

use std::process::Command;

use super::*;

/// Set in the process that counts.
const COUNTING: &str = "MORI_RDMA_CONTROL_COUNTS";

fn counts() -> (usize, usize) {
    let entries = |path| std::fs::read_dir(path).unwrap().count();
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// Everything that a control plane does, once.
fn cycle(round: usize) {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    let link = near.link(&far);
    link.register_endpoint(&register(0, 1), soon()).unwrap();
    let mut existing = Raw::connect(far.address());
    existing.send(super::golden::REGISTER);
    existing.frame();
    let silent = Raw::connect(far.address());
    let mut garbage = Raw::connect(far.address());
    garbage.send(&[0xff; 64]);
    garbage.ended();
    match round % 3 {
        0 => far.server.shutdown(),
        1 => drop(link),
        _ => drop(near),
    }
    drop(silent);
}

#[test]
fn nothing_is_left_behind() {
    let name = "control::tests::resources::counted_alone";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(COUNTING, "1")
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("counted: the same"), "{text}");
}

/// Does nothing but in the process that the test above starts.
#[test]
fn counted_alone() {
    if std::env::var_os(COUNTING).is_none() {
        return;
    }
    (0..3).for_each(cycle);
    until("what the first rounds started has ended", || counts().1 <= 2);
    let before = counts();
    (0..30).for_each(cycle);
    // Shutting down waits for the threads; the system may show one a moment longer.
    until("everything is given back", || counts().0 <= before.0 && counts().1 <= before.1);
    many_idle();
    until("idle connections are given back", || counts().0 <= before.0 && counts().1 <= before.1);
    println!("counted: the same");
}

/// Connections that do nothing cost no thread, and the others are served.
fn many_idle() {
    let far = Node::plain("far");
    let idle: Vec<Raw> = (0..400)
        .map(|number| {
            let connected = Raw::connect_from(1 + (number % 100) as u8, far.address());
            connected.greet("idle")
        })
        .collect();
    let mut one = Raw::connect(far.address()).greet("one");
    one.ask(1, &Request::Ping);
    let (_, threads) = counts();
    // The test's, the harness's, the watching one and the one for urgent calls.
    assert!(threads <= 4, "{threads} threads");
    drop(idle);
}
