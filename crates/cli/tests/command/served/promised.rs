//! Replicated puts, and the death of the master that acknowledged them.

use slackwater_remote::{CallOptions, PutOptions, Stored};
use slackwater_wire::Durability;

use super::pool::{BYTES, Node, get, master};
use super::*;
use crate::place::lasting_address;

/// Nodes heard after the caller that they hold a value: the master died in between, and what was promised on two hosts was a miss
/// for the next one.
#[test]
fn a_replicated_put_that_was_answered_outlives_its_master() {
    let place = Place::new();
    let keep = ["--directory", "master"];
    let listen = lasting_address();
    let mut served = master(&place, &listen, &keep);
    // They stand for nodes of two hosts.
    let line = ["node", "--master", &served.address, "--log", "warn"];
    let line = [&line[..], &["--memory", "64MiB", "--force-tcp"]].concat();
    let ending = || {
        let mut command = place.command(&line);
        command.env("SLACKWATER_FAILPOINT", "node.ordered=kill");
        Node::launch(command)
    };
    let deaf = [ending(), ending()];
    let client = served.connect();
    let put = |name: u64, seconds| {
        let options = PutOptions {
            replicas: 2,
            durability: Durability::Replicated,
            call: CallOptions {
                deadline: Some(Duration::from_secs(seconds)),
                ..CallOptions::default()
            },
            ..PutOptions::default()
        };
        client.put(format!("k{name}").as_bytes(), &value(name, BYTES), &options)
    };
    // They end when they hear what they hold.
    let unheard = put(0, 3);
    assert!(unheard.is_err(), "{unheard:?}");
    for mut node in deaf {
        end(&mut node.child);
    }
    let _nodes = [&line, &line].map(|line| Node::launch(place.command(line)));
    for name in 1..=20 {
        assert_eq!(put(name, 60), Ok(Stored::New));
    }
    served.child.kill().unwrap();
    end(&mut served.child);
    let _served = master(&place, &listen, &keep);
    assert!((1..=20).all(|name| get(&client, name).is_some()));
}
