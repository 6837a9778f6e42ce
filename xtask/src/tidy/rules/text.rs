//! Rules over plain text: whitespace, words of one machine, names of transports.

use super::super::source::Area;
use super::super::{Report, Tree};

/// `whitespace`: files that other programs write are left to them.
pub(super) fn whitespace(tree: &Tree, report: &mut Report) {
    for (path, text) in tree.texts.iter().filter(|(path, _)| !written_by_tools(path)) {
        for (line, content) in numbered(text) {
            if content.ends_with(char::is_whitespace) {
                report.refuse(path, line, "whitespace at the end of the line; remove it");
            }
        }
        let last = text.lines().count().max(1);
        if !text.is_empty() && !text.ends_with('\n') {
            report.refuse(path, last, "the last line has no newline; add one");
        } else if text.ends_with("\n\n") {
            report.refuse(path, last, "blank lines at the end of the file; remove them");
        }
    }
}

/// Lock files and patches.
fn written_by_tools(path: &str) -> bool {
    [".lock", ".patch", ".diff"].iter().any(|end| path.ends_with(end))
}

/// The paths are put together here so that this file does not break its own rule.
const PATHS: [&str; 4] =
    [concat!("/wo", "rk"), concat!("/r", "oot"), concat!("/tmp", "/brief"), concat!("/ho", "me/")];
const HOSTS: [&str; 7] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("registry.", "npmjs"),
    concat!("deb.", "debian.org"),
    concat!("proxy.", "golang.org"),
    concat!("arti", "factory"),
];

/// `workplace`: what is true on one machine only does not belong into the project.
pub(super) fn workplace(tree: &Tree, report: &mut Report) {
    for (path, text) in tree.texts.iter().filter(|(path, _)| !path.ends_with(".lock")) {
        for (line, content) in numbered(text) {
            if let Some(found) = PATHS.iter().find(|wanted| names_path(content, wanted)) {
                let message = format!(
                    "`{found}` is a path of one machine; use a path relative to the workspace, or a variable"
                );
                report.refuse(path, line, message);
            }
            if let Some(found) = HOSTS.iter().find(|wanted| content.contains(**wanted)) {
                let message = format!(
                    "`{found}` is a registry's host; name the package and leave the host to its client"
                );
                report.refuse(path, line, message);
            }
        }
    }
}

/// Whether `path` stands in the line as an absolute path, not as the tail of a longer one nor as the start of a longer
/// name.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + path.len()..).and_then(|text| text.chars().next());
        let in_path = |letter: char| letter.is_alphanumeric() || "-_./}$~*".contains(letter);
        let goes_on = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
        !before.is_some_and(in_path) && (path.ends_with('/') || !after.is_some_and(goes_on))
    })
}

const TRANSPORTS: [&str; 5] = ["tcp", "rdma", "xgmi", "ibverbs", "hip"];

/// `transport-names`: code, comments and strings of core alike, outside its test code.
pub(super) fn transport_names(tree: &Tree, report: &mut Report) {
    for file in tree.of_crate("mori-core").filter(|file| file.area == Area::Src) {
        let Some(text) = tree.texts.get(&file.path) else { continue };
        for (line, content) in numbered(text).filter(|(line, _)| !file.is_test(*line)) {
            for word in words(content) {
                let bare = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
                if TRANSPORTS.iter().any(|name| bare.eq_ignore_ascii_case(name)) {
                    let message = format!(
                        "core names no transport, but here is `{word}`; say what the contract asks of any backend, and leave the \
                         rest to the backend's crate"
                    );
                    report.refuse(&file.path, line, message);
                }
            }
        }
    }
}

/// The words of a line: letters and digits, each also cut where capitals start a new word.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for word in line.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
        words.push(word);
        let letters: Vec<(usize, char)> = word.char_indices().collect();
        let mut cuts = vec![0];
        for at in 1..letters.len() {
            let (Some((_, before)), Some((offset, here))) = (letters.get(at - 1), letters.get(at)) else {
                continue;
            };
            let lower_next = letters.get(at + 1).is_some_and(|(_, next)| next.is_lowercase());
            if here.is_uppercase() && (!before.is_uppercase() || lower_next) {
                cuts.push(*offset);
            }
        }
        cuts.push(word.len());
        if cuts.len() > 2 {
            words.extend(cuts.windows(2).filter_map(|cut| match cut {
                [from, to] => word.get(*from..*to),
                _ => None,
            }));
        }
    }
    words
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.strip_suffix('\n').unwrap_or(text).split('\n').enumerate().map(|(at, line)| (at + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{refused, refused_lines};

    #[test]
    fn whitespace_at_the_end_is_refused() {
        assert_eq!(
            refused("whitespace", &[("a.md", "good\nbad \nbad\t\ncr\r\n")]),
            ["a.md:2", "a.md:3", "a.md:4"]
        );
        assert_eq!(refused("whitespace", &[("a.md", "one\ntwo")]), ["a.md:2"]);
        assert_eq!(refused("whitespace", &[("a.md", "one\n\n")]), ["a.md:2"]);
        assert_eq!(
            refused("whitespace", &[("a.md", "one\n\n two\n"), ("b.md", ""), ("c.patch", "+ \n")]),
            [""; 0]
        );
    }

    #[test]
    fn paths_of_one_machine_are_refused() {
        let [work, root, brief, home] = PATHS;
        for bad in [
            format!("cd {work}/main"),
            format!("`{work}`"),
            format!("path = \"{root}/x\""),
            format!("see {brief}"),
            format!("({home}me"),
        ] {
            assert_eq!(refused("workplace", &[("docs/a.md", &bad)]), ["docs/a.md:1"], "{bad}");
        }
        for good in [
            format!("src{work}/mod.rs"),
            format!("{work}ers and {root}s"),
            format!("$HOME{work}"),
            format!("../net{work}"),
            format!("x{home}"),
        ] {
            assert_eq!(refused("workplace", &[("docs/a.md", &good)]), [""; 0], "{good}");
        }
    }

    #[test]
    fn registry_hosts_are_refused_but_in_lock_files() {
        let host = HOSTS[0];
        assert_eq!(refused("workplace", &[("README.md", &format!("\nsee {host}"))]), ["README.md:2"]);
        assert_eq!(refused("workplace", &[("Cargo.lock", &format!("index.{host}"))]), [""; 0]);
    }

    #[test]
    fn core_names_no_transport() {
        let bad = "//! Like TCP.\nstruct TcpStream;\nfn f() { \"an rdma card\" }\nconst XGMI_2: u8 = 1;\nfn tcp4() {}\n// HIP\n";
        let mut lines = refused_lines("transport-names", "mori-core/src/x.rs", bad);
        lines.dedup();
        assert_eq!(lines, [1, 2, 3, 4, 5, 6]);
        let good =
            "//! Ownership and membership of a chip, shipped.\n#[cfg(test)]\nmod tests { fn tcp() {} }\n";
        assert_eq!(refused_lines("transport-names", "mori-core/src/x.rs", good), [0; 0]);
        assert_eq!(refused_lines("transport-names", "mori-tcp/src/lib.rs", bad), [0; 0]);
        assert_eq!(refused_lines("transport-names", "mori-core/tests/it.rs", bad), [0; 0]);
    }

    #[test]
    fn words_are_cut_at_capitals() {
        assert_eq!(
            words("a_b TCPStream myTcp"),
            ["a", "b", "TCPStream", "TCP", "Stream", "myTcp", "my", "Tcp"]
        );
    }
}
