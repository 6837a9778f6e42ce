//! The commands, run on this workspace: tidy and arrows hold, and the command line says what it cannot do.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot run its program has nothing better to do than to stop"
)]

use std::process::{Command, Output};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_workspace_is_tidy() {
    let output = xtask(&["tidy"]);
    assert!(output.status.success(), "\n{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("0 refused"));
}

#[test]
fn the_arrows_hold() {
    let output = xtask(&["arrows"]);
    assert!(output.status.success(), "\n{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn steps_are_listed_in_order() {
    let output = xtask(&["ci", "--list"]);
    let listed = text(&output.stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let at = |name| names.iter().position(|listed| *listed == name);
    assert!(at("fmt").is_some() && at("fmt") < at("clippy") && at("clippy") < at("test"), "{listed}");
}

#[test]
fn an_unknown_step_is_an_error_and_not_an_empty_run() {
    let output = xtask(&["ci", "--only", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no step is called `nonsense`"), "{}", text(&output.stderr));
}

#[test]
fn one_step_runs_alone_and_is_counted() {
    let output = text(&xtask(&["ci", "--only", "arrows"]).stdout);
    let (_, summary) = output.split_once("==== summary").unwrap_or_default();
    let rows: Vec<&str> = summary.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), 2, "{output}");
    assert!(
        rows[0].starts_with("arrows ") && rows[1].ends_with(" s") && rows[1].contains("0 skipped"),
        "{output}"
    );
}

#[test]
fn every_rule_is_listed_with_what_it_asks_for() {
    let listed = text(&xtask(&["tidy", "--list"]).stdout);
    assert!(listed.lines().count() >= 20 && listed.lines().all(|line| line.len() > 20), "{listed}");
}
