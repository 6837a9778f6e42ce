//! Trees made of snippets, for the tests of the rules.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::Tree;
use super::{Level, Report, Rule, rules};
use crate::workspace::{Crate, Target, TargetKind};

/// A tree of these files. The first part of a path is the name of its crate if the file lies where cargo looks for
/// targets or modules.
pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
    let names: BTreeSet<&str> = files
        .iter()
        .filter_map(|(path, _)| path.split_once('/'))
        .filter(|(_, inside)| {
            ["src/", "tests/", "benches/", "examples/"].iter().any(|area| inside.starts_with(area))
        })
        .map(|(name, _)| name)
        .collect();
    let crates = names
        .iter()
        .map(|name| Crate {
            name: (*name).to_owned(),
            dir: (*name).to_owned(),
            targets: files.iter().filter_map(|(path, _)| target(name, path)).collect(),
            ..Crate::default()
        })
        .collect();
    let texts: BTreeMap<String, String> =
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    Tree::new(crates, texts)
}

fn target(krate: &str, path: &str) -> Option<Target> {
    let inside = path.strip_prefix(krate)?.strip_prefix('/')?;
    let kind = match inside.split('/').collect::<Vec<_>>().as_slice() {
        ["src", "lib.rs"] => TargetKind::Lib,
        ["src", "main.rs"] | ["src", "bin", _] => TargetKind::Bin,
        ["tests", file] if file.ends_with(".rs") => TargetKind::Test,
        ["benches", file] if file.ends_with(".rs") => TargetKind::Bench,
        ["examples", file] if file.ends_with(".rs") => TargetKind::Example,
        _ => return None,
    };
    let file = inside.rsplit('/').next()?;
    let name = file.strip_suffix(".rs").unwrap_or(file).to_owned();
    Some(Target { kind, name, path: path.to_owned() })
}

/// Applies the rule `name` alone.
pub(super) fn report(name: &str, files: &[(&str, &str)]) -> Report {
    let rule: &Rule = rules::ALL.iter().find(|rule| rule.name == name).unwrap();
    let mut report = Report { rule: rule.name, ..Report::default() };
    (rule.check)(&tree(files), &mut report);
    report
}

/// The places that the rule `name` refuses, as `path:line`.
pub(super) fn refused(name: &str, files: &[(&str, &str)]) -> Vec<String> {
    let report = report(name, files);
    let of = report.findings.iter().filter(|finding| finding.level == Level::Refused);
    of.map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
}

/// The lines of the one file at `path` that the rule `name` refuses.
pub(super) fn refused_lines(name: &str, path: &str, text: &str) -> Vec<usize> {
    report(name, &[(path, text)])
        .findings
        .iter()
        .filter(|finding| finding.level == Level::Refused)
        .map(|finding| finding.line)
        .collect()
}
