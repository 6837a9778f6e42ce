//! What the guest boots from: the kernel, and a first file system in memory with the modules and the program that lays the
//! rest over each other.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::packages::{Packages, Unavailable, quietly};

/// Where guests are kept, relative to the root.
pub(super) const FOLDER: &str = "target/rdma-guest";

/// The modules of the guest, without those that they depend on. `crc32_generic` is one that `rdma_rxe` needs and does not name:
/// without it no device can be added.
const MODULES: &[&str] = &[
    "crc32_generic",
    "crc32_pclmul",
    "rdma_rxe",
    "rdma_ucm",
    "ib_umad",
    "veth",
    "sch_netem",
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "overlay",
];

/// What the first program uses of busybox.
const APPLETS: &[&str] = &[
    "cat", "chroot", "cttyhack", "dmesg", "echo", "grep", "insmod", "ip", "mkdir", "mount", "poweroff",
    "setsid", "sh", "sync",
];

/// The first program.
const INIT: &str = include_str!("../../rdma-guest/init");

/// A guest that can be booted.
#[derive(Debug)]
pub(super) struct Image {
    /// The kernel, uncompressed: to unpack itself takes it seconds under emulation.
    pub(super) kernel: PathBuf,
    /// The first file system.
    pub(super) memory: PathBuf,
    /// What is laid over the host's files.
    pub(super) packages: PathBuf,
}

impl Image {
    /// The guest that was made from the newest packages, or makes it. When the packages are not to be had, one that was made
    /// from older ones will do.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when there are neither packages nor an older guest; otherwise when it cannot be made from them.
    pub(super) fn get(root: &Path) -> Result<Self> {
        let folder = root.join(FOLDER);
        match Self::newest(&folder) {
            Err(error) if error.is::<Unavailable>() => match Self::older(&folder) {
                Some(image) => {
                    println!("rdma-guest: {error}; {} is used", image.name());
                    Ok(image)
                }
                None => Err(error),
            },
            other => other,
        }
    }

    fn newest(folder: &Path) -> Result<Self> {
        let packages = Packages::offered()?;
        let place = folder.join(packages.key((MODULES, APPLETS, INIT)));
        if !place.exists() {
            println!("rdma-guest: making {}", place.display());
            // Somebody else may make the same one: it appears when it is complete.
            let part = folder.join(format!("part-{}", std::process::id()));
            let made = make(&packages, &part);
            let moved = made.and_then(|()| match fs::rename(&part, &place) {
                Err(error) if !place.exists() => Err(error).context("the guest cannot be moved"),
                _ => Ok(()),
            });
            if part.exists() {
                fs::remove_dir_all(&part).with_context(|| format!("cannot remove {}", part.display()))?;
            }
            moved?;
        }
        Ok(Self::at(&place))
    }

    /// The one that was made last.
    fn older(folder: &Path) -> Option<Self> {
        let places = fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        let complete = places.filter(|place| {
            let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
            !name.starts_with("part-") && place.join("versions").exists()
        });
        let made = |place: &PathBuf| fs::metadata(place).and_then(|about| about.modified()).ok();
        complete.max_by_key(made).map(|place| Self::at(&place))
    }

    fn at(place: &Path) -> Self {
        Self {
            kernel: place.join("vmlinux"),
            memory: place.join("memory.cpio"),
            packages: place.join("packages"),
        }
    }

    /// The name of its folder.
    pub(super) fn name(&self) -> String {
        let place = self.packages.parent().and_then(Path::file_name).unwrap_or_default();
        place.to_string_lossy().into_owned()
    }
}

/// Downloads the packages and makes a guest from them in `place`.
fn make(packages: &Packages, place: &Path) -> Result<()> {
    let [downloads, kernel, shell] = ["downloads", "kernel", "shell"].map(|name| place.join(name));
    fs::create_dir_all(&downloads).with_context(|| format!("cannot make {}", downloads.display()))?;
    packages.download(&downloads)?;
    packages.unpack_kernel(&downloads, &kernel)?;
    Packages::unpack_shell(&downloads, &shell)?;
    Packages::unpack_user_land(&downloads, &place.join("packages"))?;
    let image = kernel.join("boot").join(format!("vmlinuz-{}", packages.release));
    extract(&image, &place.join("vmlinux"))?;
    let memory = place.join("memory");
    lay_out(&memory, &shell.join("bin/busybox"))?;
    modules(&kernel, &packages.release, &memory.join("modules"))?;
    archive(&memory, &place.join("memory.cpio"))?;
    for folder in [downloads, kernel, shell, memory] {
        fs::remove_dir_all(folder)?;
    }
    fs::write(place.join("versions"), packages.list())?;
    Ok(())
}

/// The first file system without its modules.
fn lay_out(memory: &Path, busybox: &Path) -> Result<()> {
    for folder in ["bin", "dev", "host", "modules", "over", "packages", "proc", "sys", "whole"] {
        fs::create_dir_all(memory.join(folder))?;
    }
    fs::copy(busybox, memory.join("bin/busybox")).context("the package of the shell has no busybox")?;
    for applet in APPLETS {
        symlink("busybox", memory.join("bin").join(applet))?;
    }
    let init = memory.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Copies the modules and what they depend on, and writes down the order in which they load.
fn modules(kernel: &Path, release: &str, to: &Path) -> Result<()> {
    quietly(Command::new("depmod").arg("--basedir").arg(kernel).arg(release))?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let output = Command::new("modprobe")
            .arg("--dirname")
            .arg(kernel)
            .args(["--set-version", release, "--show-depends", module])
            .output()
            .context("modprobe does not run")?;
        if !output.status.success() {
            bail!("the kernel {release} has no module `{module}`");
        }
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        for file in shown.lines().filter_map(|line| line.trim().strip_prefix("insmod ")) {
            let file = Path::new(file.trim());
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !order.contains(&name) {
                fs::copy(file, to.join(&name)).with_context(|| format!("cannot copy {}", file.display()))?;
                order.push(name);
            }
        }
    }
    fs::write(to.join("order"), order.join("\n") + "\n")?;
    Ok(())
}

/// Packs a folder in the format that the kernel unpacks into its first file system.
fn archive(folder: &Path, to: &Path) -> Result<()> {
    quietly(
        Command::new("sh")
            .args(["-c", r#"find . | sort | cpio --create --format=newc --owner=0:0 --quiet >"$1""#, "sh"])
            .arg(to)
            .current_dir(folder),
    )
}

/// Takes the uncompressed kernel out of the image that is installed on disks.
fn extract(image: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload =
        payload(&bytes).with_context(|| format!("{} is no kernel of a known form", image.display()))?;
    let program = unpacker(payload).context("the kernel is compressed in an unknown way")?;
    let packed = to.with_extension("packed");
    fs::write(&packed, payload)?;
    let mut command = Command::new(program);
    command.args(["--decompress", "--stdout"]).stdin(fs::File::open(&packed)?);
    // A format may be followed by what it does not count as its own, so that the status says nothing.
    let output =
        command.stderr(Stdio::piped()).output().with_context(|| format!("{program} does not run"))?;
    fs::remove_file(&packed)?;
    if !output.stdout.starts_with(b"\x7fELF") {
        bail!("{program} makes no kernel: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    fs::write(to, &output.stdout)?;
    Ok(())
}

/// The compressed kernel within the image, by the fields of its boot header.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = usize::from(*image.get(0x1f1)?);
    let start = ((sectors + 1) * 512).checked_add(number(0x248)?)?;
    image.get(start..start.checked_add(number(0x24c)?)?)
}

/// The program that decompresses what starts like this.
fn unpacker(payload: &[u8]) -> Option<&'static str> {
    const FORMATS: [(&[u8], &str); 3] =
        [(b"\xfd7zXZ\0", "xz"), (b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")];
    FORMATS.iter().find(|(start, _)| payload.starts_with(start)).map(|(_, program)| *program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(offset: u32, length: u32) -> Vec<u8> {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&offset.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image[1024 + 16..1024 + 18].copy_from_slice(b"\x1f\x8b");
        image
    }

    #[test]
    fn the_payload_lies_where_the_header_says() {
        let whole = image(16, 100);
        let found = payload(&whole).unwrap();
        assert_eq!((found.len(), unpacker(found)), (100, Some("gzip")));
        assert_eq!(unpacker(b"other"), None);
    }

    #[test]
    fn a_header_that_points_outside_is_refused() {
        assert!(payload(&image(16, 100)[..0x230]).is_none());
        assert!(payload(&image(16, 5000)).is_none());
        assert!(payload(&image(u32::MAX, u32::MAX)).is_none());
        let mut other = image(16, 100);
        other[0x202] = b'X';
        assert!(payload(&other).is_none());
    }
}
