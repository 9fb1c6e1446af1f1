//! Scratch.
use slackwater_pool::{Config, Kind, Pool};
use std::time::Instant;
fn task(steps: u64) {
    let mut x = steps;
    for _ in 0..steps {
        x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    }
    std::hint::black_box(x);
}
fn main() {
    let t = Instant::now();
    task(1_000_000);
    let steps = (2000.0 / (t.elapsed().as_nanos() as f64 / 1e6)) as u64;
    let pool = Pool::start(&Config::threads(std::env::args().nth(1).map_or(2, |x| x.parse().unwrap()))).unwrap();
    let kinds = [Kind::new("a"), Kind::new("b"), Kind::new("c")];
    let sizes = [192, 64, 1];
    for round in 0..4 {
        let before = pool.counts();
        let mut lens: Vec<(f64, usize)> = vec![];
        let t = Instant::now();
        for _ in 0..480 {
            for k in 0..3 {
                let s = Instant::now();
                pool.job(sizes[k]).kind(&kinds[k]).run(|_| task(steps)).unwrap();
                lens.push((s.elapsed().as_nanos() as f64 / 1e3 - (sizes[k].div_ceil(2) * 2) as f64, k));
            }
        }
        let el = t.elapsed().as_secs_f64() * 1e3 / 10.0;
        let c = pool.counts();
        println!("round {round}: {el:.2} ms/token wakes {} alone {}", c.wakes - before.wakes, c.alone - before.alone);
        for k in 0..3 {
            let mut l: Vec<f64> = lens.iter().filter(|x| x.1 == k).map(|x| x.0).collect();
            l.sort_by(f64::total_cmp);
            println!(
                "  size {} overhead p50 {:.1} p90 {:.1} p99 {:.1} max {:.1}",
                sizes[k],
                l[l.len() / 2],
                l[l.len() * 9 / 10],
                l[l.len() * 99 / 100],
                l[l.len() - 1]
            );
        }
        for (a, b) in c.threads.iter().zip(&before.threads) {
            println!(
                "  t{} jobs {} tasks {} claims {} steals {} stealns {} | waits {} ready {} hits {} looks {} parks {} spur {} preempt {} crowded {} wseen {} wake {} budget {:?} ",
                a.thread,
                a.jobs - b.jobs,
                a.tasks - b.tasks,
                a.claims - b.claims,
                a.steals - b.steals,
                a.steal_nanos - b.steal_nanos,
                a.waits.waits - b.waits.waits,
                a.waits.ready - b.waits.ready,
                a.waits.spin_hits - b.waits.spin_hits,
                a.waits.looks - b.waits.looks,
                a.waits.parks - b.waits.parks,
                a.waits.spurious - b.waits.spurious,
                a.waits.preempted - b.waits.preempted,
                a.waits.crowded - b.waits.crowded,
                a.waits.wakes_seen - b.waits.wakes_seen,
                (a.waits.wake_nanos - b.waits.wake_nanos) / (a.waits.wakes_seen - b.waits.wakes_seen).max(1),
                a.waits.budget
            );
        }
        for k in &kinds {
            let w = k.join_site().counts();
            println!(
                "  join {} task {:?} waits {} ready {} hits {} parks {} crowded {} budget {:?}",
                k.name(),
                k.task_nanos(),
                w.waits,
                w.ready,
                w.spin_hits,
                w.parks,
                w.crowded,
                w.budget
            );
        }
    }
    println!("{:?}", slackwater_wait::Costs::now());
}
