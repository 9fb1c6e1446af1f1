//! Where a node checks what was put: on the loop that hears its master, or on its workers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use slackwater_mq::{Admission, ListenOptions, RequestOptions, Workers};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_transfer::{Extent, Gate, Rights};
use slackwater_wait::{Event, Site, Waiting};
use slackwater_wire::{
    CheckWritten, Epoch, ExtentRef, Incarnation, NodeHello, NodeWelcome, Written, WrittenChecked,
    body,
};

use super::*;
use crate::region::{Access as Use, Grant};
use crate::serve::minter::Minter;

const BYTES: u64 = 1 << 16;
const FLOOR: u64 = 1000;
const EPOCH: Epoch = Epoch(1);
const LONG: Duration = Duration::from_secs(60);

/// A node, and its master, which the test plays.
struct Pool {
    master: Running,
    link: ConnectionId,
    hello: NodeHello,
    shared: Arc<Supervised>,
    uplink: Arc<Uplink>,
    memory: Arc<ServedMemory>,
    messages: slackwater_mq::Mq,
    life: Option<JoinHandle<()>>,
}

impl Pool {
    fn start(file: Option<FileMemory>) -> Self {
        Self::unknown(0, file).0
    }

    /// A node whose first hellos the master does not know what to make of, and those hellos.
    fn unknown(times: usize, file: Option<FileMemory>) -> (Self, Vec<NodeHello>) {
        let (greeted, greetings) = channel();
        let left = AtomicUsize::new(times);
        let mut builder = Builder::new(Options::default());
        let inline = Category {
            run: Run::Inline,
            ..Category::default()
        };
        builder.category("nodes", inline).unwrap();
        builder.command("nodes.reports", |_: &Call<'_>| {}).unwrap();
        let hello = move |call: &Call<'_>| {
            let less = |left: usize| left.checked_sub(1);
            let attached = match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
                Ok(_) => Attached::Unknown,
                Err(_) => Attached::New { floor: FLOOR },
            };
            let welcome = NodeWelcome {
                epoch: EPOCH,
                attached,
                reads: body::FORMAT,
            };
            call.reply([body::encode(&welcome).unwrap()]).unwrap();
            let hello: NodeHello = body::decode(call.part(0).unwrap()).unwrap();
            greeted.send((call.from(), hello)).unwrap();
        };
        builder.request_command("nodes.hello", hello).unwrap();
        let master = builder.start().unwrap();
        let anybody = ListenOptions {
            admission: Admission::Everybody(Level::Admin),
            encrypted: false,
            plain_anywhere: false,
            access: UnixAccess::default(),
            beside: false,
        };
        let loopback = Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into());
        let listening = master.listen(&loopback, &anybody).unwrap();
        let config = Config {
            memory: ByteSize::mib(16),
            ssd: ByteSize(0),
            ..Config::default()
        };
        let options = NodeOptions {
            master: Address::of(&listening, None),
            file,
            ..NodeOptions::default()
        };
        let (told, welcomed) = channel();
        let told = move |_, attached| told.send(attached).unwrap();
        let shared = Arc::new(Supervised::new(config, options, told).unwrap());
        let life = Life::begin(&shared).unwrap();
        let (uplink, memory) = (Arc::clone(&life.uplink), Arc::clone(&life.memory));
        let (messages, other) = (life.messages.handle(), Arc::clone(&shared));
        let run = move || {
            assert_eq!(life.run(&other), Ended::Stopping);
            life.end().unwrap();
        };
        let life = Some(std::thread::spawn(run));
        let unknown = (0..times).map(|_| greetings.recv_timeout(LONG).unwrap().1);
        let unknown = unknown.collect();
        let (link, hello) = greetings.recv_timeout(LONG).unwrap();
        assert_eq!(welcomed.recv_timeout(LONG), Ok(Ok(())));
        let pool = Self {
            master,
            link,
            hello,
            shared,
            uplink,
            memory,
            messages,
            life,
        };
        (pool, unknown)
    }

    /// The extent that a put was granted.
    fn granted(&self, number: u64) -> Extent {
        Extent {
            offset: number * BYTES,
            bytes: BYTES,
            generation: FLOOR + number,
        }
    }

    /// Does what the writer of that put does.
    fn write(&self, number: u64) {
        let region = &self.memory.store.segment().region;
        // SAFETY: nobody else touches the extent: the test's put is the only one.
        let grant = unsafe { Grant::new(region, number * BYTES, BYTES, Use::Write) };
        let _ = grant.unwrap().copy_in(&[7; BYTES as usize]);
    }

    /// Asks the node about that put, as its master does when the put ends.
    fn check(&self, number: u64) -> Receiver<Result<(), ErrorCode>> {
        let Extent {
            offset,
            bytes,
            generation,
        } = self.granted(number);
        let mount = &self.hello.segments[0];
        let written = Written {
            extent: ExtentRef {
                segment: mount.segment,
                incarnation: mount.incarnation,
                offset,
                bytes,
                generation,
            },
            bytes,
            checksum: slackwater_pool::copy::checksum(&[7; BYTES as usize]),
        };
        let check = CheckWritten {
            epoch: EPOCH,
            written: vec![written],
        };
        let (heard, answer) = channel();
        let hear = move |answer: Result<slackwater_mq::Answer, _>| {
            let answer = answer.unwrap();
            let checked: WrittenChecked = body::decode(answer.part(0).unwrap()).unwrap();
            let _ = heard.send(checked.result);
        };
        let options = RequestOptions {
            timeout: Some(LONG),
            ..RequestOptions::default()
        };
        let body = body::encode(&check).unwrap();
        let master = self.master.handle();
        master.request(self.link, "bytes.check", [body], &options, hear);
        answer
    }

    /// Keeps all workers of the node busy until what it returns is dropped.
    fn keep_workers(&self) -> Vec<Sender<()>> {
        let workers = 0..Workers::default().general;
        let kept = workers.map(|_| {
            let ((began, begun), (release, released)) = (channel(), channel());
            let work = move || {
                began.send(()).unwrap();
                let _ = released.recv();
            };
            self.messages.inject(ON_WORKERS, 0, work).unwrap();
            begun.recv_timeout(LONG).unwrap();
            release
        });
        kept.collect()
    }

    /// Waits until a request waits for a worker.
    fn until_one_waits(&self) {
        static SITE: Site = Site::new("test, fact");
        let waiting = Waiting::at(&SITE).until(now() + LONG);
        let changed: &Event = self.messages.metrics().changed();
        loop {
            let seen = changed.seen();
            if self.messages.waiting_commands().iter().sum::<usize>() == 1 {
                return;
            }
            changed.wait(seen, &waiting).unwrap();
        }
    }

    fn admits_at(&self, at: slackwater_base::Instant) -> bool {
        self.uplink.at_once.lock().unwrap().admits(at, &[])
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end();
        let life = self.life.take().unwrap();
        // It has said why.
        let _ = life.join();
    }
}

/// A node kept its key for as long as it lived: a master that had lost its epoch could go on to permit what it liked.
#[test]
fn a_master_that_takes_a_node_anew_gets_another_key_and_that_of_the_one_before_permits_no_write() {
    let (pool, unknown) = Pool::unknown(2, None);
    let home = pool.memory.transfers.engine.home();
    let may = |hello: &NodeHello, rights| {
        let minter = Minter::of(&hello.memory);
        let extent = pool.granted(1);
        let capability = minter.mint(extent, rights, LONG, None);
        let range = (extent.offset, extent.bytes);
        let access = home.admit(&capability, rights, range, Incarnation(0));
        access.map(drop).is_ok()
    };
    let (write, read) = (Rights::WRITE, Rights::READ);
    assert!(may(&pool.hello, write) && may(&pool.hello, read));
    let [oldest, before] = &unknown[..] else {
        panic!("two hellos")
    };
    assert!(!may(before, write), "it permits no write any more");
    assert!(may(before, read), "reads that it permitted go on");
    assert!(
        !may(oldest, write) && !may(oldest, read),
        "that end is over"
    );
    // What the node permits itself is made with the key of now.
    let secret = |hello: &NodeHello| hello.memory.secret.0;
    assert_eq!(secret(&pool.hello), home.capability_secret());
    let extent = pool.granted(2);
    let own = pool.memory.minter().mint(extent, write, LONG, None);
    let range = (extent.offset, extent.bytes);
    assert!(home.admit(&own, write, range, Incarnation(0)).is_ok());
}

/// Nothing would have told if the loop had checked no put, or all of them without a rest: the tests asked about no values.
#[test]
fn a_put_is_checked_on_the_loop_that_then_rests() {
    let pool = Pool::start(None);
    pool.write(0);
    let begun = now();
    assert!(pool.admits_at(begun));
    let kept = pool.keep_workers();
    let answer = pool.check(0).recv_timeout(LONG);
    assert_eq!(answer, Ok(Ok(())), "no worker was free");
    assert!(!pool.admits_at(begun));

    let hour = Duration::from_secs(3600);
    let mut at_once = pool.uplink.at_once.lock().unwrap();
    at_once.took(now(), now() + hour);
    drop(at_once);
    let answer = pool.check(0);
    pool.until_one_waits();
    drop(kept);
    assert_eq!(answer.recv_timeout(LONG), Ok(Ok(())));
}

/// The other half of the story: a check that has to wait for a write is a worker's, and has taken time of the loop.
#[test]
fn a_put_that_is_still_written_is_checked_by_a_worker() {
    let pool = Pool::start(None);
    pool.write(0);
    let gate = &pool.memory.store.served().unwrap().gate;
    let write = gate.begin(pool.granted(0), Rights::WRITE).unwrap();
    let kept = pool.keep_workers();
    let begun = now();
    let answer = pool.check(0);
    pool.until_one_waits();
    assert!(!pool.admits_at(begun));
    gate.end(write);
    drop(kept);
    assert_eq!(answer.recv_timeout(LONG), Ok(Ok(())));
}

/// A node that lends a piece of a file on a disk checked puts there on its loop, which waited for the disk where the kernel
/// had taken the pages from memory: its master's orders waited too.
#[test]
fn a_put_in_a_file_on_a_disk_is_checked_by_a_worker() {
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let path = folder.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(ByteSize::mib(16).0).unwrap();
        let pool = Pool::start(Some(FileMemory { path, offset: 0 }));
        pool.write(0);
        let kept = pool.keep_workers();
        let answer = pool.check(0);
        // Where temporary files are, is memory on some machines.
        if !pool.shared.piece.as_ref().unwrap().is_in_memory() {
            pool.until_one_waits();
            drop(kept);
        }
        assert_eq!(answer.recv_timeout(LONG), Ok(Ok(())));
    }
}
