//! The arrows between the crates: who may depend on whom.
//!
//! ```text
//! core <- tcp, rdma, xgmi, shm, testkit, engine     testkit <- (tests only) tcp, rdma, xgmi, shm, engine
//! tcp, rdma, xgmi, shm <- engine <- cli, python     xtask depends on none of ours
//! ```

use anyhow::Result;

use crate::workspace::{Crate, Dependency, DependencyKind, Workspace};

/// What one crate may depend on among ours.
struct Row {
    name: &'static str,
    /// For everybody.
    normal: &'static [&'static str],
    /// Only as an optional dependency, turned on by a feature.
    optional: &'static [&'static str],
    /// In tests, benchmarks and examples, besides the others.
    tests: &'static [&'static str],
}

const BACKENDS: &[&str] = &["mori-tcp", "mori-rdma", "mori-xgmi", "mori-shm"];

const ARROWS: &[Row] = &[
    Row { name: "mori-core", normal: &[], optional: &[], tests: &[] },
    Row { name: "mori-testkit", normal: &["mori-core"], optional: &[], tests: &[] },
    Row { name: "mori-tcp", normal: &["mori-core"], optional: &[], tests: &["mori-testkit"] },
    Row {
        name: "mori-rdma",
        normal: &["mori-core"],
        optional: &[],
        tests: &["mori-testkit", "mori-verbs-sim"],
    },
    Row { name: "mori-hip-sim", normal: &[], optional: &[], tests: &[] },
    Row { name: "mori-verbs-sim", normal: &[], optional: &[], tests: &[] },
    Row {
        name: "mori-xgmi",
        normal: &["mori-core"],
        optional: &[],
        tests: &["mori-testkit", "mori-hip-sim"],
    },
    Row { name: "mori-shm", normal: &["mori-core"], optional: &[], tests: &["mori-testkit"] },
    Row {
        name: "mori-engine",
        normal: &["mori-core"],
        optional: BACKENDS,
        tests: &["mori-testkit", "mori-hip-sim"],
    },
    Row {
        name: "mori-cli",
        normal: &["mori-engine"],
        optional: &[],
        tests: &["mori-hip-sim", "mori-verbs-sim"],
    },
    Row { name: "mori-python", normal: &["mori-engine"], optional: &[], tests: &[] },
    Row { name: "xtask", normal: &[], optional: &[], tests: &[] },
];

/// An arrow that should not be there, with the manifest that draws it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Path of the manifest, relative to the root.
    pub(crate) manifest: String,
    /// What is wrong, and what to do instead.
    pub(crate) message: String,
}

/// Every arrow among `crates` that the table does not allow.
pub(crate) fn check(crates: &[Crate]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for of in crates {
        let mut refuse = |message| refusals.push(Refusal { manifest: manifest(of), message });
        let Some(row) = ARROWS.iter().find(|row| row.name == of.name) else {
            refuse(format!(
                "the crate `{}` has no row in the table of arrows; add one in xtask/src/arrows.rs that says what it may depend on",
                of.name
            ));
            continue;
        };
        for dependency in &of.dependencies {
            let ours = crates.iter().any(|other| other.name == dependency.name);
            if !ours && dependency.local {
                refuse(format!(
                    "`{}` depends on the folder of `{}`, which is no member of the workspace; make it a member or use a published crate",
                    of.name, dependency.name
                ));
            } else if (ours || known(&dependency.name))
                && let Err(message) = judge(row, dependency)
            {
                refuse(message);
            }
        }
    }
    refusals
}

/// Checks the workspace and prints what is refused. Returns whether nothing is, and a closing line.
///
/// # Errors
///
/// None; the signature is that of every check.
pub(crate) fn run(workspace: &Workspace) -> Result<(bool, String)> {
    let refusals = check(&workspace.crates);
    for refusal in &refusals {
        println!("{}: refused [arrows] {}", refusal.manifest, refusal.message);
    }
    let closing = format!("{} crates, {} arrows refused", workspace.crates.len(), refusals.len());
    println!("arrows: {closing}");
    Ok((refusals.is_empty(), closing))
}

fn manifest(of: &Crate) -> String {
    if of.dir.is_empty() { "Cargo.toml".to_owned() } else { format!("{}/Cargo.toml", of.dir) }
}

fn known(name: &str) -> bool {
    ARROWS.iter().any(|row| row.name == name)
}

/// Whether `row` allows the arrow.
fn judge(row: &Row, dependency: &Dependency) -> Result<(), String> {
    let on = dependency.name.as_str();
    let of = row.name;
    if row.normal.contains(&on) {
        return Ok(());
    }
    if row.optional.contains(&on) {
        return if dependency.optional || dependency.kind == DependencyKind::Dev {
            Ok(())
        } else {
            Err(format!("`{of}` depends on `{on}` always; make it `optional = true` behind a feature"))
        };
    }
    if row.tests.contains(&on) {
        return if dependency.kind == DependencyKind::Dev {
            Ok(())
        } else {
            Err(format!("`{of}` ships `{on}`, which is for tests; move it to [dev-dependencies]"))
        };
    }
    Err(format!("`{of}` may not depend on `{on}`: {}", instead(row)))
}

fn instead(row: &Row) -> String {
    match row.normal {
        [] => format!("`{}` depends on none of ours", row.name),
        some if row.optional.is_empty() => format!("it may use {} only", some.join(", ")),
        some => format!("it may use {} and, behind features, {}", some.join(", "), row.optional.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str, kind: DependencyKind, optional: bool) -> Dependency {
        Dependency { name: name.to_owned(), kind, optional, local: true }
    }

    fn normal(name: &str) -> Dependency {
        dependency(name, DependencyKind::Normal, false)
    }

    fn dev(name: &str) -> Dependency {
        dependency(name, DependencyKind::Dev, false)
    }

    fn graph(members: &[(&str, &[Dependency])]) -> Vec<Crate> {
        members
            .iter()
            .map(|(name, dependencies)| Crate {
                name: (*name).to_owned(),
                dir: (*name).to_owned(),
                dependencies: dependencies.to_vec(),
                ..Crate::default()
            })
            .collect()
    }

    fn only_message(crates: &[Crate]) -> String {
        let refusals = check(crates);
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        refusals.into_iter().map(|refusal| refusal.message).collect()
    }

    #[test]
    fn the_whole_house_is_allowed() {
        let optional = |name| dependency(name, DependencyKind::Normal, true);
        let crates = graph(&[
            ("mori-core", &[]),
            ("mori-testkit", &[normal("mori-core")]),
            ("mori-tcp", &[normal("mori-core"), dev("mori-testkit")]),
            ("mori-rdma", &[normal("mori-core"), dev("mori-testkit")]),
            ("mori-xgmi", &[normal("mori-core"), dev("mori-testkit")]),
            ("mori-shm", &[normal("mori-core"), dev("mori-testkit")]),
            (
                "mori-engine",
                &[
                    normal("mori-core"),
                    optional("mori-tcp"),
                    optional("mori-rdma"),
                    optional("mori-xgmi"),
                    optional("mori-shm"),
                    dev("mori-testkit"),
                ],
            ),
            ("mori-cli", &[normal("mori-engine")]),
            ("mori-python", &[normal("mori-engine")]),
            ("xtask", &[]),
        ]);
        assert_eq!(check(&crates), []);
    }

    #[test]
    fn a_backend_may_know_neither_the_engine_nor_another_backend() {
        let crates = graph(&[("mori-tcp", &[normal("mori-engine")]), ("mori-engine", &[])]);
        assert_eq!(
            only_message(&crates),
            "`mori-tcp` may not depend on `mori-engine`: it may use mori-core only"
        );
        let crates = graph(&[("mori-tcp", &[dev("mori-shm")]), ("mori-shm", &[])]);
        assert_eq!(
            only_message(&crates),
            "`mori-tcp` may not depend on `mori-shm`: it may use mori-core only"
        );
    }

    #[test]
    fn the_program_reaches_core_through_the_engine() {
        let crates = graph(&[("mori-core", &[]), ("mori-cli", &[normal("mori-core")])]);
        assert_eq!(
            only_message(&crates),
            "`mori-cli` may not depend on `mori-core`: it may use mori-engine only"
        );
    }

    #[test]
    fn core_and_xtask_depend_on_none_of_ours() {
        let crates = graph(&[("mori-core", &[dev("mori-testkit")]), ("mori-testkit", &[])]);
        assert!(only_message(&crates).contains("depends on none of ours"));
        let crates = graph(&[("xtask", &[normal("mori-core")]), ("mori-core", &[])]);
        assert!(only_message(&crates).contains("depends on none of ours"));
    }

    #[test]
    fn the_testkit_is_for_tests_only() {
        let crates = graph(&[("mori-testkit", &[]), ("mori-tcp", &[normal("mori-testkit")])]);
        assert!(only_message(&crates).contains("move it to [dev-dependencies]"));
    }

    #[test]
    fn the_engine_takes_backends_behind_features() {
        let crates = graph(&[("mori-tcp", &[]), ("mori-engine", &[normal("mori-tcp")])]);
        assert!(only_message(&crates).contains("optional = true"));
    }

    #[test]
    fn an_unknown_crate_is_refused() {
        let crates = graph(&[("mori-novel", &[])]);
        let refusals = check(&crates);
        assert_eq!(refusals[0].manifest, "mori-novel/Cargo.toml");
        assert!(refusals[0].message.contains("no row in the table of arrows"));
    }

    #[test]
    fn a_folder_outside_the_workspace_is_refused_and_a_published_crate_is_not() {
        let published = Dependency { local: false, ..normal("libc") };
        assert_eq!(check(&graph(&[("mori-tcp", &[published])])), []);
        assert!(
            only_message(&graph(&[("mori-tcp", &[normal("elsewhere")])]))
                .contains("no member of the workspace")
        );
    }

    #[test]
    fn one_of_ours_taken_from_elsewhere_is_judged_all_the_same() {
        let published = Dependency { local: false, ..normal("mori-engine") };
        assert!(
            only_message(&graph(&[("mori-tcp", &[published])])).contains("may not depend on `mori-engine`")
        );
    }
}
