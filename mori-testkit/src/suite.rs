//! The conformance suite: one list of cases, and what runs them.
//!
//! [`CASES`] is the only list. [`conformance_suite!`](crate::conformance_suite), [`run_all`] and [`run_some`] read it, so that
//! a new case reaches every backend with no edit at the backend. A case function that is not in the list does not build without
//! a warning.
//!
//! A case is skipped only because the backend declares a capability absent or the harness an ability; each skip is
//! listed with its reason and counted. A run in which no case ran has failed. A case that takes longer than
//! [`Bounds::case`](crate::Bounds::case) has failed as hanging; the suite goes on without it.

mod batches;
mod cancel;
mod concurrency;
mod fixture;
mod input;
mod lifetimes;
mod notify;
mod peers;
mod shutdown;
mod submit;
mod transfers;
mod waits;

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mori_core::Capabilities;

pub use fixture::Bench;
use fixture::Running;

use crate::check::{CaseResult, Doing, Problem};
use crate::harness::{Abilities, Harness};

/// What a case cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// The capability to cancel.
    Cancel,
    /// The capability to notify the target.
    Notify,
    /// The capability to notice the loss of a peer.
    PeerLoss,
    /// A backend that completes transfers with nobody polling.
    Notifier,
    /// A harness that can hold transfers back.
    Hold,
    /// A harness whose held transfers can end while they are held.
    HeldEnds,
    /// A harness that can break links.
    Cut,
    /// A harness that can make a node silent.
    Silence,
}

/// What a backend and its harness declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// What the backend declares.
    pub capabilities: Capabilities,
    /// Whether the backend completes transfers with nobody polling.
    pub notifier: bool,
    /// What the harness declares.
    pub abilities: Abilities,
    /// Whether the harness's held transfers can end while they are held.
    pub held_can_end: bool,
}

impl Need {
    /// Why a case with this need is skipped, if it is.
    #[must_use]
    pub fn missing(self, declared: &Declared) -> Option<&'static str> {
        let (there, why) = match self {
            Self::Cancel => (declared.capabilities.cancel, "the backend declares no `cancel`"),
            Self::Notify => (declared.capabilities.notify, "the backend declares no `notify`"),
            Self::PeerLoss => (declared.capabilities.peer_loss, "the backend declares no `peer_loss`"),
            Self::Notifier => (declared.notifier, "the backend has no notifier"),
            Self::Hold => (declared.abilities.hold, "the harness declares no `hold`"),
            Self::HeldEnds => (declared.held_can_end, "the harness holds what cannot be stopped"),
            Self::Cut => (declared.abilities.cut, "the harness declares no `cut`"),
            Self::Silence => (declared.abilities.silence, "the harness declares no `silence`"),
        };
        (!there).then_some(why)
    }
}

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, which says what holds when it passes.
    pub name: &'static str,
    /// The rules of the wait contract and of the backend's documentation that it tests.
    pub rules: &'static str,
    /// What it cannot do without.
    pub needs: &'static [Need],
    run: fn(&Bench) -> CaseResult,
}

impl Case {
    /// Why the case is skipped, if it is.
    #[must_use]
    pub fn skipped(&self, declared: &Declared) -> Option<&'static str> {
        self.needs.iter().find_map(|need| need.missing(declared))
    }

    /// Runs the case on a thread of its own, for at most [`Bounds::case`](crate::Bounds::case).
    ///
    /// # Errors
    ///
    /// What is wrong. A case that hangs is a problem too; its thread is left behind.
    pub fn run(&self, harness: &Arc<dyn Harness>) -> CaseResult {
        let bench = Bench::new(Arc::clone(harness), self.name);
        let run = self.run;
        Running::start("the case", self.name, move || run(&bench))?.join(harness.bounds().case)?
    }
}

fn panicked(ended: thread::Result<()>) -> Problem {
    let Err(payload) = ended else { return Problem::new("the case ended without a result") };
    let words = payload
        .downcast_ref::<&str>()
        .map(|words| (*words).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Problem::new(format!("panicked: {words}"))
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// An entry of a module's list; the function's name is the case's name.
macro_rules! cases {
    ($($rules:literal $([$($need:ident),+])? $name:ident,)+) => {
        pub(super) const CASES: &[$crate::suite::Case] = &[$($crate::suite::Case {
            name: stringify!($name),
            rules: $rules,
            needs: &[$($($crate::suite::Need::$need),+)?],
            run: $name,
        }),+];
    };
}
use cases;

const GROUPS: &[&[Case]] = &[
    transfers::CASES,
    submit::CASES,
    waits::CASES,
    batches::CASES,
    cancel::CASES,
    lifetimes::CASES,
    shutdown::CASES,
    peers::CASES,
    notify::CASES,
    input::CASES,
    concurrency::CASES,
];

const fn count(groups: &[&[Case]]) -> usize {
    let (mut total, mut group) = (0, 0);
    while group < groups.len() {
        total += groups[group].len();
        group += 1;
    }
    total
}

const fn flatten<const N: usize>(groups: &[&[Case]]) -> [Case; N] {
    let mut flat = [groups[0][0]; N];
    let (mut at, mut group) = (0, 0);
    while group < groups.len() {
        let mut index = 0;
        while index < groups[group].len() {
            flat[at] = groups[group][index];
            at += 1;
            index += 1;
        }
        group += 1;
    }
    flat
}

const FLAT: [Case; count(GROUPS)] = flatten(GROUPS);

/// Every case of the suite.
///
/// ```
/// let case = mori_testkit::CASES.iter().find(|case| case.name == "an_empty_batch_succeeds");
/// assert!(case.is_some_and(|case| case.rules.contains("A1")));
/// ```
pub const CASES: &[Case] = &FLAT;

/// What became of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not, and why.
    Failed(Problem),
    /// It was not run, and why.
    Skipped(&'static str),
}

/// What became of a run.
#[derive(Clone, Debug)]
#[must_use = "a report that nobody looks at hides failures"]
pub struct Report {
    backend: String,
    entries: Vec<(&'static str, Verdict)>,
    filtered: usize,
    broken: Option<Problem>,
}

impl Report {
    /// Each case that was chosen, with what became of it, in the order of [`CASES`].
    #[must_use]
    pub fn entries(&self) -> &[(&'static str, Verdict)] {
        &self.entries
    }

    /// How many cases hold.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.entries.iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count()
    }

    /// How many cases do not.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.entries.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_))).count()
    }

    /// How many cases were skipped because something they need is declared absent.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.entries.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Skipped(_))).count()
    }

    /// Whether the run as a whole is good: at least one case ran, and none failed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.broken.is_none() && self.passed() > 0 && self.failed() == 0
    }

    /// Panics with the whole report unless it [is good](Report::is_good); the last line of an author's own `#[test]`.
    ///
    /// # Panics
    ///
    /// As said above.
    #[allow(clippy::panic, reason = "this is how a test fails")]
    pub fn assert_good(&self) {
        if !self.is_good() {
            panic!("{self}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {}", self.backend)?;
        if let Some(problem) = &self.broken {
            writeln!(f, "nothing ran: {problem}")?;
        }
        for (name, verdict) in &self.entries {
            match verdict {
                Verdict::Passed => writeln!(f, "  ok       {name}")?,
                Verdict::Skipped(why) => writeln!(f, "  skipped  {name}: {why}")?,
                Verdict::Failed(problem) => writeln!(f, "  FAILED   {name}: {problem}")?,
            }
        }
        write!(
            f,
            "result: {}. {} passed; {} failed; {} skipped; {} filtered out",
            if self.is_good() { "ok" } else { "FAILED" },
            self.passed(),
            self.failed(),
            self.skipped(),
            self.filtered
        )
    }
}

/// What the backend and the harness declare, asked of a node that is made for it.
///
/// # Errors
///
/// What keeps the harness from making a node, or the node from being dropped.
pub fn declared(harness: &Arc<dyn Harness>) -> CaseResult<Declared> {
    let asked = Arc::clone(harness);
    let ask = move || {
        let node = asked.node().doing("making a node")?;
        let backend = node.backend();
        Ok(Declared {
            capabilities: backend.capabilities(),
            notifier: backend.has_notifier(),
            abilities: asked.abilities(),
            held_can_end: asked.held_can_end(),
        })
    };
    Running::start("making and dropping a node", "declared", ask)?.join(harness.bounds().case)?
}

/// Runs every case, one after the other. A run without a passed case is not good.
///
/// For use inside a `#[test]` of one's own; [`conformance_suite!`](crate::conformance_suite) shows each case as a test.
///
/// ```no_run
/// # fn example(harness: impl mori_testkit::Harness) {
/// mori_testkit::run_all(harness).assert_good();
/// # }
/// ```
pub fn run_all(harness: impl Harness) -> Report {
    run_some(harness, |_| true)
}

/// Runs the cases that `choose` picks, one after the other.
pub fn run_some(harness: impl Harness, choose: impl Fn(&Case) -> bool) -> Report {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let mut report = Report { backend: harness.name(), entries: Vec::new(), filtered: 0, broken: None };
    let declared = match declared(&harness) {
        Ok(declared) => declared,
        Err(problem) => {
            report.broken = Some(problem);
            return report;
        }
    };
    for case in CASES {
        if !choose(case) {
            report.filtered += 1;
            continue;
        }
        let verdict = match case.skipped(&declared) {
            Some(why) => Verdict::Skipped(why),
            None => match case.run(&harness) {
                Ok(()) => Verdict::Passed,
                Err(problem) => Verdict::Failed(problem),
            },
        };
        report.entries.push((case.name, verdict));
    }
    report
}

/// The body of the `main` that [`conformance_suite!`](crate::conformance_suite) writes: shows each case as a test, with
/// the command line of the built-in test runner.
#[must_use]
pub fn conformance_main(harness: impl Harness) -> ExitCode {
    let arguments = Arguments::from_args();
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let trials = match declared(&harness) {
        Ok(declared) => CASES.iter().map(|case| trial(case, &harness, &declared)).collect(),
        Err(problem) => {
            vec![Trial::test("the_harness_makes_a_node", move || Err(Failed::from(problem.to_string())))]
        }
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ran = conclusion.num_passed + conclusion.num_failed;
    // A filter of the caller's may rightly leave nothing; an unfiltered run in which nothing ran proves nothing.
    if ran == 0 && conclusion.num_filtered_out == 0 && !arguments.list {
        say(&format!("error: no case ran for {}; an empty run is not a pass", harness.name()));
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn trial(case: &'static Case, harness: &Arc<dyn Harness>, declared: &Declared) -> Trial {
    match case.skipped(declared) {
        // Decided when it runs, so that `--ignored` and its like turn no skip into a pass.
        Some(why) => Trial::ignorable_test(case.name, move || Ok(Completion::ignored_with(why))),
        None => {
            let harness = Arc::clone(harness);
            Trial::test(case.name, move || {
                case.run(&harness).map_err(|problem| {
                    Failed::from(format!("{}: {problem}\n(rules: {})", case.name, case.rules))
                })
            })
        }
    }
}

#[allow(clippy::print_stderr, reason = "the report of a test program")]
fn say(line: &str) {
    eprintln!("{line}");
}

/// Writes the `main` of a test that runs every case of the suite against a backend and shows each as a test.
///
/// One line in a test file, and two in `Cargo.toml` that hand the file its own `main`:
///
/// ```toml
/// [[test]]
/// name = "conformance"
/// harness = false
/// ```
///
/// ```no_run
/// # use mori_core::Result;
/// # use mori_testkit::{Harness, Node};
/// # #[derive(Default)]
/// # struct MyHarness;
/// # impl Harness for MyHarness {
/// #     fn name(&self) -> String { String::new() }
/// #     fn node(&self) -> Result<Box<dyn Node>> { Err(mori_core::Error::new(mori_core::ErrorKind::Unavailable, "")) }
/// # }
/// mori_testkit::conformance_suite!(MyHarness::default());
/// ```
///
/// `cargo test --test conformance` then lists each case as `ok`, as `FAILED` with what is wrong, or as `ignored` with the
/// declared absence that it is skipped for; a name on the command line filters as usual.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::conformance_main($harness)
        }
    };
}
