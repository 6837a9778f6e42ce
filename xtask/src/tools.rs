//! The tools that some steps need, how to see whether they are there, and how to install them by package name.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::cargo;

/// A program that a step runs.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Name by which steps and `cargo xtask setup NAME` ask for it.
    pub(crate) name: &'static str,
    /// The programs whose presence proves it, the one that is run first. A name with `.so.` in it is a shared library, one
    /// that starts with `/` a file.
    programs: &'static [&'static str],
    /// What it is for.
    about: &'static str,
    install: Install,
    /// Whether everything runs without it, only slower or with less to show.
    optional: bool,
}

/// Where a tool comes from.
#[derive(Debug, Clone, Copy)]
enum Install {
    /// `cargo install --locked PACKAGE`
    Cargo(&'static str),
    /// `cargo install --locked PACKAGE@VERSION`, for a program that is of no use in another version
    Exactly(&'static str),
    /// `apt-get install PACKAGE...`, after a look at what there is now
    Apt(&'static [&'static str]),
    /// `rustup component add COMPONENT`
    Component(&'static str),
}

/// Every tool. A step that needs a new one gets a row here.
pub(crate) const TOOLS: &[Tool] = &[
    Tool { name: "cc", programs: &["cc"], about: "linker", install: Install::Apt(&["gcc"]), optional: false },
    Tool {
        name: "git",
        programs: &["git"],
        about: "list of files",
        install: Install::Apt(&["git"]),
        optional: false,
    },
    Tool {
        name: "rustfmt",
        programs: &["cargo-fmt"],
        about: "formatting",
        install: Install::Component("rustfmt"),
        optional: false,
    },
    Tool {
        name: "clippy",
        programs: &["cargo-clippy"],
        about: "lints",
        install: Install::Component("clippy"),
        optional: false,
    },
    Tool {
        name: "machete",
        programs: &["cargo-machete"],
        about: "dependencies that nothing uses",
        install: Install::Cargo("cargo-machete"),
        optional: false,
    },
    Tool {
        name: "typos",
        programs: &["typos"],
        about: "spelling",
        install: Install::Cargo("typos-cli"),
        optional: false,
    },
    Tool {
        name: "deny",
        programs: &["cargo-deny"],
        about: "licences, bans and sources of dependencies",
        install: Install::Cargo("cargo-deny"),
        optional: false,
    },
    Tool {
        name: "valgrind",
        programs: &["valgrind"],
        about: "counts instructions",
        install: Install::Apt(&["valgrind"]),
        optional: false,
    },
    Tool {
        name: "gungraun-runner",
        programs: &["gungraun-runner"],
        about: "runs the counted benchmarks under valgrind; its version is that of the crate gungraun",
        install: Install::Exactly("gungraun-runner@0.20.0"),
        optional: false,
    },
    Tool {
        name: "shellcheck",
        programs: &["shellcheck"],
        about: "faults in shell scripts",
        install: Install::Apt(&["shellcheck"]),
        optional: false,
    },
    Tool {
        name: "rdma-guest",
        programs: &["qemu-system-x86_64", "cpio", "depmod", "modprobe", "xz"],
        about: "makes and runs the guest with RDMA devices",
        install: Install::Apt(&["qemu-system-x86", "cpio", "kmod", "xz-utils"]),
        optional: false,
    },
    Tool {
        name: "hip-library",
        programs: &["libamdhip64.so.5"],
        about: "the real HIP runtime, which the loader of mori-xgmi is tested against; 18 MB, and no GPU is needed",
        install: Install::Apt(&["libamdhip64-5"]),
        optional: false,
    },
    Tool {
        name: "verbs-headers",
        programs: &[
            "cmake",
            "c++",
            "pkg-config",
            "libclang-14.so.1",
            "libibverbs.so.1",
            "/usr/include/libnl3/netlink/netlink.h",
            "/usr/include/infiniband/verbs.h",
        ],
        about: "builds the crate ibverbs-sys, with whose types those of mori-rdma are compared; 400 MB",
        install: Install::Apt(&[
            "cmake",
            "g++",
            "pkgconf",
            "libclang-14-dev",
            "libnl-3-dev",
            "libnl-route-3-dev",
            "libibverbs-dev",
        ]),
        optional: true,
    },
    Tool {
        name: "nextest",
        programs: &["cargo-nextest"],
        about: "runs tests in parallel processes; cargo test stands in",
        install: Install::Cargo("cargo-nextest"),
        optional: true,
    },
];

impl Tool {
    /// The tool of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    /// Whether it is on the path or among cargo's own programs, in a version that will do.
    pub(crate) fn is_there(&self) -> bool {
        self.path().is_some_and(|program| self.version().is_none_or(|wanted| is_of(&program, wanted)))
    }

    /// Where the program that is run is, if all of the tool is there.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let find = |name: &&str| {
            if name.starts_with('/') {
                Some(PathBuf::from(name)).filter(|file| file.is_file())
            } else if name.contains(".so.") {
                LIBRARIES.iter().map(|folder| Path::new(folder).join(name)).find(|library| library.is_file())
            } else {
                folders().iter().map(|folder| folder.join(name)).find(|program| is_program(program))
            }
        };
        let found: Option<Vec<PathBuf>> = self.programs.iter().map(find).collect();
        found?.into_iter().next()
    }

    /// The only version that will do, if not all do.
    fn version(&self) -> Option<&'static str> {
        match self.install {
            Install::Exactly(package) => package.split_once('@').map(|(_, version)| version),
            Install::Cargo(_) | Install::Apt(_) | Install::Component(_) => None,
        }
    }

    /// The command that installs it, for people to read.
    pub(crate) fn install_line(&self) -> String {
        let lines = self.install.commands();
        lines.iter().map(|(program, arguments)| line(program, arguments)).collect::<Vec<_>>().join(" && ")
    }

    fn install(&self) -> Result<()> {
        for (program, arguments) in self.install.commands() {
            let line = line(&program, &arguments);
            println!("setup: {}: {line}", self.name);
            let status = Command::new(&program).args(&arguments).status().with_context(|| {
                format!("{} does not run; install {} by hand", program.display(), self.name)
            })?;
            if !status.success() {
                bail!("{line} failed ({status})");
            }
        }
        if !self.is_there() {
            let programs = self.programs.join("`, `");
            bail!("{} is installed but not all of `{programs}` are where they are looked for", self.name);
        }
        Ok(())
    }
}

fn line(program: &Path, arguments: &[&str]) -> String {
    let program = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{program} {}", arguments.join(" "))
}

impl Install {
    fn commands(self) -> Vec<(PathBuf, Vec<&'static str>)> {
        match self {
            Self::Cargo(package) | Self::Exactly(package) => {
                vec![(cargo(), vec!["install", "--locked", package])]
            }
            Self::Apt(packages) => vec![
                ("apt-get".into(), vec!["update"]),
                ("apt-get".into(), [&["install", "--yes", "--no-install-recommends"], packages].concat()),
            ],
            Self::Component(component) => vec![("rustup".into(), vec!["component", "add", component])],
        }
    }
}

/// Whether the last word of what the program says about its version is this.
fn is_of(program: &Path, version: &str) -> bool {
    let Ok(output) = Command::new(program).arg("--version").output() else { return false };
    String::from_utf8_lossy(&output.stdout).split_whitespace().last() == Some(version)
}

/// Whether the tool of that name is there.
pub(crate) fn is_there(name: &str) -> bool {
    Tool::named(name).is_some_and(Tool::is_there)
}

/// Why something that needs these tools cannot run here, if one is missing.
pub(crate) fn missing(names: &[&str]) -> Option<String> {
    let tools = names.iter().filter_map(|name| Tool::named(name));
    let reasons: Vec<String> = tools
        .filter(|tool| !tool.is_there())
        .map(|tool| {
            let version = tool.version().map(|version| format!(" {version}")).unwrap_or_default();
            let name = tool.name;
            format!("{name}{version} is missing; `cargo xtask setup {name}` runs `{}`", tool.install_line())
        })
        .collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Installs what is missing, or with `check` only says what is. Without names: everything that is not optional. Returns
/// whether nothing that is needed is missing afterwards.
///
/// # Errors
///
/// When a name is unknown. A tool that cannot be installed is reported, and the others are still tried.
pub(crate) fn setup(names: &[String], check: bool) -> Result<bool> {
    let mut wanted = Vec::new();
    for name in names {
        let known = || TOOLS.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
        wanted.push(
            Tool::named(name)
                .with_context(|| format!("no tool is called `{name}`; there are {}", known()))?,
        );
    }
    if names.is_empty() {
        wanted.extend(TOOLS.iter().filter(|tool| check || !tool.optional));
    }
    let mut complete = true;
    for tool in wanted {
        if tool.is_there() {
            println!("setup: {}: there", tool.name);
        } else if check {
            let weight = if tool.optional { "missing, optional" } else { "missing" };
            println!(
                "setup: {}: {weight} ({}); install it with `{}`",
                tool.name,
                tool.about,
                tool.install_line()
            );
            complete &= tool.optional;
        } else if let Err(error) = tool.install() {
            println!("setup: {}: {error:#}", tool.name);
            complete = false;
        }
    }
    Ok(complete)
}

/// Where shared libraries are looked for.
const LIBRARIES: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/opt/rocm/lib"];

/// Where programs are looked for: the path, and the folders that cargo installs to.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    folders.extend(home.map(|home| home.join("bin")));
    folders.extend(env::var_os("CARGO_INSTALL_ROOT").map(|root| PathBuf::from(root).join("bin")));
    folders
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file() || path.with_extension("exe").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_told_from_one_that_is_there() {
        let absent = Tool {
            name: "absent",
            programs: &["no-program-has-this-name"],
            about: "nothing",
            install: Install::Cargo("no-package"),
            optional: false,
        };
        assert!(!absent.is_there());
        assert!(is_there("git"));
        assert!(!is_there("no such tool"));
        let library = |name| Tool { programs: name, ..absent };
        assert!(library(&["libc.so.6"]).is_there(), "the C library is everywhere");
        assert!(!library(&["libno-such-library.so.1"]).is_there());
        assert!(library(&["/etc/passwd"]).is_there());
        assert!(!library(&["/no/such/header.h"]).is_there());
    }

    #[test]
    fn a_tool_of_another_version_is_not_there() {
        let git = |package| Tool {
            name: "git",
            programs: &["git"],
            about: "files",
            install: Install::Exactly(package),
            optional: false,
        };
        assert!(git("git").is_there());
        assert!(!git("git@0.0.1").is_there());
    }

    #[test]
    fn the_runner_is_of_the_crates_version() {
        let runner = Tool::named("gungraun-runner").unwrap().version().unwrap();
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let line = manifest.lines().find(|line| line.starts_with("gungraun = ")).unwrap();
        assert!(line.contains(&format!("\"={runner}\"")), "setup installs {runner}, but {line}");
    }

    #[test]
    fn every_tool_says_how_it_is_installed() {
        let lines: Vec<String> = TOOLS.iter().map(Tool::install_line).collect();
        assert!(lines.contains(&"cargo install --locked typos-cli".to_owned()), "{lines:?}");
        assert!(lines.contains(&"rustup component add clippy".to_owned()), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("apt-get update && apt-get install")), "{lines:?}");
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = setup(&["nonsense".to_owned()], true).unwrap_err().to_string();
        assert!(error.contains("no tool is called `nonsense`") && error.contains("machete"), "{error}");
    }
}
