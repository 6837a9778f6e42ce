//! `cargo xtask rdma-guest`: a Linux under emulation that has RDMA devices without having the hardware.
//!
//! The guest's kernel and its RDMA tools come from Debian's packages ([`packages`], [`image`]) and are kept below
//! `target/rdma-guest`. The host's files lie below them, read-only, so that what was built on the host runs in the guest at its
//! own path and with its own libraries. Two soft-RoCE devices on the two ends of a virtual wire stand for two hosts;
//! `xtask/rdma-guest` has the scripts that the guest runs.

mod boot;
mod image;
mod packages;
mod programs;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::tools;
use crate::workspace::Workspace;
use image::Image;
use programs::{Count, Program};

pub(crate) use boot::Size;
pub(crate) use packages::Unavailable;

/// What runs the guest, by its name in [`tools::TOOLS`].
pub(crate) const TOOLS: &[&str] = &["rdma-guest"];

/// The scripts of the guest, relative to the root.
const SCRIPTS: &str = "xtask/rdma-guest";

/// The folder that the guest shares with the host, as the guest sees it.
const SHARED: &str = "/run/mori";

/// What the guest is to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// Run tests: those of these names or all, with these arguments for each test program.
    Tests {
        /// Names of integration tests; none stands for all.
        only: Vec<String>,
        /// Arguments for each test program.
        arguments: Vec<String>,
    },
    /// Run a line of bash.
    Command(String),
    /// Give a person a shell.
    Shell,
    /// Measure what perftest moves.
    Yardstick,
}

/// Makes the guest if there is none, boots it and does the work. Returns whether all went well, and a line about it.
///
/// # Errors
///
/// [`Unavailable`] when this machine cannot have a guest; otherwise when the tests do not build or the guest does not end by
/// itself.
pub(crate) fn run(workspace: &Workspace, size: &Size, work: &Work) -> Result<(bool, String)> {
    let image = prepare(workspace)?;
    let shared = boot::Shared::make(&workspace.root)?;
    let mut built = Vec::new();
    if let Work::Tests { only, .. } = work {
        built = programs::build(workspace, only)?;
        shared.put("tests", &list(&built))?;
    }
    shared.put("job", &job(&workspace.root, work))?;
    let start = Instant::now();
    let mut count = Count::default();
    let shell = matches!(work, Work::Shell);
    let ended = boot::run(&image, &shared, size, shell, |line| count.line(line))?;
    let mut note = format!("{} in {:.0} s", image.name(), start.elapsed().as_secs_f64());
    for complaint in &ended.complaints {
        println!("rdma-guest: the kernel complains: {complaint}");
    }
    let mut well = ended.status == 0 && ended.complaints.is_empty();
    if ended.status != 0 {
        let _ = write!(note, ", ended with status {}", ended.status);
    }
    if !ended.complaints.is_empty() {
        let _ = write!(note, ", {} complaints of the kernel", ended.complaints.len());
    }
    if matches!(work, Work::Tests { .. }) {
        let _ = write!(note, ", {} tests passed, {} failed", count.passed, count.failed);
        // A filter that fits nothing, or programs that find nothing to do, prove nothing.
        well &= built.is_empty() || count.passed > 0;
    }
    println!("rdma-guest: {note}");
    Ok((well, note))
}

/// The guest, made if need be.
fn prepare(workspace: &Workspace) -> Result<Image> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!(Unavailable::new("the guest runs programs that are built for x86-64 and Linux"));
    }
    if let Some(reason) = tools::missing(TOOLS) {
        bail!(Unavailable::new(reason));
    }
    Image::get(&workspace.root)
}

/// The programs as `mori-guest-tests` reads them.
fn list(programs: &[Program]) -> String {
    programs.iter().fold(String::new(), |mut text, program| {
        let Program { name, folder, path } = program;
        let _ = writeln!(text, "{name}\t{}\t{}", folder.display(), path.display());
        text
    })
}

/// The script that the guest runs in the host's files.
fn job(root: &Path, work: &Work) -> String {
    let scripts = root.join(SCRIPTS).display().to_string();
    let mut variables = vec![
        ("PATH", format!("{scripts}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")),
        ("HOME", "/tmp".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        // In here a test that finds no device fails instead of being skipped.
        ("RDMA_REQUIRED", "1".to_owned()),
    ];
    if let (Work::Shell, Some(term)) = (work, std::env::var_os("TERM")) {
        variables.push(("TERM", PathBuf::from(term).display().to_string()));
    }
    let mut text = String::new();
    for (name, value) in variables {
        let _ = writeln!(text, "export {name}={}", quoted(&value));
    }
    let _ = writeln!(text, "cd {} || exit", quoted(&root.display().to_string()));
    let _ = writeln!(text, "mori-guest-net up || exit");
    let _ = match work {
        Work::Tests { arguments, .. } => {
            let arguments: String =
                arguments.iter().map(|argument| format!(" {}", quoted(argument))).collect();
            writeln!(text, "mori-guest-net check || exit\nexec mori-guest-tests {SHARED}/tests{arguments}")
        }
        Work::Command(line) => writeln!(text, "exec bash -c {}", quoted(line)),
        Work::Shell => writeln!(text, "exec bash --noprofile --norc -i"),
        Work::Yardstick => writeln!(text, "exec mori-guest-yardstick"),
    };
    text
}

/// A word as bash reads it, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_the_guest_runs_keeps_its_words() {
        let line = r#"printf '%s|' "it's" '$HOME' a\b"#.to_owned();
        let work = Work::Command(line);
        let script = job(Path::new("/"), &work).replace("mori-guest-net up || exit", ":");
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's|$HOME|ab|");
    }

    #[test]
    fn tests_get_their_list_and_their_arguments() {
        let work = Work::Tests { only: Vec::new(), arguments: vec!["--exact".to_owned(), "a b".to_owned()] };
        let script = job(Path::new("/w"), &work);
        assert!(script.contains("export PATH='/w/xtask/rdma-guest:"), "{script}");
        assert!(script.ends_with("exec mori-guest-tests /run/mori/tests '--exact' 'a b'\n"), "{script}");
        let program = Program { name: "x/guest_x".into(), folder: "/w/x".into(), path: "/t/guest_x".into() };
        assert_eq!(list(&[program]), "x/guest_x\t/w/x\t/t/guest_x\n");
    }
}
