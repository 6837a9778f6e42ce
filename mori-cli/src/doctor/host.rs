//! What the machine and its kernel say: processors, memory, limits, containers.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::{Finding, Findings};

/// The variable that overrides the node's name.
const NODE_ID: &str = "MORI_NODE_ID";
/// Fewer open files than this are few for an engine with many peers.
const FEW_FILES: u64 = 4096;

/// A tree with `proc` and `sys` in it: `/`, or another one in tests.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// The tree below a folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A path in it.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.0.join(relative)
    }

    /// What stands in a file, without the white space around it; none if it is not there or cannot be read.
    pub fn read(&self, relative: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.path(relative)).ok()?.trim().to_owned())
    }

    /// The names in a folder, sorted.
    pub fn names(&self, relative: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(relative)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether something is there.
    pub fn has(&self, relative: impl AsRef<Path>) -> bool {
        self.path(relative).exists()
    }

    /// The value of a line `name: value` of this process's status.
    fn status(&self, name: &str) -> Option<String> {
        let text = self.read("proc/self/status")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    /// A limit of this process, soft and hard, as the kernel words them.
    fn limit(&self, name: &str) -> Option<(String, String)> {
        let text = self.read("proc/self/limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    }
}

/// Looks at the host.
pub fn look(root: &Root) -> Vec<Finding> {
    let mut host = Findings::of("host");
    system(root, &mut host);
    processors(root, &mut host);
    memory(root, &mut host);
    limits(root, &mut host);
    container(root, &mut host);
    host.into_list()
}

fn system(root: &Root, host: &mut Findings) {
    let word = |name: &str| root.read(format!("proc/sys/kernel/{name}"));
    let kernel = [word("ostype"), word("osrelease")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let name = word("hostname").unwrap_or_else(|| "a host without a name".to_owned());
    host.note("system", format!("{name}, {kernel}"));
    match (std::env::var(NODE_ID).ok().filter(|id| !id.is_empty()), word("random/boot_id")) {
        (Some(id), _) => host.note("node id", format!("{id} ({NODE_ID})")),
        (None, Some(id)) => host.note("node id", format!("{id} (of this boot)")),
        (None, None) => host.warn(
            "node id",
            "the kernel tells no boot id",
            "set MORI_NODE_ID to a name that all processes of this host share, and no other host's",
        ),
    }
}

fn processors(root: &Root, host: &mut Findings) {
    let online = root.read("sys/devices/system/cpu/online");
    let allowed = root.status("Cpus_allowed_list");
    let (all, own) = (online.as_deref().map(count), allowed.as_deref().map(count));
    let quota = quota(root);
    let found = match (all, own) {
        (Some(all), Some(own)) if own < all => {
            format!("{own} of {all} ({})", allowed.unwrap_or_default())
        }
        (_, Some(own)) => own.to_string(),
        (Some(all), None) => all.to_string(),
        (None, None) => "the kernel does not say how many".to_owned(),
    };
    match quota {
        Some(quota) if own.or(all).is_some_and(|own| quota < own as f64) => host.warn(
            "processors",
            format!("{found}, but time for {quota:.1} of them"),
            "raise the control group's cpu.max (in a container: its CPU limit), or expect pauses under load",
        ),
        _ => host.note("processors", found),
    }
    let nodes: Vec<String> = numa_nodes(root)
        .iter()
        .map(|(node, processors)| format!("{node}: processors {processors}"))
        .collect();
    if nodes.len() > 1 {
        host.note("numa nodes", nodes.join("; "));
    } else {
        host.note("numa nodes", "one");
    }
}

/// The NUMA nodes with the list of their processors.
fn numa_nodes(root: &Root) -> Vec<(u32, String)> {
    const NODES: &str = "sys/devices/system/node";
    let number = |name: String| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut nodes: Vec<u32> = root.names(NODES).into_iter().filter_map(number).collect();
    nodes.sort_unstable();
    let with_list = |node| (node, root.read(format!("{NODES}/node{node}/cpulist")).unwrap_or_default());
    nodes.into_iter().map(with_list).collect()
}

/// How many numbers a list like `0-3,8` has.
fn count(list: &str) -> usize {
    let one = |part: &str| match part.split_once('-') {
        None => usize::from(part.trim().parse::<usize>().is_ok()),
        Some((first, last)) => match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if last >= first => last - first + 1,
            _ => 0,
        },
    };
    list.split(',').map(one).sum()
}

/// The processors' worth of time that the control group allows, if it sets a limit.
fn quota(root: &Root) -> Option<f64> {
    let text = root.read("sys/fs/cgroup/cpu.max")?;
    let (most, period) = text.split_once(' ')?;
    let (most, period) = (most.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then(|| most / period)
}

fn memory(root: &Root, host: &mut Findings) {
    let meminfo = root.read("proc/meminfo").unwrap_or_default();
    let kibibytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let amount = |name| kibibytes(name).map_or_else(|| "?".to_owned(), |kib| bytes(kib.saturating_mul(1024)));
    let mut found = format!("{}, {} available", amount("MemTotal"), amount("MemAvailable"));
    if let Some(most) = root.read("sys/fs/cgroup/memory.max").and_then(|most| most.parse::<u64>().ok()) {
        found.push_str(&format!(", at most {} for this control group", bytes(most)));
    }
    host.note("memory", found);

    let mut pools = Vec::new();
    for name in root.names("sys/kernel/mm/hugepages") {
        let number =
            |file: &str| root.read(format!("sys/kernel/mm/hugepages/{name}/{file}"))?.parse::<u64>().ok();
        let size =
            name.strip_prefix("hugepages-").and_then(|size| size.strip_suffix("kB")?.parse::<u64>().ok());
        let all = number("nr_hugepages").filter(|all| *all > 0);
        if let (Some(size), Some(all), Some(free)) = (size, all, number("free_hugepages")) {
            pools.push(format!("{free} of {all} of {} free", bytes(size.saturating_mul(1024))));
        }
    }
    let transparent = root.read("sys/kernel/mm/transparent_hugepage/enabled");
    let mode = transparent.as_deref().and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0));
    if let Some(mode) = mode {
        pools.push(format!("transparent: {mode}"));
    }
    host.note("huge pages", if pools.is_empty() { "none".to_owned() } else { pools.join("; ") });
}

fn limits(root: &Root, host: &mut Findings) {
    match root.limit("Max locked memory") {
        None => host.note("memory lock", "the kernel does not say"),
        Some((soft, _)) if soft == "unlimited" => host.ok("memory lock", "unlimited"),
        Some((soft, hard)) => host.warn(
            "memory lock",
            format!("{} (hard limit {})", in_bytes(&soft), in_bytes(&hard)),
            "RDMA registers no more than this: `ulimit -l unlimited`, LimitMEMLOCK=infinity for a service, \
             or --ulimit memlock=-1 for a container",
        ),
    }
    match root.limit("Max open files") {
        None => host.note("open files", "the kernel does not say"),
        Some((soft, hard)) => match soft.parse::<u64>() {
            Ok(files) if files < FEW_FILES => host.warn(
                "open files",
                format!("{files} (hard limit {hard})"),
                "each peer takes a few: raise it with `ulimit -n`, or LimitNOFILE for a service",
            ),
            _ => host.ok("open files", soft),
        },
    }
}

fn container(root: &Root, host: &mut Findings) {
    let mut signs = Vec::new();
    for file in [".dockerenv", "run/.containerenv"] {
        if root.has(file) {
            signs.push(format!("/{file} is there"));
        }
    }
    if root.status("NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1) {
        signs.push("a PID namespace below the one that /proc shows".to_owned());
    }
    if root.has("var/run/secrets/kubernetes.io") {
        signs.push("a Kubernetes service account".to_owned());
    }
    host.note("container", if signs.is_empty() { "no sign of one".to_owned() } else { signs.join("; ") });
}

/// A limit in words, if it is a number of bytes.
fn in_bytes(limit: &str) -> String {
    limit.parse().map_or_else(|_| limit.to_owned(), bytes)
}

/// An amount in the largest unit that leaves a whole number before the point.
pub fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if amount < 1024 {
        return format!("{amount} B");
    }
    let (mut value, mut unit) = (amount as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).unwrap_or(&"PiB");
    if value.fract() == 0.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let root = Root::new(folder.path());
        (folder, root)
    }

    fn find<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.what == what).expect("found")
    }

    #[test]
    fn a_machine_that_tells_nothing_is_told_without_failing() {
        let (_folder, root) = tree(&[]);
        let findings = look(&root);
        assert!(findings.iter().all(|finding| finding.verdict != Verdict::Absent));
        assert_eq!(find(&findings, "processors").found, "the kernel does not say how many");
        assert_eq!(find(&findings, "memory").found, "?, ? available");
    }

    #[test]
    fn limits_and_shares_are_told() {
        const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max locked memory         8388608              unlimited            bytes
Max open files            1024                 524288               files
";
        let (_folder, root) = tree(&[
            ("proc/self/limits", LIMITS),
            ("proc/self/status", "Name:\tmori\nCpus_allowed_list:\t0-1,4\nNSpid:\t77\t1\n"),
            ("proc/meminfo", "MemTotal:       2097152 kB\nMemAvailable:    1536 kB\n"),
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/devices/system/node/possible", "0-1\n"),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "10\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "4\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            (".dockerenv", ""),
        ]);
        let findings = look(&root);
        let lock = find(&findings, "memory lock");
        assert_eq!((lock.verdict, lock.found.as_str()), (Verdict::Warning, "8 MiB (hard limit unlimited)"));
        assert!(lock.advice.contains("ulimit -l unlimited"));
        assert_eq!(find(&findings, "open files").found, "1024 (hard limit 524288)");
        let processors = find(&findings, "processors");
        assert_eq!(processors.verdict, Verdict::Warning);
        assert_eq!(processors.found, "3 of 8 (0-1,4), but time for 1.5 of them");
        assert_eq!(find(&findings, "numa nodes").found, "0: processors 0-3; 1: processors 4-7");
        let memory = &find(&findings, "memory").found;
        assert_eq!(memory, "2 GiB, 1.5 MiB available, at most 1 GiB for this control group");
        assert_eq!(find(&findings, "huge pages").found, "4 of 10 of 2 MiB free; transparent: madvise");
        let container = &find(&findings, "container").found;
        assert!(container.contains(".dockerenv") && container.contains("PID namespace"), "{container}");
    }

    #[test]
    fn good_limits_are_ok() {
        const LIMITS: &str = "\
Max locked memory         unlimited            unlimited            bytes
Max open files            65536                524288               files
";
        let (_folder, root) = tree(&[
            ("proc/self/limits", LIMITS),
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        let findings = look(&root);
        for what in ["memory lock", "open files"] {
            assert_eq!(find(&findings, what).verdict, Verdict::Ok);
        }
        assert_eq!(find(&findings, "processors").found, "8");
    }

    #[test]
    fn lists_of_numbers_are_counted() {
        for (list, numbers) in [("0", 1), ("0-3", 4), ("0-3,8", 5), ("", 0), ("3-1", 0), ("x", 0)] {
            assert_eq!(count(list), numbers, "{list}");
        }
    }

    #[test]
    fn amounts_are_told_in_the_unit_that_fits() {
        for (amount, text) in [(7, "7 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (u64::MAX, "16384 PiB")] {
            assert_eq!(bytes(amount), text);
        }
    }
}
