//! The rules, and the list of all of them.

mod allows;
mod calls;
mod contract;
mod layout;
mod orderings;
mod owners;
mod text;

use super::Rule;

const fn rule(name: &'static str, about: &'static str, check: fn(&super::Tree, &mut super::Report)) -> Rule {
    Rule { name, about, allowable: false, check }
}

/// Every rule, in the order in which they run. `allows` comes last: it reports what no other rule has asked for.
pub(super) const ALL: &[Rule] = &[
    rule("parses", "every Rust file parses", layout::parses),
    rule("module-docs", "every Rust file starts with module docs (`//!`)", layout::module_docs),
    rule(
        "dead-files",
        "every file under src/ is reached by a `mod` or is the root of a target",
        layout::dead_files,
    ),
    rule("crate-readme", "each crate's README.md is its crate documentation", layout::crate_readme),
    rule(
        "file-length",
        "a file is read in one sitting: over 600 lines warned, over 800 refused",
        layout::file_length,
    ),
    rule("arrows", "crates depend on each other along the arrows only", layout::arrows),
    rule("whitespace", "no trailing whitespace, one newline at the end", text::whitespace),
    rule("workplace", "no paths of one machine and no registry hosts", text::workplace),
    rule("transport-names", "core names no transport", text::transport_names),
    rule("clock", "one module reads the clock: mori-core/src/time.rs", calls::clock),
    Rule {
        name: "sleep",
        about: "nothing sleeps to wait for something else",
        allowable: true,
        check: calls::sleep,
    },
    rule("placeholders", "no `todo!`, `unimplemented!` or `dbg!`", calls::placeholders),
    rule("ignored", "no test or example is ignored without a reason", calls::ignored),
    rule(
        "locks",
        "one module of a crate names parking_lot, its sync.rs; core takes all of its locks from there",
        owners::locks,
    ),
    rule("foreign", "one module per crate names ibverbs, libloading and their symbols", owners::foreign),
    rule("unsafe", "`unsafe` stays in the modules that are there for it", owners::unsafe_code),
    rule(
        "concrete-backends",
        "one file of the engine names the backends, and nothing downcasts",
        owners::backends,
    ),
    rule("orderings", "every atomic ordering stronger than relaxed names its partner", orderings::partners),
    rule("contract", "every rule of the wait contract has a row that names its tests", contract::table),
    rule("allows", "every `tidy: allow` names a rule, gives a reason and excuses something", allows::check),
];
