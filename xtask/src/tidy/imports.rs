//! What a file imports, as full paths.

use syn::visit::{self, Visit};
use syn::{File, ItemUse, UseTree};

/// Every path that a `use` item names, wherever it stands, with its line. A glob ends in `*`, a renaming in
/// `NAME as OTHER`, a group's `self` is the path of the group.
pub(super) fn of(file: &File) -> Vec<(String, usize)> {
    let mut imports = Imports(Vec::new());
    imports.visit_file(file);
    imports.0
}

struct Imports(Vec<(String, usize)>);

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, "");
        visit::visit_item_use(self, item);
    }
}

impl Imports {
    fn tree(&mut self, tree: &UseTree, before: &str) {
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &join(before, &path.ident.to_string())),
            UseTree::Name(name) => {
                let path = if name.ident == "self" {
                    before.to_owned()
                } else {
                    join(before, &name.ident.to_string())
                };
                self.0.push((path, name.ident.span().start().line));
            }
            UseTree::Rename(rename) => {
                let path = format!("{} as {}", join(before, &rename.ident.to_string()), rename.rename);
                self.0.push((path, rename.ident.span().start().line));
            }
            UseTree::Glob(glob) => self.0.push((join(before, "*"), glob.star_token.span.start().line)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before)),
        }
    }
}

fn join(before: &str, name: &str) -> String {
    if before.is_empty() { name.to_owned() } else { format!("{before}::{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_globs_and_renamings_become_full_paths() {
        let file = syn::parse_str("use std::{sync::{self, Mutex as M},\n thread::*};\nfn f() { use a::b; }")
            .unwrap();
        let expected = [("std::sync", 1), ("std::sync::Mutex as M", 1), ("std::thread::*", 2), ("a::b", 3)];
        let expected: Vec<_> = expected.iter().map(|(path, line)| ((*path).to_owned(), *line)).collect();
        assert_eq!(of(&file), expected);
    }
}
