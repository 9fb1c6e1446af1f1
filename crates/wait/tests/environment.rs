//! The strategy of waits that name none, as the environment of the process gives it.
#![cfg(all(not(loom), not(miri)))]

use std::process::Command;

use slackwater_wait::{Choice, Countdown, Site, Waiting, current};

const CHILD: &str = "SLACKWATER_TEST_WAITS";

/// `SLACKWATER_WAIT` was documented and read only by the store's configuration: links and transfers waited adaptively
/// whatever it said.
#[test]
fn a_wait_without_a_strategy_takes_the_one_that_the_environment_names() {
    if let Some(expected) = std::env::var_os(CHILD) {
        let batch = Countdown::<()>::new(0);
        batch.wait(&Waiting::at(&Site::new("child"))).unwrap();
        assert_eq!(format!("{:?}", current()), expected.to_str().unwrap());
        return;
    }
    let check = |value: Option<&str>, expected: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "a_wait_without_a_strategy_takes_the_one_that_the_environment_names",
        ]);
        child.env(CHILD, expected).env_remove(Choice::ENV);
        if let Some(value) = value {
            child.env(Choice::ENV, value);
        }
        let output = child.output().unwrap();
        assert!(output.status.success(), "{value:?}: {output:?}");
    };
    let adaptive = format!("{:?}", slackwater_wait::Adaptive::new());
    check(None, &adaptive);
    check(Some("adaptive"), &adaptive);
    check(Some("park"), "Park");
    check(Some("spin"), "Spin");
    check(Some("sleep:10us"), "Sleep(10µs)");
    check(Some("sping"), &adaptive);
}
