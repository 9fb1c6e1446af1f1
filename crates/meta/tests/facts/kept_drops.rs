//! Drops that are kept for a node that is away: what only made room is none of a removal, and a removal is one wherever a copy
//! is left.

use slackwater_meta::{Input, Journaled, Limits, MasterConfig, Tenancy};
use slackwater_wire::*;

use crate::inventory::{Inventory, all_announced, announced, holds, mount_tiers};
use crate::world::*;

/// A node with both tiers that outlives its master, which keeps notes.
pub(crate) struct Pool {
    pub(crate) world: World,
    journal: Journaled,
    /// What the memory of the node holds, and its SSD: while the node is away no order reaches it.
    pub(crate) memory: Inventory,
    pub(crate) records: Vec<ReportedEntry>,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self::with(MasterConfig::DEFAULT.limits)
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let world = begun(Journaled::default(), limits);
        let mut pool = Self {
            world,
            journal: Journaled::default(),
            memory: Inventory::default(),
            records: Vec::new(),
        };
        mount_tiers(&mut pool.world, &[MEMORY, DISK], Incarnation(1));
        announced(&mut pool.world);
        all_announced(&mut pool.world, Vec::new());
        pool
    }

    pub(crate) fn put(&mut self) -> Version {
        let version = self.world.put("a", BLOCK);
        self.memory.learn(&mut self.world);
        version
    }

    pub(crate) fn put_on_both(&mut self) {
        let version = self.put();
        offload_all(&mut self.world);
        self.records.push(reported("a", version.0, BLOCK));
    }

    pub(crate) fn hide(&mut self) {
        self.world.input(Input::NodeAway(NODE));
        self.world.pass(MasterConfig::DEFAULT.absence.hidden_after);
    }

    /// The memory copies make room, and the node hears nothing of it.
    pub(crate) fn make_room(&mut self) {
        let work = JobWork::Drain {
            places: vec![NODE.to_string()],
            targets: Vec::new(),
            disks: false,
        };
        let drain = self.world.ask(Request::StartJob(JobSpec {
            work,
            concurrency: 8,
            bytes_per_second: None,
            time: None,
        }));
        assert!(matches!(drain, Reply::Job(_)), "{drain:?}");
        self.world.pass(std::time::Duration::from_millis(100));
        assert_eq!(self.world.found("a").replicas.len(), 1, "it made room");
    }

    /// What the master knows is gone, and the next one has its notes.
    pub(crate) fn restart(&mut self) {
        let notes = self.world.master.take_notes();
        notes.iter().for_each(|note| self.journal.apply(note));
        let now = self.world.now;
        let limits = self.world.master.config().limits.clone();
        self.world = begun(self.journal.clone(), limits);
        self.world.now = now;
        self.world.master.start_above(Version(1 << 40));
    }

    pub(crate) fn lose(&mut self) {
        self.world.input(Input::NodeLost(NODE));
    }

    /// The node is back, and says what it has.
    pub(crate) fn comes_back(&mut self) {
        mount_tiers(&mut self.world, &[MEMORY, DISK], Incarnation(1));
        holds(&mut self.world, self.memory.entries());
        announced(&mut self.world);
        all_announced(&mut self.world, self.records.clone());
    }

    /// The process of the node ended, and the next one has its SSD.
    pub(crate) fn begins_anew(&mut self, segments: &[SegmentId]) {
        mount_tiers(&mut self.world, segments, Incarnation(2));
        announced(&mut self.world);
        all_announced(&mut self.world, self.records.clone());
    }
}

pub(crate) type End = (&'static str, fn(&mut Pool));
/// What ends between the node and its master.
pub(crate) const ENDS: [End; 2] = [("given up", Pool::lose), ("restarted", Pool::restart)];

fn begun(journal: Journaled, limits: Limits) -> World {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        limits,
        tenancy: Tenancy::On,
        ..MasterConfig::DEFAULT
    });
    world.obedient = false;
    let now = world.now;
    world.master.restore(now, journal);
    world
}

/// Does this to a node that has the value, and brings the node back: after it was given up, or to another master. The value is
/// there, unless it was removed meanwhile.
fn check(what: &str, leaves: fn(&mut Pool)) {
    for (end, ends) in ENDS {
        for is_removed in [false, true] {
            let mut pool = Pool::new();
            leaves(&mut pool);
            if is_removed {
                let call = pool.world.send(ME, remove("a", true));
                let reply = pool.world.reply(call);
                assert!(reply.is_some(), "{what}, {end}: nothing waits for the node");
            }
            ends(&mut pool);
            pool.comes_back();
            assert_eq!(pool.world.has("a"), !is_removed, "{what}, {end}");
        }
    }
}

/// A drop that was kept for a hidden node counted as the removal of its version, whatever else there was of it: the node came
/// back, after it had been given up or to another master, and its last copy of a living value was refused.
#[test]
fn what_leaves_a_node_that_is_away_does_not_end_the_value() {
    check("an offload expired", |pool| {
        pool.put();
        pool.hide();
        let MasterConfig {
            absence, offload, ..
        } = MasterConfig::DEFAULT;
        pool.world.pass(offload.timeout - absence.hidden_after);
        assert_eq!(pool.world.master.metrics().offload.expired, 1);
        assert!(pool.world.master.has_node(NODE), "it is not given up yet");
    });
    check("the quota of SSD shrank", |pool| {
        pool.put_on_both();
        pool.hide();
        let quota = Request::SetQuota {
            tenant: Tenant::DEFAULT,
            memory_bytes: 16 * BLOCK,
            disk_bytes: 1,
        };
        assert_eq!(pool.world.ask(quota), Reply::Done);
        assert_eq!(pool.world.master.metrics().disk_evictions, 1);
    });
    check("the end of a put was repeated", |pool| {
        pool.put_on_both();
        pool.make_room();
        let version = Version(pool.records[0].entry.version.0);
        pool.hide();
        let again = pool.world.end(ME, "a", version);
        assert_eq!(again, Reply::Each(vec![Ok(())]));
    });
    check("one of two extents was of no use", |pool| {
        pool.put();
        pool.restart();
        mount_tiers(&mut pool.world, &[MEMORY, DISK], Incarnation(1));
        let mut twice = pool.memory.entries();
        let mut again = twice[0].clone();
        again.extent.offset += BLOCK;
        twice.push(again);
        holds(&mut pool.world, twice);
        announced(&mut pool.world);
        all_announced(&mut pool.world, Vec::new());
        pool.hide();
    });
}

/// The loss of its memory cancelled the offloads of a node, and each was taken for the removal of a record when the SSD was
/// lost after it: the node had only been cut off.
#[test]
fn what_a_lost_node_was_to_write_is_not_dead() {
    let check = |what: &str, comes_back: fn(&mut Pool)| {
        for is_removed in [false, true] {
            let mut pool = Pool::new();
            let version = pool.put();
            assert_eq!(offloads(&mut pool.world).len(), 1);
            if is_removed {
                pool.world.send(ME, remove("a", true));
            }
            // It is written, and the report is not heard.
            pool.records.push(reported("a", version.0, BLOCK));
            comes_back(&mut pool);
            assert_eq!(pool.world.has("a"), !is_removed, "{what}");
            if !is_removed {
                let drops = |order: &Order| matches!(order, Order::Drop(_)).then_some(());
                assert_eq!(pool.world.taken(drops), [], "{what}: its record stays");
            }
        }
    };
    check("it was cut off", |pool| {
        pool.lose();
        pool.comes_back();
    });
    check("its memory was cut off alone", |pool| {
        pool.records.clear();
        pool.lose();
        pool.comes_back();
    });
    check("it restarted, memory first", |pool| {
        pool.begins_anew(&[MEMORY, DISK]);
    });
    check("it restarted, SSD first", |pool| {
        pool.begins_anew(&[DISK, MEMORY]);
    });
}

/// What a node announces that was forgotten is dead of that node alone: another one, which is known and is not back yet, may have
/// the last copy of the same value.
#[test]
fn what_is_kept_for_one_node_to_forget_is_no_word_to_another() {
    const OTHER: NodeId = NodeId(77);
    const OTHERS: SegmentId = SegmentId(70);
    let journal = Journaled {
        forgot: true,
        nodes: [(OTHER, true)].into(),
        ..Journaled::default()
    };
    let mut world = begun(journal, MasterConfig::DEFAULT.limits);
    world.master.start_above(Version(1 << 40));
    let record = reported("a", 5, BLOCK);
    mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(1));
    announced(&mut world);
    all_announced(&mut world, vec![record.clone()]);
    let stale = world.master.metrics().records_stale;
    assert_eq!(stale, 1, "nothing is believed of a node that was forgotten");
    world.mount(OTHER, OTHERS, SegmentKind::Disk, 16 * BLOCK);
    let (segment, entries) = (OTHERS, vec![record]);
    world.report(OTHER, Report::Announce { segment, entries });
    assert!(world.has("a"));
}

/// A node was lost that had yet to do what a removal waited for, and the master restarted before it was back.
#[test]
fn what_a_lost_node_was_to_forget_is_owed_by_the_next_master() {
    let mut pool = Pool::new();
    pool.put_on_both();
    let call = pool.world.send(ME, remove("a", true));
    assert_eq!(pool.world.reply(call), None, "the node is to forget it");
    pool.lose();
    pool.restart();
    pool.comes_back();
    assert!(!pool.world.has("a"));
}

/// The last copies of a value were cleared from the segments of a node by name: the answer did not wait until the node had
/// forgotten what it had in memory, nor was it owed that, and the next master was told of the value.
#[test]
fn what_is_cleared_everywhere_is_dead_and_what_is_left_lives() {
    let clear = |segment: &SegmentId| {
        Request::ReplicaClear(ReplicaClear {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")],
            segment: Some(format!("segment-{segment}")),
        })
    };
    let check = |segments: &[SegmentId], is_there: bool| {
        for (end, ends) in ENDS {
            let mut pool = Pool::new();
            pool.put_on_both();
            pool.hide();
            for segment in segments {
                let done = pool.world.ask(clear(segment));
                assert_eq!(done, Reply::Each(vec![Ok(())]), "{segments:?}");
            }
            assert_eq!(pool.world.has("a"), is_there);
            ends(&mut pool);
            pool.comes_back();
            assert_eq!(pool.world.has("a"), is_there, "{segments:?}, {end}");
        }
    };
    check(&[MEMORY], true);
    check(&[DISK], true);
    check(&[MEMORY, DISK], false);
    check(&[DISK, MEMORY], false);
    let mut pool = Pool::new();
    pool.put_on_both();
    pool.world.send(ME, clear(&DISK));
    pool.world.obey();
    let call = pool.world.send(ME, clear(&MEMORY));
    assert_eq!(
        pool.world.reply(call),
        None,
        "the node may still announce it"
    );
    pool.world.obey();
    assert_eq!(pool.world.reply(call), Some(Reply::Each(vec![Ok(())])));
}

/// What a segment was cleared of waited for its node when another one came with the same value: that counted as removed there too.
#[test]
fn a_node_that_comes_is_owed_no_copy_that_another_one_is_to_forget() {
    const OTHER: NodeId = NodeId(77);
    const OTHERS: SegmentId = SegmentId(70);
    let mut pool = Pool::new();
    pool.put_on_both();
    let clear = Request::ReplicaClear(ReplicaClear {
        tenant: Tenant::DEFAULT,
        keys: vec![key("a")],
        segment: Some(format!("segment-{DISK}")),
    });
    let call = pool.world.send(ME, clear);
    assert_eq!(pool.world.reply(call), None, "the node is to forget it");
    (pool.world).mount(OTHER, OTHERS, SegmentKind::Disk, 16 * BLOCK);
    let (segment, entries) = (OTHERS, pool.records.clone());
    pool.world
        .report(OTHER, Report::Announce { segment, entries });
    assert_eq!(pool.world.found("a").replicas.len(), 2);
}

/// An older value does not come back with a node that was away when it was replaced, also where the newer one is lost before that
/// node has said what it holds, to a master that has heard of the newer one from its node alone.
#[test]
fn what_was_replaced_is_dead_though_the_newer_value_is_lost() {
    const OTHER: NodeId = NodeId(77);
    const OTHERS: [SegmentId; 2] = [SegmentId(70), SegmentId(71)];
    for (end, ends) in ENDS {
        let mut pool = Pool::new();
        pool.put_on_both();
        pool.hide();
        let mount = |pool: &mut Pool, at: usize, kind| {
            (pool.world).mount(OTHER, OTHERS[at], kind, 16 * BLOCK);
        };
        mount(&mut pool, 0, SegmentKind::Memory);
        mount(&mut pool, 1, SegmentKind::Disk);
        let version = pool.world.put("a", BLOCK);
        ends(&mut pool);
        if !pool.world.master.has_node(OTHER) {
            mount(&mut pool, 1, SegmentKind::Disk);
        }
        let (segment, entries) = (OTHERS[1], vec![reported("a", version.0, BLOCK)]);
        (pool.world).report(OTHER, Report::Announce { segment, entries });
        assert_eq!(pool.world.found("a").version, version, "{end}");
        pool.world.input(Input::NodeLost(OTHER));
        assert!(!pool.world.has("a"), "{end}");
        pool.comes_back();
        assert!(!pool.world.has("a"), "{end}");
    }
}
