//! The table that says which tests prove which rule of the wait contract.
//!
//! A row is a line of `docs/wait-contract.md` that starts with `| RULE |`; it names tests and models as
//! `path::test_name`, or says `open: reason`. A rule may have several rows.

use std::collections::BTreeMap;

use super::super::{Level, Report, Tree};

const TABLE: &str = "docs/wait-contract.md";

/// Each letter of the contract, with how many rules it has.
const RULES: [(char, usize); 5] = [('S', 7), ('W', 10), ('A', 12), ('E', 4), ('F', 3)];

/// `contract`.
pub(super) fn table(tree: &Tree, report: &mut Report) {
    let Some(text) = tree.texts.get(TABLE) else {
        report.add(Level::Skipped, TABLE, 1, "the table of rules and their tests is not there yet");
        return;
    };
    let mut rows: BTreeMap<String, usize> = RULES
        .iter()
        .flat_map(|(letter, last)| (1..=*last).map(move |number| (format!("{letter}{number}"), 0)))
        .collect();
    for (at, line) in text.lines().enumerate() {
        let Some(row) = Row::read(line) else { continue };
        match rows.get_mut(row.rule) {
            Some(count) => {
                *count += 1;
                row.check(tree, report, at + 1);
            }
            None => report.refuse(TABLE, at + 1, format!("the contract has no rule `{}`", row.rule)),
        }
    }
    for (rule, _) in rows.iter().filter(|(_, count)| **count == 0) {
        let message = format!(
            "rule {rule} has no row; name the tests that fail when it is broken, or write `open: reason`"
        );
        report.refuse(TABLE, 1, message);
    }
}

/// One row of the table.
struct Row<'a> {
    rule: &'a str,
    cells: Vec<&'a str>,
}

impl<'a> Row<'a> {
    /// Reads a line whose first cell looks like the number of a rule.
    fn read(line: &'a str) -> Option<Self> {
        let mut cells = line.trim().strip_prefix('|')?.split('|').map(str::trim);
        let rule = cells.next()?.trim_matches(['*', '`', ' ']);
        let mut letters = rule.chars();
        let is_rule = letters.next().is_some_and(|first| first.is_ascii_uppercase())
            && !letters.as_str().is_empty()
            && letters.all(|letter| letter.is_ascii_digit());
        is_rule.then(|| Self { rule, cells: cells.collect() })
    }

    fn check(&self, tree: &Tree, report: &mut Report, line: usize) {
        let open = self.cells.iter().find_map(|cell| cell.strip_prefix("open:"));
        let tests: Vec<(&str, &str)> = self.cells.iter().flat_map(|cell| references(cell)).collect();
        match open.map(str::trim) {
            Some("") => report.refuse(TABLE, line, format!("rule {} is open without a reason", self.rule)),
            Some(reason) => {
                report.add(Level::Note, TABLE, line, format!("rule {} is open: {reason}", self.rule));
            }
            None if tests.is_empty() => {
                let message =
                    format!("rule {} names no test; write `path::test_name`, or `open: reason`", self.rule);
                report.refuse(TABLE, line, message);
            }
            None => {}
        }
        for (path, test) in tests {
            match tree.texts.get(path) {
                None => report.refuse(TABLE, line, format!("rule {}: there is no file {path}", self.rule)),
                Some(text) if !defines(tree, path, text, test) => {
                    report.refuse(
                        TABLE,
                        line,
                        format!("rule {}: {path} has no function `{test}`", self.rule),
                    );
                }
                Some(_) => {}
            }
        }
    }
}

/// Every `path::name` of a cell, as path and last name.
fn references(cell: &str) -> Vec<(&str, &str)> {
    cell.split(|letter: char| letter.is_whitespace() || "`,;()[]<>".contains(letter))
        .filter_map(|word| {
            let (path, names) = word.split_once("::")?;
            let test = names.rsplit("::").next()?.trim_end_matches('.');
            [".rs", ".py"].iter().any(|end| path.ends_with(end)).then_some((path, test))
        })
        .collect()
}

/// Whether the file defines a function of that name, in code and not in a comment or string.
fn defines(tree: &Tree, path: &str, text: &str, test: &str) -> bool {
    if let Some(file) = tree.rust_file(path) {
        return file.lines_of(&["fn", test]).next().is_some();
    }
    let keyword = if path.ends_with(".py") { "def" } else { "fn" };
    text.lines().any(|line| {
        let rest = line.trim_start().trim_start_matches("async ").strip_prefix(keyword).unwrap_or_default();
        let name = rest.strip_prefix(' ').unwrap_or_default().split(['(', '<', ' ']).next();
        name == Some(test)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::report;

    fn full(replaced: &str, by: &str) -> String {
        let mut text = "| rule | tests |\n|---|---|\n".to_owned();
        for (letter, last) in RULES {
            for number in 1..=last {
                let rule = format!("{letter}{number}");
                let tests = if rule == replaced { by } else { "`mori-core/tests/waits.rs::holds`" };
                text.push_str(&format!("| **{rule}** | {tests} |\n"));
            }
        }
        text
    }

    fn check(table: &str) -> Vec<(Level, String)> {
        let files = [
            (TABLE, table),
            ("mori-core/src/lib.rs", ""),
            ("mori-core/tests/waits.rs", "#[test]\nfn holds() {}\n// fn only_told()\nmod m { fn deep() {} }"),
            ("mori-python/tests/test_wait.py", "def test_holds():\n    pass\n"),
        ];
        report("contract", &files)
            .findings
            .into_iter()
            .map(|finding| (finding.level, finding.message))
            .collect()
    }

    #[test]
    fn a_full_table_passes() {
        assert_eq!(check(&full("", "")), []);
        let both = "mori-core/tests/waits.rs::m::deep, `mori-python/tests/test_wait.py::test_holds` |";
        assert_eq!(check(&full("S1", both)), []);
    }

    #[test]
    fn a_missing_table_is_skipped_aloud() {
        let findings = report("contract", &[("mori-core/src/lib.rs", "")]).findings;
        assert_eq!(findings.iter().map(|finding| finding.level).collect::<Vec<_>>(), [Level::Skipped]);
    }

    #[test]
    fn every_rule_needs_a_row() {
        let text = full("", "").replace("| **A12** |", "| none |");
        let findings = check(&text);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].1.starts_with("rule A12 has no row"), "{findings:?}");
    }

    #[test]
    fn a_row_names_tests_that_exist() {
        for (by, message) in [
            ("soon", "rule W3 names no test"),
            ("mori-core/tests/gone.rs::holds", "rule W3: there is no file mori-core/tests/gone.rs"),
            ("mori-core/tests/waits.rs::hold", "has no function `hold`"),
            ("mori-core/tests/waits.rs::only_told", "has no function `only_told`"),
            ("mori-python/tests/test_wait.py::test_hold", "has no function `test_hold`"),
            ("open:", "rule W3 is open without a reason"),
        ] {
            let findings = check(&full("W3", by));
            assert_eq!(findings.len(), 1, "{by}: {findings:?}");
            assert_eq!(findings[0].0, Level::Refused, "{by}");
            assert!(findings[0].1.contains(message), "{by}: {findings:?}");
        }
    }

    #[test]
    fn an_open_rule_is_a_note() {
        let findings = check(&full("E4", "open: no peer can be cut off yet"));
        assert_eq!(findings, [(Level::Note, "rule E4 is open: no peer can be cut off yet".to_owned())]);
    }

    #[test]
    fn a_rule_outside_the_contract_is_refused() {
        let text = format!("{}| S8 | open: no |\n", full("", ""));
        assert_eq!(check(&text), [(Level::Refused, "the contract has no rule `S8`".to_owned())]);
    }
}
