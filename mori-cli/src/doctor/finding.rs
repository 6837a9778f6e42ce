//! What was looked for and found, and how it is told.

use serde::Serialize;

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is there and works.
    Ok,
    /// A fact that is neither good nor bad.
    Note,
    /// It works, but something will be slower or fail under load.
    Warning,
    /// It is not available; [`Finding::found`] says because of what, [`Finding::advice`] what to do.
    Absent,
}

impl Verdict {
    /// The word in the table, as wide as the others.
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok     ",
            Self::Note => "-      ",
            Self::Warning => "warning",
            Self::Absent => "absent ",
        }
    }
}

/// One thing that was looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `host`, or the transport that it matters to.
    pub section: &'static str,
    /// What was looked for.
    pub what: String,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found, or why it is not available.
    pub found: String,
    /// What to do about it; empty if there is nothing to do.
    pub advice: String,
}

/// Findings of one section, in the order in which they are told.
#[derive(Debug)]
pub struct Findings {
    section: &'static str,
    list: Vec<Finding>,
}

impl Findings {
    /// None yet.
    pub fn of(section: &'static str) -> Self {
        Self { section, list: Vec::new() }
    }

    fn add(&mut self, what: impl Into<String>, verdict: Verdict, found: impl Into<String>, advice: &str) {
        self.list.push(Finding {
            section: self.section,
            what: what.into(),
            verdict,
            found: one_line(&found.into()),
            advice: advice.to_owned(),
        });
    }

    /// It is there and works.
    pub fn ok(&mut self, what: impl Into<String>, found: impl Into<String>) {
        self.add(what, Verdict::Ok, found, "");
    }

    /// A fact.
    pub fn note(&mut self, what: impl Into<String>, found: impl Into<String>) {
        self.add(what, Verdict::Note, found, "");
    }

    /// It works, but.
    pub fn warn(&mut self, what: impl Into<String>, found: impl Into<String>, advice: &str) {
        self.add(what, Verdict::Warning, found, advice);
    }

    /// It is not available.
    pub fn absent(&mut self, what: impl Into<String>, because: impl Into<String>, advice: &str) {
        self.add(what, Verdict::Absent, because, advice);
    }

    /// All of them.
    pub fn into_list(self) -> Vec<Finding> {
        self.list
    }
}

/// Whatever a library has to say, on one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The findings for people: a heading for each section, a line for each finding, and what to do below it.
pub fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut section = "";
    for finding in findings {
        if finding.section != section {
            section = finding.section;
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(section);
            text.push('\n');
        }
        let found = match finding.verdict {
            Verdict::Absent => format!("not available, because {}", finding.found),
            _ => finding.found.clone(),
        };
        text.push_str(&format!("  {}  {:width$}  {found}\n", finding.verdict.word(), finding.what));
        if !finding.advice.is_empty() {
            text.push_str(&format!("           {:width$}  -> {}\n", "", finding.advice));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_heading_for_each_section_and_the_advice_below() {
        let mut host = Findings::of("host");
        host.ok("kernel", "Linux 6.1");
        host.warn("memory lock", "8 MiB", "raise it");
        let mut rdma = Findings::of("rdma");
        rdma.absent("library", "it is\nnot there", "install it");
        let mut all = host.into_list();
        all.extend(rdma.into_list());
        let expected = "\
host
  ok       kernel       Linux 6.1
  warning  memory lock  8 MiB
                        -> raise it

rdma
  absent   library      not available, because it is not there
                        -> install it
";
        assert_eq!(table(&all), expected);
    }
}
