use std::sync::Once;

use rustix::process::{Signal, getpid, kill_process};

/// The environment variable that names a place and what happens there: `PLACE=stop` or `PLACE=kill`.
const ENV: &str = "SLACKWATER_FAILPOINT";

/// Stops or ends this process if the environment says so of this place, the first time that it is passed.
///
/// For tests with processes: they stop one in the middle of something and see that it has stopped, instead of guessing
/// how long it takes to get there. Without the feature `failpoints`, which only tests turn on, this does nothing.
pub fn failpoint(place: &str) {
    static PASSED: Once = Once::new();
    let Some(wanted) = std::env::var_os(ENV) else {
        return;
    };
    let wanted = wanted.to_string_lossy();
    let Some((named, action)) = wanted.split_once('=') else {
        panic!("{ENV}={wanted}: write PLACE=stop or PLACE=kill");
    };
    let signal = match action {
        "stop" => Signal::STOP,
        "kill" => Signal::KILL,
        _ => panic!("{ENV}={wanted}: `{action}` is neither stop nor kill"),
    };
    if named == place {
        // A process may always send signals to itself.
        PASSED.call_once(|| _ = kill_process(getpid(), signal));
    }
}
