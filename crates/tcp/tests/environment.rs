//! What an engine says about its environment.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fmt;
use std::sync::{Arc, Mutex};

use slackwater_tcp::{IGNORED, TcpConfig};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

/// Keeps the variables that warnings name.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "ignored" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Variables that are accepted without effect were said to be named once in the log, and never were.
#[test]
fn variables_without_effect_are_named_once() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let read = |names: &[&str]| {
            let vars = names
                .iter()
                .map(|name| ((*name).to_owned(), "1".to_owned()));
            TcpConfig::from_env(vars).unwrap();
        };
        read(&["PATH", "SLACKWATER_TCP_QUEUE_ENTRIES"]);
        assert!(warnings.0.lock().unwrap().is_empty());
        read(&[IGNORED[0], "PATH", IGNORED[2]]);
        read(&[IGNORED[1]]);
    });
    let told = [format!("{}, {}", IGNORED[0], IGNORED[2])];
    assert_eq!(*warnings.0.lock().unwrap(), told);
}
