//! Surgery on encoded arrays, independent of the code under test, and checks of errors.

use mori_core::{Error, ErrorKind};
use rmp::encode::write_array_len;

/// Splits an encoded array into the encodings of its members. Knows only what the descriptors use.
pub(crate) fn members(packed: &[u8]) -> Vec<Vec<u8>> {
    fn end(bytes: &[u8], at: usize) -> usize {
        let be =
            |from: usize, count: usize| bytes[from..from + count].iter().fold(0, |n, &b| n << 8 | b as usize);
        let after = |at: usize, count: usize| (0..count).fold(at, |at, _| end(bytes, at));
        match bytes[at] {
            0x00..=0x7f | 0xe0..=0xff => at + 1,
            first @ 0x90..=0x9f => after(at + 1, (first & 0x0f) as usize),
            first @ 0xa0..=0xbf => at + 1 + (first & 0x1f) as usize,
            0xc4 | 0xd9 => at + 2 + be(at + 1, 1),
            0xc5 | 0xda => at + 3 + be(at + 1, 2),
            0xcc | 0xd0 => at + 2,
            0xcd | 0xd1 => at + 3,
            0xce | 0xd2 => at + 5,
            0xcf | 0xd3 => at + 9,
            0xdc => after(at + 3, be(at + 1, 2)),
            other => panic!("{other:#x} at {at}"),
        }
    }
    let (count, mut at) = match packed[0] {
        first @ 0x90..=0x9f => ((first & 0x0f) as usize, 1),
        0xdc => (usize::from(u16::from_be_bytes([packed[1], packed[2]])), 3),
        other => panic!("{other:#x}"),
    };
    let mut members = Vec::new();
    for _ in 0..count {
        let end = end(packed, at);
        members.push(packed[at..end].to_vec());
        at = end;
    }
    assert_eq!(at, packed.len());
    members
}

pub(crate) fn join(members: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, members.len() as u32).unwrap();
    members.iter().for_each(|member| out.extend_from_slice(member));
    out
}

pub(crate) fn with(packed: &[u8], index: usize, member: &[u8]) -> Vec<u8> {
    let mut members = members(packed);
    members[index] = member.to_vec();
    join(&members)
}

/// Checks that an error is of the right kind and that its message holds every one of `words`.
pub(crate) fn says(error: &Error, words: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{error} does not say {word:?}");
    }
}
