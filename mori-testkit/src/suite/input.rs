//! What others send cannot be trusted: descriptors, keys, ranges and rights.

use mori_core::{Access, EngineDesc, ErrorKind, MemoryDesc, Op, Piece, TransferOptions, TransportBlob};

use super::cases;
use super::fixture::{Area, Bench, Link};
use super::lifetimes::refused;
use crate::check::{CaseResult, Doing, ensure};

cases! {
    "Backend::add_peer" malformed_engine_blobs_are_refused,
    "Backend::session" malformed_memory_blobs_are_refused,
    "Backend::add_peer" an_engine_without_this_transport_is_not_found,
    "Backend::route" memory_without_this_transport_has_no_route,
    "Backend::route" a_route_exists_where_a_session_does,
    "Backend" a_key_of_another_peer_opens_nothing,
    "Backend" flipped_bits_in_a_blob_do_no_harm,
    "Access, Backend" access_rights_are_kept_by_the_target,
    "Backend" ranges_are_checked_by_the_target,
    "Backend" [Hold] bad_requests_leave_good_ones_alone,
}

/// Ways to spoil a blob so that it cannot be decoded.
fn spoilt(blob: &TransportBlob) -> Vec<(String, TransportBlob)> {
    let mut all = Vec::new();
    for length in 0..blob.bytes.len() {
        let bytes = blob.bytes[..length].to_vec();
        all.push((format!("cut to {length} bytes"), TransportBlob { bytes, ..blob.clone() }));
    }
    for version in [blob.version + 1, u32::MAX] {
        all.push((format!("of version {version}"), TransportBlob { version, ..blob.clone() }));
    }
    all.push(("of one byte of garbage".to_owned(), TransportBlob { bytes: vec![0xff], ..blob.clone() }));
    all.push((
        "of 60000 bytes of garbage".to_owned(),
        TransportBlob { bytes: vec![0xff; 60_000], ..blob.clone() },
    ));
    all
}

fn malformed_engine_blobs_are_refused(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let stranger = bench.peer("stranger")?;
    for (index, blob) in stranger.desc.transports.iter().enumerate() {
        for (what, blob) in spoilt(blob) {
            for of in [&stranger, &link.b] {
                let mut desc = of.desc.clone();
                desc.transports[index] = blob.clone();
                let added = link.a.backend.add_peer(&desc);
                ensure!(
                    added.as_ref().is_err_and(|error| error.kind() == ErrorKind::Malformed),
                    "an engine's blob {what} is answered with {added:?}"
                );
            }
        }
    }
    // Neither is the stranger known now, nor was the known peer disturbed.
    let area = stranger.area(64)?;
    refused(bench, &link, &area, Op::Read, &[ErrorKind::NotFound])?;
    link.check(bench, Op::Read, &[Piece::new(0, 0, 4096)])
}

fn malformed_memory_blobs_are_refused(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    let before = link.b.fill(&link.remote, 81)?;
    for (index, blob) in link.remote.desc.transports.iter().enumerate() {
        for (what, blob) in spoilt(blob) {
            let mut area = link.remote.clone();
            area.desc.transports[index] = blob;
            for op in [Op::Read, Op::Write] {
                refused(bench, &link, &area, op, &[ErrorKind::Malformed])
                    .doing(format!("a region's blob {what}"))?;
            }
        }
    }
    link.b.holds(&link.remote, &before, "at the target")?;
    link.check(bench, Op::Write, &[Piece::new(0, 0, 4096)])
}

fn an_engine_without_this_transport_is_not_found(bench: &Bench) -> CaseResult {
    let a = bench.peer("a")?;
    let other = TransportBlob { transport: "another transport".to_owned(), version: 1, bytes: vec![1, 2, 3] };
    for transports in [vec![], vec![other]] {
        let desc = EngineDesc { key: bench.key("without"), transports, ..EngineDesc::default() };
        let added = a.backend.add_peer(&desc);
        ensure!(
            added.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound),
            "an engine without this transport is answered with {added:?}"
        );
    }
    Ok(())
}

fn memory_without_this_transport_has_no_route(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    if link.remote.desc.transports.is_empty() {
        // This transport needs nothing in the descriptor.
        return Ok(());
    }
    let mut desc = link.remote.desc.clone();
    for blob in &mut desc.transports {
        blob.transport = "another transport".to_owned();
    }
    for desc in [desc, MemoryDesc { transports: Vec::new(), ..link.remote.desc.clone() }] {
        let route = link.a.backend.route(&link.local.region, &desc);
        ensure!(route.is_err(), "there is a route to memory without a blob of this transport");
        let session = link.a.backend.session(&link.local.region, &desc);
        ensure!(session.is_err(), "there is a session to memory without a blob of this transport");
        ensure!(
            route.is_err_and(|error| !error.message().is_empty()),
            "the missing route has no explanation"
        );
    }
    Ok(())
}

fn a_route_exists_where_a_session_does(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    link.a
        .backend
        .route(&link.local.region, &link.remote.desc)
        .doing("the route between two registered regions")
}

fn a_key_of_another_peer_opens_nothing(bench: &Bench) -> CaseResult {
    let fork = bench.fork(4096)?;
    let link = &fork.link;
    let before = fork.c.fill(&fork.remote, 82)?;
    // The engine says `b`, the blob is from `c`.
    let mut area = fork.remote.clone();
    area.desc.engine_key = link.b.key.clone();
    for op in [Op::Read, Op::Write] {
        let kinds = [ErrorKind::NotFound, ErrorKind::AccessDenied, ErrorKind::Malformed];
        refused(bench, link, &area, op, &kinds)?;
    }
    fork.c.holds(&fork.remote, &before, "in the region whose key was borrowed")
}

fn flipped_bits_in_a_blob_do_no_harm(bench: &Bench) -> CaseResult {
    let link = bench.link(256)?;
    let other = link.b.area(256)?;
    let (there, beside) = (link.b.fill(&link.remote, 83)?, link.b.fill(&other, 84)?);
    for (index, blob) in link.remote.desc.transports.iter().enumerate() {
        for at in 0..blob.bytes.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut desc = link.remote.desc.clone();
                desc.transports[index].bytes[at] ^= mask;
                link.a.fill(&link.local, 85)?;
                let Ok(session) = link.a.backend.session(&link.local.region, &desc) else { continue };
                let status = session.submit(Op::Read, &[Piece::new(0, 0, 256)], &TransferOptions::default());
                if bench.finish(&status)?.is_success() {
                    // The byte means nothing to the target; then it is the right region.
                    link.a.holds(&link.local, &there, "read with a bit flipped")?;
                }
            }
        }
    }
    link.b.holds(&other, &beside, "in another region")?;
    link.check(bench, Op::Read, &[Piece::new(0, 0, 256)])
}

/// A descriptor that claims every right.
fn boasting(area: &Area) -> Area {
    let mut area = area.clone();
    area.desc.access = Access::READ_WRITE;
    area
}

fn access_rights_are_kept_by_the_target(bench: &Bench) -> CaseResult {
    let link = bench.link(4096)?;
    for (access, op, allowed) in [
        (Access::READ_ONLY, Op::Read, true),
        (Access::READ_ONLY, Op::Write, false),
        (Access::WRITE_ONLY, Op::Read, false),
        (Access::WRITE_ONLY, Op::Write, true),
        (Access::LOCAL, Op::Read, false),
        (Access::LOCAL, Op::Write, false),
    ] {
        let area = link.b.area_for(4096, access)?;
        let (here, there) = (link.a.fill(&link.local, 86)?, link.b.fill(&area, 87)?);
        if allowed {
            let session = link.a.session(&link.local, &area)?;
            let status = session.submit(op, &[Piece::new(0, 0, 4096)], &TransferOptions::default());
            bench.succeed(&status).doing(format!("{op:?} with {access:?}"))?;
        } else {
            // A region without rights for peers may have no blob, and so no route.
            let kinds = [ErrorKind::AccessDenied, ErrorKind::NotFound];
            let kinds = if area.desc.transports.is_empty() { &kinds[..] } else { &kinds[..1] };
            for area in [&area, &boasting(&area)] {
                refused(bench, &link, area, op, kinds).doing(format!("{op:?} with {access:?}"))?;
            }
            link.a.holds(&link.local, &here, "at the submitter of a denied transfer")?;
            link.b.holds(&area, &there, "at the target of a denied transfer")?;
        }
    }
    // A region's own engine may always use it, whatever peers may do.
    let local = link.a.area_for(4096, Access::LOCAL)?;
    let session = link.a.session(&local, &link.remote)?;
    for op in [Op::Read, Op::Write] {
        bench.succeed(&session.submit(op, &[Piece::new(0, 0, 4096)], &TransferOptions::default()))?;
    }
    Ok(())
}

fn ranges_are_checked_by_the_target(bench: &Bench) -> CaseResult {
    const LENGTH: u64 = 4096;
    let link = bench.link(4096)?;
    let mut area = link.remote.clone();
    area.desc.size = u64::MAX;
    let session = link.a.session(&link.local, &area)?;
    let lists: [&[Piece]; 9] = [
        &[Piece::new(0, LENGTH, 1)],
        &[Piece::new(0, LENGTH - 1, 2)],
        &[Piece::new(0, 1, LENGTH)],
        &[Piece::new(0, LENGTH + 1, 1)],
        &[Piece::new(0, 1 << 40, 8)],
        &[Piece::new(0, u64::MAX - 7, 8)],
        &[Piece::new(0, u64::MAX - 3, 8)],
        &[Piece::new(0, 0, 16), Piece::new(100, 200, 16), Piece::new(16, LENGTH - 8, 16)],
        &[Piece::new(0, u64::MAX, 1), Piece::new(0, 0, 16)],
    ];
    for op in [Op::Read, Op::Write] {
        for pieces in lists {
            let status = session.submit(op, pieces, &TransferOptions::default());
            bench.fail(&status, &[ErrorKind::InvalidArgument]).doing(format!("{op:?} of {pieces:?}"))?;
        }
        // The connection is as good as before.
        link.check(bench, op, &[Piece::new(0, 0, LENGTH)])?;
    }
    Ok(())
}

fn bad_requests_leave_good_ones_alone(bench: &Bench) -> CaseResult {
    let link = bench.link(1 << 18)?;
    let expected = link.b.fill(&link.remote, 88)?;
    let closed = link.b.area_for(64, Access::READ_ONLY)?;
    let gone = link.b.area(64)?;
    link.b.backend.deregister(gone.region.id());
    let mut lie = link.remote.clone();
    lie.desc.size *= 2;
    let Link { local, a, b, .. } = &link;
    let sessions = [a.session(local, &boasting(&closed))?, a.session(local, &gone)?, a.session(local, &lie)?];
    let pieces = [Piece::new(0, 0, 64), Piece::new(0, 0, 64), Piece::new(0, 1 << 18, 64)];
    b.node.hold();
    let good = link.whole(Op::Read);
    let bad: Vec<_> = sessions
        .iter()
        .zip(pieces)
        .map(|(session, piece)| session.submit(Op::Write, &[piece], &TransferOptions::default()))
        .collect();
    b.node.release();
    let kinds = [ErrorKind::AccessDenied, ErrorKind::NotFound, ErrorKind::InvalidArgument];
    for (status, kind) in bad.iter().zip(kinds) {
        bench.fail(status, &[kind])?;
    }
    bench.succeed(&good).doing("a good transfer beside bad ones")?;
    a.holds(local, &expected, "at the submitter of the good transfer")
}
