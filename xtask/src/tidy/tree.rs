//! Everything that the rules look at: the workspace's crates, its files, and which file is reached from where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use super::source::{Area, RustFile, TokenKind};
use crate::workspace::{Crate, TargetKind, Workspace};

/// The files of the workspace, read and parsed once for all rules.
pub(crate) struct Tree {
    /// Members of the workspace.
    pub(crate) crates: Vec<Crate>,
    /// Every text file, path and content; files that are not UTF-8 are left out.
    pub(crate) texts: BTreeMap<String, String>,
    /// Every Rust file of a member that parses.
    pub(crate) rust: Vec<RustFile>,
    /// Every Rust file of a member that does not: path, line and what the parser says.
    pub(crate) broken: Vec<(String, usize, String)>,
    /// Rust files that some target, `mod` or `include!` reaches.
    pub(crate) reached: BTreeSet<String>,
}

impl Tree {
    /// Reads the workspace.
    ///
    /// # Errors
    ///
    /// When a file of the project cannot be listed or read.
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let mut texts = BTreeMap::new();
        for path in workspace.files()? {
            let bytes =
                fs::read(workspace.root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes)
                && !text.contains('\0')
            {
                texts.insert(path, text);
            }
        }
        Ok(Self::new(workspace.crates.clone(), texts))
    }

    /// Parses `texts` as the files of `crates`.
    pub(crate) fn new(crates: Vec<Crate>, texts: BTreeMap<String, String>) -> Self {
        let mut rust = Vec::new();
        let mut broken = Vec::new();
        for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            let Some((of, inside)) = owner(&crates, path) else { continue };
            match RustFile::parse(path, &of.name, area(inside), text) {
                Ok(file) => rust.push(file),
                Err((line, message)) => broken.push((path.clone(), line, message)),
            }
        }
        let reach = Reach::from_targets(&crates, &rust);
        for file in &mut rust {
            file.test_only |= reach.0.get(&file.path).is_some_and(|test_only| *test_only);
        }
        let reached = reach.0.into_keys().collect();
        Self { crates, texts, rust, broken, reached }
    }

    /// The parsed file at `path`.
    pub(crate) fn rust_file(&self, path: &str) -> Option<&RustFile> {
        self.rust.iter().find(|file| file.path == path)
    }

    /// The parsed files of the crate `name`.
    pub(crate) fn of_crate<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a RustFile> + 'a {
        self.rust.iter().filter(move |file| file.krate == name)
    }
}

/// The member that `path` belongs to, and the path inside it.
fn owner<'a, 'b>(crates: &'a [Crate], path: &'b str) -> Option<(&'a Crate, &'b str)> {
    crates
        .iter()
        .filter_map(|of| {
            let inside =
                if of.dir.is_empty() { path } else { path.strip_prefix(&of.dir)?.strip_prefix('/')? };
            Some((of, inside))
        })
        .max_by_key(|(of, _)| of.dir.len())
}

fn area(inside: &str) -> Area {
    match inside.split_once('/').map(|(first, _)| first) {
        Some("src") => Area::Src,
        Some("tests") => Area::Tests,
        Some("benches") => Area::Benches,
        Some("examples") => Area::Examples,
        _ => Area::Other,
    }
}

/// The files reached so far, and whether only test code reaches them.
struct Reach(BTreeMap<String, bool>);

impl Reach {
    fn from_targets(crates: &[Crate], rust: &[RustFile]) -> Self {
        let by_path: BTreeMap<&str, &RustFile> = rust.iter().map(|file| (file.path.as_str(), file)).collect();
        let mut reach = Self(BTreeMap::new());
        for target in crates.iter().flat_map(|of| &of.targets) {
            if let Some(folder) = parent(&target.path) {
                reach.file(&by_path, &target.path, folder, target.kind == TargetKind::Test);
            }
        }
        reach
    }

    /// Takes in the file at `path`, whose child modules lie in `folder`.
    fn file(&mut self, rust: &BTreeMap<&str, &RustFile>, path: &str, folder: &str, test_only: bool) {
        let Some(file) = rust.get(path) else { return };
        let test_only = test_only || file.test_only;
        match self.0.get_mut(path) {
            Some(known) if *known && !test_only => *known = false,
            Some(_) => return,
            None => {
                self.0.insert(path.to_owned(), test_only);
            }
        }
        let beside = parent(path).unwrap_or_default();
        for included in includes(file) {
            self.file(rust, &normal(&format!("{beside}/{included}")), folder, test_only);
        }
        self.items(rust, file, &file.syntax.items, &Folders { modules: folder, beside }, test_only);
    }

    fn items(
        &mut self,
        rust: &BTreeMap<&str, &RustFile>,
        file: &RustFile,
        items: &[Item],
        folders: &Folders<'_>,
        test_only: bool,
    ) {
        for item in items {
            let Item::Mod(module) = item else { continue };
            let test_only = test_only || file.is_test(module.mod_token.span.start().line);
            let name = module.ident.to_string();
            let name = name.trim_start_matches("r#");
            let below = format!("{}/{name}", folders.modules);
            if let Some((_, inside)) = &module.content {
                self.items(rust, file, inside, &Folders { modules: &below, beside: &below }, test_only);
                continue;
            }
            for path in written_paths(module) {
                let path = normal(&format!("{}/{path}", folders.beside));
                let folder = parent(&path).unwrap_or_default().to_owned();
                self.file(rust, &path, &folder, test_only);
            }
            self.file(rust, &format!("{below}.rs"), &below, test_only);
            self.file(rust, &format!("{below}/mod.rs"), &below, test_only);
        }
    }
}

/// Where the modules of a file or inline module are looked for.
struct Folders<'a> {
    /// For `mod name;`.
    modules: &'a str,
    /// For `#[path = "…"]`.
    beside: &'a str,
}

/// What `#[path = "…"]` or a `cfg_attr` with one says.
fn written_paths(module: &ItemMod) -> Vec<String> {
    module.attrs.iter().flat_map(path_attribute).collect()
}

fn path_attribute(attribute: &Attribute) -> Vec<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => vec![text.value()],
            _ => Vec::new(),
        },
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let text = list.tokens.to_string();
            let mut parts = text.split('"');
            let mut found = Vec::new();
            while let (Some(before), Some(quoted)) = (parts.next(), parts.next()) {
                if before.trim_end().trim_end_matches('=').trim_end().ends_with("path") {
                    found.push(quoted.to_owned());
                }
            }
            found
        }
        _ => Vec::new(),
    }
}

/// The files that `include!("…")` names.
fn includes(file: &RustFile) -> Vec<String> {
    file.tokens
        .windows(4)
        .filter_map(|window| match window {
            [name, bang, open, literal]
                if name.text == "include"
                    && bang.text == "!"
                    && open.text == "("
                    && literal.kind == TokenKind::Literal =>
            {
                Some(literal.text.trim_matches('"').to_owned())
            }
            _ => None,
        })
        .collect()
}

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(folder, _)| folder)
}

/// The path without `.` and `..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use crate::tidy::testing::tree;

    #[test]
    fn modules_are_followed_through_every_way_of_writing_them() {
        let tree = tree(&[
            (
                "mori-core/src/lib.rs",
                "mod a; mod b { mod c; } #[path = \"odd/d.rs\"] mod d; include!(\"e.rs\");",
            ),
            ("mori-core/src/a.rs", "mod inner;"),
            ("mori-core/src/a/inner.rs", ""),
            ("mori-core/src/b/c/mod.rs", ""),
            ("mori-core/src/odd/d.rs", "mod f;"),
            ("mori-core/src/odd/f.rs", ""),
            ("mori-core/src/e.rs", ""),
            ("mori-core/src/lost.rs", ""),
        ]);
        let lost: Vec<_> = tree.rust.iter().filter(|file| !tree.reached.contains(&file.path)).collect();
        assert_eq!(lost.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["mori-core/src/lost.rs"]);
    }

    #[test]
    fn a_module_that_only_tests_reach_is_test_code() {
        let tree = tree(&[
            (
                "mori-core/src/lib.rs",
                "#[cfg(test)] mod tests;\nmod plain;\n#[cfg(test)] mod both_tests { mod x; }",
            ),
            ("mori-core/src/tests.rs", "mod deep;"),
            ("mori-core/src/tests/deep.rs", ""),
            ("mori-core/src/plain.rs", ""),
            ("mori-core/src/both_tests/x.rs", ""),
            ("mori-core/tests/it.rs", "mod common;"),
            ("mori-core/tests/common/mod.rs", ""),
        ]);
        let tests: Vec<_> =
            tree.rust.iter().filter(|file| file.test_only).map(|file| file.path.as_str()).collect();
        let expected = [
            "mori-core/src/both_tests/x.rs",
            "mori-core/src/tests.rs",
            "mori-core/src/tests/deep.rs",
            "mori-core/tests/common/mod.rs",
            "mori-core/tests/it.rs",
        ];
        assert_eq!(tests, expected);
    }

    #[test]
    fn a_file_belongs_to_the_innermost_crate() {
        let tree = tree(&[("mori-core/src/lib.rs", ""), ("docs/sample.rs", "not rust at all (")]);
        assert_eq!(tree.rust.len(), 1);
        assert!(tree.broken.is_empty());
    }
}
