//! Every way in which a line can be wrong, and that good lines survive.

use proptest::prelude::*;

use super::*;

const GOOD: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;

fn read(text: &[u8]) -> Vec<Result<Request, TraceError>> {
    TraceReader::new("t.jsonl", text).collect()
}

/// The problem of the last line of `text` and the number of that line; all lines before are good.
fn problem(text: &[u8]) -> (u64, LineProblem) {
    let mut all = read(text);
    let last = all.pop().expect("at least one item");
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    match last {
        Err(TraceError::Line { line, problem, file }) => {
            assert_eq!(file, "t.jsonl");
            (line, problem)
        }
        other => panic!("expected a line error, got {other:?}"),
    }
}

fn second(line: &str) -> LineProblem {
    let (at, problem) = problem(format!("{GOOD}\n{line}\n").as_bytes());
    assert_eq!(at, 2);
    problem
}

#[test]
fn good_lines_are_read_in_order_with_and_without_a_final_line_end() {
    let other = r#"{"hash_ids":[7],"output_length":0,"input_length":512,"timestamp":0,"further":"ignored"}"#;
    for text in [format!("{GOOD}\n{other}\n"), format!("{GOOD}\n{other}"), format!("{GOOD}\r\n{other}\r\n")] {
        let all: Vec<_> = read(text.as_bytes()).into_iter().map(|r| r.expect("good")).collect();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].hash_ids, [0, 1]);
        assert_eq!(all[1].line, 2);
        assert_eq!(all[1].input_length, 512);
    }
}

#[test]
fn a_request_without_tokens_has_no_blocks() {
    let text = r#"{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}"#;
    assert_eq!(read(text.as_bytes()).remove(0).expect("good").hash_ids, [0_u64; 0]);
}

#[test]
fn an_empty_trace_is_an_error() {
    assert_eq!(problem(b""), (1, LineProblem::EmptyTrace));
}

#[test]
fn blank_lines_are_named() {
    assert_eq!(second(""), LineProblem::Blank);
    assert_eq!(second("   \t"), LineProblem::Blank);
    assert_eq!(problem(b"\n").0, 1);
}

#[test]
fn every_missing_field_is_named() {
    for field in ["timestamp", "input_length", "output_length", "hash_ids"] {
        let line = GOOD.replace(field, "something_else");
        assert_eq!(second(&line), LineProblem::MissingField { field });
    }
}

#[test]
fn wrong_types_are_named_with_what_stands_there() {
    for (bad, found) in [
        ("\"x\"", "a string"),
        ("null", "null"),
        ("true", "a boolean"),
        ("[]", "a list"),
        ("{}", "an object"),
    ] {
        let problem = second(&GOOD.replace("600", bad));
        assert!(
            matches!(&problem, LineProblem::WrongType { field, found: f, .. } if field == "input_length" && f == found),
            "{problem:?}"
        );
    }
    let problem = second(&GOOD.replace("[0, 1]", "5"));
    assert!(problem.to_string().contains("`hash_ids` is a number, not a list"), "{problem}");
    let problem = second(&GOOD.replace("[0, 1]", "[0, \"1\"]"));
    assert!(problem.to_string().contains("`hash_ids[1]` is a string"), "{problem}");
}

#[test]
fn fractions_and_numbers_beyond_64_bits_are_refused() {
    for bad in ["1.5", "18446744073709551616", "1e30"] {
        let problem = second(&GOOD.replace("600", bad));
        assert!(matches!(problem, LineProblem::WrongType { .. }), "{bad}: {problem:?}");
    }
}

#[test]
fn negative_numbers_are_refused() {
    for (line, field) in [
        (GOOD.replace("600", "-600"), "input_length"),
        (GOOD.replace("\"timestamp\": 0", "\"timestamp\": -1"), "timestamp"),
        (GOOD.replace("[0, 1]", "[0, -1]"), "hash_ids[1]"),
        (GOOD.replace("600", "-99999999999999999999"), "input_length"),
    ] {
        let problem = second(&line);
        assert!(matches!(&problem, LineProblem::Negative { field: f, .. } if f == field), "{problem:?}");
    }
}

#[test]
fn the_number_of_blocks_must_fit_the_input_length() {
    for (length, ok) in
        [(0, false), (512, false), (513, true), (1024, true), (1025, false), (u64::MAX, false)]
    {
        let text = GOOD.replace("600", &length.to_string());
        let result = read(text.as_bytes()).remove(0);
        assert_eq!(result.is_ok(), ok, "{length}: {result:?}");
    }
    let problem = second(&GOOD.replace("600", "1025"));
    assert_eq!(problem, LineProblem::BlockCount { found: 2, needed: 3, input_length: 1025 });
}

#[test]
fn time_must_not_run_back() {
    let later = GOOD.replace("\"timestamp\": 0", "\"timestamp\": 9");
    assert_eq!(
        read(format!("{GOOD}\n{later}\n{later}\n").as_bytes()).iter().filter(|r| r.is_ok()).count(),
        3
    );
    let (line, what) = problem(format!("{later}\n{GOOD}\n").as_bytes());
    assert_eq!((line, what), (2, LineProblem::TimeRunsBack { found: 0, previous: 9 }));
}

#[test]
fn a_last_line_cut_at_any_byte_is_an_error() {
    for cut in 1..GOOD.len() {
        let text = format!("{GOOD}\n{}", &GOOD[..cut]);
        let (line, problem) = problem(text.as_bytes());
        assert_eq!(line, 2);
        assert!(matches!(problem, LineProblem::CutOff { .. }), "cut at {cut}: {problem:?}");
    }
}

#[test]
fn lines_that_are_not_json_or_not_an_object_are_refused() {
    assert!(matches!(second("hello"), LineProblem::NotJson { .. }));
    assert!(matches!(second(&format!("{GOOD} {GOOD}")), LineProblem::NotJson { .. }));
    assert_eq!(second("[1, 2]"), LineProblem::NotAnObject { found: "a list" });
    assert_eq!(second("7"), LineProblem::NotAnObject { found: "a number" });
}

#[test]
fn bytes_that_are_not_text_are_refused_with_their_place() {
    let mut text = GOOD.as_bytes().to_vec();
    text[5] = 0xff;
    assert_eq!(problem(&text), (1, LineProblem::NotUtf8 { valid_up_to: 5 }));
}

#[test]
fn a_line_without_end_is_refused_without_reading_it_all() {
    let endless = io::BufReader::new(io::repeat(b'['));
    let mut reader = TraceReader::new("t.jsonl", endless);
    let first = reader.next();
    assert!(
        matches!(first, Some(Err(TraceError::Line { line: 1, problem: LineProblem::TooLong, .. }))),
        "{first:?}"
    );
    assert!(reader.next().is_none());
}

#[test]
fn the_reader_ends_after_the_first_error() {
    let text = format!("{GOOD}\nbad\n{GOOD}\n");
    assert_eq!(read(text.as_bytes()).len(), 2);
}

#[test]
fn messages_name_file_line_and_fault() {
    let error = read(b"{}").remove(0).expect_err("no fields");
    assert_eq!(error.to_string(), "t.jsonl:1: the field `timestamp` is missing");
    let error = TraceReader::open(Path::new("no/such/trace.jsonl")).expect_err("no file");
    assert!(error.to_string().starts_with("cannot open the trace no/such/trace.jsonl: "), "{error}");
}

#[test]
fn a_failing_read_names_the_line() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let text = format!("{GOOD}\n");
    let input = BufReader::new(text.as_bytes().chain(Broken));
    let all: Vec<_> = TraceReader::new("t.jsonl", input).collect();
    assert_eq!(
        all[1].as_ref().map_err(ToString::to_string),
        Err("t.jsonl:2: cannot read the trace: the disk is gone".to_owned())
    );
}

proptest! {
    #[test]
    fn a_written_request_is_read_back(ts in any::<u64>(), ids in prop::collection::vec(any::<u64>(), 1..40), out in any::<u64>(), part in 1_u64..=BLOCK_TOKENS) {
        let input_length = (ids.len() as u64 - 1) * BLOCK_TOKENS + part;
        let line = format!(r#"{{"timestamp":{ts},"input_length":{input_length},"output_length":{out},"hash_ids":{ids:?}}}"#);
        let read = read(line.as_bytes()).remove(0).expect("good");
        prop_assert_eq!(read, Request { line: 1, timestamp_ms: ts, input_length, output_length: out, hash_ids: ids });
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for item in TraceReader::new("t", bytes.as_slice()) {
            let _ = item.map_err(|e| e.to_string());
        }
    }

    #[test]
    fn damaged_lines_never_panic(at in 0..GOOD.len(), byte in any::<u8>()) {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] = byte;
        for item in TraceReader::new("t", bytes.as_slice()) {
            let _ = item.map_err(|e| e.to_string());
        }
    }
}
