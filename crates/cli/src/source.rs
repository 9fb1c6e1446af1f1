use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor};
use std::path::Path;

use anyhow::{Context, Result};
use slackwater_base::hash64;
use slackwater_replay::{Generator, Request, TraceReader, Traffic};

use crate::args::Origin;

/// Where requests come from.
pub(crate) struct Source {
    /// What reports call it.
    pub(crate) label: String,
    /// Tells its blocks from those of other sources in the same store.
    pub(crate) identity: u64,
    /// How much there is to do, in the unit of [`Source::done`]; `None` where that is not known.
    pub(crate) total: Option<u64>,
    limit: Option<u64>,
    taken: u64,
    requests: Requests,
}

enum Requests {
    Trace(Box<TraceReader<Box<dyn BufRead>>>),
    Generated(Box<Generator>),
}

impl Source {
    pub(crate) fn open(origin: &Origin) -> Result<Self> {
        let mut source = Self::whole(origin)?;
        if let Some(limit) = origin.limit {
            let all = if origin.generate {
                origin.requests
            } else {
                u64::MAX
            };
            (source.limit, source.total) = (Some(limit), Some(limit.min(all)));
        }
        Ok(source)
    }

    fn whole(origin: &Origin) -> Result<Self> {
        match &origin.trace {
            None => Ok(Self::generated(origin)),
            Some(path) if path.as_os_str() == "-" => {
                Self::trace("standard input", Box::new(io::stdin().lock()), None)
            }
            Some(path) => Self::file(path),
        }
    }

    /// How much is done: requests, or bytes of a trace that is read to its end.
    pub(crate) fn done(&self) -> u64 {
        match &self.requests {
            Requests::Trace(reader) if self.limit.is_none() => reader.bytes_read(),
            _ => self.taken,
        }
    }

    fn generated(origin: &Origin) -> Self {
        let traffic = Traffic {
            requests: origin.requests,
            sessions: origin.sessions,
            seed: origin.seed,
            think_seconds: origin.think,
        };
        // The number of requests only says where the same traffic ends.
        let identity = hash64(
            format!(
                "generated {} {} {}",
                traffic.sessions, traffic.seed, traffic.think_seconds
            )
            .as_bytes(),
        );
        Self {
            label: format!(
                "generated chat of {} sessions, seed {}",
                traffic.sessions, traffic.seed
            ),
            identity,
            total: Some(traffic.requests),
            limit: None,
            taken: 0,
            requests: Requests::Generated(Box::new(Generator::new(traffic))),
        }
    }

    fn file(path: &Path) -> Result<Self> {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) =
            opened.with_context(|| format!("cannot open the trace {}", path.display()))?;
        let total = metadata.is_file().then_some(metadata.len());
        Self::trace(
            &path.display().to_string(),
            Box::new(BufReader::with_capacity(1 << 18, file)),
            total,
        )
    }

    /// The first line names the trace wherever the file lies, and however far it is replayed.
    fn trace(name: &str, mut reader: Box<dyn BufRead>, total: Option<u64>) -> Result<Self> {
        let mut first = Vec::new();
        let mut bounded = io::Read::take(&mut reader, slackwater_replay::LINE_BYTES_MAX);
        bounded
            .read_until(b'\n', &mut first)
            .with_context(|| format!("cannot read the trace {name}"))?;
        let identity = hash64(&first);
        let whole: Box<dyn BufRead> = Box::new(io::Read::chain(Cursor::new(first), reader));
        let requests = Requests::Trace(Box::new(TraceReader::new(name, whole)));
        let label = Path::new(name)
            .file_name()
            .map_or(name.into(), |file| file.to_string_lossy())
            .into_owned();
        Ok(Self {
            label,
            identity,
            total,
            limit: None,
            taken: 0,
            requests,
        })
    }
}

impl Iterator for Source {
    type Item = Result<Request>;

    fn next(&mut self) -> Option<Result<Request>> {
        if self.limit.is_some_and(|limit| self.taken >= limit) {
            return None;
        }
        let request = match &mut self.requests {
            Requests::Trace(reader) => reader.next()?.map_err(anyhow::Error::from),
            Requests::Generated(generator) => Ok(generator.next()?),
        };
        self.taken += 1;
        Some(request)
    }
}
