//! The code in `docs/adding-a-backend.md` is the example's code.
//!
//! A block of Rust there follows a line `<!-- FILE: NAME -->` and holds what stands in that file of the example
//! between `// [NAME]` and `// [end]`. With `MORI_BLESS=1` in the environment the test writes the blocks instead.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of tests fail by panicking"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn example(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/local").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/adding-a-backend.md")
}

/// The part of an example with this name, moved to the left margin.
fn part(file: &str, name: &str) -> String {
    let text = example(file);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.iter().position(|line| line.trim() == format!("// [{name}]"));
    let from = from.unwrap_or_else(|| panic!("{file} has no part {name}")) + 1;
    let length = lines[from..].iter().position(|line| line.trim() == "// [end]").expect("a part has an end");
    let lines = &lines[from..from + length];
    let margin =
        lines.iter().filter(|line| !line.is_empty()).map(|line| line.len() - line.trim_start().len()).min();
    lines.iter().fold(String::new(), |mut text, line| {
        writeln!(text, "{}", line.get(margin.unwrap_or(0)..).unwrap_or_default()).unwrap();
        text
    })
}

/// The guide with each block replaced by the example's code, and the parts that it shows.
fn filled(text: &str) -> (String, Vec<(String, String)>) {
    let (mut filled, mut shown) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(filled, "{line}").unwrap();
        assert_ne!(line, "```rust", "a block of Rust without a line that says where it is from");
        let Some((file, name)) = line
            .strip_prefix("<!-- ")
            .and_then(|line| line.strip_suffix(" -->"))
            .and_then(|marker| marker.split_once(": "))
        else {
            continue;
        };
        assert_eq!(lines.next(), Some("```rust"), "after {line}");
        assert!(lines.any(|line| line == "```"), "the block after {line} has no end");
        write!(filled, "```rust\n{}```\n", part(file, name)).unwrap();
        shown.push((file.to_owned(), name.to_owned()));
    }
    (filled, shown)
}

#[test]
fn the_guide_shows_the_example_as_it_is() {
    let text = fs::read_to_string(guide()).unwrap();
    let (filled, _) = filled(&text);
    if std::env::var_os("MORI_BLESS").is_some() {
        fs::write(guide(), filled).unwrap();
    } else {
        assert!(
            text == filled,
            "the guide's code is not the example's; run this test with MORI_BLESS=1 and look"
        );
    }
}

#[test]
fn the_guide_shows_every_part_of_the_example() {
    let (_, shown) = filled(&fs::read_to_string(guide()).unwrap());
    for file in ["backend.rs", "harness.rs"] {
        for line in example(file).lines() {
            let name = line.trim().strip_prefix("// [").and_then(|rest| rest.strip_suffix(']'));
            if let Some(name) = name.filter(|name| *name != "end") {
                assert!(shown.contains(&(file.to_owned(), name.to_owned())), "{file}: {name} is not shown");
            }
        }
    }
}
