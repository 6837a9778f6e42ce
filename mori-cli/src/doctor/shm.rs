//! Copies between the processes of this host: whether the system has them, and whom it lets make them.

use mori_engine::{Access, Engine, ShmConfig, ShmHostFacts, TransferOptions};

use super::finding::{Finding, Findings};
use super::host::Root;

/// Looks at copies between processes.
pub fn look(_: &Root) -> Vec<Finding> {
    let mut shm = Findings::of("shm");
    let facts = ShmHostFacts::look();
    match &facts.obstacle {
        None => shm.ok("copies between processes", "process_vm_readv and process_vm_writev"),
        Some(obstacle) => shm.absent(
            "copies between processes",
            obstacle.to_string(),
            "transfers between processes of this host go over another transport",
        ),
    }
    yama(facts.yama, &mut shm);
    if facts.obstacle.is_none() {
        match own_transfer() {
            Ok(()) => shm.ok("transfer to self", "as expected"),
            Err(why) => {
                shm.absent("transfer to self", why, "look at what filters this process's system calls");
            }
        }
    }
    shm.into_list()
}

fn yama(scope: Option<u32>, shm: &mut Findings) {
    let what = "kernel.yama.ptrace_scope";
    match scope {
        None => shm.ok(what, "not there: processes of one user may copy"),
        Some(0) => shm.ok(what, "0: processes of one user may copy"),
        Some(1) => shm.warn(
            what,
            "1: a process may copy from and to those that let it in",
            "engines let one peer at a time in; for more set `tracers` to `Anyone`, or the scope to 0",
        ),
        Some(scope) => shm.warn(
            what,
            format!("{scope}: only processes with CAP_SYS_PTRACE may copy, or none"),
            "set the scope to 0 or 1, or use another transport",
        ),
    }
}

/// A transfer between two engines of this process.
fn own_transfer() -> Result<(), String> {
    let words = |error: mori_engine::Error| error.to_string();
    let engine = |name: &str| Engine::builder(name).shm(ShmConfig::default()).build().map_err(words);
    let (near, far) = (engine("mori-doctor-near")?, engine("mori-doctor-far")?);
    let remote = far.register_vec(vec![0x5a; 4096], Access::READ_ONLY).map_err(words)?;
    let local = near.allocate(4096, Access::LOCAL).map_err(words)?;
    near.add_peer(&far.desc()).map_err(words)?;
    let status = near.read(&local, 0, &remote.desc(), 0, 4096, TransferOptions::default());
    near.wait(&status, std::time::Duration::from_secs(1));
    if !status.is_success() {
        return Err(status.error().map_or_else(|| "it was not over in time".to_owned(), words));
    }
    let mut got = vec![0; 4096];
    local.read_at(0, &mut got).map_err(words)?;
    if got == [0x5a; 4096] { Ok(()) } else { Err("the bytes that arrived are wrong".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_host_with_the_calls_says_so() {
        let found = look(&Root::default());
        let copies = found.iter().find(|finding| finding.what == "copies between processes").expect("told");
        if copies.verdict == Verdict::Ok {
            let own = found.iter().find(|finding| finding.what == "transfer to self").expect("tried");
            assert_eq!(own.verdict, Verdict::Ok, "{own:?}");
        }
    }

    #[test]
    fn each_scope_is_explained() {
        for (scope, verdict) in [
            (None, Verdict::Ok),
            (Some(0), Verdict::Ok),
            (Some(1), Verdict::Warning),
            (Some(2), Verdict::Warning),
            (Some(3), Verdict::Warning),
        ] {
            let mut shm = Findings::of("shm");
            yama(scope, &mut shm);
            let list = shm.into_list();
            assert_eq!(list[0].verdict, verdict, "{scope:?}");
        }
    }
}
