//! Standard output: where a command answers.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// Nobody reads standard output any more: the reader has what it wanted, as `head` does after its lines.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct Closed;

/// Prints lines.
pub(crate) fn say(text: impl std::fmt::Display) -> Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Writes bytes as they are.
pub(crate) fn write(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        other => other.context("standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_error() {
        let check = |kind: ErrorKind, closed: bool| {
            let error = written(Err(kind.into())).unwrap_err();
            assert_eq!(error.is::<Closed>(), closed, "{error:#}");
        };
        check(ErrorKind::BrokenPipe, true);
        check(ErrorKind::StorageFull, false);
        assert!(written(Ok(())).is_ok());
    }
}
