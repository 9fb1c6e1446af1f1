//! What a loop says of its environment.

use std::process::Command;

use slackwater_net::{Event, Limits, Loop, Net, Protocol};
use slackwater_wait::Choice;

const CHILD: &str = "SLACKWATER_TEST_LOOP";

struct Silent;

impl Protocol for Silent {
    type Command = ();

    fn handle(&mut self, _: &mut Net, _: Event<'_, ()>) {}
}

/// A wrong `SLACKWATER_WAIT` was never noticed, since nothing below the store read it.
#[test]
fn a_loop_refuses_to_start_with_a_wrong_strategy_of_waiting() {
    if std::env::var_os(CHILD).is_some() {
        let Err(error) = Loop::start("silent", Limits::default(), Silent) else {
            panic!("the loop started");
        };
        let message = error.to_string();
        assert!(
            message.starts_with("SLACKWATER_WAIT: `sping` is no"),
            "{message}"
        );
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_loop_refuses_to_start_with_a_wrong_strategy_of_waiting",
        ])
        .env(CHILD, "1")
        .env(Choice::ENV, "sping")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
