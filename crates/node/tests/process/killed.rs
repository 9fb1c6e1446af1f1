//! A writer that is killed at any moment, and what must be there when the store is opened again.

use super::*;

/// Keys that the writer works on: all their values fit the SSD several times over.
const KEYS: u64 = 200;

/// The operation of a number: everybody can work out what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Put { key: u64, durable: bool },
    Remove { key: u64 },
    Flush,
}

fn act(number: u64) -> Act {
    let mut rng = Rng::new(number);
    let key = rng.below(KEYS);
    match rng.below(20) {
        0 => Act::Flush,
        1..4 => Act::Remove { key },
        4 => Act::Put { key, durable: true },
        _ => Act::Put {
            key,
            durable: false,
        },
    }
}

pub(crate) fn name(key: u64) -> String {
    format!("key-{key}")
}

/// The value that an operation puts: its number, its key, and bytes that follow from both.
pub(crate) fn value(number: u64, key: u64) -> Vec<u8> {
    let mut rng = Rng::new(number ^ hash64(name(key).as_bytes()));
    let mut value = vec![0; 16 + rng.below(40_000) as usize];
    rng.fill(&mut value);
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&key.to_le_bytes());
    value
}

/// The process that is killed: says that it opens the store, `b N` before an operation and `e N` when it has returned.
pub(crate) fn writer(directory: &Path, first: u64) {
    let mut out = std::io::stdout();
    out.write_all(b"opening\n").unwrap();
    let store = Store::open(config(directory)).unwrap();
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    for number in first.. {
        out.write_all(format!("b {number}\n").as_bytes()).unwrap();
        match act(number) {
            Act::Put { key, durable } => {
                let durability = if durable {
                    Durability::Disk
                } else {
                    Durability::Memory
                };
                let options = PutOptions {
                    mode: PutMode::Upsert,
                    durability,
                    ..PutOptions::default()
                };
                store
                    .put(name(key).as_bytes(), &value(number, key), &options)
                    .unwrap();
            }
            Act::Remove { key } => {
                let removed = store.remove(&[name(key).as_bytes()], &force).remove(0);
                let missing = removed.err().map(|error| error.code());
                assert!(
                    matches!(
                        missing,
                        None | Some(slackwater_wire::ErrorCode::ObjectNotFound)
                    ),
                    "{missing:?}"
                );
            }
            Act::Flush => store.flush(Duration::from_secs(30)).unwrap(),
        }
        out.write_all(format!("e {number}\n").as_bytes()).unwrap();
    }
}

/// What a writer said before it died.
#[derive(Default)]
struct Log {
    begun: Vec<u64>,
    ended: Vec<u64>,
}

impl Log {
    fn take(&mut self, line: &str) {
        // The kill may have cut the last line off.
        let Some((kind, Ok(number))) = line
            .split_once(' ')
            .map(|(kind, number)| (kind, number.parse()))
        else {
            return;
        };
        if kind == "b" {
            self.begun.push(number)
        } else {
            self.ended.push(number)
        }
    }
}

/// What may be found under each key after a crash: numbers of puts, or nothing.
type Allowed = BTreeMap<u64, Vec<Option<u64>>>;

/// Works out what a crash may leave of the operations that were under way on top of what was there before.
fn allowed(before: &BTreeMap<u64, u64>, log: &Log) -> Allowed {
    let mut allowed: Allowed = (0..KEYS)
        .map(|key| (key, vec![before.get(&key).copied()]))
        .collect();
    for number in &log.begun {
        let ended = log.ended.contains(number);
        match act(*number) {
            // A put that replaces has its predecessor's removal made durable before it returns; whether its own bytes
            // are there depends on a flush.
            Act::Put { key, durable } => {
                let states = allowed.get_mut(&key).unwrap();
                match (ended, durable) {
                    (true, true) => *states = vec![Some(*number)],
                    (true, false) => *states = vec![None, Some(*number)],
                    (false, _) => states.extend([None, Some(*number)]),
                }
            }
            Act::Remove { key } if ended => *allowed.get_mut(&key).unwrap() = vec![None],
            Act::Remove { key } => allowed.get_mut(&key).unwrap().push(None),
            // What was put before a flush that returned is there.
            Act::Flush if ended => {
                for states in allowed.values_mut() {
                    if let [None, Some(number)] = states[..] {
                        *states = vec![Some(number)];
                    }
                }
            }
            Act::Flush => {}
        }
    }
    allowed
}

pub(crate) fn killed_at_any_moment() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().to_str().unwrap();
    let seed = std::env::var("SLACKWATER_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut rng = Rng::new(seed.unwrap_or_else(|| hash64(directory.as_bytes())));
    let (mut state, mut next, mut operations) = (BTreeMap::new(), 1u64, 0);
    let begun = Instant::now();
    let mut kills = 0;
    while kills < 24 && (kills < 20 || begun.elapsed() < Duration::from_secs(20)) {
        let mut process = Process::again("--writer", &[directory, &next.to_string()]);
        let mut log = Log::default();
        // The moment of the kill, in lines that were heard; with the first it is at work on what the last kill left.
        let heard = 1 + if kills % 4 == 0 { 0 } else { rng.below(1000) };
        (0..heard).for_each(|_| log.take(&process.line().expect("it works until it is killed")));
        process.child.kill().unwrap();
        while let Some(line) = process.line() {
            log.take(&line);
        }
        kills += 1;
        next += log.begun.len() as u64 + 1;
        operations += log.ended.len();
        let allowed = allowed(&state, &log);
        let store = Store::open(config(root.path())).unwrap();
        state = verify(&store, &allowed, kills);
        store.close().unwrap();
    }
    assert!(
        operations > 200,
        "only {operations} operations came to their end before their kills"
    );
}

/// Reads every key, whole and bit by bit; says which put each value is of.
fn verify(store: &Store, allowed: &Allowed, kills: u32) -> BTreeMap<u64, u64> {
    let mut state = BTreeMap::new();
    for (key, states) in allowed {
        let found = store
            .get(name(*key).as_bytes(), &GetOptions::default())
            .unwrap();
        let number = found
            .as_ref()
            .map(|found| u64::from_le_bytes(found[..8].try_into().unwrap()));
        assert!(
            states.contains(&number),
            "kill {kills}: key {key} holds {number:?}, allowed are {states:?}"
        );
        if let (Some(number), Some(found)) = (number, found) {
            assert!(
                found == value(number, *key),
                "kill {kills}: wrong bytes of put {number} under key {key}"
            );
            state.insert(*key, number);
        }
    }
    let keys: Vec<String> = allowed.keys().map(|key| name(*key)).collect();
    let named: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let exist = store.exists(&named, &Tenant::DEFAULT).unwrap();
    assert_eq!(exist.iter().filter(|exists| **exists).count(), state.len());
    assert_eq!(store.stats().corrupt, 0);
    state
}
