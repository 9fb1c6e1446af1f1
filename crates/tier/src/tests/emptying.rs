//! What is written again of a file that is emptied.

use super::*;

/// Records that fill five files.
const KEYS: u8 = 36;

/// A world in which every other record of five files is gone, and those whose keys are below `worthless` are dropped when the master
/// hears that they are to be written again; and what was copied when three files were emptied.
fn emptied(worthless: u8) -> (World, u64) {
    let log = LogConfig {
        reclaim_answer_wait: Duration::from_millis(2),
        ..small_log(1 << 20)
    };
    let mut world = World::new(log, 0);
    let put = |world: &mut World, key: u8| {
        world.put(&[key], 1, 8192);
        world.rest();
    };
    (0..KEYS).for_each(|key| put(&mut world, key));
    world.emptying.clear();
    world.worthless = (0..worthless).map(|key| vec![key]).collect();
    let before = world.agent.stats();
    world.remove_all((0..KEYS).step_by(2).map(|key| (vec![key], 1)));
    world.rest();
    for key in KEYS.. {
        if world.agent.stats().files_reclaimed >= before.files_reclaimed + 3 {
            break;
        }
        put(&mut world, key);
    }
    let copied = world.agent.stats().copied_bytes - before.copied_bytes;
    world.check(&format!("{worthless} worthless"));
    (world, copied)
}

/// A full SSD wrote forward what was hardly better than what it evicted next: a tenth of its writes, and as much read for them, on
/// a trace of conversations.
#[test]
fn what_the_master_drops_when_it_hears_of_it_is_neither_read_nor_written_again() {
    let (world, copied) = emptied(0);
    let said = world.emptying.len() as u64;
    assert!(said > 8 && copied == said * 8192, "{said} said, {copied}");
    let alive = |entry: &DiskEntry| {
        !(0..KEYS)
            .step_by(2)
            .any(|dead| entry.key.as_bytes() == [dead])
    };
    assert!(world.emptying.iter().all(alive), "the dead are not said");

    let (world, copied) = emptied(255);
    assert!(world.emptying.len() > 8, "they were said");
    assert_eq!(copied, 0, "the answer comes before the first read");

    let few = world.emptying[4].key.as_bytes()[0];
    let (world, copied) = emptied(few);
    let kept = |entry: &&DiskEntry| entry.key.as_bytes()[0] >= few;
    let kept = world.emptying.iter().filter(kept).count() as u64;
    assert!(kept > 0 && kept < world.emptying.len() as u64);
    assert_eq!(copied, kept * 8192, "the others are");
}
