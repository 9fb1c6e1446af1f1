use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn classes_are_ordered_and_contain_their_lengths() {
    let mut last = (0, 0);
    for len in 1..100_000u32 {
        let class = class_of(len);
        assert!(class >= last, "{len}");
        assert!(class_floor(class.0, class.1) <= len);
        last = class;
    }
    assert_eq!(class_of(u32::MAX - 1).0, ROWS - 2);
}

#[test]
fn a_piece_is_small() {
    assert_eq!(size_of::<Piece>(), 28);
}

#[test]
fn a_held_extent_is_found_by_its_slot() {
    let mut allocator = ExtentAllocator::new(1 << 20, 4096, u64::from(u32::MAX));
    let extents: Vec<Extent> = (1..9)
        .map(|n| allocator.allocate(n * 4096).unwrap())
        .collect();
    allocator.retire(extents[3]);
    for extent in extents {
        assert_eq!(allocator.held(extent.slot()), extent);
    }
}

#[test]
fn a_freed_extent_waits_in_quarantine() {
    let mut allocator = ExtentAllocator::new(8192, 4096, 1);
    let (a, b) = (
        allocator.allocate(1).unwrap(),
        allocator.allocate(4096).unwrap(),
    );
    assert!(matches!(
        allocator.allocate(1),
        Err(AllocError::NoSpace { free: 0, .. })
    ));
    allocator.retire(a);
    assert!(!allocator.is_live(a) && allocator.is_live(b));
    assert!(matches!(
        allocator.allocate(1),
        Err(AllocError::NoSpace { .. })
    ));
    allocator.release(a);
    let again = allocator.allocate(10).unwrap();
    assert_eq!(again.offset, a.offset);
    assert_ne!(again.generation, a.generation);
    assert!(!allocator.is_live(a));
}

#[test]
#[should_panic(expected = "books of")]
fn a_second_retirement_stops_the_process() {
    let mut allocator = ExtentAllocator::new(8192, 4096, 1);
    let extent = allocator.allocate(1).unwrap();
    allocator.retire(extent);
    allocator.retire(extent);
}

#[test]
fn errors_say_whether_waiting_helps() {
    let mut allocator = ExtentAllocator::new(1 << 20, 4096, 1);
    assert_eq!(allocator.allocate(0), Err(AllocError::Empty));
    let capacity = 1 << 20;
    assert_eq!(
        allocator.allocate(capacity + 1),
        Err(AllocError::TooLarge {
            want: capacity + 4096,
            capacity
        })
    );
    assert!(matches!(
        allocator.allocate(u64::MAX),
        Err(AllocError::TooLarge { .. })
    ));
}

#[test]
fn only_free_granules_whose_turn_has_not_passed_are_taken_over_under_an_old_generation() {
    use Turn::{Ahead, InOrder};
    let mut allocator = ExtentAllocator::new(16 * 4096, 4096, 7);
    let mut check = |turn: Turn, granule: u64, granules: u64, generation: u64, taken: bool| {
        let (offset, bytes) = (granule * 4096, granules * 4096);
        let adopted = allocator.adopt(offset, bytes, generation, turn);
        let expected = taken.then_some((offset, bytes, generation));
        let found = adopted.map(|it| (it.offset, it.bytes, it.generation));
        assert_eq!(found, expected, "{granules} from {granule} {turn:?}");
    };
    check(Ahead, 5, 2, 2, true);
    check(Ahead, 9, 1, 2, true);
    check(Ahead, 4, 2, 2, false);
    check(Ahead, 6, 1, 2, false);
    check(InOrder, 1, 2, 3, true);
    check(InOrder, 2, 1, 4, false);
    check(InOrder, 0, 1, 4, false);
    check(Ahead, 0, 1, 4, false);
    check(InOrder, 3, 0, 4, false);
    check(InOrder, 3, 3, 4, false);
    check(InOrder, 3, 14, 4, false);
    check(InOrder, 3, 1, 7, false);
    check(InOrder, u64::MAX / 4096, 2, 4, false);
    check(InOrder, 3, 2, 6, true);
    check(Ahead, 8, 1, 2, true);
    check(InOrder, 7, 1, 1, true);
    check(InOrder, 12, 2, 1, true);
    check(InOrder, 10, 1, 1, false);
    check(Ahead, 11, 1, 1, false);
    check(Ahead, 15, 1, 1, true);
    check(InOrder, 14, 1, 1, true);
    for turn in [InOrder, Ahead] {
        assert_eq!(allocator.adopt(10 * 4096 + 1, 4096, 1, turn), None);
    }
    let next = allocator.allocate(2 * 4096).unwrap();
    assert_eq!((next.offset, next.generation), (10 * 4096, 7));
    let late = allocator.adopt(0, 4096, 1, InOrder);
    assert_eq!(late, None, "something was allocated");
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Retire(usize),
    Release(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1u64..100_000).prop_map(Step::Allocate),
        2 => any::<usize>().prop_map(Step::Retire),
        2 => any::<usize>().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    /// Against a map of the extents in use: no overlap, right sums, and all bytes free again at the end.
    #[test]
    fn extents_never_overlap_and_books_balance(steps in steps()) {
        let mut allocator = ExtentAllocator::new(1 << 20, 4096, 1);
        let (mut live, mut resting): (Vec<Extent>, Vec<Extent>) = (vec![], vec![]);
        for step in steps {
            match step {
                Step::Allocate(bytes) => {
                    if let Ok(extent) = allocator.allocate(bytes) {
                        prop_assert!(extent.bytes >= bytes && extent.bytes < bytes + 4096);
                        live.push(extent);
                    }
                }
                Step::Retire(pick) if !live.is_empty() => {
                    let extent = live.swap_remove(pick % live.len());
                    allocator.retire(extent);
                    resting.push(extent);
                }
                Step::Release(pick) if !resting.is_empty() => {
                    allocator.release(resting.swap_remove(pick % resting.len()));
                }
                _ => {}
            }
            let out: BTreeMap<u64, u64> = live.iter().chain(&resting).map(|e| (e.offset, e.bytes)).collect();
            let mut end = 0;
            for (offset, bytes) in &out {
                prop_assert!(*offset >= end);
                end = offset + bytes;
            }
            prop_assert!(end <= 1 << 20);
            let books = allocator.books();
            prop_assert_eq!(books.live, live.iter().map(|e| e.bytes).sum::<u64>());
            prop_assert_eq!(books.quarantined, resting.iter().map(|e| e.bytes).sum::<u64>());
            prop_assert_eq!(books.free + books.live + books.quarantined, books.capacity);
        }
        live.sort_unstable_by_key(|extent| extent.offset);
        let mut next = ExtentAllocator::new(1 << 20, 4096, allocator.next_generation());
        for extent in &live {
            let adopted = next.adopt(extent.offset, extent.bytes, extent.generation, Turn::InOrder);
            prop_assert!(adopted.is_some_and(|adopted| next.held(adopted.slot()) == adopted));
        }
        prop_assert_eq!(next.books().live, allocator.books().live);
        let again = next.allocate(1);
        prop_assert!(again.is_err() || again.is_ok_and(|new| live.iter().all(|it| it.offset != new.offset)));
        for extent in live {
            allocator.retire(extent);
            resting.push(extent);
        }
        for extent in resting {
            allocator.release(extent);
        }
        prop_assert!(allocator.allocate(1 << 20).is_ok(), "all of it in one piece again");
    }

    /// Any are taken over ahead and any are freed at any time, and each that was not is taken over in its turn.
    #[test]
    fn extents_are_taken_over_ahead_of_their_turn(
        lengths in prop::collection::vec((0u64..3, 1u64..4), 1..40),
        steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..160),
    ) {
        let mut at = 0;
        let places: Vec<(u64, u64)> = lengths.iter().map(|(hole, granules)| {
            let start = at + hole;
            at = start + granules;
            (start * 4096, granules * 4096)
        }).collect();
        let mut allocator = ExtentAllocator::new((at + 2) * 4096, 4096, 100);
        let mut said = vec![false; places.len()];
        let mut held: Vec<Extent> = Vec::new();
        let mut turn = 0;
        for (pick, frees) in steps {
            if frees && !held.is_empty() {
                let extent = held.swap_remove(pick.index(held.len()));
                allocator.retire(extent);
                allocator.release(extent);
            } else {
                // Every third is the next in order.
                let is_ahead = pick.index(3) > 0;
                let place = if is_ahead { pick.index(places.len()) } else { turn };
                let (of, order) = (places.get(place), if is_ahead { Turn::Ahead } else { Turn::InOrder });
                turn += usize::from(!is_ahead);
                if let Some((offset, bytes)) = of && !std::mem::replace(&mut said[place], true) {
                    let extent = allocator.adopt(*offset, *bytes, 1, order);
                    // Ahead of nothing that was passed.
                    prop_assert!(extent.is_some() || (is_ahead && place < turn), "{place} {order:?}");
                    held.extend(extent);
                }
            }
            for (start, index) in &allocator.gaps {
                let piece = allocator.pieces[*index as usize];
                prop_assert_eq!((piece.start, piece.state), (*start, State::Free));
            }
        }
        for (place, said) in places.iter().zip(said).skip(turn) {
            if !said {
                let extent = allocator.adopt(place.0, place.1, 1, Turn::InOrder);
                prop_assert!(extent.is_some(), "{place:?} in its turn");
                held.extend(extent);
            }
        }
        let live = held.iter().map(|extent| extent.bytes).sum::<u64>();
        prop_assert_eq!(allocator.books().live, live);
        prop_assert_eq!(allocator.books().free + live, allocator.books().capacity);
        for extent in held {
            prop_assert_eq!(allocator.held(extent.slot()), extent);
            allocator.retire(extent);
            allocator.release(extent);
        }
        prop_assert!(allocator.allocate((at + 2) * 4096).is_ok(), "all of it in one piece again");
    }
}
