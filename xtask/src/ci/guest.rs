//! The tests that need RDMA devices, in the guest that has them.

use anyhow::Result;

use super::run::Outcome;
use crate::guest::{self, Size, TOOLS, Unavailable, Work};
use crate::tools;
use crate::workspace::Workspace;

/// Of the guest in CI. A program that hangs in it is ended before its own time is over.
const SIZE: Size = Size { cpus: 2, memory: 1024, timeout: 1500 };

/// What runs in CI: everything once, and the conformance suite with the plainest configuration. The suite in its other
/// configurations takes minutes each under emulation.
const IN_CI: [&str; 4] = ["guest_verbs", "guest_conformance", "guest_faults", "guest_replay"];

/// What does not, told with the outcome.
const LEFT_OUT: &str =
    "the suite's other configurations (guest_conformance_*) run by `cargo xtask rdma-guest`";

/// Runs them. On a machine of CI (`CI` is set) what the guest needs is installed first; elsewhere nobody's machine is
/// changed unasked.
pub(super) fn run(workspace: &Workspace) -> Result<Outcome> {
    if tools::missing(TOOLS).is_some() && std::env::var_os("CI").is_some() {
        let names: Vec<String> = TOOLS.iter().map(|name| (*name).to_owned()).collect();
        tools::setup(&names, false)?;
    }
    let only = IN_CI.map(str::to_owned).into();
    let work = Work::Tests { only, arguments: Vec::new() };
    let ran = guest::run(workspace, &SIZE, &work);
    outcome(ran.map(|(well, note)| (well, format!("{note}; {LEFT_OUT}"))))
}

/// Packages that cannot be had are no fault of ours; everything else that goes wrong is.
fn outcome(ran: Result<(bool, String)>) -> Result<Outcome> {
    match ran {
        Ok((true, note)) => Ok(Outcome::Passed(note)),
        Ok((false, note)) => Ok(Outcome::Failed(note)),
        Err(error) if error.is::<Unavailable>() => Ok(Outcome::Skipped(format!("{error:#}"))),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn only_what_cannot_be_had_is_skipped() {
        let missing = anyhow!(Unavailable::new("no list of packages"));
        assert_eq!(outcome(Err(missing)).unwrap(), Outcome::Skipped("no list of packages".to_owned()));
        assert!(outcome(Err(anyhow!("the guest has ended"))).is_err());
        assert_eq!(
            outcome(Ok((false, "1 failed".to_owned()))).unwrap(),
            Outcome::Failed("1 failed".to_owned())
        );
    }
}
