//! Bytes: every one arrives where it belongs, and no other is touched.

use mori_core::{Op, Piece};

use super::cases;
use super::fixture::{Area, Bench, Link, Random};
use crate::check::{CaseResult, Doing};

cases! {
    "Session::submit" read_every_size,
    "Session::submit" write_every_size,
    "Session::submit" reads_reach_both_ends_of_a_region,
    "Session::submit" writes_reach_both_ends_of_a_region,
    "Session::submit" a_batch_read_of_scattered_pieces,
    "Session::submit" a_batch_write_of_scattered_pieces,
    "Session::submit" neighbours_that_touch_on_one_side_or_both,
    "Session::submit" pieces_of_one_source_in_two_places,
    "Session::submit" thousands_of_pieces_in_one_transfer,
    "Session::submit" a_large_transfer,
    "Session::submit" an_empty_transfer_succeeds,
    "Session::submit" empty_pieces_among_others_are_skipped,
    "Session::submit" regions_of_one_peer_are_kept_apart,
    "Session::submit" both_directions_at_once,
    "Session::submit" one_session_used_again_and_again,
}

const BOTH: [Op; 2] = [Op::Read, Op::Write];

/// Sizes around everything that implementations cut at: words, cache lines, pages, socket buffers.
const SIZES: [u64; 24] = [
    1, 2, 3, 7, 8, 9, 15, 16, 31, 63, 64, 65, 255, 511, 512, 1023, 4095, 4096, 4097, 16_385, 65_535, 65_536,
    65_537, 300_001,
];

fn every_size(bench: &Bench, op: Op) -> CaseResult {
    let link = bench.link(310_000)?;
    for (index, size) in SIZES.into_iter().enumerate() {
        let index = index as u64;
        let piece = Piece::new(17 + index * 3, 4111 + index, size);
        link.check(bench, op, &[piece]).doing(format!("{size} bytes"))?;
    }
    Ok(())
}

fn read_every_size(bench: &Bench) -> CaseResult {
    every_size(bench, Op::Read)
}

fn write_every_size(bench: &Bench) -> CaseResult {
    every_size(bench, Op::Write)
}

fn both_ends(bench: &Bench, op: Op) -> CaseResult {
    const LENGTH: u64 = 20_000;
    let link = bench.link(20_000)?;
    let pieces = [
        Piece::new(0, 0, 1),
        Piece::new(LENGTH - 1, LENGTH - 1, 1),
        Piece::new(0, LENGTH - 1, 1),
        Piece::new(LENGTH - 1, 0, 1),
        Piece::new(0, 5000, LENGTH - 5000),
        Piece::new(5000, 0, LENGTH - 5000),
        Piece::new(0, 0, LENGTH),
        Piece::new(LENGTH, LENGTH, 0),
    ];
    for piece in pieces {
        link.check(bench, op, &[piece]).doing(format!("{piece:?} of {LENGTH} bytes"))?;
    }
    Ok(())
}

fn reads_reach_both_ends_of_a_region(bench: &Bench) -> CaseResult {
    both_ends(bench, Op::Read)
}

fn writes_reach_both_ends_of_a_region(bench: &Bench) -> CaseResult {
    both_ends(bench, Op::Write)
}

/// Pieces that overlap on neither side, in no order, with gaps between them.
fn scattered(random: &mut Random, length: u64, count: u64) -> Vec<Piece> {
    let slot = length / count;
    let mut there: Vec<u64> = (0..count).collect();
    random.shuffle(&mut there);
    let mut pieces: Vec<Piece> = (0..count)
        .zip(there)
        .map(|(here, there)| {
            let size = 1 + random.below(slot);
            let room = slot - size + 1;
            Piece::new(here * slot + random.below(room), there * slot + random.below(room), size)
        })
        .collect();
    random.shuffle(&mut pieces);
    pieces
}

fn scattered_batch(bench: &Bench, op: Op) -> CaseResult {
    let link = bench.link(1 << 20)?;
    let mut random = Random::new(11);
    for count in [2, 3, 16, 63, 64, 65, 257, 1025] {
        let pieces = scattered(&mut random, 1 << 20, count);
        link.check(bench, op, &pieces).doing(format!("{count} pieces"))?;
    }
    Ok(())
}

fn a_batch_read_of_scattered_pieces(bench: &Bench) -> CaseResult {
    scattered_batch(bench, Op::Read)
}

fn a_batch_write_of_scattered_pieces(bench: &Bench) -> CaseResult {
    scattered_batch(bench, Op::Write)
}

fn neighbours_that_touch_on_one_side_or_both(bench: &Bench) -> CaseResult {
    let link = bench.link(8192)?;
    let lists: [(&str, &[Piece]); 6] = [
        ("on both sides", &[Piece::new(0, 100, 50), Piece::new(50, 150, 60), Piece::new(110, 210, 1)]),
        ("on the local side", &[Piece::new(0, 100, 50), Piece::new(50, 300, 60), Piece::new(110, 500, 40)]),
        ("on the remote side", &[Piece::new(0, 100, 50), Piece::new(200, 150, 60), Piece::new(400, 210, 40)]),
        ("in reversed order", &[Piece::new(50, 150, 50), Piece::new(0, 100, 50)]),
        ("crosswise", &[Piece::new(0, 1050, 50), Piece::new(50, 1000, 50)]),
        (
            "with an empty one between them",
            &[Piece::new(0, 100, 50), Piece::new(7000, 8000, 0), Piece::new(50, 150, 50)],
        ),
    ];
    for (what, pieces) in lists {
        for op in BOTH {
            link.check(bench, op, pieces).doing(format!("{op:?} of pieces that touch {what}"))?;
        }
    }
    Ok(())
}

fn pieces_of_one_source_in_two_places(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.check(
        bench,
        Op::Read,
        &[Piece::new(0, 700, 300), Piece::new(1000, 700, 300), Piece::new(2000, 800, 100)],
    )?;
    link.check(
        bench,
        Op::Write,
        &[Piece::new(700, 0, 300), Piece::new(700, 1000, 300), Piece::new(800, 2000, 100)],
    )
}

fn thousands_of_pieces_in_one_transfer(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 20)?;
    let pieces = scattered(&mut Random::new(12), 1 << 20, 10_000);
    for op in BOTH {
        link.check(bench, op, &pieces)?;
    }
    Ok(())
}

fn a_large_transfer(bench: &Bench) -> CaseResult {
    let length = bench.bounds.largest;
    let link = bench.link(length + 2)?;
    for op in BOTH {
        link.check(bench, op, &[Piece::new(1, 2, length as u64)])?;
    }
    Ok(())
}

fn an_empty_transfer_succeeds(bench: &Bench) -> CaseResult {
    let link = bench.link(100)?;
    let lists: [&[Piece]; 3] = [
        &[],
        &[Piece::new(0, 0, 0)],
        &[Piece::new(50, 100, 0), Piece::new(100, 0, 0), Piece::new(100, 100, 0)],
    ];
    for pieces in lists {
        for op in BOTH {
            link.check(bench, op, pieces).doing(format!("{op:?} of {pieces:?}"))?;
        }
    }
    Ok(())
}

fn empty_pieces_among_others_are_skipped(bench: &Bench) -> CaseResult {
    let link = bench.link(1000)?;
    for op in BOTH {
        let pieces =
            [Piece::new(0, 0, 0), Piece::new(5, 10, 20), Piece::new(1000, 1000, 0), Piece::new(400, 500, 1)];
        link.check(bench, op, &pieces)?;
    }
    Ok(())
}

fn regions_of_one_peer_are_kept_apart(bench: &Bench) -> CaseResult {
    let (a, b) = bench.pair()?;
    let here: Vec<Area> = (0..3).map(|_| a.area(3000)).collect::<CaseResult<_>>()?;
    let there: Vec<Area> = (0..3).map(|_| b.area(3000)).collect::<CaseResult<_>>()?;
    let before_here: Vec<_> =
        (0..3).zip(&here).map(|(n, area)| a.fill(area, n)).collect::<CaseResult<_>>()?;
    let before_there: Vec<_> =
        (10..).zip(&there).map(|(n, area)| b.fill(area, n)).collect::<CaseResult<_>>()?;
    let sessions: Vec<_> =
        here.iter().zip(&there).map(|(local, remote)| a.session(local, remote)).collect::<CaseResult<_>>()?;
    for (index, session) in sessions.iter().enumerate().rev() {
        let (first, second) = (Piece::new(0, 0, 1000), Piece::new(2000, 2000, 500));
        bench.succeed(&session.submit(Op::Read, &[first], &Default::default()))?;
        bench.succeed(&session.submit(Op::Write, &[second], &Default::default()))?;
        let (mut local, mut remote) = (before_here[index].clone(), before_there[index].clone());
        super::fixture::apply(Op::Read, &[first], &mut local, &mut remote)?;
        super::fixture::apply(Op::Write, &[second], &mut local, &mut remote)?;
        a.holds(&here[index], &local, "at the submitter")?;
        b.holds(&there[index], &remote, "at the target")?;
        for other in 0..index {
            a.holds(&here[other], &before_here[other], "in another region of the submitter")?;
            b.holds(&there[other], &before_there[other], "in another region of the target")?;
        }
    }
    Ok(())
}

fn both_directions_at_once(bench: &Bench) -> CaseResult {
    let Link { session, local, remote, a, b } = bench.link(1 << 20)?;
    let back = b.session(&remote, &local)?;
    let mut here = a.fill(&local, 21)?;
    let mut there = b.fill(&remote, 22)?;
    let half = 1 << 19;
    // Each side reads one half of the other's and writes nothing that the other one reads.
    let forth = session.submit(Op::Read, &[Piece::new(0, 0, half)], &Default::default());
    let other = back.submit(Op::Read, &[Piece::new(half, half, half)], &Default::default());
    bench.succeed(&forth)?;
    bench.succeed(&other)?;
    let (low, high) = (Piece::new(0, 0, half), Piece::new(half, half, half));
    super::fixture::apply(Op::Read, &[low], &mut here, &mut there)?;
    super::fixture::apply(Op::Read, &[high], &mut there, &mut here)?;
    a.holds(&local, &here, "at the first side")?;
    b.holds(&remote, &there, "at the second side")
}

fn one_session_used_again_and_again(bench: &Bench) -> CaseResult {
    let link = bench.link(2048)?;
    for round in 0..300 {
        let op = if round % 2 == 0 { Op::Read } else { Op::Write };
        link.check(bench, op, &[Piece::new(round, 2 * round, 100 + round)])
            .doing(format!("round {round}"))?;
    }
    Ok(())
}
