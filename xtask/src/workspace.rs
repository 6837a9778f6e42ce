//! The workspace as cargo and git describe it: members, their targets, features and dependencies, and the list of
//! files that belong to the project.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Everything the commands need to know about the workspace around the current directory.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Absolute path of the folder with the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Members, in the order in which cargo lists them.
    pub(crate) crates: Vec<Crate>,
}

/// One member of the workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Crate {
    /// Package name.
    pub(crate) name: String,
    /// Folder of the package, relative to the root, with `/` between parts.
    pub(crate) dir: String,
    /// Features and what each of them turns on.
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// Features that no step turns on, each with the reason (`[package.metadata.xtask.skip-features]`).
    pub(crate) skip_features: BTreeMap<String, String>,
    /// Dependencies of every kind.
    pub(crate) dependencies: Vec<Dependency>,
    /// Root files of the targets.
    pub(crate) targets: Vec<Target>,
}

/// One root file of a crate and the kind of target it is the root of.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// What is built from it.
    pub(crate) kind: TargetKind,
    /// Name, as in `--test NAME`.
    pub(crate) name: String,
    /// Path relative to the root, with `/` between parts.
    pub(crate) path: String,
}

/// The kinds of target that the rules tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// A library or procedural macro.
    Lib,
    /// A program.
    Bin,
    /// An integration test.
    Test,
    /// A benchmark.
    Bench,
    /// An example.
    Example,
    /// A build script.
    Build,
}

/// One dependency of a member.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    /// Name of the package depended on.
    pub(crate) name: String,
    /// Normal, development or build dependency.
    pub(crate) kind: DependencyKind,
    /// Whether only a feature turns it on.
    pub(crate) optional: bool,
    /// Whether it is a folder rather than a published package.
    pub(crate) local: bool,
}

/// When a dependency is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    /// For everybody who uses the crate.
    Normal,
    /// For tests, benchmarks and examples of the crate only.
    Dev,
    /// For its build script.
    Build,
}

impl Workspace {
    /// Asks cargo for the workspace around the current directory.
    ///
    /// # Errors
    ///
    /// When cargo cannot be run or the directory lies outside a workspace.
    pub(crate) fn load() -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .context("cargo metadata does not run")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let raw: raw::Metadata =
            serde_json::from_slice(&output.stdout).context("cargo metadata is not as expected")?;
        let root = PathBuf::from(&raw.workspace_root);
        let crates =
            raw.packages.into_iter().map(|package| package.into_crate(&root)).collect::<Result<_>>()?;
        Ok(Self { root, crates })
    }

    /// The files that belong to the project, relative to the root and sorted: what git tracks or would track. Without
    /// git, every file outside build folders and hidden folders that are not ours.
    ///
    /// # Errors
    ///
    /// When a folder cannot be read.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let git = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output();
        let mut files = match git {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
                .split('\0')
                .filter(|path| !path.is_empty() && self.root.join(path).is_file())
                .map(str::to_owned)
                .collect(),
            _ => {
                let mut found = Vec::new();
                walk(&self.root, "", &mut found)?;
                found
            }
        };
        files.sort();
        files.dedup();
        Ok(files)
    }
}

impl Crate {
    /// The file that carries the crate's documentation: the library's root, or the program's where there is no library.
    pub(crate) fn root_file(&self) -> Option<&str> {
        let of =
            |kind| self.targets.iter().find(|target| target.kind == kind).map(|target| target.path.as_str());
        of(TargetKind::Lib).or_else(|| of(TargetKind::Bin))
    }
}

/// The cargo that runs us, or the one on the path.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// A command of cargo's. `cargo run` tells us about our own package, and cargo would take that for its own.
pub(crate) fn cargo_command() -> Command {
    let mut command = Command::new(cargo());
    without_own_package(&mut command);
    command
}

/// Takes from a command's environment what `cargo run` says about our own package.
pub(crate) fn without_own_package(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&variable);
        }
    }
}

/// Folders that a walk without git leaves out.
fn left_out(name: &str) -> bool {
    name == "target" || (name.starts_with('.') && !matches!(name, ".cargo" | ".ci" | ".config"))
}

fn walk(root: &Path, below: &str, found: &mut Vec<String>) -> Result<()> {
    let folder = root.join(below);
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !left_out(&name) {
            walk(root, &path, found)?;
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

/// The part of cargo's own format that is read.
mod raw {
    use super::{
        BTreeMap, Context, Crate, Dependency, DependencyKind, Deserialize, Path, PathBuf, Result, Target,
        TargetKind,
    };

    #[derive(Deserialize)]
    pub(super) struct Metadata {
        pub(super) workspace_root: String,
        pub(super) packages: Vec<Package>,
    }

    #[derive(Deserialize)]
    pub(super) struct Package {
        name: String,
        manifest_path: PathBuf,
        features: BTreeMap<String, Vec<String>>,
        dependencies: Vec<RawDependency>,
        targets: Vec<RawTarget>,
        #[serde(default)]
        metadata: Option<serde_json::Value>,
    }

    #[derive(Deserialize)]
    struct RawDependency {
        name: String,
        kind: Option<String>,
        optional: bool,
        path: Option<String>,
    }

    #[derive(Deserialize)]
    struct RawTarget {
        kind: Vec<String>,
        name: String,
        src_path: PathBuf,
    }

    impl Package {
        pub(super) fn into_crate(self, root: &Path) -> Result<Crate> {
            let folder = self.manifest_path.parent().context("a manifest lies in no folder")?;
            let skip_features =
                match self.metadata.as_ref().and_then(|all| all.get("xtask")?.get("skip-features")) {
                    None => BTreeMap::new(),
                    Some(table) => serde_json::from_value(table.clone()).with_context(|| {
                        format!("{}: skip-features is a table of feature = \"reason\"", self.name)
                    })?,
                };
            Ok(Crate {
                dir: relative(folder, root)?,
                features: self.features,
                skip_features,
                dependencies: self.dependencies.into_iter().map(Dependency::from).collect(),
                targets: self
                    .targets
                    .into_iter()
                    .map(|target| target.into_target(root))
                    .collect::<Result<_>>()?,
                name: self.name,
            })
        }
    }

    impl From<RawDependency> for Dependency {
        fn from(raw: RawDependency) -> Self {
            let kind = match raw.kind.as_deref() {
                Some("dev") => DependencyKind::Dev,
                Some("build") => DependencyKind::Build,
                _ => DependencyKind::Normal,
            };
            Self { name: raw.name, kind, optional: raw.optional, local: raw.path.is_some() }
        }
    }

    impl RawTarget {
        fn into_target(self, root: &Path) -> Result<Target> {
            let kind = match self.kind.first().map(String::as_str) {
                Some("bin") => TargetKind::Bin,
                Some("test") => TargetKind::Test,
                Some("bench") => TargetKind::Bench,
                Some("example") => TargetKind::Example,
                Some("custom-build") => TargetKind::Build,
                _ => TargetKind::Lib,
            };
            Ok(Target { kind, path: relative(&self.src_path, root)?, name: self.name })
        }
    }

    fn relative(path: &Path, root: &Path) -> Result<String> {
        let inside = path
            .strip_prefix(root)
            .with_context(|| format!("{} lies outside the workspace {}", path.display(), root.display()))?;
        Ok(inside.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/"))
    }
}
