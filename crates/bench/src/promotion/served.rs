//! Promotion in a pool: a master, a node that has the values on its SSD, another node, and a reader, each in a process of its own.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use slackwater_base::{ByteSize, Instant, Rng};
use slackwater_mq::Address;
use slackwater_node::Tier;
use slackwater_remote::{CallOptions, Client, ConnectOptions, GetOptions, PutOptions};
use slackwater_wait::now;
use slackwater_wire::{Durability, ReplicaAt, ReplicaState};

use super::{Burst, Measured, Options, PATIENCE, Progress, is_in_memory, micros, value};
use crate::cluster::ClusterError;
use crate::cluster::counted::{OfMaster, OfNode};
use crate::process::Process;
use crate::store::shuffled;

/// Bytes that one call puts.
const BATCH_BYTES: usize = 16 << 20;
/// Threads that read while everything becomes hot, each one value after another.
const READERS: usize = 4;
/// Memory of the node that has nothing on SSD.
const NEAR_MEMORY: ByteSize = ByteSize::mib(64);
/// How long a process may be silent: one that opens its SSD is.
const SILENCE: Duration = Duration::from_secs(120);

pub(super) fn measure(options: &Options, child: &[OsString]) -> Result<Measured, ClusterError> {
    let mut bench = Bench {
        keys: options.keys(),
        bytes: options.value_bytes,
        buffer: vec![0; options.value_bytes],
        rng: Rng::new(7),
    };
    let pool = Pool::start(options, child)?;
    bench.fill(&pool)?;
    pool.close()?;
    let mut pool = Pool::start(options, child)?;
    bench.wait_for_all(&pool)?;
    pool.add_near(options, child)?;
    let pre = bench.pass(&mut pool, Tier::Disk)?;
    let delays = bench.promote(&pool)?;
    let before = OfNode::ask(&mut pool.holder)?;
    let post = bench.pass(&mut pool, Tier::Memory)?;
    let after = OfNode::ask(&mut pool.holder)?;
    pool.close()?;
    let mut pool = Pool::start(options, child)?;
    bench.wait_for_all(&pool)?;
    pool.add_near(options, child)?;
    let burst = bench.burst(&mut pool)?;
    let io = pool.io.clone();
    pool.close()?;
    let reads = |count: OfNode| count.ssd_reads + count.promotion_reads;
    Ok(Measured {
        pre,
        post,
        delays,
        post_ssd_reads: reads(after) - reads(before),
        burst,
        io,
    })
}

/// One life of the processes. What is in memory goes with it, what is on SSD stays.
struct Pool {
    client: Client,
    /// The node that lends memory alone: it would be that of the reader.
    near: Option<Process>,
    /// The node that has the values on its SSD.
    holder: Process,
    master: Process,
    address: String,
    io: String,
}

impl Pool {
    /// A master, and the node that has the SSD.
    fn start(options: &Options, child: &[OsString]) -> Result<Self, ClusterError> {
        let mut master = Process::start(child, &["master"], SILENCE)?;
        let address = master.hear("serving at")?;
        let place = options.directory.join("holder");
        let lent = (options.memory(), options.ssd());
        let (holder, io) = start_node(child, &address, lent, &place)?;
        let to: Address = address
            .parse()
            .map_err(|_| failed(format!("`{address}` is no address")))?;
        let client = Client::connect(&ConnectOptions {
            address: to,
            // The holder stands for another machine.
            force_tcp: true,
            connect_timeout: Duration::from_secs(10),
            deadline: PATIENCE,
            ..ConnectOptions::default()
        })?;
        Ok(Self {
            client,
            near: None,
            holder,
            master,
            address,
            io,
        })
    }

    /// The second node comes when the first has everything on its SSD.
    fn add_near(&mut self, options: &Options, child: &[OsString]) -> Result<(), ClusterError> {
        let place = options.directory.join("near");
        let lent = (NEAR_MEMORY, ByteSize(0));
        self.near = Some(start_node(child, &self.address, lent, &place)?.0);
        Ok(())
    }

    /// Ends the holder with everything durable, then the others.
    fn close(mut self) -> Result<(), ClusterError> {
        self.holder.say("close")?;
        self.holder.hear("closed")?;
        Ok(())
    }

    fn replicas(&self, key: &str) -> Result<Vec<Replica>, ClusterError> {
        let found = self.client.stat(key.as_bytes(), &CallOptions::default());
        let found = found.map_err(failed)?;
        Ok(found.map(|found| found.replicas).unwrap_or_default())
    }
}

type Replica = (ReplicaAt, ReplicaState, u32);

/// A node that the master has taken, and how it reads its SSD.
fn start_node(
    child: &[OsString],
    master: &str,
    (memory, ssd): (ByteSize, ByteSize),
    directory: &Path,
) -> Result<(Process, String), ClusterError> {
    let (memory, ssd) = (memory.0.to_string(), ssd.0.to_string());
    let directory = directory.display().to_string();
    let words = ["node", master, &memory, &ssd, &directory];
    let mut node = Process::start(child, &words, SILENCE)?;
    let io = node.hear("lends")?;
    Ok((node, io))
}

fn failed(error: impl ToString) -> ClusterError {
    ClusterError::Call(error.to_string())
}

struct Bench {
    keys: Vec<String>,
    bytes: usize,
    buffer: Vec<u8>,
    rng: Rng,
}

impl Bench {
    fn fill(&self, pool: &Pool) -> Result<(), ClusterError> {
        let durable = PutOptions {
            durability: Durability::Disk,
            ..PutOptions::default()
        };
        for keys in self.keys.chunks((BATCH_BYTES / self.bytes).max(1)) {
            let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, self.bytes)).collect();
            let entries: Vec<(&[u8], &[u8])> = keys
                .iter()
                .zip(&values)
                .map(|(key, value)| (key.as_bytes(), &**value))
                .collect();
            for stored in pool.client.put_batch(&entries, &durable) {
                stored.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Returns when the master has been told of every record; nothing is in memory by then.
    fn wait_for_all(&self, pool: &Pool) -> Result<(), ClusterError> {
        let began = now();
        for key in &self.keys {
            while pool.replicas(key)?.is_empty() {
                patient(began, || format!("{key} is not on SSD"))?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for key in &self.keys {
            let on_ssd = |(at, ..): &Replica| matches!(at, ReplicaAt::Disk { .. });
            if !pool.replicas(key)?.iter().all(on_ssd) {
                return Err(failed(format!("{key} is in memory")));
            }
        }
        Ok(())
    }

    /// Reads every object once, all of them from the same tier; the time of each in microseconds.
    fn pass(&mut self, pool: &mut Pool, from: Tier) -> Result<Vec<f64>, ClusterError> {
        let order = shuffled(&mut self.rng, self.keys.len());
        order
            .into_iter()
            .map(|number| self.sample(pool, number, from))
            .collect()
    }

    fn sample(&mut self, pool: &mut Pool, number: usize, from: Tier) -> Result<f64, ClusterError> {
        let before = OfNode::ask(&mut pool.holder)?.ssd_reads;
        let begun = now();
        self.read(pool, number)?;
        let took = now().since(begun);
        let reads = OfNode::ask(&mut pool.holder)?.ssd_reads - before;
        let key = &self.keys[number];
        if reads != u64::from(from == Tier::Disk) {
            return Err(failed(format!(
                "{key}: {reads} SSD reads for a read from {from:?}"
            )));
        }
        if self.buffer != value(key, self.bytes) {
            return Err(failed(format!("{key}: wrong bytes")));
        }
        Ok(micros(took))
    }

    fn read(&mut self, pool: &Pool, number: usize) -> Result<(), ClusterError> {
        let key = &self.keys[number];
        let options = GetOptions::default();
        let got = (pool.client).get_into(key.as_bytes(), &mut self.buffer, &options);
        found(got.map_err(failed)?, self.bytes, key)
    }

    /// Reads every object once more, which earns it its promotion; how long each then took, in microseconds.
    fn promote(&mut self, pool: &Pool) -> Result<Vec<f64>, ClusterError> {
        let mut delays = Vec::with_capacity(self.keys.len());
        for number in shuffled(&mut self.rng, self.keys.len()) {
            if is_in_memory(&pool.replicas(&self.keys[number])?) {
                let key = &self.keys[number];
                return Err(failed(format!("{key} was promoted by its first read")));
            }
            let earned = now();
            self.read(pool, number)?;
            let key = &self.keys[number];
            while !is_in_memory(&pool.replicas(key)?) {
                patient(earned, || format!("{key} is not promoted"))?;
            }
            delays.push(micros(now().since(earned)));
        }
        Ok(delays)
    }

    /// Makes every object hot at once and waits until all are in memory.
    fn burst(&mut self, pool: &mut Pool) -> Result<Burst, ClusterError> {
        self.pass(pool, Tier::Disk)?;
        let decided = OfMaster::ask(&mut pool.master)?;
        let done = OfNode::ask(&mut pool.holder)?;
        let begun = now();
        let share = self.keys.len().div_ceil(READERS);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (self.keys.chunks(share))
                .map(|keys| scope.spawn(|| read_all(&pool.client, keys, self.bytes)))
                .collect();
            let mut ended = readers.into_iter().map(|reader| reader.join());
            ended.try_for_each(|end| end.map_err(|_| failed("a reader panicked")).flatten())
        })?;
        let all = self.keys.len() as u64;
        let mut master = OfMaster::ask(&mut pool.master)?;
        let mut progress = Progress::default();
        while master.promoted - decided.promoted < all {
            let ended = master.promoted - decided.promoted;
            if progress.is_over(ended) {
                return Err(failed(format!("{ended} of {all} are promoted")));
            }
            std::thread::sleep(Duration::from_micros(200));
            master = OfMaster::ask(&mut pool.master)?;
        }
        let seconds = now().since(begun).as_secs_f64();
        let node = OfNode::ask(&mut pool.holder)?;
        Ok(Burst {
            promotions: all,
            seconds,
            promotion_reads: node.promotion_reads - done.promotion_reads,
            promoted_bytes: master.promoted_bytes - decided.promoted_bytes,
            read_bytes: node.read_bytes - done.read_bytes,
        })
    }
}

fn read_all(client: &Client, keys: &[String], bytes: usize) -> Result<(), ClusterError> {
    let mut buffer = vec![0; bytes];
    keys.iter().try_for_each(|key| {
        let got = client.get_into(key.as_bytes(), &mut buffer, &GetOptions::default());
        found(got.map_err(failed)?, bytes, key)
    })
}

fn found(length: Option<usize>, bytes: usize, key: &str) -> Result<(), ClusterError> {
    match length == Some(bytes) {
        true => Ok(()),
        false => Err(failed(format!("{key} was read as {length:?} bytes"))),
    }
}

fn patient(since: Instant, what: impl FnOnce() -> String) -> Result<(), ClusterError> {
    match now().since(since) > PATIENCE {
        true => Err(failed(format!("{} after {PATIENCE:?}", what()))),
        false => Ok(()),
    }
}
