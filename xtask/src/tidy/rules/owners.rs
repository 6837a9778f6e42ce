//! Names that one module owns: locks, foreign libraries, `unsafe`, concrete backends.

use std::collections::BTreeMap;

use super::super::source::{Area, RustFile};
use super::super::{Report, Tree};

const SYNC: &str = "mori-core/src/sync";
const VERBS: &str = "mori-rdma/src/verbs";
const HIP: &str = "mori-xgmi/src/hip";
/// Crates that stand in for device libraries, by their symbols and their ABI.
const STAND_INS: [&str; 3] = ["mori-testkit", "mori-hip-sim", "mori-verbs-sim"];
const MODELLED: [&str; 3] = ["parking_lot", "loom", "shuttle"];
const LOCKS: [&str; 3] = ["Mutex", "Condvar", "RwLock"];

/// `locks`: core takes its locks from its `sync`, so that models can put theirs in their place. Other crates have no
/// models of their own; they name `parking_lot` in one module, their `sync.rs`, or use the locks of std.
pub(super) fn locks(tree: &Tree, report: &mut Report) {
    let product = |file: &&RustFile| file.area == Area::Src && !file.is_in(SYNC);
    for file in tree.rust.iter().filter(product) {
        for (name, line) in file.names().filter(|(_, line)| !file.is_test(*line)) {
            if file.krate == "mori-core" && MODELLED.contains(&name) {
                let message =
                    format!("`{name}` is named in mori-core/src/sync.rs only; use what `crate::sync` offers");
                report.refuse(&file.path, line, message);
            } else if MODELLED.contains(&name) && !file.path.ends_with("/src/sync.rs") {
                let message = format!(
                    "`{name}` is named in the crate's `src/sync.rs` only; use what `crate::sync` offers"
                );
                report.refuse(&file.path, line, message);
            }
        }
        if file.krate == "mori-core" {
            for line in std_locks(file) {
                if !file.is_test(line) {
                    let message = "std's locks hide from the models; use what `crate::sync` offers";
                    report.refuse(&file.path, line, message);
                }
            }
        }
    }
}

/// Lines on which a lock of std is imported or named by its path.
fn std_locks(file: &RustFile) -> Vec<usize> {
    let is_lock = |path: &str| {
        let named = path.strip_prefix("std::sync::").map(|rest| rest.split(" as ").next().unwrap_or(rest));
        named.is_some_and(|name| name == "*" || LOCKS.contains(&name))
    };
    let mut lines: Vec<usize> =
        file.imports.iter().filter(|(path, _)| is_lock(path)).map(|(_, line)| *line).collect();
    let sync_imported = file.imports.iter().any(|(path, _)| path == "std::sync");
    for lock in LOCKS {
        lines.extend(file.lines_of(&["std", "::", "sync", "::", lock]));
        if sync_imported {
            lines.extend(file.lines_of(&["sync", "::", lock]));
        }
    }
    lines
}

/// `foreign`: the crates and symbols of device libraries stay below the seam that a fake can fill.
pub(super) fn foreign(tree: &Tree, report: &mut Report) {
    for file in &tree.rust {
        for (name, line) in file.names() {
            let Some(owners) = owners_of(name, file, line) else { continue };
            if !owners.iter().any(|owner| file.is_in(owner)) {
                let places: Vec<String> = owners.iter().map(|owner| format!("{owner}/")).collect();
                let message = format!(
                    "`{name}` is named in {} only; use the safe layer above it",
                    places.join(" and ")
                );
                report.refuse(&file.path, line, message);
            }
        }
    }
}

/// The modules that may use the name, if it belongs to any.
fn owners_of(name: &str, file: &RustFile, line: usize) -> Option<&'static [&'static str]> {
    match name {
        "ibverbs" | "ibverbs_sys" => return Some(&[VERBS]),
        "libloading" => return Some(&[VERBS, HIP]),
        _ => {}
    }
    // Stand-ins for the libraries define the same symbols.
    if STAND_INS.contains(&file.krate.as_str()) || file.area != Area::Src || file.is_test(line) {
        return None;
    }
    if name.starts_with("ibv_") {
        return Some(&[VERBS]);
    }
    let symbol = name
        .strip_prefix("hip")
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()));
    symbol.then_some(&[HIP] as &[&str])
}

/// Where a crate may say `unsafe`.
struct Unsafe {
    krate: &'static str,
    /// Modules directly under `src/`.
    modules: &'static [&'static str],
    /// Modules of that name anywhere under `src/`.
    anywhere: &'static [&'static str],
}

const UNSAFE: &[Unsafe] = &[
    Unsafe { krate: "mori-core", modules: &["memory"], anywhere: &[] },
    Unsafe { krate: "mori-tcp", modules: &["sys"], anywhere: &[] },
    Unsafe { krate: "mori-rdma", modules: &["verbs", "memory"], anywhere: &[] },
    Unsafe { krate: "mori-xgmi", modules: &["hip", "memory"], anywhere: &[] },
    Unsafe { krate: "mori-shm", modules: &["sys", "memory"], anywhere: &[] },
    Unsafe { krate: "mori-engine", modules: &[], anywhere: &["memory", "raw"] },
    Unsafe { krate: "mori-python", modules: &[], anywhere: &["memory", "raw"] },
];

/// The testkit's suite is the one part of it that says no `unsafe`.
const TESTKIT: &str = "mori-testkit";
const SUITE: [&str; 2] = ["mori-testkit/src/suite", "mori-testkit/src/conformance"];

/// `unsafe`: a crate without a row has none at all. Tests and benchmarks in their own folders are free.
pub(super) fn unsafe_code(tree: &Tree, report: &mut Report) {
    let in_suite = |file: &RustFile| SUITE.iter().any(|suite| file.is_in(suite));
    for file in tree.rust.iter().filter(|file| file.area == Area::Src) {
        let row = UNSAFE.iter().find(|row| row.krate == file.krate);
        let free = if STAND_INS.contains(&file.krate.as_str()) {
            !in_suite(file)
        } else {
            row.is_some_and(|row| {
                row.modules.iter().any(|module| file.is_in(&format!("{}/src/{module}", row.krate)))
                    || file.path.split('/').any(|part| row.anywhere.contains(&part.trim_end_matches(".rs")))
            })
        };
        if free {
            continue;
        }
        for line in file.lines_of(&["unsafe"]) {
            let message = format!("no `unsafe` here; {}", unsafe_place(row));
            report.refuse(&file.path, line, message);
        }
    }
    let testkit_root = format!("{TESTKIT}/src/lib.rs");
    if tree.rust_file(&testkit_root).is_some() && !tree.rust.iter().any(in_suite) {
        let message =
            "the conformance suite lies in neither src/suite/ nor src/conformance/, so nobody watches it";
        report.refuse(&testkit_root, 1, message);
    }
}

fn unsafe_place(row: Option<&Unsafe>) -> String {
    let names: Vec<&str> =
        row.map(|row| row.modules.iter().chain(row.anywhere).copied().collect()).unwrap_or_default();
    if names.is_empty() {
        "this code is safe Rust throughout".to_owned()
    } else {
        format!("it lives in the module {} of this crate, behind a safe interface", names.join(" or "))
    }
}

const BACKENDS: [&str; 4] = ["mori_tcp", "mori_rdma", "mori_xgmi", "mori_shm"];

/// `concrete-backends`.
pub(super) fn backends(tree: &Tree, report: &mut Report) {
    let mut naming: BTreeMap<&str, usize> = BTreeMap::new();
    for file in tree.of_crate("mori-engine").filter(|file| file.area == Area::Src) {
        for (name, line) in file.names().filter(|(_, line)| !file.is_test(*line)) {
            if BACKENDS.contains(&name) {
                naming.entry(&file.path).or_insert(line);
            } else if name.starts_with("downcast") {
                let message = "the engine does not downcast; put what it needs into the `Backend` trait";
                report.refuse(&file.path, line, message);
            }
        }
    }
    if naming.len() > 1 {
        let all: Vec<&str> = naming.keys().copied().collect();
        for (path, line) in &naming {
            let message =
                format!("one file names the concrete backends, but {} do; keep one", all.join(", "));
            report.refuse(path, *line, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::testing::{refused, refused_lines};

    #[test]
    fn locks_come_from_sync() {
        let bad = "use parking_lot::Mutex;\nuse std::sync::{Arc, RwLock as Lock};\nfn f(x: std::sync::Condvar) {}\nuse std::sync::*;\n";
        let mut lines = refused_lines("locks", "mori-core/src/wait.rs", bad);
        lines.sort_unstable();
        assert_eq!(lines, [1, 2, 3, 4]);
        assert_eq!(
            refused_lines("locks", "mori-core/src/wait.rs", "use std::sync;\nfn f(x: sync::Mutex<u8>) {}"),
            [2]
        );
        assert_eq!(refused_lines("locks", "mori-tcp/src/lib.rs", "use parking_lot::Mutex;"), [1]);
        assert_eq!(refused_lines("locks", "mori-tcp/src/sync.rs", "pub use parking_lot::Mutex;"), [0; 0]);
        assert_eq!(refused_lines("locks", "mori-core/src/sync.rs", bad), [0; 0]);
        assert_eq!(refused_lines("locks", "mori-core/tests/model.rs", "use loom::thread;"), [0; 0]);
        let good = "use std::sync::{Arc, atomic::AtomicU8};\nuse crate::sync::Mutex;\n// parking_lot\n\
                    #[cfg(test)]\nmod tests { use std::sync::Mutex; }\n";
        assert_eq!(refused_lines("locks", "mori-core/src/wait.rs", good), [0; 0]);
        assert_eq!(refused_lines("locks", "mori-tcp/src/lib.rs", "use std::sync::Mutex;"), [0; 0]);
    }

    #[test]
    fn foreign_libraries_have_one_home() {
        let text = "use libloading::Library;\nuse ibverbs::Context;\nfn f() { ibv_poll_cq() }\nfn g() { hipMalloc() }\n";
        assert_eq!(refused_lines("foreign", "mori-engine/src/lib.rs", text), [1, 2, 3, 4]);
        assert_eq!(refused_lines("foreign", "mori-rdma/src/verbs/load.rs", text), [4]);
        assert_eq!(refused_lines("foreign", "mori-xgmi/src/hip/mod.rs", text), [2, 3]);
        assert_eq!(refused_lines("foreign", "mori-testkit/src/hip.rs", "fn hipMalloc() {}"), [0; 0]);
        let good =
            "//! Needs libloading and ibverbs.\nfn hip_version(hipster: &str) { \"ibv_open_device\" }\n";
        assert_eq!(refused_lines("foreign", "mori-xgmi/src/lib.rs", good), [0; 0]);
    }

    #[test]
    fn unsafe_stays_in_its_modules() {
        let text = "#![deny(unsafe_code)]\nfn f() { unsafe { g() } }\n";
        for path in [
            "mori-core/src/lib.rs",
            "mori-core/src/status/memory.rs",
            "mori-tcp/src/memory.rs",
            "mori-cli/src/main.rs",
            "mori-testkit/src/suite/waits.rs",
            "mori-novel/src/lib.rs",
        ] {
            assert_eq!(refused_lines("unsafe", path, text), [2], "{path}");
        }
        for path in [
            "mori-core/src/memory.rs",
            "mori-core/src/memory/region.rs",
            "mori-tcp/src/sys/uio.rs",
            "mori-engine/src/register/raw.rs",
            "mori-testkit/src/hip.rs",
            "mori-engine/tests/raw_memory.rs",
        ] {
            assert_eq!(refused_lines("unsafe", path, text), [0; 0], "{path}");
        }
    }

    #[test]
    fn a_testkit_without_a_suite_is_refused() {
        let root = ("mori-testkit/src/lib.rs", "mod suite;");
        assert_eq!(refused("unsafe", &[root]), ["mori-testkit/src/lib.rs:1"]);
        assert_eq!(refused("unsafe", &[root, ("mori-testkit/src/suite.rs", "")]), [""; 0]);
    }

    #[test]
    fn one_file_of_the_engine_names_the_backends() {
        let one = ("mori-engine/src/slots.rs", "use mori_tcp::Tcp;\nfn f(x: mori_rdma::Rdma) {}");
        let tests = ("mori-engine/tests/it.rs", "use mori_tcp::Tcp;");
        assert_eq!(refused("concrete-backends", &[one, tests]), [""; 0]);
        let other = ("mori-engine/src/lib.rs", "\nuse mori_tcp as tcp;");
        assert_eq!(
            refused("concrete-backends", &[one, other]),
            ["mori-engine/src/lib.rs:2", "mori-engine/src/slots.rs:1"]
        );
        let cast = ("mori-engine/src/lib.rs", "fn f() { x.downcast_ref::<T>() }");
        assert_eq!(refused("concrete-backends", &[cast]), ["mori-engine/src/lib.rs:1"]);
    }
}
