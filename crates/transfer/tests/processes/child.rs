//! The other process: this test program again, with its role in the environment and its commands as lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use slackwater_transfer::{Capability, EngineConfig, Op, PeerId, Segment, Target};

use crate::world::{self, End, Field, PATIENCE, host_end, request, submit};

const ROLE: &str = "SLACKWATER_TRANSFER_TEST_ROLE";
const BYTES: &str = "SLACKWATER_TRANSFER_TEST_BYTES";

/// A process with one region, until it is killed or dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    pub(crate) segment: Segment,
    pub(crate) capability: Capability,
}

impl Child {
    /// A process whose region of so many bytes lies in shared memory, or in its own.
    pub(crate) fn start(role: &str, bytes: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child::be_a_child",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(BYTES, bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, lines) = channel();
        let output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            // The harness writes lines of its own.
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once("child: ")
                    && tell.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let next = || {
            lines
                .recv_timeout(PATIENCE)
                .expect("a child tells of itself")
        };
        let segment = serde_json::from_str(&next()).unwrap();
        let capability = capability(&next());
        Self {
            process,
            lines,
            segment,
            capability,
        }
    }

    pub(crate) fn id(&self) -> i32 {
        self.process.id().cast_signed()
    }

    /// Its field, of an engine to which it is this peer.
    pub(crate) fn target(&self, peer: PeerId) -> Target {
        Target {
            peer,
            offset: 0,
            capability: self.capability,
            key: None,
        }
    }

    /// Sends the child a command.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Its next line.
    pub(crate) fn hear(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a child answers")
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// SIGKILL, and the end of it.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn hex(capability: &Capability) -> String {
    capability
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn capability(text: &str) -> Capability {
    let bytes: Vec<u8> = (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect();
    Capability::from_bytes(&bytes.try_into().unwrap())
}

pub(crate) fn end(role: &str) -> End {
    match role {
        "shared" => host_end("process", world::shared),
        "attached" => host_end("process", world::anonymous),
        "whole" => End {
            engine: EngineConfig::new("process").start().unwrap(),
            make: world::anonymous,
        },
        other => panic!("no role {other}"),
    }
}

/// Not a test: what a child process runs.
#[test]
#[ignore = "run by other tests as another process"]
#[expect(clippy::print_stdout, reason = "the pipe to the parent")]
fn be_a_child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let bytes: usize = std::env::var(BYTES).unwrap().parse().unwrap();
    let end = end(&role);
    let field = end.filled(&vec![1; bytes]);
    println!(
        "child: {}",
        serde_json::to_string(end.engine.segment()).unwrap()
    );
    println!("child: {}", hex(&grant(&end, &field)));
    let mut peer = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            // All bytes, if they are the same.
            "bytes" => {
                let bytes = field.load();
                let same = bytes.iter().all(|&byte| byte == bytes[0]);
                println!(
                    "child: {}",
                    if same {
                        bytes[0].to_string()
                    } else {
                        "mixed".to_owned()
                    }
                );
            }
            "invalidate" => {
                end.engine.invalidate(field.region.id(), PATIENCE).unwrap();
                field.store(&vec![2; bytes]);
                println!("child: {}", hex(&grant(&end, &field)));
            }
            "open" => {
                peer = Some(end.engine.open(serde_json::from_str(rest).unwrap()));
                println!("child: opened");
            }
            // Writes all of its own bytes under that capability, again and again, ignoring the outcomes.
            "flood" => {
                let target = Target {
                    peer: peer.unwrap(),
                    offset: 0,
                    capability: capability(rest),
                    key: None,
                };
                let flood = || {
                    let requests = (0..4)
                        .map(|_| request(Op::Write, vec![field.range(0, bytes)], target))
                        .collect::<Vec<_>>();
                    end.engine.transfer(requests, &submit())
                };
                println!("child: {}", flood().is_ok());
                let until = std::time::Instant::now() + Duration::from_secs(60);
                while std::time::Instant::now() < until {
                    let _ = flood();
                }
                return;
            }
            other => panic!("no word {other}"),
        }
    }
}

fn grant(end: &End, field: &Field) -> Capability {
    let all =
        slackwater_transfer::GrantSpec::whole(&field.region, slackwater_transfer::Rights::BOTH);
    end.engine.grant(field.region.id(), &all).unwrap()
}
