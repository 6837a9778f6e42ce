//! One run of the guest under emulation: what it is to do goes in by a shared folder, and how that ended comes back by it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::image::{FOLDER, Image};

/// The emulator, by its name in [`crate::tools::TOOLS`].
const EMULATOR: &str = "qemu-system-x86_64";

/// The status with which `timeout` tells that it has ended the command.
const TIMED_OUT: i32 = 124;

/// What starts a line of the kernel's log that must not be there, and is followed by its reason.
const COMPLAINTS: &[&str] =
    &["BUG:", "Oops", "WARNING:", "general protection fault", "blocked for more than"];

/// The size of the guest, and how long it may run.
#[derive(Debug, Clone)]
pub(crate) struct Size {
    /// Virtual processors.
    pub(crate) cpus: u32,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Seconds from its start to its end.
    pub(crate) timeout: u64,
}

/// The folder that one run shares with its guest; it goes when the run is over.
#[derive(Debug)]
pub(super) struct Shared {
    folder: PathBuf,
}

/// How a run has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The exit status of what was to be done.
    pub(super) status: i32,
    /// What the kernel complained of, a line each.
    pub(super) complaints: Vec<String>,
}

impl Shared {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub(super) fn make(root: &Path) -> Result<Self> {
        let folder = root.join(FOLDER).join(format!("part-run-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Puts a file into it.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn put(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads a file that the guest has written.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub(super) fn read(&self, name: &str) -> Result<String> {
        let bytes = fs::read(self.folder.join(name))
            .with_context(|| format!("the guest has ended before it wrote `{name}`; see what it printed"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("rdma-guest: {} stays: {error}", self.folder.display());
        }
    }
}

/// Boots the guest, which runs the script `job` of the shared folder and ends. With `shell` the terminal is the guest's;
/// otherwise every line that it prints goes to `line` first.
///
/// # Errors
///
/// When the emulator does not run, the time runs out, or the guest ends without a status.
pub(super) fn run(
    image: &Image,
    shared: &Shared,
    size: &Size,
    shell: bool,
    line: impl FnMut(&str),
) -> Result<Ended> {
    let mut command = if shell { Command::new(EMULATOR) } else { limited(size.timeout) };
    command.args(arguments(image, shared, size, shell));
    let status = if shell { command.status() } else { watch(&mut command, line) };
    let status = status.with_context(|| format!("{EMULATOR} does not run"))?;
    if !shell && status.code() == Some(TIMED_OUT) {
        bail!("the guest was ended after {} s; `--timeout` gives it more", size.timeout);
    }
    if !status.success() {
        bail!("{EMULATOR} failed ({status})");
    }
    let said = shared.read("status")?;
    let status = said.trim().parse().with_context(|| format!("the guest ended with the status `{said}`"))?;
    Ok(Ended { status, complaints: complaints(&shared.read("dmesg")?) })
}

/// The emulator, ended when the time is over.
fn limited(seconds: u64) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=5", &seconds.to_string(), EMULATOR]);
    command
}

fn arguments(image: &Image, shared: &Shared, size: &Size, shell: bool) -> Vec<String> {
    let share = |tag: &str, path: &Path, how: &str| {
        // A comma in a path is written twice.
        let path = path.display().to_string().replace(',', ",,");
        [
            "-fsdev".to_owned(),
            format!("local,id={tag},path={path},security_model=none{how}"),
            "-device".to_owned(),
            format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]
    };
    let asked = if shell { " mori.shell=1" } else { "" };
    let mut arguments: Vec<String> = [
        "-machine",
        "pc,hpet=off",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-nic",
        "none",
        "-serial",
        if shell { "mon:stdio" } else { "stdio" },
        "-append",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(format!(
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable log_buf_len=1M{asked}"
    ));
    let pairs = [
        ("-smp", size.cpus.to_string()),
        ("-m", size.memory.to_string()),
        ("-kernel", image.kernel.display().to_string()),
        ("-initrd", image.memory.display().to_string()),
    ];
    arguments.extend(pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    arguments.extend(share("packages", &image.packages, ",readonly=on"));
    arguments.extend(share("host", Path::new("/"), ",readonly=on,multidevs=remap"));
    arguments.extend(share("run", &shared.folder, ""));
    arguments
}

/// Runs a command, prints its lines as they come, and shows each to `line`.
fn watch(command: &mut Command, mut line: impl FnMut(&str)) -> std::io::Result<std::process::ExitStatus> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    if let Some(output) = child.stdout.take() {
        let mut reader = BufReader::new(output);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes)? > 0 {
            let text = plain(&String::from_utf8_lossy(&bytes));
            println!("{text}");
            line(&text);
            bytes.clear();
        }
    }
    child.wait()
}

/// A line of a terminal without what moves its cursor and colours it.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut letters = line.chars().filter(|letter| !matches!(letter, '\r' | '\n')).peekable();
    while let Some(letter) = letters.next() {
        if letter != '\x1b' {
            text.push(letter);
        } else if letters.next_if_eq(&'[').is_some() {
            for letter in letters.by_ref() {
                if letter.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            letters.next();
        }
    }
    text
}

/// The lines of the kernel's log that tell of a fault in it.
fn complaints(log: &str) -> Vec<String> {
    let complains = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
    log.lines().filter(complains).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminals_line_becomes_plain_text() {
        assert_eq!(
            plain("\x1bc\x1b[2J\x1b[1;31mtest result: ok\x1b[0m. 3 passed\r\n"),
            "test result: ok. 3 passed"
        );
        assert_eq!(plain("\x1b["), "");
    }

    #[test]
    fn faults_of_the_kernel_are_found_and_ordinary_lines_are_not() {
        let log = "\
[    1.5] PCI: Using host bridge windows from ACPI; if necessary, use \"pci=nocrs\" and report a bug
[    2.9] AMD-Vi: AMD IOMMUv2 functionality not available on this system - This is not a bug.
[    9.1] WARNING: CPU: 1 PID: 77 at drivers/infiniband/sw/rxe/rxe_pool.c:105
[    9.2] BUG: kernel NULL pointer dereference, address: 0000000000000008
[    9.3] Oops: 0000 [#1] PREEMPT SMP";
        assert_eq!(complaints(log).len(), 3);
    }

    #[test]
    fn the_host_is_shared_read_only_and_a_comma_does_not_end_a_path() {
        let place = |path: &str| PathBuf::from(path);
        let image = Image { kernel: place("k"), memory: place("m"), packages: place("a,b") };
        let shared = Shared { folder: std::env::temp_dir().join("no,such folder") };
        let arguments =
            arguments(&image, &shared, &Size { cpus: 2, memory: 512, timeout: 1 }, false).join(" ");
        std::mem::forget(shared);
        assert!(arguments.contains("id=host,path=/,security_model=none,readonly=on"), "{arguments}");
        assert!(arguments.contains("path=a,,b,") && arguments.contains("no,,such folder"), "{arguments}");
        assert!(arguments.contains("-smp 2 -m 512 -kernel k -initrd m"), "{arguments}");
    }
}
