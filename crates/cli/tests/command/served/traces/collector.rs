//! A collector that takes OTLP over HTTP and keeps what it is told.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::place::PATIENCE;

/// A span as it was told.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) service: String,
    pub(super) name: String,
    pub(super) trace: Vec<u8>,
    pub(super) id: Vec<u8>,
    /// Empty for the first of a trace.
    pub(super) parent: Vec<u8>,
    /// As OTLP numbers them: 1 internal, 2 server, 3 client.
    pub(super) kind: u64,
    pub(super) begins: u64,
    pub(super) ends: u64,
    pub(super) failed: bool,
    pub(super) notes: BTreeMap<String, String>,
}

/// See the module. It ends with the test.
pub(super) struct Collector {
    address: SocketAddr,
    told: Arc<Mutex<Vec<Told>>>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(body) = request(stream.unwrap()) else {
                    return;
                };
                heard.lock().unwrap().extend(spans(&body));
            }
        });
        Self {
            address,
            told,
            thread: Some(thread),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of a trace that were told so far.
    pub(super) fn of(&self, trace: &[u8]) -> Vec<Told> {
        let told = self.told.lock().unwrap();
        told.iter()
            .filter(|span| span.trace == trace)
            .cloned()
            .collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // A connection without a request is the last.
        drop(TcpStream::connect(self.address));
        let ended = self.thread.take().unwrap().join();
        assert!(
            ended.is_ok() || std::thread::panicking(),
            "the collector broke"
        );
    }
}

/// Takes one request and answers it; none where there is none.
fn request(stream: TcpStream) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let line = line.trim_end().to_lowercase();
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
        head.push(line);
    }
    assert!(head[0].starts_with("post /v1/traces http/1.1"), "{head:?}");
    let kind = "content-type: application/x-protobuf".to_owned();
    assert!(head.contains(&kind), "{head:?}");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    stream.get_mut().write_all(answer.as_bytes()).unwrap();
    Some(body)
}

/// The fields of a message of Protocol Buffers, by number.
struct Fields<'a>(Vec<(u64, Value<'a>)>);

#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn read(mut rest: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let key = varint(&mut rest);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut rest)),
                1 => Value::Number(u64::from_le_bytes(take(&mut rest, 8).try_into().unwrap())),
                2 => {
                    let length = varint(&mut rest) as usize;
                    Value::Bytes(take(&mut rest, length))
                }
                5 => {
                    let word = take(&mut rest, 4).try_into().unwrap();
                    Value::Number(u32::from_le_bytes(word).into())
                }
                kind => panic!("a field of kind {kind}"),
            };
            fields.push((key >> 3, value));
        }
        Self(fields)
    }

    fn all(&self, number: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |(of, value)| match value {
            Value::Bytes(bytes) if *of == number => Some(*bytes),
            _ => None,
        })
    }

    fn bytes(&self, number: u64) -> &'a [u8] {
        self.all(number).next().unwrap_or_default()
    }

    fn text(&self, number: u64) -> String {
        String::from_utf8(self.bytes(number).to_vec()).unwrap()
    }

    fn number(&self, number: u64) -> u64 {
        let found = self.0.iter().find_map(|(of, value)| match value {
            Value::Number(value) if *of == number => Some(*value),
            _ => None,
        });
        found.unwrap_or_default()
    }

    /// Attributes, under this number.
    fn attributes(&self, number: u64) -> BTreeMap<String, String> {
        let each = self.all(number).map(|attribute| {
            let attribute = Fields::read(attribute);
            let value = Fields::read(attribute.bytes(2));
            let shown = match value.0.first() {
                Some((1, Value::Bytes(text))) => String::from_utf8(text.to_vec()).unwrap(),
                Some((3, Value::Number(number))) => number.to_string(),
                _ => String::new(),
            };
            (attribute.text(1), shown)
        });
        each.collect()
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, after) = rest.split_at(count);
    *rest = after;
    taken
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
    }
    panic!("a number without an end")
}

/// The spans of an `ExportTraceServiceRequest`.
fn spans(body: &[u8]) -> Vec<Told> {
    let mut told = Vec::new();
    for of_resource in Fields::read(body).all(1) {
        let of_resource = Fields::read(of_resource);
        let resource = Fields::read(of_resource.bytes(1)).attributes(1);
        for of_scope in of_resource.all(2) {
            for span in Fields::read(of_scope).all(2) {
                let span = Fields::read(span);
                told.push(Told {
                    service: resource["service.name"].clone(),
                    name: span.text(5),
                    trace: span.bytes(1).to_vec(),
                    id: span.bytes(2).to_vec(),
                    parent: span.bytes(4).to_vec(),
                    kind: span.number(6),
                    begins: span.number(7),
                    ends: span.number(8),
                    failed: Fields::read(span.bytes(15)).number(3) == 2,
                    notes: span.attributes(9),
                });
            }
        }
    }
    told
}
