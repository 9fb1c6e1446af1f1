//! What a master with a directory knows again after a restart.

use slackwater_node::Operated;
use slackwater_wire::{JobSpec, JobStatus, JobWork};

use super::*;

/// The number of a drain was unknown to the next master.
#[test]
fn jobs_are_known_to_the_next_master() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        memory: ByteSize(MEMORY),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = MasterOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        directory: Some(folder.path().to_owned()),
        ..MasterOptions::default()
    };
    let begin = || MasterServer::start(&config, &options).unwrap();
    let master = begin();
    let options = NodeOptions {
        master: Address::tcp(master.address()),
        ..NodeOptions::default()
    };
    let (joined, waits) = channel();
    let joined = move |_, taken| joined.send(taken).unwrap();
    let node = NodeServer::start(config.clone(), options, joined).unwrap();
    assert_eq!(waits.recv_timeout(LONG), Ok(Ok(())));
    let drain = Request::StartJob(JobSpec {
        work: JobWork::Drain {
            places: vec![node.node().to_string()],
            targets: Vec::new(),
            disks: false,
        },
        concurrency: 0,
        bytes_per_second: None,
        time: None,
    });
    let Ok(Reply::Job(begun)) = master.operated().ask("drain", drain) else {
        panic!("it is begun");
    };
    let wait = Request::AwaitJob { job: begun.job };
    master.operated().ask("wait", wait).unwrap();
    drop(node);
    drop(master);
    let next = begin();
    let query = Request::QueryJob { job: begun.job };
    let Ok(Reply::Job(known)) = next.operated().ask("query", query) else {
        panic!("it is known");
    };
    let expected = (begun.spec, JobStatus::Succeeded);
    assert_eq!((known.spec, known.status), expected);
}
