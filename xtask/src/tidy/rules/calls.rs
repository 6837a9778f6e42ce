//! Calls that the house forbids or keeps in one place.

use proc_macro2::TokenTree;
use syn::visit::Visit;
use syn::{Attribute, Meta};

use super::super::source::Area;
use super::super::{Report, Tree};

const CLOCK: &str = "mori-core/src/time";

/// `clock`: only core's time module reads the clock; benchmarks and xtask measure by themselves.
pub(super) fn clock(tree: &Tree, report: &mut Report) {
    let bound = |file: &super::super::source::RustFile| {
        file.area != Area::Benches && file.krate != "xtask" && !file.is_in(CLOCK)
    };
    for file in tree.rust.iter().filter(|file| bound(file)) {
        for clock in ["Instant", "SystemTime"] {
            for line in file.lines_of(&[clock, "::", "now"]) {
                let message = format!(
                    "`{clock}::now` reads the clock; take the time as an argument or ask a `mori_core::Clock`"
                );
                report.refuse(&file.path, line, message);
            }
            for (path, line) in &file.imports {
                if path.contains(&format!("time::{clock} as ")) {
                    let message = format!(
                        "`{path}` hides the clock; keep the name `{clock}`, or ask a `mori_core::Clock`"
                    );
                    report.refuse(&file.path, *line, message);
                }
            }
        }
    }
}

/// `sleep`: excused by a comment with a reason.
pub(super) fn sleep(tree: &Tree, report: &mut Report) {
    for file in &tree.rust {
        let imported = file
            .imports
            .iter()
            .filter(|(path, _)| path.starts_with("std::thread::sleep"))
            .map(|(_, line)| *line);
        let called = ["sleep", "sleep_ms", "sleep_until"].map(|name| ["thread", "::", name]);
        let called = called.iter().flat_map(|pattern| file.lines_of(pattern));
        for line in imported.chain(called) {
            if !file.allowed("sleep", line) {
                let instead = "wait for the event itself (a status, a channel, a barrier, a hand-moved clock), or say why it must \
                               sleep: `// tidy: allow(sleep): reason`";
                report.refuse(&file.path, line, format!("sleeping synchronises nothing; {instead}"));
            }
        }
    }
}

/// `placeholders`.
pub(super) fn placeholders(tree: &Tree, report: &mut Report) {
    for file in &tree.rust {
        for (name, instead) in [
            ("todo", "finish it, or return a typed error such as `Unsupported`"),
            ("unimplemented", "finish it, or return a typed error such as `Unsupported`"),
            ("dbg", "use `tracing` in the product and assertions in tests"),
        ] {
            for line in file.lines_of(&[name, "!"]) {
                report.refuse(&file.path, line, format!("`{name}!` is no product code; {instead}"));
            }
        }
    }
}

/// `ignored`: tests by `#[ignore]`, examples by an `ignore` behind their fence.
pub(super) fn ignored(tree: &Tree, report: &mut Report) {
    for file in &tree.rust {
        let mut attributes = Ignores(Vec::new());
        attributes.visit_file(&file.syntax);
        for line in attributes.0 {
            let message = "an ignored test proves nothing; run it, or say why not: `#[ignore = \"reason\"]`";
            report.refuse(&file.path, line, message);
        }
        for comment in file.comments.iter().filter(|comment| comment.doc) {
            let fence = comment.text.split_once("```").map(|(_, language)| language);
            if fence.is_some_and(|language| language.split(',').any(|word| word.trim() == "ignore")) {
                let message =
                    "an ignored example rots; use `no_run`, `compile_fail` or `text`, which rustdoc holds to";
                report.refuse(&file.path, comment.line, message);
            }
        }
    }
}

/// Lines of `#[ignore]` without a reason, also inside `cfg_attr`.
struct Ignores(Vec<usize>);

impl<'ast> Visit<'ast> for Ignores {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let line = attribute.pound_token.span.start().line;
        match &attribute.meta {
            Meta::Path(path) if path.is_ident("ignore") => self.0.push(line),
            Meta::List(list) if list.path.is_ident("cfg_attr") => {
                let trees: Vec<TokenTree> = list.tokens.clone().into_iter().collect();
                let bare = trees.iter().enumerate().any(|(at, tree)| {
                    let named = matches!(tree, TokenTree::Ident(name) if name == "ignore");
                    let reasoned =
                        matches!(trees.get(at + 1), Some(TokenTree::Punct(punct)) if punct.as_char() == '=');
                    named && !reasoned
                });
                if bare {
                    self.0.push(line);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::testing::{refused, refused_lines};

    #[test]
    fn the_clock_is_read_in_one_module() {
        let bad = "use std::time::Instant as Now;\nfn f() { std::time::Instant::now(); }\nfn g() { SystemTime::now() }\n";
        assert_eq!(refused_lines("clock", "mori-tcp/src/lib.rs", bad), [2, 1, 3]);
        assert_eq!(refused_lines("clock", "mori-tcp/tests/it.rs", "fn f() { Instant::now() }"), [1]);
        for path in [
            "mori-core/src/time.rs",
            "mori-core/src/time/manual.rs",
            "mori-tcp/benches/b.rs",
            "xtask/src/main.rs",
        ] {
            assert_eq!(refused_lines("clock", path, "fn f() { Instant::now() }"), [0; 0], "{path}");
        }
        let good = "//! Never `Instant::now()`.\nuse std::time::Instant;\nfn f(now: Instant) -> &str { \"Instant::now\" }\n";
        assert_eq!(refused_lines("clock", "mori-tcp/src/lib.rs", good), [0; 0]);
    }

    #[test]
    fn a_sleep_needs_a_reason() {
        let bad =
            "use std::thread::sleep;\nfn f() { std::thread::sleep(d); }\nfn g() { thread :: sleep(d) }\n";
        assert_eq!(refused_lines("sleep", "mori-tcp/src/lib.rs", bad), [1, 2, 3]);
        assert_eq!(refused_lines("sleep", "mori-tcp/tests/it.rs", "fn f() { thread::sleep(d) }"), [1]);
        let unreasoned = "fn f() {\n // tidy: allow(sleep)\n thread::sleep(d);\n}";
        assert_eq!(refused_lines("sleep", "mori-tcp/src/lib.rs", unreasoned), [3]);
        let good = "fn f() {\n // tidy: allow(sleep): a real back-off, nobody can wake it.\n thread::sleep(d);\n\
                    thread::sleep(d); // tidy: allow(sleep): the same again\n// thread::sleep(d)\n}";
        assert_eq!(refused_lines("sleep", "mori-tcp/src/lib.rs", good), [0; 0]);
    }

    #[test]
    fn placeholders_are_refused_as_macros_only() {
        let bad = "fn f() { todo!() }\nfn g() { unimplemented!(\"x\") }\nfn h() { dbg!(1) }\n";
        let mut lines = refused_lines("placeholders", "mori-tcp/src/lib.rs", bad);
        lines.sort_unstable();
        assert_eq!(lines, [1, 2, 3]);
        let good = "// todo!()\nfn todo() { let dbg = \"dbg!(1)\"; }\n";
        assert_eq!(refused_lines("placeholders", "mori-tcp/src/lib.rs", good), [0; 0]);
    }

    #[test]
    fn what_is_ignored_says_why() {
        let bad = "#[test]\n#[ignore]\nfn f() {}\n#[cfg_attr(windows, ignore)]\nfn g() {}\n/// ```ignore\n/// x\n/// ```\nfn h() {}\n";
        assert_eq!(refused_lines("ignored", "mori-tcp/src/lib.rs", bad), [2, 4, 6]);
        let good = "#[test]\n#[ignore = \"needs a device\"]\nfn f() {}\n#[cfg_attr(windows, ignore = \"no fork\")]\nfn g() {}\n\
                    /// ```no_run\n/// ```\nfn h(ignore: bool) { x[ignore] }\n";
        assert_eq!(refused("ignored", &[("mori-tcp/src/lib.rs", good)]), [""; 0]);
    }
}
