//! `cargo xtask tidy`: the rules of the house that the compiler does not know.
//!
//! A rule is a name, a line about it and a function over the [`Tree`]; [`rules::ALL`] lists them. Every finding names its
//! place and what to use instead.

mod imports;
mod rules;
mod source;
#[cfg(test)]
mod testing;
mod tree;

use std::fmt;

use anyhow::Result;

use crate::workspace::Workspace;
use tree::Tree;

/// One rule over the source.
pub(crate) struct Rule {
    /// Name, as printed and as written in an allowing comment.
    pub(crate) name: &'static str,
    /// What it asks for, in one line.
    pub(crate) about: &'static str,
    /// Whether `// tidy: allow(NAME): reason` excuses a finding.
    pub(crate) allowable: bool,
    /// Reports what breaks it.
    pub(crate) check: fn(&Tree, &mut Report),
}

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Breaks a rule.
    Refused,
    /// Comes close to breaking one.
    Warned,
    /// Is declared open, and listed so that nobody forgets it.
    Note,
    /// Could not be checked, with the reason.
    Skipped,
}

/// One thing that a rule has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Weight.
    pub(crate) level: Level,
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Path relative to the root.
    pub(crate) path: String,
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// What is wrong and what to use instead.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Refused => "refused",
            Level::Warned => "warning",
            Level::Note => "note",
            Level::Skipped => "skipped",
        };
        write!(f, "{}:{}: {level} [{}] {}", self.path, self.line, self.rule, self.message)
    }
}

/// What the rules have found so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rule: &'static str,
    /// The findings, in the order of the rules.
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Adds a finding of the rule that runs now; saying the same twice adds nothing.
    pub(crate) fn add(&mut self, level: Level, path: &str, line: usize, message: impl Into<String>) {
        let finding =
            Finding { level, rule: self.rule, path: path.to_owned(), line, message: message.into() };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Adds a finding that breaks the rule.
    pub(crate) fn refuse(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.add(Level::Refused, path, line, message);
    }

    /// How many findings have this weight.
    pub(crate) fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

/// Applies every rule to the tree.
fn apply(tree: &Tree) -> Report {
    let mut report = Report::default();
    for rule in rules::ALL {
        report.rule = rule.name;
        (rule.check)(tree, &mut report);
    }
    report.findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    report
}

/// Checks the workspace and prints every finding and a closing line. Returns whether no rule is broken, and the closing
/// line.
///
/// # Errors
///
/// When the files of the project cannot be listed or read.
pub(crate) fn run(workspace: &Workspace) -> Result<(bool, String)> {
    let tree = Tree::read(workspace)?;
    let report = apply(&tree);
    for finding in &report.findings {
        println!("{finding}");
    }
    let refused = report.count(Level::Refused);
    let closing = format!(
        "{} rules, {} Rust files, {} text files: {refused} refused, {} warnings, {} notes, {} checks skipped",
        rules::ALL.len(),
        tree.rust.len(),
        tree.texts.len(),
        report.count(Level::Warned),
        report.count(Level::Note),
        report.count(Level::Skipped),
    );
    println!("tidy: {closing}");
    Ok((refused == 0, closing))
}

/// Prints the rules.
pub(crate) fn list() {
    for rule in rules::ALL {
        let allow = if rule.allowable { " (excused by `// tidy: allow(NAME): reason`)" } else { "" };
        println!("{:<18} {}{allow}", rule.name, rule.about);
    }
}

#[cfg(test)]
mod tests {
    use super::testing::tree;
    use super::*;

    #[test]
    fn findings_come_sorted_with_place_level_and_rule() {
        let report = apply(&tree(&[
            ("mori-core/src/lib.rs", "//! Docs.\nmod a;\nfn f() { dbg!(1) } \n"),
            ("mori-core/src/a.rs", "//! Docs.\nfn g() { todo!() }\n"),
        ]));
        let lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(
            lines.iter().any(|line| line.starts_with("mori-core/src/a.rs:2: refused [placeholders] ")),
            "{lines:?}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with("mori-core/src/lib.rs:3: refused [whitespace] ")),
            "{lines:?}"
        );
        assert!(report.findings.is_sorted_by_key(|finding| (finding.path.clone(), finding.line)));
    }

    #[test]
    fn names_of_rules_are_unique() {
        let mut names: Vec<_> = rules::ALL.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
