use std::io::{self, BufRead, Read};
use std::time::Duration;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::{Expectation, Request};

/// Latest request of a trace, a century after its start: clocks hold that even when the time is stretched. It is later
/// than the Unix time of any recorder.
const LATEST: Duration = Duration::from_millis(3_155_760_000_000);

/// Longest line of a trace, in bytes: a chain of a million blocks fits.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// Reads the published trace format: one JSON object a line with `timestamp` (milliseconds since the start),
/// `input_length` and `output_length` (tokens) and `hash_ids` (one id per prefix block), and optional
/// `hint` (a small number) and `expect` (`continues` or `ends`).
///
/// Unknown fields and blank lines are skipped. The size of a block is not part of the format: blocks of any size read.
#[derive(Debug)]
pub struct TraceReader<R> {
    name: String,
    reader: R,
    line: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

/// Where a trace is wrong, and how.
#[derive(Debug, Error)]
#[error("{name}, line {line}: {problem}")]
pub struct TraceError {
    /// The trace.
    pub name: String,
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a line of a trace.
#[derive(Debug, Error)]
pub enum Problem {
    /// It could not be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// It is longer than a line may be.
    #[error("longer than {limit} bytes; expected one request a line")]
    TooLong {
        /// Longest line there may be.
        limit: u64,
    },
    /// It is not JSON.
    #[error("not JSON at column {column} ({detail}); expected one object a line")]
    NotJson {
        /// Where the parser stopped, from 1.
        column: usize,
        /// What the parser found there.
        detail: String,
    },
    /// It is JSON, but not an object.
    #[error("found {found} where an object with the fields of a request was expected")]
    NotObject {
        /// The kind of JSON value found.
        found: String,
    },
    /// A field is not there.
    #[error("field `{field}` is missing; expected {expected}")]
    Missing {
        /// Its name.
        field: &'static str,
        /// What it should hold.
        expected: &'static str,
    },
    /// A field holds something else.
    #[error("field `{field}` is {found}; expected {expected}")]
    Wrong {
        /// Its name, with the position in a list.
        field: String,
        /// The value found in the field, as JSON.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
}

impl<R: BufRead> TraceReader<R> {
    /// A reader of the trace called `name` in its errors.
    pub fn new(name: impl Into<String>, reader: R) -> Self {
        Self {
            name: name.into(),
            reader,
            line: 0,
            bytes: 0,
            buffer: Vec::new(),
        }
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// The next line that is not blank into the buffer; false at the end.
    fn next_line(&mut self) -> Result<bool, Problem> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX + 1);
            let read = bounded
                .read_until(b'\n', &mut self.buffer)
                .map_err(Problem::Read)?;
            self.bytes += read as u64;
            if read as u64 > LINE_BYTES_MAX {
                return Err(Problem::TooLong {
                    limit: LINE_BYTES_MAX,
                });
            }
            if read == 0 {
                return Ok(false);
            }
            if self.line == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn next_request(&mut self) -> Result<Option<Request>, Problem> {
        if self.next_line()? {
            parse(&self.buffer).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_request() {
            Ok(request) => request.map(Ok),
            Err(problem) => Some(Err(TraceError {
                name: self.name.clone(),
                line: self.line,
                problem,
            })),
        }
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const MILLISECONDS: &str = "milliseconds since the start of the trace, from 0 to 3155760000000";
const TOKENS: &str = "a whole number of tokens, zero or more";
const IDS: &str = "a list of block ids";
const ID: &str = "a whole number from 0 to 18446744073709551615";
const EXPECT: &str = "\"continues\", \"ends\" or null";
const HINT: &str = "a whole number from 0 to 4294967295, or null";

fn parse(line: &[u8]) -> Result<Request, Problem> {
    let value: Value =
        serde_json::from_slice(line.trim_ascii_end()).map_err(|error| Problem::NotJson {
            column: error.column(),
            detail: describe_error(&error),
        })?;
    let Value::Object(fields) = value else {
        return Err(Problem::NotObject {
            found: describe(&value),
        });
    };
    Ok(Request {
        at: moment(field(&fields, "timestamp", MILLISECONDS)?)?,
        input_tokens: tokens(&fields, "input_length")?,
        output_tokens: tokens(&fields, "output_length")?,
        blocks: blocks(field(&fields, "hash_ids", IDS)?)?,
        hint: fields.get("hint").map_or(Ok(None), hint)?,
        expect: fields.get("expect").map_or(Ok(None), expect)?,
    })
}

fn field<'a>(
    fields: &'a Map<String, Value>,
    field: &'static str,
    expected: &'static str,
) -> Result<&'a Value, Problem> {
    fields
        .get(field)
        .ok_or(Problem::Missing { field, expected })
}

/// Milliseconds, whole or not: some recorders write fractions.
fn moment(value: &Value) -> Result<Duration, Problem> {
    let wrong = || wrong("timestamp", value, MILLISECONDS);
    let at = match value.as_u64() {
        Some(whole) => Some(Duration::from_millis(whole)),
        None => value
            .as_f64()
            .and_then(|millis| Duration::try_from_secs_f64(millis / 1e3).ok()),
    };
    at.filter(|at| *at <= LATEST).ok_or_else(wrong)
}

fn tokens(fields: &Map<String, Value>, name: &'static str) -> Result<u64, Problem> {
    let value = field(fields, name, TOKENS)?;
    value.as_u64().ok_or_else(|| wrong(name, value, TOKENS))
}

fn blocks(value: &Value) -> Result<Vec<u64>, Problem> {
    let list = value
        .as_array()
        .ok_or_else(|| wrong("hash_ids", value, IDS))?;
    let id = |(index, id): (usize, &Value)| {
        id.as_u64()
            .ok_or_else(|| wrong(&format!("hash_ids[{index}]"), id, ID))
    };
    list.iter().enumerate().map(id).collect()
}

fn hint(value: &Value) -> Result<Option<u32>, Problem> {
    if value.is_null() {
        return Ok(None);
    }
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.map(Some).ok_or_else(|| wrong("hint", value, HINT))
}

fn expect(value: &Value) -> Result<Option<Expectation>, Problem> {
    match value.as_str() {
        None if value.is_null() => Ok(None),
        Some("continues") => Ok(Some(Expectation::Continues)),
        Some("ends") => Ok(Some(Expectation::Ends)),
        _ => Err(wrong("expect", value, EXPECT)),
    }
}

fn wrong(field: &str, value: &Value, expected: &'static str) -> Problem {
    Problem::Wrong {
        field: field.to_owned(),
        found: describe(value),
        expected,
    }
}

/// A value in few words: an error message is no place for a chain of ten thousand ids.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("the text {text:?}"),
        Value::String(text) => format!("a text of {} bytes", text.len()),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The parser's words without its position, which is said once and with the right line.
fn describe_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ")
        .map_or(text.as_str(), |(words, _)| words)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Request>, String> {
        TraceReader::new("t.jsonl", text)
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn requests_read_in_order_with_all_their_fields() {
        let text = "\u{feff}{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47]}\r\n\
             \n\
             {\"hash_ids\": [], \"model\": {\"a\": [1]}, \"hint\": 7, \"expect\": \"ends\", \"output_length\": 0, \"input_length\": 0, \"timestamp\": 1.5}\n\
             {\"timestamp\": 2, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [18446744073709551615], \"hint\": null, \"expect\": null}";
        let requests = read(text.as_bytes()).unwrap();
        assert_eq!(requests.len(), 3);
        assert_eq!(
            requests[0],
            Request {
                at: Duration::from_millis(27_482),
                input_tokens: 6955,
                output_tokens: 52,
                blocks: vec![46, 47],
                hint: None,
                expect: None
            }
        );
        assert_eq!(
            (requests[1].at, requests[1].hint, requests[1].expect),
            (
                Duration::from_micros(1500),
                Some(7),
                Some(Expectation::Ends)
            )
        );
        assert_eq!(
            (requests[2].blocks.as_slice(), requests[2].hint),
            ([u64::MAX].as_slice(), None)
        );
    }

    #[test]
    fn errors_name_file_line_field_and_what_was_expected() {
        let good = r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0]}"#;
        let check = |line: &str, message: &str| {
            let text = format!("{good}\n\n{line}\n{good}\n");
            assert_eq!(
                read(text.as_bytes()).unwrap_err(),
                format!("t.jsonl, line 3: {message}"),
                "{line}"
            );
        };
        let ids = "a whole number from 0 to 18446744073709551615";
        check(
            "nonsense",
            "not JSON at column 2 (expected ident); expected one object a line",
        );
        check(
            r#"{"timestamp":0,"input_le"#,
            "not JSON at column 24 (EOF while parsing a string); expected one object a line",
        );
        check(
            &format!("{good}{good}"),
            "not JSON at column 66 (trailing characters); expected one object a line",
        );
        check(
            "[1,2]",
            "found a list of 2 where an object with the fields of a request was expected",
        );
        check(
            r#"{"input_length":1,"output_length":1,"hash_ids":[0]}"#,
            "field `timestamp` is missing; expected milliseconds since the start of the trace, from 0 to 3155760000000",
        );
        check(
            r#"{"timestamp":-5,"input_length":1,"output_length":1,"hash_ids":[0]}"#,
            "field `timestamp` is -5; expected milliseconds since the start of the trace, from 0 to 3155760000000",
        );
        check(
            r#"{"timestamp":1e300,"input_length":1,"output_length":1,"hash_ids":[0]}"#,
            "field `timestamp` is 1e+300; expected milliseconds since the start of the trace, from 0 to 3155760000000",
        );
        // A time that clocks cannot hold made the traffics with a stretched time panic.
        check(
            r#"{"timestamp":3155760000001,"input_length":1,"output_length":1,"hash_ids":[0]}"#,
            "field `timestamp` is 3155760000001; expected milliseconds since the start of the trace, from 0 to 3155760000000",
        );
        check(
            r#"{"timestamp":0,"input_length":"many","output_length":1,"hash_ids":[0]}"#,
            "field `input_length` is the text \"many\"; expected a whole number of tokens, zero or more",
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1.5,"hash_ids":[0]}"#,
            "field `output_length` is 1.5; expected a whole number of tokens, zero or more",
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1}"#,
            "field `hash_ids` is missing; expected a list of block ids",
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":{}}"#,
            "field `hash_ids` is an object; expected a list of block ids",
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[4,5,-1]}"#,
            &format!("field `hash_ids[2]` is -1; expected {ids}"),
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[null]}"#,
            &format!("field `hash_ids[0]` is null; expected {ids}"),
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0],"hint":4294967296}"#,
            "field `hint` is 4294967296; expected a whole number from 0 to 4294967295, or null",
        );
        check(
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0],"expect":"soon"}"#,
            "field `expect` is the text \"soon\"; expected \"continues\", \"ends\" or null",
        );
    }

    #[test]
    fn bytes_that_are_no_text_and_endless_lines_are_refused() {
        let error = read(b"{\"timestamp\":\"\xff\"}").unwrap_err();
        assert!(
            error.starts_with("t.jsonl, line 1: not JSON at column"),
            "{error}"
        );
        let endless = vec![b' '; LINE_BYTES_MAX as usize + 2];
        assert_eq!(
            read(&endless).unwrap_err(),
            "t.jsonl, line 1: longer than 16777216 bytes; expected one request a line"
        );
    }

    #[test]
    fn bytes_read_follow_the_lines() {
        let line = "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[0]}\n";
        let text = line.repeat(2);
        let mut reader = TraceReader::new("t", text.as_bytes());
        assert!(reader.next().unwrap().is_ok());
        assert_eq!(reader.bytes_read(), line.len() as u64);
        assert_eq!(reader.by_ref().count(), 1);
        assert_eq!(reader.bytes_read(), text.len() as u64);
    }
}
