//! Which requests are answered: those with the token; without one, those of processes of this machine that are no browser's
//! for a page from elsewhere.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::json::Json;

/// Fewest characters of a token.
const TOKEN_CHARACTERS_MIN: usize = 16;
/// Longest file with a token, in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// What a caller must know. Only its hash is kept.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// The token that is in force. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TokenInForce(Arc<RwLock<Option<Token>>>);

impl TokenInForce {
    pub(crate) fn new(token: Option<Token>) -> Self {
        Self(Arc::new(RwLock::new(token)))
    }

    /// Puts another token in force: requests with the old one are refused from now on.
    pub fn replace(&self, token: Token) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    pub(crate) fn judge(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        judge(token.as_ref(), headers)
    }
}

/// Why a file with a token cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("{} cannot be read: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        why: std::io::Error,
    },
    /// Others than its owner may read it.
    #[error("{} can be read by others than its owner: chmod 600 it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// It holds no token.
    #[error(
        "{} must hold one line of at least {TOKEN_CHARACTERS_MIN} printable characters without spaces, such as `openssl rand -hex 32` makes",
        path.display()
    )]
    Unfit {
        /// The file.
        path: PathBuf,
    },
}

impl Token {
    /// Reads the token that is the only line of a file.
    ///
    /// # Errors
    /// When the file cannot be read, others may read it, or it holds no fit token.
    pub fn load(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |why| TokenError::Unreadable {
            path: path.to_owned(),
            why,
        };
        let unfit = || TokenError::Unfit {
            path: path.to_owned(),
        };
        let about = fs::metadata(path).map_err(unreadable)?;
        if about.permissions().mode() & 0o077 != 0 {
            return Err(TokenError::Open {
                path: path.to_owned(),
            });
        }
        if about.len() > TOKEN_FILE_BYTES_MAX {
            return Err(unfit());
        }
        let text = Zeroizing::new(fs::read(path).map_err(unreadable)?);
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        if line.len() < TOKEN_CHARACTERS_MIN || !line.iter().all(u8::is_ascii_graphic) {
            return Err(unfit());
        }
        Ok(Self::of(line))
    }

    pub(crate) fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn is(&self, token: &[u8]) -> bool {
        self.0.ct_eq(&Self::of(token).0).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Why a request is refused before it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has not the token.
    Token,
    /// A page of another origin makes it, or a name that was made to mean this machine.
    Origin,
}

/// What a browser says of the page that makes a request: <https://www.w3.org/TR/fetch-metadata/>.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Judges a request by its headers. A request without a token comes from this machine, but a browser of this machine makes
/// requests for pages from elsewhere: those name their origin, or a host that is not this machine's own name, or nothing but
/// that they are from elsewhere, as a picture's do. Another port of this machine is the same site, and elsewhere too.
fn judge(token: Option<&Token>, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| {
        headers
            .get(name)
            .map(|value: &axum::http::HeaderValue| value.to_str().unwrap_or_default())
    };
    let host = text(HOST);
    if text(SEC_FETCH_SITE).is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return Err(Refusal::Origin);
    }
    if let Some(origin) = text(ORIGIN) {
        let same = origin
            .split_once("://")
            .is_some_and(|(_, origin)| host.is_some_and(|host| origin.eq_ignore_ascii_case(host)));
        if !same {
            return Err(Refusal::Origin);
        }
    }
    match token {
        Some(token) => {
            let given = text(AUTHORIZATION).and_then(|value| value.split_once(' '));
            let known = given.is_some_and(|(scheme, given)| {
                scheme.eq_ignore_ascii_case("bearer") && token.is(given.trim().as_bytes())
            });
            if known { Ok(()) } else { Err(Refusal::Token) }
        }
        None if host.is_none_or(is_this_machine) => Ok(()),
        None => Err(Refusal::Origin),
    }
}

/// Whether a host header names the loopback.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let answer = |status, message| {
            let body = json!({ "success": false, "error_message": message });
            (status, Json(body)).into_response()
        };
        match self {
            Self::Token => {
                let mut response = answer(
                    StatusCode::UNAUTHORIZED,
                    "the token is missing or wrong: send `Authorization: Bearer TOKEN`",
                );
                let scheme = axum::http::HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                response
            }
            Self::Origin => answer(
                StatusCode::FORBIDDEN,
                "pages of other origins are not served: ask 127.0.0.1 or localhost, or configure a token",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let parse = |(name, value): &(&str, &str)| {
            let name = axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, value.parse().unwrap())
        };
        pairs.iter().map(parse).collect()
    }

    #[test]
    fn requests_are_judged_by_token_host_and_origin() {
        let token = Token::of(SECRET.as_bytes());
        let check = |token: Option<&Token>, pairs: &[(&str, &str)], expected| {
            assert_eq!(judge(token, &headers(pairs)), expected, "{pairs:?}");
        };
        let (none, some) = (None, Some(&token));
        for host in [
            "localhost:9003",
            "LOCALHOST",
            "127.0.0.1:9003",
            "127.9.9.9",
            "[::1]:9003",
        ] {
            check(none, &[("host", host)], Ok(()));
            let origin = format!("http://{host}");
            check(none, &[("host", host), ("origin", &origin)], Ok(()));
        }
        check(none, &[], Ok(()));
        for host in [
            "evil.example:9003",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "",
        ] {
            check(none, &[("host", host)], Err(Refusal::Origin));
        }
        let foreign = [
            ("host", "localhost:9003"),
            ("origin", "http://evil.example"),
        ];
        check(none, &foreign, Err(Refusal::Origin));
        check(
            none,
            &[("host", "localhost"), ("origin", "null")],
            Err(Refusal::Origin),
        );
        let good = format!("Bearer {SECRET}");
        // A picture or a script of a foreign page is asked for without an origin.
        for (site, expected) in [
            ("same-origin", Ok(())),
            ("none", Ok(())),
            ("same-site", Err(Refusal::Origin)),
            ("cross-site", Err(Refusal::Origin)),
            ("", Err(Refusal::Origin)),
        ] {
            let site = ("sec-fetch-site", site);
            check(none, &[("host", "localhost:9003"), site], expected);
            check(some, &[("authorization", &good), site], expected);
        }
        check(some, &[("authorization", &good)], Ok(()));
        check(
            some,
            &[
                ("authorization", &format!("bearer {SECRET}")),
                ("host", "pool.example"),
            ],
            Ok(()),
        );
        check(
            some,
            &[
                ("authorization", &good),
                ("host", "a"),
                ("origin", "http://b"),
            ],
            Err(Refusal::Origin),
        );
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            SECRET,
            &format!("Basic {SECRET}"),
            &format!("Bearer {SECRET}0"),
        ] {
            check(some, &[("authorization", wrong)], Err(Refusal::Token));
        }
        check(some, &[("host", "localhost")], Err(Refusal::Token));
    }

    #[test]
    fn a_token_is_one_line_that_only_its_owner_reads() {
        let directory = std::env::temp_dir().join(format!("token-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let check = |name: &str, mode: u32, text: &str, expected: Option<&str>| {
            let path = directory.join(name);
            let _ = fs::remove_file(&path);
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .create_new(true)
                .write(true)
                .mode(mode)
                .open(&path)
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let said = Token::load(&path).err().map(|error| error.to_string());
            match expected {
                None => assert_eq!(said, None, "{name}"),
                Some(part) => assert!(said.unwrap().contains(part), "{name}"),
            }
        };
        check("good", 0o600, SECRET, None);
        check("line", 0o400, &format!("{SECRET}\n"), None);
        check("open", 0o644, SECRET, Some("chmod 600"));
        check("short", 0o600, "0123456789abcde", Some("at least 16"));
        check(
            "two",
            0o600,
            &format!("{SECRET}\n{SECRET}\n"),
            Some("one line"),
        );
        check("empty", 0o600, "", Some("one line"));
        check("long", 0o600, &"a".repeat(4097), Some("one line"));
        let missing = Token::load(&directory.join("missing")).unwrap_err();
        assert!(missing.to_string().contains("cannot be read"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
