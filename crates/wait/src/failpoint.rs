use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The environment variable that names a place and what happens there: `PLACE=stop` or `PLACE=kill`, and `PLACE=kill:7` for
/// the seventh time.
const ENV: &str = "SLACKWATER_FAILPOINT";

/// The environment variable that [`failpoint`] looks at, for those who refuse names that they do not know.
pub const FAILPOINT_ENV: Option<&str> = Some(ENV);

/// Stops or ends this process if the environment says so of this place, the first time that it is passed or a later one.
///
/// For tests with processes: they stop one in the middle of something and see that it has stopped, instead of guessing
/// how long it takes to get there. Without the feature `failpoints`, which only tests turn on, this does nothing.
pub fn failpoint(place: &str) {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Some(wanted) = std::env::var_os(ENV) else {
        return;
    };
    let wanted = wanted.to_string_lossy();
    let Some((named, action)) = wanted.split_once('=') else {
        panic!("{ENV}={wanted}: write PLACE=stop or PLACE=kill");
    };
    let (action, time) = action.split_once(':').unwrap_or((action, "1"));
    let Ok(time) = time.parse::<u64>() else {
        panic!("{ENV}={wanted}: `{time}` is no number");
    };
    let signal = match action {
        "stop" => Signal::STOP,
        "kill" => Signal::KILL,
        _ => panic!("{ENV}={wanted}: `{action}` is neither stop nor kill"),
    };
    if named == place && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == time {
        // A process may always send signals to itself.
        let _ = kill_process(getpid(), signal);
    }
}
