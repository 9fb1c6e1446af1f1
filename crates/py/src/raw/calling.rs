//! How every call is made: with the session, while other threads of Python run, and with codes for results.

use std::sync::{Arc, MutexGuard, PoisonError};

use pyo3::prelude::*;
use slackwater_remote::ClientError;
use slackwater_wire::Description;

use super::code::code_of;
use super::memory::{Number, Range};
use super::session::{Outcome, Session};
use super::sessions::Parts;
use super::{ABSENT, IN_FORK, NOT_OPEN, RawClient, WRONG};
use crate::buffers::KeyBytes;
use crate::store::forks;
use crate::traces;

impl RawClient {
    pub(super) fn session(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open_session(&self) -> Result<Arc<Session>, i64> {
        if self.forks != forks() {
            return Err(IN_FORK);
        }
        self.session().clone().ok_or(NOT_OPEN)
    }

    /// Does something with the session while other threads of Python may run.
    pub(super) fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Session) -> T + Send,
    ) -> Result<T, i64> {
        let session = self.open_session()?;
        Ok(traces::detached(py, move || {
            let done = work(&session);
            // The last holder of a client that was closed meanwhile ends it, which joins threads.
            drop(session);
            done
        }))
    }

    /// One result of a call.
    pub(super) fn call(
        &self,
        py: Python<'_>,
        method: &str,
        work: impl FnOnce(&Session) -> Outcome + Send,
    ) -> i64 {
        let results = self.each(py, method, 1, |session| vec![work(session)]);
        results.first().copied().unwrap_or(WRONG)
    }

    /// The results of a call about so many keys.
    pub(super) fn each(
        &self,
        py: Python<'_>,
        method: &str,
        count: usize,
        work: impl FnOnce(&Session) -> Vec<Outcome> + Send,
    ) -> Vec<i64> {
        let worked = self.detached(py, |session| {
            let _in_use = session.registered.enter();
            work(session)
        });
        let outcomes = match worked {
            Ok(outcomes) => outcomes,
            Err(code) => return vec![code; count],
        };
        let number = |outcome: Outcome| {
            outcome.unwrap_or_else(|error| {
                let code = code_of(&error);
                self.reasons.tell(py, method, code, &error);
                code
            })
        };
        outcomes.into_iter().map(number).collect()
    }

    /// The length of a value that is read while other threads of Python wait, which takes less time than to let one of them
    /// run; `None` where it would take longer.
    pub(super) fn read_at_hand(
        &self,
        py: Python<'_>,
        key: &[u8],
        start: Number,
        size: Number,
    ) -> Option<i64> {
        let run = Range::new(start, size)?;
        let session = self.open_session().ok()?;
        let in_use = session.registered.enter();
        let read = session.read_at_hand(key, run);
        drop(in_use);
        // As in `detached`.
        if let Some(last) = Arc::into_inner(session) {
            py.detach(move || drop(last));
        }
        read
    }

    /// The results of a call about parts of the values of so many sessions.
    pub(super) fn parts(
        &self,
        py: Python<'_>,
        method: &str,
        keys: &[KeyBytes],
        parts: &Parts,
        work: fn(&Session, &[&[u8]], &Parts) -> Vec<Outcome>,
    ) -> Vec<i64> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        self.each(py, method, keys.len(), |session| {
            work(session, &keys, parts)
        })
    }

    /// The values of keys, and a code for each that was not read.
    pub(super) fn values(
        &self,
        py: Python<'_>,
        method: &str,
        keys: &[KeyBytes],
    ) -> Vec<Result<Vec<u8>, i64>> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let mut values: Vec<Vec<u8>> = Vec::new();
        let codes = self.each(py, method, keys.len(), |session| {
            if session.staging_bytes == 0 {
                return vec![Ok(WRONG); keys.len()];
            }
            let read = session.client.get_batch(&keys, &session.get_options());
            let outcome = |read: Result<Option<Vec<u8>>, _>| match read {
                Ok(None) => Ok(ABSENT),
                Ok(Some(value)) => {
                    values.push(value);
                    Ok(0)
                }
                Err(error) => Err(error),
            };
            read.into_iter().map(outcome).collect()
        });
        let mut values = values.into_iter();
        let value = |code| match code {
            0 => values.next().ok_or(WRONG),
            code => Err(code),
        };
        codes.into_iter().map(value).collect()
    }

    /// What `of` takes from what the master knows of each key; `None` where it has no such object, or does not say.
    pub(super) fn stats<T: Send>(
        &self,
        py: Python<'_>,
        method: &str,
        keys: &[KeyBytes],
        of: impl Fn(&Description) -> T + Sync,
    ) -> Vec<Option<T>> {
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            let key = key.as_slice();
            let mut found = None;
            self.call(py, method, |session| {
                found = match session.client.stat(key, &session.call()) {
                    Err(ClientError::Key(_)) => None,
                    found => found?.as_ref().map(&of),
                };
                Ok(0)
            });
            all.push(found);
        }
        all
    }

    /// The session, to be ended. In a fork its threads do not exist, so it is left alone.
    pub(super) fn take(&self) -> Option<Arc<Session>> {
        if self.forks != forks() {
            // The lock may have been held by another thread at the fork.
            return None;
        }
        self.session().take()
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        if self.forks != forks() {
            std::mem::forget(
                self.session
                    .try_lock()
                    .ok()
                    .and_then(|mut held| held.take()),
            );
            return;
        }
        if let Some(session) = self.take() {
            Python::attach(|py| {
                py.detach(move || {
                    session.close();
                    // The last holder ends the client, which joins threads.
                    drop(session);
                });
            });
        }
    }
}
