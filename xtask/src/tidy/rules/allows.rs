//! The comments that excuse a finding are checked themselves.

use super::super::{Report, Tree};

/// `allows`: runs after every other rule.
pub(super) fn check(tree: &Tree, report: &mut Report) {
    for file in &tree.rust {
        for allow in file.allows() {
            let known = super::ALL.iter().find(|rule| rule.name == allow.rule);
            if !known.is_some_and(|rule| rule.allowable) {
                let names: Vec<_> =
                    super::ALL.iter().filter(|rule| rule.allowable).map(|rule| rule.name).collect();
                let message = format!(
                    "`{}` is not among the rules that can be excused: {}",
                    allow.rule,
                    names.join(", ")
                );
                report.refuse(&file.path, allow.line, message);
            } else if !allow.reasoned {
                let message = format!("give the reason: `// tidy: allow({}): reason`", allow.rule);
                report.refuse(&file.path, allow.line, message);
            } else if !allow.used() {
                report.refuse(
                    &file.path,
                    allow.line,
                    "excuses nothing on this or the next line of code; remove it",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::Report;
    use crate::tidy::rules::calls;
    use crate::tidy::testing::tree;

    fn messages(text: &str) -> Vec<String> {
        let tree = tree(&[("mori-tcp/src/lib.rs", text)]);
        calls::sleep(&tree, &mut Report::default());
        let mut report = Report::default();
        super::check(&tree, &mut report);
        report.findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_used_allow_with_a_reason_is_fine() {
        let text = "fn f() {\n // tidy: allow(sleep): the peer reads no clock\n std::thread::sleep(d);\n}";
        assert_eq!(messages(text), [""; 0]);
    }

    #[test]
    fn an_allow_must_be_known_reasoned_and_used() {
        assert!(messages("// tidy: allow(unsafe): I like it\nfn f() {}")[0].contains("not among the rules"));
        assert!(
            messages("fn f() {\n // tidy: allow(sleep)\n std::thread::sleep(d);\n}")[0]
                .contains("give the reason")
        );
        assert!(messages("// tidy: allow(sleep): no longer\nfn f() {}")[0].contains("excuses nothing"));
    }
}
