//! Random events, and what has to hold after them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use mori_core::{Error, ErrorKind, Notify, Op, Piece};
use proptest::prelude::*;

use super::super::*;
use super::bytes;
use super::world::{World, settings};

#[derive(Clone, Debug)]
enum Event {
    Submit { write: bool, pieces: Vec<(u64, u64, u64)>, note: Option<bool> },
    Step { lane: usize, count: usize },
    Fail { lane: usize, status: usize },
    Refuse { lane: usize, taken: usize, full: bool },
    Cancel(usize),
    Advance(u64),
    Lose,
    PathDown(usize),
    Reachable(bool),
    Answers(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let pieces = prop::collection::vec((0_u64..500, 0_u64..500, 0_u64..60), 0..6);
    prop_oneof![
        5 => (any::<bool>(), pieces, any::<Option<bool>>()).prop_map(|(write, pieces, note)| Event::Submit { write, pieces, note }),
        8 => (0_usize..4, 1_usize..12).prop_map(|(lane, count)| Event::Step { lane, count }),
        1 => (0_usize..4, 1_usize..24).prop_map(|(lane, status)| Event::Fail { lane, status }),
        1 => (0_usize..4, 0_usize..4, any::<bool>()).prop_map(|(lane, taken, full)| Event::Refuse { lane, taken, full }),
        1 => (0_usize..20).prop_map(Event::Cancel),
        2 => (1_u64..400).prop_map(Event::Advance),
        1 => Just(Event::Lose),
        1 => (0_usize..2).prop_map(Event::PathDown),
        1 => any::<bool>().prop_map(Event::Reachable),
        1 => any::<bool>().prop_map(Event::Answers),
    ]
}

proptest! {
    /// Whatever happens, in whatever order: every transfer ends once, nothing lands after its end, a success has carried
    /// every byte and told its target once, and in the end nothing is held.
    #[test]
    fn nothing_is_lost_whatever_happens(
        events in prop::collection::vec(event(), 1..60),
        lanes in 1_usize..3,
        depth in 1_usize..9,
    ) {
        let mut world = World::new(Settings { lanes_per_path: lanes, ..settings() }, 2, depth);
        let mut wanted: HashMap<u64, (Vec<Piece>, Option<bool>)> = HashMap::new();
        let mut keys = Vec::new();
        for event in events {
            match event {
                Event::Submit { write, pieces, note } => {
                    let pieces: Vec<Piece> = pieces.iter().map(|&(l, r, n)| Piece::new(l, r, n)).collect();
                    let message = note.map(|on_failure| Notify { message: vec![1], on_failure });
                    let op = if write { Op::Write } else { Op::Read };
                    let key = world.submit(op, &pieces, message);
                    wanted.insert(key, (pieces, note));
                    keys.push(key);
                }
                Event::Step { lane, count } => {
                    for _ in 0..count {
                        world.step(lane, WcStatus::Success);
                    }
                }
                Event::Fail { lane, status } => {
                    world.step(lane, WcStatus::ALL[status % WcStatus::ALL.len()]);
                }
                Event::Refuse { lane, taken, full } => {
                    if let Some((_, device)) = world.devices.get(lane) {
                        device.lock().refuse.push_back((taken, full));
                    }
                }
                Event::Cancel(which) => {
                    if let Some(key) = keys.get(which) {
                        let why = Error::new(ErrorKind::Cancelled, "by the test");
                        world.flow.cancel(*key, why, world.now, &mut world.out);
                        world.act();
                    }
                }
                Event::Advance(by) => world.advance(Duration::from_millis(by)),
                Event::Lose => {
                    let lost = Error::new(ErrorKind::PeerLost, "lost");
                    world.flow.lose(&lost, false, world.now, &mut world.out);
                    world.act();
                }
                Event::PathDown(path) => {
                    let cause = Error::new(ErrorKind::Transport, "port down");
                    world.flow.path_down(path, &cause, path == 1, world.now, &mut world.out);
                    world.act();
                }
                Event::Reachable(yes) => world.reachable = yes,
                Event::Answers(yes) => world.answers = yes,
            }
            let held = world.flow.held();
            prop_assert!(held.credits <= held.lanes * depth);
        }
        world.reachable = true;
        world.answers = true;
        for _ in 0..40 {
            for lane in std::mem::take(&mut world.unanswered) {
                world.flow.retired(lane, &Ok(()), world.now, &mut world.out);
                world.act();
            }
            for (lane, slot, transfer) in std::mem::take(&mut world.unanswered_messages) {
                world.flow.answered(lane, slot, transfer, Ok(()), world.now, &mut world.out);
                world.act();
            }
            world.run();
            world.advance(Duration::from_secs(3));
        }
        world.nothing_held();
        for (key, (pieces, note)) in &wanted {
            let told: Vec<bool> = world.told.iter().filter(|(of, _)| of == key).map(|(_, failed)| *failed).collect();
            prop_assert!(told.len() <= 1);
            if world.ended[key].is_ok() {
                let carried: HashSet<_> = world.executed.get(key).into_iter().flatten().copied().collect();
                prop_assert_eq!(&carried, &bytes(pieces));
                prop_assert_eq!(told.len(), usize::from(note.is_some()));
            }
            prop_assert!(told.iter().all(|failed| !failed || note == &Some(true)));
        }
    }
}
