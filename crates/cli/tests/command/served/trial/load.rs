//! The load: what a process of clients does, by its seed, and what it says of it, a line when a call begins and one when
//! it has ended, so that one that is killed has said what it had under way.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slackwater_base::Rng;
use slackwater_remote::{
    CallOptions, Client, ClientError, GetOptions, Part, PutOptions, RemoveOptions, Stored,
};
use slackwater_wire::{Durability, ErrorCode, PutMode, Tenant};

use super::super::connect_with_key;
use super::value;

/// Where a process of the load finds what it is told.
pub(super) const ENV: &str = "SLACKWATER_TEST_LOAD";
/// The test that such a process runs.
pub(super) const NAME: &str = "served::trial::load::the_process_of_a_load";
/// Keys that all write and read.
pub(super) const SHARED: u64 = 64;
/// Keys that one thread of one host alone writes begin here.
pub(super) const OWN: u64 = 1000;
/// How long a call may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);
/// Calls at once of each process, but for that of the other tenant.
pub(super) const THREADS: u64 = 2;

/// What a process of the load is told.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) address: String,
    pub(super) key_file: PathBuf,
    /// The key of the other tenant.
    pub(super) rival_key_file: PathBuf,
    /// The host that it runs on, and its number among all processes of the trial.
    pub(super) host: u64,
    pub(super) process: u64,
    pub(super) seed: u64,
}

impl Told {
    pub(super) fn text(&self) -> String {
        let [own, rival] = [&self.key_file, &self.rival_key_file].map(|file| file.display());
        let (host, process, seed) = (self.host, self.process, self.seed);
        format!("{} {own} {rival} {host} {process} {seed}", self.address)
    }

    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        Self {
            address: words[0].to_owned(),
            key_file: words[1].into(),
            rival_key_file: words[2].into(),
            host: number(3),
            process: number(4),
            seed: number(5),
        }
    }

    /// The client that it uses.
    pub(super) fn connect(&self) -> Client {
        connect_with_key(&self.address, self.key_file.clone(), DEADLINE).unwrap()
    }

    /// A client of the other tenant.
    pub(super) fn connect_rival(&self) -> Client {
        connect_with_key(&self.address, self.rival_key_file.clone(), DEADLINE).unwrap()
    }
}

/// The tenant of a key's calls.
pub(super) fn tenant_of(key: u64) -> Tenant {
    match key {
        0..value::RIVAL => Tenant::default(),
        _ => Tenant::new("acme").unwrap(),
    }
}

/// The clock of histories, which all processes of the machine share.
pub(super) fn nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Not a test: a process of the load, which tests of this module start.
#[test]
#[ignore = "the process of a load, which tests start"]
fn the_process_of_a_load() {
    let told = std::env::var(ENV).unwrap_or_else(|_| panic!("{ENV} is not set: tests start this"));
    let told = Told::parse(&told);
    let (client, rival) = (told.connect(), told.connect_rival());
    say(&format!("c {}", nanos()));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (client, rival, told, over) = (&client, &rival, &told, &over);
        for thread in 0..THREADS {
            scope.spawn(move || Caller::new(client, told, thread, 0).run(over));
        }
        scope.spawn(move || Caller::new(rival, told, THREADS, value::RIVAL).run(over));
        // Its input ends when the load is to end.
        let _ = std::io::stdin().read(&mut [0]);
        over.store(true, Ordering::Relaxed);
    });
    say(&format!("f {}", nanos()));
}

fn say(line: &str) {
    // Each line begins anew: the test harness may have left one unfinished.
    let line = format!("\n{line}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).unwrap();
    out.flush().unwrap();
}

/// One thread of a process.
struct Caller<'a> {
    client: &'a Client,
    call: CallOptions,
    thread: u64,
    /// Where its keys begin.
    first: u64,
    own: u64,
    rng: Rng,
    /// Calls that were begun, and the last put that was.
    calls: u64,
    put: u64,
}

/// One key of a put: key, number of the put, length.
type Entry = (u64, u64, usize);

impl<'a> Caller<'a> {
    fn new(client: &'a Client, told: &Told, thread: u64, first: u64) -> Self {
        Self {
            client,
            call: CallOptions {
                tenant: tenant_of(first),
                ..CallOptions::default()
            },
            thread,
            first,
            own: first + OWN + told.host * THREADS + thread % THREADS,
            rng: Rng::new(told.seed.wrapping_mul(31) ^ (told.process << 8 | thread)),
            calls: 0,
            put: told.process << 40 | thread << 32,
        }
    }

    fn run(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            match self.rng.below(100) {
                0..25 => self.get(1),
                25..33 => self.get(5),
                33..43 => self.get_part(),
                43..60 => self.write(1, PutMode::Upsert, 1),
                60..66 => self.write(1, PutMode::Upsert, 2),
                66..72 => self.write(3, PutMode::Upsert, 1),
                72..80 => self.write(1, PutMode::Create, 1),
                80..86 => self.remove(true),
                86..90 => self.remove(false),
                90..94 => self.exists(),
                _ => self.write_own(),
            }
        }
    }

    fn key(&mut self) -> u64 {
        match self.rng.below(12) {
            0 => self.own,
            _ => self.shared(),
        }
    }

    fn shared(&mut self) -> u64 {
        self.first + self.rng.below(SHARED)
    }

    /// Says that a call begins, does it, and says how it ended.
    fn call(&mut self, what: &str, keys: &[String], call: impl FnOnce(&Self) -> Vec<String>) {
        self.calls += 1;
        let (thread, number) = (self.thread, self.calls);
        let keys = keys.join(" ");
        say(&format!("b {thread} {number} {} {what} {keys}", nanos()));
        let results = call(self).join(" ");
        say(&format!("e {thread} {number} {} {results}", nanos()));
    }

    fn entry(&mut self, key: u64) -> Entry {
        self.put += 1;
        let bytes = match self.rng.below(4) {
            0 => value::HEADER + self.rng.below(200) as usize,
            1 | 2 => value::HEADER + self.rng.below(60_000) as usize,
            _ => value::HEADER + self.rng.below(300_000) as usize,
        };
        (key, self.put, bytes)
    }

    fn write(&mut self, keys: usize, mode: PutMode, replicas: u32) {
        let mut entries: Vec<Entry> = Vec::new();
        while entries.len() < keys {
            // Of equal keys the first would win.
            let key = self.shared();
            if entries.iter().all(|(there, ..)| *there != key) {
                entries.push(self.entry(key));
            }
        }
        let durable = self.rng.chance(0.3);
        self.put(entries, mode, replicas, durable);
    }

    /// What nobody else writes and nobody removes, durably.
    fn write_own(&mut self) {
        let entry = self.entry(self.own);
        self.put(vec![entry], PutMode::Upsert, 1, true);
    }

    fn put(&mut self, entries: Vec<Entry>, mode: PutMode, replicas: u32, durable: bool) {
        let durability = if durable {
            Durability::Disk
        } else {
            Durability::Memory
        };
        let options = PutOptions {
            mode,
            replicas,
            durability,
            wait: Some(Duration::from_millis(500)),
            call: self.call.clone(),
            ..PutOptions::default()
        };
        let kind = match mode {
            PutMode::Upsert => "upsert",
            _ => "create",
        };
        let what = format!("{kind}{}", if durable { "-disk" } else { "" });
        let told = entries.iter().map(|(key, put, _)| format!("{key}:{put}"));
        let told: Vec<String> = told.collect();
        let bytes = |(key, put, bytes): &Entry| {
            let name = value::name(*key).into_bytes();
            (name, value::make(*key, *put, *bytes))
        };
        let values: Vec<_> = entries.iter().map(bytes).collect();
        let pairs: Vec<(&[u8], &[u8])> = values.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        self.call(&what, &told, |caller| {
            let results = caller.client.put_batch(&pairs, &options);
            let result = |result: Result<Stored, ClientError>| match result {
                Ok(Stored::New) => "new".to_owned(),
                Ok(Stored::Existed) => "existed".to_owned(),
                Err(error) => failed(&error),
            };
            results.into_iter().map(result).collect()
        });
    }

    fn reading(&self) -> GetOptions {
        GetOptions {
            call: self.call.clone(),
            ..GetOptions::default()
        }
    }

    fn get(&mut self, keys: usize) {
        let keys: Vec<u64> = (0..keys).map(|_| self.key()).collect();
        let names: Vec<String> = keys.iter().map(|key| value::name(*key)).collect();
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let told: Vec<String> = keys.iter().map(u64::to_string).collect();
        self.call("get", &told, |caller| {
            let results = caller.client.get_batch(&names, &caller.reading());
            let result = |(key, result): (&u64, Result<Option<Vec<u8>>, ClientError>)| match result
            {
                Ok(None) => "missing".to_owned(),
                Ok(Some(bytes)) => found(value::check(*key, &bytes)),
                Err(error) => failed(&error),
            };
            keys.iter().zip(results).map(result).collect()
        });
    }

    /// The header of a value and a part of its body, which are of one put.
    fn get_part(&mut self) {
        let key = self.key();
        let from = value::HEADER + self.rng.below(20_000) as usize;
        let mut header = [0; value::HEADER];
        let mut body = vec![0; 1 + self.rng.below(5000) as usize];
        self.call("get", &[key.to_string()], |caller| {
            let parts = vec![
                Part {
                    from: 0,
                    into: &mut header,
                },
                Part {
                    from: from as u64,
                    into: &mut body,
                },
            ];
            let name = value::name(key);
            let options = caller.reading();
            let mut read = caller
                .client
                .get_parts(&[name.as_bytes()], vec![parts], &options);
            let check = |length: usize| {
                let (put, bytes) = value::header(key, &header)?;
                if bytes != length {
                    return Err(format!("put {put} has {bytes} bytes, not {length}"));
                }
                // A part that ends behind the value is left as it was.
                if from + body.len() <= length {
                    value::part(put, from, &body)?;
                }
                Ok(put)
            };
            vec![match read.remove(0) {
                Ok(None) => "missing".to_owned(),
                Ok(Some(length)) => found(check(length)),
                Err(error) => failed(&error),
            }]
        });
    }

    fn remove(&mut self, force: bool) {
        let key = self.shared();
        let options = RemoveOptions {
            force,
            call: self.call.clone(),
        };
        self.call("remove", &[key.to_string()], |caller| {
            let name = value::name(key);
            let removed = caller.client.remove(&[name.as_bytes()], &options).remove(0);
            vec![match removed {
                Ok(()) => "removed".to_owned(),
                Err(error) => failed(&error),
            }]
        });
    }

    fn exists(&mut self) {
        let key = self.key();
        self.call("exists", &[key.to_string()], |caller| {
            let name = value::name(key);
            let there = caller.client.exists(&[name.as_bytes()], &caller.call);
            vec![match there {
                Ok(there) if there[0] => "there".to_owned(),
                Ok(_) => "missing".to_owned(),
                Err(error) => failed(&error),
            }]
        });
    }
}

fn found(checked: Result<u64, String>) -> String {
    match checked {
        Ok(put) => format!("found:{put}"),
        Err(wrong) => format!("wrong:{}", wrong.replace(' ', "_")),
    }
}

fn failed(error: &ClientError) -> String {
    match error.code() {
        ErrorCode::ObjectNotFound => "missing".to_owned(),
        code => format!("failed:{}", code.name()),
    }
}
