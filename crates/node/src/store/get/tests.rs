use slackwater_base::ByteSize;
use slackwater_wire::{Hold, Object, Request, Tenant};

use super::*;
use crate::{Config, PutOptions, Store};

/// A reader looked for promotions when it began, and not again. Where the master is another process, the order to promote what is
/// read comes while the bytes do: the record was read from SSD once more.
#[test]
fn a_promotion_that_begins_while_its_record_is_read_takes_those_bytes() {
    let root = tempfile::tempdir().unwrap();
    let config = Config {
        memory: ByteSize::mib(8),
        ssd: ByteSize::mib(64),
        dir: Some(root.path().to_owned()),
        promotion_threshold: 1,
        ..Config::default()
    };
    let (key, bytes) = (Key::new(b"k").unwrap(), vec![7; 100_000]);
    let store = Store::open(config.clone()).unwrap();
    let put = store.put(b"k", &bytes, &PutOptions::default());
    put.unwrap();
    store.close().unwrap();
    let store = Store::open(config).unwrap();
    let shared = store.shared();
    let description = store.describe(b"k", &Tenant::DEFAULT).unwrap().unwrap();
    let found = Object {
        version: description.version,
        bytes: bytes.len() as u64,
        checksum: Checksum::of(&bytes),
        replicas: description.replicas.iter().map(|(at, ..)| *at).collect(),
        lease: Duration::ZERO,
        guard: None,
    };
    let get = Get {
        tenant: Tenant::DEFAULT,
        keys: vec![key.clone()],
        chain: Chain::default(),
        hold: Hold::Guard,
        prefix_only: false,
    };
    let options = GetOptions::default();
    let mut sinks = [Sink::Fresh(Vec::new())];
    let mut reader = Reader::new(shared, &options, &mut sinks).answered(Some(Reply::Get(vec![
        slackwater_wire::Lookup::Found(found),
    ])));
    reader.keys.push(key);
    reader.places.push(0);
    reader.outcomes.push(Ok(None));
    let now = shared.clock.now();
    let mut flow = GetFlow::start(
        now,
        get.clone(),
        FlowOptions::once(now + Duration::from_secs(60)),
        Box::new(LocalFirst::default()),
        &mut reader.actions,
    );
    shared
        .with(|core, now| reader.act(core, now, &mut flow))
        .unwrap();
    let tried = reader.fetch();
    let looked_up = shared.with(|core, now| core.ask(now, Request::Get(get)));
    assert!(matches!(looked_up, Ok(Asked::Now(Reply::Get(_)))));
    reader.promote(&tried).unwrap();
    shared
        .with(|core, now| reader.conclude(core, now, &mut flow, tried))
        .unwrap();
    let stats = store.stats();
    assert_eq!(
        (stats.promotion_copies, stats.promotion_reads),
        (1, 0),
        "{stats:?}"
    );
}
