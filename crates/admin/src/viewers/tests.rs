//! Streams under a clock that the tests own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{
    Description, ErrorCode, JobId, JobSpec, JobState, Key, List, Listed, MetricsFormat, QuotaState,
    Tenant,
};

use super::*;
use crate::Segment;
use crate::guard::Token;

/// A source that counts how often it is asked, and has nothing to tell.
#[derive(Default)]
struct Counted {
    asked: AtomicU64,
    broken: AtomicBool,
    /// How long a sample takes, by the clock of the machine.
    takes: Mutex<Duration>,
    quotas: Vec<QuotaState>,
}

impl Counted {
    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn none<T>() -> Result<T, Failure> {
    Err(ErrorCode::ObjectNotFound.into())
}

impl Source for Counted {
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
    fn epoch(&self) -> u64 {
        1
    }
    fn address(&self) -> String {
        String::new()
    }
    fn metrics(&self, _: MetricsFormat) -> String {
        String::new()
    }
    fn kv_events(&self) -> KvEventCounts {
        KvEventCounts::default()
    }
    fn stats(&self) -> Result<Value, Failure> {
        std::thread::sleep(*self.takes.lock().unwrap());
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(Failure::new(
                ErrorCode::InternalError,
                "a \"part\" is broken",
            ));
        }
        Ok(json!({ "asked": asked + 1 }))
    }
    fn books(&self) -> Result<Value, Failure> {
        none()
    }
    fn segments(&self) -> Result<Vec<Segment>, Failure> {
        Ok(Vec::new())
    }
    fn list(&self, _: List) -> Result<Listed, Failure> {
        none()
    }
    fn describe(&self, _: &Tenant, _: &Key) -> Result<Option<Description>, Failure> {
        none()
    }
    fn explain(&self, _: &Tenant, _: &Key) -> Result<Option<Value>, Failure> {
        none()
    }
    fn decisions(&self) -> Result<Value, Failure> {
        Ok(json!({ "made": 0, "latest": [] }))
    }
    fn hottest(&self) -> Result<Value, Failure> {
        Ok(json!({ "reads": 0, "chains": [] }))
    }
    fn quotas(&self) -> Result<Vec<QuotaState>, Failure> {
        Ok(self.quotas.clone())
    }
    fn set_quota(&self, _: &Tenant, _: u64, _: u64) -> Result<(), Failure> {
        none()
    }
    fn delete_quota(&self, _: &Tenant) -> Result<(), Failure> {
        none()
    }
    fn start_job(&self, _: JobSpec) -> Result<JobState, Failure> {
        none()
    }
    fn query_job(&self, _: JobId) -> Result<JobState, Failure> {
        none()
    }
    fn cancel_job(&self, _: JobId) -> Result<JobState, Failure> {
        none()
    }
    fn jobs(&self) -> Result<Vec<JobState>, Failure> {
        Ok(Vec::new())
    }
    fn reload(&self) -> Result<(), Failure> {
        none()
    }
    fn remove(&self, _: &Tenant, _: &Key, _: bool) -> Result<(), Failure> {
        none()
    }
    fn remove_all(&self, _: Option<&Tenant>, _: bool) -> Result<u64, Failure> {
        none()
    }
}

struct World {
    source: Arc<Counted>,
    token: TokenInForce,
    end: watch::Sender<bool>,
    viewers: Arc<Viewers>,
}

impl World {
    fn new() -> Self {
        let (source, token) = (Arc::new(Counted::default()), TokenInForce::default());
        let (end, ended) = watch::channel(false);
        let viewers = Viewers::new(Arc::clone(&source) as Arc<dyn Source>, token.clone(), ended);
        Self {
            source,
            token,
            end,
            viewers,
        }
    }

    fn join(&self) -> Viewer {
        self.viewers.join(HeaderMap::new()).unwrap()
    }
}

/// Which sample an event holds.
fn asked(event: &Bytes) -> u64 {
    let text = std::str::from_utf8(event).unwrap();
    let data = text.strip_prefix("event: sample\ndata: ").unwrap();
    let sample: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
    sample["stats"]["asked"].as_u64().unwrap()
}

#[test]
fn samples_take_a_small_share_of_the_time() {
    let check = |took: Duration, pause: Duration| assert_eq!(pause_after(took), pause, "{took:?}");
    check(Duration::ZERO, INTERVAL);
    check(INTERVAL / SHARE, INTERVAL);
    check(INTERVAL, INTERVAL * SHARE);
}

/// Samples were timed by another clock than their pauses, so that a busy machine made the pauses of these tests longer.
#[tokio::test(start_paused = true)]
async fn samples_are_timed_by_the_clock_of_their_pauses() {
    let world = World::new();
    *world.source.takes.lock().unwrap() = 2 * INTERVAL / SHARE;
    let mut viewer = world.join();
    viewer.next().await.unwrap();
    let begun = tokio::time::Instant::now();
    viewer.next().await.unwrap();
    assert_eq!(begun.elapsed(), INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn one_sample_is_for_all_who_look() {
    let world = World::new();
    let mut viewers = [world.join(), world.join(), world.join()];
    for number in 1..=4 {
        let begun = tokio::time::Instant::now();
        for viewer in &mut viewers {
            assert_eq!(asked(&viewer.next().await.unwrap()), number);
        }
        assert_eq!(world.source.asked(), number);
        assert!(number == 1 || begun.elapsed() >= INTERVAL);
    }
    // One who comes later is told at once how things are.
    let begun = tokio::time::Instant::now();
    assert_eq!(asked(&world.join().next().await.unwrap()), 4);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn nobody_who_looks_costs_nothing() {
    let world = World::new();
    let hour = Duration::from_secs(3600);
    tokio::time::sleep(hour).await;
    assert_eq!(world.source.asked(), 0);
    let (mut first, second) = (world.join(), world.join());
    first.next().await.unwrap();
    drop((first, second));
    tokio::time::sleep(hour).await;
    assert_eq!(world.source.asked(), 1);
    // Those who come next are not told what was true an hour ago; the second of them had been.
    let (mut first, mut second) = (world.join(), world.join());
    assert_eq!(asked(&second.next().await.unwrap()), 2);
    assert_eq!(asked(&first.next().await.unwrap()), 2);
}

/// A client that took one event and came again had one more sample taken each time, hundreds in a second.
#[tokio::test(start_paused = true)]
async fn who_comes_and_goes_has_no_more_samples_taken() {
    let world = World::new();
    for number in 1..=3 {
        let begun = tokio::time::Instant::now();
        for _ in 0..10 {
            assert_eq!(asked(&world.join().next().await.unwrap()), number);
            // The sampler learns that nobody looks.
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(world.source.asked(), number);
        tokio::time::sleep_until(begun + INTERVAL).await;
    }
    // Who comes before the next sample is due is told the last one, and stays for the next.
    let begun = tokio::time::Instant::now();
    let mut viewer = world.join();
    viewer.next().await.unwrap();
    drop(viewer);
    tokio::task::yield_now().await;
    let mut viewers = [world.join(), world.join()];
    for number in 4..=6 {
        for viewer in &mut viewers {
            assert_eq!(asked(&viewer.next().await.unwrap()), number);
        }
        assert_eq!(world.source.asked(), number);
        assert!(begun.elapsed() >= INTERVAL * (number as u32 - 4));
    }
}

/// Each `top` had samples of its own taken, beside those of the pages.
#[tokio::test(start_paused = true)]
async fn who_asks_once_shares_the_samples_of_those_who_look() {
    let world = World::new();
    // Nobody looks: one sample a second is enough for all who ask.
    for number in 1..=3 {
        for _ in 0..10 {
            assert_eq!(asked(&world.viewers.latest().await.text), number);
        }
        assert_eq!(world.source.asked(), number);
        tokio::time::sleep(INTERVAL).await;
    }
    // Who asks at the same time waits for one sample.
    let ask = |_| {
        let viewers = Arc::clone(&world.viewers);
        tokio::spawn(async move { viewers.latest().await })
    };
    for answer in (0..10).map(ask).collect::<Vec<_>>() {
        assert_eq!(asked(&answer.await.unwrap().text), 4);
    }
    assert_eq!(world.source.asked(), 4);
    // A viewer that comes is told the same, and who asks while it looks is told what it is told.
    let mut viewer = world.join();
    for number in 4..=8 {
        assert_eq!(asked(&viewer.next().await.unwrap()), number);
        assert_eq!(asked(&world.viewers.latest().await.text), number);
        assert_eq!(world.source.asked(), number);
    }
    // One who asks is no viewer: nothing is sampled when the viewer has gone.
    drop(viewer);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.source.asked(), 8);
}

/// Who asked once was told that no sample could be taken, and not why.
#[tokio::test(start_paused = true)]
async fn a_sample_that_fails_is_told_with_its_reason() {
    let world = World::new();
    let mut viewer = world.join();
    viewer.next().await.unwrap();
    world.source.broken.store(true, Ordering::Relaxed);
    let told = viewer.next().await.unwrap();
    let told = std::str::from_utf8(&told).unwrap();
    let data = told.strip_prefix("event: failure\ndata: ").unwrap();
    let data: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!(data["error_message"], "a \"part\" is broken");
    let answer = sample(State(Arc::clone(&world.viewers)), RawQuery(None)).await;
    let failure = answer.unwrap_err();
    assert_eq!(failure.message, "a \"part\" is broken");
    world.source.broken.store(false, Ordering::Relaxed);
    assert_eq!(asked(&viewer.next().await.unwrap()), 3);
    let answer = sample(State(Arc::clone(&world.viewers)), RawQuery(None)).await;
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn viewers_are_bounded_and_a_place_comes_back() {
    let world = World::new();
    let mut viewers: Vec<Viewer> = (0..VIEWERS_MAX).map(|_| world.join()).collect();
    assert!(world.viewers.join(HeaderMap::new()).is_none());
    viewers.pop();
    viewers.push(world.join());
    assert!(world.viewers.join(HeaderMap::new()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slow_viewer_skips_samples_and_one_that_takes_none_is_given_up() {
    let world = World::new();
    let (mut quick, mut slow, mut silent) = (world.join(), world.join(), world.join());
    silent.next().await.unwrap();
    for round in 1..=3 {
        for number in 1..=UNTAKEN_MAX {
            assert_eq!(
                asked(&quick.next().await.unwrap()),
                (round - 1) * UNTAKEN_MAX + number
            );
        }
        assert_eq!(asked(&slow.next().await.unwrap()), round * UNTAKEN_MAX);
    }
    assert!(silent.next().await.is_none());
    drop((quick, slow));
    // Neither does a silent one keep the sampler at work.
    let before = world.source.asked();
    let _silent = world.join();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(world.source.asked() - before <= UNTAKEN_MAX + 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_server_its_token_and_its_time() {
    let world = World::new();
    let mut viewer = world.join();
    viewer.next().await.unwrap();
    world.token.replace(Token::of(b"another-token-entirely"));
    assert!(viewer.next().await.is_none());
    let world = World::new();
    let mut viewer = world.join();
    let begun = tokio::time::Instant::now();
    while viewer.next().await.is_some() {}
    assert_eq!(begun.elapsed(), STREAM_TIME);
    let mut viewer = world.join();
    viewer.next().await.unwrap();
    world.end.send_replace(true);
    assert!(viewer.next().await.is_none());
    drop(viewer);
    let before = world.source.asked();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.source.asked(), before);
}

/// Where one sample took long the next ones came late, and a peer that read nothing kept its place for ten of them: hours.
#[tokio::test(start_paused = true)]
async fn a_place_ends_with_its_time_however_rare_samples_are() {
    let world = World::new();
    let _silent: Vec<Viewer> = (0..VIEWERS_MAX).map(|_| world.join()).collect();
    world.viewers.tell(none(), STREAM_TIME * 10);
    tokio::time::sleep(STREAM_TIME - Duration::from_secs(1)).await;
    assert!(world.viewers.join(HeaderMap::new()).is_none());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (asked, last) = (world.source.asked(), world.join());
    // Nobody is left when the sample is due.
    tokio::time::sleep(STREAM_TIME * 20).await;
    assert_eq!(world.source.asked(), asked);
    drop(last);
    world.join().next().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_joins_while_the_sampler_ends_is_told_samples() {
    for turns in 0..8 {
        let world = World::new();
        let mut first = world.join();
        first.next().await.unwrap();
        drop(first);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let mut viewer = world.join();
        for number in 1..=3 {
            assert_eq!(asked(&viewer.next().await.unwrap()), number, "{turns}");
        }
    }
}

/// A small tenant that had used its quota was left out beside a hundred larger ones, and so was the warning.
#[test]
fn warnings_are_of_tenants_too_that_a_sample_leaves_out() {
    let quota = |number: u64| QuotaState {
        tenant: Tenant::new(&format!("t{number}")).unwrap(),
        memory_quota: (number == 0).then_some(1),
        disk_quota: None,
        memory_bytes: number + 1,
        disk_bytes: 0,
        objects: 1,
    };
    let source = Counted {
        quotas: (0..101).map(quota).collect(),
        ..Counted::default()
    };
    let sample = Sampler::new(Instant::now()).take(&source).unwrap();
    assert_eq!(sample["quotas"].as_array().unwrap().len(), 100);
    assert_eq!(
        (&sample["quotas"][0]["tenant_id"], &sample["tenants_left"]),
        (&json!("t100"), &json!(1))
    );
    let said = "tenant t0 has used its quota of memory";
    assert_eq!(sample["warnings"][0]["what"], said);
}
