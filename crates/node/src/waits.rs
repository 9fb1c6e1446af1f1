//! How the threads of a process wait that belong to no store alone.

use slackwater_wait::Site;

use crate::store::WaitStats;
use crate::{kv_events, pool, serve};

/// The waits of the message layer, of transfers and of the pool; those that never were are left out.
pub(crate) fn of_process() -> impl Iterator<Item = WaitStats> {
    let ours = [
        &serve::WRITTEN,
        &pool::HAPPENED,
        &pool::LEAVING,
        &pool::COMMIT,
        &pool::ANSWER,
        &pool::STEWARD,
        &kv_events::EVENTS,
    ];
    let net = slackwater_net::wait_sites();
    let messages = slackwater_mq::wait_sites();
    let transfers = slackwater_transfer::wait_sites();
    let traces = slackwater_trace::wait_sites();
    let others = net
        .into_iter()
        .chain(messages)
        .chain(transfers)
        .chain(traces);
    let all = ours.into_iter().chain(others);
    all.map(WaitStats::of)
        .filter(|wait| wait.waits > 0 || wait.parked > 0)
}

impl WaitStats {
    pub(crate) fn of(site: &Site) -> Self {
        let counts = site.counts();
        Self {
            site: site.name(),
            waits: counts.waits,
            spun: counts.spin_hits,
            looks: counts.looks,
            parked: counts.parks,
            timeouts: counts.timeouts,
            spun_us: counts.spin_nanos / 1000,
            parked_us: counts.park_nanos / 1000,
        }
    }
}
