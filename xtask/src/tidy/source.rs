//! A Rust file as the rules see it: flat tokens with their lines, comments by line, the syntax tree, and which lines are
//! test code.
//!
//! Comments are what lies between two tokens, and documentation comments are the tokens the lexer makes of them, so no
//! rule mistakes a string or a comment for code, nor code for either.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use proc_macro2::{Delimiter, Group, Spacing, Span, TokenStream, TokenTree};

/// Where in its crate a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    /// Under `src/`.
    Src,
    /// Under `tests/`.
    Tests,
    /// Under `benches/`.
    Benches,
    /// Under `examples/`.
    Examples,
    /// A build script, or anything else beside the manifest.
    Other,
}

/// What sort of token it is, as far as the rules ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A name or keyword.
    Ident,
    /// A literal, as written.
    Literal,
    /// Punctuation; `::` is one token.
    Punct,
    /// An opening or closing bracket.
    Bracket,
}

/// One token of the flattened file; documentation comments are left out.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// The token as written.
    pub(crate) text: String,
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// Its sort.
    pub(crate) kind: TokenKind,
}

/// One line of a comment.
#[derive(Debug, Clone)]
pub(crate) struct Comment {
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// Text with its comment marks.
    pub(crate) text: String,
    /// Whether it is documentation.
    pub(crate) doc: bool,
}

/// A parsed Rust file.
pub(crate) struct RustFile {
    /// Path relative to the root.
    pub(crate) path: String,
    /// Name of the crate it belongs to.
    pub(crate) krate: String,
    /// Where in the crate it lies.
    pub(crate) area: Area,
    /// Whether the whole file is test code: under `tests/`, or a module that only tests reach.
    pub(crate) test_only: bool,
    /// The tokens in order, without documentation comments.
    pub(crate) tokens: Vec<Token>,
    /// The comments in order, one per line.
    pub(crate) comments: Vec<Comment>,
    /// The syntax tree.
    pub(crate) syntax: syn::File,
    /// Everything that `use` imports: full path and line; a glob ends in `*`, a renaming in `as NAME`.
    pub(crate) imports: Vec<(String, usize)>,
    test_ranges: Vec<RangeInclusive<usize>>,
    allows: Vec<Allow>,
}

/// A comment `tidy: allow(RULE): reason`.
#[derive(Debug)]
pub(crate) struct Allow {
    /// Line of the comment.
    pub(crate) line: usize,
    /// The rule it names.
    pub(crate) rule: String,
    /// Whether a reason follows.
    pub(crate) reasoned: bool,
    /// The lines it holds for: its own, and the first line of code after its block.
    lines: [usize; 2],
    used: RefCell<bool>,
}

impl Allow {
    /// Whether a finding has asked for it.
    pub(crate) fn used(&self) -> bool {
        *self.used.borrow()
    }
}

impl RustFile {
    /// Parses `text`.
    ///
    /// # Errors
    ///
    /// When it is no Rust: the line and what the parser says.
    pub(crate) fn parse(path: &str, krate: &str, area: Area, text: &str) -> Result<Self, (usize, String)> {
        let stream: TokenStream = text
            .parse()
            .map_err(|error: proc_macro2::LexError| (line_of(error.span()), error.to_string()))?;
        let mut reader = Reader::new(text);
        reader.stream(stream.clone());
        reader.gap(text.len());
        let syntax: syn::File =
            syn::parse2(stream).map_err(|error| (line_of(error.span()), error.to_string()))?;
        let imports = super::imports::of(&syntax);
        let allows = allows(&reader.comments, &reader.tokens);
        Ok(Self {
            path: path.to_owned(),
            krate: krate.to_owned(),
            area,
            test_only: area == Area::Tests || reader.whole_file_is_test,
            tokens: reader.tokens,
            comments: reader.comments,
            syntax,
            imports,
            test_ranges: reader.test_ranges,
            allows,
        })
    }

    /// Whether the line belongs to test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.test_only || self.test_ranges.iter().any(|range| range.contains(&line))
    }

    /// Lines on which the tokens `pattern` stand one after the other.
    pub(crate) fn lines_of<'a>(&'a self, pattern: &'a [&'a str]) -> impl Iterator<Item = usize> + 'a {
        self.tokens
            .windows(pattern.len())
            .filter(move |window| window.iter().zip(pattern).all(|(token, text)| token.text == *text))
            .filter_map(|window| window.first().map(|token| token.line))
    }

    /// The names (identifiers and keywords) of the file with their lines.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        self.tokens
            .iter()
            .filter(|token| token.kind == TokenKind::Ident)
            .map(|token| (token.text.as_str(), token.line))
    }

    /// Whether the path, without its `.rs`, is `module` or lies below it.
    pub(crate) fn is_in(&self, module: &str) -> bool {
        self.path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// Whether a comment at `line` allows a finding of `rule`; it then counts as used.
    pub(crate) fn allowed(&self, rule: &str, line: usize) -> bool {
        let allow = self
            .allows
            .iter()
            .find(|allow| allow.rule == rule && allow.reasoned && allow.lines.contains(&line));
        if let Some(allow) = allow {
            allow.used.replace(true);
        }
        allow.is_some()
    }

    /// Every comment that allows something.
    pub(crate) fn allows(&self) -> &[Allow] {
        &self.allows
    }
}

/// Reads `tidy: allow(RULE): reason` out of plain comments.
fn allows(comments: &[Comment], tokens: &[Token]) -> Vec<Allow> {
    let code: BTreeSet<usize> = tokens.iter().map(|token| token.line).collect();
    let commented: BTreeSet<usize> = comments.iter().map(|comment| comment.line).collect();
    let mut found = Vec::new();
    for comment in comments.iter().filter(|comment| !comment.doc) {
        let text = comment.text.trim_start_matches(['/', '*', ' ']);
        let Some(rest) = text.strip_prefix("tidy: allow(") else { continue };
        let (rule, tail) = rest.split_once(')').unwrap_or((rest, ""));
        let mut next = comment.line;
        while !code.contains(&next) && commented.contains(&next) {
            next += 1;
        }
        found.push(Allow {
            line: comment.line,
            rule: rule.to_owned(),
            reasoned: tail.strip_prefix(':').is_some_and(|reason| !reason.trim().is_empty()),
            lines: [comment.line, next],
            used: RefCell::new(false),
        });
    }
    found
}

fn line_of(span: Span) -> usize {
    span.start().line.max(1)
}

/// Walks the token tree once and collects what the rules ask for.
struct Reader<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    read_up_to: usize,
    tokens: Vec<Token>,
    comments: Vec<Comment>,
    test_ranges: Vec<RangeInclusive<usize>>,
    whole_file_is_test: bool,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self {
            text,
            line_starts,
            read_up_to: 0,
            tokens: Vec::new(),
            comments: Vec::new(),
            test_ranges: Vec::new(),
            whole_file_is_test: false,
        }
    }

    fn line_at(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// What lies between the last token and `end` is blank or comment.
    fn gap(&mut self, end: usize) {
        self.comment(self.read_up_to..end, false);
    }

    fn comment(&mut self, range: Range<usize>, doc: bool) {
        let first = self.line_at(range.start);
        let Some(text) = self.text.get(range) else { return };
        for (offset, line) in text.split('\n').enumerate() {
            if !line.trim().is_empty() {
                self.comments.push(Comment { line: first + offset, text: line.trim().to_owned(), doc });
            }
        }
    }

    fn pass(&mut self, span: Span) {
        let range = span.byte_range();
        if range.start >= self.read_up_to {
            self.gap(range.start);
            self.read_up_to = range.end;
        }
    }

    fn push(&mut self, text: String, span: Span, kind: TokenKind) {
        self.pass(span);
        self.tokens.push(Token { text, line: line_of(span), kind });
    }

    fn stream(&mut self, stream: TokenStream) {
        let mut trees = stream.into_iter().peekable();
        // First line of an item that a test attribute stands on, until the item ends.
        let mut test_since: Option<usize> = None;
        while let Some(tree) = trees.next() {
            match tree {
                TokenTree::Punct(punct) if punct.as_char() == '#' && punct.span().byte_range().len() > 1 => {
                    let range = punct.span().byte_range();
                    self.pass(punct.span());
                    self.comment(range, true);
                    while !matches!(trees.next(), None | Some(TokenTree::Group(_))) {}
                }
                TokenTree::Punct(punct) => {
                    let joins = punct.as_char() == ':'
                        && punct.spacing() == Spacing::Joint
                        && matches!(trees.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':');
                    if joins {
                        self.push("::".to_owned(), punct.span(), TokenKind::Punct);
                        if let Some(second) = trees.next() {
                            self.pass(second.span());
                        }
                        continue;
                    }
                    self.push(punct.as_char().to_string(), punct.span(), TokenKind::Punct);
                    if punct.as_char() == '#' {
                        let inner =
                            matches!(trees.peek(), Some(TokenTree::Punct(bang)) if bang.as_char() == '!');
                        if inner && let Some(bang) = trees.next() {
                            self.push("!".to_owned(), bang.span(), TokenKind::Punct);
                        }
                        if let Some(TokenTree::Group(group)) = trees.peek()
                            && group.delimiter() == Delimiter::Bracket
                        {
                            let is_test = marks_test(&group.stream());
                            let group = group.clone();
                            trees.next();
                            self.group(&group);
                            if is_test && inner {
                                self.whole_file_is_test = true;
                            } else if is_test {
                                test_since = test_since.or(Some(line_of(punct.span())));
                            }
                        }
                    } else if punct.as_char() == ';' {
                        self.end_test(&mut test_since, punct.span());
                    }
                }
                TokenTree::Group(group) => {
                    self.group(&group);
                    if group.delimiter() == Delimiter::Brace {
                        self.end_test(&mut test_since, group.span_close());
                    }
                }
                TokenTree::Ident(ident) => self.push(ident.to_string(), ident.span(), TokenKind::Ident),
                TokenTree::Literal(literal) => {
                    self.push(literal.to_string(), literal.span(), TokenKind::Literal);
                }
            }
        }
    }

    fn end_test(&mut self, since: &mut Option<usize>, at: Span) {
        if let Some(first) = since.take() {
            self.test_ranges.push(first..=at.end().line);
        }
    }

    fn group(&mut self, group: &Group) {
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        self.push(open.to_owned(), group.span_open(), TokenKind::Bracket);
        self.stream(group.stream());
        self.push(close.to_owned(), group.span_close(), TokenKind::Bracket);
    }
}

/// Whether an attribute leaves its item out of every build but the tests': `test`, `…::test`, or a `cfg` that needs
/// `test`.
fn marks_test(attribute: &TokenStream) -> bool {
    let trees: Vec<TokenTree> = attribute.clone().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(cfg), TokenTree::Group(group)] if cfg == "cfg" => needs_test(&group.stream()),
        [.., TokenTree::Ident(last)] => last == "test",
        [.., TokenTree::Ident(last), TokenTree::Group(_)] => last == "test",
        _ => false,
    }
}

/// Whether a `cfg` predicate is false without `test`.
fn needs_test(predicate: &TokenStream) -> bool {
    let trees: Vec<TokenTree> = predicate.clone().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(only)] => only == "test",
        [TokenTree::Ident(all), TokenTree::Group(group)] if all == "all" => {
            parts(group).iter().any(needs_test)
        }
        [TokenTree::Ident(any), TokenTree::Group(group)] if any == "any" => {
            let parts = parts(group);
            !parts.is_empty() && parts.iter().all(needs_test)
        }
        _ => false,
    }
}

fn parts(group: &Group) -> Vec<TokenStream> {
    let mut parts = vec![Vec::new()];
    for tree in group.stream() {
        match (&tree, parts.last_mut()) {
            (TokenTree::Punct(punct), _) if punct.as_char() == ',' => parts.push(Vec::new()),
            (_, Some(part)) => part.push(tree),
            (_, None) => {}
        }
    }
    parts.into_iter().filter(|part| !part.is_empty()).map(TokenStream::from_iter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustFile {
        RustFile::parse("mori-core/src/x.rs", "mori-core", Area::Src, text).unwrap()
    }

    #[test]
    fn comments_are_told_from_strings_and_code() {
        let file = parse(
            "//! Docs.\nlet_it!(\"// no\", '\"'); // yes\n/* a\n b */ fn f() {} /// trailing\nfn g() {}\n",
        );
        let seen: Vec<_> = file.comments.iter().map(|c| (c.line, c.text.as_str(), c.doc)).collect();
        assert_eq!(
            seen,
            [
                (1, "//! Docs.", true),
                (2, "// yes", false),
                (3, "/* a", false),
                (4, "b */", false),
                (4, "/// trailing", true)
            ]
        );
        assert_eq!(file.lines_of(&["fn", "g"]).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn comments_keep_their_line_behind_letters_of_several_bytes() {
        let file = parse("const A: &str = \"häß — ✓\"; // ünï\nconst B: u8 = 1; // two\n");
        let seen: Vec<_> = file.comments.iter().map(|c| (c.line, c.text.as_str())).collect();
        assert_eq!(seen, [(1, "// ünï"), (2, "// two")]);
    }

    #[test]
    fn test_code_is_found_by_its_attribute() {
        let file = parse(
            "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n#[test]\n#[should_panic]\nfn d<A, B>() {\n}\n\
             #[cfg(all(test, not(loom)))]\nuse x::y;\nfn e() {}\n#[cfg(any(test, feature = \"x\"))]\nfn f() {}\n\
             #[cfg(not(test))]\nfn g() {}\n",
        );
        let tests: Vec<usize> = (1..=17).filter(|line| file.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 7, 8, 9, 10, 11, 12]);
    }

    #[test]
    fn an_inner_attribute_makes_the_whole_file_test_code() {
        assert!(parse("#![cfg(test)]\nfn a() {}\n").is_test(2));
        assert!(!parse("#![cfg(unix)]\nfn a() {}\n").is_test(2));
    }

    #[test]
    fn an_allow_holds_for_its_line_and_the_code_below_its_block() {
        let file = parse(
            "fn a() {\n // tidy: allow(sleep): because\n // it must.\n b();\n c(); // tidy: allow(sleep): too\n d();\n}\n\
             // tidy: allow(sleep)\nfn e() {}\n",
        );
        let allowed: Vec<usize> = (1..=9).filter(|line| file.allowed("sleep", *line)).collect();
        assert_eq!(allowed, [2, 4, 5]);
        assert!(!file.allowed("clock", 4));
    }

    #[test]
    fn what_is_no_rust_is_told_with_its_line() {
        let error = RustFile::parse("x.rs", "x", Area::Src, "fn a() {}\nfn (\n").err().unwrap();
        assert!(error.0 >= 1);
        let (line, _) = RustFile::parse("x.rs", "x", Area::Src, "fn a() {}\nfn 3() {}\n").err().unwrap();
        assert_eq!(line, 2);
    }

    #[test]
    fn a_module_is_a_file_or_the_folder_below_it() {
        let at = |path| RustFile::parse(path, "mori-core", Area::Src, "").unwrap();
        assert!(at("mori-core/src/memory.rs").is_in("mori-core/src/memory"));
        assert!(at("mori-core/src/memory/mod.rs").is_in("mori-core/src/memory"));
        assert!(!at("mori-core/src/memory_map.rs").is_in("mori-core/src/memory"));
    }
}
