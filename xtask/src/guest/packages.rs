//! What the guest consists of: Debian packages, in the versions that the host's lists name.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Names Debian's standard kernel, of which the newest one is taken. The cloud kernel has no soft-RoCE.
const KERNEL: &str = "linux-image-amd64";

/// The shell that the kernel starts first.
pub(super) const SHELL: &str = "busybox-static";

/// What is laid over the host's files in the guest: the verbs, what looks at and changes the network, perftest, and the
/// libraries of these that not every host has.
const USER_LAND: &[&str] = &[
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libbpf1",
    "libbsd0",
    "libcap2",
    "libdb5.3",
    "libelf1",
    "libibumad3",
    "libibverbs1",
    "libmnl0",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpci3",
    "librdmacm1",
    "libselinux1",
    "libtirpc3",
    "libxtables12",
    "perftest",
    "rdmacm-utils",
];

/// Why there can be no guest on this machine now: nothing of ours has failed.
#[derive(Debug)]
pub(crate) struct Unavailable(String);

impl Unavailable {
    /// For this reason.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Packages with their versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packages {
    /// The kernel's release, as in the name of its package.
    pub(super) release: String,
    versions: BTreeMap<String, String>,
}

impl Packages {
    /// What the lists of packages offer; they are fetched if there are none.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when the packages are not to be had.
    pub(super) fn offered() -> Result<Self> {
        match Self::listed() {
            Ok(packages) => Ok(packages),
            Err(_) => {
                refresh()?;
                Self::listed()
            }
        }
    }

    fn listed() -> Result<Self> {
        let names = || [KERNEL, SHELL].into_iter().chain(USER_LAND.iter().copied());
        let output = Command::new("apt-cache")
            .args(["show", "--no-all-versions"])
            .args(names())
            .output()
            .map_err(|error| Unavailable::new(format!("apt-cache does not run: {error}")))?;
        let shown = parse(&String::from_utf8_lossy(&output.stdout));
        if let Some(missing) = names().find(|name| !shown.versions.contains_key(*name)) {
            bail!(Unavailable::new(format!(
                "no list of packages names `{missing}`; guests are made from Debian's"
            )));
        }
        if shown.release.is_empty() {
            bail!(Unavailable::new(format!("`{KERNEL}` depends on no kernel")));
        }
        Ok(shown)
    }

    /// A name for the guest that is made from these versions in this way.
    pub(super) fn key(&self, recipe: impl Hash) -> String {
        let mut hasher = DefaultHasher::new();
        self.versions.hash(&mut hasher);
        recipe.hash(&mut hasher);
        format!("{}-{:016x}", self.release, hasher.finish())
    }

    /// The versions, a line each.
    pub(super) fn list(&self) -> String {
        self.versions.iter().map(|(name, version)| format!("{name} {version}\n")).collect()
    }

    /// Downloads them into `folder`; the lists are fetched anew if what they name is gone.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when they cannot be downloaded.
    pub(super) fn download(&self, folder: &Path) -> Result<()> {
        if self.attempt(folder).is_err() {
            refresh()?;
            self.attempt(folder)?;
        }
        Ok(())
    }

    fn attempt(&self, folder: &Path) -> Result<()> {
        let mut command = Command::new("apt-get");
        command.args(["--quiet=2", "download", &self.kernel(), SHELL]).args(USER_LAND);
        quietly(command.current_dir(folder)).map_err(|why| Unavailable::new(why.to_string()).into())
    }

    fn kernel(&self) -> String {
        format!("linux-image-{}", self.release)
    }

    /// The file of a package in the folder that it was downloaded to.
    fn file(folder: &Path, name: &str) -> Result<PathBuf> {
        let start = format!("{name}_");
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&start) {
                return Ok(entry.path());
            }
        }
        bail!("apt-get has downloaded no `{name}`")
    }

    /// Unpacks the kernel and its modules.
    pub(super) fn unpack_kernel(&self, from: &Path, to: &Path) -> Result<()> {
        unpack(&Self::file(from, &self.kernel())?, to)
    }

    /// Unpacks the shell.
    pub(super) fn unpack_shell(from: &Path, to: &Path) -> Result<()> {
        unpack(&Self::file(from, SHELL)?, to)
    }

    /// Unpacks everything else.
    pub(super) fn unpack_user_land(from: &Path, to: &Path) -> Result<()> {
        // A folder of this name would hide the host's link of the same name, and what lies behind it.
        for name in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(to.join("usr").join(name))?;
            std::os::unix::fs::symlink(Path::new("usr").join(name), to.join(name))?;
        }
        USER_LAND.iter().try_for_each(|name| unpack(&Self::file(from, name)?, to))
    }
}

/// Reads the paragraphs that `apt-cache show` prints.
fn parse(shown: &str) -> Packages {
    let mut packages = Packages { release: String::new(), versions: BTreeMap::new() };
    for paragraph in shown.split("\n\n") {
        let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let (Some(name), Some(version)) = (field("Package:"), field("Version:")) else { continue };
        packages.versions.insert(name.to_owned(), version.to_owned());
        if name == KERNEL {
            let depends = field("Depends:").unwrap_or_default();
            let release = depends.split([',', '|', ' ']).find_map(|word| word.strip_prefix("linux-image-"));
            packages.release = release.unwrap_or_default().to_owned();
        }
    }
    packages
}

/// Unpacks a package; links to folders that are there already are followed.
fn unpack(package: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    quietly(
        Command::new("sh")
            .args(["-c", r#"dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2""#, "sh"])
            .args([package, to]),
    )
}

/// Fetches the lists of packages.
fn refresh() -> Result<()> {
    println!("rdma-guest: apt-get update");
    quietly(Command::new("apt-get").args(["--quiet=2", "update"]))
        .map_err(|why| Unavailable::new(why.to_string()).into())
}

/// Runs a command that prints only when it fails.
pub(super) fn quietly(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} does not run"))?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{name} {}` failed ({}): {}", arguments.join(" "), output.status, said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
Package: linux-image-amd64
Version: 6.1.9-3
Depends: linux-image-6.1.0-57-amd64 (= 6.1.9-3)

Package: perftest
Source: perftest (4.5)
Version: 4.5-1
Depends: libibverbs1 (>= 32), libpci3 (>= 1:3.8.0)
";

    #[test]
    fn the_kernel_is_what_the_meta_package_depends_on() {
        let packages = parse(SHOWN);
        assert_eq!(packages.kernel(), "linux-image-6.1.0-57-amd64");
        assert_eq!(packages.list(), "linux-image-amd64 6.1.9-3\nperftest 4.5-1\n");
    }

    #[test]
    fn another_version_or_recipe_is_another_guest() {
        let packages = parse(SHOWN);
        let newer = parse(&SHOWN.replace("4.5-1", "4.5-2"));
        assert_eq!(packages.key("one"), parse(SHOWN).key("one"));
        assert_ne!(packages.key("one"), newer.key("one"));
        assert_ne!(packages.key("one"), packages.key("two"));
        assert!(packages.key("one").starts_with("6.1.0-57-amd64-"));
    }

    #[test]
    fn what_failed_says_why() {
        let error = quietly(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("exit status: 3") && said.ends_with("no such thing"), "{said}");
    }
}
