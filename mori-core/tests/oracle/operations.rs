//! What the generated sequences are made of.

use mori_core::ErrorKind;
use proptest::prelude::*;

/// Who makes progress on a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No backend.
    Detached,
    /// A backend with a notifier.
    Notified,
    /// A backend that has to be polled.
    Polled,
}

/// How a status ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failure(ErrorKind),
    /// The writer's side is dropped.
    Drop,
}

/// A status to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// Which poll ends it, and how; the first poll is number 1.
    pub(crate) ends: Option<(u32, End)>,
}

/// What another thread does to a waiter that sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum During {
    /// Nothing before the clock moves.
    Nothing,
    /// A wake without reason.
    Wake,
    Submit(usize),
    Note(usize, u8),
    End(usize, End),
    Poll(usize),
}

/// Which members of a list a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    All,
    FirstFailure,
    Any,
    Some(usize),
}

/// One step. Numbers stand for statuses, handles, observers, modulo how many there are.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Submit(usize),
    Note(usize, u8),
    End(usize, End),
    /// One more reader's handle.
    Clone(usize),
    /// One less; the reader may come back through the writer's side.
    Forget(usize),
    Poll(usize),
    WaitZero(usize),
    WaitBounded(usize, During),
    /// Without a bound; what happens meanwhile ends the status.
    WaitUnbounded(usize, End),
    Scan(Vec<usize>),
    ManyZero(Want, Vec<usize>),
    ManyBounded(Want, Vec<usize>, During),
    Subscribe(usize),
    Unsubscribe(usize),
    /// A future over statuses that nobody has to poll, polled once.
    Await(Vec<usize>),
    /// The same future again.
    AwaitAgain(usize),
    DropFuture(usize),
    Advance(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) statuses: Vec<Plan>,
    pub(crate) operations: Vec<Operation>,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => Just(End::Success),
        3 => prop::sample::select(ErrorKind::ALL.to_vec()).prop_map(End::Failure),
        1 => Just(End::Drop),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let kind = prop_oneof![Just(Kind::Detached), Just(Kind::Notified), Just(Kind::Polled)];
    (kind, prop::option::of((1_u32..5, end()))).prop_map(|(kind, ends)| Plan { kind, ends })
}

fn during(count: usize) -> impl Strategy<Value = During> {
    let one = 0..count;
    prop_oneof![
        2 => Just(During::Nothing),
        1 => Just(During::Wake),
        1 => one.clone().prop_map(During::Submit),
        1 => (one.clone(), any::<u8>()).prop_map(|(at, note)| During::Note(at, note)),
        4 => (one.clone(), end()).prop_map(|(at, end)| During::End(at, end)),
        2 => one.prop_map(During::Poll),
    ]
}

fn want() -> impl Strategy<Value = Want> {
    prop_oneof![
        3 => Just(Want::All),
        1 => Just(Want::FirstFailure),
        1 => Just(Want::Any),
        1 => (0_usize..5).prop_map(Want::Some),
    ]
}

fn operation(count: usize) -> impl Strategy<Value = Operation> {
    let one = 0..count;
    let list = prop::collection::vec(0..count, 0..6);
    prop_oneof![
        8 => one.clone().prop_map(Operation::Submit),
        2 => (one.clone(), any::<u8>()).prop_map(|(at, note)| Operation::Note(at, note)),
        3 => (one.clone(), end()).prop_map(|(at, end)| Operation::End(at, end)),
        1 => one.clone().prop_map(Operation::Clone),
        1 => one.clone().prop_map(Operation::Forget),
        2 => one.clone().prop_map(Operation::Poll),
        3 => one.clone().prop_map(Operation::WaitZero),
        4 => (one.clone(), during(count)).prop_map(|(at, during)| Operation::WaitBounded(at, during)),
        2 => (one.clone(), end()).prop_map(|(at, end)| Operation::WaitUnbounded(at, end)),
        2 => list.clone().prop_map(Operation::Scan),
        4 => (want(), list.clone()).prop_map(|(want, list)| Operation::ManyZero(want, list)),
        5 => (want(), list.clone(), during(count))
            .prop_map(|(want, list, during)| Operation::ManyBounded(want, list, during)),
        2 => one.clone().prop_map(Operation::Subscribe),
        1 => one.prop_map(Operation::Unsubscribe),
        2 => list.prop_map(Operation::Await),
        2 => any::<usize>().prop_map(Operation::AwaitAgain),
        1 => any::<usize>().prop_map(Operation::DropFuture),
        1 => any::<u8>().prop_map(Operation::Advance),
    ]
}

pub(crate) fn sequences() -> impl Strategy<Value = Sequence> {
    prop::collection::vec(plan(), 1..6).prop_flat_map(|statuses| {
        let count = statuses.len();
        prop::collection::vec(operation(count), 1..60)
            .prop_map(move |operations| Sequence { statuses: statuses.clone(), operations })
    })
}
