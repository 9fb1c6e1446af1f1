//! An initiator that sends any frames that a test wants.

use std::io::{Read, Write};
use std::net::TcpStream;

use slackwater_transfer::{Capability, Engine, Op};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{
    Data, Features, Frame, GREETING_BYTES, Greeting, HANDSHAKE_BYTES, Request, VERSION,
};

use crate::support::SECOND;

/// One open connection to an engine.
pub(crate) struct Raw {
    stream: TcpStream,
    heard: Vec<u8>,
    pub(crate) greeting: Greeting,
}

pub(crate) fn greeting(incarnation: u64) -> Greeting {
    Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation: Incarnation(incarnation),
        expects: Incarnation(0),
        frame_bytes_max: 16 << 20,
        requests_max: 1024,
        in_flight_bytes_max: 256 << 20,
        handshake: [0; HANDSHAKE_BYTES],
    }
}

impl Raw {
    /// Greets as `incarnation`.
    pub(crate) fn connect(to: &Engine, incarnation: u64) -> Self {
        Self::greet(to, &greeting(incarnation))
    }

    pub(crate) fn greet(to: &Engine, hello: &Greeting) -> Self {
        let mut stream = TcpStream::connect(to.segment().addresses[0]).unwrap();
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        stream.write_all(&hello.to_bytes()).unwrap();
        let mut answer = [0; GREETING_BYTES];
        stream.read_exact(&mut answer).unwrap();
        Self {
            stream,
            heard: Vec::new(),
            greeting: Greeting::from_bytes(&answer).unwrap(),
        }
    }

    pub(crate) fn send(&mut self, frames: &[Frame]) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        self.send_bytes(&bytes);
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        // A peer that was disconnected learns it by reading.
        let _ = self.stream.write_all(bytes);
    }

    /// Whether a header comes, behind whatever answers there are, before the connection ends.
    pub(crate) fn hears(&mut self, expected: &Frame) -> bool {
        loop {
            match self.hear() {
                Some(frame) if frame == *expected => return true,
                Some(Frame::Data(data)) => self.skip(data.bytes as usize),
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Takes payload.
    pub(crate) fn skip(&mut self, bytes: usize) {
        let mut left = vec![0; bytes.saturating_sub(self.heard.len())];
        self.heard.drain(..bytes.min(self.heard.len()));
        self.stream.read_exact(&mut left).unwrap();
    }

    /// The next header; none when the connection has ended.
    pub(crate) fn hear(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, length)) = Frame::read(&self.heard).unwrap() {
                self.heard.drain(..length);
                return Some(frame);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing was heard: {error}"),
            }
        }
    }
}

pub(crate) fn ask(op: Op, id: u64, capability: Capability, bytes: u64) -> Frame {
    Frame::Request(Request {
        id,
        op,
        urgent: false,
        offset: 0,
        bytes,
        time_left_nanos: u64::MAX,
        capability,
        trace: None,
    })
}

pub(crate) fn data(id: u64, offset: u64, bytes: u32, last: bool) -> Frame {
    Frame::Data(Data {
        id,
        bytes,
        last,
        offset,
    })
}
