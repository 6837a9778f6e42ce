//! The reference: plain values and the contract's rules.

use mori_core::{ErrorKind, StatusCode};

use crate::operations::{During, End, Kind, Operation, Plan, Want};

/// What an operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    /// Whether an update was applied, a subscription taken, a future ready.
    Yes(bool),
    Code(StatusCode),
    Index(Option<usize>),
    Outcome(Outcome),
}

/// What a wait for many answers: the code, and per member that is no success its index, code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: StatusCode,
    pub(crate) failed: Vec<(usize, StatusCode, String)>,
    pub(crate) unfinished: Vec<(usize, StatusCode)>,
}

/// What can be seen of one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) code: StatusCode,
    pub(crate) message: String,
    pub(crate) polls: u32,
    /// For each subscription ever taken, the codes it was told.
    pub(crate) told: Vec<Vec<StatusCode>>,
}

struct Entry {
    plan: Plan,
    code: StatusCode,
    note: String,
    failure: String,
    polls: u32,
    written: bool,
    told: Vec<Vec<StatusCode>>,
    /// The subscriptions that are still to be told.
    subscribed: Vec<usize>,
}

pub(crate) struct Reference {
    entries: Vec<Entry>,
    /// Of each future, the members that it waits for; none once it is dropped.
    futures: Vec<Option<Vec<usize>>>,
}

/// The message that goes with a failure.
pub(crate) fn words(kind: ErrorKind) -> String {
    format!("failed with number {}", kind.number())
}

impl Reference {
    pub(crate) fn new(plans: &[Plan]) -> Self {
        let entries = plans.iter().map(|&plan| Entry {
            plan,
            code: StatusCode::Init,
            note: String::new(),
            failure: String::new(),
            polls: 0,
            written: true,
            told: Vec::new(),
            subscribed: Vec::new(),
        });
        Self { entries: entries.collect(), futures: Vec::new() }
    }

    pub(crate) fn sight(&self) -> Vec<Sight> {
        let sight = |entry: &Entry| Sight {
            code: entry.code,
            message: if entry.code.is_failure() { entry.failure.clone() } else { entry.note.clone() },
            polls: entry.polls,
            told: entry.told.clone(),
        };
        self.entries.iter().map(sight).collect()
    }

    pub(crate) fn apply(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::Submit(at) => Answer::Yes(self.submit(*at)),
            Operation::Note(at, note) => Answer::Yes(self.note(*at, *note)),
            Operation::End(at, end) => Answer::Yes(self.end(*at, *end)),
            Operation::Clone(_) | Operation::Forget(_) | Operation::Advance(_) => Answer::Nothing,
            Operation::Poll(at) | Operation::WaitZero(at) => Answer::Code(self.poll(*at)),
            Operation::WaitBounded(at, during) => Answer::Code(self.wait(*at, Some(*during))),
            Operation::WaitUnbounded(at, end) => Answer::Code(self.wait_unbounded(*at, *end)),
            Operation::Scan(list) => Answer::Outcome(self.outcome(list)),
            Operation::ManyZero(want, list) => self.many(*want, list, None),
            Operation::ManyBounded(want, list, during) => self.many(*want, list, Some(*during)),
            Operation::Subscribe(at) => Answer::Yes(self.subscribe(*at)),
            Operation::Unsubscribe(at) => {
                self.entries[*at].subscribed.pop();
                Answer::Nothing
            }
            Operation::Await(list) => self.begin_future(list),
            Operation::AwaitAgain(at) => self.future(*at),
            Operation::DropFuture(at) => {
                if !self.futures.is_empty() {
                    let at = at % self.futures.len();
                    self.futures[at] = None;
                }
                Answer::Nothing
            }
        }
    }

    fn submit(&mut self, at: usize) -> bool {
        let entry = &mut self.entries[at];
        let applies = entry.written && entry.code == StatusCode::Init;
        if applies {
            entry.code = StatusCode::InProgress;
        }
        applies
    }

    fn note(&mut self, at: usize, note: u8) -> bool {
        let entry = &mut self.entries[at];
        let applies = entry.written && !entry.code.is_terminal();
        if applies {
            entry.note = note.to_string();
        }
        applies
    }

    /// S2, S5: the first end is final.
    fn end(&mut self, at: usize, end: End) -> bool {
        let entry = &mut self.entries[at];
        let applies = entry.written && !entry.code.is_terminal();
        if applies {
            entry.code = match end {
                End::Success => StatusCode::Success,
                End::Failure(kind) => StatusCode::Failure(kind),
                End::Drop => StatusCode::Failure(ErrorKind::BadState),
            };
            entry.failure = match end {
                End::Failure(kind) => words(kind),
                End::Success => String::new(),
                End::Drop => {
                    "the transfer was dropped unfinished; its backend gave it up without a result".to_owned()
                }
            };
            for subscription in entry.subscribed.drain(..) {
                entry.told[subscription].push(entry.code);
            }
        }
        if end == End::Drop {
            entry.written = false;
        }
        applies
    }

    /// W1: only what is in progress is polled.
    fn poll(&mut self, at: usize) -> StatusCode {
        let entry = &mut self.entries[at];
        if entry.code == StatusCode::InProgress && entry.plan.kind != Kind::Detached {
            entry.polls += 1;
            if let Some((number, end)) = entry.plan.ends
                && number == entry.polls
            {
                self.end(at, end);
            }
        }
        self.entries[at].code
    }

    fn during(&mut self, during: During) {
        match during {
            During::Nothing | During::Wake => {}
            During::Submit(at) => {
                self.submit(at);
            }
            During::Note(at, note) => {
                self.note(at, note);
            }
            During::End(at, end) => {
                self.end(at, end);
            }
            During::Poll(at) => {
                self.poll(at);
            }
        }
    }

    /// W8, W9: a poll up front; then asleep, until something ends it; without a notifier a poll at the deadline.
    fn wait(&mut self, at: usize, during: Option<During>) -> StatusCode {
        if self.poll(at) == StatusCode::InProgress
            && let Some(during) = during
        {
            self.during(during);
            if self.entries[at].plan.kind == Kind::Polled {
                self.poll(at);
            }
        }
        self.entries[at].code
    }

    /// Members that have to be polled are given a bound instead, since their polls have no fixed number.
    fn wait_unbounded(&mut self, at: usize, end: End) -> StatusCode {
        let writable = self.entries[at].written;
        assert!(writable || self.entries[at].code.is_terminal(), "S5");
        self.wait(at, Some(During::End(at, end)))
    }

    fn subscribe(&mut self, at: usize) -> bool {
        let entry = &mut self.entries[at];
        let takes = !entry.code.is_terminal();
        if takes {
            entry.subscribed.push(entry.told.len());
            entry.told.push(Vec::new());
        }
        takes
    }

    /// A3, A8, A9.
    fn outcome(&self, list: &[usize]) -> Outcome {
        let mut outcome = Outcome { code: StatusCode::Success, failed: Vec::new(), unfinished: Vec::new() };
        for (index, &at) in list.iter().enumerate() {
            let entry = &self.entries[at];
            if entry.code.is_failure() {
                outcome.failed.push((index, entry.code, entry.failure.clone()));
            } else if !entry.code.is_terminal() {
                outcome.unfinished.push((index, entry.code));
            }
        }
        let has = |code| outcome.unfinished.iter().any(|(_, other)| *other == code);
        outcome.code = if let Some((_, code, _)) = outcome.failed.first() {
            *code
        } else if has(StatusCode::Init) {
            StatusCode::Init
        } else if has(StatusCode::InProgress) {
            StatusCode::InProgress
        } else {
            StatusCode::Success
        };
        outcome
    }

    /// Whether a wait is over: nothing that it is for can still come.
    fn is_over(&self, want: Want, list: &[usize]) -> bool {
        let codes: Vec<StatusCode> = list.iter().map(|&at| self.entries[at].code).collect();
        let terminal = codes.iter().filter(|code| code.is_terminal()).count();
        let running = codes.contains(&StatusCode::InProgress);
        !running
            || match want {
                Want::All => false,
                Want::FirstFailure => codes.iter().any(|code| code.is_failure()),
                Want::Any => terminal >= 1,
                Want::Some(count) => terminal >= count,
            }
    }

    /// A5, A6, A7. A member that was never submitted is not waited for (W1, A8).
    fn many(&mut self, want: Want, list: &[usize], during: Option<During>) -> Answer {
        let watched: Vec<usize> =
            list.iter().copied().filter(|&at| self.entries[at].code != StatusCode::Init).collect();
        if !self.is_over(want, &watched) {
            match during {
                None => watched.iter().for_each(|&at| {
                    self.poll(at);
                }),
                Some(during) => self.many_bounded(want, &watched, during),
            }
        }
        match want {
            Want::Any => Answer::Index(list.iter().position(|&at| self.entries[at].code.is_terminal())),
            _ => Answer::Outcome(self.outcome(list)),
        }
    }

    fn many_bounded(&mut self, want: Want, list: &[usize], during: During) {
        let is_polled = |at: &usize| {
            let entry = &self.entries[*at];
            entry.code == StatusCode::InProgress && entry.plan.kind == Kind::Polled
        };
        let polled: Vec<usize> = list.iter().copied().filter(is_polled).collect();
        polled.iter().for_each(|&at| {
            self.poll(at);
        });
        if self.is_over(want, list) {
            return;
        }
        self.during(during);
        if !self.is_over(want, list) {
            polled.iter().for_each(|&at| {
                self.poll(at);
            });
        }
    }

    fn begin_future(&mut self, list: &[usize]) -> Answer {
        let running = list.iter().copied().filter(|&at| {
            self.entries[at].code == StatusCode::InProgress && self.entries[at].plan.kind != Kind::Polled
        });
        self.futures.push(Some(running.collect()));
        self.future(self.futures.len() - 1)
    }

    fn future(&self, at: usize) -> Answer {
        let future = (!self.futures.is_empty()).then(|| &self.futures[at % self.futures.len()]);
        match future {
            Some(Some(members)) => Answer::Yes(members.iter().all(|&at| self.entries[at].code.is_terminal())),
            _ => Answer::Nothing,
        }
    }
}
