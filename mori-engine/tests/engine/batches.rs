//! Batches: items that fail alone, peers that hold up nobody else.

use std::time::Duration;

use mori_engine::{
    Access, BatchItem, Engine, ErrorKind, MemoryDesc, Notify, Op, Piece, Status, StatusCode, Tag,
    TransferOptions,
};

use crate::fake::{Net, error, introduce, while_opening};

/// Longer than anything here takes, so that a failure is no hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Within a batch a bad item fails alone, whatever is wrong with it.
#[test]
fn one_bad_item_fails_alone() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let local = a.allocate(100, Access::READ_WRITE).unwrap();
    let remote = b.allocate(200, Access::READ_WRITE).unwrap();
    let (c, _) = net.engine("c", "fake");
    let gone = b.allocate(8, Access::READ_WRITE).unwrap();
    b.deregister(&gone, None).unwrap();
    let unknown = c.allocate(8, Access::READ_WRITE).unwrap();
    let foreign = b.allocate(8, Access::READ_WRITE).unwrap();
    let write_only = b.allocate(8, Access::WRITE_ONLY).unwrap();
    let pieces = [Piece::new(0, 0, 8)];
    let beyond = [Piece::new(0, 196, 5)];
    let (remote, gone, unknown, write_only) = (remote.desc(), gone.desc(), unknown.desc(), write_only.desc());
    let item = |local, remote, pieces, tag| BatchItem {
        local,
        remote,
        pieces,
        options: TransferOptions::tagged(tag),
    };
    let items: [BatchItem<'_>; 8] = [
        item(&local, &remote, &pieces, 0),
        item(&local, &remote, &beyond, 1),
        item(&local, &gone, &pieces, 2),
        item(&local, &unknown, &pieces, 3),
        item(&foreign, &remote, &pieces, 4),
        item(&local, &write_only, &pieces, 5),
        item(&local, &remote, &[], 6),
        item(&local, &remote, &pieces, 7),
    ];
    let statuses = a.batch(Op::Read, &items);
    let outcome = a.wait_all(&statuses, None);
    let found: Vec<(usize, Tag, StatusCode)> =
        outcome.failed().iter().map(|member| (member.index, member.tag, member.code)).collect();
    let expected = [
        (1, ErrorKind::InvalidArgument),
        (2, ErrorKind::NotFound),
        (3, ErrorKind::BadState),
        (4, ErrorKind::NotFound),
        (5, ErrorKind::AccessDenied),
    ];
    assert_eq!(found, expected.map(|(index, kind)| (index, Tag(index as u64), StatusCode::Failure(kind))));
    assert_eq!(outcome.succeeded(), 3);
    assert_eq!(outcome.code(), StatusCode::Failure(ErrorKind::InvalidArgument));
    assert!(a.batch(Op::Read, &[]).is_empty());
}

fn peers(net: &Net, names: [&str; 3]) -> ([Engine; 3], [MemoryDesc; 3]) {
    let engines = names.map(|name| net.engine(name, "fake").0);
    let descs =
        engines.each_ref().map(|engine| engine.register_vec(vec![4; 16], Access::READ_WRITE).unwrap().desc());
    (engines, descs)
}

fn kinds(statuses: &[Status]) -> Vec<Option<ErrorKind>> {
    statuses.iter().map(|status| status.error().map(|error| error.kind())).collect()
}

/// While connecting to one peer takes its time, the transfer with another starts and ends.
#[test]
fn a_peer_that_does_not_answer_holds_up_nobody_else() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let ([b, c, d], [of_b, of_c, of_d]) = peers(&net, ["b", "c", "d"]);
    introduce([&a, &b, &c, &d]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    // One session is open already.
    assert!(a.write(&local, 0, &of_d, 0, 16, TransferOptions::default()).is_success());
    let pieces = [Piece::new(0, 0, 16)];
    let notify = Some(Notify { message: b"done".to_vec(), on_failure: false });
    let options = TransferOptions { notify, ..TransferOptions::default() };
    let item = |remote| BatchItem { local: &local, remote, pieces: &pieces, options: options.clone() };
    let items = [item(&of_b), item(&of_c), item(&of_d)];
    fake.script(|script| script.meeting_for = Some(b.key().clone()));
    let mut statuses = Vec::new();
    let slow = while_opening(
        &fake,
        || {
            statuses = a.batch(Op::Write, &items);
            statuses[0].clone()
        },
        || {
            for quick in [&c, &d] {
                assert_eq!(quick.notifications().wait(PATIENCE).unwrap().message, b"done");
            }
            assert!(b.notifications().is_empty());
        },
    );
    assert!(slow.is_success());
    assert_eq!(kinds(&statuses), [None, None, None]);
    assert!(a.wait_all(&statuses, PATIENCE).is_success());
}

/// Connecting to a dead peer is tried once for a batch, not once for each pair of regions.
#[test]
fn a_peer_that_cannot_be_reached_is_tried_once_for_a_batch() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let locals: Vec<_> = (0..10).map(|_| a.allocate(16, Access::READ_WRITE).unwrap()).collect();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    let pieces = [Piece::new(0, 0, 16)];
    let items: Vec<BatchItem<'_>> = locals
        .iter()
        .map(|local| BatchItem {
            local,
            remote: &remote,
            pieces: &pieces,
            options: TransferOptions::default(),
        })
        .collect();
    let run = |kind| {
        let before = fake.count("session");
        fake.script(|script| script.session = Some(error(kind, "no")));
        let statuses = a.batch(Op::Read, &items);
        assert_eq!(kinds(&statuses), [Some(kind); 10]);
        assert!(
            statuses.iter().all(|status| status.message().contains("engine b over fake: no")),
            "{statuses:?}"
        );
        fake.count("session") - before
    };
    assert_eq!(run(ErrorKind::PeerLost), 1);
    assert_eq!(run(ErrorKind::TimedOut), 1);
    // What is wrong with one pair says nothing about the next.
    assert_eq!(run(ErrorKind::ResourceExhausted), 10);
    fake.script(|script| script.session = None);
    assert!(a.wait_all(&a.batch(Op::Read, &items), None).is_success());
}

#[test]
fn a_batch_over_more_peers_than_threads_reaches_all() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let local = a.allocate(16 * 80, Access::READ_WRITE).unwrap();
    let engines: Vec<Engine> = (0..80).map(|index| net.engine(&format!("peer-{index}"), "fake").0).collect();
    let descs: Vec<MemoryDesc> = engines
        .iter()
        .zip(0_u8..)
        .map(|(engine, index)| {
            a.add_peer(&engine.desc()).unwrap();
            engine.register_vec(vec![index; 16], Access::READ_ONLY).unwrap().desc()
        })
        .collect();
    let pieces: Vec<[Piece; 1]> = (0..80).map(|index| [Piece::new(index * 16, 0, 16)]).collect();
    let items: Vec<BatchItem<'_>> = descs
        .iter()
        .zip(&pieces)
        .zip(0..)
        .flat_map(|((remote, pieces), tag)| {
            let item = BatchItem { local: &local, remote, pieces, options: TransferOptions::tagged(tag) };
            [item.clone(), item]
        })
        .collect();
    let statuses = a.batch(Op::Read, &items);
    assert!(a.wait_all(&statuses, None).is_success());
    assert!(statuses.iter().zip(0..).all(|(status, index)| status.tag() == Tag(index / 2)));
    let mut bytes = vec![0; 16 * 80];
    local.read_at(0, &mut bytes).unwrap();
    assert!(bytes.chunks(16).zip(0_u8..).all(|(chunk, index)| chunk == [index; 16]));
    assert_eq!(fake.count("session"), 80, "two items of a pair share a session");
}
