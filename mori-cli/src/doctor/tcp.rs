//! TCP: the network's devices, and a transfer to ourselves.

use std::time::Duration;

use mori_engine::{Access, Clock, Engine, TcpConfig, TransferOptions};

use super::finding::{Finding, Findings};
use super::host::{Root, bytes};

/// Bytes of the transfer to ourselves.
const LENGTH: usize = 64 << 10;
/// How long it may take.
const BOUND: Duration = Duration::from_secs(1);

/// Looks at TCP.
pub fn look(root: &Root) -> Vec<Finding> {
    let mut tcp = Findings::of("tcp");
    for name in root.names("sys/class/net") {
        device(root, &name, &mut tcp);
    }
    buffers(root, &mut tcp);
    match own_transfer() {
        Ok(took) => {
            tcp.ok("transfer to self", format!("{} over 127.0.0.1 in {took:.0?}", bytes(LENGTH as u64)));
        }
        Err(why) => tcp.absent(
            "transfer to self",
            why,
            "look at the loopback device and at what filters this process's system calls",
        ),
    }
    tcp.into_list()
}

fn device(root: &Root, name: &str, tcp: &mut Findings) {
    let value = |file: &str| root.read(format!("sys/class/net/{name}/{file}"));
    let state = value("operstate").unwrap_or_else(|| "unknown".to_owned());
    let mtu = value("mtu").unwrap_or_else(|| "?".to_owned());
    let mut found = format!("{state}, MTU {mtu}");
    // A device that is down, or has no wire, says -1 or nothing.
    if let Some(speed) = value("speed").and_then(|speed| speed.parse::<u64>().ok()) {
        found.push_str(&format!(", {speed} Mb/s"));
    }
    let node = value("device/numa_node").and_then(|node| node.parse::<u32>().ok());
    if let Some(node) = node {
        found.push_str(&format!(", NUMA node {node}"));
    }
    let what = format!("device {name}");
    if state == "down" { tcp.note(what, found) } else { tcp.ok(what, found) }
}

fn buffers(root: &Root, tcp: &mut Findings) {
    let most = |name: &str| {
        let text = root.read(format!("proc/sys/net/ipv4/{name}"))?;
        text.split_whitespace().next_back()?.parse::<u64>().ok()
    };
    if let (Some(read), Some(write)) = (most("tcp_rmem"), most("tcp_wmem")) {
        tcp.note("socket buffers", format!("up to {} to read, {} to write", bytes(read), bytes(write)));
    }
}

/// Reads memory of one engine through another, both in this process, and says how long the read took.
fn own_transfer() -> Result<Duration, String> {
    let words = |error: mori_engine::Error| error.to_string();
    let engine = |name: &str| Engine::builder(name).tcp(TcpConfig::default()).build().map_err(words);
    let (near, far) = (engine("mori-doctor-near")?, engine("mori-doctor-far")?);
    let remote = far.allocate(LENGTH, Access::READ_ONLY).map_err(words)?;
    let content: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    remote.write_at(0, &content).map_err(words)?;
    let local = near.allocate(LENGTH, Access::LOCAL).map_err(words)?;
    near.add_peer(&far.desc()).map_err(words)?;
    let session = near.session(&local, &remote.desc()).map_err(words)?;
    let clock = Clock::system();
    let before = clock.now();
    let status = session.read(0, 0, LENGTH as u64, TransferOptions::default());
    near.wait_all(&[&status], BOUND);
    let took = clock.now().saturating_duration_since(before);
    if !status.is_success() {
        return Err(status.error().map_or_else(|| format!("it was not over after {BOUND:?}"), words));
    }
    let mut got = vec![0; LENGTH];
    local.read_at(0, &mut got).map_err(words)?;
    if got == content { Ok(took) } else { Err("the bytes that arrived are wrong".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn this_machine_has_loopback_and_reaches_itself() {
        let findings = look(&Root::default());
        assert!(findings.iter().any(|finding| finding.what == "device lo"));
        let own = findings.iter().find(|finding| finding.what == "transfer to self").expect("tried");
        assert_eq!(own.verdict, Verdict::Ok, "{own:?}");
    }

    #[test]
    fn devices_are_told_with_what_they_say() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join("sys/class/net").join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        for (name, text) in [
            ("eth0/operstate", "up\n"),
            ("eth0/mtu", "9000\n"),
            ("eth0/speed", "100000\n"),
            ("eth0/device/numa_node", "1\n"),
            ("eth1/operstate", "down\n"),
            ("eth1/mtu", "1500\n"),
            ("eth1/speed", "-1\n"),
        ] {
            write(name, text);
        }
        let mut tcp = Findings::of("tcp");
        for name in ["eth0", "eth1", "eth2"] {
            device(&Root::new(folder.path()), name, &mut tcp);
        }
        let found: Vec<_> = tcp.into_list().into_iter().map(|finding| finding.found).collect();
        assert_eq!(found, ["up, MTU 9000, 100000 Mb/s, NUMA node 1", "down, MTU 1500", "unknown, MTU ?"]);
    }
}
