use std::fmt;
use std::str::FromStr;

use slackwater_trace::{Exporter, RecorderError};
use thiserror::Error;

/// Where spans go: the address of a collector that takes OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port, as they stand in the address.
    authority: String,
    /// The path, which begins with a slash.
    path: String,
}

/// Why a text is not the address of a collector.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    /// It is encrypted.
    #[error(
        "https is not spoken here: name a collector on this machine or a network that is trusted, which sends spans on"
    )]
    Encrypted,
    /// It is no such address.
    #[error("`{0}` is no address of a collector, such as http://127.0.0.1:4318")]
    Malformed(String),
}

/// How spans are exported.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The collector that takes them.
    pub endpoint: Endpoint,
    /// What this process is called in traces.
    pub service: String,
    /// Of the calls that belong to no trace, the share that begin one: 0 to 1.
    pub share: f64,
}

/// Why spans are not exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The program lacks what it takes.
    #[error(
        "this program was built without OpenTelemetry: `cargo build --release -p slackwater-cli --features otel` builds the \
         command with it, `maturin build --release --features otel` the Python module"
    )]
    NotBuilt,
    /// They are exported already, or there is no thread.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// The exporter could not be made.
    #[error("spans cannot be exported: {0}")]
    Sink(String),
}

/// Port of a collector that names none.
const PORT: u16 = 4318;
/// Where a collector takes spans, unless its address says.
const PATH: &str = "/v1/traces";

impl Endpoint {
    /// Host and port.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The path of requests.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let malformed = || EndpointError::Malformed(text.to_owned());
        if text.starts_with("https:") {
            return Err(EndpointError::Encrypted);
        }
        let rest = text.strip_prefix("http://").ok_or_else(malformed)?;
        let (authority, path) = rest
            .split_once('/')
            .map_or((rest, String::new()), |(authority, path)| {
                (authority, format!("/{path}"))
            });
        let is_plain = |text: &str| {
            let mut letters = text.chars();
            letters.all(|letter| letter.is_ascii_graphic() && !"@?#\\".contains(letter))
        };
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an IPv6 address are within brackets.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| malformed())?)
            }
            _ => (authority, PORT),
        };
        let is_host = match host.strip_prefix('[') {
            Some(rest) => rest.ends_with(']'),
            None => !host.is_empty() && !host.contains([':', ']']),
        };
        if !is_plain(rest) || !is_host || port == 0 {
            return Err(malformed());
        }
        Ok(Self {
            authority: format!("{host}:{port}"),
            path: match path.as_str() {
                "" | "/" => PATH.to_owned(),
                _ => path,
            },
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// Exports the spans of this process to a collector.
///
/// # Errors
/// [`ExportError::NotBuilt`] without the feature `otel`; when they are exported already, or there is no thread.
pub fn export(options: &ExportOptions) -> Result<Exporter, ExportError> {
    #[cfg(feature = "otel")]
    {
        let sink = crate::otlp::Otlp::new(options)?;
        Ok(slackwater_trace::export_to(sink, options.share)?)
    }
    #[cfg(not(feature = "otel"))]
    {
        let _ = options;
        Err(ExportError::NotBuilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "otel"))]
    #[test]
    fn what_was_built_without_it_says_how_to_build_it() {
        let options = ExportOptions {
            endpoint: "http://127.0.0.1".parse().expect("an address"),
            service: "test".into(),
            share: 1.0,
        };
        let refused = export(&options).map(drop).expect_err("it cannot");
        assert!(matches!(refused, ExportError::NotBuilt));
        assert!(refused.to_string().contains("--features otel"), "{refused}");
    }

    #[test]
    fn an_endpoint_is_a_plain_address_with_the_usual_port_and_path() {
        let check = |text: &str, expected: Option<&str>| {
            let shown = text
                .parse::<Endpoint>()
                .map(|endpoint| endpoint.to_string());
            assert_eq!(shown.ok().as_deref(), expected, "{text}");
        };
        let usual = "http://127.0.0.1:4318/v1/traces";
        check("http://127.0.0.1:4318", Some(usual));
        check("http://127.0.0.1/", Some(usual));
        check("http://tempo:4400/otlp", Some("http://tempo:4400/otlp"));
        check("http://[::1]", Some("http://[::1]:4318/v1/traces"));
        check("http://[::1]:80/", Some("http://[::1]:80/v1/traces"));
        for wrong in [
            "",
            "127.0.0.1:4318",
            "ftp://a",
            "http://",
            "http://:4318",
            "http://a:0",
            "http://a:65536",
            "http://a b",
            "http://a/\r\nX: y",
            "http://user@a",
            "http://::1",
            "http://[::1",
        ] {
            check(wrong, None);
        }
        let encrypted = "https://a".parse::<Endpoint>();
        assert_eq!(encrypted, Err(EndpointError::Encrypted));
    }
}
