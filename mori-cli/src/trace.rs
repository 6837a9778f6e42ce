//! Reads a request trace: one JSON object a line, streamed, with errors that name file, line and what is wrong.
//!
//! A line looks like this, in any order of fields; further fields are ignored:
//!
//! ```json
//! {"timestamp": 3000, "input_length": 1300, "output_length": 42, "hash_ids": [0, 17, 18]}
//! ```
//!
//! - `timestamp`: milliseconds from the start of the trace, never smaller than on the line before.
//! - `input_length`, `output_length`: tokens.
//! - `hash_ids`: one id for each started block of [`BLOCK_TOKENS`] input tokens, in order. Equal ids are the same
//!   block.
//!
//! The reader holds one line at a time, so the length of a trace costs no memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

/// Tokens of one block of a trace.
pub const BLOCK_TOKENS: u64 = 512;

/// The longest line that a trace may have, in bytes; a longer one is refused rather than read into memory.
pub const MAX_LINE_BYTES: u64 = 16 << 20;

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The line of the trace it stands on, from 1. A generated request counts as if it had been written to a file.
    pub line: u64,
    /// Milliseconds from the start of the trace.
    pub timestamp_ms: u64,
    /// Tokens of the prompt.
    pub input_length: u64,
    /// Tokens of the answer.
    pub output_length: u64,
    /// The blocks of the prompt, in order.
    pub hash_ids: Vec<u64>,
}

/// Why a trace cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open the trace {file}: {source}")]
    Open {
        /// The file as it was named by the caller.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file was opened but a read failed.
    #[error("{file}:{line}: cannot read the trace: {source}")]
    Read {
        /// The file as it was named by the caller.
        file: String,
        /// The line that was being read, from 1.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not a request.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file as it was named by the caller.
        file: String,
        /// The line at fault, from 1.
        line: u64,
        /// What is wrong with it.
        problem: LineProblem,
    },
}

/// What is wrong with a line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// The file has no line at all.
    #[error("the trace is empty; it needs at least one request")]
    EmptyTrace,
    /// Nothing stands on the line.
    #[error("the line is blank; each line holds one JSON object")]
    Blank,
    /// The line does not fit in [`MAX_LINE_BYTES`].
    #[error("the line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The line is not text.
    #[error("the line is not valid UTF-8 from byte {valid_up_to} on")]
    NotUtf8 {
        /// Bytes of the line that are valid.
        valid_up_to: usize,
    },
    /// The line ends in the middle of its JSON.
    #[error("the line is cut off: {detail}")]
    CutOff {
        /// Where, in the words of the JSON parser.
        detail: String,
    },
    /// The line is not JSON.
    #[error("the line is not JSON: {detail}")]
    NotJson {
        /// Where and why, in the words of the JSON parser.
        detail: String,
    },
    /// The line is JSON, but not an object.
    #[error("the line is {found}, not a JSON object")]
    NotAnObject {
        /// What stands there.
        found: &'static str,
    },
    /// A field is missing.
    #[error("the field `{field}` is missing")]
    MissingField {
        /// Which.
        field: &'static str,
    },
    /// A field has the wrong type.
    #[error("the field `{field}` is {found}, not {wanted}")]
    WrongType {
        /// Which, with an index for a member of a list.
        field: String,
        /// What stands there.
        found: String,
        /// What must stand there.
        wanted: &'static str,
    },
    /// A number is below zero.
    #[error("the field `{field}` is {value}; it cannot be negative")]
    Negative {
        /// Which, with an index for a member of a list.
        field: String,
        /// The number as it stands there.
        value: String,
    },
    /// `hash_ids` does not cover the prompt.
    #[error(
        "`hash_ids` has {found} blocks, but an `input_length` of {input_length} tokens needs {needed} \
         (one for each started block of {BLOCK_TOKENS} tokens)"
    )]
    BlockCount {
        /// How many blocks the line has.
        found: u64,
        /// How many it needs.
        needed: u64,
        /// The tokens that they must cover.
        input_length: u64,
    },
    /// Time runs backwards.
    #[error(
        "the `timestamp` {found} is before the {previous} of the line above; a trace is in order of time"
    )]
    TimeRunsBack {
        /// The timestamp of this line.
        found: u64,
        /// The timestamp of the line before.
        previous: u64,
    },
}

/// An iterator over the requests of a trace. After the first error it ends.
///
/// ```
/// use mori_cli::trace::TraceReader;
///
/// let text = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;
/// let requests: Vec<_> = TraceReader::new("example", text.as_bytes()).collect::<Result<_, _>>().unwrap();
/// assert_eq!(requests[0].hash_ids, [0, 1]);
/// ```
#[derive(Debug)]
pub struct TraceReader<R> {
    file: String,
    input: R,
    buffer: Vec<u8>,
    line: u64,
    previous_ms: u64,
    done: bool,
}

impl TraceReader<BufReader<File>> {
    /// Opens a trace.
    ///
    /// # Errors
    ///
    /// [`TraceError::Open`] when the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        match File::open(path) {
            Ok(input) => Ok(Self::new(&file, BufReader::with_capacity(1 << 16, input))),
            Err(source) => Err(TraceError::Open { file, source }),
        }
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads a trace from `input`; `file` is the name that errors give it.
    pub fn new(file: &str, input: R) -> Self {
        Self { file: file.to_owned(), input, buffer: Vec::new(), line: 0, previous_ms: 0, done: false }
    }

    /// Reads the next line into the buffer, without its line end; false at the end of the input.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        self.line += 1;
        let mut limited = (&mut self.input).take(MAX_LINE_BYTES + 1);
        let read = limited.read_until(b'\n', &mut self.buffer).map_err(|source| TraceError::Read {
            file: self.file.clone(),
            line: self.line,
            source,
        })?;
        if read == 0 {
            return if self.line == 1 { Err(self.fault(LineProblem::EmptyTrace)) } else { Ok(false) };
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        }
        if self.buffer.len() as u64 > MAX_LINE_BYTES {
            return Err(self.fault(LineProblem::TooLong));
        }
        Ok(true)
    }

    fn fault(&self, problem: LineProblem) -> TraceError {
        TraceError::Line { file: self.file.clone(), line: self.line, problem }
    }

    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        if !self.read_line()? {
            return Ok(None);
        }
        let request = parse_line(&self.buffer, self.line, self.previous_ms).map_err(|p| self.fault(p))?;
        self.previous_ms = request.timestamp_ms;
        Ok(Some(request))
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.next_request().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

fn parse_line(bytes: &[u8], line: u64, previous_ms: u64) -> Result<Request, LineProblem> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| LineProblem::NotUtf8 { valid_up_to: error.valid_up_to() })?
        .trim();
    if text.is_empty() {
        return Err(LineProblem::Blank);
    }
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let detail = format!("{} at column {}", json_reason(&error), error.column());
        if error.is_eof() { LineProblem::CutOff { detail } } else { LineProblem::NotJson { detail } }
    })?;
    let Value::Object(object) = value else {
        return Err(LineProblem::NotAnObject { found: kind_of(&value) });
    };
    let timestamp_ms = whole(&object, "timestamp")?;
    let input_length = whole(&object, "input_length")?;
    let output_length = whole(&object, "output_length")?;
    let hash_ids = block_ids(&object)?;

    let (found, needed) = (hash_ids.len() as u64, input_length.div_ceil(BLOCK_TOKENS));
    if found != needed {
        return Err(LineProblem::BlockCount { found, needed, input_length });
    }
    if timestamp_ms < previous_ms {
        return Err(LineProblem::TimeRunsBack { found: timestamp_ms, previous: previous_ms });
    }
    Ok(Request { line, timestamp_ms, input_length, output_length, hash_ids })
}

fn block_ids(object: &Map<String, Value>) -> Result<Vec<u64>, LineProblem> {
    match object.get("hash_ids") {
        None => Err(LineProblem::MissingField { field: "hash_ids" }),
        Some(Value::Array(ids)) => {
            ids.iter().enumerate().map(|(at, id)| whole_value(id, || format!("hash_ids[{at}]"))).collect()
        }
        Some(other) => Err(LineProblem::WrongType {
            field: "hash_ids".to_owned(),
            found: kind_of(other).to_owned(),
            wanted: "a list of block ids",
        }),
    }
}

fn whole(object: &Map<String, Value>, field: &'static str) -> Result<u64, LineProblem> {
    match object.get(field) {
        None => Err(LineProblem::MissingField { field }),
        Some(value) => whole_value(value, || field.to_owned()),
    }
}

fn whole_value(value: &Value, field: impl Fn() -> String) -> Result<u64, LineProblem> {
    let wanted = "a whole number of at most 64 bits";
    let Value::Number(number) = value else {
        return Err(LineProblem::WrongType { field: field(), found: kind_of(value).to_owned(), wanted });
    };
    if let Some(whole) = number.as_u64() {
        return Ok(whole);
    }
    if number.as_f64().is_some_and(|float| float < 0.0) {
        return Err(LineProblem::Negative { field: field(), value: number.to_string() });
    }
    Err(LineProblem::WrongType { field: field(), found: number.to_string(), wanted })
}

/// The parser's own reason without the position that it appends: our position is that of the file.
fn json_reason(error: &serde_json::Error) -> String {
    let full = error.to_string();
    match full.rfind(" at line ") {
        Some(at) => full[..at].to_owned(),
        None => full,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
