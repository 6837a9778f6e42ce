//! Atomic orderings say what they pair with.

use std::collections::BTreeSet;

use super::super::source::{Area, RustFile};
use super::super::{Report, Tree};

const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// How many lines above the ordering its comment may end.
const REACH: usize = 4;

/// `orderings`.
pub(super) fn partners(tree: &Tree, report: &mut Report) {
    for file in tree.rust.iter().filter(|file| file.area == Area::Src) {
        let explained = explained(file);
        let mut lines = BTreeSet::new();
        for ordering in STRONG {
            lines.extend(file.lines_of(&["Ordering", "::", ordering]));
        }
        lines.retain(|line| !file.is_test(*line));
        for (path, line) in &file.imports {
            if hides_ordering(path) && !file.is_test(*line) {
                let message = format!("`{path}` hides the ordering; write `Ordering::…` where it is used");
                report.refuse(&file.path, *line, message);
                lines.remove(line);
            }
        }
        for line in lines {
            if !(line.saturating_sub(REACH)..=line).any(|near| explained.contains(&near)) {
                let message = "this ordering names no partner; say in a comment on it or just above it which access it pairs \
                               with, or use `Relaxed`";
                report.refuse(&file.path, line, message);
            }
        }
    }
}

/// Imports behind which an ordering is no longer written `Ordering::…`.
fn hides_ordering(path: &str) -> bool {
    let atomic = path.contains("atomic::Ordering");
    let variant = STRONG.iter().any(|strong| path.contains(&format!("Ordering::{strong}")));
    variant || (atomic && (path.contains(" as ") || path.ends_with("::*")))
}

/// Lines that belong to a comment block with a word about the partner.
fn explained(file: &RustFile) -> BTreeSet<usize> {
    let mut explained = BTreeSet::new();
    let mut block: Vec<usize> = Vec::new();
    let mut speaks = false;
    for comment in &file.comments {
        if block.last().is_some_and(|last| comment.line > last + 1) {
            if speaks {
                explained.extend(block.iter().copied());
            }
            block.clear();
            speaks = false;
        }
        block.push(comment.line);
        speaks |= names_partner(&comment.text);
    }
    if speaks {
        explained.extend(block);
    }
    explained
}

fn names_partner(comment: &str) -> bool {
    comment
        .split(|letter: char| !letter.is_alphanumeric())
        .any(|word| ["pairs", "partner", "partners"].iter().any(|wanted| word.eq_ignore_ascii_case(wanted)))
}

#[cfg(test)]
mod tests {
    use crate::tidy::testing::refused_lines;

    fn lines(text: &str) -> Vec<usize> {
        refused_lines("orderings", "mori-core/src/status.rs", text)
    }

    #[test]
    fn an_ordering_without_partner_is_refused() {
        assert_eq!(lines("fn f() { x.load(Ordering::Acquire) }\n"), [1]);
        assert_eq!(lines("// Very fast.\nfn f() { fence(atomic::Ordering::SeqCst) }\n"), [2]);
        assert_eq!(lines("// Pairs with g.\n\n\n\n\nfn f() { x.load(Ordering::Acquire) }\n"), [6]);
        assert_eq!(lines("// The repairs, impartially.\nfn f() { x.load(Ordering::Acquire) }\n"), [2]);
    }

    #[test]
    fn an_ordering_with_partner_is_fine() {
        assert_eq!(lines("fn f() { x.load(Ordering::Acquire) } // pairs with the store in g\n"), [0; 0]);
        assert_eq!(
            lines(
                "// Pairs with the store in g,\n// a\n// b\n// c\n// d\n// e\nfn f() { x.load(Ordering::Acquire) }\n"
            ),
            [0; 0]
        );
        assert_eq!(
            lines("fn f() {\n // Its partner is g.\n x.swap(\n  1,\n  Ordering::AcqRel,\n )\n}\n"),
            [0; 0]
        );
    }

    #[test]
    fn relaxed_tests_and_comparisons_need_none() {
        assert_eq!(lines("fn f() { x.load(Ordering::Relaxed); a.cmp(b) == Ordering::Less }\n"), [0; 0]);
        assert_eq!(lines("#[cfg(test)]\nmod tests {\n fn f() { x.load(Ordering::SeqCst) }\n}\n"), [0; 0]);
        assert_eq!(
            refused_lines("orderings", "mori-core/tests/it.rs", "fn f() { x.load(Ordering::SeqCst) }"),
            [0; 0]
        );
    }

    #[test]
    fn imports_that_hide_the_ordering_are_refused() {
        assert_eq!(lines("use std::sync::atomic::Ordering::{Acquire, Relaxed};\n"), [1]);
        assert_eq!(lines("use std::sync::atomic::Ordering::*;\n"), [1]);
        assert_eq!(lines("use std::sync::atomic::Ordering as O;\n"), [1]);
        assert_eq!(
            lines("use std::cmp::Ordering::*;\nuse std::sync::atomic::{AtomicU8, Ordering};\n"),
            [0; 0]
        );
    }
}
