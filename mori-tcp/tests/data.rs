//! Bytes: every one of them arrives where it should, and no other changes.

mod support;

use mori_core::{Access, Notify, Op, Piece, StatusCode, Tag, TransferOptions};
use mori_tcp::TcpConfig;
use std::time::Duration;
use support::{bytes, pair, pattern, submit};

#[test]
fn reads_and_writes_of_all_sizes() {
    let config = TcpConfig { stripe_bytes: 10_000, chunk_bytes: 4096, ..TcpConfig::default() };
    for config in [config, TcpConfig::default()] {
        let (near, far) = pair(&config);
        for length in [1, 7, 63, 64, 448, 449, 4096, 4097, 100_000, 3_000_001] {
            let (local, _) = near.region(length + 20, Access::LOCAL);
            let (remote, desc) = far.region(length + 30, Access::READ_WRITE);
            let content = pattern(length, length as u64);
            remote.write_at(30, &content).unwrap();
            let session = near.session(&local, &desc);
            let status = submit(&session, Op::Read, &[Piece::new(10, 30, length as u64)]);
            assert_eq!(status.wait(None), StatusCode::Success, "{status:?}");
            let got = bytes(&local);
            assert!(got[10..10 + length] == content[..], "length {length}");
            assert!(got[..10].iter().chain(&got[10 + length..]).all(|&byte| byte == 0));

            let content = pattern(length, 99);
            local.write_at(3, &content).unwrap();
            let status = submit(&session, Op::Write, &[Piece::new(3, 1, length as u64)]);
            assert_eq!(status.wait(None), StatusCode::Success, "{status:?}");
            assert!(bytes(&remote)[1..=length] == content[..], "length {length}");
            assert_eq!(local.pins(), 0);
        }
    }
}

#[test]
fn notified_writes_and_reads() {
    let (near, far) = pair(&TcpConfig::default());
    let (local, _) = near.region(1 << 20, Access::LOCAL);
    let (_remote, desc) = far.region(1 << 20, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    for (op, length) in
        [(Op::Write, 100), (Op::Read, 100), (Op::Write, 1 << 20), (Op::Read, 1 << 20), (Op::Write, 0)]
    {
        let options = TransferOptions {
            tag: Tag(5),
            notify: Some(Notify { message: b"hello".to_vec(), on_failure: true }),
            ..TransferOptions::default()
        };
        let status = session.submit(op, &[Piece::new(0, 0, length)], &options);
        assert_eq!(status.wait(None), StatusCode::Success, "{status:?}");
        let got = far.notifications.wait(Duration::from_secs(5)).unwrap();
        assert_eq!((got.message.as_slice(), got.tag, got.error), (&b"hello"[..], Tag(5), None));
        assert_eq!(got.transfer, status.id().get());
        assert!(far.notifications.is_empty());
    }
}
